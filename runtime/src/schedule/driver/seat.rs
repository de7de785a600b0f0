//! A thread's seat, from the side of the thread, and the end of the runtime.
//!
//! A thread that exits drives what has begun on its seat to its end (`schedule/worker/driven/leave.rs`), or abandons it (`abandon.rs` beside that). Then the seat goes to others.
//!
//! When the last handle is dropped, the threads that may drive run the remaining work. The last seat that is given back after that takes the
//! runtime down. Work that is put aside or pushed later is ended by the thread that does so.

use std::fmt::Display;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::context::{ForeignContext, Reason};
use forebear_context::error::CancelReason;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::{Arc, ThreadBody, time};

use crate::cancel::unstarted;
use crate::cancel::{self, end_aside};
use crate::foreign;
use crate::record::arena;
use crate::record::dropping;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::report;
use crate::schedule::admission;
use crate::schedule::driver::limit::Limit;
use crate::schedule::worker::{HasWorkers, Worker};
use crate::shared::Shared;
use crate::shared::driven::{Driven, Seat};
use crate::shared::late_end::{LateStep, QUIET};
use crate::shared::thread;
use crate::time::deadlines::pass_time;

impl Seat {
    /// The worker record that the thread has taken.
    pub(crate) fn worker(&self) -> &Worker {
        &self.shared.workers()[self.index]
    }

    pub(super) fn pass_time(&self) -> bool {
        pass_time(&self.shared, None)
    }

    /// Called when nothing is ready. Lets pools admit members, lets time pass, and answers waits that nothing can end. Returns whether something
    /// is ready now. No virtual time passes beyond `until`. `fiber` is the thread's own.
    pub(crate) fn stirs(&self, fiber: &Fiber, until: Option<Instant>) -> bool {
        admission::unstick()
            || pass_time(&self.shared, until)
            || crate::schedule::worker::settle_stuck(std::slice::from_ref(self), fiber, false)
    }

    /// Steps until nothing is ready here, or the limit is over. `fiber` is the thread's own.
    pub(super) fn step_within(&self, fiber: &Fiber, mut limit: Limit) {
        while !limit.is_over(&self.shared) && self.worker().step(fiber) {
            limit.count();
        }
    }

    /// Drives until no work is left. `fiber` is the thread's own, and not in a wait.
    fn drain(&self, fiber: &Fiber) {
        // When the thread reports next that the end takes long, and the step that it took at the last report.
        let mut late = (Limit::of_call(QUIET), LateStep::Endless);
        loop {
            while !late.0.is_over(&self.shared) && self.worker().step_at_end(fiber, None) {
                late.0.count();
            }
            if self.worker().is_done() {
                return;
            }
            // Also while something is always ready.
            if !late.0.is_over(&self.shared) {
                if self.stirs(fiber, None) {
                    late.0.count();
                    continue;
                }
                // SAFETY: the thread's own fiber, which is not in a wait.
                unsafe { block_until_nudged(fiber, late.0.until()) };
                if late.0.until().is_none_or(|at| at > time::now()) {
                    continue;
                }
            }
            // The report and the abort find it there.
            self.worker().put_back_drawn();
            // What no cancel has ended by the second time is named again and waited for, however long: a frame that was left here could have lent a
            // reference to a thread-local on, and this thread lives on.
            let again = late.1 == LateStep::OneMore;
            late = (Limit::none(), (self.shared.calls.settle_late)(&self.shared));
            if late.1 == LateStep::OneMore && !again {
                late.0 = Limit::of_call(QUIET);
                cancel::read_messages(fiber);
                cancel::attend_messages(self.worker());
            }
        }
    }

    /// Gives the seat back; no stack is on it. If the runtime has no handle and no taken seat any more, this ends it.
    pub(super) fn give_back(&self) {
        self.worker().stand_up();
        let Some(driven) = &self.shared.driven else { return };
        driven.give_back(self.index);
        end_if_done(&self.shared);
    }

    /// The thread exits. Requests that have started here and not ended are abandoned, and do not continue.
    pub(crate) fn leave(&self) {
        self.worker().abandon_seat();
        self.give_back();
    }
}

/// Blocks the thread until it is nudged, or until then.
///
/// # Safety
///
/// `fiber` is the calling thread's own, and not in a wait.
pub(crate) unsafe fn block_until_nudged(fiber: &Fiber, until: Option<Instant>) {
    let context = fiber.context();
    // SAFETY: C2: by contract; C4: for nothing, and it is taken back below.
    let ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
    // SAFETY: the thread's own fiber is foreign, and this is its thread. It returns when it is nudged.
    let _ = unsafe { ForeignContext::block(context, until) };
    // SAFETY: C2: begun above, and not parked.
    unsafe { context.abandon(ticket) };
}

