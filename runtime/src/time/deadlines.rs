//! Deadlines: what is to happen at a given time. One [`Deadlines`] per runtime, on the runtime's clock.
//!
//! # Vocabulary
//!
//! * **entry**: an instant and what is due then. Either a wait is ended with [`TimedOut`](forebear_context::context::Cause::TimedOut), or a request is aborted, since its own
//!   deadline has passed or one of its timers has expired ([`crate::api::expiry`]).
//! * **arm**, **disarm**: to put an entry in, to take it back.
//! * **fire**: to take out what is due, and do it. Never runs user code.
//! * **timer thread**: the thread that fires.
//! * **shards**: where entries are ([`crate::state::alarms`]), each behind a lock of its own. Each worker has a timing wheel for its waits, and one for
//!   the deadlines of requests that it makes. One wheel has all other entries, such as those of a coroutine that waits by the clock of another
//!   runtime. A runtime whose clock jumps has a single shard. Entries of one shard that are due at one instant come out in order of arming. Arming and
//!   disarming take the same time however many are armed.
//!
//! # Which thread keeps the time
//!
//! | clock | of a coroutine's wait | of a request | of a foreign thread's wait |
//! |---|---|---|---|
//! | the system's | its worker (`schedule/worker/alarm.rs`), and the timer thread if the worker is late | the timer thread | that thread, which blocks until then at most |
//! | a user's that moves by itself | the timer thread | the same | the same |
//! | a user's that stands still between jumps | the thread that moves it, before the move returns | the same | the same |
//!
//! When a coroutine's alarm is disarmed, its entry stays in the worker's wheel for the coroutine's next wait ([`crate::state::alarms`]). It is removed
//! when the coroutine is dismantled.
//!
//! The deadline of a request that a worker makes lies in a wheel that the worker owns, since most such requests end on that worker long before
//! they are due. The timer thread fires due entries of that wheel without delay, since the worker may be computing. The last entry that was disarmed stays
//! for the next request. A thread that disarms an entry of another worker pays for a fence of all threads. So a worker whose deadlines other threads
//! often disarm arms them in the common wheel.
//!
//! A coroutine continues only on its worker, so no other thread can wake it sooner than the worker itself. The
//! timer thread gives the worker [`GRACE`]; a runtime without threads of its own gets none, since its workers are driven only now and then. The timer thread
//! starts with the first entry, and sleeps until the earliest is due, to the nanosecond as far as the system can. It is notified when an earlier entry is
//! armed, but not when one is disarmed: then it wakes at most once for all disarmed entries of a shard. [`Clock::subscribe`] tells which kind
//! a clock is. A clock that jumps has no timer thread, so a test that moves its clock knows that the move has woken all that was
//! due. If the system refuses the thread, the next caller that arms the earliest entry of a shard tries again. Meanwhile workers that have nothing to do
//! keep the time ([`before_sleep`](Deadlines::before_sleep)): entries may fire late under load, and none is lost.
//!
//! # The races
//!
//! *The timer against the waker.* Both settle the wait by its ticket. One wins, and makes the context ready, once. The
//! other is refused ([`forebear_context::context`]). The wait may be settled before the waiter has parked: the waiter parks all the same, and
//! `prepare` finds the wait settled.
//!
//! *The timer against a waiter that leaves.* A foreign context's memory is freed with its thread, and the next wait of any
//! context is nothing to this timer. So the timer holds the shard's lock from taking the entry out until the wait is ended, and
//! disarming takes that lock. Either it finds the entry, and no other thread will; or the entry has been taken out, and
//! the unpark is over. After a disarm, whatever it returns, the timer no longer refers to the waiter.
//!
//! A coroutine's memory stays, and a ticket belongs to one wait. So a coroutine whose wait timed out need not take the
//! lock. Its entry is out, and the timer can only hand the coroutine to its worker.
//!
//! *Arming against a jump.* A user's clock is user code, so no thread calls it after it has begun a wait or while it holds a lock
//! ([`crate::record::callback`]). Instead the runtime keeps the last time that the clock has reported, and a jump stores its time before it fires, under the
//! lock. A thread that arms on a clock that jumps reads the kept time once more after the entry is in. Either the jump finds the entry, or it had the lock
//! earlier, and the thread reads the new time. The timer thread reads a clock that moves by itself, and finds an entry that was already due.
//!
//! *Arming against firing.* A thread that arms has read the clock before it takes the lock, and others may have fired later instants
//! meanwhile. Then the entry is late: it comes out before all later entries, behind those that were late already. On a clock that moves by
//! itself only the thread that arms the earliest entry of its shard reads the clock. Any other entry is behind one that the timer
//! thread waits for, and comes out with it if it is past.
//!
//! *Arming against the timer thread's sleep.* [`crate::state::alarms`] has the argument.
//!
//! *A request's deadline, or timer, against its end.* An abort takes other locks, and the thread that ends a request disarms, so no abort runs under a
//! shard's lock. A request's entry is taken out under the lock of its shard, and fired without it. The entry owns a link, so the
//! header stays. The request's word decides whether anything is left to abort ([`crate::state::due`]).
//!
//! # The end
//!
//! `close` runs after the workers have left and before the stacks are unmapped. What is still armed then belongs to foreign
//! threads, since no coroutine waits any more. Their waits end at once: timed out, or cancelled if they wait only for a time, which has
//! not come. The same happens to entries that are armed afterwards. Links of requests are released, and the timer thread is joined. A jump of the clock that
//! is under way may still call, and finds nothing.
//!
//! # Invariants
//!
//! * **T1** An entry is in a shard, or is being fired by the thread that took it out, or is over.
//! * **T2** The context of a wait's entry is valid until `disarm` has returned for it, or it is a coroutine's, whose memory stays until after
//!   `close`.
//! * **T3** A wait's entry is taken out and fired under one hold of its shard's lock; several are fired together before it is given up.
//! * **T4** A request's entry owns a link of its header. The thread that takes the entry out owns the link.
//! * **T5** Under a shard's lock only these are called: `unpark`, the waking of workers, what raises attention words, and the system's clock. No
//!   thread that holds one of `unpark`'s own locks (a foreign context's, a parker's) takes a shard's lock.

