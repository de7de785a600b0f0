//! The way out of a request: which thread ends it, by which function, and what follows.
//!
//! The thread that has claimed a request ends it, once (W1). It puts value or failure in place, makes the word terminal by one
//! exchange (W2), and wakes the waiters. Last it subtracts a job from its scope's count. The memory is freed when the counts
//! are zero ([`crate::record::arena`]).
//!
//! # Entry points
//!
//! | what happened | the ending thread | entry point |
//! |---|---|---|
//! | the callable returned a value; the request had no handle, no child, and no other thread knew of it | its worker | [`end_sole`]: no exchange |
//! | the same, and the maker takes the value | the waiter that ran it | `api/request/take.rs`, on the way of [`Request::take`](crate::Request::take): no word at all |
//! | the callable returned a value | its runner | [`finish`] |
//! | the callable returned an error, or panicked | its runner | [`fail`] |
//! | there was no stack for it | the claimer | [`fail_unstarted`], then [`fail`] |
//! | its completer gave a value, or an error | the completer's thread | [`conclude`], or [`fail`] (`api/completer.rs`) |
//! | it was cancelled before it started | the canceller, which claimed it by the mark | [`end_unstarted`](crate::cancel::unstarted::end_unstarted), see below |
//! | its last handle was dropped before it was submitted | the dropping thread | [`end_unstarted`](crate::cancel::unstarted::end_unstarted) |
//! | the runtime accepts no more roots; or the request's own deadline passed | the closing thread; the timer | `unstarted::end_all`; [`cancel::leave_end`] |
//! | its thread exits and leaves the stack behind | that thread | [`conclude`] (`schedule/worker/driven/abandon.rs`) |
//!
//! # What an end costs
//!
//! | way | value in place | failure in place | neither: cancelled unstarted, or abandoned |
//! |---|---|---|---|
//! | state still local to its maker, no child, not marked | a byte, `LocalStep::Done` ([`finish`]) | [`conclude`] | [`conclude`] |
//! | shared, no child, no mark, no callback, no deadline or one that its maker's worker keeps and ends | one exchange ([`finish`]) | [`conclude`] | [`conclude`] |
//! | children, a delivered mark, callbacks, a deadline | [`conclude`] | [`conclude`] | [`conclude`] |
//!
//! `outcome` (`state/word/end.rs`) decides the terminal state. A marked request that has a value ends cancelled; so does one that failed by
//! the error that a cancel gives. Any other failure stays a failure. [`conclude`] has six steps, in this order:
//!
//! 1. The children get a link and, unless the request finished, the cancel.
//! 2. A failure is noted for the scope.
//! 3. The callbacks run.
//! 4. The exchange makes the word terminal.
//! 5. The hook is called for a failure that no handle can read any more.
//! 6. [`notify_end`] wakes the waiters.
//!
//! # Ends of unstarted requests
//!
//! The end drops the captures of the callable, which is user code. Where that may run now, and where later:
//!
//! | the claimer | function of `cancel/unstarted.rs` | runs |
//! |---|---|---|
//! | drops no other captures on its stack | `end_unstarted` | at once |
//! | is inside the destructor of other captures | `end_unstarted` | after that destructor, in a loop, or on another worker if it waits |
//! | ends a request that may borrow (a scope's job, an arm) | `end_claimed` | at once, so that what it borrows outlives it |
//! | may run no user code (a worker that leaves a stack, the timer) | [`cancel::leave_end`] | on the worker's loop: `end_put_aside_on` |
//! | has several at once (a sweep, a closed queue) | `end_all` | in their order |
//!
//! All of them call [`conclude`] with `CANCELLED`.

use std::borrow::Cow;
use std::ptr::{self, NonNull};

use forebear_context::context::Listeners;
use forebear_context::error::{CancelReason, Error, Failure, SourceLocation, StackError};
use forebear_context::shim::atomic::Ordering;

