//! A wait for a lock, in its steps: how a newcomer enters the queue, what a woken waiter does, and how a waiter leaves. The head of
//! [`raw_lock`](super) has the protocol, and why no waiter is forgotten.
//!
//! # Steps
//!
//! ```text
//!  prepare ──▶ Taken | Refused
//!     │
//!     └──▶ Park ──▶ woken ──▶ has the lock | refused: out of the queue
//!            ▲        │
//!            └── prepare_again: it has lost
//! ```
//!
//! `prepare`, `prepare_again` and `woken` are ordinary calls; only the park between them is inlined into the public method, for the reason in
//! [`forebear_context::switch`].
//!
//! # Who may touch what
//!
//! A [`Waiting`] lies in the waiter's frame, and does not move from the first `prepare` on.
//!
//! | field | written | read by others |
//! |---|---|---|
//! | `place` | when the waiter first stands in the queue; renewed with each later ticket, while it is in no queue | under the queue's lock while it stands there (L1); by the thread that has chosen it, until it has woken the waiter (L3) |
//! | `wait` | before each wait begins | by a thread that holds the wait, as the target of its edge (C4) |
//! | all else | by the waiter | never |
//!
//! Hence `place` is initialised wherever it is read: `woken`, `lost` and `prepare_again` come after the first stand.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, OwnerWait, ThreadNumber, Ticket, current};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::hint;
#[cfg(loom)]
use forebear_context::shim::mutant;

use super::{
    COMING, LOCKED, Line, LockTerms, LockWaiter, PARKED, RESERVED, RawLock, Refused, bits, holder, took,
    with_bits,
};
use crate::lock_queue::Place;

/// How often a newcomer polls a held lock before it waits, after 1, 2, 4 … pauses: for some microseconds.
#[cfg(not(any(loom, shuttle)))]
const LOOKS: u32 = 8;
/// So often one looks that was woken for it: for half a microsecond.
#[cfg(not(any(loom, shuttle)))]
const LOOKS_WOKEN: u32 = 6;
/// So often each of them looks if its thread has nothing else that is ready.
#[cfg(not(any(loom, shuttle)))]
const LOOKS_ALONE: u32 = 9;
/// After so many looks one whose thread has nothing else to do gives up the thread's time slice instead of pausing, if a woken waiter is on its way.
const LOOKS_BUSY: u32 = 3;
/// After so many looks it does so in any case, once: then the holder itself may be without a processor.
const LOOKS_LONG: u32 = 7;
/// None in a model: a look changes nothing.
#[cfg(any(loom, shuttle))]
const LOOKS: u32 = 0;
#[cfg(any(loom, shuttle))]
const LOOKS_WOKEN: u32 = 0;
/// One in a model of loom's, in which a context says when it is alone.
#[cfg(loom)]
const LOOKS_ALONE: u32 = mutant!("looks_without_end", u32::MAX, 1);
#[cfg(shuttle)]
const LOOKS_ALONE: u32 = 0;

/// So often a newcomer yields to woken waiters of its worker before it enters the queue.
pub(super) const WAYS: u32 = 8;

/// A waiter that loses this long after its first loss, or later, reserves the lock.
pub(super) const PATIENCE: Duration = Duration::from_micros(500);
/// So does one that has lost so often, however fast that went.
pub(super) const LOSSES: u32 = 4;
/// For how long it polls the lock then.
pub(super) const RESERVATION: Duration = Duration::from_micros(50);
/// And so many times at most, whatever the clock says.
#[cfg(not(loom))]
const RESERVED_LOOKS: u32 = 4096;
#[cfg(loom)]
const RESERVED_LOOKS: u32 = 1;

/// What is left to do after [`Waiting::prepare`].
pub(super) enum LockStep {
    Taken,
    Park(Ticket),
    Refused(Refused),
}

/// A wait for a lock. It lies in the waiter's frame.
pub(crate) struct Waiting<'a> {
    lock: &'a RawLock,
    pub(super) context: &'a Context,
    /// What the word contains when this waiter has the lock: its context. It is nothing for the raw form, and for a
    /// thread that no runtime knows, whose context ends with this call.
    holder: *mut Context,
    /// Of the raw form: the number of the thread that took it last, a hint.
    taken_on: Option<&'a ThreadNumber>,
    pub(super) terms: LockTerms,
    place: MaybeUninit<Place<LockWaiter>>,
    wait: MaybeUninit<OwnerWait>,
    losses: u32,
    first_loss: Option<Instant>,
}

