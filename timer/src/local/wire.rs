//! Encodes and parses the messages between client and server, and does nothing else. docs/timer-protocol.md has the layout.
//!
//! Every number is little-endian. Any deviation from the layout is [`Malformed`]: the peer is not trusted.

use std::num::NonZeroU64;
use std::{fmt, str};

use rustix::process::Signal as Known;

use crate::expiry::{Holder, Scope, Signal};

/// The longest message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;
/// The bytes before the holder, if there is one, and the scope's name.
const HEAD: usize = 24;
/// The size of a holder.
const HOLDER: usize = 8;
/// The first bytes of each message: the protocol and its version.
const MAGIC: [u8; 4] = *b"fbt\x01";

const TIMER: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;

/// The message has a signal.
const SIGNAL_GIVEN: u8 = 1;
/// The message has a holder's number between the head and the scope's name.
const HOLDER_GIVEN: u8 = 2;

/// The deadline that means release.
const RELEASE: i64 = -1;

/// A client's message: acquire or release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireRequest {
    /// Nanoseconds of the monotonic clock; `None` releases.
    pub(crate) deadline: Option<u64>,
    pub(crate) signal: Signal,
    pub(crate) scope: Scope,
}

/// The bytes are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is accepted; now the client may send.
    Welcome,
    /// The connection is closed for this reason.
    Refused(Refusal),
}

/// Why a server closes a connection.
///
/// ```
/// use forebear::timer::TimerError;
/// use forebear::timer::local::{LocalTimerClient, Refusal};
///
/// /// Whether it is worth trying again later.
/// fn is_full(error: &TimerError) -> bool {
///     let TimerError::Other(error) = error else { return false };
///     matches!(error.downcast_ref(), Some(Refusal::TooManyConnections | Refusal::TooManyWorkers))
/// }
/// let error = LocalTimerClient::connect("/no/such/directory/timers").unwrap_err();
/// assert!(!is_full(&error));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The server has its maximum of connections.
    TooManyConnections,
    /// This process has its maximum of connections.
    TooManyOfOne,
    /// The server watches its maximum of processes.
    TooManyWorkers,
    /// This process has its maximum of timers. They continue; the new one was not started.
    TooManyTimers,
    /// The server received a message of another protocol, or of another version of this one.
    Malformed,
    /// A message came from another process than the one that had connected.
    ForeignSender,
    /// The process that connected is not visible from the server's pid namespace, or belongs to
    /// another user.
    Stranger,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::TooManyConnections => "the timer server has reached its limit of connections",
            Refusal::TooManyOfOne => "this process has reached its limit of connections to the timer server",
            Refusal::TooManyWorkers => "the timer server has reached its limit of watched processes",
            Refusal::TooManyTimers => "this process has reached its limit of timers",
            Refusal::Malformed => "the message to the timer server is malformed",
            Refusal::ForeignSender => "another process than the connected one sent a message",
            Refusal::Stranger => {
                "the peer of the timer server belongs to another user, or cannot be identified"
            }
        })
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    const ALL: [Refusal; 7] = [
        Refusal::TooManyConnections,
        Refusal::TooManyOfOne,
        Refusal::TooManyWorkers,
        Refusal::TooManyTimers,
        Refusal::Malformed,
        Refusal::ForeignSender,
        Refusal::Stranger,
    ];
}

/// An encoded message.
pub(crate) struct Message {
    bytes: [u8; MAX_MESSAGE],
    len: usize,
}