use crate::cancel;
use crate::record::any;
use crate::record::arena;
use crate::record::cell;
use crate::record::children;
use crate::record::dropping;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{DELIVERED, Header, LIMITED};
use crate::record::no_value::NoValue;
use crate::record::report;
use crate::record::scope_core::ScopeCore;
use crate::schedule::callbacks;
use crate::schedule::dependents;
use crate::schedule::worker::OnWorker;
use crate::shared::OfRuntime;
use crate::state::due::Due;
use crate::state::word::{Bits, CANCELLED, FAILED, FINISHED, LocalStep, MARKED, SEEN, WAITERS, outcome};

/// Ends a request that was popped from this worker's own queue and has no handle: no thread can read how
/// it ended, so its word need not become terminal.
///
/// # Safety
///
/// W1, W8; it has no children, and was made here.
#[inline(always)]
pub(super) unsafe fn end_sole(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: by contract: no count but the runner's link, and no child.
    let h = unsafe { header.as_ref() };
    let scope = h.scope.get();
    let mut sole = true;
    if h.vtable.value_needs_drop {
        // SAFETY: W2: there is no handle.
        unsafe { cell::drop_value_at_end(header) };
        // The value's destructor may have made a handle of the request, or have suspended, so that the request is in a list of children.
        sole = h.bare.is_popped_sole() && !h.has_children();
    }
    if let (Some(worker), true) = (fiber.worker(), sole) {
        if !scope.is_null() {
            // Before the header ends; see `notify_end`.
            worker.job_done(scope);
        }
        // SAFETY: W8 still: only this thread knows value and header, and it owns the arena.
        unsafe { arena::end_child(worker.arena(), header) };
        return;
    }
    // SAFETY: W1.
    unsafe { finish(header, true) };
}

/// Ends a request whose value is in place: finished, or cancelled if it is marked.
///
/// # Safety
///
/// W1.
#[inline(always)]
pub(crate) unsafe fn finish(header: NonNull<Header>, runner_link: bool) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    if !h.has_children() && !h.has_state(DELIVERED) {
        // SAFETY: M3; a request whose state is local runs on the arena that it was made on.
        if h.bare.is_local() && unsafe { h.advance_local(&*h.arena.get(), h.local.stage(), LocalStep::Done) }
        {
            // It is no job of a scope: those are spawned, so never local.
            return;
        }
        let ended = match h.is(LIMITED) {
            // SAFETY: W1; no child.
            false => unsafe { finish_unmarked(header, runner_link) },
            // SAFETY: as above.
            true => unsafe { finish_in_time(header, runner_link) },
        };
        if ended {
            return;
        }
    }
    // SAFETY: W1.
    unsafe { conclude(header, FINISHED, false, runner_link) };
}

/// Makes the word terminal by one exchange, with the value that is in place. False: there are callbacks, or the request is marked.
///
/// # Safety
///
/// W1; it has no children, and `link` says whether a link is given up by the exchange.
#[inline(always)]
unsafe fn finish_unmarked(header: NonNull<Header>, link: bool) -> bool {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // Read now: after the exchange the header may be freed.
    let scope = h.scope.get();
    let finished = h.word().try_finish(link, |bits| {
        if bits.has(MARKED) {
            return None;
        }
        if bits.handles() == 0 {
            // SAFETY: W2: if no handle is left, none can come (W5).
            unsafe { cell::drop_value_at_end(header) };
        }
        Some(FINISHED)
    });
    if let Ok((before, after)) = finished {
        // SAFETY: by the exchange.
        unsafe { notify_end(header, before, after.life(), link && after.is_forgotten(), scope) };
    }
    finished.is_ok()
}

