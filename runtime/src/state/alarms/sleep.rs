//! The timer thread's sleep, and how it is notified.
//!
//! # The race
//!
//! A thread arms an entry that is due before all others, and the timer thread goes to sleep without having seen it. A
//! thread that lowers a word takes the lock of the sleep afterwards. The timer thread reads all words and stores the
//! end of its sleep in one hold of that lock. So either the timer thread reads the lowered word, or the thread that
//! lowered it finds the sleep and notifies.
//!
//! # Invariant
//!
//! * **B2** While the timer thread sleeps, no word plus the grace of its shard is before the end of the sleep. The
//!   exception is a word whose writer has yet to take the lock of the sleep. (The time at which an owner last
//!   checked only rises, so at worst the timer thread wakes early.)

use std::sync::PoisonError;
use std::time::Duration;

use forebear_context::shim::mutant;
use forebear_context::shim::{Condvar, Mutex, MutexGuard};

use super::NEVER;

/// What the timer thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It will look before it sleeps, or there is no timer thread.
    Awake,
    /// Until then: nanoseconds, as in a word.
    Until(u64),
    /// Until it is notified.
    UntilTold,
}

/// See the module head.
pub(super) struct Bed {
    state: Mutex<SleepState>,
    changed: Condvar,
}

struct SleepState {
    sleep: Sleep,
    closed: bool,
}

impl Bed {
    pub(super) fn new() -> Bed {
        Bed { state: Mutex::new(SleepState { sleep: Sleep::Awake, closed: false }), changed: Condvar::new() }
    }

    /// A word was lowered to `at`, its grace included: sees to it that the timer thread does not sleep beyond. True: it did, and was told.
    pub(super) fn tell(&self, at: u64) -> bool {
        let mut state = self.lock();
        let oversleeps = match state.sleep {
            Sleep::Awake => false,
            Sleep::Until(wakes) => at < wakes && !cfg!(mutant = "only_who_sleeps_for_ever_is_told"),
            Sleep::UntilTold => true,
        };
        if oversleeps {
            // Notified once; a thread that arms before the timer thread has looked need not notify it again.
            state.sleep = Sleep::Awake;
            self.changed.notify_one();
        }
        oversleeps
    }

    /// Returns when an entry may be due by the `next` of all words, or the thread was notified. False: the end has come. `now` is called
    /// right before, under the lock.
    pub(super) fn rest(&self, next: impl FnOnce() -> u64, now: impl FnOnce() -> u64) -> bool {
        #[cfg(mutant = "words_read_before_the_lock")]
        let next = next();
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        #[cfg(not(mutant = "words_read_before_the_lock"))]
        let next = next();
        let now = now();
        if next <= now {
            return true;
        }
        state = if next == NEVER {
            state.sleep = Sleep::UntilTold;
            self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
        } else {
            state.sleep = Sleep::Until(next);
            let left = Duration::from_nanos(next - now);
            self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
        };
        state.sleep = Sleep::Awake;
        !state.closed
    }

    pub(super) fn sleep(&self) -> Sleep {
        self.lock().sleep
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The end. Idempotent.
    pub(super) fn close(&self) {
        mutant!("closed_after_it_is_told", self.changed.notify_one());
        self.lock().closed = true;
        mutant!("closed_after_it_is_told", (), self.changed.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, SleepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
