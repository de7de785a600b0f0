//! An instant as an arm of `select!`.

use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, Ticket, with_foreign};
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

/// A source that is ready when `delay` has passed since this call, on the clock of the calling context; never, if an `Instant` cannot
/// represent that time.
///
/// Lent (`&timer`), it can be waited for again and again, until the same time.
///
/// ```
/// use std::time::Duration;
/// use forebear::select;
/// use forebear::time::after;
///
/// let late = after(Duration::from_millis(1));
/// for _ in 0..2 {
///     select! { () = &late => () }
/// }
/// ```
#[must_use = "it is waited for in a `select!`"]
pub fn after(delay: Duration) -> After {
    let at = with_foreign(|context| match delay.is_zero() {
        // Due now: an instant from `deadline` may lie some microseconds ahead.
        true => Some(context.now()),
        false => context.deadline(delay),
    });
    After { at }
}

/// A time as a source of a [`select!`](macro@crate::select), made by [`after`].
///
/// ```
/// use std::time::Duration;
/// use forebear::select;
/// use forebear::time::{After, after};
///
/// // One limit for a whole loop.
/// let limit: After = after(Duration::from_millis(1));
/// for _ in 0..2 {
///     select! { () = &limit => () }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct After {
    at: Option<Instant>,
}

/// The arm of a time.
#[derive(Debug)]
pub struct AfterArm(After);

impl Source for After {
    type Output = ();
    type Arm = AfterArm;

    fn into_arm(self) -> AfterArm {
        AfterArm(self)
    }
}

impl Source for &After {
    type Output = ();
    type Arm = AfterArm;

    fn into_arm(self) -> AfterArm {
        AfterArm(*self)
    }
}

// SAFETY: nobody outside knows of it; the select's wait has the deadline.
unsafe impl Arm for AfterArm {
    fn try_complete(&mut self, context: &Context) -> bool {
        self.0.at.is_some_and(|at| context.now() >= at)
    }

    unsafe fn enter(&mut self, _: &Context, _: Ticket) -> bool {
        true
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        LeaveResult::Nothing
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.at
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::No
    }
}

impl Output for AfterArm {
    type Output = ();

    fn output(&mut self) {}
}
