//! What a server has done, in numbers.

use std::sync::PoisonError;

use forebear_context::shim::Mutex;

/// What a server has counted since it was made.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{Overdue, Reap, TimerError, TimerRequest, Watchdog, WatchdogStats, channel};
///
/// let (timers, queue) = channel();
/// let mut watchdog = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped);
/// timers.send(TimerRequest::leave(7))?;
/// watchdog.turn(Duration::ZERO)?;
/// let stats: WatchdogStats = watchdog.stats();
/// assert_eq!((stats.turns, stats.requests, stats.reaped), (1, 1, 0));
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchdogStats {
    /// Turns taken.
    pub turns: u64,
    /// Turns given up, because the queue or the table had failed.
    pub failed_turns: u64,
    /// Requests taken out of the queue.
    pub requests: u64,
    /// Timers found to have expired, each counted once.
    pub expired: u64,
    /// Workers reaped.
    pub reaped: u64,
    /// Workers that were gone when they were to be reaped.
    pub gone: u64,
    /// Calls of the reaper after which it was to be tried again.
    pub failed_reaps: u64,
    /// Calls of the reaper that panicked.
    pub panicked_reaps: u64,
    /// Timers of workers that ended without releasing them.
    pub orphaned: u64,
}

/// The numbers, for the server and for those who ask.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<WatchdogStats>);

impl Counts {
    pub(super) fn add(&self, add: impl FnOnce(&mut WatchdogStats)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> WatchdogStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
