//! The names of the shim as loom has them.

pub use ::loom::cell::UnsafeCell;
pub use ::loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use ::loom::thread::LocalKey;
pub use ::loom::thread_local;

/// Atomic types and orders.
pub mod atomic {
    pub use ::loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };
}

/// Hints to the processor. A spinning thread lets the others continue.
pub mod hint {
    pub use ::loom::hint::spin_loop;
}

/// Threads. A park with a time-out is a yield: time does not pass in a model.
pub mod thread {
    pub use ::loom::thread::{Builder, JoinHandle, Thread, current, park, spawn, yield_now};

    /// In a model a time-out may always have passed already.
    pub fn park_timeout(_: std::time::Duration) {
        yield_now();
    }
}

/// Time.
pub mod time {
    /// What time it is.
    #[inline(always)]
    pub fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}
