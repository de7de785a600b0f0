//! What becomes of an error: it is recorded, only stops, or goes to a hook.
//!
//! The hooks and the test for clean stops are a user's code. They are called without the lock, and their panics end here.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::fmt;
use std::ptr;
use std::thread;

use forebear::{Error, Failure, Request};

use super::board::Reported;
use super::{Coordinator, CoordinatorShared, member};
use crate::contain::{contained, print};

/// The input has ended: the error by which a worker stops all workers without a failure.
///
/// The default kind of a *clean stop*: [`Coordinator::join`] answers `Ok` after it. [`CoordinatorBuilder::clean_stop`](crate::CoordinatorBuilder::clean_stop) replaces it.
///
/// ```
/// use forebear_supervise::{Coordinator, EndOfInput};
/// let coordinator = Coordinator::new();
/// coordinator.report(EndOfInput)?;
/// assert!(coordinator.should_stop() && coordinator.join().is_ok());
/// # Ok::<(), forebear::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndOfInput;

impl fmt::Display for EndOfInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("end of input")
    }
}

impl StdError for EndOfInput {}

/// What becomes of a failure that no caller gets, if no hook receives it.
pub(super) fn print_unhandled(failure: &Failure) {
    print(format_args!("forebear: nobody has seen that {failure:#}"));
}

/// The name of the request or thread that calls.
pub(crate) fn caller_name() -> String {
    let request = Request::current().map(|request| request.name().to_owned());
    let name = request.or_else(|| thread::current().name().map(str::to_owned));
    name.unwrap_or_else(|| "(unnamed thread)".into())
}

impl Coordinator {
    /// Reports an error, and requests a stop. [`join`](Self::join) returns the first error, with the name of the request or thread that has reported it. An error of a
    /// kind for clean stops only requests the stop.
    ///
    /// Does not suspend.
    ///
    /// # Errors
    ///
    /// The same error, if a join has already returned: no other caller would get it.
    pub fn report(&self, error: impl Into<Error>) -> Result<(), Failure> {
        self.report_as(caller_name(), error.into())
    }

    pub(super) fn report_as(&self, name: String, error: Error) -> Result<(), Failure> {
        let follows = error.is_cancelled();
        self.record(Failure::from_error(error, name, None), follows)
    }

    /// Whether this failure only stops.
    pub(crate) fn is_clean(&self, failure: &Failure) -> bool {
        contained(|| (self.0.is_clean)(failure)).unwrap_or(false)
    }

    /// Records a failure. `follows`: it is a cancellation.
    pub(crate) fn record(&self, failure: Failure, follows: bool) -> Result<(), Failure> {
        let clean = self.is_clean(&failure);
        let (reported, begun) = self.0.board.report(failure, follows, clean, self.0.rules);
        self.reach(begun);
        match reported {
            Reported::Taken => Ok(()),
            Reported::Late(failure) => {
                self.0.unhandled(&failure);
                Ok(())
            }
            Reported::AfterJoin(failure) => Err(failure),
        }
    }

    /// The same, for a failure that no caller can be returned.
    pub(super) fn record_or_tell(&self, failure: Failure, follows: bool) {
        if let Err(failure) = self.record(failure, follows) {
            self.0.unhandled(&failure);
        }
    }

    /// Calls `f`, and reports its error or panic. Returns `None` after either, and the caller continues.
    ///
    /// The report has the name of the request or thread. [`Member::guard`](super::Member::guard) reports in the worker's name.
    ///
    /// In a request, an unwind by [`or_unwind`](forebear::OrUnwind) is reported as an error. A failure after a join is passed to the
    /// [hook](crate::CoordinatorBuilder::on_unhandled_failure).
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    /// let coordinator = Coordinator::new();
    /// let parsed = coordinator.guard(|| Ok("12x".parse::<u32>()?));
    /// assert!(parsed.is_none() && coordinator.should_stop());
    /// let error = coordinator.join().unwrap_err();
    /// assert!(error.failure().unwrap().downcast_ref::<std::num::ParseIntError>().is_some());
    /// ```
    pub fn guard<T>(&self, f: impl FnOnce() -> Result<T, Error>) -> Option<T> {
        let name = Request::current().map(|request| request.name().to_owned());
        let name = name.or_else(|| thread::current().name().map(str::to_owned));
        self.guard_as(&name.unwrap_or_else(|| "(unnamed thread)".into()), f)
    }

    pub(super) fn guard_as<T>(&self, name: &str, f: impl FnOnce() -> Result<T, Error>) -> Option<T> {
        match member::attempt(name, f) {
            Ok(value) => Some(value),
            Err((failure, follows)) => {
                self.record_or_tell(failure, follows);
                None
            }
        }
    }
}

thread_local! {
    /// The coordinators whose hook for unhandled failures this thread is in.
    static IN_HOOK: RefCell<Vec<*const CoordinatorShared>> = const { RefCell::new(Vec::new()) };
}

/// Leaves the hook, however it ends.
struct LeaveHook(*const CoordinatorShared);

impl Drop for LeaveHook {
    fn drop(&mut self) {
        let _ = IN_HOOK.try_with(|hooks| hooks.borrow_mut().retain(|known| *known != self.0));
    }
}

impl CoordinatorShared {
    /// Passes a failure to the hook. One that the hook reports itself, and that no other caller gets either, is printed: the hook would report it again.
    fn unhandled(&self, failure: &Failure) {
        let own = ptr::from_ref(self);
        let enter = |hooks: &RefCell<Vec<_>>| {
            let mut hooks = hooks.borrow_mut();
            let is_in_it = hooks.contains(&own);
            if !is_in_it {
                hooks.push(own);
            }
            is_in_it
        };
        // In a thread whose thread-locals are gone the failure is printed as well.
        if IN_HOOK.try_with(enter).unwrap_or(true) {
            return print_unhandled(failure);
        }
        let _leaves = LeaveHook(own);
        contained(|| (self.on_unhandled_failure)(failure));
    }

    pub(super) fn warn(&self, text: &str) {
        contained(|| (self.on_warning)(text));
    }
}

impl Drop for CoordinatorShared {
    fn drop(&mut self) {
        self.delayed.wake();
        if let Some(failure) = self.board.unheard() {
            self.unhandled(&failure);
        }
    }
}
