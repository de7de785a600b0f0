//! What is being ended on a stack without having started, as the stack's [queues](crate::record::drop_queue) tell.

use std::ptr;

use crate::record::drop_queue::DropQueue;
use crate::record::fiber::Fiber;
use crate::record::header::Header;

/// The queues of a stack, from the innermost.
pub(crate) fn queues_of(fiber: &Fiber) -> impl Iterator<Item = &DropQueue<Header>> {
    // SAFETY: they lie in frames of the stack, which calls or stands still.
    let at = |queue: *const DropQueue<Header>| unsafe { queue.as_ref() };
    std::iter::successors(at(fiber.dropping.get()), move |queue| at(queue.prev))
}

/// Whether the request is being ended on this stack, which calls, without having started.
#[inline]
pub(crate) fn is_ending_on(fiber: &Fiber, header: &Header) -> bool {
    ptr::eq(fiber.ends.get(), header) || queues_of(fiber).any(|queue| ptr::eq(queue.ends.get(), header))
}

/// Whether captures of any request that has not started are being dropped on this stack, which calls.
#[inline(always)]
pub(crate) fn ends_any(fiber: &Fiber) -> bool {
    !fiber.ends.get().is_null() || !fiber.dropping.get().is_null()
}

/// Calls `with` for each request whose captures are being dropped on this stack without its having started, and for what was on top of the stack
/// then. By the stack itself, or while its wait is held: then all of them stay, with the runner's links.
pub(crate) fn each_ended_on(fiber: &Fiber, mut with: impl FnMut(&Header, *const Header)) {
    let by_loop = (fiber.ends.get(), ptr::null());
    for (header, below) in queues_of(fiber).map(|queue| (queue.ends.get(), queue.request)).chain([by_loop]) {
        // SAFETY: it is named from before its captures are dropped until that has been done.
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
