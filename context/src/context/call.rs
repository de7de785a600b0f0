//! Whether a thread makes a call that a context elsewhere waits for.
//!
//! Such a thread runs no request, and is as little free to wait for all requests of a runtime: the caller is one of them.

use std::cell::Cell;

#[cfg(not(loom))]
crate::shim::thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}
#[cfg(loom)]
crate::shim::thread_local! {
    static CALLS: Cell<usize> = Cell::new(0);
}

/// Calls `f` for contexts that wait for it on other stacks: meanwhile [`is_for_another`] is true on this thread.
pub fn for_another<R>(f: impl FnOnce() -> R) -> R {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            _ = CALLS.try_with(|calls| calls.set(calls.get().saturating_sub(1)));
        }
    }
    _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ends = Ends;
    f()
}

/// Whether the calling thread is inside [`for_another`].
#[must_use]
pub fn is_for_another() -> bool {
    CALLS.try_with(|calls| calls.get() != 0).unwrap_or(false)
}
