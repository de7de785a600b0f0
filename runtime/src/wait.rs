//! Waiting for a request, in three parts.
//!
//! [`prepare`] is the cold part: it runs the target right here if that may be done ([`lend`]), or sees to it that somebody will
//! ([`approach`]), and stands in the target's list. The switch is inlined into the public method that waits. Who was woken by the target's end
//! has nothing left to finish; who was woken otherwise (its time was up, it was cancelled) leaves the list first, and
//! learns there whether the target was over after all.
//!
//! # What is answered
//!
//! A cancelled request is refused, whatever its target is; then comes the target's outcome; then the time-out.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::context::edge::Ahead;
use forebear_context::context::{Cause, Reason, Ticket, WaitNode};
use forebear_context::error::{Cycle, Error, Failure, WaitError};
use forebear_context::shim::atomic::Ordering;

use crate::cancel;
use crate::cycle;
use crate::deadlines::park_until;
use crate::foreign;
use crate::header::Header;
use crate::no_suspend;
use crate::parked;
use crate::shared::Shared;
use crate::strand::{LEFT_PARKED, Strand};
use crate::urgency;
use crate::word::{CANCELLED, FAILED};
use crate::worker::{Worker, is_unwinding};

mod approach;
mod lend;

pub(crate) use self::approach::{Approach, Missed, Near};
use self::lend::run_own;
pub(crate) use self::lend::{limits_do_not_matter, run_here};

/// How to wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Until then at most.
    pub deadline: Option<Instant>,
    /// Only watching: no demand, and the target is never run here.
    pub watches: bool,
}

impl Terms {
    /// For `timeout` from now, by the clock of the target's runtime.
    pub(crate) fn within(h: &Header, timeout: Duration) -> Terms {
        // SAFETY: M3. A ready value has no runtime, and nobody waits for it.
        let after = unsafe { h.home.get().as_ref() }.map(|home| home.shared().deadlines.after(timeout));
        Terms { deadline: after.flatten(), watches: false }
    }
}

/// What is left to do after [`prepare`].
pub(crate) enum Step<'a> {
    /// The target is over.
    Over,
    /// Park this strand; the target's end wakes it.
    Park(&'a Strand, Ticket, &'a Shared),
    /// The wait is refused.
    Refused(WaitError),
}

/// Waits until the target is terminal. To be inlined into the public method. Answers whether it was run right here by the short way.
///
/// # Safety
///
/// The caller holds a handle or a link of `header` all the while.
#[inline(always)]
pub(crate) unsafe fn until_over(header: NonNull<Header>) -> Result<bool, WaitError> {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // SAFETY: by contract.
    if !is_over(h) && unsafe { run_own(header) } {
        return Ok(true);
    }
    // A cancelled request is refused before anything is told of its target, also of one that has run on its stack.
    if crate::strand::get().is_some_and(cancel::refuses) {
        return Err(WaitError::Cancelled);
    }
    if is_over(h) {
        return Ok(false);
    }
    // SAFETY: by contract.
    unsafe { until_over_on(header, Terms::default()) }.map(|()| false)
}

/// Whether it is over, as far as can be seen without having its secret revealed.
#[inline(always)]
fn is_over(h: &Header) -> bool {
    h.bare.load().is_terminal() || h.is_done_in_secret()
}

/// The same on other terms.
///
/// # Safety
///
/// As [`until_over`].
#[inline(always)]
pub(crate) unsafe fn until_over_on(header: NonNull<Header>, terms: Terms) -> Result<(), WaitError> {
    loop {
        let mut node = MaybeUninit::uninit();
        // SAFETY: by contract; the node lies in this frame, which is not left before it is let go of.
        let (strand, ticket, shared) = match unsafe { prepare(header, &mut node, terms) } {
            Step::Over => return Ok(()),
            Step::Refused(error) => return Err(error),
            Step::Park(strand, ticket, shared) => (strand, ticket, shared),
        };
        // SAFETY: on the strand's own stack, after `begin`.
        let cause = unsafe {
            park_until(&shared.deadlines, shared.driven.as_ref(), strand.context(), ticket, terms.deadline)
        };
        if cause == Cause::Woken && !cancel::concerns(strand) {
            return Ok(());
        }
        // SAFETY: the node was written, and is this frame's.
        if let Some(answer) = unsafe { left(strand, header, node.assume_init_ref(), ticket, cause) } {
            return answer;
        }
        // Woken for the sake of a notice that does not concern this wait.
    }
}

