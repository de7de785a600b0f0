//! Deadlines: what is to happen when a time has come. One [`Deadlines`] per runtime, on the runtime's clock.
//!
//! # Vocabulary
//!
//! * **entry**: an instant and what is due then: a wait to be ended with [`Cause::TimedOut`], or a request to be aborted, since its own
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
use std::ptr::{self, NonNull};
use std::sync::Weak;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, MonotonicClock, deadline_after};
use forebear_context::context::{Alarm, Cause, Context, Ticket};
use forebear_context::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::{Arc, Mutex, time};

use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::shared::driven::Driven;
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::stack::coroutine;
use crate::state::alarms::{Shards, Standing};
use crate::state::due::Due;
use crate::state::estimated_clock;

mod firing;
mod inner;
mod keeping;
#[cfg(test)]
mod tests;

use self::firing::{FiredEntry, give_up};
use self::inner::{Inner, Limits, Thread, ask};
use self::keeping::GRACE;
pub(crate) use self::keeping::wake_exactly;

/// See the module head.
pub(crate) struct Deadlines(Arc<Inner>);

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
            let inner: Weak<Inner> = inner.clone();
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
            Inner {
                clock,
                told: AtomicU64::new(0),
                first_told,
                jumps,
                by_workers,
                estimates,
                name: format!("{runtime} timer"),
                shards: Shards::new(shards, time::now(), by_workers.then_some(GRACE))
                    .prompt_from(shards - 1 - owners),
                thread: Mutex::new(Thread { handle: None, subscription }),
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

    /// Whether its workers may estimate what time it is ([`crate::state::estimated_clock`]).
    pub(crate) fn estimates(&self) -> bool {
        self.0.estimates
    }

    /// The instant `timeout` from now, or very soon after that; `None` if it is too far off to be told, which means never.
    pub(crate) fn after(&self, timeout: Duration) -> Option<Instant> {
        match fiber::get().and_then(Fiber::worker_record) {
            Some(worker) if ptr::eq(&worker.shared().deadlines, self) => self.after_on(worker, timeout),
            _ => deadline_after(self.now(), timeout),
        }
    }

    /// The same on a worker of its runtime.
    pub(crate) fn after_on(&self, worker: &WorkerRecord, timeout: Duration) -> Option<Instant> {
        let now = match timeout < estimated_clock::SHORT {
            // None, perhaps: then it is over when it begins.
            true => self.now(),
            false => worker.estimated_clock.now(estimated_clock::ticks, || self.now()),
        };
        deadline_after(now, timeout)
    }

    /// Sees to it that the wait which `ticket` names ends with [`Cause::TimedOut`] at `at`, or before this returns if that
    /// is past, unless it has ended otherwise.
    ///
    /// # Safety
    ///
    /// T2: the context stays valid until the answer was given to [`disarm`](Self::disarm) and that has returned.
    #[inline]
    pub(crate) unsafe fn arm(&self, at: Instant, context: NonNull<Context>, ticket: Ticket) -> Alarm {
        // SAFETY: by contract.
        let waits = unsafe { context.as_ref() };
        if let Some(worker) = self.0.own(waits) {
            return self.0.arm_own(worker, at, context, ticket);
        }
        let stays = coroutine::is_coroutines(waits);
        self.0.arm(
            at,
            if stays { FiredEntry::Coroutine(context, ticket) } else { FiredEntry::Wait(context, ticket) },
            || (),
        )
    }

    /// The same for a wait of a coroutine of that worker, if the worker keeps its time. Its alarm may have stayed from an earlier one, and do
    /// for this.
    ///
    /// # Safety
    ///
    /// As [`arm`](Self::arm); on the worker's thread, and this is the worker's runtime.
    #[inline(always)]
    pub(crate) unsafe fn arm_own(
        &self,
        worker: &WorkerRecord,
        at: Instant,
        context: &Context,
        ticket: Ticket,
    ) -> Option<Alarm> {
        if !self.0.by_workers {
            return None;
        }
        let context = NonNull::from(context);
        // SAFETY: by contract. The entry is as in `arm`.
        let again = unsafe {
            let standing = coroutine::alarm_of(context);
            self.0
                .shards
                .arm_again(worker.index, standing.as_ref(), at, || FiredEntry::Own(context, ticket, at))
        };
        Some(match again {
            Some(number) => {
                worker.note_alarm();
                Alarm { number, own: None }
            }
            None => self.0.arm_own(worker, at, context, ticket),
        })
    }

    /// Takes back the alarm of a coroutine of that worker: it stays, for the coroutine's next wait. Answers whether it had not fired.
    ///
    /// # Safety
    ///
    /// On the worker's thread, and this is the worker's runtime.
    #[inline(always)]
    pub(crate) unsafe fn put_to_rest(&self, worker: &WorkerRecord, context: &Context, alarm: Alarm) -> bool {
        if !self.0.by_workers || alarm.number == 0 {
            return self.disarm(context, alarm);
        }
        // SAFETY: by contract.
        unsafe {
            let standing = coroutine::alarm_of(NonNull::from(context));
            self.0.shards.put_to_rest(worker.index, standing.as_ref(), alarm.number)
        }
    }

    /// A coroutine of that worker goes, and its alarm with it.
    ///
    /// # Safety
    ///
    /// On the worker's thread, and this is the worker's runtime.
    #[inline]
    pub(crate) unsafe fn dismiss(&self, worker: &WorkerRecord, standing: &Standing) {
        if standing.is_some() {
            // SAFETY: by contract.
            unsafe { self.0.shards.dismiss(worker.index, standing) };
        }
    }

    /// Sees to it that the request's deadline comes at `at`, or before this returns if that is past. See [`limit_comes`](crate::cancel::limit_comes).
    /// Answers the entry's number. If it is the first request that is armed, `first` is called before this returns and before
    /// another is armed; it takes no locks.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_request(
        &self,
        at: Instant,
        header: NonNull<Header>,
        first: impl FnOnce(),
    ) -> u64 {
        self.0.arm(at, FiredEntry::Request(header), first).number
    }

    /// The same for the deadline that the request has in its side block, which gets the entry's number: by the maker before anybody else knows the
    /// request, or by its finisher. A worker of this runtime keeps it, in a shard of its own: whether it does.
    ///
    /// # Safety
    ///
    /// As [`arm_request`](Self::arm_request).
    #[inline]
    pub(crate) unsafe fn arm_due(&self, header: NonNull<Header>, due: &Due, first: impl Fn() + Copy) -> bool {
        match self.0.arming_worker() {
            Some(worker) => {
                due.set_wheel(worker.index as u32 + 1);
                due.armed(self.0.arm_limit(worker, due.at(), header, first));
                !self.is_unattended()
            }
            None => {
                due.set_wheel(0);
                // SAFETY: by contract.
                due.armed(unsafe { self.arm_request(due.at(), header, first) });
                false
            }
        }
    }

    /// Takes back what [`arm_due`](Self::arm_due) has armed. True: it had not fired, and the link is the caller's again.
    pub(crate) fn disarm_due(&self, header: NonNull<Header>, due: &Due) -> bool {
        match due.wheel() {
            _ if due.alarm() == 0 => false,
            0 => self.disarm_request(due.alarm()),
            worker => self.0.disarm_limit(worker as usize - 1, due.alarm(), header),
        }
    }

    /// The same if the worker that calls keeps it; else false.
    #[inline]
    pub(crate) fn disarm_due_here(&self, header: NonNull<Header>, due: &Due) -> bool {
        match due.wheel() {
            0 => false,
            _ if due.alarm() == 0 => false,
            worker => self.0.disarm_limit_here(worker as usize - 1, due.alarm(), header),
        }
    }

    /// A worker is about to sleep, or has long been told that there are deadlines: if none of its own is left, it is not counted any more.
    #[inline]
    pub(crate) fn settle_limits(&self, worker: usize) {
        self.0.settle_own_limits(worker);
    }

    /// Sees to it that the request, which has started, is aborted with [`Expired`](forebear_context::error::CancelReason::Expired) at `at`, or before this returns if that
    /// is past.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_expiry(&self, at: Instant, header: NonNull<Header>) -> u64 {
        self.0.arm(at, FiredEntry::Expiry(header), || ()).number
    }

    /// Takes a request's entry back by its number. True: it had not fired, and the link is the caller's again.
    pub(crate) fn disarm_request(&self, number: u64) -> bool {
        self.0.disarm(number)
    }

    /// Whether any request is armed.
    pub(crate) fn has_requests(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) != 0
    }

    /// Takes a wait's entry back. When this returns the timer has done with the context and never touches it again. True: it had
    /// not fired.
    #[cold]
    #[inline(never)]
    pub(crate) fn disarm(&self, context: &Context, alarm: Alarm) -> bool {
        match self.0.own(context) {
            // SAFETY: a coroutine's alarm is taken back on its worker's thread.
            Some(worker) if alarm.number != 0 => unsafe {
                let standing = coroutine::alarm_of(NonNull::from(context));
                self.0.shards.put_to_rest(worker.index, standing.as_ref(), alarm.number)
            },
            _ => self.0.disarm(alarm.number),
        }
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
        let Thread { handle, subscription } = std::mem::take(&mut *self.0.lock_thread());
        drop(subscription);
        requests.into_iter().for_each(give_up);
        if let Some(thread) = handle {
            // It has no panics of its own to tell of: it aborts.
            let _ = thread.join();
        }
    }

    /// How the waiter on this thread is to wait until `at`: with an entry, or by itself until the system's time answered.
    ///
    /// # Safety
    ///
    /// As [`arm`](Self::arm); on the context's own stack.
    #[inline(always)]
    unsafe fn keep_for(&self, at: Instant, context: &Context, ticket: Ticket) -> Alarm {
        let foreign = fiber::get().is_none_or(|fiber| !fiber.has_worker());
        if foreign && self.0.clock.is_none() {
            let left = at.saturating_duration_since(time::now());
            Alarm { number: 0, own: deadline_after(time::now(), left) }
        } else {
            // SAFETY: by contract.
            unsafe { self.arm(at, NonNull::from(context), ticket) }
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

/// Sees to it that the wait ends at `at`, by an entry or by the thread itself, and that a runtime without threads has its time pass.
///
/// # Safety
///
/// As [`Deadlines::arm`]; on the context's own stack.
#[cold]
pub(crate) unsafe fn keep(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    at: Instant,
    context: &Context,
    ticket: Ticket,
) -> Alarm {
    // SAFETY: by contract.
    let kept = unsafe { deadlines.keep_for(at, context, ticket) };
    if let Some(driven) = driven {
        driven.deadline_came();
    }
    kept
}

/// Parks the context until the wait that `ticket` names is settled, at the latest at `at` on the clock of `deadlines`, and
/// answers why it goes on. When it returns no timer knows of the wait. `driven` is the runtime's record of its drivers, if it
/// has no threads.
///
/// The one way to wait with a time-out, for requests and for foreign threads. To be inlined into the public method that
/// waits, as [`Context::park`] is; without `at` it is that and nothing more.
///
/// # Safety
///
/// As [`Context::park`]. The record of the runtime stays until this returns.
#[inline(always)]
pub(crate) unsafe fn park_until(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    context: &Context,
    ticket: Ticket,
    at: Option<Instant>,
) -> Cause {
    // SAFETY: T2: this context is here at least until `disarm` has returned, below; nothing in between unwinds.
    let kept = at.map(|at| unsafe { keep(deadlines, driven, at, context, ticket) });
    // SAFETY: by contract.
    let cause = unsafe { context.park(kept.as_ref().and_then(|alarm| alarm.own)) };
    if let Some(alarm) = kept {
        deadlines.disarm(context, alarm);
    }
    cause
}
