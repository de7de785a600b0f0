//! A request that learns of a cancel from the end of its target, before its own mark arrives.
//!
//! A canceller sets one mark after the other, and a message to the worker delivers each. Meanwhile a cancelled target may end, and its waiter learn
//! that the target was cancelled *because its parent was*. If the waiter descends from the same cancelled request, it is to be cancelled too, and
//! would be in any other order of these steps. So the waiter must not get the error that others have cancelled its target, and must not fail by it.
//!
//! # What is read
//!
//! 1. *The waiter's own mark*, in its word. [`refuses`](super::refuses) reads the worker's attention first, which the canceller raises
//!    after it has set the mark. That is early enough for a wait that returns a value. It is not for a wait whose target was
//!    cancelled *after* the waiter.
//! 2. *The ancestors' marks*, by [`ancestor_walk::draw_down`], from the lowest request on the stack to the one on top. A lender that is
//!    not marked yet would count as demand for the request that it lends its stack to.
//! 3. What aborts many requests one by one: the end of the runtime, and the end of the scope whose job the request is.
//!
//! [`is_told_of`] reads this where a wait finds that its target has no value, and [`ends_with`] where a request ends by an error that
//! says so. A wait that returns a value reads none of it.
//!
//! # Which requests are spared
//!
//! While a request runs, the usual demand spares it. When it *ends* by such an error, a waiter that descends from the cancelled
//! ancestor is no demand. The cancel will reach that waiter too, and only the outcome of the request is left to decide.

use std::ptr::{self, NonNull};

use forebear_context::error::CancelReason;

use super::{abort, cancel_for_ancestor, is_cancelled, is_cancelled_here, refuse, refused, wants};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::shared::worker::is_unwinding;
use crate::state::ancestor_walk::{self, Height};
use crate::state::word::{COMPLETING, MARKED};

/// A wait on this fiber is about to return that its target was cancelled for this reason, or (`None`) has failed. Whether it is
/// to return the caller's own cancel instead.
#[cold]
pub(crate) fn is_told_of(fiber: &Fiber, reason: Option<CancelReason>) -> bool {
    if is_unwinding(fiber) {
        return false;
    }
    if is_cancelled_here(fiber) {
        return true;
    }
    let (Some(top), Some(reason)) = (fiber.request(), reason) else { return false };
    draw(top, reason, false);
    is_cancelled_here(fiber)
}

/// A request ends by an error that says that its target was cancelled for this reason: has the cancel that reached the target reach
/// the request, too. Answers whether the request is to end as cancelled if it is marked by then.
///
/// By the thread that the request runs on, before it is over.
#[cold]
pub(crate) fn ends_with(h: &Header, reason: CancelReason) -> bool {
    let spread = is_spread(reason);
    if spread {
        draw(h, reason, true);
    }
    spread
}

/// Whether a target was cancelled along with others, and not for its own sake.
fn is_spread(reason: CancelReason) -> bool {
    use CancelReason::{
        Deadline, Parent, ParentFailed, PoolCancelled, ScopeUnwound, Shutdown, SiblingFailed,
    };
    matches!(
        reason,
        Parent | ParentFailed | SiblingFailed | ScopeUnwound | PoolCancelled | Deadline | Shutdown
    )
}

/// Marks `top`, and what it stands on, if what cancelled the target concerns them. `ends`: `top` is about to end.
fn draw(top: &Header, reason: CancelReason, ends: bool) {
    // SAFETY: what is below another on a stack is not over.
    let below = std::iter::successors(Some(top), |frame| unsafe { frame.lender.get().as_ref() });
    let frames: Vec<&Header> = below.collect();
    for frame in frames.into_iter().rev() {
        draw_to(frame.identity(), reason, ends && ptr::eq(frame, top));
    }
}

fn draw_to(h: &Header, reason: CancelReason, ends: bool) {
    if h.bare.load().has(MARKED) {
        return;
    }
    if reason == CancelReason::Shutdown && refused(h) {
        // SAFETY: it runs on this stack, or on the one that made this arm.
        unsafe { refuse(NonNull::from(h)) };
        return;
    }
    // SAFETY: the scope waits for this job, which is not over.
    if let Some(why) = unsafe { h.scope.get().as_ref() }.and_then(|scope| scope.stopped()) {
        // SAFETY: as above.
        unsafe { abort(NonNull::from(h), why) };
        return;
    }
    // Of any other reason only the next ancestor is asked: a deep family is not to be walked for each of its members.
    let height = match reason {
        CancelReason::Parent | CancelReason::Deadline => Height::Root,
        _ => Height::First,
    };
    ancestor_walk::draw_down(h, height, |next, cancelled| {
        let next = next.identity();
        let is_on_its_way =
            |waiter: &Header| ends && ptr::eq(next, h) && waiter.lineage.descends_from(&cancelled.lineage);
        // SAFETY: ancestors outlive who descends from them (H1).
        unsafe {
            cancel_for_ancestor(NonNull::from(next), |waiter, target| {
                wants(waiter, target) && !is_on_its_way(waiter)
            });
        }
        is_cancelled(next) || next.bare.load().life() >= COMPLETING
    });
}
