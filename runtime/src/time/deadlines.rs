//! Deadlines: what is to happen when a time has come. One [`Deadlines`] per runtime, on the runtime's clock.
//!
//! # Vocabulary
//!
//! * **entry**: an instant and what is due then: a wait to be ended with [`TimedOut`](forebear_context::context::Cause::TimedOut), or a request to be aborted, since its own
//!   deadline has come or a timer of its has expired ([`crate::api::expiry`]).
//! * **arm**, **disarm**: to put an entry in, to take it back.
//! * **fire**: to take what is due out and do it. Never runs user code.
//! * **timer thread**: who fires.
//! * **shards**: where entries are ([`crate::state::alarms`]): a timing wheel for each worker's waits, one for the deadlines of requests that the
//!   worker makes, and one for whatever else
//!   comes (a coroutine that waits by the clock of another runtime than its own, too), each behind a lock of its own; a single one if the clock jumps. What is due at one instant in one shard comes out in order
//!   of arming. Arming and disarming take the same time however many are armed.
//!
//! # Who keeps the time
//!
//! | clock | of a coroutine's wait | of a request | of a foreign thread's wait |
//! |---|---|---|---|
//! | the system's | its worker (`schedule/worker/alarm.rs`), and the timer thread if that does not come to it | the timer thread | that thread, which blocks no longer than that |
//! | a user's that moves by itself | the timer thread | the same | the same |
//! | a user's that stands still between jumps | the thread that moves it, before the move returns | the same | the same |
//!
//! A coroutine's alarm stays in its worker's wheel when it is taken back, for the coroutine's next wait ([`crate::state::alarms`]); it goes when the coroutine is
//! dismantled.
//!
//! The deadline of a request that a worker makes lies in a wheel that the worker owns, since most such requests are over on that worker long before
//! they are due. What is due there the timer thread fires without delay: the worker may be computing. The last entry that was taken back stays for
//! the next request. A thread that takes back what another worker keeps pays for a fence of all threads, so a worker whose deadlines are often
//! taken back by others arms them in the wheel for all.
//!
//! A coroutine goes on where its worker is and nowhere else, so nobody can do it sooner than the worker, and nobody has what it takes nearer. The
//! timer thread gives it [`GRACE`], and none to a runtime without threads of its own, whose workers are driven now and then. It
//! is started with the first entry, and sleeps until the earliest is due, to the nanosecond as far as the system can; it is
//! told when an earlier one is armed, not when one is disarmed: then it wakes at most once for all of a shard that are gone. A clock answers by [`Clock::subscribe`] which kind
//! it is; on one that jumps there is no thread at all, so a test that moves its clock knows that what was due has been
//! woken. If the system refuses the thread, who arms next before all others of a shard tries again, and meanwhile workers that have nothing to do
//! keep the time ([`before_sleep`](Deadlines::before_sleep)): late under load, never lost.
//!
//! # The races
//!
//! *The timer against the waker.* Both settle the wait by its ticket; one wins, and makes the context ready, once. The
//! other is refused ([`forebear_context::context`]). That the wait may be settled before the waiter has parked is no
//! matter: it parks all the same, and `prepare` finds it settled.
//!
//! *The timer against the waiter that goes away.* A foreign context's memory goes with its thread, and the next wait of any
//! context is nothing for this timer. So a wait is ended while the lock is held under which its entry was taken out; and
//! disarming takes that lock. Either it finds the entry, and nobody else ever will; or the entry has been taken out, and
//! the unpark is over. After a disarm, whatever its answer, the timer no longer knows the waiter.
//!
//! A coroutine's memory stays, and a ticket is of one wait. So who was timed out on one need not ask for the lock: its entry is
//! out, and whatever the timer still does with the coroutine is to bring it to its worker.
//!
//! *Arming against a jump.* A user's clock is code of the user's, so no thread asks it that has begun a wait or holds a lock
//! ([`crate::record::callback`]). What it has told is kept instead, and a jump tells it before it fires, which takes the lock. Who arms on a clock that
//! jumps looks at what it has told once more after the entry is in: either the jump's call finds the entry, or it had the lock
//! earlier, so the new time stands there. A clock that moves by itself is asked by the timer thread, which finds what was past already.
//!
//! *Arming against firing.* Who arms has looked at the clock before it takes the lock, and others may have fired later instants
//! meanwhile. Then the entry is late: it comes out before all that is later, behind what was late already. On a clock that moves by
//! itself the clock is read only by who arms before all others of its shard; anybody else's instant is behind one that the timer
//! thread has in view, and is taken out with it if it is past.
//!
//! *Arming against the timer thread's sleep.* [`crate::state::alarms`] has the argument.
//!
//! *A request's deadline, or timer, against its end.* Aborting is too much to do under a lock: it takes other locks, and who ends a
//! request disarms. So a request's entry is taken out under the lock of its shard, and fired without it. It owns a link, hence the
//! header is there; whether anything is left to abort, the request's word decides ([`crate::state::due`]).
//!
//! # The end
//!
//! `close` comes when the workers are gone and before the stacks are unmapped. What is still armed then belongs to foreign
//! threads (no coroutine waits any more): their waits end at once, timed out, or cancelled where they are for nothing but a time, which has
//! not come; and so does what is armed afterwards. Requests are let go of. The thread is joined. A jump of the clock that is under way may still call; it finds nothing.
//!
//! # Invariants
//!
//! * **T1** An entry is in a shard, or is being fired by the thread that took it out, or is over.
//! * **T2** The context of a wait's entry is valid until `disarm` has returned for it, or it is a coroutine's, whose memory stays until after
//!   `close`.
//! * **T3** A wait's entry is taken out and fired under one hold of its shard's lock; several are fired together before it is given up.
//! * **T4** A request's entry owns a link of its header. The thread that takes the entry out owns the link.
//! * **T5** While a shard's lock is held nothing is called but `unpark`, whose own locks (a foreign context's, a parker's) are
//!   held by nobody who asks for this one, the waking of workers, what raises attention words, and the system's clock.

