//! [`SuperviseError`]: why a supervised job did not start, or did not end well.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebear::{BlockingError, CancelReason, Cancelled, Chain, Error, Failure};

use crate::{CheckpointError, EventError, JoinError, Straggler};

/// Why a supervised job did not start, or did not end well.
///
/// ```
/// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
///
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
/// let error = supervisor.run(|_| Ok("12x".parse::<u64>()?)).unwrap_err();
/// assert!(matches!(error, SuperviseError::Job(_)));
/// assert!(error.failure().unwrap().downcast_ref::<std::num::ParseIntError>().is_some());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SuperviseError {
    /// The job has failed: in the closure of [`run`](super::Supervisor::run), in a service, or in another worker. Or workers have not ended in time. The error
    /// holds the first failure.
    Job(JoinError),
    /// A closure that prepares the state has failed: `init`, `local_init` or a [`SessionManager`](super::SessionManager).
    #[non_exhaustive]
    Prepare {
        /// Its error.
        source: Error,
    },
    /// There is no checkpoint, the builder has no `init`, and the state is not initialised.
    #[non_exhaustive]
    NothingToStartFrom {
        /// What is not initialised, from [`State::missing`](crate::State::missing).
        missing: Vec<String>,
    },
    /// The state was initialised or restored, but parts of it were not.
    #[non_exhaustive]
    InitIncomplete {
        /// Those parts, from [`State::missing`](crate::State::missing).
        missing: Vec<String>,
    },
    /// The job could not begin in time, or its state is not ready though the chief has prepared it.
    #[non_exhaustive]
    NotReady {
        /// Why it was not ready at the last check.
        reason: String,
        /// How long this process has waited.
        waited: Duration,
    },
    /// This process should be the chief of the directory, but another one is, or another supervisor of this one.
    #[non_exhaustive]
    SecondChief {
        /// The directory.
        dir: PathBuf,
        /// The process of the chief, if that is known. It may be this one.
        process: Option<u32>,
    },
    /// Only the chief can do this.
    NotChief,
    /// This needs a directory, and none was given.
    NoDirectory,
    /// There is no writer for summaries.
    NoWriter,
    /// Checkpoints are disabled.
    NoCheckpoints,
    /// A session of this supervisor is running.
    AlreadyRunning,
    /// A stop was requested before the job began.
    Stopped,
    /// A checkpoint could not be written or read.
    Checkpoint(CheckpointError),
    /// Summaries could not be written.
    Events(EventError),
    /// The system refuses something.
    #[non_exhaustive]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it says.
        source: Arc<io::Error>,
    },
    /// The calling request has been cancelled.
    Cancelled,
}

impl SuperviseError {
    /// The first failure of the job, if it has failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            SuperviseError::Job(error) => error.failure(),
            _ => None,
        }
    }

    /// The workers that have not ended in time.
    ///
    /// ```
    /// use forebear_supervise::{Snapshot, SuperviseError, Supervisor};
    /// use std::time::Duration;
    ///
    /// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).stop_grace(Duration::ZERO).build();
    /// let session = supervisor.start()?;
    /// let me = session.coordinator().enlist("forgets to look");
    /// let error = supervisor.stop().unwrap_err();
    /// assert_eq!(error.stragglers()[0].name, "forgets to look");
    /// drop(me);
    /// # Ok::<(), SuperviseError>(())
    /// ```
    #[must_use]
    pub fn stragglers(&self) -> &[Straggler] {
        match self {
            SuperviseError::Job(error) => error.stragglers(),
            _ => &[],
        }
    }
}

impl fmt::Display for SuperviseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It writes the requests that have passed the failure on, and no chain shows these.
            SuperviseError::Job(_) => {}
            _ if f.alternate() => return Chain::of(self).fmt(f),
            _ => {}
        }
        match self {
            SuperviseError::Job(error) => {
                f.write_str("the job has not ended well: ")?;
                error.fmt(f)
            }
            SuperviseError::Prepare { .. } => f.write_str("the state could not be prepared"),
            SuperviseError::NothingToStartFrom { missing } => write!(
                f,
                "there is no checkpoint to restore and no `init`, and the state lacks {}: give the builder an `init`, or wait for a checkpoint",
                missing.join(", ")
            ),
            SuperviseError::InitIncomplete { missing } => {
                write!(f, "`init` or the checkpoint has left out {}: initialise it, too", missing.join(", "))
            }
            SuperviseError::NotReady { reason, waited } => {
                write!(f, "not ready after {waited:.1?}: {reason}")
            }
            SuperviseError::SecondChief { dir, process } => {
                write!(f, "{}: ", dir.display())?;
                match process {
                    Some(process) if *process == std::process::id() => {
                        f.write_str("this process is the chief there, by a session of another supervisor: stop that")?;
                    }
                    Some(process) => write!(f, "process {process} is the chief there: end it")?,
                    None => f.write_str("another process is the chief there: end it")?,
                }
                f.write_str(", take another directory, or start with `Chief::No` or `Chief::Elect`")
            }
            SuperviseError::NotChief => {
                f.write_str("only the chief writes checkpoints and summaries and has services: ask `is_chief` before")
            }
            SuperviseError::NoDirectory => {
                f.write_str("this needs a directory that the processes of the job share: give the builder a `dir`")
            }
            SuperviseError::NoWriter => {
                f.write_str("a summary needs a writer: give the builder a `dir` or `events`, and no `no_events`")
            }
            SuperviseError::NoCheckpoints => f.write_str(
                "a checkpoint needs a place: give the builder a `dir` or `checkpoints`, and no `no_checkpoints`",
            ),
            SuperviseError::AlreadyRunning => {
                f.write_str("this supervisor has a session: stop that before another one is started")
            }
            SuperviseError::Stopped => f.write_str("a stop was requested before the job began"),
            SuperviseError::Checkpoint(_) => f.write_str("no checkpoint could be written or read"),
            SuperviseError::Events(_) => f.write_str("summaries could not be written"),
            SuperviseError::Io { path, .. } => {
                write!(f, "{}: the supervisor needs to write there", path.display())
            }
            SuperviseError::Cancelled => f.write_str("the wait for the job was cut short"),
        }
    }
}

