//! A count that one thread keeps and others read.

use forebear_context::shim::atomic::{AtomicU64, Ordering};

/// See the module head.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more. By the thread that keeps it.
    #[inline(always)]
    pub(crate) fn count(&self) {
        // Two plain instructions: there is one writer.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How many.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
