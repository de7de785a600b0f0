//! A number that stands for a thread.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed}; // not modelled: it orders nothing

/// A number that stands for a thread. Its owner writes it, and other threads read it at any time, as a hint.
#[derive(Debug, Default)]
pub struct ThreadNumber(AtomicUsize);

impl ThreadNumber {
    /// The number of no thread, 0.
    #[must_use]
    pub const fn none() -> ThreadNumber {
        ThreadNumber(AtomicUsize::new(0))
    }

    /// What it is now.
    #[inline(always)]
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Sets it. By the owner.
    #[inline(always)]
    pub fn set(&self, number: usize) {
        self.0.store(number, Relaxed);
    }
}
