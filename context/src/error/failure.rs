//! How a request failed, the same for every waiter.
//!
//! # Shape
//!
//! The *origin* (name, cause, location) is made once. Every [`Failure`] is a counted pointer to a *step*:
//! either the origin's own, or a *hop* that adds one name to the step behind it. Steps are never changed, so
//! two waiters that pass the same failure on share its past and have each a future of their own:
//!
//! ```text
//!     load  <--  layer 0  <--  page        every arrow a counted pointer;
//!           <--  layer 1                   every step also points at the origin
//! ```
//!
//! A path can be as long as a chain of waits, and a chain of a million waits is promised to work. So passing a failure
//! on costs one allocation whatever the length, and a loop drops the chain of steps. The recursion that the compiler
//! would write could overflow the small stack of the request that holds the last handle.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::chain::{self, Chain};
use super::name::ShownName;
use super::panicked::{Contained, Panicked};
use super::unwind::payload_into_error;
use super::{Cycle, Error, SourceLocation, WaitError};

/// How a request failed: by an error or by a panic, where, and which way it came.
///
/// Cheap to clone (it is counted), and the same for every waiter, except for the path. Its `Display`
/// names the request, `source` is the original error (for a panic, its message); `{:#}` writes both, and the requests that
/// have passed it on.
///
/// ```
/// use forebear::{Error, Failure};
/// # let io = std::io::Error::from(std::io::ErrorKind::NotFound);
/// # let failure = Failure::from_error(Error::from(io), "load", None).through("layer 0");
/// // `load` could not read a file; `layer 0` waited for it, and we for `layer 0`.
/// assert_eq!(failure.to_string(), "request `load` failed");
/// let line = format!("{failure:#}");
/// assert!(line.starts_with("request `load` failed: ") && line.ends_with(" (passed on by `layer 0`)"));
/// assert_eq!(failure.request(), "load");
/// assert_eq!(failure.path().collect::<Vec<_>>(), ["load", "layer 0"]);
/// assert!(failure.downcast_ref::<std::io::Error>().is_some());
/// ```
#[derive(Clone)]
pub struct Failure(Arc<Step>);

/// A step of the path.
struct Step {
    origin: Arc<Origin>,
    /// How many names the path has, this one included.
    len: usize,
    /// The number of the request that made the step before its own end. 0: it is not known.
    maker: u64,
    /// `None`: the origin's own step.
    hop: Option<Hop>,
}

struct Hop {
    name: Cow<'static, str>,
    behind: Arc<Step>,
}

struct Origin {
    name: Cow<'static, str>,
    cause: FailureCause,
    location: Option<SourceLocation>,
}

#[cfg_attr(shuttle, allow(clippy::large_enum_variant, reason = "a lock of shuttle's is large"))]
enum FailureCause {
    Error(Cause),
    Panic(Panicked),
    /// That of this origin, which has another name and is none of this kind itself.
    Renamed(Arc<Origin>),
}

impl Origin {
    /// The origin as it was made. Its cause is no [`Renamed`](FailureCause::Renamed).
    fn first(self: &Arc<Self>) -> &Arc<Origin> {
        match &self.cause {
            FailureCause::Renamed(first) => first,
            FailureCause::Error(_) | FailureCause::Panic(_) => self,
        }
    }
}

/// An error whose destructor cannot unwind into the code that drops the last failure.
struct Cause(Contained<Error>);

impl Deref for Cause {
    type Target = Error;