impl StdError for SuperviseError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            SuperviseError::Job(error) => error.source(),
            SuperviseError::Prepare { source } => Some(&**source),
            SuperviseError::Checkpoint(error) => Some(error),
            SuperviseError::Events(error) => Some(error),
            SuperviseError::Io { source, .. } => Some(source),
            SuperviseError::Cancelled => Some(&crate::CANCELLED),
            _ => None,
        }
    }
}

impl From<Cancelled> for SuperviseError {
    fn from(_: Cancelled) -> Self {
        SuperviseError::Cancelled
    }
}

impl From<BlockingError> for SuperviseError {
    fn from(error: BlockingError) -> Self {
        CheckpointError::from(error).into()
    }
}

impl From<CheckpointError> for SuperviseError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Cancelled => SuperviseError::Cancelled,
            error => SuperviseError::Checkpoint(error),
        }
    }
}

impl From<EventError> for SuperviseError {
    fn from(error: EventError) -> Self {
        match error {
            EventError::Cancelled => SuperviseError::Cancelled,
            error => SuperviseError::Events(error),
        }
    }
}

impl From<super::chief::AtFile> for SuperviseError {
    fn from((path, source): super::chief::AtFile) -> Self {
        SuperviseError::Io { path, source: Arc::new(source) }
    }
}

/// The request that runs the closure of [`run`](super::Supervisor::run) was cancelled, and neither by a stop nor with its caller. Its
/// [source](std::error::Error::source) is what the closure has returned.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{InProcessTimer, configure, expires};
/// use forebear::{CancelReason, time::sleep};
/// use forebear_supervise::{JobCancelled, Snapshot, Supervisor};
///
/// configure(InProcessTimer::new());
/// let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64)).build();
/// let error = supervisor.run(|_| {
///     let _timer = expires(Duration::from_millis(20))?;
///     Ok(sleep(Duration::from_secs(60))?)
/// });
/// let error = error.unwrap_err();
/// let cancelled = error.failure().and_then(|failure| failure.downcast_ref::<JobCancelled>());
/// assert_eq!(cancelled.unwrap().reason, CancelReason::Expired);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobCancelled {
    /// Why it was cancelled.
    pub reason: CancelReason,
    returned: Failure,
}

impl JobCancelled {
    /// What the job fails with: `main` has returned a cancellation as this failure, after it was cancelled for this reason.
    pub(super) fn failure(reason: CancelReason, returned: Failure) -> Failure {
        Failure::from_error(JobCancelled { reason, returned }.into(), "main", None)
    }
}

impl fmt::Display for JobCancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        write!(f, "the job was cancelled: {}", self.reason)
    }
}

impl StdError for JobCancelled {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // That of `main` itself adds no more than the name of `main`.
        if self.returned.path().len() > 1 { Some(&self.returned) } else { self.returned.source() }
    }
}

/// The chief has ended without a clean stop: what the other processes of its job report, if they are to [end then](super::ChiefDeath::Stop).
///
/// ```
/// use forebear_supervise::{ChiefDied, SuperviseError};
///
/// /// Whether to start the process again, which then waits for the next chief.
/// fn again(error: &SuperviseError) -> bool {
///     error.failure().is_some_and(|failure| failure.downcast_ref::<ChiefDied>().is_some())
/// }
/// # assert!(!again(&SuperviseError::NotChief));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChiefDied {
    /// The directory of the job.
    pub dir: PathBuf,
    /// The process that was its chief.
    pub process: u32,
}

impl fmt::Display for ChiefDied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the chief, process {}, has ended without a clean stop: start the job again",
            self.dir.display(),
            self.process
        )
    }
}

impl StdError for ChiefDied {}
