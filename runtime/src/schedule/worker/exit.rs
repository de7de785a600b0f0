//! A request on a worker ends the process by [`std::process::exit`], and destructors of the thread's thread-locals wait.
//!
//! # The danger
//!
//! The C library calls these destructors on the stack of that request. One of them may wait, so the worker would leave the stack and resume another request, which
//! was suspended inside `LocalKey::with`. So a frame might continue that uses a destroyed thread-local.
//!
//! # What is done
//!
//! Whenever a fiber is suspended on a worker, a call of [`exits`] is first in the C library's list of what is to be called at the exit
//! ([`crate::shared::exit_calls`]). So it comes before any thread-local is destroyed that a suspended frame may use. It opens a region on the stack that it is called on,
//! in which nothing may suspend, and which has no end. A wait of a destructor that has to suspend panics, as in any such region. std ends the process if that panic leaves
//! the destructor.
//!
//! A worker's thread that exits by itself is on no fiber: there the call does nothing.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::Worker;
use super::view::OnWorker;
use crate::record::fiber;

impl Worker {
    /// A fiber is about to be suspended, and another thread-local has been used on this thread since the last time.
    #[cold]
    #[inline(never)]
    pub(super) fn watch_exit(&self) {
        self.leaving_calls.register(exits);
    }
}

/// The thread destroys its thread-locals, but none that a suspended fiber uses has gone yet.
///
/// # Safety
///
/// None: it is `unsafe` for the type that the C library asks for.
unsafe extern "C" fn exits(_: *mut c_void) {
    let Some(fiber) = fiber::get() else { return };
    if let Some(worker) = fiber.worker() {
        worker.leaving_calls.end();
        let open = fiber.context().no_suspend();
        open.set(open.get() + 1);
        fiber.no_suspend.set(Some(NonNull::from("the end of the process")));
    }
}
