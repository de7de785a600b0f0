//! The usual steps of a send and a receive, in short functions that call nothing: to store or take an item where no context waits, to give an
//! item to the one receiver that waits, and to become that receiver.
//!
//! Most operations take one of these steps. A function that calls nothing saves no registers, and asks the world above nothing by a call. What it
//! asks about the caller is in words that the caller's context [shows](Context::show).
//!
//! Each function decides under the lock, as the general ways in [`waiting`](super::waiting) do, and does the same. If the case is another one, it
//! changes nothing. Then the general way continues under the same hold of the lock, so that no case pays for two visits.
//!
//! | not short | since |
//! |---|---|
//! | the lock is taken; a cancel may concern the caller | the answer takes a call |
//! | the side of the other is over | there is nothing to send or receive |
//! | several receivers wait, or the one has left its wait, or its wait is held | the queue decides who is next |
//! | several items of another worker are there, at a receive; the batch's lock is taken, or a visit begins with pauses | a batch is filled, or waited for |
//! | a sender waits, at a receive | the sender is served, too |
//! | an item has to wait for room | the sender becomes a waiter; in a channel that is used in turns this is rare |
//! | the store takes or gives back memory | that calls the allocator |
//! | the other side seems to be on another worker, at a receive that would wait | it retries before it waits |
//! | a region that must not suspend, at a receive that would wait | it panics |

use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit, forget};

use forebear_context::context::{Context, Reason, Ticket};
use forebear_context::lineage::LEAST_KEY;
use forebear_context::shim::mutant;

use super::batch::ShortPop;
use super::{Channel, ChannelState, Slot, Spot, Store};
use crate::channel::sides::{NOBODY, on_of};
use crate::guarded::Hold;
use crate::lock_queue::{Chosen, Place};

/// A hold of a channel's lock.
pub(super) type Held<'a, T, S> = Hold<'a, ChannelState<T, S>>;

/// The answer of [`Channel::put_shortly`].
pub(super) enum ShortPut<'a, T, S> {
    /// The item is in the store.
    Stored,
    /// The item is in the slot of this receiver, which the caller wakes.
    Given(Chosen<Slot<T>>),
    /// Nothing has changed. The caller continues, under the lock if it has it.
    General(Option<Held<'a, T, S>>),
}

/// The answer of [`Channel::take_shortly`].
pub(super) enum ShortTake<'a, T, S> {
    /// The item is where the caller wants it.
    Taken,
    /// The caller has become the one receiver that waits, by the place in its spot.
    Park(Ticket),
    /// As [`ShortPut::General`].
    General(Option<Held<'a, T, S>>),
}