    fn deref(&self) -> &Error {
        match self.0.get() {
            Some(error) => error,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

// An origin never changes but for the payload of a panic, which stands behind a lock and is whole at every
// moment; so no unwind can leave one half-done for somebody else to see.
impl UnwindSafe for Origin {}
impl RefUnwindSafe for Origin {}

impl Failure {
    /// The full name of the request in which it began. `Display` shows it escaped and cut.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.0.origin.name
    }

    /// The names of the requests it came through, from where it began to the one that answered you.
    ///
    /// Takes time and memory in proportion to its length.
    #[must_use]
    pub fn path(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + fmt::Debug {
        let mut names = Vec::with_capacity(self.0.len);
        let mut step = &self.0;
        while let Some(hop) = &step.hop {
            names.push(&*hop.name);
            step = &hop.behind;
        }
        names.push(self.request());
        names.into_iter().rev()
    }

    /// The original error. For a panic, one that displays its message.
    #[must_use]
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        match &self.0.origin.first().cause {
            FailureCause::Panic(panic) => panic,
            FailureCause::Error(cause) => &***cause,
            FailureCause::Renamed(_) => unreachable!("the first origin has a cause of its own"),
        }
    }

    /// The original error and its causes, outermost first.
    ///
    /// ```
    /// use forebear::{WaitError, try_spawn};
    ///
    /// let failed = try_spawn(|| Ok("x".parse::<u32>()?)).take();
    /// let Err(WaitError::Failed(failure)) = failed else { panic!() };
    /// assert_eq!(failure.chain().count(), 1);
    /// assert_eq!(failure.error().to_string(), "invalid digit found in string");
    /// ```
    pub fn chain(&self) -> Chain<'_> {
        Chain::new(self.error())
    }

    /// The first `E` in the [`chain`](Failure::chain).
    #[must_use]
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        chain::find(self.error())
    }

    /// The wait cycle in the chain, if there is one; see [`WaitError::cycle`].
    ///
    /// ```
    /// use forebear::{WaitError, try_spawn};
    ///
    /// let failed = try_spawn(|| Ok("x".parse::<u32>()?)).take();
    /// let Err(WaitError::Failed(failure)) = failed else { panic!() };
    /// assert_eq!(failure.cycle(), None); // it failed for another reason
    /// ```
    #[must_use]
    pub fn cycle(&self) -> Option<&Cycle> {
        chain::cycle(self.error())
    }

