//! Sleeping: a wait that only the time, or a cancel, ends.

use std::ptr;
use std::time::{Duration, Instant};

use forebear_context::context::{Cause, Context, Reason, Ticket, with_foreign};
use forebear_context::error::Cancelled;

use crate::here::with_context;

/// The time on the clock of the runtime that the caller is in; elsewhere the system's. In a seeded runtime it is virtual.
///
/// ```
/// use forebear::time::now;
///
/// assert!(now() <= now());
/// ```
pub fn now() -> Instant {
    with_foreign(Context::now)
}

/// Waits until `duration` has passed, on the clock of the runtime; for ever if an `Instant` cannot represent the end. A duration
/// of zero does not wait, and checks whether the request is cancelled.
///
/// Suspends. A cancellation point.
///
/// # Errors
///
/// [`Cancelled`]. Also in a thread inside a runtime with a clock that is moved by hand, when that runtime ends: the clock will not move any
/// more.
///
/// # Panics
///
/// In a `no_suspend` region, if it would have to wait.
///
/// ```
/// use std::time::Duration;
/// use forebear::time::{now, sleep};
///
/// let start = now();
/// sleep(Duration::from_millis(1))?;
/// assert!(now() - start >= Duration::from_millis(1));
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[inline(always)]
#[track_caller]
pub fn sleep(duration: Duration) -> Result<(), Cancelled> {
    with_context!(|context| wait(context, |context| match duration.is_zero() {
        // Over now: an instant from `deadline` may lie some microseconds ahead.
        true => Some(context.now()),
        false => context.deadline(duration),
    }))
}

/// Waits until the clock of the runtime shows `deadline` or more. A deadline that is past does not wait, and checks whether the request is
/// cancelled.
///
/// Suspends. A cancellation point.
///
/// # Errors
///
/// As [`sleep`].
///
/// # Panics
///
/// As [`sleep`].
///
/// ```
/// use std::time::Duration;
/// use forebear::time::{now, sleep_until};
///
/// let soon = now() + Duration::from_millis(1);
/// sleep_until(soon)?;
/// assert!(now() >= soon);
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[inline(always)]
#[track_caller]
pub fn sleep_until(deadline: Instant) -> Result<(), Cancelled> {
    with_context!(|context| wait(context, |_| Some(deadline)))
}

/// What is left to do after [`prepare`].
enum SleepStep {
    Over(Result<(), Cancelled>),
    Park(Ticket, Option<Instant>),
}

/// Waits until `until`, never being never. To be inlined, since the switch is (see [`forebear_context::switch`]).
#[inline(always)]
#[track_caller]
pub(crate) fn wait(
    context: &Context,
    until: impl FnOnce(&Context) -> Option<Instant>,
) -> Result<(), Cancelled> {
    match prepare(context, until) {
        SleepStep::Over(answer) => answer,
        SleepStep::Park(ticket, until) => {
            // SAFETY: on the context's own stack, after `begin`.
            match unsafe { context.park_until(ticket, until) } {
                Cause::TimedOut => Ok(()),
                Cause::Cancelled => Err(Cancelled::new()),
                cause @ (Cause::Woken | Cause::Circular) => {
                    unreachable!("nobody else knows of a sleep: {cause:?}")
                }
            }
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn prepare(context: &Context, until: impl FnOnce(&Context) -> Option<Instant>) -> SleepStep {
    if context.is_cancelled() {
        return SleepStep::Over(Err(Cancelled::new()));
    }
    let until = until(context);
    if until.is_some_and(|until| until <= context.now()) {
        return SleepStep::Over(Ok(()));
    }
    context.about_to_wait("a sleep");
    // SAFETY: C2: this is the context's own stack; C4: for nothing that is followed, and nothing unwinds before it is parked.
    let ticket = unsafe { context.begin(Reason::Sleep, ptr::null_mut()) };
    SleepStep::Park(ticket, until)
}
