//! What a stack has put off to the end of a destructor: unstarted requests that a destructor dropped. How they are ended is in
//! `cancel/unstarted.rs`.
//!
//! The captures of one such request may hold the last handle of another, and so on. Ended where they are dropped, a long line would need a frame for each. So
//! the outermost destructor has a queue in its frame, and works it off by a loop.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `request`, `prev` | written when the queue is made; read by the stack itself, and by a thread that holds the stack's wait |
//! | `ends` | the stack itself; read by such a thread |
//! | `head` | the stack itself; another stack of the same worker, while this one is left |
//! | `listed`, `next_listed` | the worker's thread |
//!
//! A queue is in its stack's list from its making to the end of its frame. It is in the worker's list ([`DropQueues`]) from the first request that was put off
//! until its frame ends, and leaves that list before the frame goes.

use std::cell::Cell;
use std::ptr::{self, NonNull};

/// A request as it stands in a queue.
///
/// # Safety
///
/// The link is the queue's while the request stands there.
pub(crate) unsafe trait PutOff: Sized {
    /// The next in the list.
    fn next_put_off(&self) -> *mut Self;
    /// Links it.
    fn set_next_put_off(&self, next: *mut Self);
}

/// An unstarted request that is being ended on a stack, and what was put off meanwhile; see the module head. `H` is a request's header. It lies in a frame of that
/// stack. The stack's own thread touches it only; a worker does while it is on another of its stacks.
pub(crate) struct DropQueue<H> {
    /// What is on top of the stack.
    pub request: *const H,
    /// Whose captures are being dropped; null while anything else is done about its end.
    pub ends: Cell<*const H>,
    /// What was put off, the latest first.
    head: Cell<*const H>,
    /// The one further down on the same stack.
    pub prev: *const DropQueue<H>,
    /// Whether the worker's list has it, and the next there.
    pub listed: Cell<bool>,
    next_listed: Cell<*const DropQueue<H>>,
}

impl<H: PutOff> DropQueue<H> {
    /// A queue above `prev` on the same stack, while the captures of `ends` are dropped.
    pub(crate) fn new(request: *const H, ends: *const H, prev: *const DropQueue<H>) -> DropQueue<H> {
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
    pub(crate) fn put_off(&self, header: NonNull<H>) {
        // SAFETY: W1; it has not started, so it is on no fiber.
        unsafe { header.as_ref() }.set_next_put_off(self.head.get().cast_mut());
        self.head.set(header.as_ptr());
    }

    /// The latest that was put off.
    pub(crate) fn take(&self) -> Option<NonNull<H>> {
        let header = NonNull::new(self.head.get().cast_mut())?;
        // SAFETY: it stands in this list, claimed.
        let h = unsafe { header.as_ref() };
        self.head.set(h.next_put_off());
        h.set_next_put_off(ptr::null_mut());
        Some(header)
    }

    /// Whether nothing is put off in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }
}

/// The queues of a worker's stacks in which something was put off. By the worker's thread.
pub(crate) struct DropQueues<H>(Cell<*const DropQueue<H>>);

impl<H: PutOff> DropQueues<H> {
    pub(crate) const fn new() -> DropQueues<H> {
        DropQueues(Cell::new(ptr::null()))
    }

    /// The queues in the list.
    fn each(&self) -> impl Iterator<Item = &DropQueue<H>> {
        // SAFETY: a queue leaves the list before its frame goes. Stacks that are left behind keep their frames, and `forget` has come before.
        let at = |queue: *const DropQueue<H>| unsafe { queue.as_ref() };
        std::iter::successors(at(self.0.get()), move |queue| at(queue.next_listed.get()))
    }

    /// Whether nothing is put off.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_null() || self.each().all(DropQueue::is_empty)
    }

    /// Something that was put off.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<NonNull<H>> {
        if self.0.get().is_null() { None } else { self.each().find_map(DropQueue::take) }
    }

    pub(crate) fn insert(&self, queue: &DropQueue<H>) {
        if !queue.listed.replace(true) {
            queue.next_listed.set(self.0.replace(queue));
        }
    }

    #[cold]
    pub(crate) fn remove(&self, queue: &DropQueue<H>) {
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