impl RawLock {
    /// A wait for it by `context`, which is the calling one.
    pub(crate) fn waiting<'a>(&'a self, context: &'a Context, terms: LockTerms) -> Waiting<'a> {
        let is_unknown = context.is_of_unknown_thread();
        Waiting {
            lock: self,
            context,
            holder: if is_unknown { ptr::null_mut() } else { ptr::from_ref(context).cast_mut() },
            taken_on: None,
            terms,
            place: MaybeUninit::uninit(),
            wait: MaybeUninit::uninit(),
            losses: 0,
            first_loss: None,
        }
    }

    /// The same for the raw form. `taken_on` lies beside the lock, and says on which thread it was taken last: the word names no holder.
    pub(crate) fn waiting_unnamed<'a>(
        &'a self,
        context: &'a Context,
        taken_on: &'a ThreadNumber,
        terms: LockTerms,
    ) -> Waiting<'a> {
        Waiting { holder: ptr::null_mut(), taken_on: Some(taken_on), ..self.waiting(context, terms) }
    }
}

impl Waiting<'_> {
    /// Waits until the lock is the context's. To be inlined into the public method that waits, since the switch is
    /// (see [`forebear_context::switch`]).
    #[inline(always)]
    pub(crate) fn wait(&mut self) -> Result<(), Refused> {
        let mut step = self.prepare();
        loop {
            let ticket = match step {
                LockStep::Taken => return Ok(()),
                LockStep::Refused(refused) => return Err(refused),
                LockStep::Park(ticket) => ticket,
            };
            // SAFETY: on the context's own stack, after `begin`.
            let cause = unsafe { self.context.park_until(ticket, self.terms.deadline) };
            if let Some(answer) = self.woken(ticket, cause) {
                return answer;
            }
            step = self.prepare_again();
        }
    }

    /// The same with a time-out of zero: takes the lock if it is free, and enters no queue.
    #[cold]
    pub(crate) fn try_once(&mut self) -> Result<(), Refused> {
        if self.terms.reason.is_cancellable() && self.context.is_cancelled() {
            return Err(Refused::Cancelled);
        }
        if self.lock.barge(self.holder) {
            self.note_taken();
            Ok(())
        } else {
            Err(Refused::TimedOut)
        }
    }

    /// One that comes takes the lock, or stands in the queue.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare(&mut self) -> LockStep {
        let (lock, context) = (self.lock, self.context);
        if let Some(refused) = self.refused_at_once() {
            return LockStep::Refused(refused);
        }
        // SAFETY: this is the context's own stack; the wait before, if there was one, is over, and the next is begun below.
        unsafe { context.try_again(ptr::from_ref(lock).addr()) };
        if bits(lock.word.load(Ordering::Relaxed)) & (LOCKED | PARKED) == LOCKED && !self.is_in_the_way() {
            self.look_while_held(LOOKS, PARKED);
            #[cfg(mutant = "look_is_the_lock")]
            if bits(lock.word.load(Ordering::Relaxed)) & LOCKED == 0 {
                return self.taken();
            }
        }
        let mut gives_way = self.terms.deadline.is_none() && lock.is_left_to(context);
        for _ in 0..WAYS {
            // SAFETY: as above.
            if !(gives_way && lock.has_woken_as_urgent(context) && unsafe { context.give_way() }) {
                break;
            }
            gives_way = lock.is_left_to(context);
        }
        if !gives_way && lock.barge(self.holder) {
            return self.taken();
        }
        self.stand::<false>(false, gives_way).unwrap_or_else(|| self.take_or_stand(false))
    }

    /// The same for one that was woken, and has found the lock taken.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_again(&mut self) -> LockStep {
        if let Some(refused) = self.refused_at_once() {
            return LockStep::Refused(refused);
        }
        // SAFETY: as in `prepare`.
        unsafe { self.context.try_again(ptr::from_ref(self.lock).addr()) };
        if self.lost() {
            return self.taken();
        }
        self.take_or_stand(true)
    }

    /// Whether it is refused without a wait.
    #[inline(always)]
    fn refused_at_once(&mut self) -> Option<Refused> {
        if self.terms.reason.is_cancellable() && self.context.is_cancelled() {
            return Some(Refused::Cancelled);
        }
        if !holder(self.lock.word.load(Ordering::Relaxed)).is_null() {
            return None;
        }
        self.of_itself().map(Refused::Circular)
    }

    /// `was_queued`: it has been in the queue.
    #[cold]
    #[inline(never)]
    fn take_or_stand(&mut self, was_queued: bool) -> LockStep {
        loop {
            if self.lock.barge(self.holder) {
                return self.taken();
            }
            if let Some(step) = self.stand::<true>(was_queued, false) {
                return step;
            }
        }
    }

    /// Stands in the queue, unless the lock is free. `SELDOM` makes a second copy of it, so that the first is compiled into its one caller.
    #[inline(always)]
    fn stand<const SELDOM: bool>(&mut self, was_queued: bool, gives_way: bool) -> Option<LockStep> {
        let (lock, context) = (self.lock, self.context);
        if let Some(why) = context.refusal(self.terms.of.what) {
            return Some(LockStep::Refused(Refused::MustNotSuspend(why.into())));
        }
        let lock_at = NonNull::from(lock).cast();
        let node = NonNull::from(&mut self.place).cast();
        // SAFETY: the lock outlives `self`, in which the record and the node lie; `self` outlives the wait.
        let wait =
            self.wait.write(unsafe { OwnerWait::new(lock_at, node, self.terms.of, self.terms.caller) });
        // SAFETY: C2: this is the context's own stack; C4: `self` outlives the wait where it is, and nothing unwinds before it is
        // parked or taken back.
        let ticket = unsafe { context.begin_owned(self.terms.reason, wait) };
        context.wait_to_try_again(ticket);
        let place = if was_queued {
            // SAFETY: written when it came, and out of the queue since it was woken.
            let place = unsafe { self.place.assume_init_ref() };
            place.renew(ticket);
            place.value.handed.set(false);
            place
        } else {
            let stay =
                LockWaiter { holder: self.holder, handed: Cell::new(false), is_owed: Cell::new(false) };
            // SAFETY: L4: `self` lies on the context's own stack.
            self.place.write(unsafe { Place::new(context, ticket, stay) })
        };
        if !lock.park::<SELDOM>(place, was_queued, gives_way) {
            // SAFETY: C2: begun just now, and not parked; it stands in no queue.
            unsafe { context.abandon(ticket) };
            return None;
        }
        let limited = self.terms.deadline.is_some();
        // SAFETY: its own table, on its own stack, before it parks.
        let cycle = unsafe { (context.table().wait_for_owner)(context, ticket, wait, limited) };
        Some(match cycle {
            Some(cycle) => {
                lock.leave(place);
                LockStep::Refused(Refused::Circular(cycle))
            }
            None => LockStep::Park(ticket),
        })
    }

    /// It has the lock.
    fn taken(&self) -> LockStep {
        self.note_taken();
        LockStep::Taken
    }

    fn note_taken(&self) {
        match self.taken_on {
            Some(taken_on) => taken_on.set(self.context.place().get()),
            None if self.holder.is_null() => self.lock.note_held(),
            None => {}
        }
    }

    /// The cycle, if this is a wait without limit for what the thread took when no runtime knew it.
    #[cold]
    #[inline(never)]
    fn of_itself(&mut self) -> Option<Cycle> {
        let word = self.lock.word.load(Ordering::Relaxed);
        // On a worker's stack, or in a test that plays one, the thread's list belongs to another
        // context.
        let may_be = self.taken_on.is_none()
            && self.terms.deadline.is_none()
            && holder(word).is_null()
            && self.context.place().get() == 0
            && current() == Some(NonNull::from(self.context));
        if !may_be || bits(word) & LOCKED == 0 || !self.lock.is_held_unknown() {
            return None;
        }
        let (lock, node) = (NonNull::from(self.lock).cast(), NonNull::from(&mut self.place).cast());
        // SAFETY: the lock outlives `self`, in which the node lies; the record goes before this returns.
        let wait = unsafe { OwnerWait::new(lock, node, self.terms.of, self.terms.caller) };
        Some(Cycle::new([self.context.name(), wait.to_string()]))
    }

    /// The waiter was woken and found the lock taken. Answers whether it gets the lock now by
    /// polling.
    fn lost(&mut self) -> bool {
        if self.lock.barge(self.holder) {
            return true;
        }
        self.losses += 1;
        let now = self.context.now();
        let first = *self.first_loss.get_or_insert(now);
        if self.losses < LOSSES && now.saturating_duration_since(first) < PATIENCE {
            return false;
        }
        if !self.is_in_the_way() && self.reserve(now) {
            return true;
        }
        // SAFETY: written when it came, and out of the queue since it was woken.
        unsafe { self.place.assume_init_ref() }.value.is_owed.set(true);
        false
    }

    /// Polls while the lock is held and the bits `in_front` are clear: `at_least` times, and more often if nothing else can run on this thread. Each
    /// poll takes the word's cache line from the holder's core. So polls become rarer, and a holder that releases and takes the lock again is not
    /// disturbed.
    ///
    /// The system may have preempted the holder, or a thread that was woken for the lock may wait for a processor. A thread that has nothing else to
    /// do gives up its time slice to them: to the woken one soon, to the holder late, since a slice that the holder uses up is a wait of milliseconds.
    /// A worker with other requests soon suspends this one, and runs those.
    #[cold]
    #[inline(never)]
    fn look_while_held(&self, at_least: u32, in_front: usize) {
        let word = &self.lock.word;
        let is_thread = self.context.place().get() == 0;
        let mut most = at_least;
        #[cfg_attr(shuttle, allow(clippy::reversed_empty_ranges, reason = "a scenario does not look"))]
        for look in 0..LOOKS_ALONE {
            if look >= most {
                // SAFETY: its own table, on its own stack.
                if !unsafe { (self.context.table().is_alone)(self.context) } {
                    return;
                }
                most = LOOKS_ALONE;
            }
            let now = bits(word.load(Ordering::Relaxed));
            if now & (LOCKED | in_front) != LOCKED {
                return;
            }
            let is_due = look == LOOKS_LONG || look >= LOOKS_BUSY && now & COMING != 0;
            if is_due && (is_thread || look >= at_least) {
                thread::yield_now();
            } else {
                (0..1 << look).for_each(|_| hint::spin_loop());
            }
        }
    }

    /// Whether the holder belongs to this thread: it cannot continue while this thread polls. Of the raw form: whether the lock was taken on this
    /// thread. Another thread may release it all the same, and wakes this waiter then.
    fn is_in_the_way(&self) -> bool {
        if let Some(taken_on) = self.taken_on {
            let on = self.context.place().get();
            return on != 0 && on == taken_on.get();
        }
        NonNull::new(self.lock.holder().cast_mut()).is_some_and(|holder| {
            // SAFETY: its own table, on its own stack.
            unsafe { (self.context.table().shares_thread)(self.context, holder) }
        })
    }

    /// Reserves the lock, so that no other context barges, and polls it for a while. Answers
    /// whether it was acquired.
    fn reserve(&self, now: Instant) -> bool {
        let lock = self.lock;
        let was = lock.change(|word| match bits(word) & (LOCKED | RESERVED) {
            LOCKED => with_bits(word, RESERVED),
            _ => word,
        });
        match bits(was) & (LOCKED | RESERVED) {
            0 => return lock.barge(self.holder),
            LOCKED => {}
            // R3: another waiter has reserved it.
            _ => return false,
        }
        for looks in 1..=RESERVED_LOOKS {
            if self.take_reserved(false) {
                return true;
            }
            hint::spin_loop();
            if looks % 64 == 0 && self.context.now().saturating_duration_since(now) >= RESERVATION {
                break;
            }
        }
        self.take_reserved(true)
    }

    /// Takes the lock that it has reserved, if it is free; if not, and `last`, gives up the reservation.
    fn take_reserved(&self, last: bool) -> bool {
        let was = self.lock.change(|word| match bits(word) & LOCKED {
            0 => with_bits(self.holder, LOCKED | bits(word) & PARKED),
            #[cfg(not(mutant = "reservation_stays"))]
            _ if last => word.map_addr(|at| at & !RESERVED),
            _ => word,
        });
        let taken = bits(was) & LOCKED == 0;
        if taken {
            took(self.holder);
        }
        taken
    }

    /// The wait is over: `None` if the waiter has lost.
    #[cold]
    #[inline(never)]
    pub(super) fn woken(&mut self, ticket: Ticket, cause: Cause) -> Option<Result<(), Refused>> {
        // SAFETY: it stood in the queue.
        let place = unsafe { self.place.assume_init_ref() };
        if cause == Cause::Woken && place.value.handed.get() {
            took(self.holder);
            self.note_taken();
            return Some(Ok(()));
        }
        self.woken_otherwise(ticket, cause)
    }

    /// The same, if the lock was not handed over.
    #[inline(never)]
    fn woken_otherwise(&mut self, ticket: Ticket, cause: Cause) -> Option<Result<(), Refused>> {
        // SAFETY: it stood in the queue.
        let place = unsafe { self.place.assume_init_ref() };
        match cause {
            Cause::Woken => {
                if bits(self.lock.word.load(Ordering::Relaxed)) & LOCKED != 0 && !self.is_in_the_way() {
                    self.look_while_held(LOOKS_WOKEN, RESERVED);
                }
                self.lock.take_as_woken(self.holder).then(|| {
                    self.note_taken();
                    Ok(())
                })
            }
            Cause::TimedOut => {
                self.lock.leave(place);
                Some(Err(Refused::TimedOut))
            }
            Cause::Cancelled => {
                self.lock.leave(place);
                Some(Err(Refused::Cancelled))
            }
            Cause::Circular => {
                self.lock.leave(place);
                // SAFETY: its own table, on its own stack.
                let cycle = unsafe { (self.context.table().take_cycle)(self.context, ticket) };
                Some(Err(Refused::Circular(cycle.unwrap_or_else(|| Cycle::new([self.context.name()])))))
            }
        }
    }
}

