//! Whether some worker will return to the stock of spare memory (`record/arena/stock.rs`), so that a thread that puts memory there need wake none.
//!
//! A worker that trims the stock *watches*: it sleeps with a limit and checks again, until the stock is empty. Then it stops watching, and sleeps
//! without a limit. A thread that adds memory wakes a worker only if none watches; the worker that it wakes counts as watching from then on.
//!
//! # The race
//!
//! Lost wake-up: a worker finds the stock empty; another thread adds memory, finds `watching` set and wakes nobody; the worker then sleeps for
//! ever. So a worker that has found nothing first clears the word, and then checks the stock once more. Both sides write the same word by an
//! exchange. If the adding thread is first, the worker's exchange sees its write, and so the memory that it added. If it is second, it finds that
//! no worker watches, and wakes one. Several workers may watch. The word says only that one of them does, which is enough: each has checked
//! again after its own exchange, and wakes in time if the stock was not empty.

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::mutant;

/// See the module head.
#[derive(Debug)]
pub struct TrimWatch(AtomicBool);

impl Default for TrimWatch {
    fn default() -> TrimWatch {
        TrimWatch(AtomicBool::new(false))
    }
}

impl TrimWatch {
    /// A worker checks the stock, and will check again.
    pub fn begin(&self) {
        // An exchange, not a store: a thread that added memory before, and relied on another worker, may have to rely on this one.
        self.0.swap(true, Ordering::AcqRel);
    }

    /// A worker has found nothing, and is about to sleep without a limit. Answers whether it must check after all: there is `something`.
    #[inline]
    pub fn end(&self, something: impl FnOnce() -> bool) -> bool {
        self.0.load(Ordering::Relaxed) && self.leave(something)
    }

    #[cold]
    fn leave(&self, something: impl FnOnce() -> bool) -> bool {
        let order = mutant!("watch_ends_unseeing", Ordering::Relaxed, Ordering::AcqRel);
        self.0.swap(false, order);
        mutant!("watch_ends_without_a_look", false, something())
    }

    /// Memory was added. Answers whether the caller must wake a worker for it.
    #[must_use]
    pub fn needs_worker(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
