//! What a cluster runs on: the messages between coordinator, engine and workers.
//!
//! An **engine** carries tasks to workers and says what became of them. [`InProcess`](crate::InProcess) and `LocalProcesses` are two, and the crate `forebear-cluster-nats` has a third one. A program needs this module to
//! write another one.
//!
//! ```text
//!   ClusterCoordinator --Link--> engine --Order--> Node (runs the tasks)
//!                      <-Event--        <-Report--
//! ```
//!
//! All four are messages: orders, reports and envelopes have serde's traits, and nothing in them points into a process. The
//! [`Node`](crate::worker::Node) is the worker's side of each engine: it takes orders, and answers by reports.
//!
//! # What an engine owes
//!
//! The coordinator keeps the error latch, the limits and the values. These promises are the engine's:
//!
//! * **At least once.** Each task that was [submitted](Link::submit), and neither cancelled nor too often
//!   [tried](Envelope::max_attempts), gets exactly one [`Event::Ended`], although workers die. If none dies, it is given to one worker.
//! * **No wait.** No method of the link waits, neither for room nor for a worker. A task whose worker dies goes to the end of the queue, which has no limit
//!   of its own. So the death of all workers at once cannot block anybody.
//! * **Order.** Events are reported one at a time, and those of one task in their order. The end of a worker
//!   is reported after what becomes of its tasks.
//! * **Cancel, then drain.** After [`Link::cancel_before`] no task of an earlier generation starts. When none runs any more, the engine tells
//!   [`Event::Drained`] once, and nothing of these tasks after it. A task of an earlier generation that is submitted later is dropped without an event.
//! * **Resources first.** A worker gets all [resources](Link::make) before its first task, and reports [`Report::Ready`] when it has made them.
//! * **Objects.** A worker keeps a result of more than [`INLINE`] bytes in the [store](Link::store) before it answers, and tells its name.
//! * **First answer.** Of the answers to one task the engine reports the first one. It reports no answer of a worker that it has declared gone.
//!
//! # How the promises map
//!
//! | promise | in process | processes on this machine | NATS JetStream (`forebear-cluster-nats`) |
//! |---|---|---|---|
//! | queue | a queue in the coordinator's process | the same | a stream with work-queue retention; workers take one message for each free slot, and start it when the coordinator grants it |
//! | at least once | a worker that the control fails gives its tasks back | its pidfd says that the worker is dead, and its tasks go back | the worker is silent for a lease, or the process that started it saw its pidfd; the task is published again |
//! | long tasks | no leases | no leases | beats, from a thread of its own |
//! | poison limit | deaths are counted in the queue; a suspect runs alone | the same | deaths are counted by the coordinator; ends by an outage are not |
//! | cancel | the task's request is cancelled | an order; then SIGKILL to its group after the grace | purge of the generation's subject, and orders to the workers; a worker process ends itself after the grace |
//! | drained | all requests have ended | all have answered, or are dead | all have recorded an answer, or are gone |
//! | resources | orders, before the first task | the same | numbered orders, before the one that starts a task |
//! | membership | a call | a process and its socket | a request to join, and beats |
//! | result survives its worker | the answer is bytes in the coordinator | the same | a record of the result stream, written before the task is acknowledged |
//! | large values | a map in the process | files in a directory of the job | objects of a bucket |

mod bytes;
mod failures;
mod format;
mod object;
#[cfg(unix)]
mod program;
mod sink;
mod text;
mod warning;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebear::TimeoutError;
use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, FailureKind};
use crate::task::Tasks;

pub use self::failures::{Failures, Life};
pub use self::format::{Format, Refused};
pub use self::object::{INLINE, ObjectId, ObjectStore, StoreError};
#[cfg(unix)]
pub use self::program::own_program;
pub use self::sink::EventSink;
pub use self::warning::WarningHook;

/// No [dump](Report::Dump) is longer, in bytes.
///
/// ```
/// use forebear_cluster::engine::{DUMP, INLINE};
/// assert!(DUMP < INLINE); // so it fits into a message that has more
/// ```
pub const DUMP: usize = 64 << 10;

