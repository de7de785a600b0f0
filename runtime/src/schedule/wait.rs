//! Waiting for a request, in three parts.
//!
//! [`prepare`] is the cold part. It runs the target on the waiter's stack if it may ([`lend`]). Else it makes sure that some worker will run it
//! ([`approach`]), and enters the waiter into the target's list. The switch is inlined into the public method that waits. A waiter that is woken by
//! the target's end has nothing left to do. A waiter that is woken otherwise (by its time limit, or a cancel) leaves the list first, and
//! learns there whether the target has ended after all.
//!
//! # What is answered
//!
//! A cancelled request is refused, whatever its target is; then comes the target's outcome; then the time-out.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::context::edge::Ahead;
use forebear_context::context::{Cause, Reason, Ticket, WaitNode};
use forebear_context::error::{Cycle, Error, WaitError};
use forebear_context::shim::atomic::Ordering;

use crate::cancel;
use crate::deadlock::cycle;
use crate::deadlock::urgency;
use crate::foreign;
use crate::record::any;
use crate::record::callback;
use crate::record::fiber::{self, Fiber, LEFT_PARKED};
use crate::record::header::Header;
use crate::record::no_suspend;
use crate::schedule::worker::{OnWorker, Worker};
use crate::shared::parked;
use crate::shared::worker::{OnRecord, is_unwinding};
use crate::shared::{OfRuntime, Shared};
use crate::state::set::Core;
use crate::state::word::{Bits, CANCELLED, FAILED, LOCAL, LocalStep, WAITERS};
use crate::time::deadlines::park_until;

mod approach;
mod dependencies;
mod lend;

pub(crate) use self::approach::{Approach, How, Missed, Near};
pub(crate) use self::lend::{nothing_forbids, run_here};
use self::lend::{run_local, run_own};

/// How to wait.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms<'t> {
    /// Until then at most.
    pub deadline: Option<Instant>,
    /// Only watching: no demand, and the target is never run here.
    pub watches: bool,
    /// Only looking, with a time-out of zero: the target is submitted if need be, and then read. Nobody waits.
    pub checks: bool,
    /// What else may end the wait, as if its time were up. It is no limit: the wait may close a cycle.
    pub or: Option<&'t Core>,
}

impl Terms<'_> {
    /// For `timeout` from now, by the clock of the target's runtime.
    pub(crate) fn within(h: &Header, timeout: Duration) -> Terms<'static> {
        if timeout.is_zero() {
            return Terms { checks: true, ..Terms::default() };
        }
        // SAFETY: M3. A ready value has no runtime, and nobody waits for it.
        let after = unsafe { h.arena.get().as_ref() }.map(|arena| arena.shared().deadlines.after(timeout));
        Terms { deadline: after.flatten(), ..Terms::default() }
    }
}

/// What is left to do after [`prepare`].
pub(crate) enum WaitStep<'a> {
    /// The target is over.
    Over,
    /// Park this fiber; the target's end wakes it.
    Park(&'a Fiber, Ticket, &'a Shared),
    /// The wait is refused.
    Refused(WaitError),
}

/// Waits until the target is terminal. To be inlined into the public method. Answers whether it was run right here by the short way.
///
/// # Safety
///
/// The caller holds a handle or a link of `header` all the while.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn until_over(header: NonNull<Header>) -> Result<bool, WaitError> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: by contract.
    if !is_over(h) && unsafe { run_own(header) } {
        return Ok(true);
    }
    // A cancelled request is refused before it learns anything of its target, also of one that has run on its stack.
    if crate::record::fiber::get().is_some_and(cancel::refuses) {
        return Err(WaitError::Cancelled);
    }
    if is_over(h) {
        return Ok(false);
    }
    // SAFETY: by contract.
    unsafe { until_over_on(header, Terms::default()) }.map(|()| false)
}

/// The commonest wait of all, if this is one: the target is a local request of this thread's, and has run here by now, undisturbed. False: the caller waits
/// in another way, if it has to wait.
///
/// # Safety
///
/// As [`until_over`].
#[inline(always)]
pub(crate) unsafe fn runs_locally(header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: by contract.
    h.bare.is_local() && unsafe { run_local(header) }
}

/// Whether it is over, as far as can be seen without having its local request published.
#[inline(always)]
fn is_over(h: &Header) -> bool {
    let bits = h.bare.load();
    if bits.has(LOCAL) {
        return h.local.is(LocalStep::Done) && h.is_kept_here();
    }
    bits.is_terminal()
}

/// The same; a failure reported to `core` meanwhile ends the wait as if its time were up. The caller has `core` left afterwards.
///
/// # Safety
///
/// As [`until_over`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn until_over_or(header: NonNull<Header>, core: &Core) -> Result<(), WaitError> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: by contract.
    if !is_over(h) && unsafe { run_own(header) } {
        return Ok(());
    }
    // SAFETY: by contract.
    unsafe { until_over_on(header, Terms { or: Some(core), ..Terms::default() }) }
}

