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
//! for the request whose captures it belongs to would wait for itself: that is a cycle ([`is_ending_on`](crate::record::drop_queue::is_ending_on)).

use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::leave_end;
use crate::record::arena;
use crate::record::cell::drop_callable_contained;
use crate::record::drop_queue::{DropQueue, queues_of};
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::schedule::finish;
use crate::state::word::CANCELLED;

/// Ends an unstarted request, which the caller has claimed and marked; it holds the runner's link.
///
/// # Safety
///
/// W1; the callable is `'static`.
pub(crate) unsafe fn end_unstarted(header: NonNull<Header>) {
    let put_off = |dropping: &Cell<*const DropQueue>, request: *const Header, fiber: Option<&Fiber>| {
        // SAFETY: a queue lies in a frame below this one on the same stack.
        let queue = unsafe { dropping.get().as_ref() }.filter(|queue| ptr::eq(queue.request, request))?;
        queue.put_off(header);
        if let Some(worker) = fiber.and_then(Fiber::worker) {
            worker.put_off.insert(queue);
            worker.has_put_off();
        }
        Some(())
    };
    // A thread that the runtime has not met, or whose locals are being destroyed, has a place for this too.
    let is_put_off = match fiber::get() {
        Some(fiber) => put_off(&fiber.dropping, fiber.request.get(), Some(fiber)),
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
    fiber: Option<&Fiber>,
) {
    let worker = fiber.and_then(Fiber::worker);
    let queue = DropQueue::new(request, header.as_ptr(), dropping.get());
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

/// A foreign thread is about to block: others end what is put off on its stack.
#[cold]
pub(crate) fn give_away_put_off(fiber: &Fiber) {
    for queue in queues_of(fiber) {
        while let Some(header) = queue.take() {
            // SAFETY: it was claimed, with the runner's link.
            unsafe { leave_end(header) };
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
            end_in_turn(*first, rest, &fiber.dropping, fiber.request.get(), Some(fiber));
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
