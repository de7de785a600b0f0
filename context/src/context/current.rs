//! The context of the stack that the calling code runs on.
//!
//! One pointer for each thread. The owner of a context sets it before it enters that context's stack, and sets another before it enters another, so on
//! every stack the pointer is that stack's own. It is null on a thread that no context belongs to yet. The context stays valid as long as it is current, by the contract
//! of [`set_current`]; the code on a stack may therefore follow the pointer without a count.

use std::cell::Cell;
use std::ptr::NonNull;

use super::Context;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
use crate::shim::atomic::Ordering;

#[cfg(not(loom))]
crate::shim::thread_local! {
    static CURRENT: Cell<Option<NonNull<Context>>> = const { Cell::new(None) };
}
#[cfg(loom)]
crate::shim::thread_local! {
    static CURRENT: Cell<Option<NonNull<Context>>> = Cell::new(None);
}

/// The context of the stack this is called on, if it has one already.
#[inline(always)]
pub fn current() -> Option<NonNull<Context>> {
    CURRENT.with(Cell::get)
}

/// Says which context's stack this thread is on. The owner calls it before it enters one.
///
/// # Safety
///
/// The context stays valid for as long as it is current.
#[inline(always)]
pub unsafe fn set_current(context: Option<NonNull<Context>>) {
    CURRENT.with(|c| c.set(context));
}

/// User code is about to be called on this stack, and may wait. Debug builds end the process if the stack is in the
/// middle of a wait, after [`begin`](Context::begin) and before [`park`](Context::park) has returned. That code might
/// begin another wait, and the ticket and the cause of the first would be lost.
#[inline(always)]
pub fn user_code() {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    if let Some(context) = CURRENT.try_with(Cell::get).ok().flatten() {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        let context = unsafe { context.as_ref() };
        if context.is_waiting() || context.parked.load(Ordering::Relaxed) {
            in_a_wait();
        }
    }
}

/// It does not panic: the panic would be caught where that of the user's code is.
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
#[cold]
fn in_a_wait() -> ! {
    // Not `eprintln!`, which a test's harness would capture and lose.
    let _ = std::io::Write::write_fmt(
        &mut std::io::stderr(),
        format_args!(
            "forebear: user code is called between the beginning and the end of a wait, at\n{}\n",
            std::backtrace::Backtrace::force_capture()
        ),
    );
    std::process::abort()
}

/// Whether the calling code runs inside a request.
#[must_use]
pub fn in_request() -> bool {
    current().is_some_and(|context| {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        let context = unsafe { context.as_ref() };
        // SAFETY: this is the stack of the context, as the table asks.
        unsafe { (context.table.in_request)(context) }
    })
}
