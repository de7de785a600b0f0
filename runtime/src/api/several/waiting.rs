//! The wait of a set for its next member, and why it may continue without an end: a cancel, a runtime that gives up, a cycle.
//!
//! # Who may touch what
//!
//! The waiter has the set by `&mut`, so the slots stay as they are while it waits. Another thread reads them during that time, by
//! [`each_request`], to search for a cycle: while it holds the wait, which therefore does not end before that thread has read them.

use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Reason, unpark};
use forebear_context::error::TimeoutError;
use forebear_context::source::Several;

use super::{RequestSet, SetSlot};
use crate::api::request::Request;
use crate::cancel;
use crate::deadlock::cycle;
use crate::foreign;
use crate::record::fiber::{Fiber, LEFT_PARKED};
use crate::record::header::Header;
use crate::shared::OfRuntime;
use crate::shared::ending::Stage;
use crate::shared::parked;
use crate::shared::worker::{OnRecord, is_unwinding};
use crate::state::set::SetPlace;

impl<T> RequestSet<T> {
    #[track_caller]
    pub(super) fn next_within(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<(usize, Request<T>)>, TimeoutError> {
        let Some(fiber) = foreign::fiber() else { return Err(TimeoutError::Cancelled) };
        if cancel::refuses(fiber) {
            return Err(TimeoutError::Cancelled);
        }
        let mut deadline = None;
        loop {
            if let Some(next) = self.try_next() {
                return Ok(Some(next));
            }
            if self.is_empty() {
                return Ok(None);
            }
            if timeout == Some(Duration::ZERO) {
                return Err(TimeoutError::TimedOut);
            }
            let context = fiber.context();
            context.about_to_wait("RequestSet");
            if let (None, Some(timeout)) = (deadline, timeout) {
                deadline = Some(context.deadline(timeout));
            }
            match self.park(fiber, deadline.flatten()) {
                Cause::TimedOut if self.core.is_empty() => return Err(TimeoutError::TimedOut),
                Cause::Cancelled => {
                    cancel::read_messages(fiber);
                    if cancel::is_cancelled_here(fiber) && !is_unwinding(fiber) {
                        return Err(TimeoutError::Cancelled);
                    }
                    self.find_given_up();
                }
                Cause::Circular => self.find_circular(),
                _ => {}
            }
        }
    }

    /// Waits for the next end.
    pub(super) fn park(&mut self, fiber: &Fiber, deadline: Option<Instant>) -> Cause {
        let context = fiber.context();
        // SAFETY: it is called with the slots, which stay as they are until the wait is over.
        let several = unsafe { Several::new(NonNull::from(&mut self.slots).cast(), each_request::<T>) };
        // SAFETY: C2: this is the context's own stack; C4: `several` stays in this frame, and nothing unwinds before the wait is parked or
        // taken back.
        let ticket = unsafe { context.begin(Reason::Select, ptr::from_ref(&several).cast_mut().cast()) };
        // SAFETY: RS1: it leaves below.
        if !unsafe { self.core.stand(context, ticket, Cause::Woken) } {
            // SAFETY: C2: begun just now, and not parked; no other thread has the ticket.
            unsafe { context.abandon(ticket) };
            return Cause::Woken;
        }
        let outside = self.enter_from_outside(fiber);
        if outside && self.has_given_up() {
            // SAFETY: C1: the calling context, which parks next.
            unsafe { unpark(NonNull::from(context), ticket, Cause::Cancelled) };
        }
        if deadline.is_none() {
            // SAFETY: on the context's own stack, before it parks; the slots stay as they are.
            unsafe { cycle::bind_to_any(fiber, ticket, &several) };
        }
        // SAFETY: on the context's own stack, after `begin`.
        let cause = unsafe { context.park_until(ticket, deadline) };
        self.core.leave();
        if outside {
            parked::leave(context);
        }
        cause
    }

    /// Registers the waiter on `fiber` with the waiters from outside, if it is one of them.
    pub(super) fn enter_from_outside(&self, fiber: &Fiber) -> bool {
        let inside = fiber.worker_record().is_some_and(|worker| self.of.is_only(worker.shared()));
        if inside {
            return false;
        }
        if fiber.has_worker() {
            fiber.left.set(fiber.left.get() | LEFT_PARKED);
        }
        // Only the wait for a single request is ended there.
        let _ = parked::enter(fiber);
        true
    }

    /// Whether a runtime of a member that has not been told has given up.
    pub(super) fn has_given_up(&self) -> bool {
        if !self.of.may_have_given_up() {
            return false;
        }
        self.slots.iter().any(
            |slot| matches!(slot, SetSlot::Taken(entry) if !entry.reported && is_given_up(entry.request.header())),
        )
    }

    /// Such members come out.
    #[cold]
    pub(super) fn find_given_up(&mut self) {
        self.of.forget_given_up();
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if let SetSlot::Taken(entry) = entry
                && !entry.reported
                && is_given_up(entry.request.header())
            {
                entry.reported = true;
                self.core.tell(SetPlace { slot, number: entry.number });
            }
        }
    }

    /// No member can end before this wait does, and no wait for a request that leads back here could get the error: removes one member.
    #[cold]
    pub(super) fn find_circular(&mut self) {
        let open = self.slots.iter_mut().enumerate().find_map(|(slot, entry)| match entry {
            SetSlot::Taken(entry)
                if !entry.reported && !entry.request.header().word().load().is_terminal() =>
            {
                Some((slot, entry))
            }
            _ => None,
        });
        if let Some((slot, entry)) = open {
            entry.reported = true;
            self.core.tell(SetPlace { slot, number: entry.number });
        }
    }
}

pub(super) fn is_given_up(h: &Header) -> bool {
    // SAFETY: M3; a ready value has no runtime.
    let arena = unsafe { h.arena.get().as_ref() };
    arena.is_some_and(|arena| arena.shared().ending.is(Stage::GivenUp)) && !h.word().load().is_terminal()
}

/// Calls `with` with each request of the set that has a listener, for a dump or a survey.
///
/// # Safety
///
/// `row` is the slots of a set of this type, and nobody else touches them meanwhile.
pub(super) unsafe fn each_request<T>(row: NonNull<()>, with: &mut dyn FnMut(NonNull<()>)) {
    // SAFETY: by contract.
    each_member(unsafe { row.cast::<Vec<SetSlot<T>>>().as_ref() }, with);
}

/// Calls `with` with each request that has a listener.
pub(super) fn each_member<T>(slots: &[SetSlot<T>], with: &mut dyn FnMut(NonNull<()>)) {
    for slot in slots {
        if let SetSlot::Taken(entry) = slot
            && entry.registration.listener().is_some()
        {
            with(entry.request.header_ptr().cast());
        }
    }
}