impl Message {
    /// The bytes to send.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Encodes a client's message. `Err` with its size if that exceeds [`MAX_MESSAGE`].
pub(crate) fn encode_request(scope: &Scope, deadline: Option<u64>, signal: Signal) -> Result<Message, usize> {
    let name = HEAD + if scope.holder().is_some() { HOLDER } else { 0 };
    let len = name + scope.name().len();
    if len > MAX_MESSAGE {
        return Err(len);
    }
    let (flags, number) = match signal {
        Signal::Default => (0, 0),
        Signal::LogOnly => (SIGNAL_GIVEN, 0),
        Signal::Number(number) => (SIGNAL_GIVEN, i32::try_from(number.get()).unwrap_or(i32::MAX)),
    };
    // A deadline before the machine's start is in the past; it must not read as a release.
    let deadline = deadline.map_or(RELEASE, |at| i64::try_from(at).unwrap_or(i64::MAX));
    let mut bytes = [0; MAX_MESSAGE];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = TIMER;
    bytes[5] = flags;
    if let Some(holder) = scope.holder() {
        bytes[5] |= HOLDER_GIVEN;
        bytes[HEAD..name].copy_from_slice(&holder.number().get().to_le_bytes());
    }
    bytes[8..16].copy_from_slice(&deadline.to_le_bytes());
    bytes[16..20].copy_from_slice(&number.to_le_bytes());
    bytes[name..len].copy_from_slice(scope.name().as_bytes());
    Ok(Message { bytes, len })
}

/// Parses a client's message.
pub(crate) fn parse_request(bytes: &[u8]) -> Result<WireRequest, Malformed> {
    let (head, name) = bytes.split_at_checked(HEAD).ok_or(Malformed)?;
    let reserved = head[6..8].iter().chain(&head[20..HEAD]).all(|byte| *byte == 0);
    if head[..4] != MAGIC || head[4] != TIMER || head[5] & !(SIGNAL_GIVEN | HOLDER_GIVEN) != 0 || !reserved {
        return Err(Malformed);
    }
    if bytes.len() > MAX_MESSAGE {
        return Err(Malformed);
    }
    let (holder, name) = match head[5] & HOLDER_GIVEN {
        0 => (None, name),
        _ => {
            let (number, name) = name.split_first_chunk::<HOLDER>().ok_or(Malformed)?;
            (Some(NonZeroU64::new(u64::from_le_bytes(*number)).ok_or(Malformed)?), name)
        }
    };
    let deadline = i64::from_le_bytes(head[8..16].try_into().map_err(|_| Malformed)?);
    let number = i32::from_le_bytes(head[16..20].try_into().map_err(|_| Malformed)?);
    let signal = match head[5] & SIGNAL_GIVEN {
        0 if number != 0 => return Err(Malformed),
        0 => Signal::Default,
        _ => Signal::from(number),
    };
    if signal.number().is_some_and(|number| named_signal(number).is_none()) {
        return Err(Malformed);
    }
    let scope = Scope::named(str::from_utf8(name).map_err(|_| Malformed)?);
    let scope = match holder {
        Some(number) => scope.held_by(Holder::from_number(number)),
        None => scope,
    };
    Ok(WireRequest { deadline: u64::try_from(deadline).ok(), signal, scope })
}

/// Encodes a server's message.
pub(crate) fn encode_answer(answer: Answer) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&MAGIC);
    (bytes[4], bytes[5]) = match answer {
        Answer::Welcome => (WELCOME, 0),
        Answer::Refused(why) => (REFUSED, why as u8),
    };
    bytes
}

/// Parses a server's message.
pub(crate) fn parse_answer(bytes: &[u8]) -> Result<Answer, Malformed> {
    let [a, b, c, d, kind, why, 0, 0] = *bytes else { return Err(Malformed) };
    match (kind, Refusal::ALL.into_iter().find(|one| *one as u8 == why)) {
        _ if [a, b, c, d] != MAGIC => Err(Malformed),
        (WELCOME, _) if why == 0 => Ok(Answer::Welcome),
        (REFUSED, Some(why)) => Ok(Answer::Refused(why)),
        _ => Err(Malformed),
    }
}

