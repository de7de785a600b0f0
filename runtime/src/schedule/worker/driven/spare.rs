//! Stacks beyond the limit, for what has to end on a seat when all others are in use.
//!
//! A driver runs no code of the user's on its own stack, which is in the middle of a wait. A request that is cancelled before it starts, or that
//! no stack is left for, ends all the same: its captures are dropped, and its callbacks are called. So does a warning reach its hook. All of
//! these run on a *spare*. A seat has one from when it is taken. If that one is suspended, since a destructor waits, another is built,
//! whatever the limit says; all stay with the seat until it is given back.
//!
//! # Invariants
//!
//! * **SP1** A spare runs ends, never a request from a queue: [`Worker::start_elsewhere`] starts none on it.

use std::ptr::NonNull;

use super::Worker;
use crate::record::report;
use crate::stack::coroutine::Coroutine;

impl Worker {
    /// A spare, in use from now on.
    #[cold]
    pub(super) fn spare_coroutine(&self) -> NonNull<Coroutine> {
        self.busy_coroutines.set(self.busy_coroutines.get() + 1);
        self.driver().spares().pop().unwrap_or_else(|| match self.coroutine_beyond() {
            Ok(coroutine) => coroutine,
            Err(error) => report::die(&format_args!(
                "a request has to end, a destructor waits on the stack that is reserved for that, and there is no other: {error}"
            )),
        })
    }

    /// If this coroutine is a spare, it lies idle among them from now on.
    pub(in crate::schedule::worker) fn keep_spare(&self, coroutine: NonNull<Coroutine>) -> bool {
        let is_spare = is_spare(coroutine);
        if is_spare {
            self.driver().spares().push(coroutine);
        }
        is_spare
    }

    /// Whether this coroutine is an idle spare.
    pub(super) fn is_idle_spare(&self, coroutine: NonNull<Coroutine>) -> bool {
        self.driver().spares().contains(&coroutine)
    }

    /// The idle spares lie among the other idle coroutines from now on.
    pub(super) fn retire_spares(&self) {
        for coroutine in std::mem::take(self.driver().spares()) {
            self.put_among_idle(coroutine);
        }
    }
}

fn is_spare(coroutine: NonNull<Coroutine>) -> bool {
    // SAFETY: K3.
    let slot = unsafe { &coroutine.as_ref().slot };
    let held = slot.take();
    let is_beyond = held.as_ref().is_some_and(|slot| slot.is_beyond());
    slot.set(held);
    is_beyond
}
