//! [`AgentEvent`]: what an agent reports while it runs.

use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use super::outcome::{GroupState, WorkerFailure};

/// What happens in a run: the argument of the [hook](super::LocalAgentBuilder::on_event). `Display` is a line for a log.
///
/// ```
/// use forebear_supervise::agent::{AgentEvent, GroupState, LocalAgent};
/// use std::sync::mpsc;
///
/// let (sender, ends) = mpsc::channel();
/// let agent = LocalAgent::builder("./worker")
///     .launcher("/usr/bin/forebear-agent")
///     .on_event(move |event| match event {
///         AgentEvent::Over(state) => _ = sender.send(*state),
///         AgentEvent::Restarting { attempt, left, .. } => eprintln!("attempt {attempt}; {left} are left"),
///         _ => {}
///     })
///     .build()?;
/// agent.request_stop(); // so that the run starts no worker
/// agent.run()?;
/// assert_eq!(ends.recv()?, GroupState::Stopped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentEvent<'a> {
    /// All workers of an attempt were started.
    #[non_exhaustive]
    Started {
        /// The number of the attempt: how many restarts there were before.
        attempt: u32,
        /// The numbers of the processes, in the order of their local ranks.
        pids: &'a [u32],
    },
    /// A timer of a worker has expired.
    #[non_exhaustive]
    Expired {
        /// The worker's rank; `None` if the process is in none of the workers' groups.
        rank: Option<usize>,
        /// The number of the process.
        pid: u32,
        /// The timer's scope.
        scope: &'a str,
    },
    /// The timer server has failed to do something: it could not end a worker whose timer had expired, or has given up a turn. It continues, and tries again.
    ///
    /// An agent without a [hook](super::LocalAgentBuilder::on_event) writes this event to standard error.
    #[non_exhaustive]
    TimersFailed {
        /// What has failed and why: the server's own line for a log.
        message: &'a str,
    },
    /// The group has failed, and the [file for the first failure](super::LocalAgentBuilder::error_file) could not be written.
    ///
    /// An agent without a [hook](super::LocalAgentBuilder::on_event) writes this event to standard error.
    #[non_exhaustive]
    ErrorFile {
        /// The file.
        path: &'a Path,
        /// What the system says.
        error: &'a io::Error,
    },
    /// A worker has failed. The group is stopped for that.
    Failed(&'a WorkerFailure),
    /// Workers that still run were asked to end, by this signal.
    #[non_exhaustive]
    Stopping {
        /// Its number.
        signal: i32,
        /// How many workers.
        workers: usize,
    },
    /// Workers did not end in time, and were sent SIGKILL.
    #[non_exhaustive]
    Killed {
        /// How many.
        workers: usize,
    },
    /// Processes are still there after SIGKILL and its limit. The agent does not wait for them.
    #[non_exhaustive]
    Unkillable {
        /// Their numbers.
        pids: &'a [u32],
    },
    /// The group is started anew after this pause, because of a failure.
    #[non_exhaustive]
    Restarting {
        /// The number of the attempt that follows.
        attempt: u32,
        /// How many restarts are left after it.
        left: u32,
        /// How long the agent waits before.
        pause: Duration,
    },
    /// The group is restarted with another number of workers, which does not use the budget.
    #[non_exhaustive]
    Resized {
        /// How many.
        workers: usize,
    },
    /// The group was healthy for so long that its budget of restarts is whole again.
    Refilled,
    /// The run has ended in this state.
    Over(GroupState),
}

impl fmt::Display for AgentEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentEvent::Started { attempt, pids } => write!(f, "attempt {attempt}: processes {pids:?}"),
            AgentEvent::Expired { rank: Some(rank), pid, scope } => {
                write!(f, "the timer {scope} of worker {rank} (process {pid}) has expired")
            }
            AgentEvent::Expired { rank: None, pid, scope } => {
                write!(f, "the timer {scope} of process {pid}, which is no worker, has expired")
            }
            AgentEvent::TimersFailed { message } => write!(f, "timers: {message}"),
            AgentEvent::ErrorFile { path, error } => {
                write!(f, "{}: the first failure could not be written: {error}", path.display())
            }
            AgentEvent::Failed(failure) => failure.fmt(f),
            AgentEvent::Stopping { signal, workers } => {
                write!(f, "signal {signal} was sent to {workers} workers")
            }
            AgentEvent::Killed { workers } => {
                write!(f, "{workers} workers have not ended in time: they were sent SIGKILL")
            }
            AgentEvent::Unkillable { pids } => write!(f, "still there after SIGKILL: {pids:?}"),
            AgentEvent::Restarting { attempt, left, pause } => {
                write!(f, "attempt {attempt} follows in {pause:?}; {left} more restarts are left")
            }
            AgentEvent::Resized { workers } => write!(f, "the group is started anew with {workers} workers"),
            AgentEvent::Refilled => f.write_str("the budget of restarts is whole again"),
            AgentEvent::Over(state) => write!(f, "the run has ended: {state}"),
        }
    }
}
