//! How many slots of a slab lie free and warm, and whether these are to be trimmed.
//!
//! One word holds both the count and the mark that none is to stay warm. Several workers give back, trim and ask at once. If count and mark
//! were two words, a worker that finds a count of zero could clear a mark that another worker has just set for slots of its own.

use forebear_context::shim::atomic::AtomicUsize;
use forebear_context::shim::atomic::Ordering::Relaxed;

/// Fewer warm slots than this stay so: their memory will be wanted again.
pub(super) const TRIM_ABOVE: usize = 256;
/// None is to stay warm.
const NONE_STAYS: usize = 1;
const ONE: usize = 2;

/// The mark [`NONE_STAYS`], and the count above it. With a count of zero the mark says nothing.
#[derive(Debug)]
pub(super) struct Warm(AtomicUsize);

impl Warm {
    pub(super) fn new() -> Warm {
        Warm(AtomicUsize::new(0))
    }

    /// Slots that lie free; those that a worker is just trimming are among them.
    pub(super) fn count(&self) -> usize {
        self.0.load(Relaxed) / ONE
    }

    /// So many more lie free. A mark of before, when there were none, is over.
    pub(super) fn add(&self, slots: usize) {
        let added = |seen| Some(slots * ONE + if seen < ONE { 0 } else { seen });
        let _ = self.0.fetch_update(Relaxed, Relaxed, added);
    }

    /// So many were trimmed, or handed out.
    pub(super) fn remove(&self, slots: usize) {
        self.0.fetch_sub(slots * ONE, Relaxed);
    }

    /// What lies free now is to be trimmed until nothing is left.
    pub(super) fn let_none_stay(&self) {
        self.0.fetch_or(NONE_STAYS, Relaxed);
    }

    /// Whether so many lie free that their memory is to be given back.
    #[inline]
    pub(super) fn is_to_be_trimmed(&self) -> bool {
        let seen = self.0.load(Relaxed);
        seen / ONE >= if seen & NONE_STAYS == 0 { TRIM_ABOVE } else { 1 }
    }
}