    /// Whether the request panicked, rather than return an error.
    ///
    /// ```
    /// use forebear::{WaitError, try_spawn};
    ///
    /// let failed = try_spawn(|| Ok("x".parse::<u32>()?)).take();
    /// let Err(WaitError::Failed(failure)) = failed else { panic!() };
    /// assert!(!failure.is_panic() && failure.panic_message().is_none());
    /// ```
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.panic().is_some()
    }

    /// The message of the panic; `"(non-string payload)"` if it had none, `None` if it was no panic.
    ///
    /// ```
    /// use forebear::{WaitError, spawn};
    ///
    /// let failed = spawn(|| if true { panic!("no licence") }).take();
    /// let Err(WaitError::Failed(failure)) = failed else { panic!() };
    /// assert_eq!(failure.panic_message(), Some("no licence"));
    /// ```
    pub fn panic_message(&self) -> Option<&str> {
        self.panic().map(Panicked::message)
    }

    /// The payload of the panic, if there is one, it is a `P`, and nobody has taken it.
    ///
    /// `P` must be `Sync` because several threads may look at once. A payload that has been lent here stays
    /// for as long as any clone of this failure: [`take_panic_payload`](Failure::take_panic_payload) then
    /// answers `None`. Asking for the wrong type changes nothing.
    ///
    /// ```
    /// use forebear::Failure;
    /// # let failure = Failure::from_panic(Box::new(7_u32), "load", None);
    /// assert_eq!(failure.panic_payload::<String>(), None);
    /// assert_eq!(failure.panic_payload::<u32>(), Some(&7)); // from now on it stays here
    /// assert!(failure.take_panic_payload().is_none());
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # fn look(failure: &forebear::Failure) {
    /// failure.panic_payload::<std::cell::Cell<u32>>(); // two threads could write it at once
    /// # }
    /// ```
    #[must_use]
    pub fn panic_payload<P: Any + Send + Sync>(&self) -> Option<&P> {
        self.panic()?.lend()
    }

    /// Takes the payload of the panic, to pass it on with `std::panic::resume_unwind` or to examine it later.
    ///
    /// The first caller gets it, whichever clone it asks. `None` for every later caller, for errors, and once
    /// [`panic_payload`](Failure::panic_payload) has lent the payload. The message stays with all clones.
    ///
    /// ```
    /// use forebear::{WaitError, spawn};
    ///
    /// let failed = spawn(|| if true { std::panic::panic_any(7_u32) }).take();
    /// let Err(WaitError::Failed(failure)) = failed else { panic!() };
    /// let payload = failure.take_panic_payload().unwrap();
    /// assert_eq!(payload.downcast_ref(), Some(&7_u32));
    /// assert!(failure.take_panic_payload().is_none());
    /// ```
    #[must_use]
    pub fn take_panic_payload(&self) -> Option<Box<dyn Any + Send>> {
        self.panic()?.take()
    }

    /// Where the request panicked, if that is known; else where it was created, which is known of requests that a
    /// builder has given a name.
    ///
    /// The place is not known if the request unwound with a payload that came from another thread, as by
    /// `std::panic::resume_unwind` after a join.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    ///
    /// let load = Request::builder().name("load").try_spawn(|| Ok("x".parse::<u32>()?));
    /// let Err(WaitError::Failed(failure)) = load.take() else { panic!() };
    /// assert!(failure.location().is_some_and(|made_at| made_at.line() > 0));
    /// ```
    #[must_use]
    pub fn location(&self) -> Option<&SourceLocation> {
        self.0.origin.location.as_ref()
    }

    /// Whether both report one and the same event, whatever path it took.
    ///
    /// ```
    /// use forebear::{WaitError, try_spawn};
    ///
    /// let load = try_spawn(|| Ok("x".parse::<u32>()?));
    /// let (one, another) = (load.wait().unwrap_err(), load.wait().unwrap_err());
    /// let (WaitError::Failed(one), WaitError::Failed(another)) = (one, another) else { panic!() };
    /// assert!(one.same_origin(&another));
    /// ```
    #[must_use]
    pub fn same_origin(&self, other: &Failure) -> bool {
        Arc::ptr_eq(self.0.origin.first(), other.0.origin.first())
    }

    fn panic(&self) -> Option<&Panicked> {
        match &self.0.origin.first().cause {
            FailureCause::Panic(panic) => Some(panic),
            FailureCause::Error(_) | FailureCause::Renamed(_) => None,
        }
    }
}

/// What the runtime makes failures with.
impl Failure {
    /// The failure of the request `name` that ended with `error`.
    ///
    /// An error that *is* somebody's failure (a [`WaitError::Failed`], or a `Failure`, not one wrapped in
    /// something else) is passed on with `name` added to its path, and keeps its location.
    #[doc(hidden)]
    pub fn from_error(
        error: Error,
        name: impl Into<Cow<'static, str>>,
        location: Option<SourceLocation>,
    ) -> Failure {
        // `Deref` asks the error itself; `Error::downcast_ref` would look through wrappers.
        let passed_on = match (*error).downcast_ref::<WaitError>() {
            Some(WaitError::Failed(failure)) => Some(failure),
            _ => (*error).downcast_ref::<Failure>(),
        };
        match passed_on {
            Some(failure) => failure.through(name),
            None => {
                let cause = Cause(Contained::new(error));
                Failure::new(FailureCause::Error(cause), name.into(), location)
            }
        }
    }

    /// The failure of the request `name` that unwound with `payload`: as by
    /// [`from_error`](Failure::from_error) if an error travels in it, else a panic.
    #[doc(hidden)]
    pub fn from_panic(
        payload: Box<dyn Any + Send>,
        name: impl Into<Cow<'static, str>>,
        location: Option<SourceLocation>,
    ) -> Failure {
        match payload_into_error(payload) {
            Ok(error) => Failure::from_error(error, name, location),
            Err(payload) => Failure::new(FailureCause::Panic(Panicked::new(payload)), name.into(), location),
        }
    }

