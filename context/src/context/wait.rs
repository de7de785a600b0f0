//! One wait of a context, from its beginning to its cause: the slot and its exchanges. The head of [`super`] has the steps, the race
//! and the invariants.
//!
//! | the slot says | and becomes | by |
//! |---|---|---|
//! | idle, or settled | (new ticket, waiting) | the stack's own code: [`begin`](Context::begin), a plain store (C2) |
//! | (ticket, waiting) | (ticket, cause) | any holder of the ticket: [`settle`](Context::settle); the stack's own code: [`withdraw`](Context::withdraw) |
//! | (ticket, waiting) | (ticket, chosen) | any holder of the ticket: [`choose`](Context::choose). From here on this thread alone ends the wait |
//! | (ticket, chosen) | (ticket, woken) | the thread that has chosen: [`settle_chosen`](Context::settle_chosen), a plain store |
//! | (ticket, waiting) | (ticket, held), and back | a thread that reads the wait's edge ([`edge`](super::edge)); a thread that would settle it waits for that |
//! | (ticket, waiting) | (ticket, woken) | the stack's own code, if no other thread has the ticket: [`abandon`](Context::abandon), a plain store |

use std::time::Instant;

use super::{CHOSEN, Cause, Context, HELD, Reason, STATE, Ticket, WAITING};
use crate::shim::atomic::Ordering;
use crate::shim::mutant;

impl Context {
    /// Begins a wait: from here on the ticket can be used to wake this context.
    ///
    /// # Safety
    ///
    /// C2, C4.
    #[inline(always)]
    pub unsafe fn begin(&self, reason: Reason, target: *mut ()) -> Ticket {
        // C2: no other code stores here while the slot is settled.
        let ticket = (self.slot.load(Ordering::Relaxed) | STATE) + 1;
        self.reason.store(reason as u8, Ordering::Relaxed);
        self.target.store(target, Ordering::Relaxed);
        self.parked.store(cfg!(mutant = "parked_as_begun"), Ordering::Relaxed);
        let order = mutant!("begun_relaxed", Ordering::Relaxed, Ordering::Release);
        // The waker gets the ticket through a lock, which orders this store before its exchange. A thread that only looks finds the context not parked.
        self.slot.store(ticket | WAITING, order);
        Ticket(ticket)
    }

    /// Withdraws a wait whose ticket was given to no other thread, or is out of every list again.
    ///
    /// # Safety
    ///
    /// C2: on the context's own stack, instead of [`park`](Self::park), and `ticket` is of the wait that was begun last: an older one
    /// would come a second time.
    #[inline]
    pub unsafe fn abandon(&self, ticket: Ticket) {
        self.reason.store(Reason::None as u8, Ordering::Relaxed);
        self.slot.store(ticket.0 | Cause::Woken as u64, Ordering::Relaxed);
    }

    /// Withdraws a wait whose ticket was given away, unless another thread has settled or chosen it. True: the wait is over, and is not
    /// to be parked. Called by the stack's own code.
    pub fn withdraw(&self, ticket: Ticket) -> bool {
        let withdrawn = self.settle(ticket, Cause::Woken);
        if withdrawn {
            self.reason.store(Reason::None as u8, Ordering::Relaxed);
        }
        withdrawn
    }

    /// Ends the current wait, if it is one that a cancel may end. Called by the stack's owner, on its
    /// thread, while the stack is left or about to be: no other wait begins here meanwhile. True: the owner makes the
    /// context runnable.
    pub fn cancel_wait(&self) -> bool {
        let (reason, _) = self.waits_for();
        if !reason.is_cancellable() {
            return false;
        }
        let slot = self.slot.load(Ordering::Relaxed);
        matches!(slot & STATE, WAITING | HELD) && self.settle(Ticket(slot & !STATE), Cause::Cancelled)
    }

    /// Ends the current wait, whatever its reason, because nothing else can. Called by the thread that this context waits
    /// on. True: the owner makes the context runnable.
    pub fn end_circular_wait(&self) -> bool {
        let slot = self.slot.load(Ordering::Relaxed);
        matches!(slot & STATE, WAITING | HELD) && self.settle(Ticket(slot & !STATE), Cause::Circular)
    }

