//! The attention word: one relaxed load at each fork, direct claim and yield shows what the running worker has to do.
//!
//! One word per worker. Any thread raises a bit by *or*; the worker clears it by *and*. A bit that is raised while the
//! worker clears it is lost. That is harmless only if the worker reads the cause of the bit after the clearing. So:
//! **clear first, then read**.

use std::ptr::NonNull;

use forebear_context::context::CANCEL_BITS;
use forebear_context::shim::atomic::{AtomicU32, Ordering};
use forebear_context::shim::mutant;

/// Somebody has nothing to do: publish the oldest of what is private.
pub const HUNGRY: u32 = 1;
/// Something older than what runs here is ready here, or is there to be taken: the next wait queues its target.
pub const OLDER: u32 = 2;
/// Another thread has left a message that a request of this worker has become more urgent.
pub const RAISED: u32 = 4;
/// Somebody has left word of a cancelled request, or requests that are cancelled have yet to be ended here.
pub const MESSAGE: u32 = 8;
/// A cancelled request that has started here is not over: what it makes is born cancelled, its waits are refused.
pub const MARKS: u32 = 16;
/// There is no loop of its own: a thread of the user's drives this worker ([`crate::schedule::driver`]), and every scheduling point
/// is its affair. Up for life.
pub const DRIVEN: u32 = 32;
/// The runtime is being shut down, and this worker has aborted its requests. Requests that are made or submitted here
/// from now on are refused, except in a shielded region. Never cleared.
pub const SHUT: u32 = 64;
/// Some request of this runtime has a deadline that has yet to come: a waiter here looks whether that concerns itself before it
/// lends its stack. Taken down by the first that finds none left.
pub const LIMITS: u32 = 128;
/// Another worker has published what stands in the private queue here. Taken down by this worker, which has then waited for that one
/// ([`crate::state::raid`]).
pub const RAIDED: u32 = 256;

/// This worker leaves requests of one callable unstarted for a while, so a pick compares the callable of what it would start. Only this worker
/// raises and clears the bit.
pub const HOLDS: u32 = 512;

// What a context reads without a call into the runtime.
const _: () = assert!(MESSAGE | MARKS == CANCEL_BITS);

/// See the module head.
#[derive(Debug, Default)]
pub struct Attention(AtomicU32);

impl Attention {
    /// Nothing to attend to.
    pub fn new() -> Attention {
        Attention(AtomicU32::new(0))
    }

    /// The word itself, for [`Context::show`](forebear_context::context::Context::show).
    pub fn word(&self) -> NonNull<AtomicU32> {
        NonNull::from(&self.0)
    }

    /// The bits that are up.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises `bits`. What they stand for was made visible before. Answers whether any was down.
    #[inline]
    pub fn raise(&self, bits: u32) -> bool {
        // A bit that is up needs no second store: thieves call this often.
        if self.0.load(Ordering::SeqCst) & bits == bits {
            return false;
        }
        mutant!("raise_by_store", {
            let up = self.0.load(Ordering::Acquire);
            self.0.store(up | bits, Ordering::Release);
            return up & bits != bits;
        });
        self.0.fetch_or(bits, Ordering::AcqRel) & bits != bits
    }

    /// The same, but always by an exchange, for causes that the worker must not miss. A mere load that finds the bits
    /// up may come before the worker clears them, and the worker may then read before the cause is visible. Of two
    /// exchanges one is the later. If it is the worker's, it has acquired the cause; if it is this one, it leaves the
    /// bits up.
    #[inline]
    pub fn insist(&self, bits: u32) {
        mutant!("message_raised_by_look", {
            self.raise(bits);
            return;
        });
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    /// Takes `bits` down; the worker then looks at what they stood for. Answers whether any was up.
    #[inline]
    pub fn clear(&self, bits: u32) -> bool {
        mutant!("clear_by_store", {
            let up = self.0.load(Ordering::Acquire);
            self.0.store(up & !bits, Ordering::Release);
            return up & bits != 0;
        });
        self.0.fetch_and(!bits, Ordering::SeqCst) & bits != 0
    }

    /// Answers the hungry: takes the bit down, and only then shows what there is. A thief that is hungry again after it
    /// has taken what was shown raises the bit anew; were it taken down afterwards, that order would be lost.
    #[inline]
    pub fn feed(&self, show: impl FnOnce()) {
        mutant!("hungry_cleared_late", {
            show();
            self.clear(HUNGRY);
            return;
        });
        self.clear(HUNGRY);
        show();
    }
}
