//! Groups: one word for the shared queues of eight workers.
//!
//! With at most eight workers a pick compares the keys of all shared queues, a cache line each. Above, that would grow with the
//! machine; there a picker reads the words of the groups and looks only into a group that may have something better.
//!
//! # The word
//!
//! It is about the best key of its members. A shared queue whose key falls *lowers* the word to it. Nobody raises the word when
//! the key goes again; who looks into the group and finds nothing as old as the word says *mends* it. Therefore:
//!
//! * **GR1** At rest the word is at most the key of every member. If it is less, a misled picker pays for a look into
//!   eight shared queues, once.
//!
//! # The race, and the argument
//!
//! A mender has read the keys, none of them old. A member publishes something old, finds the word low enough, and
//! leaves it. The mender raises the word, and what was published is hidden behind it. Therefore a lowering is an
//! exchange even if it changes nothing, and a mender reads the keys again after its exchange. One of the two exchanges
//! is the later. If it is the lowering, the word stays lowered. If it is the mending, it has acquired what the lowering
//! released. Then the second reading finds the key, and lowers the word to it.
//!
//! # What is bounded by it
//!
//! GR1 does not hold from a member's store of its key to its lowering, nor from a mender's exchange to the end of its
//! second reading. That takes a few instructions, or a time slice if the thread loses its core just there. The word is
//! a hint for order and for nothing else. A worker that is about to sleep polls all shared queues
//! (`schedule/worker/steal.rs`), and a picker does so now and then. [`ScanTurns`](crate::shared::ScanTurns) states the
//! bound.

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::mutant;

/// See the module head. On a line of its own: all pickers read it.
#[derive(Debug)]
#[repr(align(128))]
pub struct KeyGroup(AtomicU64);

impl KeyGroup {
    /// The word of shared queues that are empty.
    pub fn new() -> KeyGroup {
        KeyGroup(AtomicU64::new(NO_KEY))
    }

    /// What no member's best is older than (GR1).
    #[inline(always)]
    pub fn key(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A member has stored `key`, which is older than what it had.
    pub(super) fn lower(&self, key: u64) {
        #[cfg(mutant = "group_lowered_by_look")]
        if self.key() <= key {
            return;
        }
        let order = mutant!("group_lowered_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        self.0.fetch_min(key, order);
    }

    /// Raises the word to the `least` of the members' keys, if it still is what was `seen` and nobody has that.
    pub fn mend(&self, seen: u64, least: impl Fn() -> u64) {
        let order = mutant!("mended_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        let now = least();
        if now <= seen || self.0.compare_exchange(seen, now, order, Ordering::Relaxed).is_err() {
            return;
        }
        mutant!("mended_by_one_look", (), self.look_again(now, least));
    }

    /// Lowers it again to what came while it was raised.
    #[cfg_attr(mutant = "mended_by_one_look", expect(dead_code))]
    fn look_again(&self, now: u64, least: impl Fn() -> u64) {
        let again = least();
        if again < now {
            self.lower(again);
        }
    }
}

impl Default for KeyGroup {
    fn default() -> Self {
        Self::new()
    }
}
