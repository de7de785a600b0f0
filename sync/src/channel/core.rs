//! The items in a channel, and the waiters on either side.
//!
//! # Vocabulary
//!
//! * **to put**, **to take**: a send and a receive that do not wait.
//! * **batch**: items that a receiver has taken out in one visit, for the next receives ([`batch`]).
//! * **slot**: the value of a waiter's place in a queue: the item that a sender brings, or that a receiver is given.
//! * **to serve** a waiter: to choose it, and to take the item out of its slot or to put one in.
//! * **over**: a side is over when its last end was dropped.
//!
//! # How an operation proceeds
//!
//! Each operation decides everything under one lock, which is held for a few instructions. A caller that must wait begins its wait and
//! enters the queue of its side while it holds the lock. The operation that provides what a waiter waits for serves that waiter:
//!
//! * a put gives its item to the most urgent waiting receiver, if there is one;
//! * a take that makes room puts the most urgent sender's item there;
//! * a take that finds no item takes the most urgent sender's item from its slot. In a channel of capacity 0 each item takes this way.
//!
//! The operation wakes the waiter after it has released the lock.
//!
//! A receive of an item that is in the batch is the exception: it touches neither that lock nor its line of memory.
//!
//! This file has the decisions. [`waiting`] has the waits of a send and a receive, [`short`] their usual steps, [`listing`] the waits of an arm of
//! `select!`, which stands in several queues, and [`store`] the containers of the items.
//!
//! # The races
//!
//! *A waiter leaves while an operation serves it.* The waiter's ticket decides. A waiter that was chosen returns from its wait as *woken*
//! and has been served, even if it has been cancelled meanwhile. A waiter that left otherwise cannot be chosen, and the operation tries the
//! next one. So an item is in one place at any time, and no item is given to a waiter that has left.
//!
//! *The last end of one side is dropped while a caller of the other side begins to wait.* Both do so under the lock. Either the caller finds
//! the side over, or the drop finds the caller in its queue and chooses it. The slot of such a waiter is unchanged, and the waiter reads the
//! end of the channel from that. The last send of a channel of one item is such an end, too: it chooses the receiver that has the item, and, in a second
//! hold of the lock, all others that it has left in the queue.
//!
//! # Invariants
//!
//! * **N1** The state is accessed under its lock, and a waiter's slot under that lock or by its owner after the wait.
//! * **N2** While a receiver waits there is no item, and sending is not over; while a sender waits there is no room, and receiving is not
//!   over. Listed waiters that have left their wait do not count.
//! * **N3** No item is dropped, and no waiter is woken, under the lock.
//!
//! N4 to N7 stand in the head of [`batch`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use forebear_context::context::{Label, Ticket};
use forebear_context::error::internal::drop_each;
use forebear_context::retries::Retries;
use forebear_context::shim::mutant;

use super::error::{TryRecvError, TrySendError};
use super::sides::{NOBODY, pause};
use crate::guarded::Guarded;
use crate::lock_queue::{Chosen, ChosenList, LockQueue, Place};

mod batch;
mod listing;
mod short;
mod store;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod waiting;

use self::batch::LazyBatch;
pub(crate) use self::store::Store;

/// No bound on the items.
pub(super) const UNBOUNDED: usize = usize::MAX;

/// See the module head.
pub(crate) type Slot<T> = Cell<Option<T>>;

/// A waiter's place, in its frame.
pub(crate) type Spot<T> = MaybeUninit<Place<Slot<T>>>;

/// What the two ends share.
#[repr(C)]
pub(crate) struct Channel<T, S = VecDeque<T>> {
    state: Guarded<ChannelState<T, S>>,
    capacity: usize,
    label: Label,
    batch: LazyBatch<T>,
    /// The guard is of no type in particular; what goes through it must be `Send`.
    _items: PhantomData<*mut T>,
}

// SAFETY: items go from thread to thread, hence `Send`; one thread at a time has any of them (N1).
unsafe impl<T: Send, S> Send for Channel<T, S> {}
// SAFETY: as above: no item is lent.
unsafe impl<T: Send, S> Sync for Channel<T, S> {}

/// The fields that each operation accesses come first, beside the lock: on one cache line, which moves between the cores of the two sides.
#[repr(C)]
struct ChannelState<T, S> {
    sending_is_over: bool,
    receiving_is_over: bool,
    /// Whether a sender may be in the queue of senders. False: it is empty.
    senders_wait: bool,
    receivers_wait: bool,
    /// How often a sender retries before it waits for room, and a receiver before it waits for an item.
    sends: Retries,
    receives: Retries,
    /// The thread of the last sender, and of the last receiver that served a waiter or would have had to wait. [`NOBODY`] if it served one by a
    /// method that never waits; those tell nothing else.
    put_on: u32,
    took_on: u32,
    /// At least the number of items in the batch (N4).
    in_batch: u16,
    items: S,
    senders: LockQueue<Slot<T>>,
    receivers: LockQueue<Slot<T>>,
}