/// The signal of that number, if it has a name. The C library keeps some of the others for itself.
pub(crate) fn named_signal(number: i32) -> Option<Known> {
    Known::from_named_raw(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The longest name of a scope without a holder, in bytes.
    const MAX_SCOPE: usize = MAX_MESSAGE - HEAD;

    fn round(scope: &str, deadline: Option<u64>, signal: Signal) {
        for scope in [Scope::named(scope), Scope::named(scope).held_by(Holder::here())] {
            match encode_request(&scope, deadline, signal) {
                Ok(message) => {
                    assert_eq!(parse_request(message.bytes()), Ok(WireRequest { deadline, signal, scope }))
                }
                Err(size) => assert!(size > MAX_MESSAGE && scope.holder().is_some()),
            }
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        round("a", Some(0), Signal::Default);
        round("src/main.rs#12", Some(i64::MAX as u64), Signal::from(15));
        round(&"x".repeat(MAX_SCOPE), None, Signal::LogOnly);
        round("ü", None, Signal::Default);
        round("", Some(3), Signal::Default);
    }

    #[test]
    fn the_example_of_the_protocol_page_is_what_is_sent() {
        let head =
            |deadline: u64| [&b"fbt\x01\x01\0\0\0"[..], &deadline.to_le_bytes(), &[0; 8], b"load"].concat();
        let acquire = encode_request(&"load".into(), Some(258_000_000_000), Signal::Default).ok().unwrap();
        assert_eq!(acquire.bytes(), head(0x3c_11ff_9400));
        let release = encode_request(&"load".into(), None, Signal::Default).ok().unwrap();
        assert_eq!(release.bytes(), head(u64::MAX));
    }

    #[test]
    fn one_byte_too_many_is_told_before_it_is_sent() {
        assert_eq!(
            encode_request(&Scope::named("x".repeat(MAX_SCOPE + 1)), None, Signal::Default).err(),
            Some(MAX_MESSAGE + 1)
        );
    }

    #[test]
    fn a_negative_deadline_on_the_wire_releases_and_no_acquire_has_one() {
        let mut bytes = encode_request(&"a".into(), Some(u64::MAX), Signal::Default).ok().unwrap();
        assert_eq!(parse_request(bytes.bytes()).unwrap().deadline, Some(i64::MAX as u64));
        bytes.bytes[8..16].copy_from_slice(&i64::MIN.to_le_bytes());
        assert_eq!(parse_request(bytes.bytes()).unwrap().deadline, None);
    }

    #[test]
    fn what_is_a_little_different_is_malformed() {
        let message = encode_request(&"ab".into(), Some(7), Signal::Default).ok().unwrap();
        let good = message.bytes().to_vec();
        for place in [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 20, 23, 24] {
            let mut bad = good.clone();
            bad[place] = 0xff;
            assert_eq!(parse_request(&bad), Err(Malformed), "byte {place}");
        }
        assert_eq!(parse_request(&good[..HEAD - 1]), Err(Malformed), "half a head");
        assert_eq!(parse_request(&[]), Err(Malformed));
        let mut long = good.clone();
        long.resize(MAX_MESSAGE + 1, b'x');
        assert_eq!(parse_request(&long), Err(Malformed));
        let held =
            encode_request(&Scope::named("").held_by(Holder::here()), Some(7), Signal::Default).ok().unwrap();
        assert_eq!(parse_request(&held.bytes()[..HEAD + HOLDER - 1]), Err(Malformed), "half a holder");
        let mut nobody = held.bytes().to_vec();
        nobody[HEAD..].fill(0);
        assert_eq!(parse_request(&nobody), Err(Malformed), "holder 0");
        let strange = encode_request(&"a".into(), Some(1), Signal::from(63)).ok().unwrap();
        assert_eq!(parse_request(strange.bytes()), Err(Malformed), "a signal without a name");
    }

    #[test]
    fn answers_come_back() {
        for said in Refusal::ALL.into_iter().map(Answer::Refused).chain([Answer::Welcome]) {
            assert_eq!(parse_answer(&encode_answer(said)), Ok(said));
        }
        assert_eq!(parse_answer(b"fbt\x01\x03\xff\0\0"), Err(Malformed));
        assert_eq!(parse_answer(b"fbt\x01\x02\x01\0\0"), Err(Malformed));
        assert_eq!(parse_answer(b"fbt\x01\x03\0\0"), Err(Malformed));
        assert_eq!(parse_answer(b"fbt\x02\x03\0\0\0"), Err(Malformed));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_MESSAGE + 8)) {
            let _ = parse_request(&bytes);
            let _ = parse_answer(&bytes);
        }

        #[test]
        fn a_good_head_before_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_request(&[&MAGIC[..], &[TIMER], &bytes].concat());
        }
    }
}
