//! A worker fires what is due on it itself.
//!
//! The timers of its coroutines lie in a shard of its own ([`crate::time::deadlines`]), and each concerns a fiber of this worker. If the timer
//! thread fired them, each sleeper would cost two wake-ups one after the other, and its records would cross to another core and back.
//!
//! So the worker reads the clock itself. A worker without work does so in its search and before it sleeps, and sleeps no longer than until
//! the next timer is due. A busy worker does so at every 16th scheduling point
//! ([`ClockCountdown`](crate::shared::worker::ClockCountdown)). It fires no more timers at a time than its cache can hold until it resumes their
//! fibers. If its request reaches no scheduling point, the timer thread fires the timers after a while. Then a reader of the attention word
//! learns that something older is ready.

use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::{hint, time};

use super::Worker;

/// Between two looks of a worker that stays awake.
const PAUSES: u32 = 4;

impl Worker {
    /// A scheduling point.
    #[inline(always)]
    pub(super) fn look_at_time(&self) {
        if self.clock_countdown.is_running() {
            self.count_down();
        }
    }

    #[inline(never)]
    fn count_down(&self) {
        if self.clock_countdown.step() {
            self.fire_own();
        }
    }

    #[cold]
    fn fire_own(&self) {
        let armed = self.shared().deadlines.fire_own(self.index);
        self.clock_countdown.restart(armed);
    }

    /// There is nothing to do, unless something has become due: whether it has.
    pub(super) fn fire_before_idling(&self) -> bool {
        if !self.clock_countdown.is_running() {
            return false;
        }
        let before = self.ready().len();
        self.fire_own();
        self.ready().len() > before
    }

    /// Whether a look at the clock finds something due, for the engine's search. Then the next scheduling point looks.
    #[inline]
    pub(super) fn is_alarm_due(&self) -> bool {
        if !self.clock_countdown.is_running() || !self.shared().deadlines.is_own_due(self.index) {
            return false;
        }
        self.clock_countdown.shorten();
        true
    }

    /// The worker is about to sleep for `tick`: answers how long it may.
    #[inline]
    pub(crate) fn keep_time(&self, tick: Option<Duration>) -> Option<Duration> {
        match self.shared().deadlines.before_sleep(self.index, self.clock_countdown.is_running()) {
            None => tick,
            Some(left) => Some(self.linger(left)).into_iter().chain(tick).min(),
        }
    }

    /// Something is due in `left`: if a sleep would take as long, the worker stays awake until then, or until there is something else to
    /// do. Answers what is left.
    #[cold]
    fn linger(&self, left: Duration) -> Duration {
        if self.engine().search_time().is_none_or(|sleep| left > sleep) {
            return left;
        }
        let end = time::now() + left;
        // This looks at the runtime's clock as well.
        while self.best() == NO_KEY && time::now() < end {
            (0..PAUSES).for_each(|_| hint::spin_loop());
        }
        Duration::ZERO
    }
}