/// The same for a request with a deadline that its maker's worker keeps and that has not passed. The entry is disarmed first, so the same exchange
/// releases its link. No request is left to which the deadline applies: there are no children, and no callbacks that could make some.
///
/// # Safety
///
/// As [`finish_unmarked`], with a link of the runner or none.
#[inline(never)]
unsafe fn finish_in_time(header: NonNull<Header>, runner_link: bool) -> bool {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // SAFETY: M3.
    let (Some(due), Some(arena)) = (h.due(), unsafe { h.arena.get().as_ref() }) else { return false };
    let deadlines = &arena.shared().deadlines;
    // A request with a deadline is never local.
    Due::ends_in_time(
        &h.bare,
        runner_link,
        || deadlines.disarm_due_here(header, due),
        // SAFETY: W1; the entry's link, or the runner's in its place.
        || unsafe { finish_unmarked(header, true) },
        // SAFETY: W1; the entry's link.
        || unsafe { arm_anew(header, due) },
    )
}

/// Arms the deadline again that [`finish_in_time`] has disarmed: callbacks may still make children.
///
/// # Safety
///
/// W1; the link of the entry is still there.
#[cold]
unsafe fn arm_anew(header: NonNull<Header>, due: &Due) {
    // SAFETY: W1; M3; T4: that link.
    unsafe { (*header.as_ref().arena.get()).shared().arm_due(header, due) };
}

/// Ends a claimed request that has children, callbacks, a mark (an arm: its maker's), or no value. `life` is the result of its
/// callable. A mark turns it into [`CANCELLED`] if the callable finished, or (`of_cancel`) failed by the error that
/// a cancel gives.
///
/// # Safety
///
/// W1; value or failure is in place.
#[cold]
#[inline(never)]
pub(crate) unsafe fn conclude(header: NonNull<Header>, life: u64, of_cancel: bool, runner_link: bool) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    let decide = |bits: Bits| outcome(life, of_cancel, bits);
    let (scope, arena) = (h.scope.get(), h.arena.get());
    let due = h.due();
    if due.is_some() {
        // A link for the steps after the exchange.
        h.word().add_link();
    }
    let mut fixed = None;
    let mut noted = false;
    let mut unseen = None;
    loop {
        let expected = fixed.unwrap_or_else(|| decide(h.word().load()));
        // SAFETY: W1: the callable ran here, if it ran.
        unsafe { before_end(header, expected) };
        if expected == CANCELLED
            && !matches!(cancel::reason(h), CancelReason::Asked | CancelReason::Aborted | CancelReason::Other(_))
            // SAFETY: the scope waits for this job.
            && let Some(scope) = unsafe { scope.as_ref() }
        {
            scope.job_skipped();
        }
        if expected == FAILED && !noted {
            noted = true;
            // SAFETY: W1; the failure is in place.
            unsafe { tell_scope(header) };
        }
        let has_family = due.is_some_and(|due| keeps_for_family(h, due));
        let finished = h.word().try_finish(runner_link, |bits| {
            let life = fixed.unwrap_or_else(|| decide(bits));
            if (life == CANCELLED || bits.handles() == 0) && h.has_value.get() {
                // SAFETY: W2, as in `finish`.
                unsafe { cell::drop_value_at_end(header) };
            }
            if life == FAILED && bits.handles() == 0 && scope.is_null() && unseen.is_none() {
                // No handle is left and none can be made (W5), so the failure may be unhandled. With handles, this function may keep no
                // part of the failure: a waiter may drop the last of it as soon as it is woken.
                unseen = h.failure().cloned();
            }
            Some(life)
        });
        match finished {
            Ok((before, after)) => {
                // The runtime's record may be freed with the header's arena, so the hook is called first.
                if let Some(failure) = unseen
                    && !before.has(WAITERS)
                    && !before.has(SEEN)
                {
                    // SAFETY: M3: the finisher's arena keeps the record, and this one is the header's.
                    report::unseen_failure(
                        unsafe { arena.as_ref() }.map(|arena| &arena.shared().hooks),
                        &failure,
                    );
                }
                let forgotten = match due {
                    None => after.is_forgotten(),
                    Some(due) => end_due(h, due, has_family),
                };
                // SAFETY: by the exchange.
                unsafe { notify_end(header, before, after.life(), forgotten, scope) };
                return;
            }
            Err(_) => {
                // SAFETY: W1.
                fixed = Some(unsafe {
                    callbacks::run(header, &mut |bits| fixed.unwrap_or_else(|| decide(bits)))
                });
            }
        }
    }
}