use std::any::TypeId;
use std::fmt;
use std::sync::Weak;
use std::time::Instant;

use forebear_context::clock::{Clock, MonotonicClock};
use forebear_context::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, time};

use crate::shared::deadlines::{Deadlines, DeadlinesRecord, FiredEntry, Limits, TimerThread};
use crate::state::alarms::Shards;
use crate::state::estimated_clock;

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
        let estimates = threads && matches!(time, Time::Estimated) && estimated_clock::may_be_used();
        let clock = match time {
            Time::Estimated | Time::Read => None,
            Time::User(clock) => Some(clock),
        };
        let first_told = clock.as_deref().map_or_else(time::now, ask);
        let made = Deadlines(Arc::new_cyclic(|inner| {
            let inner: Weak<DeadlinesRecord> = inner.clone();
            let jump = move |now| {
                // Not there yet, or no more: then nothing is armed.
                if let Some(inner) = inner.upgrade() {
                    inner.hears(now);
                    inner.fire_due(now);
                }
            };
            let subscription = clock.as_ref().and_then(|clock| clock.subscribe(Box::new(jump)));
            let jumps = subscription.is_some();
            // A worker looks in the middle of waits.
            let by_workers = threads && clock.is_none();
            let owners = if by_workers { workers.max(1) } else { 0 };
            // The waits of each worker, the requests of each, and all others.
            let shards = if jumps { 1 } else { workers.max(1) + owners + 1 };
            DeadlinesRecord {
                clock,
                told: AtomicU64::new(0),
                first_told,
                jumps,
                by_workers,
                estimates,
                name: format!("{runtime} timer"),
                shards: Shards::new(shards, time::now(), by_workers.then_some(GRACE))
                    .prompt_from(shards - 1 - owners),
                thread: Mutex::new(TimerThread { handle: None, subscription }),
                requests: AtomicUsize::new(0),
                limits: (0..owners).map(|_| Limits::default()).collect(),
                unattended: AtomicBool::new(false),
                #[cfg(test)]
                refuse_thread: AtomicBool::new(false),
            }
        }));
        // So that what is past already is known to be.
        made.now();
        made
    }

    /// The time on the runtime's clock.
    pub(crate) fn now(&self) -> Instant {
        self.0.now()
    }

    /// Fires all that is due at `now`, in order. On any thread.
    pub(crate) fn fire_due(&self, now: Instant) {
        self.0.fire_due(now);
    }

    /// How many entries there are.
    pub(crate) fn armed(&self) -> usize {
        self.0.shards.armed()
    }

    /// When the earliest entry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.shards.earliest()
    }

    /// The end; see the module head. Idempotent.
    pub(crate) fn close(&self) {
        let mut requests = Vec::new();
        self.0.requests.store(0, Ordering::Relaxed);
        self.0.shards.close(|entry| match entry {
            FiredEntry::Wait(..) | FiredEntry::Coroutine(..) | FiredEntry::Own(..) | FiredEntry::Rests => {
                give_up(entry)
            }
            FiredEntry::Request(_) | FiredEntry::Limit(..) | FiredEntry::Expiry(_) => requests.push(entry),
        });
        let TimerThread { handle, subscription } = std::mem::take(&mut *self.0.lock_thread());
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
            .field("clock", self.0.clock.as_deref().unwrap_or(&MonotonicClock))
            .field("armed", &self.0.shards.armed())
            .field("next", &self.next())
            .field("sleep", &self.0.shards.sleep())
            .finish_non_exhaustive()
    }
}
