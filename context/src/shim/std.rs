//! The names of the shim as std has them.
//!
//! With fibers on OS threads (`cfg(forebear_threads)`) the locks are instrumented ones.

pub use std::sync::Arc;
pub use std::thread::LocalKey;
pub use std::thread_local;

#[cfg(not(forebear_threads))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(forebear_threads)]
pub use self::instrumented::{Condvar, Mutex, MutexGuard, WaitTimeoutResult};

/// Atomic types and orders.
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };
}

/// Hints to the processor.
pub mod hint {
    pub use std::hint::spin_loop;
}

/// Threads.
pub mod thread {
    pub use std::thread::{Builder, JoinHandle, Thread, current, park, park_timeout, spawn, yield_now};
}

/// Time.
pub mod time {
    /// What time it is.
    #[inline(always)]
    #[must_use]
    pub fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}

/// A cell whose every access names its kind, so that loom can check it. Costs nothing here.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    #[inline(always)]
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// The value, out of the cell.
    #[inline(always)]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> UnsafeCell<T> {
    /// Calls `f` with a pointer that may be read from during the call.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer that may be written to during the call.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Locks with std's face that ThreadSanitizer sees.
///
/// std is shipped without instrumentation. The fast path of its mutex is inlined into our code and instrumented. The
/// path of a contended lock is not, so ThreadSanitizer misses the order that it makes, and reports false races. So in
/// the build for ThreadSanitizer, where the fibers are OS threads, locks are parking_lot's, compiled here like
/// everything else.
///
/// They are never poisoned; `Ok` is std's face only.
#[cfg(forebear_threads)]
mod instrumented {
    use std::sync::{LockResult, TryLockError, TryLockResult};
    use std::time::Duration;

    pub use parking_lot::{MutexGuard, WaitTimeoutResult};

    /// As [`std::sync::Mutex`].
    #[derive(Debug, Default)]
    pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        /// The value, out of the lock.
        ///
        /// # Errors
        ///
        /// None.
        pub fn into_inner(self) -> LockResult<T> {
            Ok(self.0.into_inner())
        }
    }

    impl<T: ?Sized> Mutex<T> {
        /// Blocks until the lock is the caller's.
        ///
        /// # Errors
        ///
        /// None.
        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            Ok(self.0.lock())
        }

        /// The lock, if it is free.
        ///
        /// # Errors
        ///
        /// [`TryLockError::WouldBlock`] if it is not.
        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            self.0.try_lock().ok_or(TryLockError::WouldBlock)
        }

        /// The value, by the only reference.
        ///
        /// # Errors
        ///
        /// None.
        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            Ok(self.0.get_mut())
        }
    }

    /// As [`std::sync::Condvar`].
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// A condition that nobody waits for.
        pub const fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        /// Unlocks, blocks until notified, and locks again.
        ///
        /// # Errors
        ///
        /// None.
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            self.0.wait(&mut guard);
            Ok(guard)
        }

        /// As [`wait`](Self::wait), for at most `time`.
        ///
        /// # Errors
        ///
        /// None.
        pub fn wait_timeout<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            time: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            let result = self.0.wait_for(&mut guard, time);
            Ok((guard, result))
        }

        /// Wakes one that waits.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all that wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
