//! The system's allocator with a count of the bytes in use. The count separates memory that malloc keeps from memory that the
//! program keeps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts what is in use.
#[derive(Debug)]
pub(crate) struct Counted(AtomicUsize);

impl Counted {
    /// Nothing is in use.
    pub(crate) const fn new() -> Counted {
        Counted(AtomicUsize::new(0))
    }

    /// How many bytes are in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Relaxed) as u64
    }
}

// SAFETY: all is handed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Wraps round, and so comes out right.
        self.0.fetch_add(size.wrapping_sub(layout.size()), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(at, layout, size) }
    }
}
