//! What an agent could not do. That a group has failed is no error, but a [`RunResult`](super::RunResult).

use std::error::Error as StdError;
use std::path::PathBuf;
use std::{fmt, io};

use forebear::Chain;
use forebear::timer::TimerError;

/// Why an agent could not be made, or could not run its group. It has stopped what it had started.
///
/// ```
/// use forebear_supervise::agent::{AgentError, LocalAgent};
///
/// // This program has not called `agent::entry()`.
/// let error = LocalAgent::builder("true").build()?.run().unwrap_err();
/// assert!(matches!(error, AgentError::EntryMissing));
/// # Ok::<(), AgentError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentError {
    /// The process has not called [`agent::entry`](super::entry), and no [launcher](super::LocalAgentBuilder::launcher) was named.
    EntryMissing,
    /// A worker could not be started. The agent does not try again.
    #[non_exhaustive]
    Start {
        /// Which program.
        program: PathBuf,
        /// Which worker.
        rank: usize,
        /// Why.
        source: io::Error,
    },
    /// The system no longer knows a worker that the agent has not reaped: other code in this process has reaped it. The agent does not try again, since processes of the
    /// worker may still run.
    #[non_exhaustive]
    Unknown {
        /// Which worker.
        rank: usize,
        /// The number its process had.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Processes still exist after SIGKILL and its time-out. The agent does not wait for them.
    #[non_exhaustive]
    Unkillable {
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// The result of a worker cannot be read.
    #[non_exhaustive]
    Result {
        /// Which worker.
        rank: usize,
        /// Why.
        source: io::Error,
    },
    /// The result of a worker is no value of the requested type.
    #[non_exhaustive]
    Decode {
        /// Which worker.
        rank: usize,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A setting is invalid. The text says which one, and what is valid.
    Invalid(String),
    /// The timer server could not be started.
    Timers(TimerError),
    /// The system refuses a thread, a descriptor, a handler or a directory.
    Io(io::Error),
    /// This agent is running already.
    AlreadyRunning,
    /// The calling request was cancelled. The group was stopped.
    Cancelled,
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            AgentError::EntryMissing => {
                f.write_str("this program cannot start workers: call `agent::entry()` first in `main`, or name a launcher")
            }
            AgentError::Start { program, rank, source } => {
                write!(f, "worker {rank} could not be started from {}: {source}", program.display())
            }
            AgentError::Unknown { rank, pid, source } => write!(
                f,
                "worker {rank} (process {pid}) is gone, and it is not known how ({source}): see that nothing else in this program waits for \
                 child processes, and that SIGCHLD is not ignored"
            ),
            AgentError::Unkillable { pids } => {
                write!(f, "still there after SIGKILL: {pids:?}; look in /proc/PID/stack for what they hang in")
            }
            AgentError::Result { rank, source } => {
                write!(f, "the result of worker {rank} cannot be read: {source}")
            }
            AgentError::Decode { rank, source } => {
                write!(f, "the result of worker {rank} is of another type: {source}")
            }
            AgentError::Invalid(text) => f.write_str(text),
            AgentError::Timers(source) => write!(f, "the timer server could not be started: {source}"),
            AgentError::Io(source) => write!(f, "the agent lacks what it needs: {source}"),
            AgentError::AlreadyRunning => {
                f.write_str("a run of this agent is going on: wait for it, or make another agent")
            }
            AgentError::Cancelled => f.write_str("the run was cancelled, and the group was stopped"),
        }
    }
}

impl StdError for AgentError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What `Display` says, the source does not say again.
        match self {
            AgentError::Start { source, .. }
            | AgentError::Unknown { source, .. }
            | AgentError::Result { source, .. }
            | AgentError::Io(source) => source.source(),
            AgentError::Timers(source) => source.source(),
            AgentError::Decode { source, .. } => source.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for AgentError {
    fn from(error: io::Error) -> AgentError {
        AgentError::Io(error)
    }
}
