//! The messages between the coordinator's engine and the workers, their frames, and the names of subjects and streams.
//!
//! # A frame
//!
//! A message is two bytes and a value in postcard: the letter `F`, and the version, as [`FORM`] says. What has another version, or is torn, too long or garbage, is a
//! [`Refused`]; the receiver drops it and counts it. A change of one of these types makes the next version.
//!
//! The two bytes stay as they are in all versions. So a coordinator also answers a [`Hello`] of another version, by a message of its own one: by those bytes the worker sees
//! which version that is, and ends with an error.
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
//!
//! # What shares a message
//!
//! A message costs the server and both ends far more than its bytes. Claims, orders and ends of tasks that exist at the
//! same time share a message. An [`Up`] has a list of claims, a message to a member a list of [`Down`]s, and a
//! [`Record`] a list of ends. None of them waits for others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebear_cluster::engine::{Answer, Envelope, Format, Order, Refused, TaskId, WorkerId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The form of all messages, with their version.
const FORM: Format = Format::new(b'F', VERSION);
/// A change of a message raises it.
pub(crate) const VERSION: u8 = 8;

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
    /// Different in each process, and the same if that joins again.
    pub(crate) process: u64,
    /// The names and types of its tasks.
    pub(crate) tasks: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Come(Terms),
    /// It cannot join now, and may ask again.
    Later {
        why: String,
    },
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
    /// A task that does not end so long after its cancel, or after its own time, ends its worker process.
    pub(crate) grace: Duration,
    /// What the server refuses for so long is told.
    pub(crate) patience: Duration,
}

/// What the server refuses for so long is told, if not told otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest beat, and the longest.
const BEATS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Why no worker can follow [`Times`]. No coordinator of this version gives such ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The beat is shorter than the shortest one, or longer than the longest one.
    Beat(Duration),
    /// A member would be gone before its next beat.
    Lease { lease: Duration, beat: Duration },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [least, most] = BEATS;
        match self {
            Unfit::Beat(beat) => write!(f, "a beat of {beat:?}, which is not from {least:?} to {most:?}"),
            Unfit::Lease { lease, beat } => {
                write!(f, "a lease of {lease:?}, which is less than its beat of {beat:?}")
            }
        }
    }
}

impl Times {
    /// Those of a lease.
    pub(crate) fn new(lease: Duration, grace: Duration) -> Times {
        let [least, most] = BEATS;
        Times { lease, beat: (lease / 6).clamp(least, most), grace, patience: PATIENCE }
    }

    /// Whether a worker can follow them. What has come as a message may be anything. Of the grace and the patience any length will do.
    pub(crate) fn check(&self) -> Result<(), Unfit> {
        let (lease, beat, [least, most]) = (self.lease, self.beat, BEATS);
        match () {
            () if !(least..=most).contains(&beat) => Err(Unfit::Beat(beat)),
            () if lease < beat => Err(Unfit::Lease { lease, beat }),
            () => Ok(()),
        }
    }

    /// The server hands a message out again that nobody has said to be in work for so long.
    pub(crate) fn ack_wait(&self) -> Duration {
        self.beat.saturating_mul(3)
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
    /// Answers to inquiries: the number, and what it does.
    pub(crate) dumps: Vec<(u64, String)>,
    /// Tasks that have ended, and whose records the server has refused. In each beat, until the coordinator has the member drop them.
    pub(crate) unrecorded: Vec<Unrecorded>,
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

/// From the coordinator to a member, in a list.
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

/// The ends of tasks, in the stream of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) epoch: u64,
    pub(crate) member: u64,
    pub(crate) ends: Vec<TaskEnd>,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskEnd {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) answer: Answer,
    pub(crate) ran: Duration,
}

/// The end of an attempt of this copy, which is not in the stream of results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unrecorded {
    pub(crate) copy: u32,
    pub(crate) end: TaskEnd,
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    FORM.encode(message)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    FORM.decode(bytes)
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

