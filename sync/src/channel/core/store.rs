//! The stores of items that are sent and not yet received, first in, first out. The channel knows how many there may
//! be. A store is accessed under the channel's lock (N1 of [`super`]). Memory of a store is freed after that lock is
//! released (N3).

use std::collections::VecDeque;

/// An emptied store with more room than this gives its memory back.
const KEPT: usize = 1024;

/// Items on their way, first in, first out. Nothing here knows how many there may be.
pub(crate) trait Store<T>: Default {
    fn len(&self) -> usize;
    fn push(&mut self, item: T);
    fn pop(&mut self) -> Option<T>;
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
    fn len(&self) -> usize {
        usize::from(self.is_some())
    }

    fn push(&mut self, item: T) {
        *self = Some(item);
    }

    fn pop(&mut self) -> Option<T> {
        self.take()
    }

    fn has_memory(&self) -> bool {
        true
    }

    fn pops_shortly(&self) -> bool {
        self.is_some()
    }
}