impl RawLock {
    /// Whether the lock is free, but one of the thread of `context` has been woken for it, which cannot take it before this one waits.
    fn is_left_to(&self, context: &Context) -> bool {
        let on = context.place().get();
        on != 0
            && bits(self.word.load(Ordering::Relaxed)) & (LOCKED | RESERVED | PARKED) == PARKED
            && self.woken_on.load(Ordering::Relaxed) == on
    }

    /// Whether the waiter that was woken last is as urgent as `context`, or more: a hint.
    fn has_woken_as_urgent(&self, context: &Context) -> bool {
        self.woken_key.load(Ordering::Relaxed) <= context.urgency()
    }

    /// Puts a waiter into the queue; false if the lock is free.
    #[inline(always)]
    fn park<const SELDOM: bool>(&self, place: &Place<LockWaiter>, was_queued: bool, gives_way: bool) -> bool {
        self.line.with(|line| {
            let queue = &line.queue;
            let mut word = self.word.load(Ordering::Relaxed);
            // While PARKED stands, a release of the lock reads this queue, and finds this place (R2). So no exchange is needed.
            if bits(word) & PARKED == 0 {
                word = self.change(|word| match bits(word) & (LOCKED | RESERVED) {
                    0 => word,
                    _ => with_bits(word, PARKED),
                });
            }
            #[cfg(not(mutant = "park_does_not_look"))]
            if bits(word) & (LOCKED | RESERVED) == 0 {
                // R2: a waiter is on its way, and its release will find this place.
                let awaited = bits(word) & PARKED != 0;
                #[cfg(mutant = "gives_way_to_nobody")]
                let awaited = true;
                let on = self.woken_on.load(Ordering::Relaxed);
                let key = self.woken_key.load(Ordering::Relaxed);
                if !(gives_way && awaited && on == place.on() && key <= place.key()) {
                    return false;
                }
            }
            if was_queued {
                // SAFETY: L1; L2: the place stays in its frame until it is out.
                unsafe { queue.push(place) };
            } else {
                // SAFETY: L1; L2: the place stays in its frame until it is out.
                unsafe { queue.enter(place) };
            }
            self.note_waiters(queue);
            self.does_not_pass(place.key());
            true
        })
    }

    /// A waiter goes that was not chosen.
    fn leave(&self, place: &Place<LockWaiter>) {
        self.line.with(|Line { queue, .. }| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            self.note_waiters(queue);
            if queue.is_empty() {
                self.change(|word| word.map_addr(|at| at & !(PARKED | COMING)));
            }
        });
    }
}

impl std::fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("terms", &self.terms).finish_non_exhaustive()
    }
}
