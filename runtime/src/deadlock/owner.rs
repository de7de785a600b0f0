//! Waits for what another context holds, as the runtime sees them: urgency goes to the holder, and cycles are found.
//!
//! [`forebear_context::context::OwnerWait`] says how such a wait differs from others, and what may be asked of it. What a lock
//! names as its holder is read only after a check that it is a context ([`foreign_stacks::with_holder`]).
//!
//! Urgency goes from the waiter to the holder's stack, and on to what that waits for ([`urgency`]). It falls when the holder has
//! given back the last lock that it holds: then it is as urgent as the requests on it, and nothing more.

use std::ptr::{self, NonNull};

use forebear_context::context::{Context, OwnerWait, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::atomic::Ordering;

use crate::deadlock::cycle;
use crate::deadlock::foreign_stacks::{self, StackView};
use crate::deadlock::urgency;
use crate::record::fiber::Fiber;
use crate::record::header::{ARM, Header, REGION};
use crate::shared::worker::OnRecord;

/// The fiber waits, under the ticket, for something that another holds; its node stands in the list there. Answers the cycle that
/// this closes, if there is no limit.
///
/// # Safety
///
/// On the fiber's own stack, before it parks; the wait's target is `wait`.
pub(crate) unsafe fn wait_for_owner(
    fiber: &Fiber,
    ticket: Ticket,
    wait: &OwnerWait,
    limited: bool,
) -> Option<Cycle> {
    let (here, key) = (fiber.worker_record(), fiber.urgency.load(Ordering::Relaxed));
    let raise = |holder: &StackView<'_>| urgency::raise_holder(here, holder, key);
    // SAFETY: by contract.
    unsafe { cycle::bind_to_owner(fiber, ticket, wait, limited, raise) }
}

/// Whether the context, which a lock has named for its holder, is on the worker of this fiber. On the fiber's own stack.
pub(crate) fn shares_worker(fiber: &Fiber, holder: NonNull<Context>) -> bool {
    let mut shares = false;
    let look = |holder: &StackView<'_>| shares = holder.is_on_the_thread_of(fiber.context());
    foreign_stacks::with_holder(fiber.worker_record(), holder, look);
    shares
}

/// A guard that the stack `taker` had acquired was dropped on this fiber's stack: `taker` holds that share no longer. On the fiber's own stack.
pub(crate) fn lost_share(fiber: &Fiber, taker: NonNull<Context>, share: NonNull<()>) {
    foreign_stacks::with_holder(fiber.worker_record(), taker, |taker| taker.lost_share(share));
}

/// Which request calls, and holds what is taken here by a lock that its holder may take again; `None` outside any request. An arm of a join
/// and a region with a limit go by the request that called. On the fiber's own stack.
pub(crate) fn requester(fiber: &Fiber) -> Option<&Header> {
    let mut at = fiber.request().map(Header::identity);
    while let Some(h) = at
        && h.has_state(REGION)
    {
        // SAFETY: a region runs on its caller's stack: what is below it there is not over.
        at = unsafe { h.lender.get().as_ref() }.map(Header::identity);
    }
    at
}

/// Which request calls, or which branch of a join that runs apart from its `join`; `None` outside any request. A branch on the stack of its `join` and a region
/// with a limit go by what called them. On the fiber's own stack.
pub(crate) fn caller(fiber: &Fiber) -> Option<&Header> {
    let mut at = fiber.request();
    while let Some(h) = at {
        let below = h.lender.get();
        let is_part_of_below = match h.is(ARM) {
            true => h.parent().is_some_and(|maker| ptr::eq(maker, below)),
            false => h.has_state(REGION),
        };
        if !is_part_of_below {
            break;
        }
        // SAFETY: what is below another on a stack is not over.
        at = unsafe { below.as_ref() };
    }
    at
}

/// The cycle for which the fiber's wait was ended.
pub(crate) fn take_cycle(fiber: &Fiber, ticket: Ticket) -> Option<Cycle> {
    cycle::take_cycle(fiber.context(), ticket)
}

/// The fiber has given back what others wait for; perhaps it holds something else.
pub(crate) fn gave_back(fiber: &Fiber) {
    urgency::fall(fiber);
}
