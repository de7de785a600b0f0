//! The stores of items that are sent and not yet received, first in, first out. The channel knows how many there may
//! be. A store is accessed under the channel's lock (N1 of [`super`]). Memory of a store is freed after that lock is
//! released (N3). A [batch](super::batch) gets its items by an exchange with the store's memory, or in small numbers.

use std::collections::VecDeque;

/// An emptied store with more room than this gives its memory back.
const KEPT: usize = 1024;

/// A store whose memory has more bytes than this is not exchanged for a batch's.
const EXCHANGED: usize = 1 << 16;
/// Where the memory is not exchanged, so many bytes of items are moved to a batch at once, but one item at least, and at most
/// [`MOST`].
const MOVED: usize = 1 << 12;
/// See [`MOVED`].
const MOST: usize = 48;

/// Whether a store with room for so many items exchanges its memory for a batch's.
fn is_exchanged<T>(capacity: usize) -> bool {
    capacity <= KEPT && capacity * size_of::<T>() <= EXCHANGED
}

/// How many items at most are moved to a batch at once.
fn moved<T>() -> usize {
    (MOVED / size_of::<T>().max(1)).clamp(1, MOST)
}

/// The memory of a batch for a channel of this capacity.
pub(super) fn batch_memory<T>(capacity: usize) -> VecDeque<T> {
    VecDeque::with_capacity(if is_exchanged::<T>(capacity) { capacity } else { moved::<T>() })
}

/// Items on their way, first in, first out. Nothing here knows how many there may be.
pub(crate) trait Store<T>: Default {
    /// Whether receivers take several items at once, in a [batch](super::batch).
    const HAS_BATCHES: bool;

    fn len(&self) -> usize;
    fn push(&mut self, item: T);
    fn pop(&mut self) -> Option<T>;
    /// Moves its oldest items to `batch`, which is empty and has memory: all by an exchange, or a few. Takes no memory.
    fn move_to(&mut self, batch: &mut VecDeque<T>);
    /// Takes the items of a batch back. They are older than its own.
    fn move_back(&mut self, batch: &mut VecDeque<T>);
    /// Whether a push takes no memory.
    fn has_memory(&self) -> bool;
    /// Whether there is an item, and [`spare`](Self::spare) gives nothing once it has been popped.
    fn pops_shortly(&self) -> bool;
    /// Memory to be freed after the lock is released, if it is large.
    fn spare(&mut self) -> Option<Self> {
        None
    }
}

impl<T> Store<T> for VecDeque<T> {
    const HAS_BATCHES: bool = true;

    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn push(&mut self, item: T) {
        self.push_back(item);
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn move_to(&mut self, batch: &mut VecDeque<T>) {
        // So the memory of the batch does not become less.
        if is_exchanged::<T>(self.capacity()) && self.capacity() >= batch.capacity() {
            std::mem::swap(self, batch);
        } else {
            let many = self.len().min(moved::<T>()).min(batch.capacity());
            batch.extend(self.drain(..many));
        }
    }

    fn move_back(&mut self, batch: &mut VecDeque<T>) {
        while let Some(youngest) = batch.pop_back() {
            self.push_front(youngest);
        }
    }

    #[inline(always)]
    fn has_memory(&self) -> bool {
        self.len() < self.capacity()
    }

    #[inline(always)]
    fn pops_shortly(&self) -> bool {
        self.len() > usize::from(self.capacity() > KEPT)
    }

    #[inline(always)]
    fn spare(&mut self) -> Option<Self> {
        (self.is_empty() && self.capacity() > KEPT).then(|| std::mem::take(self))
    }
}

/// One item, in place.
impl<T> Store<T> for Option<T> {
    const HAS_BATCHES: bool = false;

    fn len(&self) -> usize {
        usize::from(self.is_some())
    }

    fn push(&mut self, item: T) {
        *self = Some(item);
    }

    fn pop(&mut self) -> Option<T> {
        self.take()
    }

    fn move_to(&mut self, _: &mut VecDeque<T>) {}

    fn move_back(&mut self, _: &mut VecDeque<T>) {}

    fn has_memory(&self) -> bool {
        true
    }

    fn pops_shortly(&self) -> bool {
        self.is_some()
    }
}
