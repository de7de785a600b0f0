//! A set of requests as one of several that a `select!` waits for: one arm, however many requests there are.
//!
//! The arm stands in the core of the set, as the set's own wait does. Its members have their listeners already, so to enter and to leave costs the same
//! however many they are.

use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::error::Cancelled;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

use super::RequestSet;
use super::waiting::each_member;
use crate::api::request::Request;
use crate::cancel;
use crate::foreign;
use crate::shared::parked;

/// What comes out of a set: the number of a request and the request, or nothing, if the set is empty.
type Next<T> = Option<(usize, Request<T>)>;

/// See the module head.
pub struct SetArm<'a, T> {
    set: &'a mut RequestSet<T>,
    next: Option<Result<Next<T>, Cancelled>>,
    listed: bool,
    outside: bool,
}

/// As an arm of a `select!` it answers what [`wait_next`](RequestSet::wait_next) does: what has ended first, `None` if the set is empty.
///
/// ```
/// use std::time::Duration;
/// use forebear::time::after;
/// use forebear::{Cancelled, Request, RequestSet, select, spawn};
///
/// let (_late, never) = Request::<u32>::completer("never");
/// let mut set = RequestSet::from_iter([never, spawn(|| 7)]);
/// let mut came = Vec::new();
/// loop {
///     select! {
///         next = &mut set => match next? {
///             Some((number, request)) => came.push((number, request.take().unwrap())),
///             None => break,
///         },
///         () = after(Duration::from_millis(5)) => break, // what has not come by then is late
///     }
/// }
/// assert_eq!(came, [(1, 7)]);
/// # Ok::<(), Cancelled>(())
/// ```
impl<'a, T> Source for &'a mut RequestSet<T> {
    type Output = Result<Next<T>, Cancelled>;
    type Arm = SetArm<'a, T>;

    fn into_arm(self) -> Self::Arm {
        SetArm { set: self, next: None, listed: false, outside: false }
    }
}

// SAFETY: the context is out of the core when `leave` returns (RS1). Nothing is handed over: what has ended stays in the core until a look.
unsafe impl<T> Arm for SetArm<'_, T> {
    fn try_complete(&mut self, _: &Context) -> bool {
        if self.next.is_none() {
            if self.set.core.is_empty() && self.set.has_given_up() {
                self.set.find_given_up();
            }
            self.next = match self.set.try_next() {
                None if !self.set.is_empty() => None,
                next => Some(Ok(next)),
            };
        }
        self.next.is_some()
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        let Some(fiber) = foreign::fiber() else { return false };
        // SAFETY: RS1: by contract it leaves.
        self.listed = unsafe { self.set.core.stand(context, ticket, Cause::Woken) };
        if !self.listed {
            return false;
        }
        self.outside = self.set.enter_from_outside(fiber);
        !(self.outside && self.set.has_given_up())
    }

    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> LeaveResult {
        if std::mem::take(&mut self.listed) {
            self.set.core.leave();
            if cause == Cause::Cancelled
                && let Some(fiber) = foreign::fiber()
            {
                cancel::read_messages(fiber);
            }
            if std::mem::take(&mut self.outside) {
                parked::leave(context);
            }
        }
        LeaveResult::Nothing
    }

    fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        if self.listed {
            each_member(&self.set.slots, with);
        }
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Output
    }

    fn cancel(&mut self) {
        self.next = Some(Err(Cancelled::new()));
    }
}

impl<T> Output for SetArm<'_, T> {
    type Output = Result<Next<T>, Cancelled>;

    fn output(&mut self) -> Self::Output {
        match self.next.take() {
            Some(next) => next,
            None => unreachable!("A3"),
        }
    }
}

impl<T> fmt::Debug for SetArm<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetArm").field("listed", &self.listed).finish_non_exhaustive()
    }
}
