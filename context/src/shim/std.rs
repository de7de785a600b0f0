//! The names of the shim as std has them.

pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use std::thread::LocalKey;

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
