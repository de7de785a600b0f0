//! What goes wrong, and what the caller does about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use forebear::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::WorkerId;

/// How a task failed. Travels from the worker to the coordinator.
///
/// A clone is cheap. [`ClusterCoordinator::join`](crate::ClusterCoordinator::join) raises the first one;
/// [`RemoteValue::fetch`](crate::RemoteValue::fetch) returns the task's own each time.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, InProcess, TaskFn, tasks};
///
/// const PARSE: TaskFn<String, u32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![PARSE]).start()?;
/// let _value = cluster.schedule(&PARSE, "12x".into())?;
/// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
/// assert_eq!((failure.task(), failure.attempt()), ("parse", 1));
/// assert_eq!(failure.worker().unwrap().name(), "worker-0");
/// assert!(matches!(failure.kind(), FailureKind::Error { message, .. } if message.contains("invalid digit")));
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone)]
pub struct TaskFailure(Arc<Inner>);

struct Inner {
    task: Arc<str>,
    worker: Option<WorkerId>,
    attempt: u32,
    kind: FailureKind,
}

/// What happened in the task.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, InProcess, TaskFn, tasks};
///
/// const DIVIDE: TaskFn<(u32, u32), u32> = TaskFn::new("divide", |_, (a, b)| Ok(a / b));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![DIVIDE]).start()?;
/// cluster.schedule(&DIVIDE, (1, 0))?;
/// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
/// match failure.kind() {
///     FailureKind::Panic { message } => assert_eq!(message, "attempt to divide by zero"),
///     FailureKind::Poisoned { attempts } => panic!("{attempts} workers have died"),
///     other => panic!("{other}"),
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// The task returned an error. These are its text, and the texts of its sources.
    Error {
        /// The text of the error.
        message: String,
        /// The texts of its sources, the nearest first.
        causes: Vec<String>,
        /// The error itself, if the task has returned a [`TaskError`]. See [`TaskFailure::downcast`].
        typed: Option<TypedError>,
    },
    /// The task panicked.
    Panic {
        /// What the panic said.
        message: String,
    },
    /// A resource that the task asked for was not made on this worker. Mend what makes it.
    Resource {
        /// The name of the function that makes it.
        resource: String,
        /// What that function failed with. Never a [`Resource`](FailureKind::Resource) itself, unless it asked for another resource.
        cause: Box<FailureKind>,
    },
    /// Each worker that ran the task died, so many times as the limit allows. The task is not tried again: it may be what kills them.
    Poisoned {
        /// How many workers died with it.
        attempts: u32,
    },
    /// The task's [time](crate::TaskOptions::timeout) was over.
    TimedOut,
    /// The worker could not read the arguments, or not write the result. The programs of coordinator and worker differ, or the type's
    /// `Serialize` does not match its `Deserialize`.
    Codec {
        /// What the codec says.
        message: String,
    },
    /// The worker knows no task of this name. Give it the same tasks as the coordinator.
    NotRegistered,
    /// The engine's store did not take the result, or did not have a value that the task asked for. See its disk; schedule again what made the value.
    Store {
        /// What the store says.
        message: String,
    },
}

