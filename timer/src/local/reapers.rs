//! The two simplest reapers: kill the worker, or only report the timer.

use super::wire;
use super::worker::unnamed;
use super::{LocalWorker, Signalled};
use crate::expiry::{Overdue, Reap, Reaper, TimerError};

/// Kills the process by a signal: the timer's own if it has one, else SIGKILL.
///
/// ```
/// use forebear::timer::local::KillProcess;
///
/// assert_eq!(KillProcess::with_signal(15)?.signal(), 15);
/// assert!(KillProcess::with_signal(0).is_err());
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KillProcess {
    signal: i32,
}

impl KillProcess {
    /// By SIGKILL, which no process can refuse.
    ///
    /// ```
    /// use forebear::timer::local::KillProcess;
    ///
    /// assert_eq!(KillProcess::new().signal(), 9);
    /// ```
    #[must_use]
    pub fn new() -> KillProcess {
        KillProcess { signal: rustix::process::Signal::KILL.as_raw() }
    }

    /// By the signal of this number. If the process handles it and lives on, the hooks get an event after the server's patience, and its timers are
    /// dropped.
    ///
    /// # Errors
    ///
    /// No named signal has this number.
    pub fn with_signal(signal: i32) -> Result<KillProcess, TimerError> {
        wire::named_signal(signal).map(|_| KillProcess { signal }).ok_or_else(|| unnamed(signal))
    }

    /// The number of the signal.
    #[must_use]
    pub fn signal(&self) -> i32 {
        self.signal
    }
}

impl Default for KillProcess {
    fn default() -> KillProcess {
        KillProcess::new()
    }
}

impl Reaper<LocalWorker> for KillProcess {
    fn reap(&mut self, overdue: &Overdue<'_, LocalWorker>) -> Reap {
        end(overdue.worker, overdue.timer.signal.number().unwrap_or(self.signal))
    }
}

/// Leaves expired timers to the event hooks: they are reported and forgotten. Works with workers of any kind.
///
/// ```
/// use forebear::timer::TimerError;
/// use forebear::timer::local::{LocalTimerServer, LogOnly};
///
/// let server = LocalTimerServer::bind()?.reaper(LogOnly).on_event(|event| eprintln!("{event}")).start()?;
/// server.stop()?;
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOnly;

impl<W> Reaper<W> for LogOnly {
    fn reap(&mut self, _: &Overdue<'_, W>) -> Reap {
        Reap::Spared
    }
}

/// Ends the process by this signal.
pub(super) fn end(worker: &LocalWorker, signal: i32) -> Reap {
    match worker.end_by(signal) {
        Ok(Signalled::Sent) => Reap::Reaped,
        Ok(Signalled::Ended) => Reap::Gone,
        Err(error) => Reap::Retry(error),
    }
}
