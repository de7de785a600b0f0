//! Where one worker's thread blocks, and the token that ends the block.
//!
//! One word per worker:
//!
//! | state | meaning | who enters it |
//! |---|---|---|
//! | `EMPTY` | awake, without a token | the worker, when it consumes the token |
//! | `SLEEPING` | blocked, or about to block | the worker, from `EMPTY` only |
//! | `NOTIFIED` | there is a token | any thread, from any state |
//!
//! The word is only ever changed by read-modify-write steps, so all steps stand in one order. A token is one bit: two
//! wake-ups before the worker reads it are one. That is enough, because a worker that consumes a token checks *all*
//! sources of work afterwards.
//!
//! **Race.** The worker decides to block while another thread wakes it. Either the waker's swap comes first, then the
//! worker's exchange `EMPTY -> SLEEPING` fails and it does not block; or it comes second, then the waker reads `SLEEPING`
//! and unparks. The waker's swap releases and the worker's step acquires, so what the waker did before is seen after.
//!
//! **Spurious returns.** [`Parker::park`] may return without a token: other code may unpark the thread, or a tick
//! passes. Its caller checks for work and parks again; nothing here depends on the reason of a return.

use std::sync::PoisonError;
use std::time::Duration;

use forebear_context::shim::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire};
use forebear_context::shim::thread::{self, Thread};
use forebear_context::shim::{Mutex, mutant};

const EMPTY: u32 = 0;
const SLEEPING: u32 = 1;
const NOTIFIED: u32 = 2;

/// One worker's place to block. A cache line pair of its own: wakers of different workers must not meet.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Parker {
    state: AtomicU32,
    /// The thread to unpark; written once, by [`Parker::enter`], before the first `park`.
    thread: Mutex<Option<Thread>>,
}

impl Parker {
    pub(super) fn new() -> Parker {
        Parker { state: AtomicU32::new(EMPTY), thread: Mutex::new(None) }
    }

    /// Makes the calling thread the one that sleeps here.
    pub(super) fn enter(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
    }

    /// Whether there is a token.
    pub(super) fn has_token(&self) -> bool {
        self.state.load(Acquire) == NOTIFIED
    }

    /// Consumes the token, if there is one. What was made visible before it was left is visible afterwards.
    pub(super) fn clear(&self) {
        self.state.swap(EMPTY, AcqRel);
    }

    /// Blocks the calling thread until there is a token, `tick` has passed, or for no reason; consumes the token.
    pub(super) fn park(&self, tick: Option<Duration>) {
        if cfg!(any(forebear_threads, shuttle)) {
            // A worker's loop may be on another fiber than last time, and there every fiber is a thread of its own. Before
            // the exchange, so that a reader of `SLEEPING` finds the right one.
            self.enter();
        }
        let may_block = mutant!(
            "park_ignores_token",
            {
                self.state.swap(SLEEPING, AcqRel);
                true
            },
            self.state.compare_exchange(EMPTY, SLEEPING, AcqRel, Acquire).is_ok()
        );
        if may_block {
            match tick {
                None => thread::park(),
                Some(tick) => thread::park_timeout(tick),
            }
        }
        self.clear();
    }

    /// Leaves a token, and unblocks the worker if it was blocked.
    pub(super) fn wake(&self) {
        let was_asleep = mutant!(
            "wake_leaves_no_token",
            self.state.compare_exchange(SLEEPING, NOTIFIED, AcqRel, Acquire).is_ok(),
            self.state.swap(NOTIFIED, AcqRel) == SLEEPING
        );
        if was_asleep {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(thread) = thread {
                thread.unpark();
            }
        }
    }
}