/// Whether the deadline of a request that is about to end stays armed for the children that it leaves and that have no nearer one. Called by
/// its claimer.
#[cold]
fn keeps_for_family(h: &Header, due: &Due) -> bool {
    let nearest = || h.parent().and_then(Header::deadline).is_none_or(|above| due.at() < above);
    let has_family = h.has_children() && nearest();
    due.ends(has_family);
    has_family
}

/// A request with a deadline is terminal: disarms it unless its children keep it. The callee gets a link. Returns whether no count is left.
#[cold]
fn end_due(h: &Header, due: &Due, has_family: bool) -> bool {
    // SAFETY: M3.
    let arena = unsafe { h.arena.get().as_ref() };
    let take_back = |_| arena.is_some_and(|arena| arena.shared().deadlines.disarm_due(NonNull::from(h), due));
    if due.ended(has_family, take_back) {
        // Not the last: the callee's.
        h.word().release_link();
    }
    h.word().release_link()
}

/// Before the end: a link for the remaining children keeps the header (H1). Unless the request finished, they are asked to cancel.
///
/// # Safety
///
/// W1.
unsafe fn before_end(header: NonNull<Header>, life: u64) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    if h.take_state(DELIVERED)
        && let Some(worker) = fiber::get().and_then(Fiber::worker)
    {
        worker.count_marked(-1);
    }
    if !h.has_children() {
        return;
    }
    if !h.set_family(true) {
        // A link besides the runner's, which the terminal exchange releases: the header must have a count until then.
        h.word().add_link();
        if ptr::eq(h.arena.get(), h.ran_on.load(Ordering::Relaxed)) {
            // Its parent finds these children through it.
            children::link(h);
        }
    }
    // The children pass to the nearest ancestor that is not over. If that one is cancelled and only this request was spared, they are asked.
    // In a runtime that is shut down they may have been spared only because of this request.
    if life != FINISHED || h.came_late() || cancel::is_orphaned_by_cancel(h) || cancel::is_in_shut(h) {
        // SAFETY: this is the thread it ran on.
        unsafe { cancel::spread_at_end(header, (life == FAILED).then_some(CancelReason::ParentFailed)) };
    }
}

/// Notes a failure for the scope whose job the request is, before waiters can see the failure.
///
/// # Safety
///
/// W1; the failure is in place.
unsafe fn tell_scope(header: NonNull<Header>) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // SAFETY: the scope waits for this job.
    if let (Some(scope), Some(failure)) = (unsafe { h.scope.get().as_ref() }, h.failure()) {
        // A link, so that the scope can read whether a handle has read the failure.
        h.word().add_link();
        // Jobs that this cancels may end here, if their runtimes have no workers any more.
        dropping::call_in_end(h, || scope.job_failed(failure.clone(), header));
    }
}

/// After the terminal exchange, which found these bits and ended the request as `life`. Wakes the waiters, subtracts the
/// job from its scope's count, and ends the header if the exchange left no count. This is the last access to the
/// request. A request without a runner's link always has a count, its lender's.
///
/// The job is subtracted first. The end of its header may end that of its parent, and drop what the parent has failed with. The destructor of that
/// error may wait for the request that waits for the scope. The header borrows nothing (Z2).
///
/// # Safety
///
/// The caller made the exchange; `scope` was read before it.
#[inline(always)]
pub(crate) unsafe fn notify_end(
    header: NonNull<Header>,
    before: Bits,
    life: u64,
    forgotten: bool,
    scope: *const ScopeCore,
) {
    if before.has(WAITERS) {
        // SAFETY: W3: terminal, so the list belongs to this thread. The waiters hold counts until they are woken, and the owners of listeners until these are
        // released (LI3); the head is read before the first of them.
        let listeners = unsafe { header.as_ref().waiters.take().wake_all() };
        if !listeners.is_empty() {
            // SAFETY: by contract; all waiters are woken, so only the listeners are left.
            unsafe { notify_listeners(header, forgotten, scope, listeners, life) };
            return;
        }
    }
    // SAFETY: a scope waits until its count is zero, and this is the last access to it.
    if let Some(scope) = unsafe { scope.as_ref() } {
        scope.jobs_done(1);
    }
    if forgotten {
        // SAFETY: W4.
        unsafe { arena::end(header) };
    }
}

