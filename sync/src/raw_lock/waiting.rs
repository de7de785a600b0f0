//! A wait for a lock, in its steps: how a newcomer comes into the line, what becomes of one that was woken, and how one leaves.
//!
//! What they are, and why none is forgotten, is told in the head of [`raw_lock`](super).

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, OwnerWait, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::hint;

use super::{COMING, Handed, LOCKED, Line, PARKED, RESERVED, RawLock, Refused, Terms, bits, took, with_bits};
use crate::lock_queue::Place;

/// So many looks before a newcomer waits.
#[cfg(not(loom))]
const LOOKS: u32 = 40;
#[cfg(loom)]
const LOOKS: u32 = 0;

/// A waiter that loses this long after its first loss, or later, reserves the lock.
pub(super) const PATIENCE: Duration = Duration::from_micros(500);
/// For so long it looks for it then.
pub(super) const RESERVATION: Duration = Duration::from_micros(50);
/// And so many times at most, whatever the clock says.
#[cfg(not(loom))]
const RESERVED_LOOKS: u32 = 4096;
#[cfg(loom)]
const RESERVED_LOOKS: u32 = 1;

/// What is left to do after [`Waiting::prepare`].
pub(super) enum Step {
    Taken,
    Park(Ticket),
    Refused(Refused),
}

/// A wait for a lock. It lies in the waiter's frame.
pub(crate) struct Waiting<'a> {
    lock: &'a RawLock,
    pub(super) context: &'a Context,
    /// What stands in the word when it has the lock: the context, or nothing.
    holder: *mut Context,
    pub(super) terms: Terms,
    place: MaybeUninit<Place<Handed>>,
    wait: MaybeUninit<OwnerWait>,
    /// It has been in the queue.
    came: bool,
    first_loss: Option<Instant>,
}

impl RawLock {
    /// A wait for it by `context`, which is the calling one.
    pub(crate) fn waiting<'a>(&'a self, context: &'a Context, terms: Terms) -> Waiting<'a> {
        Waiting {
            lock: self,
            context,
            holder: ptr::from_ref(context).cast_mut(),
            terms,
            place: MaybeUninit::uninit(),
            wait: MaybeUninit::uninit(),
            came: false,
            first_loss: None,
        }
    }

    /// The same for the raw form.
    pub(crate) fn waiting_unnamed<'a>(&'a self, context: &'a Context, terms: Terms) -> Waiting<'a> {
        Waiting { holder: ptr::null_mut(), ..self.waiting(context, terms) }
    }
}

