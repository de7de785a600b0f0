//! The core of a set: which members have ended, and which context waits for the next.
//!
//! # The race
//!
//! A request ends while its set's owner goes to sleep. Both take the lock of the core. The end adds its number and
//! wakes the owner if the owner is registered. The owner searches for a number and registers in one hold of the lock.
//! If something else wakes a registered owner, it deregisters under that lock before it continues.
//!
//! # Invariants
//!
//! * **RS1** The lock is a leaf but for `unpark` and its locks. What stands in `waiter` is a context that waits, or is about to: it is taken
//!   out under the lock before its stack goes on to anything else.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::context::{Cause, Context, Ticket, unpark};
use forebear_context::shim::{Mutex, MutexGuard, mutant};

/// See the module head.
#[derive(Debug, Default)]
pub struct Core(Mutex<SetState>);

#[derive(Debug, Default)]
struct SetState {
    ended: VecDeque<SetPlace>,
    /// RS1.
    waiter: Option<SetWaiter>,
}

/// Which member of a set: its slot, and which of all that have had the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPlace {
    /// The slot.
    pub slot: usize,
    /// The number of the member.
    pub number: usize,
}

#[derive(Debug)]
struct SetWaiter {
    context: NonNull<Context>,
    ticket: Ticket,
    /// As what its wait ends.
    cause: Cause,
}

// SAFETY: RS1.
unsafe impl Send for SetWaiter {}

impl Core {
    fn lock(&self) -> MutexGuard<'_, SetState> {
        // Nothing that runs under it can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has ended.
    pub fn tell(&self, place: SetPlace) {
        mutant!("set_wakes_before_it_tells", {
            let waiter = self.lock().waiter.take();
            Self::wake(waiter);
            self.lock().ended.push_back(place);
            return;
        });
        let mut state = self.lock();
        state.ended.push_back(place);
        Self::wake(state.waiter.take());
    }

    /// Under the lock (RS1).
    fn wake(waiter: Option<SetWaiter>) {
        if let Some(SetWaiter { context, ticket, cause }) = waiter {
            // SAFETY: RS1: under the lock.
            unsafe { unpark(context, ticket, cause) };
        }
    }

    /// Takes out the member that ended first of those that are here.
    pub fn pop(&self) -> Option<SetPlace> {
        self.lock().ended.pop_front()
    }

    /// Whether nobody has ended who was not taken out.
    pub fn is_empty(&self) -> bool {
        self.lock().ended.is_empty()
    }

    /// The next end wakes this context, as by `cause`. False: there has been one.
    ///
    /// # Safety
    ///
    /// RS1: the caller has begun the wait on its own stack, and calls [`leave`](Self::leave) after it.
    pub unsafe fn stand(&self, context: &Context, ticket: Ticket, cause: Cause) -> bool {
        #[cfg(mutant = "set_looks_before")]
        if !self.is_empty() {
            return false;
        }
        let mut state = self.lock();
        #[cfg(not(mutant = "set_looks_before"))]
        if !state.ended.is_empty() {
            return false;
        }
        state.waiter = Some(SetWaiter { context: NonNull::from(context), ticket, cause });
        true
    }

    /// The wait is over: the next end wakes no waiter.
    pub fn leave(&self) {
        self.lock().waiter = None;
    }

    /// A wait for one request is about to park, and is to end, as if its time were up, with the next end that a member reports here.
    ///
    /// # Safety
    ///
    /// RS1, as [`stand`](Self::stand).
    pub unsafe fn interrupts(&self, context: &Context, ticket: Ticket) {
        // SAFETY: by contract.
        if !unsafe { self.stand(context, ticket, Cause::TimedOut) } {
            // SAFETY: C1: it is the calling context, which parks next.
            unsafe { unpark(NonNull::from(context), ticket, Cause::TimedOut) };
        }
    }
}
