//! The messages between the coordinator's engine and the workers, their frames, and the names of subjects and streams.
//!
//! # A frame
//!
//! A message is two bytes and a value in postcard: the letter `F`, and the [version](VERSION). What has another version, or is torn, too long or garbage, is a
//! [`Refused`]; the receiver drops it and counts it. A change of one of these types makes the next version.
//!
//! # What is numbered, and why
//!
//! Subjects that no stream records lose messages when a connection breaks, and an attacker with the credentials may send one twice.
//!
//! * *Epoch.* A random number of the coordinator's run. What is of another run is dropped.
//! * *Member.* The number of an incarnation of a worker in this run, never used twice.
//! * *Orders* to a member are numbered from 1. The member follows them in that order, each once, and says in each [`Up`] how far it is; the coordinator keeps those that are not
//!   confirmed, and sends them again. So an order is neither lost, nor followed twice, nor out of turn.
//! * *Beats* of a member rise. The coordinator drops an [`Up`] whose beat is not above the last one, so a message that is sent again keeps nobody alive.
//! * *Copies* of a task rise each time it is put into the queue anew. Only the newest one may be started.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebear_cluster::engine::{Answer, Envelope, Order, TaskId, WorkerId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of all messages.
pub(crate) const VERSION: u8 = 2;
const MARK: u8 = b'F';

// What is longer than this does not travel in a message, but as an object of the store.
pub(crate) use forebear_cluster::engine::INLINE;

/// A worker asks to join. Answered by [`Welcome`], on the subject that the request names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) slots: u32,
    /// Which start of the program this is, if the coordinator's process started it.
    pub(crate) launch: Option<u64>,
    /// Different in each request to join, and the same if that is sent again.
    pub(crate) nonce: u64,
    /// The names and types of its tasks.
    pub(crate) tasks: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Come(Terms),
    /// It cannot join, and need not ask again.
    Refused {
        why: String,
    },
}

/// What a member has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) epoch: u64,
    pub(crate) member: u64,
    pub(crate) id: WorkerId,
    pub(crate) index: u64,
    pub(crate) times: Times,
}

/// The times of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// A member that is silent for so long is gone.
    pub(crate) lease: Duration,
    /// A member says so often that it is there.
    pub(crate) beat: Duration,
    /// A task that does not end so long after its cancel ends its worker process.
    pub(crate) grace: Duration,
}

impl Times {
    /// Those of a lease.
    pub(crate) fn new(lease: Duration, grace: Duration) -> Times {
        let beat = (lease / 6).clamp(Duration::from_millis(10), Duration::from_secs(1));
        Times { lease, beat, grace }
    }

    /// The server hands a message out again that nobody has said to be in work for so long.
    pub(crate) fn ack_wait(&self) -> Duration {
        self.beat * 3
    }
}

/// A task in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) epoch: u64,
    pub(crate) copy: u32,
    /// Its arguments are empty if they are an object.
    pub(crate) envelope: Envelope,
    pub(crate) object: Option<String>,
}

/// How far a member is. A beat, or something has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Up {
    pub(crate) epoch: u64,
    pub(crate) member: u64,
    pub(crate) beat: u64,
    /// The last order that it has followed.
    pub(crate) applied: u64,
    /// It wants the orders after that again.
    pub(crate) again: bool,
    pub(crate) stage: Stage,
    /// The newest of its records in the stream of results. The coordinator reads that first.
    pub(crate) after: u64,
    /// Messages that it has taken from the queue, and must not start before the coordinator says so.
    pub(crate) claims: Vec<Claim>,
    pub(crate) progress: Vec<(TaskId, u32)>,
    /// In a beat: what it runs, and what has ended whose record the server has not confirmed.
    pub(crate) holds: Option<Vec<TaskId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    Starting,
    Ready,
    Draining,
    /// It runs nothing, and says nothing more.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) task: TaskId,
    pub(crate) copy: u32,
    /// The message's number in its stream.
    pub(crate) sequence: u64,
}

/// From the coordinator to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Down {
    /// 0: in no order.
    pub(crate) number: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// About resources, and cancels.
    Order(Order),
    /// Start what it has claimed.
    Start { task: TaskId, copy: u32, attempt: u32, time_left: Option<Duration> },
    /// Give it back, for later: another member runs it.
    Later { task: TaskId, copy: u32 },
    /// Take it out of the queue: it is no task any more.
    Drop { task: TaskId, copy: u32 },
    /// The stream of results has begun anew: earlier numbers of records mean nothing.
    Forget,
    /// Cancel all, and leave.
    Stop,
    /// The coordinator does not know the member: it cancels all, and may join anew. Number 0.
    Gone,
}