/// What is left to do after the cold part of an operation.
pub(crate) enum ChannelStep<R> {
    Done(R),
    Park(Ticket),
}

/// A waiter that was served, and is to be woken.
type Served<T> = Option<Chosen<Slot<T>>>;

#[inline(always)]
fn wake<T>(served: Served<T>) {
    if let Some(served) = served {
        served.wake();
    }
}

impl<T, S: Store<T>> ChannelState<T, S> {
    #[inline]
    fn put(
        &mut self,
        item: T,
        capacity: usize,
        batch: &LazyBatch<T>,
        on: impl FnOnce() -> u32,
    ) -> Result<Served<T>, TrySendError<T>> {
        if self.receiving_is_over {
            return Err(TrySendError::Disconnected(item));
        }
        if self.receivers_wait {
            // SAFETY: L1; the caller wakes the chosen waiter.
            let chosen = unsafe { self.receivers.choose() };
            self.receivers_wait = !self.receivers.is_empty();
            if let Some(receiver) = chosen {
                receiver.place().value.set(Some(item));
                self.put_on = on();
                return Ok(Some(receiver));
            }
        }
        if self.has_room(capacity, batch) {
            match on() {
                NOBODY => {}
                on => self.put_on = on,
            }
            self.items.push(item);
            return Ok(None);
        }
        Err(TrySendError::Full(item))
    }

    /// At least the number of items in the channel.
    #[inline(always)]
    fn held_items(&self) -> usize {
        self.items.len() + if S::HAS_BATCHES { self.in_batch.into() } else { 0 }
    }

    /// Whether there is room for another item.
    #[inline]
    fn has_room(&mut self, capacity: usize, batch: &LazyBatch<T>) -> bool {
        if self.held_items() < capacity {
            return true;
        }
        S::HAS_BATCHES && self.in_batch > 0 && {
            self.in_batch = batch.len() as u16;
            self.items.len() + usize::from(self.in_batch) < capacity
        }
    }

    /// Whether a receiver on the thread `on` that has taken an item takes out the rest, too. It does if another worker has put the
    /// last one, as far as known.
    #[inline(always)]
    fn makes_a_batch(&self, rest: usize, on: u32) -> bool {
        S::HAS_BATCHES
            && rest > 0
            && self.put_on != on
            && self.put_on != NOBODY
            && self.in_batch == 0
            && !self.senders_wait
    }

    /// Fills the batch, if it is one for a receiver on the thread `on` that has taken an item. Answers whether it lacks memory for that, which
    /// the caller takes when it has released the lock.
    #[must_use = "memory is taken without the lock"]
    fn fill(&mut self, batch: &LazyBatch<T>, capacity: usize, on: u32) -> bool {
        if !self.makes_a_batch(self.items.len(), on) {
            return false;
        }
        let filled = batch.fill(&mut self.items, capacity);
        self.in_batch = filled.unwrap_or(0);
        filled.is_none()
    }

    /// Gives the batch back to the store, so that N5 holds when a sender waits.
    fn give_back(&mut self, batch: &LazyBatch<T>) {
        if S::HAS_BATCHES && self.in_batch > 0 {
            batch.give_back(&mut self.items);
            self.in_batch = 0;
        }
    }

    #[inline]
    fn take(
        &mut self,
        batch: &LazyBatch<T>,
        on: impl FnOnce() -> u32,
    ) -> Result<(T, Served<T>), TryRecvError> {
        if S::HAS_BATCHES && mutant!("store_before_the_batch", false, self.in_batch > 0) {
            if let Some(item) = batch.pop() {
                return Ok((item, None));
            }
            self.in_batch = 0;
        }
        let item = self.items.pop();
        let mut served = None;
        if self.senders_wait {
            // SAFETY: as above.
            served = unsafe { self.senders.choose() };
            self.senders_wait = !self.senders.is_empty();
            self.took_on = on();
        }
        let brought = served.as_ref().and_then(|sender| sender.place().value.take());
        match (item, brought) {
            (Some(item), brought) => {
                if let Some(brought) = brought {
                    self.items.push(brought);
                }
                Ok((item, served))
            }
            (None, Some(brought)) => Ok((brought, served)),
            (None, None) if self.sending_is_over => Err(TryRecvError::Disconnected),
            (None, None) => Err(TryRecvError::Empty),
        }
    }
}

impl<T, S: Store<T>> Channel<T, S> {
    pub(super) fn new(items: S, capacity: usize, label: Label) -> Channel<T, S> {
        let state = ChannelState {
            sending_is_over: false,
            receiving_is_over: false,
            senders_wait: false,
            receivers_wait: false,
            sends: Retries::new(),
            receives: Retries::new(),
            put_on: NOBODY,
            took_on: NOBODY,
            in_batch: 0,
            items,
            senders: LockQueue::new(),
            receivers: LockQueue::new(),
        };
        Channel { state: Guarded::new(state), capacity, label, batch: LazyBatch::new(), _items: PhantomData }
    }

