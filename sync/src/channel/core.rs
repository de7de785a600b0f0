//! What lies between the ends: the items that are on their way, and those who wait on either side.
//!
//! # Vocabulary
//!
//! * **to put**, **to take**: a send and a receive that do not wait.
//! * **slot**: what a waiter's place in a list holds: the item that a sender brings, or that a receiver is given.
//! * **to serve** a waiter: to choose it, and take what is in its slot or put what it waits for there.
//! * **over**: there is nobody left on that side.
//!
//! # How it goes
//!
//! Everything is decided under one lock that is held for a few instructions. A caller that must wait begins its wait and lists
//! itself in the same step. The operation that provides what a waiter waits for serves that waiter: a put gives its item to the most urgent receiver that
//! waits; a take that makes room lets the most urgent sender's item in, and one that finds no room at all takes it straight from
//! there, which is the whole of a channel of capacity 0. The waiter is woken when the lock has been let go of.
//!
//! The decisions are here. [`waiting`] says how a send and a receive wait, how one waits that stands in several lists in
//! [`listing`], and what items lie in in [`store`].
//!
//! # The races
//!
//! *A waiter that leaves* against one that serves it. Both are decided by the waiter's ticket: a waiter that was chosen goes on with
//! *woken*, and has been served, also if it has been cancelled meanwhile; one that left otherwise refuses to be chosen, and the next
//! is tried. So an item is in one place at any time, and nobody is served who does not come for it.
//!
//! *The last of one side goes* against one of the other side that is about to wait. Both are under the lock: the latter finds the
//! side over, or is found listed, and is chosen and told so by its slot being as it was.
//!
//! # Invariants
//!
//! * **N1** The state is touched under its lock, and a waiter's slot under that lock or by its owner after the wait.
//! * **N2** While a receiver waits there is no item; while a sender waits there is no room. Listed waiters that have left their wait
//!   do not count.
//! * **N3** No item is dropped, and nobody is woken, under the lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use forebear_context::context::{Label, Ticket};
use forebear_context::error::internal::drop_each;
use forebear_context::shim::mutant;

use super::error::{TryRecvError, TrySendError};
use super::retries::{NOBODY, Retries};
use crate::guarded::Guarded;
use crate::lock_queue::{Chosen, ChosenList, LockQueue, Place};

mod listing;
mod store;
mod waiting;

pub(crate) use self::store::Store;

/// No bound on the items.
pub(super) const UNBOUNDED: usize = usize::MAX;

/// See the module head.
pub(crate) type Slot<T> = Cell<Option<T>>;

/// A waiter's place, in its frame.
pub(crate) type Spot<T> = MaybeUninit<Place<Slot<T>>>;

/// What lies between the ends.
#[repr(C)]
pub(crate) struct Channel<T, S = VecDeque<T>> {
    state: Guarded<ChannelState<T, S>>,
    capacity: usize,
    label: Label,
    /// The guard is of no type in particular; what goes through it must be `Send`.
    _items: PhantomData<*mut T>,
}

// SAFETY: items go from thread to thread, hence `Send`; one thread at a time has any of them (N1).
unsafe impl<T: Send, S> Send for Channel<T, S> {}
// SAFETY: as above: no item is lent.
unsafe impl<T: Send, S> Sync for Channel<T, S> {}

/// What each visit touches stands in front, beside the lock: where channels are between cores, it is one line.
#[repr(C)]
struct ChannelState<T, S> {
    sending_is_over: bool,
    receiving_is_over: bool,
    /// Somebody may stand among them. False: nobody does.
    senders_wait: bool,
    receivers_wait: bool,
    /// Of those who wait for room, and for an item.
    sends: Retries,
    receives: Retries,
    /// On which thread the last sender and the last receiver were that would have had to wait, or served somebody; nowhere if by a method that
    /// never waits. Most visits leave it alone.
    put_on: usize,
    took_on: usize,
    items: S,
    senders: LockQueue<Slot<T>>,
    receivers: LockQueue<Slot<T>>,
}
/// What is left to do after the cold part of an operation.
pub(crate) enum ChannelStep<R> {
    Done(R),
    Park(Ticket),
}

/// Somebody who was served, to be woken.
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
        on: impl FnOnce() -> usize,
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
        if self.items.len() < capacity {
            self.items.push(item);
            return Ok(None);
        }
        Err(TrySendError::Full(item))
    }

    #[inline]
    fn take(&mut self, on: impl FnOnce() -> usize) -> Result<(T, Served<T>), TryRecvError> {
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
            items,
            senders: LockQueue::new(),
            receivers: LockQueue::new(),
        };
        Channel { state: Guarded::new(state), capacity, label, _items: PhantomData }
    }

    pub(super) fn label(&self) -> Label {
        self.label
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.state.with(|state| state.items.len())
    }

    /// Whether nobody receives any more.
    pub(super) fn receiving_is_over(&self) -> bool {
        self.state.with(|state| state.receiving_is_over)
    }

    // ---- without waiting ---------------------------------------------------------------------------------------------------------

    #[inline]
    pub(super) fn put(&self, item: T) -> Result<(), TrySendError<T>> {
        let served = self.state.with_mut(|state| state.put(item, self.capacity, || NOBODY))?;
        wake(served);
        Ok(())
    }

    /// The same, and there is no other sender.
    #[inline]
    pub(super) fn put_last(&self, item: T) -> Result<(), TrySendError<T>> {
        let put = self.state.with_mut(|state| {
            #[cfg(not(mutant = "over_after_the_last"))]
            {
                state.sending_is_over = true;
            }
            state.put(item, self.capacity, || NOBODY)
        });
        mutant!("over_after_the_last", self.state.with_mut(|state| state.sending_is_over = true));
        wake(put?);
        Ok(())
    }

    #[inline]
    pub(super) fn take(&self) -> Result<T, TryRecvError> {
        let (taken, spare) = self.state.with_mut(|state| (state.take(|| NOBODY), state.items.spare()));
        drop(spare);
        let (item, served) = taken?;
        wake(served);
        Ok(item)
    }
    // ---- the ends ---------------------------------------------------------------------------------------------------------------

    /// The last sender goes.
    pub(super) fn end_sending(&self) {
        let woken = self.state.with_mut(|state| {
            state.sending_is_over = true;
            all_of(&state.receivers, state.receivers_wait)
        });
        woken.wake();
    }

    /// The last receiver goes. What nobody has received is dropped; what waits to be let in goes back.
    pub(super) fn end_receiving(&self) {
        let (woken, mut dropped) = self.state.with_mut(|state| {
            state.receiving_is_over = true;
            (all_of(&state.senders, state.senders_wait), std::mem::take(&mut state.items))
        });
        woken.wake();
        // One after the other: a second destructor that panics would end the process.
        drop_each(std::iter::from_fn(|| dropped.pop()));
    }
}

/// All who wait there, chosen, their slots as they were. `wait`: somebody may.
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
