//! Which process the threads of an engine, or of a runtime, are in: how many forks lie between the first process and the one that started it.
//!
//! A forked child has the memory of its parent and one thread, the one that called `fork`. No worker ever takes what is queued there, and a
//! lock that another thread held stays locked. So an engine notes its *generation* when it starts, and its owner refuses in any later one what needs threads or
//! locks. The child handler of `pthread_atfork` counts the generation up.
//!
//! A process that is made without the C library's `fork` is not counted.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed}; // not modelled: it changes in a forked child, which has one thread

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and one of its descendants.
///
/// ```
/// use forebear::pool::engine::Generation;
///
/// let born = Generation::of_process();
/// // Later, perhaps in a forked child, which has none of the threads that were there.
/// assert!(!born.is_inherited(), "this process has not been forked from another since");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// This process's. Forks are counted from the first call on.
    #[must_use]
    pub fn of_process() -> Generation {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        Generation(GENERATION.load(Relaxed))
    }

    /// Whether this process was forked from that one.
    #[must_use]
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != GENERATION.load(Relaxed)
    }
}

#[cfg(unix)]
fn install() {
    /// Called in a child by its only thread.
    ///
    /// # Safety
    ///
    /// None: it is `unsafe` for the type that `pthread_atfork` asks for.
    unsafe extern "C" fn in_child() {
        GENERATION.fetch_add(1, Relaxed);
    }
    // SAFETY: the handler is a function of this type. It takes no lock and allocates nothing.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // Refused for want of memory only; then a child that uses a pool hangs, as it would have without.
    debug_assert_eq!(failed, 0);
}

#[cfg(not(unix))]
fn install() {}