/// The end of a task, in the stream of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) epoch: u64,
    pub(crate) member: u64,
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) answer: Answer,
    pub(crate) ran: Duration,
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is no message of a cluster.
    Stranger,
    /// It is of this version.
    Version(u8),
    /// It is torn, too long, or garbage.
    Garbage,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Stranger => f.write_str("it is no message of a cluster"),
            Refused::Version(theirs) => {
                write!(
                    f,
                    "it has version {theirs}, this program {VERSION}: build both with the same forebear-cluster-nats"
                )
            }
            Refused::Garbage => f.write_str("it is torn or garbage"),
        }
    }
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    postcard::to_extend(message, vec![MARK, VERSION]).map_err(|error| error.to_string())
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    match bytes {
        [MARK, VERSION, rest @ ..] => match postcard::take_from_bytes(rest) {
            Ok((message, [])) => Ok(message),
            _ => Err(Refused::Garbage),
        },
        [MARK, version, ..] => Err(Refused::Version(*version)),
        _ => Err(Refused::Stranger),
    }
}

/// The names of a job.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<str>);

impl Names {
    /// `None`: no name of a job. Dots, stars and spaces mean something in subjects.
    pub(crate) fn new(job: &str) -> Option<Names> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        ((1..=64).contains(&job.len()) && job.chars().all(fits)).then(|| Names(job.into()))
    }

    pub(crate) fn hello(&self) -> String {
        format!("fb.{}.hello", self.0)
    }

    pub(crate) fn up(&self) -> String {
        format!("fb.{}.up", self.0)
    }

    pub(crate) fn pulse(&self) -> String {
        format!("fb.{}.pulse", self.0)
    }

    pub(crate) fn down(&self, epoch: u64, member: u64) -> String {
        format!("fb.{}.down.{epoch}.{member}", self.0)
    }

    /// The subject of a generation's tasks.
    pub(crate) fn task(&self, generation: u64) -> String {
        format!("fb.{}.task.{generation}", self.0)
    }

    pub(crate) fn all_tasks(&self) -> String {
        format!("fb.{}.task.*", self.0)
    }

    pub(crate) fn result(&self) -> String {
        format!("fb.{}.result", self.0)
    }

    pub(crate) fn queue_stream(&self) -> String {
        format!("FB_{}_TASKS", self.0)
    }

    pub(crate) fn result_stream(&self) -> String {
        format!("FB_{}_RESULTS", self.0)
    }

    pub(crate) fn bucket(&self) -> String {
        format!("FB_{}_BLOBS", self.0)
    }

    pub(crate) fn lock_bucket(&self) -> String {
        format!("FB_{}_META", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up() -> Up {
        Up {
            epoch: 7,
            member: 3,
            beat: 9,
            applied: 2,
            again: true,
            stage: Stage::Ready,
            after: 300,
            claims: Vec::new(),
            progress: Vec::new(),
            holds: None,
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let hello = Hello {
            name: "a worker".into(),
            slots: 2,
            launch: Some(1),
            nonce: 5,
            tasks: vec![("a".into(), "b".into())],
        };
        assert_eq!(decode::<Hello>(&encode(&hello).unwrap()), Ok(hello));
        assert_eq!(decode::<Up>(&encode(&up()).unwrap()), Ok(up()));
        let down = Down { number: 1, what: What::Order(Order::Begin) };
        assert_eq!(decode::<Down>(&encode(&down).unwrap()), Ok(down));
    }

    #[test]
    fn messages_that_are_torn_too_long_or_garbage_are_refused() {
        let whole = encode(&up()).unwrap();
        for end in 0..whole.len() {
            assert!(decode::<Up>(&whole[..end]).is_err(), "torn at {end}");
        }
        let mut long = whole.clone();
        long.push(0);
        assert_eq!(decode::<Up>(&long), Err(Refused::Garbage));
        assert_eq!(decode::<Up>(b"hello"), Err(Refused::Stranger));
        assert_eq!(decode::<Up>(&[MARK, VERSION, 0xff, 0xff, 0xff]), Err(Refused::Garbage));
    }

    #[test]
    fn a_message_of_another_version_is_refused_and_says_which() {
        let mut other = encode(&up()).unwrap();
        other[1] = VERSION + 1;
        assert_eq!(decode::<Up>(&other), Err(Refused::Version(VERSION + 1)));
        assert!(Refused::Version(9).to_string().contains("version 9"));
    }

    /// A length that is not there takes no memory, whatever the bytes are.
    #[test]
    fn a_decoder_survives_any_bytes() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let whole = encode(&up()).unwrap();
        for _ in 0..20_000 {
            let mut bytes = if next() % 2 == 0 { whole.clone() } else { vec![MARK, VERSION] };
            (0..next() % 24).for_each(|_| bytes.push(next() as u8));
            let at = 2 + (next() as usize) % (bytes.len() - 1).max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = next() as u8;
            }
            let _ = decode::<Up>(&bytes);
            let _ = decode::<Hello>(&bytes);
            let _ = decode::<Down>(&bytes);
            let _ = decode::<Record>(&bytes);
            let _ = decode::<Parcel>(&bytes);
            let _ = decode::<Welcome>(&bytes);
        }
    }

    #[test]
    fn a_name_of_a_job_has_nothing_that_means_something_in_subjects() {
        for good in ["render", "a-b_C9"] {
            assert!(Names::new(good).is_some());
        }
        for bad in ["", "a.b", "a*", ">", "a b", "ä", &"x".repeat(65)] {
            assert!(Names::new(bad).is_none(), "{bad}");
        }
    }
}