    pub(super) fn label(&self) -> Label {
        self.label
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.state.with(|state| state.items.len() + if state.in_batch > 0 { self.batch.len() } else { 0 })
    }

    /// Whether the last receiver has been dropped.
    pub(super) fn receiving_is_over(&self) -> bool {
        self.state.with(|state| state.receiving_is_over)
    }

    // ---- without waiting ---------------------------------------------------------------------------------------------------------

    #[inline]
    pub(super) fn put(&self, item: T) -> Result<(), TrySendError<T>> {
        let served = self.state.with_mut(|state| state.put(item, self.capacity, &self.batch, || NOBODY))?;
        wake(served);
        Ok(())
    }

    /// The same by the last sender, which ends the sending side in the same step. One receiver has the item; the others learn of the end.
    #[inline]
    pub(super) fn put_last(&self, item: T) -> Result<(), TrySendError<T>> {
        let (put, are_others) = self.state.with_mut(|state| {
            #[cfg(not(mutant = "over_after_the_last"))]
            {
                state.sending_is_over = true;
            }
            let put = state.put(item, self.capacity, &self.batch, || NOBODY);
            (put, mutant!("one_item_wakes_one_receiver", false, state.receivers_wait))
        });
        mutant!("over_after_the_last", self.state.with_mut(|state| state.sending_is_over = true));
        let served = put?;
        if are_others {
            self.tell_receivers();
        }
        wake(served);
        Ok(())
    }

    /// Wakes the receivers that wait, after the end of sending: none begins to wait any more.
    #[cold]
    #[inline(never)]
    fn tell_receivers(&self) {
        self.state.with_mut(|state| all_of(&state.receivers, state.receivers_wait)).wake();
    }

    #[inline]
    pub(super) fn take(&self) -> Result<T, TryRecvError> {
        if S::HAS_BATCHES
            && let Some(item) = self.batch.pop()
        {
            return Ok(item);
        }
        let (taken, spare) =
            self.state.with_mut(|state| (state.take(&self.batch, || NOBODY), state.items.spare()));
        drop(spare);
        let (item, served) = taken?;
        wake(served);
        Ok(item)
    }

    /// The same, but may fill a batch. By a thread that has no context.
    #[inline]
    pub(super) fn take_outside(&self, hurries: bool) -> Result<T, TryRecvError> {
        if let Some(item) = self.batch.pop() {
            return Ok(item);
        }
        if !hurries {
            pause(self.batch.pauses());
        }
        let (taken, lacks_memory, spare) = self.state.with_mut(|state| {
            let taken = state.take(&self.batch, || NOBODY);
            let lacks_memory = taken.is_ok() && state.fill(&self.batch, self.capacity, NOBODY);
            (taken, lacks_memory, state.items.spare())
        });
        drop(spare);
        if lacks_memory {
            self.batch.reserve(self.capacity);
        }
        let (item, served) = taken?;
        wake(served);
        Ok(item)
    }
    // ---- the ends ---------------------------------------------------------------------------------------------------------------

    /// The last sender is dropped.
    pub(super) fn end_sending(&self) {
        let woken = self.state.with_mut(|state| {
            state.sending_is_over = true;
            all_of(&state.receivers, state.receivers_wait)
        });
        woken.wake();
    }

    /// The last receiver is dropped. Drops the items that were not received; waiting senders get theirs back.
    ///
    /// # Safety
    ///
    /// Nobody receives at the same time or later.
    pub(super) unsafe fn end_receiving(&self) {
        let (woken, mut dropped) = self.state.with_mut(|state| {
            state.receiving_is_over = true;
            state.in_batch = 0;
            (all_of(&state.senders, state.senders_wait), std::mem::take(&mut state.items))
        });
        woken.wake();
        // SAFETY: N7, by contract.
        let mut batch = if S::HAS_BATCHES { unsafe { self.batch.free() } } else { VecDeque::new() };
        // One after the other: a second destructor that panics would end the process.
        let next = || {
            if S::HAS_BATCHES { batch.pop_front().or_else(|| dropped.pop()) } else { dropped.pop() }
        };
        drop_each(std::iter::from_fn(next));
    }
}

/// Chooses all waiters of a queue; their slots stay as they are. `wait`: the queue may have waiters.
#[inline]
fn all_of<T>(waiters: &LockQueue<Slot<T>>, wait: bool) -> ChosenList<Slot<T>> {
    let mut all = ChosenList::new();
    if !wait {
        return all;
    }
    // SAFETY: L1: by the callers, who wake them.
    while let Some(waiter) = unsafe { waiters.choose() } {
        all.push(waiter);
    }
    all
}