impl<T, S: Store<T>> Channel<T, S> {
    /// Puts the item in one of the short ways. It is moved out only if the answer says so.
    #[inline(never)]
    pub(super) fn put_shortly(&self, context: &Context, item: &ManuallyDrop<T>) -> ShortPut<'_, T, S> {
        if !context.is_undisturbed() {
            return ShortPut::General(None);
        }
        let Some(held) = self.state.try_hold() else { return ShortPut::General(None) };
        held.try_with_mut(|state| state.put_shortly(context, item, self.capacity))
            .unwrap_or_else(|held| ShortPut::General(Some(held)))
    }

    /// Takes an item in the short way, or becomes the one receiver that waits.
    #[inline(never)]
    pub(super) fn take_shortly(
        &self,
        context: &Context,
        spot: &mut Spot<T>,
        item: &mut MaybeUninit<T>,
    ) -> ShortTake<'_, T, S> {
        if !context.is_undisturbed() {
            return ShortTake::General(None);
        }
        if S::HAS_BATCHES {
            match self.batch.pop_shortly(item) {
                ShortPop::Popped => return ShortTake::Taken,
                ShortPop::Nothing => {}
                ShortPop::Call => return ShortTake::General(None),
            }
        }
        let Some(held) = self.state.try_hold() else { return ShortTake::General(None) };
        let take = |state: &mut ChannelState<T, S>| {
            if state.take_shortly(context, item) {
                return Some(ShortTake::Taken);
            }
            let key = state.waits_shortly(context)?;
            // SAFETY: C2: this is the context's own stack; C4: the caller's end keeps the channel, and nothing unwinds before the wait
            // is parked.
            let ticket = unsafe { context.begin(Reason::Receive, self.target()) };
            // SAFETY: L4: the place lies on the context's own stack.
            let place = spot.write(unsafe { Place::with_key(context, ticket, key, Cell::new(None)) });
            // SAFETY: L1, L2: the place stays in its frame until it is out, and no receiver waits.
            unsafe { state.receivers.enter_empty(place, context.place().get()) };
            state.receivers_wait = true;
            Some(ShortTake::Park(ticket))
        };
        held.try_with_mut(take).unwrap_or_else(|held| ShortTake::General(Some(held)))
    }

    /// [`put_shortly`](Self::put_shortly) for a context that shows no words, as that of a thread which is no worker: whether a cancel concerns it takes a call.
    #[cold]
    pub(super) fn put_after_a_call(&self, context: &Context, item: &ManuallyDrop<T>) -> ShortPut<'_, T, S> {
        if context.is_cancelled() {
            return ShortPut::General(None);
        }
        context.as_undisturbed(|| self.put_shortly(context, item))
    }

    /// The same for [`take_shortly`](Self::take_shortly).
    #[cold]
    pub(super) fn take_after_a_call(
        &self,
        context: &Context,
        spot: &mut Spot<T>,
        item: &mut MaybeUninit<T>,
    ) -> ShortTake<'_, T, S> {
        if context.is_cancelled() {
            return ShortTake::General(None);
        }
        context.as_undisturbed(|| self.take_shortly(context, spot, item))
    }
}

impl<T, S: Store<T>> ChannelState<T, S> {
    #[inline(always)]
    fn put_shortly<'a>(
        &mut self,
        context: &Context,
        item: &ManuallyDrop<T>,
        capacity: usize,
    ) -> Option<ShortPut<'a, T, S>> {
        if self.receiving_is_over {
            return None;
        }
        // SAFETY: the caller forgets the item if it is moved out here.
        let moved = || unsafe { std::ptr::read(&raw const **item) };
        if !mutant!("stored_past_a_receiver", false, self.receivers_wait) {
            return (self.held_items() < capacity && self.items.has_memory()).then(|| {
                self.put_on = on_of(context);
                self.items.push(moved());
                ShortPut::Stored
            });
        }
        // SAFETY: L1; the caller wakes the chosen waiter.
        let receiver = unsafe { self.receivers.choose_only() }?;
        self.receivers_wait = false;
        self.put_on = on_of(context);
        // The slot of a receiver that waits is empty; to drop what was there would be a call.
        forget(receiver.place().value.replace(Some(moved())));
        Some(ShortPut::Given(receiver))
    }

    #[inline(always)]
    fn take_shortly(&mut self, context: &Context, item: &mut MaybeUninit<T>) -> bool {
        if self.senders_wait
            || (S::HAS_BATCHES && self.in_batch > 0)
            || !self.items.pops_shortly()
            || self.makes_a_batch(self.items.len() - 1, on_of(context))
        {
            return false;
        }
        match self.items.pop() {
            Some(popped) => {
                item.write(popped);
                true
            }
            None => false,
        }
    }

    /// Whether the calling receiver waits at once, and as the only one. Answers the key of its place.
    #[inline(always)]
    fn waits_shortly(&mut self, context: &Context) -> Option<u64> {
        let on = on_of(context);
        let waits = self.items.len() == 0
            && mutant!("short_wait_beside_a_batch", true, !S::HAS_BATCHES || self.in_batch == 0)
            && !self.senders_wait
            && !mutant!("short_wait_past_the_end", false, self.sending_is_over)
            && !mutant!("short_wait_beside_another", false, self.receivers_wait)
            && (self.put_on == on || self.put_on == NOBODY)
            && context.no_suspend().get() == 0;
        let key = context.shown_urgency().filter(|&key| waits && key < LEAST_KEY)?;
        self.took_on = on;
        Some(key)
    }
}
