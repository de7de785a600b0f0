//! [`timeout`]: a region with a time limit of its own.
//!
//! A region is a request that is never queued: a child of the caller with a deadline. It is claimed as it is made, and
//! runs on the caller's stack, as in a wait. So a deadline does here all that it does elsewhere: it ends waits, is held
//! back by shields, and is inherited. The caller is a request of its own and is not affected.
//!
//! # Why it is sound
//!
//! * **R1** The callable lies in the frame of the call, and what the request has is a pointer to it. Another thread that claims the request,
//!   because its deadline comes before it is run, drops that pointer and does not follow it. So the frame may go as soon as the call
//!   knows that it has not run here, or that it has.
//! * **R2** Callable and value stay on this stack, so neither need be `Send`, and both may borrow.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr;
use std::time::Duration;

use forebear_context::error::internal::{drop_contained, payload_into_error, resume, unwind_with};
use forebear_context::error::{CancelReason, Error, WaitError};

use crate::api::builder::make;
use crate::api::scope::into_wait_error;
use crate::cancel;
use crate::foreign;
use crate::record::arena::Arena;
use crate::record::cell::Callable;
use crate::record::fiber::Fiber;
use crate::record::header::REGION;
use crate::record::runtime::RuntimeRecord;
use crate::schedule::wait;

/// Calls `f` here, on this stack, and answers what it returned, unless that takes longer than `limit` by the runtime's clock.
///
/// From then on every cancellation point inside returns `Cancelled`: a wait ends at once, and a loop can ask
/// [`is_cancelled`](crate::is_cancelled). A region that computes and does not ask continues until it returns. The caller itself is not
/// cancelled. `f` may borrow and need not be `Send`.
///
/// Inside, the region is the current request: a child of the caller with the name `timeout`. Requests that are made in
/// it are its children and inherit its limit, also if they outlive the region. Of nested regions the nearest limit
/// counts. In a [`shield`](fn@crate::shield) inside, the limit is held back; a region inside a shield has its own. With
/// a `limit` of zero nothing runs. A `limit` beyond what the clock can represent is no limit.
///
/// A cancellation point: a caller that is cancelled meanwhile gets that as its error.
///
/// # Errors
///
/// [`TimedOut`](WaitError::TimedOut) if the limit came before `f` had returned, whatever it returned;
/// [`Cancelled`](WaitError::Cancelled) if the *caller* was cancelled;
/// [`TargetCancelled`](WaitError::TargetCancelled) if the region was cancelled by other code.
///
/// # Panics
///
/// With the panic of `f`. An unwind that carries `Cancelled` out of a region that was cancelled ends here: the answer is as above.
///
/// ```
/// use std::time::Duration;
/// use forebear::{Request, WaitError, yield_now};
/// use forebear::time::timeout;
///
/// let mut turns = 0; // borrowed
/// let late = timeout(Duration::from_millis(2), || while yield_now().is_ok() { turns += 1 });
/// assert!(matches!(late, Err(WaitError::TimedOut)));
/// assert_eq!(timeout(Duration::from_secs(60), || turns)?, turns);
/// # Ok::<(), WaitError>(())
/// ```
#[track_caller]
pub fn timeout<R>(limit: Duration, f: impl FnOnce() -> R) -> Result<R, WaitError> {
    let (result, refusal) = run(limit, f);
    match (result, refusal) {
        (Some(Err(payload)), refusal) => Err(goes_on(payload, refusal)),
        (Some(Ok(value)), None) => Ok(value),
        (_, Some(refusal)) => Err(refusal),
        (None, None) => unreachable!("what has not run was refused"),
    }
}

