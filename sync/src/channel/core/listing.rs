//! Entries in a channel's lists of a wait that has entries in other lists, too: those of the arms of a `select!`
//! ([`crate::channel::arms`]).
//!
//! The select has begun the wait before, once for all arms. So an arm that enters sends and receives nothing. Under
//! one hold of the lock it is either listed, since it must wait, or refused, since it may not have to. If it is
//! refused, its select takes the wait back, and tries [`take`](Channel::take) or [`put`](Channel::put).
//!
//! Each waiter of the other side counts here, also one that has left its wait and is about to take its place out (N2 of [`super`]).
//! Then the retry is in vain, but that waiter refuses and leaves, so no second retry finds it. The select itself does not count:
//! it cannot hand an item to itself.
//!
//! A waiter that leaves takes its place out, whatever has ended the wait. The slot tells whether this was the arm that was served.

use std::cell::Cell;

use forebear_context::context::{Context, Ticket};
use forebear_context::shim::mutant;

use super::{Channel, Slot, Spot, Store};
use crate::lock_queue::Place;

impl<T, S: Store<T>> Channel<T, S> {
    /// Stands among the receivers, unless there may be something to take.
    ///
    /// # Safety
    ///
    /// The wait of the ticket has been begun by the context, which is the calling one; the spot stays until it has left.
    pub(in crate::channel) unsafe fn enter_receivers(
        &self,
        context: &Context,
        ticket: Ticket,
        spot: &mut Spot<T>,
    ) -> bool {
        self.state.with_mut(|state| {
            // SAFETY: L1.
            let others_send = unsafe { state.senders.has_others(context) };
            let waits = state.items.len() == 0
                && mutant!("arm_receives_beside_a_batch", true, state.in_batch == 0)
                && !state.sending_is_over
                && !others_send;
            #[cfg(mutant = "arm_enters_without_a_look")]
            let waits = {
                _ = waits;
                true
            };
            if waits {
                // SAFETY: L4: by contract it is the calling context, and the place leaves before its frame goes.
                let place = spot.write(unsafe { Place::new(context, ticket, Cell::new(None)) });
                // SAFETY: L1, L2: by contract.
                unsafe { state.receivers.enter(place) };
                state.receivers_wait = true;
            }
            waits
        })
    }

    /// Leaves the receivers. Answers what it was given.
    ///
    /// # Safety
    ///
    /// The place was listed here, and its wait is over.
    pub(in crate::channel) unsafe fn leave_receivers(&self, place: &Place<Slot<T>>) -> Option<T> {
        // SAFETY: L1.
        self.state.with(|state| unsafe { state.receivers.remove(place) });
        place.value.take()
    }

    /// Enters the list of senders with the item, unless there may be room for it, or no receiver is
    /// left.
    ///
    /// # Safety
    ///
    /// As [`enter_receivers`](Self::enter_receivers).
    pub(in crate::channel) unsafe fn enter_senders(
        &self,
        context: &Context,
        ticket: Ticket,
        spot: &mut Spot<T>,
        item: &mut Option<T>,
    ) -> bool {
        self.state.with_mut(|state| {
            mutant!("arm_sends_beside_a_batch", (), state.give_back(&self.batch));
            let many = mutant!("arm_sends_beside_a_batch", state.held_items(), state.items.len());
            // SAFETY: L1.
            let others_receive = unsafe { state.receivers.has_others(context) };
            let waits = many >= self.capacity && !state.receiving_is_over && !others_receive;
            if waits {
                // SAFETY: L4: by contract it is the calling context, and the place leaves before its frame goes.
                let place = spot.write(unsafe { Place::new(context, ticket, Cell::new(item.take())) });
                // SAFETY: L1, L2: by contract.
                unsafe { state.senders.enter(place) };
                state.senders_wait = true;
            }
            waits
        })
    }

    /// Leaves the list of senders. Answers the item, if it was not taken.
    ///
    /// # Safety
    ///
    /// As [`leave_receivers`](Self::leave_receivers).
    pub(in crate::channel) unsafe fn leave_senders(&self, place: &Place<Slot<T>>) -> Option<T> {
        // SAFETY: L1.
        self.state.with(|state| unsafe { state.senders.remove(place) });
        place.value.take()
    }
}
