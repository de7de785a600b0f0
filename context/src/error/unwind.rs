//! Errors as unwinds, past code that has no `Result` to return.
//!
//! Inside a request, an error unwinds as an [`Unwound`] with `std::panic::resume_unwind`. No panic hook runs, and
//! nothing is printed. The runtime, or [`catch`], finds the error in the payload, typed, with its chain. Outside any
//! request no code of ours would catch it, so there it is an ordinary panic: hook, message, text payload.
//!
//! Under `panic = "abort"` there is no unwinding, so [`OrUnwind`] and [`catch`] do not exist and code that
//! needs them does not compile. [`unwind_with`] does, for the runtime's own use: there it ends the process, and says in one line
//! what happened and what to do about it, since no panic hook would.

use std::any::Any;
use std::fmt;
#[cfg(panic = "unwind")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Error;
use super::panicked::drop_contained;
use crate::context::current;
#[cfg(panic = "unwind")]
use crate::context::in_request;

/// The payload of an unwind that carries an error.
#[doc(hidden)]
pub struct Unwound(pub Error);

impl fmt::Debug for Unwound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unwound").field(&self.0).finish()
    }
}

/// Unwinds with `error`: silently in a request, as a panic with the whole chain for its message elsewhere.
///
/// # Panics
///
/// Always; that is what it is for.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn unwind_with(error: Error, in_request: bool) -> ! {
    #[cfg(panic = "unwind")]
    if in_request {
        note(true);
        resume_unwind(Box::new(Unwound(error)))
    }
    #[cfg(not(panic = "unwind"))]
    if in_request {
        end_process(&error)
    }
    let text = format!("{error:#}");
    // Not by the unwind: a panic of the error's destructor would end the process.
    drop_contained(error);
    panic!("{text}")
}

/// The end where a request would unwind, and panics abort.
#[cfg(not(panic = "unwind"))]
#[cold]
#[track_caller]
fn end_process(error: &Error) -> ! {
    use std::io::Write;

    // SAFETY: the current context is valid, by the contract of `set_current`, and we are on its stack.
    let name = current().map_or_else(String::new, |context| unsafe { context.as_ref() }.name());
    let _ = writeln!(
        std::io::stderr(),
        "forebear: request `{name}` would unwind at {}, and under `panic = \"abort\"` the process ends: {error:#}. Use there what answers \
         the error: `try_scope` for `scope`, `try_run` for `run`, `try_timeout` for `timeout`, an arm of `cancelled()` in `select!`, `wait_next` for an iteration",
        std::panic::Location::caller(),
    );
    std::process::abort()
}

/// The error that an unwind carried, or the payload back if it was somebody else's.
#[doc(hidden)]
pub fn payload_into_error(payload: Box<dyn Any + Send>) -> Result<Error, Box<dyn Any + Send>> {
    payload.downcast::<Unwound>().map(|unwound| {
        note(false);
        unwound.0
    })
}

/// An unwind was caught on this stack, and goes on later or elsewhere, if at all.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn caught() {
    note(false);
}

/// Continues an unwind whose payload was caught, perhaps on another stack.
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn resume(payload: Box<dyn Any + Send>) -> ! {
    note(payload.is::<Unwound>());
    std::panic::resume_unwind(payload)
}

/// Notes on the current stack whether an error travels there.
fn note(travels: bool) {
    if let Some(context) = current() {
        // SAFETY: the current context is valid, by the contract of `set_current`, and we are on its stack.
        unsafe { context.as_ref() }.unwinding().set(travels);
    }
}

/// Returns the value, or unwinds with the error: `?` for code that has no `Result` to return.
///
/// For every `Result` whose error `?` could turn into an [`Error`]: waits, locks, channels, sleeps, I/O.
///
/// ```
/// use forebear::{OrUnwind, WaitError, spawn};
///
/// // No `Result` in sight.
/// let request = spawn(|| "x".parse::<u32>().or_unwind() + 1);
/// let Err(WaitError::Failed(failure)) = request.wait() else { panic!() };
/// assert!(!failure.is_panic() && failure.downcast_ref::<std::num::ParseIntError>().is_some());
/// ```
#[cfg(panic = "unwind")]
pub trait OrUnwind {
    /// What is returned if all is well.
    type Value;

    /// The value; an error leaves as an unwind.
    ///
    /// # Panics
    ///
    /// On `Err`. Inside a request the unwind carries the error, and no panic hook is called. Each waiter for the
    /// request gets the error as if the request had returned it; [`catch`] stops it. In a foreign thread it is an
    /// ordinary panic with the error's chain for its message.
    ///
    /// ```
    /// use forebear::OrUnwind;
    ///
    /// let n: u32 = "7".parse().or_unwind();
    /// assert_eq!(n, 7);
    /// ```
    fn or_unwind(self) -> Self::Value;
}

#[cfg(panic = "unwind")]
impl<T, E: Into<Error>> OrUnwind for Result<T, E> {
    type Value = T;

    #[inline]
    #[track_caller]
    fn or_unwind(self) -> T {
        match self {
            Ok(value) => value,
            Err(error) => unwind_with(error.into(), in_request()),
        }
    }
}

/// Runs `f`, and gives back as an error what unwinds out of it by [`or_unwind`](OrUnwind::or_unwind).
///
/// This is the place for cleaning up that waits: a destructor that runs during an unwind must not. Hand the
/// error on, or a cancelled request will not end. What unwound halfway through `f` may have left shared data
/// half-changed, as with `std::panic::catch_unwind`.
///
/// # Errors
///
/// The error that travelled.
///
/// # Panics
///
/// An ordinary panic of `f` passes through, unchanged and without a second call of the hook. In a foreign
/// thread that is true of `or_unwind` too, for there it panics.
///
/// ```
/// use forebear::catch;
///
/// assert_eq!(catch(|| 6 * 7).unwrap(), 42);
/// ```
#[cfg(panic = "unwind")]
pub fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| match payload_into_error(payload) {
        Ok(error) => error,
        Err(payload) => resume_unwind(payload),
    })
}
