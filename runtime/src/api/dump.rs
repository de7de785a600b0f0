//! Dumps: what every live request of a runtime is doing, and what it waits for.
//!
//! [`Runtime::dump`](crate::Runtime::dump) makes one, while the runtime continues. There is no registry of requests: a dump looks where
//! requests stand.
//!
//! `docs/dumps.md` in the repository shows how to read the text. The head of the module `sight` says how a dump is made.

use std::time::Duration;

pub use forebear_context::context::Reason;
use forebear_context::error::SourceLocation;
use forebear_context::lineage::Priority;
use forebear_pool::WorkerState;

mod answer;
mod gather;
mod sight;
mod text;

pub(crate) use self::answer::answer_all;
pub(crate) use self::gather::{count_started, held, nameless, started, take};
pub(crate) use self::sight::{ON_THE_SAME_STACK, Seen};
use crate::api::any::{RequestId, State};

/// What a runtime is doing, as [`Runtime::dump`](crate::Runtime::dump) has found it. `Display` writes it as text, a line for each
/// worker, request and thread.
///
/// ```
/// use forebear::dump::Dump;
/// use forebear::{Request, Runtime};
///
/// let runtime = Runtime::builder().seeded(1).name("app").build()?;
/// let (id, dump): (_, Dump) = runtime.run(|| {
///     let load = Request::builder().name("load").spawn(|| 5);
///     (load.id(), runtime.dump())
/// });
/// assert_eq!(dump.runtime, "app");
/// assert_eq!(dump.find("load").map(|load| load.id), Some(id));
/// assert_eq!(dump.request(id).map(|load| load.name.as_str()), Some("load"));
/// assert!(dump.to_string().contains("load"));
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The name of the runtime.
    pub runtime: String,
    /// The workers, by number. Empty in the synchronous and in the seeded mode.
    pub workers: Vec<WorkerInfo>,
    /// The live requests: generation by generation, and within one by age, those of more urgent and of older roots first. An arm of a
    /// join that another worker runs is an entry of its own.
    pub requests: Vec<RequestInfo>,
    /// The plain threads that wait for something of this runtime, in the order of their names.
    pub threads: Vec<ThreadInfo>,
}

/// A worker, in a [`Dump`].
///
/// ```
/// use forebear::Runtime;
/// use forebear::dump::WorkerInfo;
///
/// let runtime = Runtime::builder().workers(2).build()?;
/// let workers: Vec<WorkerInfo> = runtime.dump().workers;
/// assert_eq!(workers.iter().map(|worker| worker.index).collect::<Vec<_>>(), [0, 1]);
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its number.
    pub index: usize,
    /// What it was doing when the dump began.
    pub state: WorkerState,
    /// Whether it came to a scheduling point in time (10 ms). If not, what is private to it is counted and not listed.
    pub answered: bool,
    /// The request that runs on it.
    pub runs: Option<RequestId>,
    /// How many requests are private to it: submitted on it, not started, and not offered to other workers yet.
    pub private: usize,
}

/// A request, in a [`Dump`].
///
/// ```
/// use forebear::dump::RequestInfo;
/// use forebear::{Priority, Request, Runtime, State};
///
/// let runtime = Runtime::builder().seeded(1).build()?;
/// let load: RequestInfo = runtime.run(|| {
///     let load = Request::builder().name("load").priority(Priority::URGENT).spawn(|| 5);
///     let dump = runtime.dump();
///     drop(load);
///     dump.find("load").cloned().unwrap()
/// });
/// assert_eq!((load.state, load.priority), (State::Queued, Priority::URGENT));
/// assert!(load.made_at.is_some() && load.parent.is_some() && load.waits_for.is_none());
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Its number, as [`Request::id`](crate::Request::id) answers it.
    pub id: RequestId,
    /// The name it was given, else the type of its closure, in full.
    pub name: String,
    /// This is an arm of a `join` that the request has called, and that another worker has taken.
    pub is_arm: bool,
    /// Where it was made: known of requests that a builder has given a name or a deadline.
    pub made_at: Option<SourceLocation>,
    /// What it is doing. One that waits is [`State::Suspended`]; one that has been woken, and waits for its turn, is [`State::Running`].
    pub state: State,
    /// It was cancelled, and has not ended.
    pub is_cancelled: bool,
    /// The worker that it runs on, or that it is private to.
    pub worker: Option<usize>,
    /// The name of the plain thread that it runs on.
    pub thread: Option<String>,
    /// The request that made it.
    pub parent: Option<RequestId>,
    /// Its priority.
    pub priority: Priority,
    /// The priority of the most urgent request that waits for it, if that is more urgent than it is itself.
    pub raised_to: Option<Priority>,
    /// For how long it has existed at least: since the end of an earlier dump of this runtime that listed it, or of the first that ended after the program
    /// had asked for its number. `None` if there was no such dump. A birth reads no clock.
    pub known_for: Option<Duration>,
    /// What it waits for, if it is suspended.
    pub waits_for: Option<WaitInfo>,
}

