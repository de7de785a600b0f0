//! Reading the time, and arming and disarming entries of the common shard. The head of [`super`] has the races and the invariants.

use std::time::Instant;

use forebear_context::clock::Clock;
use forebear_context::context::Alarm;
use forebear_context::shim::{Arc, time};

use super::firing::{fire, refuse};
use crate::record::callback;
use crate::record::report;
use crate::shared::deadlines::{DeadlinesRecord, FiredEntry};

impl DeadlinesRecord {
    /// The time on the clock. Not called inside a wait or under a lock: the clock may be the user's.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        match self.clock() {
            None => time::now(),
            Some(clock) => {
                let now = ask(clock);
                self.note_reading(now);
                now
            }
        }
    }

    /// A lower bound of the time, which is exact if the clock is the system's, or jumps. May be called inside a wait and under a lock.
    #[inline]
    pub(super) fn at_least(&self) -> Instant {
        match self.clock() {
            None => time::now(),
            // At a jump the subscriber notes the time before it fires. Either that was before the caller's entry was in, or the firing finds the entry.
            Some(_) => self.latest_reading(),
        }
    }

    /// The shard of all entries that are not in a worker's own.
    #[inline]
    pub(super) fn others(&self) -> usize {
        self.shards().count() - 1
    }

    pub(super) fn arm(
        self: &Arc<Self>,
        at: Instant,
        entry: FiredEntry,
        first_request: impl FnOnce(),
    ) -> Alarm {
        let gone = Alarm { number: 0, own: None };
        if self.clock().is_some() && at <= self.at_least() {
            fire(entry);
            return gone;
        }
        let now = || self.at_least();
        let is_request = matches!(entry, FiredEntry::Request(_));
        let count = || {
            if is_request && self.count_requests() {
                first_request();
            }
        };
        // SAFETY: this shard has no owner.
        let armed = match unsafe { self.shards().insert(self.others(), at, entry, now, count) } {
            Ok(armed) => armed,
            Err(refused) => {
                refuse(refused);
                return gone;
            }
        };
        if self.jumps() {
            let now = self.at_least();
            if at <= now {
                self.fire_due(now);
            }
        } else if armed.first {
            self.limit_timer_sleep(self.others(), at);
        }
        Alarm { number: armed.number, own: None }
    }

    /// Takes an entry of the common shard out. Answers whether it had not fired.
    pub(super) fn disarm(&self, number: u64) -> bool {
        // No lock for an entry that never was in a shard.
        // SAFETY: this shard has no owner.
        let entry = if number == 0 { None } else { unsafe { self.shards().remove(self.others(), number) } };
        if let Some(FiredEntry::Request(_)) = entry {
            self.uncount_requests();
        }
        entry.is_some()
    }
}

/// Reads the user's clock. If it panics there is no time to continue with, so the process ends.
#[cold]
pub(super) fn ask(clock: &dyn Clock) -> Instant {
    callback::call(callback::CLOCK, || clock.now()).unwrap_or_else(|payload| {
        report::die(&format_args!("the clock of its runtime has panicked: {}", report::message_of(&*payload)))
    })
}
