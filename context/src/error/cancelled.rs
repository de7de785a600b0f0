//! Cancellation as an error, and the reasons for it.
//!
//! A request that is cancelled gets an error from its wait, returns it with `?`, and ends. The runtime then has to
//! recognise the cancel in whatever wraps the error. A search for [`Cancelled`] in the chain of sources is not enough.
//! A *transparent* wrapper (thiserror's attribute of that name, `io::Error::other`, an `anyhow::Error` turned into a
//! box) reports the source of the error that it wraps, and not that error. So a bare [`Cancelled`] with no source would
//! vanish. Hence it has a source, the private [`Mark`]. Any number of transparent wrappers hide one link together,
//! since each forwards the call to the next. So one mark suffices. [`Chain`](super::Chain) shows the two as one
//! [`Cancelled`].

use std::error::Error as StdError;
use std::fmt;

/// You were cancelled: clean up and return.
///
/// What most waiting methods answer in a cancelled request. Hand it on with `?`; swallowing it is no error,
/// but every further wait answers the same. It is also the [`source`](std::error::Error::source) of every
/// error of ours that means a cancellation, so that it can be found again behind any wrapper: see
/// [`Error::is_cancelled`](super::Error::is_cancelled).
///
/// ```
/// use forebear::{Cancelled, Error, TimeoutError};
/// use std::error::Error as _;
///
/// assert!(TimeoutError::Cancelled.source().is_some_and(|s| s.is::<Cancelled>()));
/// assert!(Error::from(TimeoutError::Cancelled).is_cancelled());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Cancelled;

impl Cancelled {
    /// For the crates of this workspace: only the runtime makes one.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Cancelled
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("the request was cancelled")
    }
}

impl StdError for Cancelled {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&Mark)
    }
}

/// The trace that [`Cancelled`] leaves where only its source is passed on.
#[derive(Debug)]
pub(super) struct Mark;

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("it was told to stop")
    }
}

impl StdError for Mark {}

/// Why a request was cancelled. The first reason stays.
///
/// ```
/// use forebear::{CancelReason, WaitError};
///
/// let answer = WaitError::TargetCancelled(CancelReason::Deadline);
/// assert_eq!(answer.to_string(), "the request waited for was cancelled: its deadline passed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// `cancel` was called, and no waiter that is not cancelled waited for it; or its last handle was
    /// dropped before it was submitted.
    Asked,
    /// Somebody called `abort` and gave no other reason.
    Aborted,
    /// The request that created it was cancelled.
    Parent,
    /// The request that created it failed.
    ParentFailed,
    /// Another member of its pool, or its scope, failed.
    SiblingFailed,
    /// The scope it belongs to was left by an unwind.
    ScopeUnwound,
    /// Its pool was cancelled.
    PoolCancelled,
    /// Its deadline, or one that it inherited, passed.
    Deadline,
    /// Its expiration timer ran out.
    Expired,
    /// What manages the request was stopped. A stop of a coordinator or supervisor (the crate `forebear-supervise`) gives this reason to the
    /// requests that are registered as workers, and to the request that runs its main function. A program may give it to `abort`.
    Stopped,
    /// Its runtime was shut down.
    Shutdown,
    /// The thread that it had begun on exits, in a runtime without worker threads: no other thread could continue with it.
    ThreadExited,
    /// A reason of the user's own, by number.
    Other(u32),
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CancelReason::Asked => "it was asked to stop",
            CancelReason::Aborted => "it was aborted",
            CancelReason::Parent => "its parent was cancelled",
            CancelReason::ParentFailed => "its parent failed",
            CancelReason::SiblingFailed => "a sibling failed",
            CancelReason::ScopeUnwound => "its scope unwound",
            CancelReason::PoolCancelled => "its pool was cancelled",
            CancelReason::Deadline => "its deadline passed",
            CancelReason::Expired => "its expiration timer ran out",
            CancelReason::Stopped => "its coordinator or supervisor was stopped",
            CancelReason::Shutdown => "its runtime was shut down",
            CancelReason::ThreadExited => "the thread that ran it has exited",
            CancelReason::Other(n) => return write!(f, "reason {n}"),
        })
    }
}