use std::any::TypeId;
use std::fmt;
use std::sync::Weak;
use std::time::Instant;

use forebear_context::clock::{Clock, MonotonicClock};
use forebear_context::shim::{Arc, time};

use crate::shared::deadlines::{Deadlines, DeadlinesRecord, FiredEntry, TimerThread};
use crate::state::alarms::Shards;

mod entries;
mod firing;
mod keeping;
mod requests;
#[cfg(test)]
mod tests;
mod waits;

use self::entries::ask;
use self::firing::give_up;
use self::keeping::GRACE;
pub(crate) use self::keeping::{pass_time, wake_exactly};
pub(crate) use self::waits::{keep, park_until};

/// What the deadlines of a runtime go by.
#[derive(Clone, Debug, Default)]
pub(crate) enum Time {
    /// The system's clock; a worker mostly estimates what it shows.
    #[default]
    Estimated,
    /// The system's clock, read each time: what a [`MonotonicClock`] that the user has given asks for. It is no code of the user's.
    Read,
    /// A clock of the user's.
    User(Arc<dyn Clock>),
}

impl Time {
    /// By this clock of the user's.
    pub(crate) fn by<C: Clock + 'static>(clock: C) -> Time {
        if TypeId::of::<C>() == TypeId::of::<MonotonicClock>() {
            Time::Read
        } else {
            Time::User(Arc::new(clock))
        }
    }
}

impl Deadlines {
    /// Nothing armed, by this time, for the runtime of that name with so many workers, which have `threads` of their own or not.
    pub(crate) fn new(time: Time, runtime: &str, workers: usize, threads: bool) -> Deadlines {
        let estimates = threads && matches!(time, Time::Estimated);
        let clock = match time {
            Time::Estimated | Time::Read => None,
            Time::User(clock) => Some(clock),
        };
        let first_read = clock.as_deref().map_or_else(time::now, ask);
        let made = Deadlines::of(Arc::new_cyclic(|inner| {
            let inner: Weak<DeadlinesRecord> = inner.clone();
            let jump = move |now| {
                // Not there yet, or no more: then nothing is armed.
                if let Some(inner) = inner.upgrade() {
                    inner.note_reading(now);
                    inner.fire_due(now);
                }
            };
            let subscription = clock.as_ref().and_then(|clock| clock.subscribe(Box::new(jump)));
            let jumps = subscription.is_some();
            // Workers read the time inside waits, where user code must not run.
            let by_workers = threads && clock.is_none();
            let owners = if by_workers { workers.max(1) } else { 0 };
            // The waits of each worker, the requests of each, and all others.
            let shards = if jumps { 1 } else { workers.max(1) + owners + 1 };
            let prompt = shards - 1 - owners;
            let shards = Shards::new(shards, time::now(), by_workers.then_some(GRACE)).prompt_from(prompt);
            let name = format!("{runtime} timer");
            DeadlinesRecord::new(clock, first_read, subscription, estimates, name, shards, owners)
        }));
        // So that what is past already is known to be.
        made.now();
        made
    }

    /// The time on the runtime's clock.
    pub(crate) fn now(&self) -> Instant {
        self.record().now()
    }

    /// Fires all that is due at `now`, in order. On any thread.
    pub(crate) fn fire_due(&self, now: Instant) {
        self.record().fire_due(now);
    }

    /// How many entries there are.
    pub(crate) fn armed(&self) -> usize {
        self.record().shards().armed()
    }

    /// When the earliest entry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.record().shards().earliest()
    }

    /// The end; see the module head. Idempotent.
    pub(crate) fn close(&self) {
        let mut requests = Vec::new();
        self.record().forget_requests();
        self.record().shards().close(|entry| match entry {
            FiredEntry::Wait(..) | FiredEntry::Coroutine(..) | FiredEntry::Own(..) | FiredEntry::Rests => {
                give_up(entry)
            }
            FiredEntry::Request(_) | FiredEntry::Limit(..) | FiredEntry::Expiry(_) => requests.push(entry),
        });
        let TimerThread { handle, subscription } = std::mem::take(&mut *self.record().lock_thread());
        drop(subscription);
        requests.into_iter().for_each(give_up);
        if let Some(thread) = handle {
            // It has no panics of its own to tell of: it aborts.
            let _ = thread.join();
        }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines")
            .field("clock", self.record().clock().unwrap_or(&MonotonicClock))
            .field("armed", &self.record().shards().armed())
            .field("next", &self.next())
            .field("sleep", &self.record().shards().sleep())
            .finish_non_exhaustive()
    }
}