/// The same on other terms.
///
/// # Safety
///
/// As [`until_over`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn until_over_on(header: NonNull<Header>, terms: Terms<'_>) -> Result<(), WaitError> {
    loop {
        let mut node = MaybeUninit::uninit();
        // SAFETY: by contract; the node lies in this frame, which is not left before it is let go of.
        let (fiber, ticket, shared) = match unsafe { prepare(header, &mut node, terms) } {
            WaitStep::Over => return Ok(()),
            WaitStep::Refused(error) => return Err(error),
            WaitStep::Park(fiber, ticket, shared) => (fiber, ticket, shared),
        };
        // SAFETY: on the fiber's own stack, after `begin`.
        let cause = unsafe {
            park_until(&shared.deadlines, shared.driven.as_ref(), fiber.context(), ticket, terms.deadline)
        };
        if cause == Cause::Woken && !cancel::concerns(fiber) {
            return Ok(());
        }
        // SAFETY: the node was written, and is this frame's.
        let node = unsafe { node.assume_init_ref() };
        // SAFETY: as above; the wait is over.
        if let Some(answer) = unsafe { leave_list(fiber, header, node, ticket, cause) } {
            return answer;
        }
        // Woken for the sake of a message that does not concern this wait.
    }
}

/// After a wait that ended otherwise than by its target, or of somebody whom a cancel may concern.
///
/// # Safety
///
/// As [`cancel::leave`], unless the cause is [`Cause::Woken`].
#[cold]
#[inline(never)]
unsafe fn leave_list(
    fiber: &Fiber,
    header: NonNull<Header>,
    node: &WaitNode,
    ticket: Ticket,
    cause: Cause,
) -> Option<Result<(), WaitError>> {
    cancel::read_messages(fiber);
    let cycle = if cause == Cause::Circular { cycle::take_cycle(fiber.context(), ticket) } else { None };
    let cancelled = cancel::is_cancelled_here(fiber) && !is_unwinding(fiber);
    if cause == Cause::Woken {
        // The target was over first, but that is not the first answer.
        return Some(if cancelled { Err(WaitError::Cancelled) } else { Ok(()) });
    }
    // SAFETY: by contract.
    let asks = cancelled && cancel::asks(fiber.request(), unsafe { header.as_ref() });
    // SAFETY: by contract.
    let over = unsafe { cancel::leave(header, node, asks) }.is_err();
    if !over {
        // SAFETY: U2: the caller's count.
        unsafe { urgency::leave(fiber.worker_record(), header, fiber.urgency.load(Ordering::Relaxed)) };
    }
    match cause {
        _ if cancelled => Some(Err(WaitError::Cancelled)),
        _ if over => Some(Ok(())),
        Cause::TimedOut => Some(Err(WaitError::TimedOut)),
        Cause::Circular => {
            // SAFETY: by contract.
            let name = || unsafe { header.as_ref() }.name().to_owned();
            Some(Err(WaitError::CircularWait(cycle.unwrap_or_else(|| Cycle::new([name()])))))
        }
        _ => None,
    }
}

