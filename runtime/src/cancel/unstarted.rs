//! The end of requests that have not started: their callables are dropped and never run.
//!
//! The callable of a request that was never submitted may hold the last handle of another such request, and so on a million deep.
//! So the drop of such a callable is put off to the outermost drop on the same fiber, within the same request, which drops
//! them in a loop. Only callables of unsubmitted requests are put off. They are `'static`, so a later drop does no harm;
//! a value may borrow, so it is dropped at once.
//!
//! The outermost drop may be inside a destructor that waits: for a callable that was put off, or for what its drop brings about. So
//! when the stack waits, any thread may take what it has put off. The loop of its worker takes it like other requests that were put aside
//! ([`DropQueue::take`], `schedule/worker/marks.rs`). A foreign thread hands it over before it blocks ([`give_away_put_off`]). A destructor that waits
//! for the request whose captures it drops would wait for itself: that is a cycle ([`is_ending_on`](crate::record::dropping::is_ending_on)).
//!
//! # Several that are cancelled together
//!
//! A destructor in the captures of one request may wait for another request of the same list. If the canceller marked and ended them one by
//! one, that other request might never end. It may run until it is cancelled, or be held back by a pool that is about to release it. The thread
//! that would cancel it waits in the destructor. No wait leads to that thread, so no cycle would be found. Therefore the canceller marks all of
//! them first ([`Marked`]). Then it delivers the marks of those that have started, and only then it ends the others.

use std::cell::Cell;
use std::mem;
use std::ptr::{self, NonNull};

use forebear_context::context::with_foreign;
use forebear_context::error::CancelReason;

use super::sweep::mark as mark_shut;
use super::{carry_out, demand, leave_all_ends, leave_end, mark_orphan};
use crate::record::above::above;
use crate::record::any::AnyRequest;
use crate::record::arena;
use crate::record::cell::drop_callable_contained;
use crate::record::drop_queue::DropQueue;
use crate::record::dropping::queues_of;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{BORROWS, Header};
use crate::shared::worker::OnRecord;
use crate::state::word::{CANCELLED, Cancel};

/// Ends an unstarted request, which the caller has claimed and marked; it holds the runner's link.
///
/// # Safety
///
/// W1; the callable is `'static`.
pub(crate) unsafe fn end_unstarted(header: NonNull<Header>) {
    // SAFETY: W1 by contract, for whichever call ends it; its callable is `'static`, so it may be put off.
    unsafe {
        if !put_off(header) {
            end_claimed(header);
        }
    }
}

/// Ends several unstarted requests, which the caller has claimed and marked, with the runners' links. What may borrow is not put off.
///
/// # Safety
///
/// W1, for each.
unsafe fn end_marked(mut headers: Vec<NonNull<Header>>) {
    // What is put off last is ended first.
    headers.reverse();
    // SAFETY: W1 for each, by contract, so the header is there; what may borrow is not put off.
    headers.retain(|header| unsafe { may_borrow(header.as_ref()) || !put_off(*header) });
    headers.reverse();
    // SAFETY: by contract.
    unsafe { end_all(&headers) };
}

/// Whether the callable may borrow from a stack.
pub(super) fn may_borrow(h: &Header) -> bool {
    !h.scope.get().is_null() || h.is(BORROWS)
}

/// Requests with fresh marks, and what each mark has left to do. See the module head.
#[must_use = "what was claimed is to be ended"]
#[derive(Default)]
pub(crate) struct Marked(Vec<(AnyRequest, Cancel)>);

impl Marked {
    /// Marks a request, whatever demand there is. Runs no user code.
    pub(crate) fn abort(&mut self, request: AnyRequest, reason: CancelReason) {
        // Before the lock is taken: no allocation under it.
        let side = request.header().side_or_new();
        let answer = request.header().word().abort(|| side.reason.set(Some(reason)));
        self.push(request, answer);
    }

    /// Asks a request to be cancelled, as by [`cancel`](super::cancel). Runs no user code.
    pub(crate) fn cancel(&mut self, request: AnyRequest) {
        let h = request.header();
        let answer = h.word().cancel(|| demand(h));
        self.push(request, answer);
    }