/// A worker runs so many tasks at once at most. Each slot takes memory before a task has it.
///
/// ```
/// use forebear_cluster::engine::MAX_SLOTS;
/// use forebear_cluster::{ClusterCoordinator, InProcess, TaskFn, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let engine = InProcess::new(1).slots(usize::MAX);
/// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![NEXT]).start()?;
/// assert_eq!(cluster.workers()[0].slots, MAX_SLOTS);
/// # Ok::<(), forebear_cluster::ClusterError>(())
/// ```
pub const MAX_SLOTS: usize = 1 << 16;

/// [`ClusterCoordinator::workers`](crate::ClusterCoordinator::workers) shows the newest workers that are gone, so many at most. An engine that forgets names of workers keeps more.
pub const GONE: usize = 1 << 10;

/// The number of a task in its job. Larger ones were scheduled later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId(pub(crate) u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// The number of a resource in its job: the first is 1, and each is one more than that before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceId(pub(crate) u64);

/// Which worker: its name, and its incarnation. A worker that comes back under its name is another incarnation, and a new worker.
///
/// ```
/// use forebear_cluster::engine::WorkerId;
///
/// let first = WorkerId::new("worker-0", 1);
/// let again = WorkerId::new(first.name(), first.incarnation() + 1);
/// assert_ne!(first, again);
/// assert_eq!(again.to_string(), "worker-0 (2)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId {
    name: Arc<str>,
    incarnation: u64,
}

impl WorkerId {
    /// The id of a worker of this name.
    pub fn new(name: impl Into<Arc<str>>, incarnation: u64) -> WorkerId {
        WorkerId { name: name.into(), incarnation }
    }

    /// Its name, which it keeps when it comes back.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which of the workers of that name, from 1.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.incarnation)
    }
}

/// A task as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Envelope {
    /// Its job: a random number.
    pub job: u64,
    /// Which task.
    pub task: TaskId,
    /// Its generation: a cancel names generations, see [`Link::cancel_before`].
    pub generation: u64,
    /// The name of its function.
    #[serde(with = "text")]
    pub name: Arc<str>,
    /// Its arguments, encoded.
    #[serde(with = "bytes")]
    pub args: Arc<[u8]>,
    /// The newest resource that the coordinator had made when it was scheduled: the worker makes all up to it first.
    pub needs: Option<ResourceId>,
    /// So many workers may die with it. The engine then answers [`FailureKind::Poisoned`], if the task had the last one for itself. Else it runs it once more, alone.
    pub max_attempts: u32,
    /// The time that is left to it, from when it is submitted.
    pub time_left: Option<Duration>,
}

impl Envelope {
    /// The object in which that attempt keeps a large result. If the attempt has ended without that as its answer, nobody knows of the object.
    ///
    /// ```
    /// use forebear_cluster::engine::{Envelope, ObjectStore};
    ///
    /// /// The worker of this attempt has died.
    /// fn discard(store: &dyn ObjectStore, task: &Envelope, attempt: u32) {
    ///     store.delete(task.result(attempt));
    /// }
    /// ```
    #[must_use]
    pub fn result(&self, attempt: u32) -> ObjectId {
        ObjectId::result(self.job, self.task, attempt)
    }
}

/// What a worker keeps for the tasks that come: made once on each worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resource {
    /// The job that it belongs to: a random number.
    pub job: u64,
    /// Which one.
    pub id: ResourceId,
    /// The name of the function that makes it.
    #[serde(with = "text")]
    pub name: Arc<str>,
    /// The function's arguments, encoded.
    #[serde(with = "bytes")]
    pub args: Arc<[u8]>,
}

/// From the engine to a worker.
///
/// ```
/// use forebear_cluster::engine::{Format, Order};
///
/// let format = Format::new(b'E', 1);
/// let bytes = format.encode(&Order::Begin).unwrap(); // on the way to a worker
/// assert_eq!(format.decode(&bytes), Ok(Order::Begin));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Order {
    /// Run this. Answered by one [`Report::Answer`].
    Run {
        /// What.
        envelope: Envelope,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// Cancel the task. It still answers.
    Cancel(TaskId),
    /// Make a resource, and keep it.
    Make(Resource),
    /// Drop a resource.
    Free(ResourceId),
    /// These are all the resources there are now: report [`Report::Ready`] when they are made.
    Begin,
    /// Say what each request of the worker's runtime does. Answered by one [`Report::Dump`], whatever the tasks do.
    Dump {
        /// The number of the inquiry.
        inquiry: u64,
    },
}