    /// Whether a worker cannot work without this subject, to which it sends, or which it reads.
    pub(crate) fn are_needed_by_workers(&self, subject: &str) -> bool {
        [format!("fb.{}.", self.0), format!("$JS.API.CONSUMER.MSG.NEXT.{}.", self.queue_stream())]
            .iter()
            .map(String::as_str)
            .chain(["$JS.ACK.", "_INBOX."])
            .any(|needed| subject.starts_with(needed))
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

    pub(crate) fn group_bucket(&self) -> String {
        format!("FB_{}_GROUP", self.0)
    }
}

#[cfg(test)]
#[path = "../../tests/support/fuzz.rs"]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests {
    use super::fuzz::{Decoder, decoder, fuzz};
    use super::*;
    use crate::access::{Access, Who};
    use crate::launch::Handover;

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
            dumps: Vec::new(),
            unrecorded: Vec::new(),
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
            process: 6,
            tasks: vec![("a".into(), "b".into())],
        };
        assert_eq!(decode::<Hello>(&encode(&hello).unwrap()), Ok(hello));
        assert_eq!(decode::<Up>(&encode(&up()).unwrap()), Ok(up()));
        let downs =
            vec![Down { number: 1, what: What::Order(Order::Begin) }, Down { number: 2, what: What::Stop }];
        assert_eq!(decode::<Vec<Down>>(&encode(&downs).unwrap()), Ok(downs));
    }

    #[test]
    fn times_that_no_worker_can_follow_are_refused_and_those_of_each_lease_are_not() {
        let grace = Duration::ZERO;
        for lease in [Duration::from_millis(100), Duration::from_secs(15), Duration::MAX] {
            for grace in [grace, Duration::MAX] {
                assert_eq!(Times { patience: grace, ..Times::new(lease, grace) }.check(), Ok(()));
            }
        }
        let times = Times::new(Duration::from_secs(15), grace);
        for beat in [Duration::ZERO, Duration::from_millis(9), Duration::from_secs(2), Duration::MAX] {
            let unfit = Times { lease: Duration::MAX, beat, ..times };
            assert_eq!(unfit.check(), Err(Unfit::Beat(beat)));
        }
        for lease in [Duration::ZERO, times.beat / 2] {
            assert_eq!(Times { lease, ..times }.check(), Err(Unfit::Lease { lease, beat: times.beat }));
        }
    }

    fn read<T: DeserializeOwned, U: Serialize>(fields: &U) -> T {
        decode(&encode(fields).unwrap()).unwrap()
    }

    #[test]
    fn decoders_refuse_or_read_back_whatever_the_bytes_are() {
        fn of<T: Serialize + DeserializeOwned>() -> Decoder {
            decoder::<T>(|message| encode(message).unwrap(), |bytes| decode(bytes).ok())
        }
        let left = Some(Duration::from_millis(1_500));
        let envelope: Envelope =
            read(&(1_u64, 300_u64, 2_u64, "task", [1_u8; 3].as_slice(), Some(4_u64), 4_u32, left));
        let task = envelope.task;
        let times = Times::new(Duration::from_secs(15), Duration::from_secs(10));
        let terms = Terms { epoch: 1, member: 2, id: WorkerId::new("worker", 3), index: 4, times };
        let claims = vec![Claim { task, copy: 1, sequence: 1 << 40 }];
        let record = |answer| {
            let ran = Duration::from_micros(7);
            let end = TaskEnd { task, attempt: 1, answer, ran };
            encode(&Record { epoch: 1, member: 2, ends: vec![end; 2] }).unwrap()
        };
        let down = |what| encode(&vec![Down { number: 300, what }]).unwrap();
        let access = Access { who: Who::Token("secret".into()), ..Access::new("nats://127.0.0.1") };
        let (answer, ran) = (Answer::Cancelled, Duration::from_micros(7));
        let refused = TaskEnd { task, attempt: 1, answer, ran };
        let samples = [
            encode(&Hello {
                name: "w".into(),
                slots: 2,
                launch: Some(1),
                nonce: 1 << 60,
                process: 1 << 50,
                tasks: vec![("a".into(), "b".into())],
            })
            .unwrap(),
            encode(&Welcome::Come(terms)).unwrap(),
            encode(&Welcome::Refused { why: "it has other tasks".into() }).unwrap(),
            encode(&Welcome::Later { why: "another one has its name".into() }).unwrap(),
            encode(&Up {
                claims,
                progress: vec![(task, 500)],
                dumps: vec![(1, "it waits".into())],
                unrecorded: vec![Unrecorded { copy: 1, end: refused }],
                holds: Some(vec![task]),
                ..up()
            })
            .unwrap(),
            down(What::Order(Order::Begin)),
            down(What::Order(Order::Run { envelope: envelope.clone(), attempt: 1 })),
            down(What::Start { task, copy: 1, attempt: 2, time_left: left }),
            down(What::Gone),
            record(Answer::Done(Arc::from([1; 40]))),
            record(Answer::Cancelled),
            encode(&Parcel { epoch: 1, copy: 2, envelope, object: Some("args.7".into()) }).unwrap(),
            encode(&Handover {
                access,
                job: "job".into(),
                name: "w".into(),
                slots: 1,
                launch: 1,
                grace: times.grace,
                cache: 1,
            })
            .unwrap(),
        ];
        let decoders = [
            ("Hello", of::<Hello>()),
            ("Welcome", of::<Welcome>()),
            ("Up", of::<Up>()),
            ("Down", of::<Vec<Down>>()),
            ("Record", of::<Record>()),
            ("Parcel", of::<Parcel>()),
            ("Handover", of::<Handover>()),
        ];
        fuzz(&decoders, &samples);
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