/// The cold part of a wait; see the module head.
///
/// # Safety
///
/// As [`until_over`]; `node` stays where it is until the fiber is woken.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) unsafe fn prepare<'a>(
    header: NonNull<Header>,
    node: &mut MaybeUninit<WaitNode>,
    terms: Terms<'_>,
) -> WaitStep<'a> {
    // SAFETY: by contract; the caller's count lasts longer than the step that is answered.
    let h: &'a Header = unsafe { header.as_ref() };
    let Some(fiber) = foreign::fiber() else {
        return WaitStep::Refused(WaitError::ShutDown);
    };
    // In such a call the count is up. Before the target is run here.
    if fiber.context().no_suspend().get() != 0 && !is_over(h) {
        callback::refuse("wait for a request");
    }
    let lends = terms.deadline.is_none() && !terms.watches && !terms.checks;
    let mut approach = Approach::by(if terms.checks { How::Checks } else { How::Waits });
    loop {
        // SAFETY: by contract.
        let (shared, outside) = match unsafe { approach.come_near(fiber, header, lends) } {
            Near::Over => return WaitStep::Over,
            Near::Refused(error) => {
                // SAFETY: by contract.
                unsafe { approach.give_up(fiber, header) };
                return WaitStep::Refused(error);
            }
            Near::Waits(shared, outside) => (shared, outside),
        };
        if terms.checks {
            return WaitStep::Refused(WaitError::TimedOut);
        }
        if fiber.context().no_suspend().get() != 0 {
            no_suspend::refuse(fiber, h.name());
        }
        match fiber.worker().map(Worker::reserve_coroutine) {
            None => foreign::settle_arenas(),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let failure = any::failure_inside(Error::from(error), fiber.request(), "worker");
                return WaitStep::Refused(WaitError::Failed(failure));
            }
        }
        let context = fiber.context();
        // SAFETY: C2: this is the fiber's own stack; C4: the caller's count keeps the header until the wait is over, and nothing unwinds
        // before it is parked or taken back.
        let ticket = unsafe { context.begin(Reason::Request, header.as_ptr().cast()) };
        // SAFETY: X1: nowhere; X3: before it is bound.
        unsafe { context.lead(Ahead::Unknown) };
        let node = node.write(match terms.watches {
            // SAFETY: C1: the node lies on the stack that the context is of.
            false => unsafe { WaitNode::new(context, ticket) },
            // SAFETY: as above.
            true => unsafe { WaitNode::watching(context, ticket) },
        });
        // SAFETY: the node stays until the fiber is woken.
        let bits = match unsafe { approach.list(h, node) } {
            Ok(bits) => bits,
            Err(missed) => {
                // SAFETY: C2: begun just now, and not parked; the node got into no list.
                unsafe { context.abandon(ticket) };
                if missed == Missed::Over {
                    return WaitStep::Over;
                }
                continue;
            }
        };
        if terms.deadline.is_none()
            // SAFETY: on the fiber's own stack; the caller's count.
            && let Some(cycle) = unsafe { cycle::bind(fiber, ticket, h, bits) }
        {
            // SAFETY: the node stands in the list, and its wait is settled.
            return match unsafe { cancel::leave(header, node, false) } {
                Ok(()) => WaitStep::Refused(WaitError::CircularWait(cycle)),
                Err(()) => WaitStep::Over,
            };
        }
        if let Some(worker) = fiber.worker() {
            worker.note_wait(fiber, h);
        }
        if !terms.watches {
            // SAFETY: U2: the caller's count.
            unsafe { urgency::raise(fiber.worker_record(), header, fiber.urgency.load(Ordering::Relaxed)) };
        }
        if outside && let Some(worker) = fiber.worker() {
            // A foreign thread does this when it blocks.
            fiber.left.set(fiber.left.get() | LEFT_PARKED);
            if parked::enter(fiber) {
                worker.make_ready(NonNull::from(fiber));
            }
        }
        if let Some(or) = terms.or {
            // SAFETY: RS1: on the fiber's own stack, before it parks; by contract it leaves after the wait.
            unsafe { or.interrupts(context, ticket) };
        }
        return WaitStep::Park(fiber, ticket, shared);
    }
}

/// Waits until a request is terminal that borrows from the waiter's frame. The wait is never refused, and neither a cancel, a deadline, a
/// cycle nor the end of a runtime ends it. It does not submit the target, and never runs it here.
///
/// # Safety
///
/// `fiber` is the calling one, and no region that must not suspend is open on it. The caller holds a handle or a link
/// of `header` until this returns. The request has been submitted.
pub(crate) unsafe fn until_over_at_any_rate(fiber: &Fiber, header: NonNull<Header>) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if h.word().load().is_terminal() {
        return;
    }
    if let Some(worker) = fiber.worker() {
        worker.make_room_to_leave(fiber);
    }
    let context = fiber.context();
    // SAFETY: C2: this is the fiber's own stack; C4: the caller's count keeps the target, and nothing unwinds before the wait is parked or
    // taken back.
    let ticket = unsafe { context.begin(Reason::Arm, header.as_ptr().cast()) };
    // SAFETY: X1: nowhere; X3: before it is bound.
    unsafe { context.lead(Ahead::Unknown) };
    // SAFETY: C1: the node lies on the stack that the context is of.
    let waiter = unsafe { WaitNode::new(context, ticket) };
    if h.word().lock().is_err() {
        // SAFETY: C2: begun just now, and not parked.
        unsafe { context.abandon(ticket) };
        return;
    }
    // SAFETY: W3: the lock is ours; the node lies in this frame, which stays until it is woken.
    unsafe { h.waiters.push(&waiter) };
    let bits = h.word().unlock(|bits| Bits(bits.0 | WAITERS));
    // SAFETY: on the fiber's own stack, after `begin`; by contract.
    unsafe { cycle::bind_to_arm(fiber, ticket, h, bits) };
    // SAFETY: on the fiber's own stack, after `begin`.
    unsafe { context.park(None) };
}

/// What a terminal request answers to a waiter.
///
/// # Safety
///
/// It is terminal, or this is one of its own callbacks, and the caller holds a handle or a link.
#[cold]
#[inline(never)]
pub(crate) unsafe fn refusal(header: NonNull<Header>) -> WaitError {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let life = h.life_here();
    let why = (life == CANCELLED).then(|| cancel::reason(h));
    if fiber::get().is_some_and(|fiber| cancel::is_told_of(fiber, why)) {
        return WaitError::Cancelled;
    }
    match why {
        Some(why) => WaitError::TargetCancelled(why),
        None if life == FAILED => {
            h.word().mark_seen();
            match h.failure() {
                Some(failure) => WaitError::Failed(failure.clone()),
                None => unreachable!("a failed request has a failure"),
            }
        }
        None => unreachable!("asked of a request that has a value"),
    }
}
