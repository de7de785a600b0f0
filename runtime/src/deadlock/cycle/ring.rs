//! The waits of a cycle, held: how it is made sure of, and how one of them is ended.
//!
//! A walk reads edges one by one, and what it has read may have changed by the time it is back at its start. So [`collect`] goes round once more and *holds* each
//! wait before it reads where that leads. A held wait neither ends nor changes, hence a ring that closes stands as a whole at one moment. All
//! are let go before one of them is ended, since a held wait does not end. If another thread has ended it meanwhile, nothing is left to do.

use std::ptr::{self, NonNull};

use forebear_context::context::edge::{Ahead, Guide, Held};
use forebear_context::context::{Cause, Context, Reason, unpark};
use forebear_context::error::Cycle;

use super::LONGEST;
use super::found::lock_found;
use super::names::name;
use super::waiters::is_part_here;
use crate::cancel;
use crate::record::fiber::Fiber;

/// Holds the waits from `start` until one that leads back there. `None`: there is no such way any more.
///
/// # Safety
///
/// Foreign stacks are kept; the caller has walked along here.
pub(super) unsafe fn collect<'a>(start: NonNull<Context>, guide: &mut dyn Guide) -> Option<Vec<Held<'a>>> {
    let mut ring = Vec::new();
    let mut at = start;
    for _ in 0..LONGEST {
        // SAFETY: Y1, Y2: `start`, or where an edge leads whose wait is held.
        let context = unsafe { at.as_ref() };
        if ring.iter().any(|held: &Held<'_>| ptr::eq(held.context(), context)) {
            // Round, but not by `start`: the edges have changed.
            return None;
        }
        let held = context.hold_in_turn(context.edge()?.ticket)?;
        let ahead = held.ahead();
        if is_ending(&held) {
            return None;
        }
        ring.push(held);
        match ahead {
            Ahead::Stack { context, .. } if context == start => return Some(ring),
            Ahead::Stack { context, .. } => at = context,
            Ahead::Owner(wait) => {
                // SAFETY: the wait is held, so its record stays.
                let wait = unsafe { wait.as_ref() };
                // SAFETY: as above, so the lock of the wait stays too.
                let holder = unsafe { wait.owner() }?;
                if holder == start {
                    return Some(ring);
                }
                at = guide.admits(holder).then_some(holder)?;
            }
            Ahead::All(scope) => {
                // SAFETY: `start` is held.
                let start = unsafe { start.as_ref() };
                // SAFETY: a context with an edge is a fiber's.
                let fiber = unsafe { Fiber::of(start) };
                return is_part_here(fiber, scope).then_some(ring);
            }
            Ahead::Unknown => return None,
        }
    }
    None
}

/// Whether the wait is about to be ended by a cancel that has been asked for: then it is no part of a cycle. A cancel does not end the wait of a
/// destructor that an unwind runs, nor that of a stopped pool for what has begun. If the cancel came before such a wait was bound, the stack has said
/// so; if it comes later, the waiter is woken by it, and binds its wait anew.
pub(super) fn is_ending(held: &Held<'_>) -> bool {
    // SAFETY: a context with an edge is a fiber's; Y3.
    let fiber = unsafe { Fiber::of(held.context()) };
    held.waits_for().0.is_cancellable()
        && fiber.request().is_some_and(cancel::is_cancelled)
        && !fiber.outlasts_cancel.get()
}

/// Whether there is a wait in the cycle that [`break_open`] can end.
pub(super) fn has_wait_to_end(ring: &[Held<'_>]) -> bool {
    ring.iter().any(|held| held.waits_for().0 == Reason::Request || held.waits_for().0.has_owner())
}

/// Ends one wait for a request in the cycle, the first there is, or else one for a lock.
pub(super) fn break_open(mut ring: Vec<Held<'_>>) -> Option<()> {
    let is_of = |reason: fn(Reason) -> bool| ring.iter().position(|held| reason(held.waits_for().0));
    let place = is_of(|reason| reason == Reason::Request).or_else(|| is_of(Reason::has_owner))?;
    ring.rotate_left(place);
    let names = name(&ring)?;
    let (context, ticket) = (NonNull::from(ring[0].context()), ring[0].ticket());
    // It is not ended while it is held.
    drop(ring);
    // Until the found cycle is there its reader waits.
    let mut found = lock_found();
    // SAFETY: C1: foreign stacks are kept.
    let woken = unsafe { unpark(context, ticket, Cause::Circular) };
    if woken {
        found.push((context.as_ptr().addr(), ticket, Cycle::new(names)));
    }
    woken.then_some(())
}
