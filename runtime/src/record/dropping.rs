//! What is being ended on a stack while code of the user's runs that may wait: the destructors of the captures of a request that has not started, as the
//! stack's [queues](crate::record::drop_queue) tell; and that of a value that nobody gets, of a request that is over in all but its word ([`crate::record::value_drop`]).
//!
//! Neither is a request on the stack any more, and what waits for one waits for the stack. So the search for cycles asks here.

use std::ptr;

use crate::record::drop_queue::DropQueue;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::value_drop::ValueDrop;

/// The queues of a stack, from the innermost.
pub(crate) fn queues_of(fiber: &Fiber) -> impl Iterator<Item = &DropQueue<Header>> {
    // SAFETY: they lie in frames of the stack, which calls or stands still.
    let at = |queue: *const DropQueue<Header>| unsafe { queue.as_ref() };
    std::iter::successors(at(fiber.dropping.get()), move |queue| at(queue.prev))
}

impl Fiber {
    /// Calls `drop`, the destructor of the value of a request that is not over before it returns. On this fiber's stack. `drop` does not unwind.
    pub(crate) fn with_value_drop(&self, header: &Header, drop: impl FnOnce()) {
        let below = self.request.get();
        let entry = ValueDrop { header, below, prev: self.value_drops.get() };
        self.value_drops.set(&raw const entry);
        drop();
        self.value_drops.set(entry.prev);
    }

    /// From the innermost.
    fn value_drops(&self) -> impl Iterator<Item = &ValueDrop<Header>> {
        // SAFETY: they lie in frames of the stack, which calls or stands still.
        let at = |entry: *const ValueDrop<Header>| unsafe { entry.as_ref() };
        std::iter::successors(at(self.value_drops.get()), move |entry| at(entry.prev))
    }
}

/// Whether the request is being ended on this stack, which calls, by the destructor of its captures or its value.
#[inline]
pub(crate) fn is_ending_on(fiber: &Fiber, header: &Header) -> bool {
    ptr::eq(fiber.ends.get(), header)
        || queues_of(fiber).any(|queue| ptr::eq(queue.ends.get(), header))
        || fiber.value_drops().any(|entry| ptr::eq(entry.header, header))
}

/// Whether any request is being ended on this stack, which calls, by the destructor of its captures or its value.
#[inline(always)]
pub(crate) fn ends_any(fiber: &Fiber) -> bool {
    !fiber.ends.get().is_null() || !fiber.dropping.get().is_null() || !fiber.value_drops.get().is_null()
}

/// Calls `with` for each request whose captures or value are being dropped by its end on this stack, and for what was on top of the stack
/// then. By the stack itself, or while its wait is held: then all of them stay, with the runner's links.
pub(crate) fn each_ended_on(fiber: &Fiber, mut with: impl FnMut(&Header, *const Header)) {
    let by_loop = (fiber.ends.get(), ptr::null());
    let by_queues = queues_of(fiber).map(|queue| (queue.ends.get(), queue.request));
    let by_values = fiber.value_drops().map(|entry| (entry.header, entry.below));
    for (header, below) in by_queues.chain(by_values).chain([by_loop]) {
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
