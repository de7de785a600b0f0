//! [`TaskOptions`]: how one task is scheduled. [`TryScheduleError`]: why it was not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ClusterError;

/// How one task is scheduled: see [`ClusterCoordinator::schedule_with`](crate::ClusterCoordinator::schedule_with).
///
/// ```
/// use forebear_cluster::TaskOptions;
/// use std::time::Duration;
///
/// let options = TaskOptions::new().max_attempts(1).timeout(Duration::from_secs(60)).key("tile 7");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing by themselves"]
pub struct TaskOptions {
    pub(super) max_attempts: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) silent: bool,
    pub(super) key: Option<Arc<str>>,
}

impl TaskOptions {
    /// The coordinator's settings, and no time limit.
    pub fn new() -> TaskOptions {
        TaskOptions::default()
    }

    /// In place of the [coordinator's](crate::ClusterCoordinatorBuilder::max_attempts). 1: the task is not run again, so it runs at most once.
    pub fn max_attempts(mut self, attempts: u32) -> TaskOptions {
        self.max_attempts = Some(attempts.max(1));
        self
    }

    /// Whether a failure of the task cancels the rest and is raised by the coordinator, as usual. If not, the task's value alone returns the failure, and nothing changes for other tasks.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskFn, TaskOptions, tasks};
    ///
    /// const PARSE: TaskFn<String, i32> = TaskFn::new("parse", |_, text| Ok(text.parse()?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![PARSE]).start()?;
    /// let value = cluster.schedule_with(&TaskOptions::new().raise(false), &PARSE, "two".into())?;
    /// assert!(matches!(value.fetch(), Err(FetchError::Task(_))));
    /// assert!(cluster.join().is_ok());
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn raise(mut self, raise: bool) -> TaskOptions {
        self.silent = !raise;
        self
    }

    /// The result is kept in the [journal](crate::ClusterCoordinatorBuilder::journal) under this key. A task of the same key, function and arguments is not run then: its value is the result that is kept, also in another run of the program. Without a
    /// journal a key does nothing.
    ///
    /// A result of more than 256 KiB is not kept, nor are failures.
    pub fn key(mut self, key: impl Into<Arc<str>>) -> TaskOptions {
        self.key = Some(key.into());
        self
    }

    /// The task is cancelled so long after it was scheduled, wherever it is then, and fails with [`FailureKind::TimedOut`](crate::FailureKind::TimedOut) when it has ended.
    /// A task that is queued when its time is over fails when a worker takes it.
    ///
    /// A task that is scheduled in a request with a deadline has no more time than that request. If that deadline ends the task, its value alone returns the failure: it is no error of the job.
    pub fn timeout(mut self, timeout: Duration) -> TaskOptions {
        self.timeout = Some(timeout);
        self
    }
}

/// Why a task was not scheduled by [`ClusterCoordinator::try_schedule`](crate::ClusterCoordinator::try_schedule).
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, TryScheduleError, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
/// let mut later = Vec::new();
/// for n in 0..10 {
///     match cluster.try_schedule(&NEXT, n) {
///         Ok(_value) => {}
///         Err(TryScheduleError::Full(args)) => later.push(args),
///         Err(error) => panic!("{error}"),
///     }
/// }
/// assert!(later.is_empty()); // the queue has room for more than ten
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TryScheduleError<A> {
    /// The queue is full, or an error is about to be raised. These are the arguments.
    Full(A),
    /// As [`ClusterCoordinator::schedule`](crate::ClusterCoordinator::schedule).
    Cluster(ClusterError),
}

impl<A> fmt::Display for TryScheduleError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryScheduleError::Full(_) => {
                f.write_str("the queue is full: schedule it later, or by `schedule`, which waits")
            }
            TryScheduleError::Cluster(error) => error.fmt(f),
        }
    }
}

impl<A: fmt::Debug> std::error::Error for TryScheduleError<A> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TryScheduleError::Full(_) => None,
            TryScheduleError::Cluster(error) => Some(error),
        }
    }
}
