//! A waiter leaves its target before the target is over: its time limit has passed, or the waiter is cancelled and asks the target to cancel.
//!
//! | function | the leaver | who carries out the rest |
//! |---|---|---|
//! | [`leave`] | the waiter on a stack | this function |
//! | [`withdraw`] | a listener, which belongs to no stack | the caller |
//! | [`leave_declared`] | the edge of a dependent that ends or starts early | the caller, which also learns whether the edge was the last |
//! | [`mark_for_waiter`] | a waiter that has submitted its target and does not begin to wait | the caller |
//!
//! # The race
//!
//! *Leaving against the end of the target.* The waiter takes its node out of the list under the lock bit of the target's word. The finisher takes the
//! whole list with its terminal exchange; after that no thread gets the lock (W3). So the leaver either finds its node listed, or finds the target
//! terminal. In the second case the finisher still accesses the node and the list. The leaver waits until the finisher has released the node, and
//! only then gives up its count of the target.
//!
//! The side block, which stores the reason, is allocated before the lock is taken.

use std::ptr::{self, NonNull};

use forebear_context::context::WaitNode;
use forebear_context::error::CancelReason;

use super::ancestors::reason_for_children;
use super::demand::demand;
use super::{carry_out, is_cancelled};
use crate::record::fiber::{self, Fiber};
use crate::record::header::{DETACHED, Header};
use crate::shared::OfRuntime;
use crate::state::open::{self, Open};
use crate::state::word::{Cancel, Demand, SUBMITTED};

/// Whether a cancelled `waiter` that leaves `target` cancels it, too. It does not if the target belongs to others. That
/// is so if it was submitted other than by a wait, and its creator is no request, or another request that is neither
/// over nor cancelled.
pub(crate) fn asks(waiter: Option<&Header>, target: &Header) -> bool {
    let creator = target.parent().filter(|_| !target.is(DETACHED)).map(Header::identity);
    if let (Some(waiter), Some(creator)) = (waiter, creator)
        && ptr::eq(waiter.identity(), creator)
    {
        return true;
    }
    // One that is shielded lives on: its region's end asks this target, as its child.
    let lives = creator.is_none_or(|creator| !creator.bare.load().is_terminal() && !is_cancelled(creator));
    !(lives && target.word().load().has(SUBMITTED))
}

/// The reason for a target that is cancelled because its waiter is.
fn reason_of_waiter(fiber: Option<&Fiber>, target: &Header) -> CancelReason {
    let waiter = fiber.and_then(Fiber::request).map(Header::identity);
    match (waiter, target.parent().map(Header::identity)) {
        (Some(waiter), Some(parent)) if ptr::eq(waiter, parent) => reason_for_children(parent),
        _ => CancelReason::Asked,
    }
}

/// Leaves the target's list before the target ends: by a time-out, or (`asks`) the waiter's own cancel. `Err`: the
/// target is over, and its finisher has released the node.
///
/// # Safety
///
/// The node stands in the target's list, and its wait is settled by another cause; the caller has a count of the target.
pub(crate) unsafe fn leave(header: NonNull<Header>, node: &WaitNode, asks: bool) -> Result<(), ()> {
    // SAFETY: by contract.
    let left = unsafe { withdraw(header, node, asks) };
    match left {
        Ok(answer) => {
            // SAFETY: by contract, and by the answer.
            unsafe { carry_out(header, answer) };
            Ok(())
        }
        Err(()) => {
            node.await_release();
            Err(())
        }
    }
}

/// The same for a listener: it is out of the list then, and the list's count is the caller's. What the answer leaves to do is the caller's, too.
/// `Err`: the target is over, and its finisher has that count. The caller waits until the finisher has released the node.
///
/// # Safety
///
/// The node stands in the target's list, or its finisher has taken it out; the caller has a count of both.
pub(crate) unsafe fn withdraw(header: NonNull<Header>, node: &WaitNode, asks: bool) -> Result<Cancel, ()> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let reason = asks.then(|| (h.side_or_new(), reason_of_waiter(fiber::get(), h)));
    let left = h.word().leave(asks, |scan| {
        // SAFETY: Q1, Q2: under the lock; the node stands here.
        unsafe { h.waiters.unlink(node) };
        match scan {
            true => {
                if let Some((side, reason)) = reason
                    && side.reason.get().is_none()
                {
                    // A cancel that is remembered has its own.
                    side.reason.set(Some(reason));
                }
                demand(h)
            }
            false if h.waiters.is_empty() => Demand::Nobody,
            false => Demand::Idle,
        }
    });
    left.map_err(drop)
}

/// The same of an edge. `cancelled` is its dependent if that was claimed unstarted, as cancelled: it asks the dependency as a cancelled waiter does
/// that leaves. Else the dependent is to start, and asks for nothing. Answers what is left to do, and whether the edge was the last that was open;
/// `None` if the dependency is over, and its finisher closes the edge.
///
/// # Safety
///
/// The edge's node is listed, and the dependent set up; it is the caller's to take the edge out; the caller has a count of the dependency.
pub(crate) unsafe fn leave_declared(
    header: NonNull<Header>,
    node: &WaitNode,
    open: &Open,
    cancelled: Option<&Header>,
) -> Option<(Cancel, bool)> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let asks = cancelled.is_some_and(|dependent| asks(Some(dependent), h));
    let side = asks.then(|| h.side_or_new());
    let leave = |scan| {
        // SAFETY: Q1, Q2: under the lock; the node stands here.
        unsafe { h.waiters.unlink(node) };
        node.set_unlisted();
        match scan {
            true => {
                if let Some(side) = side.filter(|side| side.reason.get().is_none()) {
                    // A cancel that is remembered has its own.
                    side.reason.set(Some(CancelReason::Asked));
                }
                demand(h)
            }
            false if h.waiters.is_empty() => Demand::Nobody,
            false => Demand::Idle,
        }
    };
    // SAFETY: by contract.
    unsafe { open::leave(open, h.word(), asks, leave) }
}

/// An edge has been taken out of the list of its dependency by [`leave_declared`]. The lock that this takes is no word's, so it is called where no word's lock
/// is held. Runs no user code.
pub(crate) fn forget_edge(dependency: &Header) {
    if dependency.vtable.is_completion
        // SAFETY: M3: the caller has a count of it.
        && let Some(arena) = unsafe { dependency.arena.get().as_ref() }
    {
        arena.shared().forget_edge(NonNull::from(dependency));
    }
}

/// The waiter on `fiber` is cancelled, and has submitted for itself what it now will not wait for: asks for its cancellation. What the answer leaves
/// to do is the caller's.
pub(crate) fn mark_for_waiter(fiber: &Fiber, h: &Header) -> Cancel {
    let (side, reason) = (h.side_or_new(), reason_of_waiter(Some(fiber), h));
    h.word().cancel_locked(|| {
        if side.reason.get().is_none() {
            // A cancel that is remembered has its own.
            side.reason.set(Some(reason));
        }
        demand(h)
    })
}
