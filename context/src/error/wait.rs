//! What waits answer when they do not answer with a value.

use std::error::Error as StdError;
use std::fmt;

use super::{CancelReason, Cancelled, Cycle, Failure, chain};

/// What waiting for a request answers in place of its value: the type to match on, and to `#[from]`.
///
/// If several apply, your own cancellation is reported first, then the outcome of the target, then that time is
/// up. 16 bytes, `Clone`.
///
/// ```
/// use forebear::WaitError;
///
/// fn report(error: &WaitError) -> String {
///     match error {
///         WaitError::Cancelled => "stopping".to_owned(),
///         WaitError::Failed(failure) => format!("{failure:#}"),
///         other => other.to_string(),
///     }
/// }
/// assert_eq!(report(&WaitError::TimedOut), "the wait timed out");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WaitError {
    /// You were cancelled: clean up and return.
    Cancelled,
    /// The request waited for was cancelled by others, for this reason: if you still need it, make a new one.
    TargetCancelled(CancelReason),
    /// Time is up; the request waited for continues. Only from the `_timeout` forms.
    TimedOut,
    /// The request failed. Every waiter gets the same.
    Failed(Failure),
    /// The wait has closed a cycle in which each party waits for the next, with the names. If the end of a `join`, a `scope` or a pool closed it, or
    /// it is very long, another wait in the cycle gets this error. The other waits of the cycle continue when the one with the error returns or
    /// fails. A wait with a time limit of its own closes no cycle. The deadline of a request and the time limit of a region are no such limits: a cycle is named at
    /// once, though they would end it later.
    CircularWait(Cycle),
    /// Other handles exist, so the value cannot be moved out. Only from `take`.
    Shared,
    /// The runtime of the request is gone, and it never ended: the one answer that comes before a terminal
    /// state.
    ShutDown,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<WaitError>() == 16 && size_of::<Result<&u8, WaitError>>() == 16);

impl WaitError {
    /// Were *you*, who waited, cancelled? True for [`Cancelled`](WaitError::Cancelled) alone: false for a target that was cancelled, and
    /// for a failure, whatever its cause.
    ///
    /// [`Error::is_cancelled`](super::Error::is_cancelled) asks something else: whether a cancellation is anywhere among the causes.
    /// It is true also of a failure that the cancellation of another request has caused:
    ///
    /// ```
    /// use forebear::{Error, Request, TimeoutError};
    ///
    /// let fails = Request::try_new(|| Err::<(), _>(TimeoutError::Cancelled.into()));
    /// let error = fails.wait().unwrap_err();
    /// assert!(!error.is_cancelled()); // you were not
    /// assert!(Error::from(error).is_cancelled()); // somebody was
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, WaitError::Cancelled)
    }

    /// The failure of the request; `None` for every other error.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    ///
    /// let bad = Request::try_new(|| Ok("x".parse::<u32>()?));
    /// assert!(bad.wait().unwrap_err().failure().is_some());
    /// assert!(WaitError::TimedOut.failure().is_none());
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            WaitError::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// The cycle of waits that ended this wait, or that is the cause of the failure: of this one, or of one that it passes on.
    ///
    /// ```
    /// use forebear::{Cycle, Error, Failure, WaitError};
    ///
    /// let cycle = WaitError::CircularWait(Cycle::new(["parse", "load"]));
    /// let told = WaitError::Failed(Failure::from_error(Error::from(cycle), "parse", None));
    /// assert_eq!(told.cycle().map(|cycle| cycle.names().len()), Some(3));
    /// ```
    #[must_use]
    pub fn cycle(&self) -> Option<&Cycle> {
        chain::cycle(self)
    }

    /// The first `E` in the chain of causes: for a failure, as [`Failure::downcast_ref`].
    ///
    /// ```
    /// use std::num::ParseIntError;
    /// use forebear::try_spawn;
    ///
    /// let error = try_spawn(|| Ok("x".parse::<u32>()?)).take().unwrap_err();
    /// assert!(error.downcast_ref::<ParseIntError>().is_some());
    /// ```
    #[must_use]
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        chain::find(self)
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::Cancelled => f.write_str("the wait was cancelled"),
            WaitError::TargetCancelled(why) => write!(f, "the request waited for was cancelled: {why}"),
            WaitError::TimedOut => f.write_str("the wait timed out"),
            WaitError::Failed(failure) => fmt::Display::fmt(failure, f),
            WaitError::CircularWait(cycle) => write!(f, "circular wait: {cycle}"),
            WaitError::Shared => f.write_str("the value is shared: other handles of the request exist"),
            WaitError::ShutDown => f.write_str("the runtime was shut down before the request had ended"),
        }
    }
}

impl StdError for WaitError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            WaitError::Cancelled => Some(&Cancelled),
            WaitError::Failed(failure) => failure.source(),
            _ => None,
        }
    }
}

impl From<Cancelled> for WaitError {
    fn from(_: Cancelled) -> Self {
        WaitError::Cancelled
    }
}

impl From<TimeoutError> for WaitError {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::TimedOut => WaitError::TimedOut,
            TimeoutError::Cancelled => WaitError::Cancelled,
        }
    }
}

impl From<Failure> for WaitError {
    fn from(failure: Failure) -> Self {
        WaitError::Failed(failure)
    }
}

impl From<Cycle> for WaitError {
    fn from(cycle: Cycle) -> Self {
        WaitError::CircularWait(cycle)
    }
}

/// The error of every other wait with a limit: of locks, permits, conditions and channels.
///
/// These two and no others, for ever; converts into [`WaitError`].
///
/// ```
/// use forebear::{TimeoutError, WaitError};
///
/// fn guarded() -> Result<(), WaitError> {
///     Err(TimeoutError::TimedOut)?
/// }
/// assert!(matches!(guarded(), Err(WaitError::TimedOut)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeoutError {
    /// Time is up.
    TimedOut,
    /// You were cancelled: clean up and return.
    Cancelled,
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TimeoutError::TimedOut => "the wait timed out",
            TimeoutError::Cancelled => "the wait was cancelled",
        })
    }
}

impl StdError for TimeoutError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            TimeoutError::TimedOut => None,
            TimeoutError::Cancelled => Some(&Cancelled),
        }
    }
}

impl From<Cancelled> for TimeoutError {
    fn from(_: Cancelled) -> Self {
        TimeoutError::Cancelled
    }
}