/// Whether this thread is inside the driver, which runs no user code itself.
fn is_driving(shared: &Shared, index: usize) -> bool {
    shared.workers()[index].driven_by().is_some_and(|driver| driver.is_driving())
}

/// The last handle was dropped. This thread runs the submitted work to its end, if it may drive; otherwise the threads with seats do, or a thread made for it.
pub(crate) fn handle_gone(shared: &Arc<Shared>) {
    shared.signals.stop();
    let Some(driven) = &shared.driven else { return };
    if let Some(fiber) = foreign::fiber()
        && !fiber.has_worker()
        // Inside a request, or in user code that the end of one calls, this does not wait for the end: the thread continues to drive when it next waits.
        && fiber.request().is_none()
        && !dropping::ends_any(fiber)
        && let Some(index) = foreign::seat(shared)
    {
        // Inside a `no_suspend` region nothing else runs on this thread. Its next wait, or its end, finds that the runtime stops.
        let in_region = fiber.context().no_suspend().get() != 0;
        if !in_region && !is_driving(shared, index) {
            let seat = Seat { shared: shared.clone(), index };
            seat.drain(fiber);
            foreign::forget_seat(shared);
            seat.give_back();
        }
        return;
    }
    if driven.any_taken() {
        // These threads find that the runtime stops when they have finished their present step.
        driven.nudge_all();
        return;
    }
    let theirs = shared.clone();
    let end = std::thread::Builder::new().name("forebear end".into()); // not modelled: it drives and ends
    let drive: ThreadBody = Box::new(move || {
        if let Some(fiber) = foreign::fiber()
            && let Some(index) = foreign::seat(&theirs)
        {
            let seat = Seat { shared: theirs.clone(), index };
            seat.drain(fiber);
            foreign::forget_seat(&theirs);
            seat.give_back();
        } else {
            end_undriven(&theirs, &"no stack could be had");
        }
    });
    if let Err(error) = end.spawn(drive) {
        end_undriven(shared, &error);
    }
}

/// No thread has a seat, and none can be had. So nothing has begun, and what is queued ends as cancelled.
#[cold]
fn end_undriven(shared: &Arc<Shared>, why: &dyn Display) {
    if shared.injector.key() != NO_KEY {
        let what = format!(
            "the last handle of runtime '{}' was dropped, and no thread can run what is queued, which is cancelled: {why}",
            shared.name
        );
        report::warn(&shared.hooks, &what);
    }
    end_if_done(shared);
}

/// Takes the runtime down when its last handle was dropped, and no seat is taken.
fn end_if_done(shared: &Arc<Shared>) {
    if shared.signals.is_stopping() && shared.driven.as_ref().is_some_and(Driven::ends) {
        let shared = shared.clone();
        thread::outside_a_wait(move || {
            while !shared.end_driven() {
                // A root was pushed since, and no thread will run it.
                cancel_roots(&shared);
            }
            end_aside(&shared);
            // SAFETY: no seat is taken, and no thread takes one any more.
            unsafe { shared.close() };
        });
    }
}

/// Ends the requests that were pushed and will not be run.
fn cancel_roots(shared: &Shared) {
    end_aside(shared);
    let mut refused = Vec::new();
    while shared.injector.key() != NO_KEY
        && let Some(header) = shared.injector.pop(NO_KEY)
    {
        refused.push(header);
    }
    // SAFETY: E1: the entries' links.
    unsafe { end_refused(refused) };
}

/// Ends the requests of entries that no worker will pop. Entries that were claimed elsewhere are only released.
///
/// # Safety
///
/// The entries' links are the caller's, and are given away.
pub(crate) unsafe fn end_refused(mut entries: Vec<NonNull<Header>>) {
    let stale: Vec<_> = entries
        .extract_if(.., |entry| {
            // SAFETY: by contract.
            let h = unsafe { entry.as_ref() };
            let claimed = h.word().claim_by_queue();
            if claimed {
                h.side_or_new().reason.set(Some(CancelReason::Shutdown));
            }
            !claimed
        })
        .collect();
    // SAFETY: claimed just now, with the entries' links for the runner's.
    unsafe { unstarted::end_all(&entries) };
    // Only now: what one of them has failed with may wait for what has just ended.
    // SAFETY: by contract.
    stale.into_iter().for_each(|entry| unsafe { arena::release(entry) });
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
