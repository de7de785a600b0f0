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
use crate::record::hooks;
use crate::stack::carrier::Carrier;

impl Worker {
    /// A spare, in use from now on.
    #[cold]
    pub(super) fn spare_carrier(&self) -> NonNull<Carrier> {
        self.busy_carriers.set(self.busy_carriers.get() + 1);
        self.driver().spares().pop().unwrap_or_else(|| match self.carrier_beyond() {
            Ok(carrier) => carrier,
            Err(error) => hooks::die(&format_args!(
                "a request has to end, a destructor waits on the stack that is kept for that, and there is no other: {error}"
            )),
        })
    }

    /// If this carrier is a spare, it lies idle among them from now on.
    pub(in crate::schedule::worker) fn keep_spare(&self, carrier: NonNull<Carrier>) -> bool {
        let is_spare = is_spare(carrier);
        if is_spare {
            self.driver().spares().push(carrier);
        }
        is_spare
    }

    /// Whether this carrier is an idle spare.
    pub(super) fn is_idle_spare(&self, carrier: NonNull<Carrier>) -> bool {
        self.driver().spares().contains(&carrier)
    }

    /// The idle spares lie among the other idle carriers from now on.
    pub(super) fn retire_spares(&self) {
        for carrier in std::mem::take(self.driver().spares()) {
            self.put_among_idle(carrier);
        }
    }
}

fn is_spare(carrier: NonNull<Carrier>) -> bool {
    // SAFETY: K3.
    let slot = unsafe { &carrier.as_ref().slot };
    let held = slot.take();
    let is_beyond = held.as_ref().is_some_and(|slot| slot.is_beyond());
    slot.set(held);
    is_beyond
}
