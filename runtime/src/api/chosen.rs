//! A request as one of several that a `select!` waits for.
//!
//! It is submitted when the select polls it, has demand while the select waits, and is never run on the select's stack. The select answers
//! with what was over first; a select that takes another arm leaves the request's list, and cancels nothing by leaving. Only a select that
//! is cancelled itself asks for the cancel of what it has submitted, whether it came to wait or not.
//!
//! An arm that leaves may have been the last obstacle to a cancel. It keeps what that leaves to do until all arms have left
//! ([`Arm::settle`]): a request is not cancelled while an arm stands in its list, and the end of another may wait for it.
//!
//! # From outside
//!
//! A select may wait for requests of several runtimes, one of which gives up. It is listed with the waits from outside
//! ([`crate::shared::parked`]) before it reads whether that has happened; and a runtime that gives up makes all selects there check
//! again.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use forebear_context::context::{Cause, Context, Ticket, WaitNode};
use forebear_context::error::WaitError;
use forebear_context::shim::atomic::Ordering;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

use crate::api::any::AnyRequest;
use crate::api::request::Request;
use crate::cancel;
use crate::deadlock::urgency;
use crate::foreign;
use crate::record::fiber::LEFT_PARKED;
use crate::record::header::Header;
use crate::schedule::wait::{Approach, Near};
use crate::shared::ending::Stage;
use crate::shared::worker::{OnRecord, is_unwinding};
use crate::shared::{OfRuntime, parked};
use crate::state::word::Cancel;

/// See the module head.
pub struct RequestArm<H, A> {
    handle: H,
    header: NonNull<Header>,
    outcome_of: fn(H) -> Result<A, WaitError>,
    node: MaybeUninit<WaitNode>,
    listed: bool,
    approach: Approach,
    /// Why the wait is refused.
    refused: Option<WaitError>,
    /// What the arm owes: a fresh answer that is to be carried out when all arms have left.
    owed: Cancel,
}

impl<H: Copy, A> RequestArm<H, A> {
    /// For a handle, which has a count of the header.
    fn new(
        handle: H,
        header: NonNull<Header>,
        outcome_of: fn(H) -> Result<A, WaitError>,
    ) -> RequestArm<H, A> {
        let node = MaybeUninit::uninit();
        RequestArm {
            handle,
            header,
            outcome_of,
            node,
            listed: false,
            approach: Approach::default(),
            refused: None,
            owed: Cancel::Unasked,
        }
    }

    /// Keeps a fresh answer until all arms have left. True: it leaves something to do.
    fn owe(&mut self, answer: Cancel) -> bool {
        if answer.leaves_work() {
            self.owed = answer;
        }
        answer.leaves_work()
    }
}

impl<'a, T> Source for &'a Request<T> {
    type Output = Result<&'a T, WaitError>;
    type Arm = RequestArm<&'a Request<T>, &'a T>;

    fn into_arm(self) -> Self::Arm {
        RequestArm::new(self, self.header_ptr(), Request::answer)
    }
}

impl<'a> Source for &'a AnyRequest {
    type Output = Result<(), WaitError>;
    type Arm = RequestArm<&'a AnyRequest, ()>;

    fn into_arm(self) -> Self::Arm {
        RequestArm::new(self, self.header_ptr(), AnyRequest::answer)
    }
}

// SAFETY: the node is out of the request's list, or its taker has released it, when `leave` returns. Nothing is handed over.
unsafe impl<H: Copy, A> Arm for RequestArm<H, A> {
    fn try_complete(&mut self, _: &Context) -> bool {
        let Some(fiber) = foreign::fiber() else {
            self.refused = Some(WaitError::ShutDown);
            return true;
        };
        // SAFETY: the handle's count, all the while.
        match unsafe { self.approach.come_near(fiber, self.header, false) } {
            Near::Over => true,
            Near::Refused(error) => {
                self.refused = Some(error);
                true
            }
            Near::Waits(..) => false,
        }
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        let header = self.header;
        // SAFETY: the handle's count.
        let h = unsafe { header.as_ref() };
        let Some(fiber) = foreign::fiber() else { return false };
        // SAFETY: C1: by contract it is the calling context, and the arm leaves before its wait's frame goes (A1).
        let node = self.node.write(unsafe { WaitNode::one_of_several(context, ticket) });
        // SAFETY: A1: the node stays until it has left.
        match unsafe { self.approach.list(h, node) } {
            Ok(_) => self.listed = true,
            Err(_) => return false,
        }
        // SAFETY: U2: the handle's count.
        unsafe { urgency::raise(fiber.worker_record(), header, fiber.urgency.load(Ordering::Relaxed)) };
        // SAFETY: M3: what is not over has an arena, and the handle keeps it.
        let shared = unsafe { (*h.arena.get()).shared() };
        if fiber.worker_record().is_some_and(|worker| ptr::eq(worker.shared(), shared)) {
            return true;
        }
        if fiber.has_worker() {
            fiber.left.set(fiber.left.get() | LEFT_PARKED);
        }
        // Only the wait for a single request is ended there.
        let _ = parked::enter(fiber);
        !shared.ending.is(Stage::GivenUp)
    }