/// From a worker to the engine.
///
/// ```
/// use forebear_cluster::engine::{Event, Report, WorkerId, WorkerState, WorkerStatus};
///
/// /// The event that the coordinator gets for a report of a worker with one slot.
/// fn event_of(worker: WorkerId, report: Report) -> Option<Event> {
///     Some(match report {
///         Report::Ready => Event::Worker(WorkerStatus::new(worker, WorkerState::Ready, 1)),
///         Report::Draining => Event::Worker(WorkerStatus::new(worker, WorkerState::Draining, 1)),
///         Report::Progress { task, thousandths } => Event::Progress { task, thousandths },
///         Report::Answer { task, attempt, answer, ran } => {
///             Event::Ended { task, worker: Some(worker), attempt, answer, ran }
///         }
///         _ => return None,
///     })
/// }
/// assert!(matches!(event_of(WorkerId::new("alone", 1), Report::Ready), Some(Event::Worker(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Report {
    /// All resources are made, or have failed: the worker takes tasks.
    Ready,
    /// The worker was asked to leave, by a signal: it ends what it has, and is given no more.
    Draining,
    /// How far a task is.
    Progress {
        /// Which task.
        task: TaskId,
        /// How far, in thousandths.
        thousandths: u32,
    },
    /// What each request of the worker's runtime does.
    Dump {
        /// The number of the inquiry.
        inquiry: u64,
        /// For a human reader, as [`Runtime::dump`](forebear::Runtime::dump) writes it; cut at [`DUMP`] bytes.
        text: String,
    },
    /// A task has ended. Nothing of it runs any more.
    Answer {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        attempt: u32,
        /// How.
        answer: Answer,
        /// How long it ran.
        ran: Duration,
    },
}

/// How a task ended.
///
/// ```
/// use forebear_cluster::engine::Answer;
///
/// /// How many bytes a result has.
/// fn size(answer: &Answer) -> Option<u64> {
///     match answer {
///         Answer::Done(bytes) => Some(bytes.len() as u64),
///         Answer::Stored { bytes, .. } => Some(*bytes),
///         _ => None,
///     }
/// }
/// assert_eq!(size(&Answer::Done([1, 2, 3].into())), Some(3));
/// assert_eq!(size(&Answer::Cancelled), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// With this result, encoded.
    Done(#[serde(with = "bytes")] Arc<[u8]>),
    /// With a result of more than [`INLINE`] bytes, which is in the store of the engine.
    Stored {
        /// Under which name.
        object: ObjectId,
        /// Its size.
        bytes: u64,
    },
    /// It failed.
    Failed(FailureKind),
    /// It was cancelled, by an order.
    Cancelled,
}

/// From the engine to the coordinator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A worker has been given the task.
    Started {
        /// Which task.
        task: TaskId,
        /// Which worker.
        worker: WorkerId,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// Its worker is gone: the task is in the queue again.
    Returned {
        /// Which task.
        task: TaskId,
    },
    /// How far a task is.
    Progress {
        /// Which task.
        task: TaskId,
        /// How far, in thousandths.
        thousandths: u32,
    },
    /// The task has ended. `worker` and `attempt` are those of the last attempt.
    Ended {
        /// Which task.
        task: TaskId,
        /// The worker that ran it; `None` if it was in the queue.
        worker: Option<WorkerId>,
        /// Which attempt, 0 if there was none.
        attempt: u32,
        /// How.
        answer: Answer,
        /// How long it ran.
        ran: Duration,
    },
    /// Something has changed about a worker.
    Worker(WorkerStatus),
    /// What a worker does, asked for by [`Link::dump`].
    Dump {
        /// Which worker.
        worker: WorkerId,
        /// The number of the inquiry.
        inquiry: u64,
        /// The worker's [text](Report::Dump).
        text: String,
    },
    /// The engine cannot carry tasks for now, for instance since its server is away. It tries again by itself: nothing is lost.
    Unavailable {
        /// Why, as text for a human reader.
        reason: String,
    },
    /// It can carry tasks again.
    Available,
    /// No task of a generation before this one runs any more, nor will start.
    Drained {
        /// The generation that the cancel named.
        before: u64,
    },
}

