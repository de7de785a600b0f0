//! Which process a runtime belongs to: how many forks lie between the first process and the one that made it.
//!
//! The child handler of `pthread_atfork` counts the *generation* up (`api/runtime/fork.rs`), and each runtime notes it when it is made. A thread compares
//! the two where it comes from outside: when it makes, submits, awaits or cancels a request there, and when it ends the runtime. Requests
//! themselves, on a worker, never compare.

use forebear_context::shim::atomic::{AtomicU32, Ordering};

use crate::shared::Shared;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// This process's.
    #[inline]
    pub(crate) fn now() -> Generation {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// This process is a forked child. By its only thread.
    pub(crate) fn next() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Whether its threads are in the parent process.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.born != Generation::now()
    }

    /// A thread enters from outside.
    ///
    /// # Panics
    ///
    /// If the threads are in the parent process.
    #[inline]
    #[track_caller]
    pub(crate) fn check_process(&self) {
        if self.is_inherited() {
            refuse();
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn refuse() -> ! {
    panic!("forebear: this runtime's threads are in the parent process; build a new one after fork")
}
