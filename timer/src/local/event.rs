//! What a server reports about the processes at its socket. [`TimerEvent`](crate::expiry::TimerEvent) reports about timers.

use std::time::Duration;
use std::{fmt, io};

use super::{LocalWorker, Refusal};

/// What happens at the socket of a [`LocalTimerServer`](super::LocalTimerServer). `Display` is a line for a log.
///
/// ```
/// use forebear::timer::TimerError;
/// use forebear::timer::local::{LocalEvent, LocalTimerServer};
///
/// let server = LocalTimerServer::bind()?.on_process(|event: &LocalEvent<'_>| {
///     if let LocalEvent::Survives { worker, signal, .. } = event {
///         eprintln!("process {} survives signal {signal}", worker.pid());
///     }
/// });
/// # drop(server);
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LocalEvent<'a> {
    /// A process has sent its first message.
    #[non_exhaustive]
    Joined {
        /// Who.
        worker: &'a LocalWorker,
    },
    /// A process has closed its last connection, but has not ended. Timers that it has continue. Reported also of one
    /// that ends, if its end is seen a moment later.
    #[non_exhaustive]
    Closed {
        /// Who.
        worker: &'a LocalWorker,
    },
    /// A process has ended.
    #[non_exhaustive]
    Ended {
        /// Who.
        worker: &'a LocalWorker,
        /// How long after the last signal that was to end it; `None` if none was sent.
        after: Option<Duration>,
    },
    /// A process was sent a signal that was to end it, and has lived longer than the server's patience. Reported once
    /// for each signal. After SIGKILL this means that the process waits in the kernel for a device or a file system,
    /// so the kernel cannot end it. The server does not wait for the process. If it ends later, that is an event too.
    #[non_exhaustive]
    Survives {
        /// Who.
        worker: &'a LocalWorker,
        /// What was sent last.
        signal: i32,
        /// How long ago.
        after: Duration,
    },
    /// A connection was refused or closed.
    #[non_exhaustive]
    Refused {
        /// The id of the process that connected, if it is visible from this pid namespace.
        pid: Option<u32>,
        /// Why.
        why: Refusal,
        /// How many refusals before this one were not reported, since there were too many in a second.
        suppressed: u64,
    },
    /// The server cannot accept connections for now: descriptors or memory have run out. Existing
    /// connections continue.
    #[non_exhaustive]
    Full {
        /// What the system says.
        error: &'a io::Error,
        /// How long until the server tries again.
        again_in: Duration,
    },
}

impl fmt::Display for LocalEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalEvent::Joined { worker } => write!(f, "{worker:?} has joined"),
            LocalEvent::Closed { worker } => {
                write!(f, "{worker:?} has closed its connection and has not ended")
            }
            LocalEvent::Ended { worker, after: None } => write!(f, "{worker:?} has ended"),
            LocalEvent::Ended { worker, after: Some(after) } => {
                write!(f, "{worker:?} has ended, {after:?} after it was sent what was to end it")
            }
            LocalEvent::Survives { worker, signal, after } => {
                write!(f, "{worker:?} is still there {after:?} after signal {signal}")
            }
            LocalEvent::Refused { pid, why, suppressed } => {
                match pid {
                    Some(pid) => write!(f, "process {pid} was refused: {why}")?,
                    None => write!(f, "a process that cannot be seen from here was refused: {why}")?,
                }
                if *suppressed > 0 {
                    write!(f, " ({suppressed} earlier ones were not reported)")
                } else {
                    Ok(())
                }
            }
            LocalEvent::Full { error, again_in } => {
                write!(f, "no connection can be accepted: {error}; next attempt in {again_in:?}")
            }
        }
    }
}
