//! What a stack has put off to the end of a destructor: unstarted requests that a destructor dropped. How they are ended is in
//! `cancel/unstarted.rs`.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use crate::record::fiber::Fiber;
use crate::record::header::Header;

/// An unstarted request that is being ended on a stack, and what was put off meanwhile; see the module head. It lies in a frame of that
/// stack. The stack's own thread touches it only; a worker does while it is on another of its stacks.
pub(crate) struct DropQueue {
    /// What is on top of the stack.
    pub request: *const Header,
    /// Whose captures are being dropped; null while anything else is done about its end.
    pub ends: Cell<*const Header>,
    /// What was put off, the latest first.
    head: Cell<*const Header>,
    /// The one further down on the same stack.
    pub prev: *const DropQueue,
    /// Whether the worker's list has it, and the next there.
    pub listed: Cell<bool>,
    next_listed: Cell<*const DropQueue>,
}

impl DropQueue {
    /// A queue above `prev` on the same stack, while the captures of `ends` are dropped.
    pub(crate) fn new(request: *const Header, ends: *const Header, prev: *const DropQueue) -> DropQueue {
        DropQueue {
            request,
            ends: Cell::new(ends),
            head: Cell::new(ptr::null()),
            prev,
            listed: Cell::new(false),
            next_listed: Cell::new(ptr::null()),
        }
    }

    /// Puts a claimed request off, with the runner's link.
    pub(crate) fn put_off(&self, header: NonNull<Header>) {
        // SAFETY: W1; it has not started, so it is on no fiber.
        unsafe { header.as_ref() }.set_next_return(self.head.get().cast_mut());
        self.head.set(header.as_ptr());
    }

    /// The latest that was put off.
    pub(crate) fn take(&self) -> Option<NonNull<Header>> {
        let header = NonNull::new(self.head.get().cast_mut())?;
        // SAFETY: it stands in this list, claimed.
        let h = unsafe { header.as_ref() };
        self.head.set(h.next_return());
        h.set_next_return(ptr::null_mut());
        Some(header)
    }

    /// Whether nothing is put off in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }
}

/// The queues of a worker's stacks in which something was put off. By the worker's thread.
pub(crate) struct DropQueues(Cell<*const DropQueue>);

impl DropQueues {
    pub(crate) const fn new() -> DropQueues {
        DropQueues(Cell::new(ptr::null()))
    }

    /// The queues in the list.
    fn each(&self) -> impl Iterator<Item = &DropQueue> {
        // SAFETY: a queue leaves the list before its frame goes. Stacks that are left behind keep their frames, and `forget` has come before.
        let at = |queue: *const DropQueue| unsafe { queue.as_ref() };
        std::iter::successors(at(self.0.get()), move |queue| at(queue.next_listed.get()))
    }

    /// Whether nothing is put off.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_null() || self.each().all(DropQueue::is_empty)
    }

    /// Something that was put off.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<NonNull<Header>> {
        if self.0.get().is_null() { None } else { self.each().find_map(DropQueue::take) }
    }

    pub(crate) fn insert(&self, queue: &DropQueue) {
        if !queue.listed.replace(true) {
            queue.next_listed.set(self.0.replace(queue));
        }
    }

    #[cold]
    pub(crate) fn remove(&self, queue: &DropQueue) {
        match self.each().find(|before| ptr::eq(before.next_listed.get(), queue)) {
            Some(before) => before.next_listed.set(queue.next_listed.get()),
            None if ptr::eq(self.0.get(), queue) => self.0.set(queue.next_listed.get()),
            None => {}
        }
    }

    /// The stacks are left behind, and nothing is put off on them.
    pub(crate) fn forget(&self) {
        self.0.set(ptr::null());
    }
}

/// The queues of a stack, from the innermost.
pub(crate) fn queues_of(fiber: &Fiber) -> impl Iterator<Item = &DropQueue> {
    // SAFETY: they lie in frames of the stack, which calls or stands still.
    let at = |queue: *const DropQueue| unsafe { queue.as_ref() };
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