    fn request(&self) -> Option<NonNull<()>> {
        self.listed.then_some(self.header.cast())
    }

    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> LeaveResult {
        if !std::mem::take(&mut self.listed) {
            return LeaveResult::Nothing;
        }
        let header = self.header;
        // SAFETY: the handle's count.
        let h = unsafe { header.as_ref() };
        let (mut asks, mut owes) = (false, false);
        if let Some(fiber) = foreign::fiber() {
            if cause == Cause::Cancelled {
                cancel::read_messages(fiber);
                asks = cancel::is_cancelled_here(fiber)
                    && !is_unwinding(fiber)
                    && cancel::asks(fiber.request(), h);
            }
            parked::leave(context);
        }
        // SAFETY: written when it was listed.
        let node = unsafe { self.node.assume_init_ref() };
        // SAFETY: its wait is over, and this is the handle's count.
        let goes_on = match unsafe { cancel::withdraw(header, node, asks) } {
            Ok(answer) => {
                owes = self.owe(answer);
                true
            }
            Err(()) => {
                // The taker releases a node that is one of several in any case.
                node.await_release();
                false
            }
        };
        if let Some(fiber) = foreign::fiber().filter(|_| goes_on) {
            // SAFETY: U2: the handle's count.
            unsafe { urgency::leave(fiber.worker_record(), header, fiber.urgency.load(Ordering::Relaxed)) };
        }
        if owes { LeaveResult::Owes } else { LeaveResult::Nothing }
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Output
    }

    fn cancel(&mut self) {
        self.refused = Some(WaitError::Cancelled);
    }

    #[inline(always)]
    fn give_up(&mut self) -> bool {
        self.approach.submitted
            && foreign::fiber().is_some_and(|fiber| {
                // SAFETY: the handle's count; the arm stands in no list.
                let answer = unsafe { self.approach.mark_given_up(fiber, self.header) };
                self.owe(answer)
            })
    }

    fn settle(&mut self, ends: &mut Vec<NonNull<()>>) {
        match std::mem::replace(&mut self.owed, Cancel::Unasked) {
            Cancel::Ended => ends.push(self.header.cast()),
            // SAFETY: the handle's count; the answer is fresh, and this is its only use.
            answer => _ = unsafe { cancel::carry_out(self.header, answer) },
        }
    }

    unsafe fn end_all(&mut self, ends: Vec<NonNull<()>>) {
        // SAFETY: by contract: claimed by the marks, with the runners' links. Only arms for requests add any.
        unsafe { cancel::leave_all_ends(ends.into_iter().map(NonNull::cast).collect()) };
    }
}

impl<H: Copy, A> Output for RequestArm<H, A> {
    type Output = Result<A, WaitError>;

    fn output(&mut self) -> Self::Output {
        match self.refused.take() {
            Some(error) => Err(error),
            None => (self.outcome_of)(self.handle),
        }
    }
}

impl<H, A> Drop for RequestArm<H, A> {
    fn drop(&mut self) {
        if self.approach.submitted
            && let Some(fiber) = foreign::fiber()
        {
            // The select has unwound before its arms gave up. Others have yet to go.
            // SAFETY: the handle's count; it stands in no list any more.
            unsafe { self.approach.give_up_later(fiber, self.header) };
        }
    }
}

impl<H, A> fmt::Debug for RequestArm<H, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}
