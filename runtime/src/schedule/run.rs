//! Running a claimed request.
//!
//! The claimer runs the callable on its own fiber: a coroutine of the worker's loop, or the stack of a waiter, which lends it. While the callable runs,
//! the request is on top of the fiber. [`super::finish`] has its end.

use std::ptr::{self, NonNull};

use forebear_context::shim::atomic::Ordering;

use crate::foreign;
use crate::record::arena::{self, Arena};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::finish::{end_sole, fail, finish};
use crate::schedule::worker::OnWorker;
use crate::shared::OfRuntime;

/// Runs a request from a queue, on a fiber that has nothing on top.
///
/// # Safety
///
/// The request is claimed; the runner's link is the caller's.
#[inline(always)]
pub(crate) unsafe fn start(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: the runner's link.
    let h = unsafe { header.as_ref() };
    if ptr::eq(h.arena.get(), fiber.arena.get())
        && h.bare.is_popped_sole()
        && h.parent().is_some_and(|parent| parent.has_family())
    {
        // SAFETY: this worker popped it from its own queue, and no other thread knows of it.
        unsafe { arena::take_place(header) };
    }
    fiber.urgency.store(h.urgency(), Ordering::Relaxed);
    // SAFETY: by contract.
    unsafe { execute(fiber, header, true) };
}

/// Runs a request whose waiter lends its stack.
///
/// # Safety
///
/// The request is claimed as lent: no runner's link; the waiter holds a handle.
#[inline(always)]
pub(crate) unsafe fn lend(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: the waiter's handle.
    let key = unsafe { header.as_ref() }.urgency();
    let before = fiber.urgency.load(Ordering::Relaxed);
    if key < before {
        // The stack is as urgent as the most urgent request on it.
        fiber.urgency.store(key, Ordering::Relaxed);
    }
    // SAFETY: by contract.
    unsafe { execute(fiber, header, false) };
    if key < before {
        fiber.urgency.store(before, Ordering::Relaxed);
    }
}

/// Puts a claimed request on top of this fiber. Returns the request below it.
///
/// # Safety
///
/// W1: the caller has claimed the request. `fiber` is the calling thread's.
#[inline(always)]
pub(crate) unsafe fn put_on_top(fiber: &Fiber, header: NonNull<Header>) -> *const Header {
    // SAFETY: claimed by the caller.
    let h = unsafe { header.as_ref() };
    h.ran_on.store(fiber.arena.get().cast_mut(), Ordering::Release);
    // A foreign fiber may be freed when another thread reads this, so readers only compare the pointer; see `ran_on`.
    h.fiber.store(ptr::from_ref(fiber).cast_mut(), Ordering::Release);
    let below = fiber.request.replace(header.as_ptr());
    h.lender.set(below);
    below
}

/// Runs the callable with the request on top of the fiber, and ends the request.
///
/// # Safety
///
/// W1: the caller has claimed the request. `fiber` is the calling thread's; with `runner_link` a link of the
/// request is the callee's.
#[inline(always)]
unsafe fn execute(fiber: &Fiber, header: NonNull<Header>, runner_link: bool) {
    // SAFETY: claimed by the caller.
    let h = unsafe { header.as_ref() };
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::schedule::worker::after_the_claim(h);
    // SAFETY: by contract.
    let below = unsafe { put_on_top(fiber, header) };
    // SAFETY: W1: claimed; the value's place is the callable's, which `call` has moved out by then.
    let ending = unsafe { (h.vtable.call)(header, Header::value::<()>(header).as_ptr()) };
    fiber.request.set(below);
    // SAFETY: W1, for whichever call ends it. For `end_sole` W8 besides: it was popped, has no other count and no child, and its arena is
    // this fiber's.
    unsafe {
        match ending {
            None => {
                h.has_value.set(true);
                if runner_link
                    && h.bare.is_popped_sole()
                    && !h.has_children()
                    && ptr::eq(h.arena.get(), fiber.arena.get())
                {
                    end_sole(fiber, header);
                } else {
                    finish(header, runner_link);
                }
            }
            Some(ending) => fail(header, *ending, runner_link),
        }
    }
}

/// Calls `f` with the request on top of this thread's fiber, for code other than its callable that runs as this request.
pub(crate) fn on_top(header: NonNull<Header>, f: impl FnOnce()) {
    // SAFETY: the caller has claimed it.
    let h = unsafe { header.as_ref() };
    // SAFETY: M3.
    let of = unsafe { h.arena.get().as_ref() };
    let (Some(fiber), Some(of)) = (foreign::fiber(), of) else { return f() };
    let shared = of.shared().arc();
    let worker = fiber.worker().filter(|worker| ptr::eq(worker.shared(), &*shared));
    let arena: *const Arena = match worker {
        Some(worker) => worker.arena(),
        // Also on a worker of another runtime: this thread's own.
        None => match foreign::arena_for(&shared) {
            Some(arena) => arena.as_ptr(),
            None => return f(),
        },
    };
    if h.ran_on.load(Ordering::Relaxed).is_null() {
        // It never ran: requests that it makes now are made on this arena.
        h.ran_on.store(arena.cast_mut(), Ordering::Release);
        h.lender.set(fiber.request.get());
    }
    h.fiber.store(ptr::from_ref(fiber).cast_mut(), Ordering::Release);
    let below = fiber.request.replace(header.as_ptr());
    // There the fast paths, which take the arena for the worker's, must be off.
    let keeps = worker.is_some() || !fiber.has_worker();
    let arena = fiber.arena.replace(if keeps { arena } else { ptr::null() });
    let entered =
        fiber.entered.replace(if worker.is_some() { ptr::null() } else { shared.record_ptr().as_ptr() });
    f();
    fiber.entered.set(entered);
    fiber.arena.set(arena);
    fiber.request.set(below);
}
