//! What several threads of a test keep together, where ThreadSanitizer sees their order: it does not see std's locks, and
//! forebear's are what is tested.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A value behind a lock of its own.
#[derive(Default)]
pub(crate) struct Locked<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is touched under the lock alone.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Calls `f` with the value. It neither suspends nor panics.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        // SAFETY: under the lock.
        let done = f(unsafe { &mut *self.value.get() });
        self.locked.store(false, Ordering::Release);
        done
    }
}