impl FailureKind {
    pub(crate) fn of_error(error: &(dyn StdError + 'static)) -> FailureKind {
        let causes = std::iter::successors(error.source(), |cause| (*cause).source());
        FailureKind::Error {
            message: error.to_string(),
            causes: causes.map(|cause| cause.to_string()).collect(),
            typed: None,
        }
    }

    /// The kind of a request's failure.
    pub(crate) fn of_failure(failure: &forebear::Failure) -> FailureKind {
        if let Some(Kinded(kind)) = failure.downcast_ref::<Kinded>() {
            return kind.clone();
        }
        if let Some(TaskError(kind)) = failure.downcast_ref::<TaskError>() {
            return kind.clone();
        }
        match failure.panic_message() {
            Some(message) => FailureKind::Panic { message: message.to_owned() },
            None if failure.is_panic() => FailureKind::Panic { message: "(no text)".into() },
            None => FailureKind::of_error(failure.error()),
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Error { message, causes, .. } => {
                f.write_str(message)?;
                causes.iter().try_for_each(|cause| write!(f, ": {cause}"))
            }
            FailureKind::Panic { message } => write!(f, "panicked: {message}"),
            FailureKind::Resource { resource, cause } => {
                write!(f, "its resource `{resource}` failed: {cause}")
            }
            FailureKind::Poisoned { attempts } => write!(
                f,
                "{attempts} workers died while they ran it, and it is not tried again; see `max_attempts`"
            ),
            FailureKind::TimedOut => f.write_str("its time was over"),
            FailureKind::Codec { message } => {
                write!(f, "arguments or result do not fit between coordinator and worker: {message}")
            }
            FailureKind::NotRegistered => {
                f.write_str("the worker does not know it; give the worker the coordinator's tasks")
            }
            FailureKind::Store { message } => write!(f, "a value could not be kept or read: {message}"),
        }
    }
}

impl TaskFailure {
    /// A failure as an engine reports it.
    #[must_use]
    pub fn new(task: Arc<str>, worker: Option<WorkerId>, attempt: u32, kind: FailureKind) -> TaskFailure {
        TaskFailure(Arc::new(Inner { task, worker, attempt, kind }))
    }

    /// The name of the task.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.0.task
    }

    /// The worker on which it failed. `None`: on no worker, as with [`FailureKind::Poisoned`].
    #[must_use]
    pub fn worker(&self) -> Option<&WorkerId> {
        self.0.worker.as_ref()
    }

    /// Which attempt that was, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// What happened.
    #[must_use]
    pub fn kind(&self) -> &FailureKind {
        &self.0.kind
    }

    /// The error that the task has returned by [`TaskError`], if it has that type.
    ///
    /// An error of the function that makes a resource is the error of each task that asks for the resource.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskError, TaskFn, tasks};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// enum Refused {
    ///     TooOld { years: u32 },
    /// }
    ///
    /// impl std::fmt::Display for Refused {
    ///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         write!(f, "{self:?}")
    ///     }
    /// }
    ///
    /// impl std::error::Error for Refused {}
    ///
    /// fn check(years: u32) -> Result<(), Refused> {
    ///     if years > 9 { Err(Refused::TooOld { years }) } else { Ok(()) }
    /// }
    ///
    /// const CHECK: TaskFn<u32, ()> = TaskFn::new("check", |_, years| Ok(check(years).map_err(TaskError::new)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![CHECK]).start()?;
    /// cluster.schedule(&CHECK, 12)?;
    /// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
    /// assert_eq!(failure.downcast(), Some(Refused::TooOld { years: 12 }));
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn downcast<E: DeserializeOwned + 'static>(&self) -> Option<E> {
        let mut kind = &self.0.kind;
        while let FailureKind::Resource { cause, .. } = kind {
            kind = cause;
        }
        match kind {
            FailureKind::Error { typed: Some(typed), .. } => typed.get(),
            _ => None,
        }
    }
}

/// An error that keeps its type on its way to the coordinator: a task returns it, and [`TaskFailure::downcast`] gives it back. Without this an error travels as its text.
///
/// ```
/// use forebear_cluster::{TaskError, TaskFn};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct TooOld(u32);
///
/// impl std::fmt::Display for TooOld {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "{} years are too many", self.0)
///     }
/// }
///
/// impl std::error::Error for TooOld {}
///
/// const CHECK: TaskFn<u32, ()> = TaskFn::new("check", |_, years| match years {
///     0..10 => Ok(()),
///     _ => Err(TaskError::new(TooOld(years)).into()),
/// });
/// assert_eq!(TaskError::new(TooOld(12)).to_string(), "12 years are too many");
/// ```
#[derive(Clone)]
pub struct TaskError(FailureKind);

impl TaskError {
    /// The error, with its text, the texts of its sources, and its encoded form. If that cannot be made, only the texts travel.
    pub fn new<E: StdError + Serialize + 'static>(error: E) -> TaskError {
        let bytes = postcard::to_stdvec(&error).ok();
        let typed = bytes.map(|bytes| TypedError { type_name: std::any::type_name::<E>().into(), bytes });
        match FailureKind::of_error(&error) {
            FailureKind::Error { message, causes, .. } => {
                TaskError(FailureKind::Error { message, causes, typed })
            }
            kind => TaskError(kind),
        }
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskError").field(&self.0).finish()
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FailureKind::Error { message, .. } => f.write_str(message),
            kind => kind.fmt(f),
        }
    }
}