/// The rest of [`notify_end`] where there are listeners. They are notified last, since they may call user code, which may take long.
///
/// # Safety
///
/// As [`notify_end`].
#[cold]
#[inline(never)]
unsafe fn notify_listeners(
    header: NonNull<Header>,
    forgotten: bool,
    scope: *const ScopeCore,
    mut listeners: Listeners,
    life: u64,
) {
    // SAFETY: as in `notify_end`.
    if let Some(scope) = unsafe { scope.as_ref() } {
        scope.jobs_done(1);
    }
    // SAFETY: Q5: taken by the caller.
    unsafe { dependents::ended(header, &mut listeners) };
    if forgotten {
        // SAFETY: W4.
        unsafe { arena::end(header) };
    }
    listeners.notify(life);
}

/// Ends a claimed request whose callable returned no value.
///
/// # Safety
///
/// W1.
#[cold]
#[inline(never)]
pub(crate) unsafe fn fail(header: NonNull<Header>, ending: NoValue, runner_link: bool) {
    // SAFETY: W1.
    let h = unsafe { header.as_ref() };
    // User code: the error is asked for its sources, and dropped if no thread will read it. A mark stays.
    let failure = dropping::call_in_end(h, || {
        let (ending, mut of_cancel) = ending.looked_into();
        if let Some(reason) = ending.target_cancelled() {
            of_cancel |= cancel::ends_with(h, reason);
        }
        if of_cancel && h.identity().bare.load().has(MARKED) {
            forebear_context::error::internal::drop_contained(ending);
            return None;
        }
        Some((ending, of_cancel))
    });
    // SAFETY: W1 by contract: the failure is the claimer's to write, and is in place when the request is concluded.
    unsafe {
        let Some((ending, of_cancel)) = failure else {
            return conclude(header, CANCELLED, true, runner_link);
        };
        set_failure(h, ending);
        conclude(header, FAILED, of_cancel, runner_link);
    }
}

/// Puts the failure in place.
///
/// # Safety
///
/// W1: before the terminal exchange the failure is the claimer's.
pub(crate) unsafe fn set_failure(h: &Header, ending: NoValue) {
    let name = match h.side().and_then(|side| side.name.clone()) {
        Some(name) => name,
        None => Cow::Owned(h.name().to_owned()),
    };
    let born_at = h.side().and_then(|side| side.location).map(SourceLocation::from);
    let failure = match ending {
        NoValue::Error(error) => Failure::from_error(error, name, born_at),
        NoValue::Panic(payload) => {
            let location = report::take_location(h, &*payload).or(born_at);
            Failure::from_panic(payload, name, location)
        }
    };
    let failure = failure.at_end_of(any::drawn_id(h));
    // SAFETY: by contract.
    unsafe { *h.side_or_new().failure.get() = Some(failure) };
}

/// Ends a claimed request for which there is no stack: its callable is dropped and never runs.
///
/// # Safety
///
/// W1; the runner's link is the caller's.
#[cold]
pub(crate) unsafe fn fail_unstarted(fiber: &Fiber, header: NonNull<Header>, error: StackError) {
    // SAFETY: W1: the caller has claimed it, so its callable is there, to be dropped once; the runner's link goes with the end.
    unsafe {
        header.as_ref().ran_on.store(fiber.arena.get().cast_mut(), Ordering::Relaxed);
        fiber.call_in_end(header.as_ref(), || cell::drop_callable_contained(header));
        fail(header, NoValue::Error(Error::from(error)), true);
    }
}
