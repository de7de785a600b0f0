//! Ending requests that have not started, whose callables are dropped unrun.
//!
//! A request that was never submitted may hold, in its callable, the last handle of another, and so on a million deep.
//! The drop of such a callable is put off to the outermost drop on the same fiber, within the same request, which works
//! them off in a loop. Only callables of unsubmitted requests are put off: they are `'static`, so it does no harm if
//! they go a little later; a value may borrow.
//!
//! The outermost drop may be in the middle of a destructor that waits, perhaps for what was put off, or for what that does when it ends. So
//! what a stack has put off is anybody's as soon as that stack waits: the loop of its worker takes it like what was put aside
//! ([`DropQueue::take`], `schedule/worker/marks.rs`), and a foreign thread gives it away before it blocks ([`give_away_put_off`]). A destructor that waits
//! for the request whose captures it belongs to would wait for itself: that is a cycle ([`is_ending_on`]).

use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::drop_callable_contained;
use crate::cancel;
use crate::memory::arena;
use crate::record::header::Header;
use crate::schedule::finish;
use crate::schedule::worker::Worker;
use crate::stack::fiber::{self, Fiber};
use crate::state::word::CANCELLED;

/// An unstarted request that is being ended on a stack, and what was put off meanwhile; see the module head. It lies in a frame of that
/// stack. The stack's own thread touches it only; a worker does while it is on another of its stacks.
pub(crate) struct DropQueue {
    /// What is on top of the stack.
    request: *const Header,
    /// Whose captures are being dropped; null while anything else is done about its end.
    ends: Cell<*const Header>,
    /// What was put off, the latest first.
    head: Cell<*const Header>,
    /// The one further down on the same stack.
    prev: *const DropQueue,
    /// Whether the worker's list has it, and the next there.
    listed: Cell<bool>,
    next_listed: Cell<*const DropQueue>,
}

impl DropQueue {
    /// Puts a claimed request off, with the runner's link.
    fn put_off(&self, header: NonNull<Header>) {
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

    fn insert(&self, queue: &DropQueue) {
        if !queue.listed.replace(true) {
            queue.next_listed.set(self.0.replace(queue));
        }
    }

    #[cold]
    fn remove(&self, queue: &DropQueue) {
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

/// Ends an unstarted request, which the caller has claimed and marked; it holds the runner's link.
///
/// # Safety
///
/// W1; the callable is `'static`.
pub(crate) unsafe fn end_unstarted(header: NonNull<Header>) {
    let put_off = |dropping: &Cell<*const DropQueue>, request: *const Header, worker: Option<&Worker>| {
        // SAFETY: a queue lies in a frame below this one on the same stack.
        let queue = unsafe { dropping.get().as_ref() }.filter(|queue| ptr::eq(queue.request, request))?;
        queue.put_off(header);
        if let Some(worker) = worker {
            worker.put_off.insert(queue);
            worker.has_put_off();
        }
        Some(())
    };
    // A thread that the runtime has not met, or whose locals are being destroyed, has a place for this too.
    let is_put_off = match fiber::get() {
        Some(fiber) => put_off(&fiber.dropping, fiber.request.get(), fiber.worker()),
        None => DROPPING.with(|dropping| put_off(dropping, ptr::null(), None)),
    };
    if is_put_off.is_none() {
        // SAFETY: by contract.
        unsafe { end_claimed(header) };
    }
}

forebear_context::shim::thread_local! {
    static DROPPING: Cell<*const DropQueue> = const { Cell::new(ptr::null()) };
}

/// # Safety
///
/// As [`end_all`]. `dropping` is the place of the calling thread or of its current stack; `request` is null or lives while this
/// runs, and is on top of that stack.
unsafe fn end_in_turn(
    header: NonNull<Header>,
    rest: &[NonNull<Header>],
    dropping: &Cell<*const DropQueue>,
    request: *const Header,
    worker: Option<&Worker>,
) {
    let queue = DropQueue {
        request,
        ends: Cell::new(header.as_ptr()),
        head: Cell::new(ptr::null()),
        prev: dropping.get(),
        listed: Cell::new(false),
        next_listed: Cell::new(ptr::null()),
    };
    dropping.set(&queue);
    rest.iter().rev().for_each(|header| queue.put_off(*header));
    if !rest.is_empty()
        && let Some(worker) = worker
    {
        worker.put_off.insert(&queue);
        worker.has_put_off();
    }
    let mut next = Some(header);
    while let Some(header) = next {
        // SAFETY: by contract; what was put off is as this one. Panics are contained, so the loop gets to its end.
        unsafe {
            if header.as_ref().word().load().is_terminal() {
                arena::end(header);
            } else {
                queue.ends.set(header.as_ptr());
                drop_callable_contained(header);
                queue.ends.set(ptr::null());
                finish::conclude(header, CANCELLED, true, true);
            }
        }
        next = queue.take();
    }
    if queue.listed.get()
        && let Some(worker) = worker
    {
        worker.put_off.remove(&queue);
    }
    dropping.set(queue.prev);
}

/// The queues of a stack, from the innermost.
fn queues_of(fiber: &Fiber) -> impl Iterator<Item = &DropQueue> {
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

/// A foreign thread is about to block: others end what is put off on its stack.
#[cold]
pub(crate) fn give_away_put_off(fiber: &Fiber) {
    for queue in queues_of(fiber) {
        while let Some(header) = queue.take() {
            // SAFETY: it was claimed, with the runner's link.
            unsafe { cancel::leave_end(header) };
        }
    }
}

/// Ends what was put aside: an unstarted request, as cancelled; or the header of one that has failed, and what it failed with.
///
/// # Safety
///
/// As [`end_claimed`]; or the request is over, and nobody else knows its header (W4).
pub(crate) unsafe fn end_put_aside(header: NonNull<Header>) {
    // SAFETY: by the caller's contract.
    unsafe { end_all(&[header]) };
}

/// Ends several, the first of them first. If code of the user's waits meanwhile, others end those that are left: it may wait for one of them.
///
/// # Safety
///
/// As [`end_put_aside`], for each.
pub(crate) unsafe fn end_all(headers: &[NonNull<Header>]) {
    let Some((first, rest)) = headers.split_first() else { return };
    match fiber::get() {
        // SAFETY: by contract.
        Some(fiber) => unsafe {
            end_in_turn(*first, rest, &fiber.dropping, fiber.request.get(), fiber.worker());
        },
        // SAFETY: by contract.
        None => DROPPING.with(|dropping| unsafe { end_in_turn(*first, rest, dropping, ptr::null(), None) }),
    }
}

/// The same by the loop of a worker, on whose stack `fiber` nothing stands. Nothing is put off here, but by what a destructor ends in its turn.
///
/// # Safety
///
/// As [`end_put_aside`].
pub(crate) unsafe fn end_put_aside_on(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: by the caller's contract.
    unsafe {
        if header.as_ref().word().load().is_terminal() {
            return arena::end(header);
        }
        fiber.ends.set(header.as_ptr());
        drop_callable_contained(header);
        fiber.ends.set(ptr::null());
        finish::conclude(header, CANCELLED, true, true);
    }
}

/// Ends an unstarted request on the spot, as cancelled: callable dropped, callbacks called, waiters told.
///
/// # Safety
///
/// W1; the runner's link is the caller's.
pub(crate) unsafe fn end_claimed(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe { end_all(&[header]) };
}
