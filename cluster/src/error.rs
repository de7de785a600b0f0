//! What goes wrong, and what the caller does about it: [`ClusterError`] of the coordinator's calls, [`FetchError`] of a value, [`TaskFailure`] of a task.

mod failure;

use std::error::Error as StdError;
use std::fmt;
use std::time::Instant;

use forebear::Chain;

pub use self::failure::{FailureKind, TaskError, TaskFailure, TypedError};
pub(crate) use self::failure::{Kinded, drop_payload};

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
    /// The encoded arguments are larger than the [limit](crate::ClusterCoordinatorBuilder::queue_limit) of the queue,
    /// or than the engine allows for a task or a resource. Pass a reference to the data, such as a path or a
    /// [`Stored`](crate::Stored) value.
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
    /// The start would wait for more [workers](crate::ClusterCoordinatorBuilder::min_workers) than its engine starts. Have the engine start as many. Or ask for no more than it starts, and add others by the engine's
    /// control once the cluster runs.
    #[non_exhaustive]
    TooFewWorkers {
        /// The start was to wait for so many.
        wanted: usize,
        /// The engine starts so many.
        starts: usize,
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
    /// Its task has not ended in the time that was given, or its value was not read from the engine's store by then. It may be fetched again.
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
    /// The engine cannot carry tasks for now: see [`ClusterError::Unavailable`]. A value that is here is fetched all the same. The task is not lost: fetch again.
    #[non_exhaustive]
    Unavailable {
        /// Since when the coordinator knows.
        since: Instant,
        /// Why.
        reason: String,
    },
    /// The cluster was shut down before its task ended, or before a value was read from the store.
    Closed,
    /// The calling request was cancelled.
    Cancelled,
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
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
                "the arguments take {bytes} bytes, and the limit is {limit}: pass a reference to the data, such as a path or a stored value"
            ),
            ClusterError::Unavailable { since, reason } => away(f, *since, reason),
            ClusterError::Start { message } => write!(f, "the engine did not start: {message}"),
            ClusterError::TooFewWorkers { wanted, starts } => write!(
                f,
                "the start waits for {wanted} workers, and its engine starts {starts}: have it start {wanted}, or set `min_workers({starts})` and add others by the engine's control once the cluster runs"
            ),
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
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            FetchError::Task(failure) => failure.fmt(f),
            FetchError::Dropped => {
                f.write_str("its task was cancelled: schedule it again if it is still needed")
            }
            FetchError::TimedOut => f.write_str("it has not come in time"),
            FetchError::Decode { message } => write!(f, "the result cannot be decoded: {message}"),
            FetchError::Store { message } => f.write_str(message),
            FetchError::Unavailable { since, reason } => away(f, *since, reason),
            FetchError::Closed => f.write_str("the cluster was shut down"),
            FetchError::Cancelled => f.write_str("the calling request has been cancelled"),
        }
    }
}

fn away(f: &mut fmt::Formatter<'_>, since: Instant, reason: &str) -> fmt::Result {
    let since = since.elapsed();
    write!(f, "no tasks can be carried since {since:.1?}: {reason}; what was scheduled is kept")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alternate_display_writes_the_causes() {
        let wanted = "the calling request has been cancelled: the request was cancelled";
        assert_eq!(format!("{:#}", ClusterError::Cancelled), wanted);
        assert_eq!(format!("{:#}", FetchError::Cancelled), wanted);
        assert_eq!(format!("{:#}", ClusterError::Fetch(FetchError::Cancelled)), wanted);
        assert_eq!(format!("{:#}", ClusterError::Closed), ClusterError::Closed.to_string());
    }
}