/// After a wait that ended otherwise than by its target, or of somebody whom a cancel may concern.
///
/// # Safety
///
/// As [`cancel::leave`], unless the cause is [`Cause::Woken`].
#[cold]
#[inline(never)]
unsafe fn left(
    strand: &Strand,
    header: NonNull<Header>,
    node: &WaitNode,
    ticket: Ticket,
    cause: Cause,
) -> Option<Result<(), WaitError>> {
    cancel::attend(strand);
    let cycle = if cause == Cause::Circular { cycle::verdict(strand.context(), ticket) } else { None };
    let cancelled = cancel::is_cancelled_here(strand) && !is_unwinding(strand);
    if cause == Cause::Woken {
        // The target was over first, but that is not what is told first.
        return Some(if cancelled { Err(WaitError::Cancelled) } else { Ok(()) });
    }
    // SAFETY: by contract.
    let asks = cancelled && cancel::asks(strand.request(), unsafe { header.as_ref() });
    // SAFETY: by contract.
    let over = unsafe { cancel::leave(header, node, asks) }.is_err();
    if !over {
        // SAFETY: U2: the caller's count.
        unsafe { urgency::leave(strand.worker(), header, strand.urgency.load(Ordering::Relaxed)) };
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
/// As [`until_over`]; `node` stays where it is until the strand is woken.
#[cold]
#[inline(never)]
pub(crate) unsafe fn prepare<'a>(
    header: NonNull<Header>,
    node: &mut MaybeUninit<WaitNode>,
    terms: Terms,
) -> Step<'a> {
    // SAFETY: by contract; the caller's count lasts longer than the step that is answered.
    let h: &'a Header = unsafe { header.as_ref() };
    let Some(strand) = foreign::strand() else {
        return Step::Refused(WaitError::ShutDown);
    };
    let lends = terms.deadline.is_none() && !terms.watches;
    let mut approach = Approach::default();
    loop {
        // SAFETY: by contract.
        let (shared, outside) = match unsafe { approach.come_near(strand, header, lends) } {
            Near::Over => return Step::Over,
            Near::Refused(error) => {
                // SAFETY: by contract.
                unsafe { approach.give_up(strand, header) };
                return Step::Refused(error);
            }
            Near::Waits(shared, outside) => (shared, outside),
        };
        if strand.context().no_suspend().get() != 0 {
            no_suspend::refuse(strand, h.name(), true);
        }
        match strand.worker().map(Worker::reserve_carrier) {
            None => foreign::settle_homes(),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let name = strand.request().map_or("worker", Header::name).to_owned();
                let failure = Failure::from_error(Error::from(error), name, None);
                return Step::Refused(WaitError::Failed(failure));
            }
        }
        let context = strand.context();
        let ticket = context.begin(Reason::Request, header.as_ptr().cast());
        context.lead(Ahead::Unknown);
        let node = node.write(match terms.watches {
            false => WaitNode::new(context, ticket),
            true => WaitNode::watching(context, ticket),
        });
        // SAFETY: the node stays until the strand is woken.
        let bits = match unsafe { approach.list(h, node) } {
            Ok(bits) => bits,
            Err(missed) => {
                context.abandon(ticket);
                if missed == Missed::Over {
                    return Step::Over;
                }
                continue;
            }
        };
        if terms.deadline.is_none()
            // SAFETY: on the strand's own stack; the caller's count.
            && let Some(cycle) = unsafe { cycle::bind(strand, ticket, h, bits) }
        {
            // SAFETY: the node stands in the list, and its wait is settled.
            return match unsafe { cancel::leave(header, node, false) } {
                Ok(()) => Step::Refused(WaitError::CircularWait(cycle)),
                Err(()) => Step::Over,
            };
        }
        if !terms.watches {
            // SAFETY: U2: the caller's count.
            unsafe { urgency::raise(strand.worker(), header, strand.urgency.load(Ordering::Relaxed)) };
        }
        if outside && let Some(worker) = strand.worker() {
            // A foreign thread does this when it blocks.
            strand.left.set(strand.left.get() | LEFT_PARKED);
            if parked::enter(strand) {
                worker.make_ready(NonNull::from(strand));
            }
        }
        return Step::Park(strand, ticket, shared);
    }
}

/// What a terminal request answers to who waits for it.
///
/// # Safety
///
/// It is terminal, or this is one of its own callbacks, and the caller holds a handle or a link.
#[cold]
#[inline(never)]
pub(crate) unsafe fn refusal(header: NonNull<Header>) -> WaitError {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    match h.life_here() {
        FAILED => {
            h.word().mark_seen();
            match h.failure() {
                Some(failure) => WaitError::Failed(failure.clone()),
                None => unreachable!("a failed request has a failure"),
            }
        }
        CANCELLED => WaitError::TargetCancelled(cancel::reason(h)),
        _ => unreachable!("asked of a request that has a value"),
    }
}
