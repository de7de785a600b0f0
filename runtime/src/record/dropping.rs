//! What is being ended on a stack while code of the user's runs that may wait. That is the destructor of the captures of a request that has not started, as the
//! stack's [queues](crate::record::drop_queue) tell. Of a request that has started it is the destructor of a value or an error that nobody gets, and what is asked of an error
//! ([`crate::state::end_calls`]).
//!
//! Such a request is not on the stack any more, and what waits for it waits for the stack. So the search for cycles asks here.

use std::ptr;

use forebear_context::context::with_foreign;

use crate::record::drop_queue::DropQueue;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::state::end_calls::EndCall;

/// The queues of a stack, from the innermost.
pub(crate) fn queues_of(fiber: &Fiber) -> impl Iterator<Item = &DropQueue<Header>> {
    // SAFETY: they lie in frames of the stack, which calls or stands still.
    let at = |queue: *const DropQueue<Header>| unsafe { queue.as_ref() };
    std::iter::successors(at(fiber.dropping.get()), move |queue| at(queue.prev))
}

impl Fiber {
    /// Calls `f`, user code that belongs to the end of a request that is not over before it returns. On this fiber's stack.
    pub(crate) fn call_in_end<R>(&self, header: &Header, f: impl FnOnce() -> R) -> R {
        // SAFETY: EC1: on this fiber's stack; EC2: the caller ends the request, and what is on top of the stack is not over before this returns.
        unsafe { self.end_calls.call(header, self.request.get(), f) }
    }

    /// From the innermost.
    fn end_calls(&self) -> impl Iterator<Item = &EndCall<Header>> {
        // SAFETY: EC1: this is called on the fiber's stack, or while its wait is held.
        unsafe { self.end_calls.each() }
    }
}

/// As [`Fiber::call_in_end`], on the stack that this is called on.
pub(crate) fn call_in_end<R>(header: &Header, f: impl FnOnce() -> R) -> R {
    if fiber::get().is_none() {
        // A thread that no runtime has met gets a fiber now: a wait of `f` has to find what is ended here.
        with_foreign(|_| ());
    }
    match fiber::get() {
        Some(fiber) => fiber.call_in_end(header, f),
        None => f(),
    }
}

/// Whether the request is being ended on this stack, which calls, by user code that its end calls.
#[inline]
pub(crate) fn is_ending_on(fiber: &Fiber, header: &Header) -> bool {
    ptr::eq(fiber.ends.get(), header)
        || queues_of(fiber).any(|queue| ptr::eq(queue.ends.get(), header))
        || fiber.end_calls().any(|call| ptr::eq(call.header, header))
}

/// Whether any request is being ended on this stack, which calls, by user code that its end calls.
#[inline(always)]
pub(crate) fn ends_any(fiber: &Fiber) -> bool {
    // SAFETY: EC1: on this fiber's stack.
    let calls = unsafe { !fiber.end_calls.is_empty() };
    calls || !fiber.ends.get().is_null() || !fiber.dropping.get().is_null()
}

/// Calls `with` for each request that is being ended on this stack by user code that its end calls, and for what was on top of the stack
/// then. By the stack itself, or while its wait is held: then all of them stay, with the runner's links.
pub(crate) fn each_ended_on(fiber: &Fiber, mut with: impl FnMut(&Header, *const Header)) {
    let by_loop = (fiber.ends.get(), ptr::null());
    let by_queues = queues_of(fiber).map(|queue| (queue.ends.get(), queue.request));
    let by_calls = fiber.end_calls().map(|call| (call.header, call.below));
    for (header, below) in by_queues.chain(by_calls).chain([by_loop]) {
        // SAFETY: it is named from before the call until the call has returned, and is not over before.
        if let Some(h) = unsafe { header.as_ref() } {
            with(h, below);
        }
    }
}

/// Whether this one is among them.
pub(crate) fn is_dropped_on(fiber: &Fiber, header: &Header) -> bool {
    let mut found = false;
    each_ended_on(fiber, |h, _| found |= ptr::eq(h, header));
    found
}