impl Waiting<'_> {
    /// Waits until the lock is the context's. To be inlined into the public method that waits, since the switch is
    /// (see [`forebear_context::fiber`]).
    #[inline(always)]
    pub(crate) fn wait(&mut self) -> Result<(), Refused> {
        loop {
            let ticket = match self.prepare() {
                Step::Taken => return Ok(()),
                Step::Refused(refused) => return Err(refused),
                Step::Park(ticket) => ticket,
            };
            // SAFETY: on the context's own stack, after `begin`.
            let cause = unsafe { self.context.park_until(ticket, self.terms.deadline) };
            if let Some(answer) = self.woken(ticket, cause) {
                return answer;
            }
        }
    }

    /// Takes the lock, or stands in the queue.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare(&mut self) -> Step {
        let (lock, context) = (self.lock, self.context);
        if self.terms.reason.is_cancellable() && context.is_cancelled() {
            return Step::Refused(Refused::Cancelled);
        }
        if self.came {
            if self.lost() {
                return Step::Taken;
            }
        } else {
            #[allow(clippy::reversed_empty_ranges, reason = "none in a model")]
            for _ in 0..LOOKS {
                if bits(lock.word.load(Ordering::Relaxed)) & (LOCKED | PARKED) != LOCKED {
                    break;
                }
                hint::spin_loop();
            }
        }
        let mut gives_way = !self.came && self.terms.deadline.is_none() && lock.is_left_to(context);
        loop {
            if !gives_way && lock.barge(self.holder) {
                return Step::Taken;
            }
            context.about_to_wait(self.terms.of.what);
            let lock_at = NonNull::from(lock).cast();
            let node = NonNull::from(&mut self.place).cast();
            // SAFETY: both stay as long as the wait, which `self` outlives where it is.
            let wait =
                self.wait.write(unsafe { OwnerWait::new(lock_at, node, self.terms.of, self.terms.caller) });
            let ticket = context.begin_owned(self.terms.reason, wait);
            let place = if self.came {
                // SAFETY: written when it came, and out of the queue since it was woken.
                let place = unsafe { self.place.assume_init_ref() };
                place.renew(ticket);
                place.value.set(false);
                place
            } else {
                self.place.write(Place::new(context, ticket, Cell::new(false)))
            };
            if !lock.park(place, self.came, gives_way) {
                context.abandon(ticket);
                gives_way = false;
                continue;
            }
            self.came = true;
            let limited = self.terms.deadline.is_some();
            // SAFETY: its own table, on its own stack, before it parks.
            let cycle = unsafe { (context.table().wait_for_owner)(context, ticket, wait, limited) };
            return match cycle {
                Some(cycle) => {
                    lock.leave(place);
                    Step::Refused(Refused::Circular(cycle))
                }
                None => Step::Park(ticket),
            };
        }
    }

    /// Woken, and then too late: whether the lock is to be had all the same.
    fn lost(&mut self) -> bool {
        if self.lock.barge(self.holder) {
            return true;
        }
        let now = self.context.now();
        match self.first_loss {
            None => {
                self.first_loss = Some(now);
                false
            }
            Some(first) => {
                now.saturating_duration_since(first) >= PATIENCE && !self.is_in_the_way() && self.reserve(now)
            }
        }
    }

    /// Whether the holder is of this very thread: to look for the lock while it cannot go on would be in vain.
    fn is_in_the_way(&self) -> bool {
        NonNull::new(self.lock.holder().cast_mut()).is_some_and(|holder| {
            // SAFETY: its own table, on its own stack.
            unsafe { (self.context.table().shares_thread)(self.context, holder) }
        })
    }

    /// Keeps others from barging, and looks for the lock for a while. Whether it was had.
    fn reserve(&self, now: Instant) -> bool {
        let lock = self.lock;
        let was = lock.change(|word| match bits(word) & (LOCKED | RESERVED) {
            LOCKED => with_bits(word, RESERVED),
            _ => word,
        });
        match bits(was) & (LOCKED | RESERVED) {
            0 => return lock.barge(self.holder),
            LOCKED => {}
            // R3: somebody else is about to have it.
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
        match cause {
            Cause::Woken if place.value.get() => {
                took(self.holder);
                Some(Ok(()))
            }
            Cause::Woken => self.lock.come(self.holder).then_some(Ok(())),
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
                let cycle = unsafe { (self.context.table().verdict)(self.context, ticket) };
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

    /// Puts a waiter into the queue; false if the lock is free.
    fn park(&self, place: &Place<Handed>, came: bool, gives_way: bool) -> bool {
        self.line.with(|line| {
            let queue = &line.queue;
            let mut word = self.word.load(Ordering::Relaxed);
            // While PARKED stands, whoever lets go of the lock comes here first, and finds this place (R2): nothing is to be said by an
            // exchange.
            if bits(word) & PARKED == 0 {
                word = self.change(|word| match bits(word) & (LOCKED | RESERVED) {
                    0 => word,
                    _ => with_bits(word, PARKED),
                });
            }
            #[cfg(not(mutant = "park_does_not_look"))]
            if bits(word) & (LOCKED | RESERVED) == 0 {
                // R2: somebody is on the way, and sees to this place, too.
                let awaited = bits(word) & PARKED != 0;
                #[cfg(mutant = "gives_way_to_nobody")]
                let awaited = true;
                let (on, key) = line.woken.get();
                if !(gives_way && awaited && on == place.on() && key <= place.key()) {
                    return false;
                }
            }
            // SAFETY: L1; L2: the place stays in its frame until it is out.
            unsafe { if came { queue.push(place) } else { queue.enter(place) } };
            self.does_not_pass(line, place.key());
            true
        })
    }

    /// A waiter goes that was not chosen.
    fn leave(&self, place: &Place<Handed>) {
        self.line.with(|Line { queue, .. }| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
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
