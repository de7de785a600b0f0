//! A cancel of the calling request as an arm of `select!`.

use forebear_context::context::{Cause, Context, Ticket};
use forebear_context::error::Cancelled;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

/// A source that is ready when the calling request is cancelled. In a thread that runs no request it never is.
///
/// ```
/// use std::time::Duration;
/// use forebear::select;
/// use forebear::select::cancelled;
/// use forebear::time::after;
///
/// select! {
///     _ = cancelled() => unreachable!("this is no request"),
///     () = after(Duration::from_millis(1)) => (),
/// }
/// ```
#[must_use = "it is waited for in a `select!`"]
pub fn cancelled() -> CancelledSource {
    CancelledSource { _private: () }
}

/// The cancellation of the calling request as a source of a [`select!`](macro@crate::select), made by [`cancelled`].
///
/// ```
/// use forebear::select::{CancelledSource, cancelled};
/// use forebear::{CancelReason, Request, select, spawn};
///
/// let (send, seen) = std::sync::mpsc::channel();
/// spawn(move || {
///     Request::current().unwrap().abort(CancelReason::Asked);
///     let source: CancelledSource = cancelled();
///     select! { _ = source => send.send("cleaned up").unwrap() }
/// });
/// assert_eq!(seen.recv(), Ok("cleaned up"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CancelledSource {
    _private: (),
}

/// The arm of the cancellation.
#[derive(Debug)]
pub struct CancelledArm;

impl Source for CancelledSource {
    type Output = Cancelled;
    type Arm = CancelledArm;

    fn into_arm(self) -> CancelledArm {
        CancelledArm
    }
}

// SAFETY: nobody outside knows of it; a cancel ends the select's wait.
unsafe impl Arm for CancelledArm {
    fn try_complete(&mut self, context: &Context) -> bool {
        context.is_cancelled()
    }

    unsafe fn enter(&mut self, _: &Context, _: Ticket) -> bool {
        true
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        LeaveResult::Nothing
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::Only
    }
}

impl Output for CancelledArm {
    type Output = Cancelled;

    fn output(&mut self) -> Cancelled {
        Cancelled::new()
    }
}
