//! Whether somebody will look what lies in the stock (`record/arena/stock.rs`), so that who puts something there need wake nobody.
//!
//! A worker that looks *watches*: it sleeps with a limit, and looks again, until nothing is there. Then it watches no more, and sleeps for as
//! long as nobody wakes it. Who gives something wakes a worker only if none watches; the one that he wakes counts as watching from then on.
//!
//! # The race
//!
//! A worker finds nothing, something is given, he who gave it sees that the worker watches, and the worker goes to sleep. So a worker that
//! has found nothing says first that it watches no more, and looks once again after that. All write the same word, each by an exchange:
//! if he who gives comes first, the worker's exchange sees his, and with it what he has given; if he comes second he sees that
//! nobody watches. Several workers may watch. The word then says only that one of them does, which is enough: each has looked again
//! after its own exchange, and wakes in time if there was something.

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
    /// A worker looks, and will look again.
    pub fn begin(&self) {
        // An exchange, not a store: who gave before, and counted on another one, may have to count on this one.
        self.0.swap(true, Ordering::AcqRel);
    }

    /// A worker has found nothing, and is about to sleep for good. Whether it is to look after all: `something` is there.
    #[inline]
    pub fn ends(&self, something: impl FnOnce() -> bool) -> bool {
        self.0.load(Ordering::Relaxed) && self.leave(something)
    }

    #[cold]
    fn leave(&self, something: impl FnOnce() -> bool) -> bool {
        let order = mutant!("watch_ends_unseeing", Ordering::Relaxed, Ordering::AcqRel);
        self.0.swap(false, order);
        mutant!("watch_ends_without_a_look", false, something())
    }

    /// Something has been given. Whether a worker is to be woken for it.
    #[must_use]
    pub fn wants_one(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
