//! What is held over a fork: the lock around the client of the process.
//!
//! A lock that another thread held at the fork stays locked in the child, where that thread is not. So the thread that forks takes it
//! before, and releases it after, in both processes: `pthread_atfork` calls three handlers on it. They allocate nothing.
//!
//! # Invariants
//!
//! * **F1** A thread that holds the lock neither waits nor forks. So a fork waits for the lock only briefly.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Once;

use super::process::{self, Held};

std::thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

extern "C" fn before() {
    let held = process::hold();
    // Without a place for it, in a thread that is about to go, it is not held.
    let _ = HELD.try_with(|place| *place.borrow_mut() = Some(held));
}

extern "C" fn after() {
    let _ = HELD.try_with(|place| place.borrow_mut().take());
}

/// Has the lock held over each fork from now on. Once in the life of the process, by the first who configures a client.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: F1: the handlers take a lock that no thread holds while it waits for the forking thread.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
        // Refused for want of memory only; then a child may hang, as it would have without.
        debug_assert_eq!(failed, 0);
    });
}