/// What is known of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The worker.
    pub id: WorkerId,
    /// In which state it is.
    pub state: WorkerState,
    /// So many tasks it runs at once.
    pub slots: usize,
    /// So many tasks it runs now.
    pub running: usize,
}

impl WorkerStatus {
    /// A worker in that state, which runs nothing yet. The coordinator counts what it runs.
    #[must_use]
    pub fn new(id: WorkerId, state: WorkerState, slots: usize) -> WorkerStatus {
        WorkerStatus { id, state, slots, running: 0 }
    }
}

/// The life of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerState {
    /// It makes its resources.
    Starting,
    /// It takes tasks.
    Ready,
    /// It ends what it has, and takes no more.
    Draining,
    /// It has left, or it is dead.
    Gone,
}

/// What the coordinator gives an engine at the start.
#[non_exhaustive]
pub struct Job {
    /// The tasks of the program.
    pub tasks: Tasks,
    /// Where events go.
    pub events: EventSink,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

/// Carries tasks to workers. See the [module](self) for what it owes.
///
/// ```
/// use forebear_cluster::engine::{Engine, Event, EventSink, Job, Link};
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
///
/// /// Another engine, with a line in the log for each change of a worker.
/// struct Logged<E>(E);
///
/// impl<E: Engine> Engine for Logged<E> {
///     fn workers_at_start(&self) -> Option<usize> {
///         self.0.workers_at_start()
///     }
///
///     fn start(self: Box<Self>, mut job: Job) -> Result<Box<dyn Link>, ClusterError> {
///         let events = job.events;
///         job.events = EventSink::new(move |event| {
///             if let Event::Worker(status) = &event {
///                 println!("{} is {:?}", status.id, status.state);
///             }
///             events.tell(event);
///         });
///         Box::new(self.0).start(job)
///     }
/// }
///
/// let cluster = ClusterCoordinator::builder(Logged(InProcess::new(1))).start()?;
/// assert_eq!(cluster.workers().len(), 1);
/// # Ok::<(), ClusterError>(())
/// ```
pub trait Engine: Send + 'static {
    /// So many workers come with the start, and others only by a control of the engine that runs. A start that [waits for more](crate::ClusterCoordinatorBuilder::min_workers) is refused at once. `None`: workers may
    /// come from elsewhere, so nobody knows how many. Default: `None`. An engine around another one passes it on.
    fn workers_at_start(&self) -> Option<usize> {
        None
    }

    /// Starts the workers. Does not wait until they are ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Start`], made by [`start_error`].
    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError>;
}

