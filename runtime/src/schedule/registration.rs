//! How a listener comes to stand in its request's list, and leaves it: what futures and sets have in common.
//!
//! It is a wait in two calls with other code in between: [`enter`](Registration::enter) comes near to the request as a wait does
//! ([`crate::schedule::wait`]), and enlists; [`leave`](Registration::leave) withdraws.
//!
//! # Invariants
//!
//! * **RG1** The caller of either function holds a handle or a link of the request.
//! * **RG2** While `listener` is there it is enlisted, or has been notified.
//! * **RG3** The caller has a framed listener ([`crate::state::listener`]) leave before the request returns that was on top as it entered.

use std::ptr::{self, NonNull};

use forebear_context::error::WaitError;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;

use crate::cancel::{self, Marked};
use crate::deadlock::urgency;
use crate::foreign;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::schedule::wait::{Approach, How, Missed, Near};
use crate::shared::Shared;
use crate::shared::worker::{OnRecord, is_unwinding};
use crate::state::listener::{Listener, Notice};

/// See the module head.
pub(crate) struct Registration<N> {
    /// RG2.
    listener: Option<Arc<Listener<N>>>,
    /// The key that the request was raised to.
    key: u64,
    /// The request was submitted by this.
    submitted: bool,
}

/// What came of a wish to register.
pub(crate) enum RegisterResult<'a> {
    /// The request is over.
    Over,
    /// The wait is refused.
    Refused(WaitError),
    /// It has entered now: the request's runtime, and whether the caller is none of its workers.
    Entered(&'a Shared, bool),
    /// It had entered before.
    Stands(&'a Shared),
}

impl<N> Default for Registration<N> {
    fn default() -> Registration<N> {
        Registration { listener: None, key: 0, submitted: false }
    }
}

impl<N: Notice> Registration<N> {
    /// The listener, while it is registered.
    pub(crate) fn listener(&self) -> Option<&Arc<Listener<N>>> {
        self.listener.as_ref()
    }

    /// Registers a listener with the notice that `notice` makes, unless that was done before. Code of the user's may be called by `notice`.
    ///
    /// # Safety
    ///
    /// RG1, RG3; `fiber` is the calling one.
    pub(crate) unsafe fn enter<'a>(
        &mut self,
        fiber: &Fiber,
        header: NonNull<Header>,
        mut notice: impl FnMut() -> N,
    ) -> RegisterResult<'a> {
        // SAFETY: by contract.
        let h: &'a Header = unsafe { header.as_ref() };
        let mut approach = Approach::by(How::Polls);
        loop {
            // SAFETY: by contract.
            let near = unsafe { approach.come_near(fiber, header, false) };
            self.submitted |= std::mem::take(&mut approach.submitted);
            let (shared, outside) = match near {
                Near::Over => return RegisterResult::Over,
                Near::Refused(error) => return RegisterResult::Refused(error),
                Near::Waits(shared, outside) => (shared, outside),
            };
            if self.listener.is_some() {
                return RegisterResult::Stands(shared);
            }
            let key = fiber.urgency.load(Ordering::Relaxed);
            if !N::IS_FRAMED {
                fiber.has_loose.set(true);
            }
            // A loose one may outlast an arm, and is its maker's as well.
            let maker = fiber.request().map(|top| if N::IS_FRAMED { top } else { top.identity() });
            let maker = maker.map_or(ptr::null(), |maker| ptr::from_ref(maker).cast());
            let listener = Listener::new(notice(), key, maker);
            // SAFETY: LI1: the list has a count, until the node is taken out; RG1.
            match Listener::enlist(&listener, |node| unsafe { approach.list(h, node) }.map(drop)) {
                Ok(()) => {}
                Err(Missed::Over) => return RegisterResult::Over,
                Err(Missed::Moved) => continue,
            }
            self.key = key;
            self.listener = Some(listener);
            // SAFETY: U2: RG1.
            unsafe { urgency::raise(fiber.worker_record(), header, key) };
            return RegisterResult::Entered(shared, outside);
        }
    }

    /// Nobody waits by this any more. In a request that is cancelled it asks for its target, as a cancelled waiter does. Answers the listener,
    /// which may be notified yet. A cancel of the request that takes effect by this is added to `marked`, which the caller carries out.
    ///
    /// # Safety
    ///
    /// RG1.
    pub(crate) unsafe fn leave(
        &mut self,
        header: NonNull<Header>,
        marked: &mut Marked,
    ) -> Option<Arc<Listener<N>>> {
        // SAFETY: by contract.
        let h = unsafe { header.as_ref() };
        let fiber = foreign::fiber();
        let asks = |fiber: &Fiber| {
            cancel::is_cancelled_here(fiber) && !is_unwinding(fiber) && cancel::asks(fiber.request(), h)
        };
        let submitted = std::mem::take(&mut self.submitted);
        let Some(listener) = self.listener.take() else {
            if let Some(fiber) = fiber
                && submitted
                && asks(fiber)
            {
                // SAFETY: RG1.
                unsafe { marked.add(header, cancel::mark_for_waiter(fiber, h)) };
            }
            return None;
        };
        let asks = fiber.is_some_and(asks);
        // SAFETY: RG2; by contract.
        match unsafe { cancel::withdraw(header, listener.node(), asks) } {
            Ok(answer) => {
                // SAFETY: RG1.
                unsafe { marked.add(header, answer) };
                // SAFETY: LI1: taken out just now.
                unsafe { Listener::delisted(&listener) };
                // SAFETY: U2: RG1.
                unsafe { urgency::leave(fiber.and_then(Fiber::worker_record), header, self.key) };
            }
            // The caller's count may be the last, and go next (LI3).
            Err(()) => Listener::left(&listener),
        }
        Some(listener)
    }
}

impl<N> std::fmt::Debug for Registration<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("entered", &self.listener.is_some()).finish_non_exhaustive()
    }
}
