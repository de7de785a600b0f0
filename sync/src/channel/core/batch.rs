//! The batch: items that one visit of a receiver has taken out of the store, for the next receives.
//!
//! Where the two sides run on two cores, a visit to the channel's lock moves its line of memory to the visitor's core. Puts and takes that
//! alternate pay for two moves an item. So a receiver that finds several items, put by another worker, takes them out in one visit. The
//! next receives take them from the batch, which has a line and a lock of its own, and leave the other line to the senders.
//!
//! A receiver that is faster than the senders would come back after a few items. So after a small batch the next visit begins with up to 80
//! pauses of the processor, while the senders put more items: less than a microsecond where a pause takes 10 ns, 2 where it takes 25. A
//! single item is no batch, and causes no pause: two partners that answer each other do not wait.
//!
//! # What does not change
//!
//! The items of the batch are still in the channel. They count for its length and its capacity, they come out before those of the store,
//! any receiver may take them, and they are dropped with those of the store.
//!
//! # Who may access what
//!
//! The batch is filled, and given back to the store, under the channel's lock *and* its own. A receiver takes items from it under its own. A thread
//! that takes both locks takes the channel's first.
//!
//! # Invariants
//!
//! * **N4** `in_batch` of the state is at least the number of items in the batch. Under the channel's lock, 0 says that
//!   there are none, and that none comes.
//! * **N5** While a sender waits the batch is empty: a sender gives the items back to the store before it waits, and nobody fills a batch
//!   while a sender waits. So the room that a waiting sender needs comes to be under the channel's lock, where the sender is served.
//! * **N6** While a receiver waits the batch is empty: a receiver waits only after it found `in_batch` 0 and no item in the store, and it takes an
//!   item to fill a batch.
//! * **N7** When receiving is over nobody accesses the batch: there is no receiver, and under the channel's lock `in_batch` is 0. The drop of
//!   the last receiver frees it.
//!
//! # The races
//!
//! *One receiver takes the last item of the batch while another asks how many there are.* The other reads a number that is too large,
//! finds nothing, and visits the channel's lock.
//!
//! *One receiver finds the batch empty, and another fills it.* The first then visits the channel's lock, where `in_batch` tells it. It
//! takes from the batch, since those items are older than the ones in the store.
//!
//! *A sender asks for room while receivers take from the batch.* The number of items there only falls meanwhile, so the sender may see too
//! little room, never too much. Before it waits it gives the batch back, under both locks, and decides again.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use forebear_context::shim::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use forebear_context::shim::mutant;

use super::store::{Store, batch_memory};
use crate::guarded::Guarded;

/// A batch of so many items is not small.
#[cfg(not(any(loom, shuttle)))]
const ENOUGH: usize = 40;

/// The batch of a channel. It has memory only if the channel ever was in need of it.
pub(super) struct LazyBatch<T>(AtomicPtr<Batch<T>>, PhantomData<T>);

/// See the module head. On a line of its own.
#[repr(C, align(64))]
struct Batch<T> {
    /// How many items there are. Written under the lock.
    len: AtomicUsize,
    /// With so many pauses the next visit to the channel's lock begins. A hint, which one receiver takes.
    pauses: AtomicU32,
    items: Guarded<VecDeque<T>>,
}

/// With how many pauses the visit after a batch of `len` items begins.
#[cfg(not(any(loom, shuttle)))]
fn pauses_after(len: usize, capacity: usize) -> u32 {
    // In a small channel the senders would wait for room before there were enough. They need some two pauses for an item.
    let enough = ENOUGH.min(capacity - capacity / 4);
    2 * enough.saturating_sub(len) as u32
}

/// None in a model: they change nothing.
#[cfg(any(loom, shuttle))]
fn pauses_after(_: usize, _: usize) -> u32 {
    0
}

/// The answer of [`LazyBatch::pop_shortly`].
pub(super) enum ShortPop {
    /// The item is where the caller wants it.
    Popped,
    /// There is none.
    Nothing,
    /// A call has to be made first: the lock is taken, or the visit to the channel's lock begins with pauses.
    Call,
}

