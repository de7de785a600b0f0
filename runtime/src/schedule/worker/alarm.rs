//! A worker fires what is due on it itself.
//!
//! What its coroutines have armed lies in a shard of its own ([`crate::time::deadlines`]), and what comes due there is for nobody but itself. Were the
//! timer thread to bring it, each sleeper would cost two wake-ups one after the other, and its records a way to the other
//! processor and back. So the worker looks at the clock itself: when it has nothing to do, before it sleeps and in its search, and sleeps no
//! longer than until the next is due; and while it is busy at every [`PERIOD`]th scheduling point. It fires no more at a time than it
//! can have in its cache when it goes on with them. What it neglects, since what runs on it comes to no scheduling point, the timer thread
//! fires after a while, so that a reader of the attention word finds that something older is ready.
//!
//! `alarm` is 0 as long as nothing is armed here, so that a worker without timers pays for one read of a cell of its own; else it counts down to the
//! next look at the clock.

use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::{hint, time};

use super::Worker;
use crate::shared::worker::PERIOD;

/// Between two looks of a worker that stays awake.
const PAUSES: u32 = 4;

impl Worker {
    /// A scheduling point.
    #[inline(always)]
    pub(super) fn look_at_time(&self) {
        if self.alarm.get() != 0 {
            self.count_down();
        }
    }

    #[inline(never)]
    fn count_down(&self) {
        let left = self.alarm.get() - 1;
        self.alarm.set(left);
        if left == 0 {
            self.fire_own();
        }
    }

    #[cold]
    fn fire_own(&self) {
        let armed = self.shared().deadlines.fire_own(self.index);
        self.alarm.set(if armed { PERIOD } else { 0 });
    }

    /// There is nothing to do, unless something has become due: whether it has.
    pub(super) fn fire_before_idling(&self) -> bool {
        if self.alarm.get() == 0 {
            return false;
        }
        let before = self.ready().len();
        self.fire_own();
        self.ready().len() > before
    }

    /// Whether a look at the clock finds something due, for the engine's search. Then the next scheduling point looks.
    #[inline]
    pub(super) fn is_alarm_due(&self) -> bool {
        if self.alarm.get() == 0 || !self.shared().deadlines.is_own_due(self.index) {
            return false;
        }
        self.alarm.set(1);
        true
    }

    /// The worker is about to sleep for `tick`: answers how long it may.
    #[inline]
    pub(crate) fn keep_time(&self, tick: Option<Duration>) -> Option<Duration> {
        match self.shared().deadlines.before_sleep(self.index, self.alarm.get() != 0) {
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