impl StdError for TaskError {}

/// The encoded form of an error, and the name of its type as the compiler writes it.
///
/// ```
/// use forebear_cluster::{FailureKind, TaskFailure, TypedError};
///
/// /// The type of the error, for a log.
/// fn type_of(failure: &TaskFailure) -> &str {
///     match failure.kind() {
///         FailureKind::Error { typed, .. } => typed.as_ref().map_or("an error", TypedError::type_name),
///         _ => "no error",
///     }
/// }
/// assert_eq!(type_of(&TaskFailure::new("check".into(), None, 1, FailureKind::TimedOut)), "no error");
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedError {
    type_name: String,
    bytes: Vec<u8>,
}

impl TypedError {
    /// The name of its type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    fn get<E: DeserializeOwned + 'static>(&self) -> Option<E> {
        (self.type_name == std::any::type_name::<E>()).then(|| postcard::from_bytes(&self.bytes).ok())?
    }
}

impl fmt::Debug for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} bytes", self.type_name, self.bytes.len())
    }
}

impl fmt::Debug for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskFailure")
            .field("task", &self.0.task)
            .field("worker", &self.0.worker)
            .field("attempt", &self.0.attempt)
            .field("kind", &self.0.kind)
            .finish()
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task `{}`", self.0.task)?;
        if let Some(worker) = &self.0.worker {
            write!(f, " on {worker}")?;
        }
        write!(f, ": {}", self.0.kind)
    }
}

impl StdError for TaskFailure {}