/// The coordinator's end of an engine. No method waits, but [`wait_closed`](Self::wait_closed) and those of the [store](Self::store) may.
///
/// A link that wraps another one passes all methods on, also those that have a default.
///
/// ```
/// use forebear::TimeoutError;
/// use forebear_cluster::engine::{Envelope, Link, ObjectStore, Resource, ResourceId, TaskId, WorkerId};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::time::Duration;
///
/// /// The link of another engine, and how many bytes of arguments went through it.
/// struct Counted(Box<dyn Link>, Arc<AtomicUsize>);
///
/// impl Link for Counted {
///     fn submit(&self, envelope: Envelope) {
///         self.1.fetch_add(envelope.args.len(), Ordering::Relaxed);
///         self.0.submit(envelope);
///     }
///
///     fn cancel(&self, task: TaskId) {
///         self.0.cancel(task);
///     }
///
///     fn cancel_before(&self, generation: u64) {
///         self.0.cancel_before(generation);
///     }
///
///     fn make(&self, resource: Resource) {
///         self.0.make(resource);
///     }
///
///     fn task_limit(&self) -> usize {
///         self.0.task_limit()
///     }
///
///     fn resource_limit(&self) -> usize {
///         self.0.resource_limit()
///     }
///
///     fn free(&self, resource: ResourceId) {
///         self.0.free(resource);
///     }
///
///     fn dump(&self, inquiry: u64, workers: &[WorkerId]) {
///         self.0.dump(inquiry, workers);
///     }
///
///     fn close(&self) {
///         self.0.close();
///     }
///
///     fn wait_closed(&self, timeout: Duration) -> Result<(), TimeoutError> {
///         self.0.wait_closed(timeout)
///     }
///
///     fn store(&self) -> Arc<dyn ObjectStore> {
///         self.0.store()
///     }
/// }
/// ```
pub trait Link: Send + Sync + 'static {
    /// Puts a task at the end of the queue.
    fn submit(&self, envelope: Envelope);

    /// Cancels one task. Its [`Event::Ended`] follows: with [`Answer::Cancelled`], or with what it ended with before.
    fn cancel(&self, task: TaskId);

    /// Cancels all tasks of the generations before this one. [`Event::Drained`] follows.
    fn cancel_before(&self, generation: u64);

    /// Has a resource made on each worker: on those that are here, and on those that come, before they take tasks.
    fn make(&self, resource: Resource);

    /// The arguments of a task have at most so many bytes: [`ClusterCoordinator::schedule`](crate::ClusterCoordinator::schedule) refuses larger ones. Default: no limit.
    fn task_limit(&self) -> usize {
        usize::MAX
    }

    /// The arguments of a resource have at most so many bytes: [`ClusterCoordinator::per_worker`](crate::ClusterCoordinator::per_worker) refuses larger ones. Default: no limit.
    fn resource_limit(&self) -> usize {
        usize::MAX
    }

    /// Has it dropped on each worker.
    fn free(&self, resource: ResourceId);

    /// Asks these workers what they do. An [`Event::Dump`] follows for each that answers: one that stands still does not, nor does one that is gone, and an engine may lose an answer. Default: nobody
    /// is asked.
    fn dump(&self, inquiry: u64, workers: &[WorkerId]) {
        let _ = (inquiry, workers);
    }

    /// Cancels all tasks and lets the workers go. Events may still come.
    fn close(&self);

    /// Waits, for `timeout` at most, until what [`close`](Self::close) has begun is over, and the process may end: the workers know that they are to leave, and the engine has removed what it keeps of the job
    /// elsewhere. An engine whose `close` leaves nothing to be waited for has no method of its own. Default: returns at once.
    ///
    /// [`ClusterCoordinator::shutdown`](crate::ClusterCoordinator::shutdown) calls it with `Duration::MAX`, which is no limit, so the engine has one of its own. When the last handle is dropped, the time is two
    /// seconds. A time-out of zero checks once, and does not suspend.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError`].
    fn wait_closed(&self, timeout: Duration) -> Result<(), TimeoutError> {
        let _ = timeout;
        Ok(())
    }

    /// Where values are kept that are too large for a message. Its methods may suspend.
    fn store(&self) -> Arc<dyn ObjectStore>;
}

/// Why a worker with these tasks cannot work for a coordinator with those, if it cannot: the coordinator's first task that the worker lacks, or has with other types. Both are names and types, as
/// [`Tasks::signatures`](crate::Tasks::signatures) gives them. A worker may know more tasks: it was built later.
///
/// ```
/// use forebear_cluster::engine::difference;
///
/// let [old, new] = ["u32", "u64"].map(|n| [("square".to_owned(), format!("task {n} -> {n}"))]);
/// assert_eq!(difference(&old, &old), None);
/// assert_eq!(
///     difference(&new, &old).unwrap(),
///     "its `square` is `task u32 -> u32`, the coordinator's `task u64 -> u64`: build both from the same sources"
/// );
/// assert!(difference(&new, &[]).unwrap().contains("does not know the coordinator's `square`"));
/// assert_eq!(difference(&[], &new), None);
/// ```
#[must_use]
pub fn difference(coordinator: &[(String, String)], worker: &[(String, String)]) -> Option<String> {
    for (name, types) in coordinator {
        match worker.iter().find(|(its, _)| its == name) {
            None => {
                return Some(format!(
                    "it does not know the coordinator's `{name}` ({types}): give it the same tasks"
                ));
            }
            Some((_, its)) if its != types => {
                return Some(format!(
                    "its `{name}` is `{its}`, the coordinator's `{types}`: build both from the same sources"
                ));
            }
            Some(_) => {}
        }
    }
    None
}

/// The error of an engine that does not start.
///
/// ```
/// use forebear_cluster::engine::start_error;
/// assert_eq!(start_error("no socket").to_string(), "the engine did not start: no socket");
/// ```
pub fn start_error(why: impl fmt::Display) -> ClusterError {
    ClusterError::Start { message: why.to_string() }
}
