//! Whether anybody waits for what is on a stack: then its own wait may close a cycle.

use std::ptr::{self, NonNull};

use forebear_context::context::Context;
use forebear_context::context::edge::Ahead;
use forebear_context::shim::atomic::Ordering;

use super::names::{is_job, on_stack};
use crate::cancel;
use crate::record::dropping;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, KNOWN};
use crate::shared::worker::OnRecord;
use crate::state::word::WAITERS;

/// So many requests on the waiter's stack are read on each wait; if there are more, one of them is assumed to have a
/// waiter.
const LOOKS: u32 = 4;

/// Whether the target stands on a stack of this worker that can continue.
///
/// Then a wait for it closes no cycle: that stack goes on before this thread does anything else for it. If it waits then, it walks on this
/// thread, and sees the edge that is bound now; a later waiter for this waiter's stack meets that edge by its bind.
pub(super) fn goes_on_here(fiber: &Fiber, target: &Header) -> bool {
    let arena = target.ran_on.load(Ordering::Acquire);
    if arena.is_null() || !ptr::eq(arena, fiber.arena.get()) || !fiber.has_worker() {
        return false;
    }
    let stack = NonNull::new(target.fiber.load(Ordering::Acquire));
    // SAFETY: Y1: it was claimed on this worker, so it stands on one of its coroutines.
    stack.is_some_and(|stack| !unsafe { Fiber::context_at(stack).as_ref() }.is_waiting())
}

/// Whether nobody's edge is left to be completed (Y4), so that a wait of this stack that closes no cycle need not look.
pub(super) fn has_looked(fiber: &Fiber) -> bool {
    fiber.request().is_some_and(|top| top.has_state(KNOWN))
}

/// Whether a request on this stack can have a waiter. If so, its wait is about to be bound.
pub(super) fn can_be_waited_for(fiber: &Fiber) -> bool {
    let can = fiber.request().is_some() || holds_locks(fiber) || dropping::ends_any(fiber);
    if can {
        fiber.outlasts_cancel.set(cancel::is_outlasted(fiber));
    }
    can
}

/// Whether it holds what others may wait for.
fn holds_locks(fiber: &Fiber) -> bool {
    has_locks(fiber.context())
}

/// The same of a context. By its own stack, or where a list that it stands in is locked, which it has entered after it took them.
fn has_locks(context: &Context) -> bool {
    context.locks().get() > 0 || !context.shares().is_empty()
}

/// Whether anybody waits for a request on this stack. Completes the edges of those who came before it started.
pub(super) fn is_waited_for(fiber: &Fiber) -> bool {
    let (mut wanted, mut depth) = (holds_locks(fiber) || dropping::ends_any(fiber), 0);
    for h in on_stack(fiber) {
        let is_known = h.has_state(KNOWN);
        if is_known && (wanted || depth >= LOOKS) {
            // Y4: nothing is left to do further down.
            return true;
        }
        let has_waiters = h.word().is_waited_for();
        wanted |= has_waiters || is_wanted_by_scope(h, fiber);
        if !is_known {
            if has_waiters {
                complete(h, fiber);
            }
            h.add_state(KNOWN);
        }
        depth += 1;
    }
    wanted
}

/// Whether a scope on another stack waits for it, or will.
pub(super) fn is_wanted_by_scope(h: &Header, fiber: &Fiber) -> bool {
    // SAFETY: a scope waits for its jobs, and this one is not over.
    unsafe { h.scope.get().as_ref() }.is_some_and(|scope| !scope.is_on(fiber))
}

/// Completes the edges of the waits for a request on this stack.
#[cold]
fn complete(h: &Header, fiber: &Fiber) {
    if h.word().lock().is_err() {
        return;
    }
    let complete = |waiter: &Context| {
        // SAFETY: who stands in a list of waiters is a fiber's context, which does not change meanwhile.
        let is_own = fiber
            .worker_record()
            .zip(unsafe { Fiber::of(waiter) }.worker_record())
            .is_some_and(|(here, there)| ptr::eq(here.shared(), there.shared()));
        let ahead = Ahead::Stack { context: NonNull::from(fiber.context()), foreign: !is_own };
        // SAFETY: X1 by Y1 and Y2: what it waits for stands on this fiber; X3: under the lock of the list.
        unsafe { waiter.complete(ahead) };
    };
    // SAFETY: Q1, Q2: the lock; the list stays as it is.
    unsafe {
        h.waiters.find_to_front(|node| {
            node.context().into_iter().for_each(complete);
            false
        });
    }
    h.word().unlock(|bits| bits);
}

/// Whether a request on this stack has a waiter that can be waited for itself: not just threads outside any request that hold nothing. A set's
/// listener may be such a one's.
#[cold]
pub(super) fn is_waited_for_in_turn(fiber: &Fiber) -> bool {
    holds_locks(fiber)
        || dropping::ends_any(fiber)
        || on_stack(fiber).any(|h| {
            if is_wanted_by_scope(h, fiber) {
                return true;
            }
            if !h.word().load().has(WAITERS) || h.word().lock().is_err() {
                return false;
            }
            // SAFETY: Q1, Q2: the lock; a waiter in the list does not continue meanwhile.
            let found = unsafe {
                h.waiters.find_to_front(|node| {
                    node.record().is_some()
                        || node.is_listener()
                        || node
                            .context()
                            .is_some_and(|waiter| (waiter.table().in_request)(waiter) || has_locks(waiter))
                })
            };
            h.word().unlock(|bits| bits);
            found
        })
}

/// Whether something on `fiber` is a part of what is waited for at `at`: a job of the scope, or a reader of the lock.
///
/// # Safety
///
/// Y1 or Y2 for `at`.
pub(super) unsafe fn is_part_of_what_is_waited_for_at(fiber: &Fiber, at: NonNull<Context>) -> bool {
    // SAFETY: by contract.
    let edge = unsafe { at.as_ref() }.edge();
    matches!(edge, Some(edge) if matches!(edge.ahead, Ahead::All(scope) if is_part_here(fiber, scope)))
}

/// Whether a request on `fiber` is a job of the scope that has this address, or an unstarted job that is being ended
/// there. Also whether the fiber has a share of the lock that has this address.
pub(super) fn is_part_here(fiber: &Fiber, whole: NonNull<()>) -> bool {
    let mut ends = false;
    dropping::each_ended_on(fiber, |h, _| ends |= is_job(h, whole));
    ends || fiber.context().shares().have(whole) || on_stack(fiber).any(|h| is_job(h, whole))
}