/// Why a call of the coordinator is not `Ok`.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const PARSE: TaskFn<String, u32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![PARSE]).start()?;
/// cluster.schedule(&PARSE, "12x".into())?;
/// match cluster.join() {
///     Err(ClusterError::Task(failure)) => assert_eq!(failure.task(), "parse"), // the rest is cancelled
///     Err(ClusterError::Unavailable { reason, .. }) => eprintln!("{reason}"),  // the rest is kept
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClusterError {
    /// The first task that failed since the last such error. It is raised once. All that was scheduled before and had not ended is
    /// cancelled, and none of it runs any more: schedule it again if it is still needed.
    Task(TaskFailure),
    /// The coordinator was not given this task. Add it to `tasks![...]`.
    #[non_exhaustive]
    NotRegistered {
        /// The name of the task.
        task: String,
    },
    /// Two tasks have this name, or the coordinator was given one and is asked for another one. Give each a name of its own.
    #[non_exhaustive]
    NameTaken {
        /// The name.
        task: String,
    },
    /// The arguments cannot be encoded. See what their `Serialize` refuses.
    #[non_exhaustive]
    Encode {
        /// What the codec says.
        message: String,
    },
    /// The encoded arguments are larger than the [limit](crate::ClusterCoordinatorBuilder::queue_limit) of the queue: pass a reference to
    /// the data, such as a path.
    #[non_exhaustive]
    TooLarge {
        /// Their size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The engine could not start.
    #[non_exhaustive]
    Start {
        /// Why.
        message: String,
    },
    /// The engine cannot carry tasks for now, and has tried for as long as its settings say: its server is away, for instance. Each call returns this until the engine can carry tasks again. What was scheduled is not
    /// lost: call again, or shut down.
    #[non_exhaustive]
    Unavailable {
        /// Since when the coordinator knows.
        since: Instant,
        /// Why.
        reason: String,
    },
    /// The engine's store did not take a value: its disk is full, for instance.
    #[non_exhaustive]
    Store {
        /// What the store says.
        message: String,
    },
    /// A value of a [`map`](crate::ClusterCoordinator::map) could not be fetched, and no failed task was the reason.
    Fetch(FetchError),
    /// The cluster was shut down. Start another one.
    Closed,
    /// The calling request was cancelled. Nothing was scheduled, and nothing that was scheduled is changed.
    Cancelled,
}

/// Why a value cannot be fetched.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskFn, tasks};
/// use std::time::Duration;
///
/// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]).start()?;
/// let value = cluster.schedule(&NEVER, ())?;
/// value.cancel();
/// match value.fetch() {
///     Err(FetchError::Dropped) => {} // schedule it again if it is still needed
///     Err(FetchError::Task(failure)) => panic!("{failure}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FetchError {
    /// Its task failed. The answer is the same each time.
    Task(TaskFailure),
    /// Its task was cancelled: since another task failed, or by [`RemoteValue::cancel`](crate::RemoteValue::cancel). Schedule it again if it is
    /// still needed.
    Dropped,
    /// Its task has not ended in the time that was given. It may be fetched again.
    TimedOut,
    /// The result cannot be decoded. The programs of coordinator and worker differ.
    #[non_exhaustive]
    Decode {
        /// What the codec says.
        message: String,
    },
    /// The engine's store does not have the value, or cannot give it: the store has lost its objects, or its disk fails. Schedule the task again.
    #[non_exhaustive]
    Store {
        /// What the store says.
        message: String,
    },
    /// The cluster was shut down before its task ended, or before a value was read from the store.
    Closed,
    /// The calling request was cancelled.
    Cancelled,
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterError::Task(failure) => write!(f, "{failure}; what else was scheduled is cancelled"),
            ClusterError::NotRegistered { task } => {
                write!(f, "the task `{task}` is not registered: add it to `tasks![...]`")
            }
            ClusterError::NameTaken { task } => {
                write!(f, "two tasks are named `{task}`: give each a name of its own")
            }
            ClusterError::Encode { message } => write!(f, "the arguments cannot be encoded: {message}"),
            ClusterError::TooLarge { bytes, limit } => write!(
                f,
                "the arguments take {bytes} bytes, the queue holds {limit}: pass a reference to the data, such as a path"
            ),
            ClusterError::Unavailable { since, reason } => {
                write!(
                    f,
                    "no tasks can be carried since {:.1?}: {reason}; what was scheduled is kept",
                    since.elapsed()
                )
            }
            ClusterError::Start { message } => write!(f, "the engine did not start: {message}"),
            ClusterError::Store { message } => f.write_str(message),
            ClusterError::Fetch(error) => error.fmt(f),
            ClusterError::Closed => f.write_str("the cluster was shut down"),
            ClusterError::Cancelled => f.write_str("the calling request has been cancelled"),
        }
    }
}

impl StdError for ClusterError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // `forebear::Error::is_cancelled` looks for it among the sources.
        match self {
            ClusterError::Cancelled => Some(&CANCELLED),
            ClusterError::Fetch(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Task(failure) => failure.fmt(f),
            FetchError::Dropped => {
                f.write_str("its task was cancelled: schedule it again if it is still needed")
            }
            FetchError::TimedOut => f.write_str("it has not come in time"),
            FetchError::Decode { message } => write!(f, "the result cannot be decoded: {message}"),
            FetchError::Store { message } => f.write_str(message),
            FetchError::Closed => f.write_str("the cluster was shut down"),
            FetchError::Cancelled => f.write_str("the calling request has been cancelled"),
        }
    }
}

impl StdError for FetchError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            FetchError::Cancelled => Some(&CANCELLED),
            _ => None,
        }
    }
}

impl From<forebear::Cancelled> for ClusterError {
    fn from(_: forebear::Cancelled) -> Self {
        ClusterError::Cancelled
    }
}

/// What cancelled calls show as their source.
static CANCELLED: forebear::Cancelled = forebear::Cancelled::new();

/// An error whose kind is known: what [`TaskCtx::local`](crate::TaskCtx::local) answers in place of a resource, for instance.
#[derive(Clone, Debug)]
pub(crate) struct Kinded(pub(crate) FailureKind);

impl fmt::Display for Kinded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Kinded {}

impl Kinded {
    /// What `local` answers.
    pub(crate) fn resource(resource: &str, cause: &FailureKind) -> Error {
        let cause = Box::new(cause.clone());
        Kinded(FailureKind::Resource { resource: resource.to_owned(), cause }).into()
    }
}