    /// The same failure, one name further on its path.
    #[doc(hidden)]
    #[must_use]
    pub fn through(&self, name: impl Into<Cow<'static, str>>) -> Failure {
        Failure(Arc::new(Step {
            origin: self.0.origin.clone(),
            len: self.0.len + 1,
            maker: 0,
            hop: Some(Hop { name: name.into(), behind: self.0.clone() }),
        }))
    }

    /// The same failure, whose last step has this name: for a request that is known by another name to the receiver. It keeps the origin
    /// ([`same_origin`](Failure::same_origin)).
    #[doc(hidden)]
    #[must_use]
    pub fn renamed(&self, name: impl Into<Cow<'static, str>>) -> Failure {
        let step = &*self.0;
        let (origin, hop) = match &step.hop {
            Some(hop) => (step.origin.clone(), Some(Hop { name: name.into(), behind: hop.behind.clone() })),
            None => {
                let cause = FailureCause::Renamed(step.origin.first().clone());
                let location = step.origin.location.clone();
                (Arc::new(Origin { name: name.into(), cause, location }), None)
            }
        };
        Failure(Arc::new(Step { origin, len: step.len, maker: 0, hop }))
    }

    /// The same failure, with the number of the request that has just made its last step, and goes on: inside a `try_join`, as an example. Called
    /// before there is a clone.
    #[doc(hidden)]
    #[must_use]
    pub fn made_by(mut self, request: u64) -> Failure {
        if let Some(step) = Arc::get_mut(&mut self.0) {
            step.maker = request;
        }
        self
    }

    /// The failure with which the request of this number ends. If it has [made](Failure::made_by) the step before its last, that says the same: the last
    /// is left out. 0: the request has made none.
    #[doc(hidden)]
    #[must_use]
    pub fn at_end_of(self, request: u64) -> Failure {
        match &self.0.hop {
            Some(hop) if request != 0 && hop.behind.maker == request => Failure(hop.behind.clone()),
            _ => self,
        }
    }

    #[cold]
    fn new(cause: FailureCause, name: Cow<'static, str>, location: Option<SourceLocation>) -> Failure {
        let origin = Arc::new(Origin { name, cause, location });
        Failure(Arc::new(Step { origin, len: 1, maker: 0, hop: None }))
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut hop = self.hop.take();
        // `into_inner` answers exactly one of those who drop the last handles of a step at once, so none is
        // left to the recursive way. What it hands out has no hop any more when it is dropped.
        while let Some(Hop { behind, .. }) = hop {
            hop = Arc::into_inner(behind).and_then(|mut step| step.hop.take());
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ShownName(self.request());
        match (self.is_panic(), self.location()) {
            (false, _) => write!(f, "request `{name}` failed")?,
            (true, None) => write!(f, "request `{name}` panicked")?,
            (true, Some(location)) => write!(f, "request `{name}` panicked at {location}")?,
        }
        if f.alternate() {
            f.write_str(": ")?;
            chain::write_line(f, self.chain())?;
            self.write_path(f)?;
        }
        Ok(())
    }
}

/// How many names of a path are written: so many of the first, and of the last.
const SHOWN: usize = 8;

impl Failure {
    /// Writes which requests have passed it on, if any has: ` (passed on by `layer 0`, `page`)`.
    pub(super) fn write_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hops = self.0.len - 1;
        if hops == 0 {
            return Ok(());
        }
        f.write_str(" (passed on by ")?;
        for (n, name) in self.path().skip(1).enumerate() {
            if (SHOWN..hops.saturating_sub(SHOWN)).contains(&n) {
                continue;
            }
            if n > 0 {
                f.write_str(", ")?;
            }
            if n == hops.saturating_sub(SHOWN) && n > SHOWN {
                write!(f, "{} more, ", n - SHOWN)?;
            }
            write!(f, "`{}`", ShownName(name))?;
        }
        f.write_char(')')
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Failure");
        out.field("request", &self.request());
        match self.panic() {
            None => out.field("error", &self.error()),
            Some(panic) => out.field("panic", &panic.message()),
        };
        out.field("location", &self.location().map(ToString::to_string));
        out.field("steps", &self.0.len).finish()
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.error())
    }
}
