//! What is said between client and server: bytes to meaning and back, and nothing else. docs/timer-protocol.md has the layout.
//!
//! Every number is little-endian. What does not have exactly this form is [`Malformed`], never guessed at: the other side may be
//! anybody.

use std::num::NonZeroU64;
use std::{fmt, str};

use rustix::process::Signal as Known;

use crate::expiry::{Holder, Scope, Signal};

/// The longest message there is, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;
/// What stands before the holder, if there is one, and the scope's name.
const HEAD: usize = 24;
/// The size of a holder.
const HOLDER: usize = 8;
/// The first bytes of each message: whose it is, and which version.
const MAGIC: [u8; 4] = *b"fbt\x01";

const TIMER: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;

/// A signal stands in the message.
const SIGNAL_GIVEN: u8 = 1;
/// The number of a holder stands between the head and the scope's name.
const HOLDER_GIVEN: u8 = 2;

/// On the wire, a deadline that means: release.
const RELEASE: i64 = -1;

/// What a client says: acquire or release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Nanoseconds of the monotonic clock; `None` releases.
    pub(crate) deadline: Option<u64>,
    pub(crate) signal: Signal,
    pub(crate) scope: Scope,
}

/// What is no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection is taken; now the client may speak.
    Welcome,
    /// It is closed, and this is why.
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
    /// The server has as many connections as it takes.
    TooManyConnections,
    /// This process has as many connections as one process may.
    TooManyOfOne,
    /// The server watches as many processes as it takes.
    TooManyWorkers,
    /// This process has as many timers as one process may. They continue; one more was not begun.
    TooManyTimers,
    /// What came was no message of this protocol, or of another version of it.
    Malformed,
    /// A message came from another process than the one that had connected.
    ForeignSender,
    /// Who connected cannot be named, or is of another user.
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

/// A message in the making.
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

/// What a client sends. `Err` if it does not fit: the size it would have.
pub(crate) fn said(scope: &Scope, deadline: Option<u64>, signal: Signal) -> Result<Message, usize> {
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
    // A deadline of before the machine's start is past, not a release.
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

/// What a client has said.
pub(crate) fn heard(bytes: &[u8]) -> Result<Said, Malformed> {
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
    if signal.number().is_some_and(|number| known(number).is_none()) {
        return Err(Malformed);
    }
    let scope = Scope::named(str::from_utf8(name).map_err(|_| Malformed)?);
    let scope = match holder {
        Some(number) => scope.held_by(Holder::from_number(number)),
        None => scope,
    };
    Ok(Said { deadline: u64::try_from(deadline).ok(), signal, scope })
}

/// What a server sends.
pub(crate) fn answer(answer: Answer) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&MAGIC);
    (bytes[4], bytes[5]) = match answer {
        Answer::Welcome => (WELCOME, 0),
        Answer::Refused(why) => (REFUSED, why as u8),
    };
    bytes
}

/// What a server has said.
pub(crate) fn answered(bytes: &[u8]) -> Result<Answer, Malformed> {
    let [a, b, c, d, kind, why, 0, 0] = *bytes else { return Err(Malformed) };
    match (kind, Refusal::ALL.into_iter().find(|one| *one as u8 == why)) {
        _ if [a, b, c, d] != MAGIC => Err(Malformed),
        (WELCOME, _) if why == 0 => Ok(Answer::Welcome),
        (REFUSED, Some(why)) => Ok(Answer::Refused(why)),
        _ => Err(Malformed),
    }
}

/// The signal of that number, if it is one of those that have names. The others belong to the C library, or to nobody.
pub(crate) fn known(number: i32) -> Option<Known> {
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
            match said(&scope, deadline, signal) {
                Ok(message) => assert_eq!(heard(message.bytes()), Ok(Said { deadline, signal, scope })),
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
        let acquire = said(&"load".into(), Some(258_000_000_000), Signal::Default).ok().unwrap();
        assert_eq!(acquire.bytes(), head(0x3c_11ff_9400));
        let release = said(&"load".into(), None, Signal::Default).ok().unwrap();
        assert_eq!(release.bytes(), head(u64::MAX));
    }

    #[test]
    fn one_byte_too_many_is_told_before_it_is_sent() {
        assert_eq!(
            said(&Scope::named("x".repeat(MAX_SCOPE + 1)), None, Signal::Default).err(),
            Some(MAX_MESSAGE + 1)
        );
    }

    #[test]
    fn a_negative_deadline_on_the_wire_releases_and_no_acquire_has_one() {
        let mut bytes = said(&"a".into(), Some(u64::MAX), Signal::Default).ok().unwrap();
        assert_eq!(heard(bytes.bytes()).unwrap().deadline, Some(i64::MAX as u64));
        bytes.bytes[8..16].copy_from_slice(&i64::MIN.to_le_bytes());
        assert_eq!(heard(bytes.bytes()).unwrap().deadline, None);
    }

    #[test]
    fn what_is_a_little_different_is_malformed() {
        let message = said(&"ab".into(), Some(7), Signal::Default).ok().unwrap();
        let good = message.bytes().to_vec();
        for place in [0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 20, 23, 24] {
            let mut bad = good.clone();
            bad[place] = 0xff;
            assert_eq!(heard(&bad), Err(Malformed), "byte {place}");
        }
        assert_eq!(heard(&good[..HEAD - 1]), Err(Malformed), "half a head");
        assert_eq!(heard(&[]), Err(Malformed));
        let mut long = good.clone();
        long.resize(MAX_MESSAGE + 1, b'x');
        assert_eq!(heard(&long), Err(Malformed));
        let held = said(&Scope::named("").held_by(Holder::here()), Some(7), Signal::Default).ok().unwrap();
        assert_eq!(heard(&held.bytes()[..HEAD + HOLDER - 1]), Err(Malformed), "half a holder");
        let mut nobody = held.bytes().to_vec();
        nobody[HEAD..].fill(0);
        assert_eq!(heard(&nobody), Err(Malformed), "holder 0");
        let strange = said(&"a".into(), Some(1), Signal::from(63)).ok().unwrap();
        assert_eq!(heard(strange.bytes()), Err(Malformed), "a signal without a name");
    }

    #[test]
    fn answers_come_back() {
        for said in Refusal::ALL.into_iter().map(Answer::Refused).chain([Answer::Welcome]) {
            assert_eq!(answered(&answer(said)), Ok(said));
        }
        assert_eq!(answered(b"fbt\x01\x03\xff\0\0"), Err(Malformed));
        assert_eq!(answered(b"fbt\x01\x02\x01\0\0"), Err(Malformed));
        assert_eq!(answered(b"fbt\x01\x03\0\0"), Err(Malformed));
        assert_eq!(answered(b"fbt\x02\x03\0\0\0"), Err(Malformed));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_MESSAGE + 8)) {
            let _ = heard(&bytes);
            let _ = answered(&bytes);
        }

        #[test]
        fn a_good_head_before_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = heard(&[&MAGIC[..], &[TIMER], &bytes].concat());
        }
    }
}
