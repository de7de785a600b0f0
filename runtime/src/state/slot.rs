//! The word of a header that leads to its side block ([`crate::record::side`]), and to its first children while there is none.
//!
//! Nearly every request that suspends is in its parent's list of children ([`crate::record::children`]), and needs a
//! block for nothing else. So while a request has no block, the word holds the first of its children in that list
//! instead. A block takes it over, and the word then has the lowest bit set. A new header's word is null, as most of a
//! new header is.
//!
//! # Who may touch what
//!
//! Any thread that has a count may make the block; the second finds it. The list's head is its owner's (N1), in the word
//! as in the block. The one race is between the two: an owner that moves the head while another makes a block. Both go by
//! compare-exchange, so either the maker copies the new head, or the owner finds the block and writes there.
//!
//! # Invariants
//!
//! * **I1** The word is a block from `Box`, lowest bit set, or a header's address or null, lowest bit clear. Once it is a
//!   block it stays that block until [`BlockSlot::take`], which has the header alone.
//! * **I2** A block is published by a release and found by an acquire. Its head is written before that by its maker, after
//!   that by the owner of the list.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use forebear_context::shim::atomic::{AtomicPtr, Ordering};

/// What a slot may hold.
pub trait Block: Default {
    /// What stands in the list of children.
    type Child;

    /// The head of the list, once there is a block.
    fn first_child(&self) -> &Cell<*const Self::Child>;
}

/// See the module head.
pub struct BlockSlot<B: Block>(AtomicPtr<B>, PhantomData<*const B::Child>);

/// There is a block: the rest is its address.
const BLOCK: usize = 1;

#[inline(always)]
fn is_block<B>(word: *mut B) -> bool {
    word.addr() & BLOCK != 0
}

fn from_block<B>(block: *mut B) -> *mut B {
    block.map_addr(|address| address | BLOCK)
}

/// The block, of a word that is one.
#[inline(always)]
fn block<B>(word: *mut B) -> *mut B {
    word.map_addr(|address| address & !BLOCK)
}

fn from_head<B: Block>(first: *const B::Child) -> *mut B {
    first.cast_mut().cast()
}

fn head<B: Block>(word: *mut B) -> *const B::Child {
    word.cast_const().cast()
}

impl<B: Block> BlockSlot<B> {
    /// No block, no children.
    #[inline(always)]
    pub fn new() -> BlockSlot<B> {
        const { assert!(align_of::<B>() > BLOCK && align_of::<B::Child>() > BLOCK) };
        BlockSlot(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// The block, if there is one.
    #[inline(always)]
    pub fn get(&self) -> Option<&B> {
        let word = self.0.load(Ordering::Acquire);
        // SAFETY: I1, I2; it is freed with the header.
        is_block(word).then(|| unsafe { &*block(word) })
    }

    /// The block, made by `make` if need be.
    pub fn get_or_make(&self, make: impl FnOnce() -> Box<B>) -> &B {
        match self.get() {
            Some(side) => side,
            None => self.put(make()),
        }
    }

    /// Puts `side` in, before anybody else knows of the header; there is nothing yet.
    #[inline]
    pub fn put_first(&self, side: Box<B>) -> &B {
        let made = Box::into_raw(side);
        self.0.store(from_block(made), Ordering::Release);
        // SAFETY: freed with the header.
        unsafe { &*made }
    }

    /// Puts `side` in, unless there is a block; answers which there is.
    pub fn put(&self, side: Box<B>) -> &B {
        let mut seen = self.0.load(Ordering::Acquire);
        let made = Box::into_raw(side);
        #[cfg(mutant = "block_takes_over_once")]
        // SAFETY: `made` is still ours.
        unsafe { &*made }.first_child().set(head(seen));
        while !is_block(seen) {
            #[cfg(not(mutant = "block_takes_over_once"))]
            // SAFETY: `made` is still ours.
            unsafe { &*made }.first_child().set(head(seen));
            match self.0.compare_exchange(seen, from_block(made), Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: freed with the header.
                Ok(_) => return unsafe { &*made },
                Err(now) => seen = now,
            }
        }
        // SAFETY: `made` came from a box above, and was not shared.
        drop(unsafe { Box::from_raw(made) });
        // SAFETY: I1.
        unsafe { &*block(seen) }
    }

    /// Takes the block out.
    ///
    /// # Safety
    ///
    /// The caller has the header alone, and the list of children is empty.
    #[inline(always)]
    pub unsafe fn take(&self) -> Option<Box<B>> {
        // Acquire: a search for children may have made it for one that was over, which nothing else orders.
        let word = self.0.load(Ordering::Acquire);
        if !is_block(word) {
            return None;
        }
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: I1; freed once: the header does not lead here any more.
        Some(unsafe { Box::from_raw(block(word)) })
    }

    /// The first of the children in the list of children, or null.
    ///
    /// # Safety
    ///
    /// N1: by the list's owner.
    pub unsafe fn first_child(&self) -> *const B::Child {
        match self.0.load(Ordering::Acquire) {
            // SAFETY: I1, I2.
            word if is_block(word) => unsafe { &*block(word) }.first_child().get(),
            word => head(word),
        }
    }

    /// Says which child is the first.
    ///
    /// # Safety
    ///
    /// As [`first_child`](Self::first_child).
    pub unsafe fn set_first_child(&self, first: *const B::Child) {
        let mut seen = self.0.load(Ordering::Acquire);
        #[cfg(mutant = "children_by_store")]
        if !is_block(seen) {
            self.0.store(from_head(first), Ordering::Release);
            return;
        }
        while !is_block(seen) {
            match self.0.compare_exchange(seen, from_head(first), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        // SAFETY: I1, I2; N1.
        unsafe { &*block(seen) }.first_child().set(first);
    }
}

impl<B: Block> Default for BlockSlot<B> {
    fn default() -> BlockSlot<B> {
        BlockSlot::new()
    }
}

impl<B: Block> std::fmt::Debug for BlockSlot<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockSlot").field("has_block", &self.get().is_some()).finish_non_exhaustive()
    }
}