impl<T> LazyBatch<T> {
    pub(super) fn new() -> LazyBatch<T> {
        LazyBatch(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    #[inline(always)]
    fn batch(&self) -> Option<&Batch<T>> {
        // SAFETY: null, or what `reserve` has published. By N7 it stays while anybody accesses it.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// How many items there are. Under both locks it is exact. Otherwise it may be too many.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.batch().map_or(0, Batch::len)
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        let batch = self.batch().filter(|batch| batch.len() > 0)?;
        batch.items.with_mut(|items| batch.pop(items))
    }

    /// The same, but calls nothing.
    #[inline(always)]
    pub(super) fn pop_shortly(&self, item: &mut MaybeUninit<T>) -> ShortPop {
        let Some(batch) = self.batch() else { return ShortPop::Nothing };
        if batch.len() == 0 {
            return if batch.pauses.load(Ordering::Relaxed) == 0 {
                ShortPop::Nothing
            } else {
                ShortPop::Call
            };
        }
        let Some(held) = batch.items.try_hold() else { return ShortPop::Call };
        match held.with_mut(|items| batch.pop(items)) {
            Some(popped) => {
                item.write(popped);
                ShortPop::Popped
            }
            None => ShortPop::Nothing,
        }
    }

    /// With how many pauses the caller begins its visit to the channel's lock.
    pub(super) fn pauses(&self) -> u32 {
        match self.batch() {
            Some(batch) if batch.len() == 0 && batch.pauses.load(Ordering::Relaxed) != 0 => {
                batch.pauses.swap(0, Ordering::Relaxed)
            }
            _ => 0,
        }
    }

    /// Fills it from the store of a channel of this capacity. Answers with the number of items, or `None` if it has no memory
    /// yet. By a caller that has the channel's lock, and found the batch empty.
    pub(super) fn fill(&self, store: &mut impl Store<T>, capacity: usize) -> Option<u16> {
        let batch = self.batch()?;
        let len = batch.items.with_mut(|items| {
            store.move_to(items);
            batch.len.store(items.len(), Ordering::Release);
            items.len()
        });
        batch.pauses.store(pauses_after(len, capacity), Ordering::Relaxed);
        Some(len as u16)
    }

    /// Takes the memory for a batch, unless it has some. By a caller that has no lock.
    #[cold]
    pub(super) fn reserve(&self, capacity: usize) {
        let new = Box::into_raw(Box::new(Batch {
            len: AtomicUsize::new(0),
            pauses: AtomicU32::new(0),
            items: Guarded::new(batch_memory(capacity)),
        }));
        let published = mutant!(
            "second_batch_for_the_first",
            Ok(self.0.swap(new, Ordering::AcqRel)),
            self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed),
        );
        if published.is_err() {
            // SAFETY: made above, and published nowhere.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    /// Frees the memory. Answers with the items.
    ///
    /// # Safety
    ///
    /// Nobody accesses the batch at the same time, or later but by another call of this.
    pub(super) unsafe fn free(&self) -> VecDeque<T> {
        let batch = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        if batch.is_null() {
            return VecDeque::new();
        }
        // SAFETY: `reserve` made it; by contract nobody else has a reference to it.
        let batch = unsafe { Box::from_raw(batch) };
        batch.items.with_mut(std::mem::take)
    }

    /// Gives the items back to the store. By a caller that has the channel's lock.
    pub(super) fn give_back(&self, store: &mut impl Store<T>) {
        let Some(batch) = self.batch() else { return };
        batch.items.with_mut(|items| {
            store.move_back(items);
            batch.len.store(0, Ordering::Release);
        });
    }
}

impl<T> Batch<T> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Under the lock.
    #[inline(always)]
    fn pop(&self, items: &mut VecDeque<T>) -> Option<T> {
        let item = items.pop_front();
        self.len.store(items.len(), Ordering::Release);
        item
    }
}

impl<T> fmt::Debug for LazyBatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyBatch").field(&self.len()).finish()
    }
}
