//! The time as it was last told, and how an entry gets in and out that is no worker's own. The head of [`super`] has the races and the invariants.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, deadline_after};
use forebear_context::context::Alarm;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{Arc, MutexGuard, time};

use super::firing::{fire, refuse};
use crate::record::callback;
use crate::record::report;
use crate::shared::deadlines::{DeadlinesRecord, FiredEntry, TimerThread};

impl DeadlinesRecord {
    /// The time on the clock. Not in the middle of a wait, nor under a lock: it may be a user's.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        match &self.clock {
            None => time::now(),
            Some(clock) => {
                let now = ask(&**clock);
                self.hears(now);
                now
            }
        }
    }

    /// The user's clock has told this time.
    pub(super) fn hears(&self, now: Instant) {
        let after = now.saturating_duration_since(self.first_read).as_nanos();
        self.latest.fetch_max(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What the time is at least: exact if the clock is the system's, or jumps. In the middle of a wait, and under a lock.
    #[inline]
    pub(super) fn at_least(&self) -> Instant {
        match &self.clock {
            None => time::now(),
            Some(_) => {
                // The clock's subscriber has told it before it has fired, which is before the caller's entry was in, or finds that.
                let after = Duration::from_nanos(self.latest.load(Ordering::Relaxed));
                deadline_after(self.first_read, after).unwrap_or(self.first_read)
            }
        }
    }

    pub(super) fn lock_thread(&self) -> MutexGuard<'_, TimerThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where all is armed that is no worker's own.
    #[inline]
    pub(super) fn others(&self) -> usize {
        self.shards.count() - 1
    }

    pub(super) fn arm(
        self: &Arc<Self>,
        at: Instant,
        entry: FiredEntry,
        first_request: impl FnOnce(),
    ) -> Alarm {
        let gone = Alarm { number: 0, own: None };
        if self.clock.is_some() && at <= self.at_least() {
            fire(entry);
            return gone;
        }
        let now = || self.at_least();
        let is_request = matches!(entry, FiredEntry::Request(_));
        let count = || {
            if is_request && self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
                first_request();
            }
        };
        // SAFETY: this shard has no owner.
        let armed = match unsafe { self.shards.insert(self.others(), at, entry, now, count) } {
            Ok(armed) => armed,
            Err(refused) => {
                refuse(refused);
                return gone;
            }
        };
        if self.jumps {
            let now = self.at_least();
            if at <= now {
                self.fire_due(now);
            }
        } else if armed.first {
            self.limit_timer_sleep(self.others(), at);
        }
        Alarm { number: armed.number, own: None }
    }

    /// Takes back what is nobody's own.
    pub(super) fn disarm(&self, number: u64) -> bool {
        // Not even a lock for what never was in a shard.
        // SAFETY: this shard has no owner.
        let entry = if number == 0 { None } else { unsafe { self.shards.remove(self.others(), number) } };
        if let Some(FiredEntry::Request(_)) = entry {
            self.requests.fetch_sub(1, Ordering::Relaxed);
        }
        entry.is_some()
    }
}

/// Asks a clock of the user's. There is nothing to go by if it panics.
#[cold]
pub(super) fn ask(clock: &dyn Clock) -> Instant {
    callback::call(callback::CLOCK, || clock.now()).unwrap_or_else(|payload| {
        report::die(&format_args!("the clock of its runtime has panicked: {}", report::message_of(&*payload)))
    })
}