/// As [`timeout`], for a callable that may return an error.
///
/// # Errors
///
/// The error of `f`, also if the limit came meanwhile, unless it says that the region was cancelled; then, and if `f` returned a
/// value, as `timeout`.
///
/// # Panics
///
/// As `timeout`.
///
/// ```
/// use std::time::Duration;
/// use forebear::{WaitError, yield_now};
/// use forebear::time::try_timeout;
///
/// let late = try_timeout(Duration::from_millis(2), || loop { yield_now()? });
/// assert!(matches!(late, Err::<(), _>(WaitError::TimedOut)));
/// let bad = try_timeout(Duration::from_secs(60), || Ok("x".parse::<u32>()?));
/// assert!(matches!(bad, Err(WaitError::Failed(_))));
/// ```
#[track_caller]
pub fn try_timeout<R>(limit: Duration, f: impl FnOnce() -> Result<R, Error>) -> Result<R, WaitError> {
    let (result, refusal) = run(limit, f);
    match (result, refusal) {
        (Some(Err(payload)), refusal) => Err(goes_on(payload, refusal)),
        (Some(Ok(Err(error))), Some(refusal)) if error.is_cancelled() => {
            drop_contained(error);
            Err(refusal)
        }
        (Some(Ok(Err(error))), _) => Err(into_wait_error(error)),
        (Some(Ok(Ok(value))), None) => Ok(value),
        (_, Some(refusal)) => Err(refusal),
        (None, None) => unreachable!("what has not run was refused"),
    }
}

/// An unwind out of a region. It continues, unless it is the answer to the region's cancellation.
#[cold]
#[track_caller]
fn goes_on(payload: Box<dyn Any + Send>, refusal: Option<WaitError>) -> WaitError {
    match (payload_into_error(payload), refusal) {
        (Ok(error), Some(refusal)) if error.is_cancelled() => {
            drop_contained(error);
            refusal
        }
        (Ok(error), _) => unwind_with(error, forebear_context::context::in_request()),
        (Err(payload), _) => resume(payload),
    }
}

/// What lies in the frame of the call.
struct Frame<F, R> {
    callable: Cell<Option<F>>,
    result: Cell<Option<std::thread::Result<R>>>,
    fiber: *const Fiber,
    /// What counts on the fiber outside the region, and inside it as well.
    arena: *const Arena,
    entered: *const RuntimeRecord,
}

/// The callable of the request.
struct Region<F, R>(*const Frame<F, R>);

// SAFETY: R1: code on another stack does not follow the pointer.
unsafe impl<F, R> Send for Region<F, R> {}

impl<F: FnOnce() -> R, R> Callable<()> for Region<F, R> {
    fn call(self) -> Result<(), Error> {
        // SAFETY: R1: it is run by `run`, in whose frame this lies.
        let frame = unsafe { &*self.0 };
        // SAFETY: as above: the fiber this is on.
        let fiber = unsafe { &*frame.fiber };
        let Some(callable) = frame.callable.take() else { unreachable!("it is run once") };
        if let Some(region) = fiber.request() {
            region.add_state(REGION);
        }
        let arena = fiber.arena.replace(frame.arena);
        let entered = fiber.entered.replace(frame.entered);
        frame.result.set(Some(catch_unwind(AssertUnwindSafe(callable))));
        fiber.arena.set(arena);
        fiber.entered.set(entered);
        Ok(())
    }
}

/// Runs a region. Answers what it came to, if it ran, and why that may not be returned.
#[track_caller]
fn run<F: FnOnce() -> R, R>(limit: Duration, f: F) -> (Option<std::thread::Result<R>>, Option<WaitError>) {
    let Some(fiber) = foreign::fiber() else {
        panic!("forebear: no region with a limit while the thread's locals are being destroyed")
    };
    let frame = Frame {
        callable: Cell::new(Some(f)),
        result: Cell::new(None),
        fiber: ptr::from_ref(fiber),
        arena: fiber.arena.get(),
        entered: fiber.entered.get(),
    };
    // SAFETY: R1. It is claimed right below.
    let request = unsafe { make::region(limit, fiber, Region(&raw const frame), Location::caller()) };
    let h = request.header();
    if cancel::refused(h) {
        // SAFETY: the handle.
        unsafe { cancel::refuse(request.header_ptr()) };
    }
    if h.word().claim_by_waiter(false).is_ok() {
        // SAFETY: just claimed as lent; the handle.
        unsafe { wait::run_here(fiber, request.header_ptr()) };
    }
    // Else its time has come already, or its caller is cancelled.
    let refusal = if cancel::refuses(fiber) {
        Some(WaitError::Cancelled)
    } else if h.word().load().has(crate::state::word::MARKED) {
        Some(match cancel::reason(h) {
            CancelReason::Deadline => WaitError::TimedOut,
            reason => WaitError::TargetCancelled(reason),
        })
    } else {
        None
    };
    (frame.result.take(), refusal)
}
