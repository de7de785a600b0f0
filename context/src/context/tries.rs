//! How often a stack tries to take one lock before others of its thread get a turn.
//!
//! A stack that polls under a contended lock never waits for long: it takes the lock again, or is woken for it. So
//! unstarted requests of its worker would never start, although the stack may be polling for one of them. Therefore a
//! stack *gives way* if it has tried [`TRIES`] times to take one lock and has waited for nothing else meanwhile. It
//! then runs others first, as if it had yielded.

use std::cell::Cell;

use super::{Context, Ticket};

/// After so many tries in a turn a stack gives way.
pub const TRIES: u32 = 64;

/// The tries of one stack.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// The address of the lock.
    lock: Cell<usize>,
    /// The slot as it was at the last try: another wait has another ticket.
    slot: Cell<u64>,
    /// How many are left of the turn.
    left: Cell<u32>,
}

impl Context {
    /// Counts a try to take the contended lock at this address; gives way if it is the last of a turn.
    ///
    /// Suspends, on a stack that can, outside of `no_suspend` regions.
    ///
    /// # Safety
    ///
    /// On the context's own stack, which has not begun a wait.
    #[inline]
    pub unsafe fn try_again(&self, lock: usize) {
        let (tries, slot) = (&self.tries, self.ticket().0);
        if tries.slot.get() != slot || tries.lock.get() != lock {
            tries.slot.set(slot);
            tries.lock.set(lock);
            tries.left.set(TRIES);
        }
        tries.left.set(tries.left.get() - 1);
        if tries.left.get() == 0 {
            tries.left.set(TRIES);
            // SAFETY: by contract.
            _ = unsafe { self.give_way() };
        }
    }

    /// A wait for the lock that was tried last has begun, under this ticket: it is part of the turn.
    #[inline]
    pub fn wait_to_try_again(&self, ticket: Ticket) {
        self.tries.slot.set(ticket.0);
    }

    /// Lets others that are ready on this thread go first, and one that has not started. Returns whether it did.
    ///
    /// Suspends, on a stack that can, outside of `no_suspend` regions.
    ///
    /// # Safety
    ///
    /// As [`try_again`](Self::try_again).
    #[cold]
    #[inline(never)]
    pub unsafe fn give_way(&self) -> bool {
        if self.no_suspend.get() != 0 {
            return false;
        }
        // SAFETY: the table is this context's; by contract.
        if let Some(next) = unsafe { (self.table.give_way)(self) } {
            // SAFETY: F2: we are on this stack, and the owner has made it ready to be entered again.
            unsafe { self.switch.leave(Some(next)) };
            return true;
        }
        false
    }
}