    /// The ticket of the wait that was begun last. To other threads it may be that of an earlier or later wait.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.slot.load(Ordering::Relaxed) & !STATE)
    }

    /// Whether the wait that was begun is not settled yet.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        matches!(self.slot.load(Ordering::Acquire) & STATE, WAITING | HELD | CHOSEN)
    }

    /// Whether it waits, and each thread that may end the wait knows of it: a snapshot. A caller that gets true finds the wait there, unless it is
    /// over by then.
    pub fn is_parked(&self) -> bool {
        self.is_waiting() && self.parked.load(Ordering::Acquire)
    }

    /// Why the last wait ended. Meaningful only when it has.
    #[inline(always)]
    pub fn cause(&self) -> Cause {
        match self.slot.load(Ordering::Acquire) & STATE {
            3 => Cause::TimedOut,
            4 => Cause::Cancelled,
            5 => Cause::Circular,
            _ => Cause::Woken,
        }
    }

    /// Settles the wait that `ticket` names; false if it was settled before. The owner's `unpark` calls this, and makes
    /// the context runnable if it won.
    #[inline(always)]
    pub fn settle(&self, ticket: Ticket, cause: Cause) -> bool {
        mutant!("settle_by_store", {
            let open = self.slot.load(Ordering::Acquire) == ticket.0 | WAITING;
            self.slot.store(ticket.0 | cause as u64, Ordering::Release);
            return open;
        });
        let order = mutant!("settle_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        match self.slot.compare_exchange(
            ticket.0 | WAITING,
            ticket.0 | cause as u64,
            order,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            Err(_) if cfg!(mutant = "settle_ignores_hold") => false,
            Err(seen) => seen == ticket.0 | HELD && self.settle_held(ticket, cause as u64),
        }
    }

    /// Chooses the wait that `ticket` names: no other thread ends it any more, and its frame stays until the caller calls
    /// [`ready`](super::ready). False: it is over, or another thread has chosen it.
    #[inline]
    pub fn choose(&self, ticket: Ticket) -> bool {
        mutant!("choose_by_store", {
            let open = self.slot.load(Ordering::Acquire) == ticket.0 | WAITING;
            self.slot.store(ticket.0 | CHOSEN, Ordering::Release);
            return open;
        });
        match self.slot.compare_exchange(
            ticket.0 | WAITING,
            ticket.0 | CHOSEN,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => true,
            Err(seen) => seen == ticket.0 | HELD && self.settle_held(ticket, CHOSEN),
        }
    }

    /// The same, but also false if a thread holds the wait. It calls nothing.
    #[inline(always)]
    pub fn choose_unheld(&self, ticket: Ticket) -> bool {
        self.slot
            .compare_exchange(ticket.0 | WAITING, ticket.0 | CHOSEN, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends a wait that was chosen. The owner's `ready` calls this, and makes the context runnable.
    ///
    /// # Safety
    ///
    /// As [`ready`](super::ready): the caller has chosen the wait that `ticket` names, and says so once.
    #[inline(always)]
    pub unsafe fn settle_chosen(&self, ticket: Ticket) {
        debug_assert_eq!(
            self.slot.load(Ordering::Relaxed),
            ticket.0 | CHOSEN,
            "only what was chosen is made ready"
        );
        // No other thread changes a chosen slot.
        self.slot.store(ticket.0 | Cause::Woken as u64, Ordering::Release);
    }

    /// Suspends until the wait that was begun last is settled, and returns the cause. To be called exactly once for every wait whose
    /// ticket was given away, unless the waiter has settled it itself; and never for a wait whose ticket was not.
    ///
    /// The switch is inlined here, and this into the public method that waits (see [`crate::switch`] for the reason).
    ///
    /// # Safety
    ///
    /// Called on the context's own stack, after [`begin`](Self::begin).
    #[inline(always)]
    pub unsafe fn park(&self, deadline: Option<Instant>) -> Cause {
        let order = mutant!("parked_relaxed", Ordering::Relaxed, Ordering::Release);
        // Release: a thread that sees this finds what the context waits for.
        self.parked.store(true, order);
        loop {
            #[cfg(mutant = "settled_skips_prepare")]
            if !self.is_waiting() {
                break;
            }
            // Also if the wait is settled already: a coroutine is then in a queue, or is about to be, and leaves
            // it only by being found there, or by being entered.
            // SAFETY: we are on this context's stack, by this function's contract.
            let next = unsafe { (self.table.prepare)(self, deadline) };
            if let Some(next) = next {
                // SAFETY: F2 by this function's contract.
                unsafe { self.switch.leave(Some(next)) };
                // SAFETY: as above; the stack was entered again.
                unsafe { (self.table.finish)(self) };
            }
            if !self.is_waiting() {
                break;
            }
        }
        self.reason.store(Reason::None as u8, Ordering::Relaxed);
        // For `user_code`.
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        self.parked.store(false, Ordering::Relaxed);
        self.cause()
    }

    /// Gives up the wait that was begun last: its thread exits inside it. Called by the stack's own code, whichever stack that runs on now.
    pub fn forsake(&self) {
        self.settle(self.ticket(), Cause::Cancelled);
        self.parked.store(false, Ordering::Relaxed);
    }

    /// The same, but the wait ends with [`Cause::TimedOut`] at `at` on the clock of this context, if nothing else has ended it
    /// before. When it returns no timer knows of the wait. Without `at` it is [`park`](Self::park).
    ///
    /// # Safety
    ///
    /// As [`park`](Self::park); the ticket is of the wait that was begun.
    #[inline(always)]
    pub unsafe fn park_until(&self, ticket: Ticket, at: Option<Instant>) -> Cause {
        // SAFETY: we are on this context's stack, and it is here until the alarm was taken back, below; nothing in between
        // unwinds.
        let alarm = at.map(|at| unsafe { (self.table.arm)(self, ticket, at) });
        // SAFETY: by contract.
        let cause = unsafe { self.park(alarm.as_ref().and_then(|alarm| alarm.own)) };
        if let Some(alarm) = alarm {
            // SAFETY: as above.
            unsafe { (self.table.disarm)(self, alarm) };
        }
        cause
    }
}