    /// Marks a request as [`cancel_orphan`](super::cancel_orphan). Runs no user code.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    pub(crate) unsafe fn cancel_orphan(&mut self, header: NonNull<Header>) {
        // SAFETY: by contract.
        unsafe { self.add(header, mark_orphan(header.as_ref())) };
    }

    /// Marks a request because its runtime is shut. Runs no user code.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    pub(crate) unsafe fn refuse(&mut self, header: NonNull<Header>) {
        // SAFETY: by contract.
        unsafe { self.add(header, mark_shut(header.as_ref())) };
    }

    /// Adds a request that has just been marked, or not, with this answer.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    pub(crate) unsafe fn add(&mut self, header: NonNull<Header>, answer: Cancel) {
        if answer.leaves_work() {
            // SAFETY: by contract.
            self.0.push((unsafe { AnyRequest::linked(header) }, answer));
        }
    }

    fn push(&mut self, request: AnyRequest, answer: Cancel) {
        // SAFETY: the handle's link; the answer is fresh.
        #[cfg(mutant = "ended_as_marked")]
        let answer = unsafe {
            carry_out(request.raw(), answer);
            Cancel::Unasked
        };
        if answer.leaves_work() {
            self.0.push((request, answer));
        }
    }

    /// Delivers the marks of those that have started, and then ends the others.
    #[inline(always)]
    pub(crate) fn carry_out(self) {
        match self.0.is_empty() {
            // Without memory: requests are only added. So its destructor has nothing to do.
            true => mem::forget(self),
            false => self.carry_out_all(),
        }
    }

    #[cold]
    #[inline(never)]
    fn carry_out_all(self) {
        // SAFETY: claimed by the marks, with the runners' links.
        unsafe { end_marked(self.deliver()) };
    }

    /// The same where no user code may run, or where it could wait for what the caller does next: workers end the others.
    #[cold]
    pub(crate) fn carry_out_later(self) {
        // SAFETY: claimed by the marks, with the runners' links.
        unsafe { leave_all_ends(self.deliver()) };
    }

    /// Delivers the marks of those that have started. Answers the others, which are claimed.
    fn deliver(&self) -> Vec<NonNull<Header>> {
        let mut ended = Vec::new();
        for (request, answer) in &self.0 {
            match answer {
                Cancel::Ended => ended.push(request.raw()),
                // SAFETY: the handle's link; by `push`, the answer is fresh, and nobody else's.
                answer => _ = unsafe { carry_out(request.raw(), *answer) },
            }
        }
        ended
    }
}

/// Puts the end of an unstarted request off to the outermost drop on this stack. False: there is none.
///
/// # Safety
///
/// As [`end_unstarted`].
unsafe fn put_off(header: NonNull<Header>) -> bool {
    let put_off =
        |dropping: &Cell<*const DropQueue<Header>>, request: *const Header, fiber: Option<&Fiber>| {
            // SAFETY: a queue lies in a frame below this one on the same stack.
            let queue = unsafe { dropping.get().as_ref() }.filter(|queue| ptr::eq(queue.request, request))?;
            queue.put_off(header);
            if let Some(worker) = fiber.and_then(Fiber::worker_record) {
                worker.put_aside.put_off.insert(queue);
                worker.has_put_off();
            }
            Some(())
        };
    // A thread whose locals are being destroyed has a place for this too.
    let is_put_off = match fiber::get() {
        Some(fiber) => put_off(&fiber.dropping, fiber.request.get(), Some(fiber)),
        None => DROPPING.with(|dropping| put_off(dropping, ptr::null(), None)),
    };
    is_put_off.is_some()
}

forebear_context::shim::thread_local! {
    static DROPPING: Cell<*const DropQueue<Header>> = const { Cell::new(ptr::null()) };
}

/// Ends `header` and then `rest`, one after the other; destructors in between put further ends into a queue.
///
/// # Safety
///
/// As [`end_all`]. `dropping` is the place of the calling thread or of its current stack; `request` is null or lives while this
/// runs, and is on top of that stack.
unsafe fn end_in_turn(
    header: NonNull<Header>,
    rest: &[NonNull<Header>],
    dropping: &Cell<*const DropQueue<Header>>,
    request: *const Header,
    fiber: Option<&Fiber>,
) {
    let worker = fiber.and_then(Fiber::worker_record);
    let queue = DropQueue::new(request, header.as_ptr(), dropping.get());
    dropping.set(&queue);
    rest.iter().rev().for_each(|header| queue.put_off(*header));
    if !rest.is_empty()
        && let Some(worker) = worker
    {
        worker.put_aside.put_off.insert(&queue);
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
                (above().conclude)(header, CANCELLED, true, true);
            }
        }
        next = queue.take();
    }
    if queue.listed.get()
        && let Some(worker) = worker
    {
        worker.put_aside.put_off.remove(&queue);
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

/// Ends several, the first of them first: unstarted requests, as cancelled; or headers of such as have failed, and what they failed with. If code of
/// the user's waits meanwhile, others end those that are left: it may wait for one of them.
///
/// # Safety
///
/// For each: as [`end_claimed`]; or the request is over, and nobody else knows its header (W4).
pub(crate) unsafe fn end_all(headers: &[NonNull<Header>]) {
    let Some((first, rest)) = headers.split_first() else { return };
    if fiber::get().is_none() {
        // A thread that no runtime has met gets a fiber now: a wait of a destructor has to find what is ended here, and what is put off.
        with_foreign(|_| ());
    }
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
/// As [`end_all`].
#[inline(always)]
pub(crate) unsafe fn end_put_aside_on(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: by contract: the caller has the runner's link, which keeps the header.
    if unsafe { header.as_ref() }.word().load().is_terminal() {
        // SAFETY: by contract: the request is over, and the caller has its last link.
        return unsafe { arena::end(header) };
    }
    fiber.ends.set(header.as_ptr());
    // SAFETY: W1: by contract the caller has claimed the request, so its callable is dropped once.
    unsafe { drop_callable_contained(header) };
    fiber.ends.set(ptr::null());
    // SAFETY: W1, and the runner's link, by contract; this is the only end.
    unsafe { (above().conclude)(header, CANCELLED, true, true) };
}

/// Ends an unstarted request on the spot, as cancelled: callable dropped, callbacks called, waiters woken.
///
/// # Safety
///
/// W1; the runner's link is the caller's.
pub(crate) unsafe fn end_claimed(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe { end_all(&[header]) };
}