/// A wait, in a [`Dump`].
///
/// ```
/// use forebear::dump::{Reason, WaitInfo};
/// use forebear::{Request, Runtime, yield_now};
///
/// let runtime = Runtime::builder().seeded(1).build()?;
/// let wait: WaitInfo = runtime.run(|| {
///     let (completer, answer) = Request::completer("network 7");
///     let load = Request::builder().name("load").spawn(move || answer.take());
///     let wait = loop {
///         yield_now().unwrap(); // until `load` waits
///         if let Some(wait) = runtime.dump().find("load").and_then(|load| load.waits_for.clone()) {
///             break wait;
///         }
///     };
///     completer.complete(7).unwrap();
///     load.take().unwrap().unwrap();
///     wait
/// });
/// assert_eq!((wait.reason, wait.what.as_str()), (Reason::Request, "request `network 7`"));
/// assert_eq!(wait.owners[0].name(), "network 7");
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitInfo {
    /// The kind of wait.
    pub reason: Reason,
    /// What is waited for, in words: the kind, the name, and for locks the place of the call. ``a Mutex "cache" (src/cache.rs:12)``,
    /// ``request `load` ``.
    pub what: String,
    /// What the wait depends on, as far as it is known. It is the target request, the unfinished jobs of the scope, the
    /// holder of the lock, or the readers of the reader-writer lock. Channels, events and the like have no known owner.
    pub owners: Vec<Party>,
    /// For how long at most it has gone on: since its worker last read the clock before that, which an idle worker does often, and a busy
    /// one seldom. `None` for plain threads, and for a wait for a request that runs on the waiter's own stack.
    pub since: Option<Duration>,
}

/// A request or a thread that holds what another one waits for, or has to provide it.
///
/// ```
/// use forebear::dump::Party;
///
/// fn line(party: &Party) -> String {
///     match party {
///         Party::Request { id, name, .. } => format!("{id} {name}"),
///         other => other.name().to_owned(), // a plain thread
///     }
/// }
/// # let _: fn(&Party) -> String = line;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Party {
    /// A request.
    #[non_exhaustive]
    Request {
        /// Its number.
        id: RequestId,
        /// Its name.
        name: String,
    },
    /// A request of another runtime, or a plain thread.
    #[non_exhaustive]
    Other {
        /// Its name.
        name: String,
    },
}

impl Party {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Party::Request { name, .. } | Party::Other { name } => name,
        }
    }
}

/// A plain thread that is blocked, in a [`Dump`].
///
/// ```
/// use forebear::dump::{Reason, ThreadInfo};
/// use forebear::{Request, Runtime};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let (completer, answer) = runtime.enter(|| Request::<u32>::completer("network 7"));
/// let waiter = std::thread::Builder::new().name("main loop".into()).spawn(move || answer.take())?;
/// let found: ThreadInfo = loop {
///     if let Some(found) = runtime.dump().threads.pop() {
///         break found;
///     }
/// };
/// assert_eq!((found.name.as_str(), found.waits_for.reason), ("main loop", Reason::Request));
/// completer.complete(7).unwrap();
/// assert_eq!(waiter.join().unwrap()?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub waits_for: WaitInfo,
}

impl Dump {
    /// The first request of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&RequestInfo> {
        self.requests.iter().find(|request| request.name == name)
    }

    /// The request of this number.
    #[must_use]
    pub fn request(&self, id: RequestId) -> Option<&RequestInfo> {
        self.requests.iter().find(|request| request.id == id)
    }
}
