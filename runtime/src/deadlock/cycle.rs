//! Cycles of waits: found as they close, and named.
//!
//! No event ends a cycle of untimed waits. So a waiter that is about to park without a limit makes its wait an edge. Then it checks whether
//! another context waits for a request or lock of its own stack, and if so walks along the edges. [`forebear_context::context::edge`] says how, and
//! why no cycle is missed. If the walk returns to the waiter, the wait that closed the cycle returns
//! [`CircularWait`](forebear_context::error::WaitError::CircularWait) with the names. The other waits of the cycle see that as a failure like any
//! other.
//!
//! # What is an edge
//!
//! An edge leads from the waiter's stack to the stack that its target is on, whatever else is on that stack: a lent stack is blocked as a whole.
//!
//! * The wait of a join for a stolen branch leads to the branch's runner.
//! * A request whose end calls user code, such as the destructor of its captures or of a value that no handle takes, is on the stack of that
//!   call ([`crate::record::dropping`]).
//! * A scope waits for *all* its jobs, and a pool for all its members. A pool may continue when one of its members is over,
//!   but a waiter for *its* request gets no answer before all are.
//! * A wait that only watches lasts as long as any other, so it is an edge.
//! * A wait for a lock leads to the lock's holder ([`crate::deadlock::owner`]). A thread that runs no request may hold one, so it takes part
//!   while it does.
//!
//! A wait with a limit leads nowhere, since it ends by itself. A wait for an unstarted request leads nowhere until the request starts: the
//! starter completes the edge, before it waits in its turn.
//!
//! # Which wait is answered
//!
//! The wait that closed the cycle. The end of a join, a scope or a pool cannot give up, since requests borrow from its frame. If such a wait has
//! closed the cycle, or if [`survey`] has found it, another wait of the cycle is answered, one for a request. If all waits in the cycle are
//! ends of scopes, each for a job that is declared to be after the next, these jobs are started early, and wait
//! ([`EarlyStarts`](crate::deadlock::declared::EarlyStarts)). If several waits close a cycle at once, one of them is answered: cycles are confirmed
//! one at a time.
//!
//! # What is left to a survey
//!
//! A walk ends without an answer
//!
//! * after [`LONGEST`] edges;
//! * at a scope, unless the walk began on one of its jobs, which is a cycle: another job may lead back to the waiter;
//! * at a wait for any of several requests, which is in a cycle only if all of them lead back ([`any`]);
//! * at a writer that waits for all readers of a lock: each context knows which locks it reads
//!   ([`Shares`](forebear_context::context::Shares));
//! * at a wait for a request that is being ended unstarted: a destructor of its captures, on some stack, may wait for a request that leads here.
//!
//! Then the waiter leaves a note when it has bound its wait, and the next worker that has been idle for a tick surveys the whole graph. A thread that runs
//! no request belongs to no runtime, so it leaves a note with all of them. Where none has workers for a survey, the thread makes it
//! before it blocks.
//!
//! # Cost
//!
//! A wait that does not suspend has no cost. A wait that suspends has one more read-modify-write on its own context. It has one more on the
//! word of each request on its own stack that other threads may know and that has no waiter. It walks only if it finds a waiter. A wait for a
//! target on another stack of the same worker does not check either, if that stack can continue and has checked before. Such a wait closes no
//! cycle, and what that stack does later comes after it on this thread.
//!
//! # Invariants
//!
//! * **Y1** Contexts of coroutines lie at one place in every slot, and are contexts until their runtime's stacks are unmapped
//!   ([`Context::renew`]). The workers of that runtime end before that, so they may read the contexts at any time.
//! * **Y2** All others are *foreign stacks* for the reader ([`crate::deadlock::foreign_stacks`]): contexts of foreign threads, and of other runtimes.
//!   They are read only under the lock of the foreign stacks, and after the reader has seen the edge that led there under it, or has found the
//!   stack registered. A foreign thread that exits, and a runtime that unmaps its stacks, takes that lock before. While the edge existed
//!   its target had not notified its waiters, so the target's stack was still there.
//! * **Y3** Waits are held only under the lock of the foreign stacks, so by one thread at a time. While a wait is held, its waiter's stack does
//!   not change. The links between the fiber, its requests and their lenders were written before the wait was bound.
//! * **Y4** `KNOWN` is set on a request when the edges of all waiters that waited before it started are completed, and then
//!   on all requests below it on its stack. Only the request's own stack sets it.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use forebear_context::context::edge::{Ahead, Held, Way, walk};
use forebear_context::context::{Cause, Context, OwnerWait, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::MutexGuard;
use forebear_context::shim::atomic::Ordering;

mod any;
mod found;
mod knot;
mod names;
mod ring;
mod survey;
mod waiters;

pub(crate) use self::any::bind_to_any;
use self::found::{FoundCycle, lock_found};
pub(crate) use self::found::{end, take_cycle};
use self::names::{name, of_own_end, of_own_stack};
use self::ring::{break_open, collect};
use self::waiters::{
    can_be_waited_for, goes_on_here, has_looked, is_part_of_what_is_waited_for_at, is_waited_for,
    is_waited_for_in_turn,
};

use crate::deadlock::foreign_stacks::{self, ForeignStacks, ReadableStacks, StackView, lock_foreign_stacks};
use crate::record::arena::Arena;
use crate::record::dropping;
use crate::record::fiber::Fiber;
use crate::record::header::{AFTER, ARM, Header};
use crate::record::scope_core::ScopeCore;
use crate::shared::worker::OnRecord;
use crate::shared::{OfRuntime, Shared};
use crate::state::word::Bits;

/// How many edges a waiter follows before it goes to sleep.
const LONGEST: u32 = 64;

/// A cycle that has gone each time when it was to be confirmed is left to a survey after so many times.
const ATTEMPTS: u32 = 8;

/// Keeps everybody else from the foreign stacks, and from the found cycles.
pub(crate) struct HeldCycles {
    foreign_stacks: MutexGuard<'static, ForeignStacks>,
    found: MutexGuard<'static, Vec<FoundCycle>>,
}

/// Holds both over a fork. In this order, as who breaks a cycle does.
pub(crate) fn hold() -> HeldCycles {
    HeldCycles { foreign_stacks: lock_foreign_stacks(), found: lock_found() }
}

/// In a forked child, whose one thread has the context `own`, if it has one. All else is forgotten: where a wait of the parent's leads may be a
/// stack that the child uses for something else.
pub(crate) fn forget(held: &mut HeldCycles, own: Option<NonNull<Context>>) {
    foreign_stacks::forget(&mut held.foreign_stacks, own);
    held.found.clear();
}

/// The wait of `fiber` for `target` under `ticket` has no limit, and the fiber stands in the target's list; the word was `bits`
/// when it had got there. Answers the cycle that it closes, if it does; the wait is settled then, and the caller leaves the list
/// instead of parking.
///
/// # Safety
///
/// On the fiber's own stack, before it parks; it has led the edge nowhere before it went into the list; the caller has a count of
/// the target.
pub(crate) unsafe fn bind(fiber: &Fiber, ticket: Ticket, target: &Header, bits: Bits) -> Option<Cycle> {
    if !can_be_waited_for(fiber) {
        return None;
    }
    let goes_unseen = lead_to(fiber, target, bits);
    if !goes_unseen && goes_on_here(fiber, target) && has_looked(fiber) {
        // SAFETY: by contract; it was led there above.
        unsafe { fiber.context().bind(ticket) };
        return None;
    }
    // SAFETY: by contract.
    unsafe {
        bind_to(fiber, ticket, goes_unseen, |mut ring| {
            let names = name(&ring)?;
            ring.swap_remove(0).end(Cause::Circular);
            Some(Cycle::new(names))
        })
    }
}

/// The same for the wait of a join for its arm, which cannot be taken back: another wait in the cycle is ended.
///
/// # Safety
///
/// As [`bind`].
pub(crate) unsafe fn bind_to_arm(fiber: &Fiber, ticket: Ticket, target: &Header, bits: Bits) {
    if can_be_waited_for(fiber) {
        let goes_unseen = lead_to(fiber, target, bits);
        // SAFETY: by contract.
        unsafe { bind_to(fiber, ticket, goes_unseen, break_open) };
    }
}

/// The same for the wait of a scope for its jobs. `outlasts_cancel`: it goes on though its request is cancelled, whatever it is for.
///
/// # Safety
///
/// As [`bind`].
pub(crate) unsafe fn bind_to_all(
    fiber: &Fiber,
    ticket: Ticket,
    scope: NonNull<ScopeCore>,
    outlasts_cancel: bool,
) {
    if can_be_waited_for(fiber) {
        if outlasts_cancel {
            fiber.outlasts_cancel.set(true);
        }
        // SAFETY: X1: the scope outlives the wait for its jobs; X3: by contract.
        unsafe { fiber.context().lead(Ahead::All(scope.cast())) };
        // SAFETY: by contract.
        unsafe { bind_to(fiber, ticket, false, break_open) };
    }
}

/// The same for a wait for what another context holds, whose waiter has got into the list there. If it has no limit, the cycle is
/// answered as by [`bind`]. `raise` is called with the holder before, if it is there.
///
/// # Safety
///
/// As [`bind`]; the wait's target is `wait`.
pub(crate) unsafe fn bind_to_owner(
    fiber: &Fiber,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
    raise: impl FnOnce(&StackView<'_>),
) -> Option<Cycle> {
    let (context, mut kept) = (fiber.context(), ReadableStacks::by(fiber.worker_record()));
    let mut goes_on_here = false;
    // SAFETY: the wait is this stack's own.
    if let Some(holder) = unsafe { wait.owner() } {
        kept.with_holder(holder, |holder| {
            goes_on_here = holder.is_on_the_thread_of(context) && !holder.is_waiting();
            raise(holder);
        });
    }
    if limited || !can_be_waited_for(fiber) {
        return None;
    }
    // SAFETY: X1: the wait's target stays as long as the wait; X3: by contract.
    unsafe { context.lead(wait.whole().map_or(Ahead::Owner(NonNull::from(wait)), Ahead::All)) };
    if goes_on_here && has_looked(fiber) {
        // SAFETY: by contract; it was led there just now.
        unsafe { context.bind(ticket) };
        return None;
    }
    // SAFETY: by contract.
    unsafe {
        bind_within(&mut kept, fiber, ticket, false, |mut ring| {
            let names = name(&ring)?;
            ring.swap_remove(0).end(Cause::Circular);
            Some(Cycle::new(names))
        })
    }
}

/// Leads the edge to where the target stands. If it had not started when the waiter entered the list, its starter sees
/// the waiter there. Answers whether the way may go on where no walk sees it: then word is to be left, once the wait is bound.
fn lead_to(fiber: &Fiber, target: &Header, bits: Bits) -> bool {
    if bits.is_unstarted() {
        // It may be after what waits for this stack.
        return target.is(AFTER);
    }
    match ahead(fiber, target) {
        // SAFETY: X1 by Y1 and Y2: it stands on that stack, or did a moment ago; X3: on the fiber's own stack, before it is bound.
        Some(ahead) => unsafe { fiber.context().lead(ahead) },
        // Claimed a moment ago, or ended by a thread that has not come to its callbacks.
        None => return true,
    }
    false
}

/// The cycle, if the target stands on the waiter's own stack, or is what the waiter is an arm of.
pub(crate) fn of_itself(fiber: &Fiber, target: &Header) -> Option<Cycle> {
    if ptr::eq(target.fiber.load(Ordering::Relaxed), fiber) {
        // If it is not on the stack any more, it is being ended there.
        let names = of_own_stack(fiber, target).unwrap_or_else(|| vec![target.name().to_owned()]);
        return Some(Cycle::new(names));
    }
    if dropping::is_ending_on(fiber, target) {
        // A destructor of its captures waits.
        return Some(Cycle::new([target.name().to_owned()]));
    }
    let mut top = fiber.request()?;
    while top.is(ARM) {
        top = top.parent()?;
        if ptr::eq(top, target) {
            return Some(Cycle::new([target.name().to_owned()]));
        }
    }
    None
}

/// The cycle, if `target`, which this fiber is to wait for through the declared edges of `path`, stands on the fiber's own stack, or is being ended
/// there.
pub(crate) fn of_declared(
    fiber: &Fiber,
    target: &Header,
    path: impl Iterator<Item = String>,
) -> Option<Cycle> {
    let mut names = match ptr::eq(target.fiber.load(Ordering::Relaxed), fiber) {
        true => of_own_stack(fiber, target)?,
        false => of_own_end(fiber, target)?,
    };
    names.splice(1..1, path);
    Some(Cycle::new(names))
}

/// On which stack the target stands, if on any, as seen from `waiter`. The target is kept by the caller, its fiber is named only.
fn ahead(waiter: &Fiber, target: &Header) -> Option<Ahead> {
    // In this order: while there is none, `fiber` may be the link of a list.
    let arena = target.ran_on.load(Ordering::Acquire);
    // SAFETY: M3.
    let arena = unsafe { arena.as_ref() }?;
    let context = Fiber::context_at(NonNull::new(target.fiber.load(Ordering::Acquire))?);
    let is_own =
        |arena: &Arena| waiter.worker_record().is_some_and(|worker| ptr::eq(worker.shared(), arena.shared()));
    Some(Ahead::Stack { context, foreign: arena.is_foreign() || !is_own(arena) })
}

/// Binds the wait. `report` is called with the waits of the cycle that it closes, if it does, its own first.
///
/// # Safety
///
/// As [`bind`].
unsafe fn bind_to<R>(
    fiber: &Fiber,
    ticket: Ticket,
    goes_unseen: bool,
    report: impl Fn(Vec<Held<'_>>) -> Option<R>,
) -> Option<R> {
    // SAFETY: by contract.
    unsafe { bind_within(&mut ReadableStacks::by(fiber.worker_record()), fiber, ticket, goes_unseen, report) }
}

/// As [`bind`], with the stacks that the walk may read.
///
/// # Safety
///
/// As [`bind`].
unsafe fn bind_within<R>(
    kept: &mut ReadableStacks<'_>,
    fiber: &Fiber,
    ticket: Ticket,
    goes_unseen: bool,
    report: impl Fn(Vec<Held<'_>>) -> Option<R>,
) -> Option<R> {
    let context = fiber.context();
    let start = NonNull::from(context);
    let waited_for = Cell::new(false);
    let look = || {
        let is_waited_for = is_waited_for(fiber);
        waited_for.set(is_waited_for);
        is_waited_for
    };
    // SAFETY: X1 by Y1 and Y2: a foreign thread's own edges lead to foreign stacks all.
    let mut way = unsafe { context.bind_and_walk(ticket, look, LONGEST, kept) };
    for _ in 0..ATTEMPTS {
        match way {
            Way::End => {
                let goes_on = waited_for.get() && (may_be_after(fiber) || dropping::ends_any(fiber));
                if goes_unseen || goes_on {
                    // Through what has not started, perhaps.
                    note(fiber, kept);
                }
                return None;
            }
            Way::Round => {}
            // SAFETY: the walk has come there, and goes on keeping foreign stacks.
            Way::All(at) if unsafe { is_part_of_what_is_waited_for_at(fiber, at) } => {}
            Way::All(_) if !is_waited_for_in_turn(fiber) => return None,
            Way::All(_) | Way::Cut => {
                note(fiber, kept);
                return None;
            }
        }
        kept.keep_foreign();
        // SAFETY: as above, Y3.
        if let Some(ring) = unsafe { collect(start, kept) }
            && let Some(reported) = report(ring)
        {
            return Some(reported);
        }
        // It was none any more when it was looked at again.
        if !context.is_waiting() {
            return None;
        }
        // SAFETY: as above.
        way = unsafe { walk(start, LONGEST, kept) };
    }
    note(fiber, kept);
    None
}

/// Whether any request of the runtime has been after another.
fn may_be_after(fiber: &Fiber) -> bool {
    // SAFETY: M3.
    let arena = fiber.request().and_then(|top| unsafe { top.arena.get().as_ref() });
    arena.is_some_and(|arena| arena.shared().survey.has_declared())
}

/// Leaves word that a worker is to look at all waits: with the runtime whose code waits, or, for a thread that runs no request, with every runtime.
/// Where no runtime has workers that would come to it, or all have left their loops, the thread looks itself. The wait has been bound.
#[cold]
fn note(fiber: &Fiber, kept: &mut ReadableStacks<'_>) {
    // SAFETY: M3.
    let arena = fiber.request().and_then(|top| unsafe { top.arena.get().as_ref() });
    if let Some(shared) = arena.map(OfRuntime::shared).or(fiber.worker_record().map(|worker| worker.shared()))
    {
        return leave_word(shared);
    }
    let mut left = false;
    kept.each_runtime(|shared| {
        if shared.driven.is_none() && !shared.ending.is_shut() {
            leave_word(shared);
            // In this order: the worker that goes last looks for what was left before.
            left |= !shared.ending.all_workers_left();
        }
    });
    if !left {
        kept.release_foreign();
        survey::look_here();
    }
}

fn leave_word(shared: &Shared) {
    if shared.survey.note() {
        shared.signals.notify_any();
    }
}
