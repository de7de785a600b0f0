//! What a request knows of its own cancellation: whether it is cancelled, and regions in which a cancel is held back.
//!
//! A region is open while the word says `SHIELDED`. The exchange that sets a mark decides whether it falls into a region; such a mark is not
//! delivered until the region ends, and the region's end delivers it. Of nested regions the outermost of a request counts. A request that runs on its
//! waiter's stack has its own word, and so has an arm that another thread runs.
//!
//! A first closure of a join runs as its maker, so its region is one of the maker's word. The second closure, an arm, is part of the cancelled request and must not wait
//! for the region's end: the region may wait for what only the end of that arm brings. So the thread that finds the mark held back tells the arms that are
//! not sheltered ([`crate::cancel::spread`]). The region's end tells them again, which does nothing to an arm that knows.
//!
//! An arm is *sheltered* if it was made in a region of its maker's, or of a sheltered maker. The region does not end before the join, so this holds for as long as the arm
//! lives, and is written when the arm gets its node (`schedule/branches.rs`). A branch that is private when a region opens belongs to a join that began before. It gets its
//! node then, so that it is not taken for one that was made in the region.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebear_context::error::internal::resume;
use forebear_context::error::{CancelReason, Cancelled};
use forebear_context::shim::mutant;

use crate::cancel;
use crate::record::above::above;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{ARM, DELIVERED, Header};
use crate::shared::worker::is_unwinding;
use crate::state::word::SHIELDED;

/// Whether the current request has been cancelled, and is in no shielded region. `false` outside any request.
///
/// For loops that do not wait. Does not suspend. One relaxed load, of the worker's attention word, while no cancelled request
/// concerns this worker.
///
/// ```
/// use forebear::{CancelReason, Request, is_cancelled};
/// let job = Request::new(|| {
///     Request::current().unwrap().abort(CancelReason::Asked);
///     is_cancelled()
/// });
/// assert!(job.wait().is_err());
/// assert!(!is_cancelled());
/// ```
#[inline]
#[doc(alias = "current_request_is_cancelled")]
#[must_use]
pub fn is_cancelled() -> bool {
    // An arm that was taken elsewhere has its maker's word, whose mark may not have come to this worker yet.
    let arm = |fiber: &Fiber| fiber.request().is_some_and(|top| top.is(ARM));
    fiber::get().is_some_and(|fiber| {
        (cancel::concerns(fiber) || arm(fiber)) && cancel::is_cancelled_by_messages(fiber)
    })
}

/// Why the current request has been cancelled; `None` while [`is_cancelled`] is `false`.
///
/// So a request can clean up differently after a deadline and a stop, or write down why it ended early. It is the reason that the request's waiters are
/// told. Inside a region with a limit it is [`Deadline`](CancelReason::Deadline) if the region's time is up, else the reason of the request. A
/// closure of a [`join`](crate::join) has the reason of the request that joins. Does not suspend.
///
/// ```
/// use forebear::{CancelReason, Request, cancel_reason};
/// let job = Request::new(|| {
///     assert_eq!(cancel_reason(), None);
///     Request::current().unwrap().abort(CancelReason::Stopped);
///     match cancel_reason() {
///         Some(CancelReason::Stopped) => println!("stopped: the checkpoint is written"),
///         why => panic!("{why:?}"),
///     }
/// });
/// assert!(job.wait().is_err());
/// ```
#[must_use]
pub fn cancel_reason() -> Option<CancelReason> {
    if !is_cancelled() {
        return None;
    }
    fiber::get()?.request().map(cancel::reason_of_caller)
}

/// [`Cancelled`] if the current request has been cancelled, to be handed on with `?`. A cancellation point; does not
/// suspend.
///
/// # Errors
///
/// [`Cancelled`].
///
/// ```
/// use forebear::{check_cancelled, try_spawn};
/// let sum = try_spawn(|| {
///     let mut sum = 0_u64;
///     for n in 0..1_000 {
///         check_cancelled()?;
///         sum += n;
///     }
///     Ok(sum)
/// });
/// assert_eq!(sum.take().ok(), Some(499_500));
/// ```
#[inline]
#[doc(alias = "raise_if_cancelled")]
pub fn check_cancelled() -> Result<(), Cancelled> {
    if is_cancelled() { Err(Cancelled::new()) } else { Ok(()) }
}

/// Calls `f`, and holds a cancellation of the current request back until it returns: no wait inside answers
/// `Cancelled`, and children and targets are not told before. For cleaning up that waits.
///
/// Regions nest; the outermost counts. What is called inside as another request has its own say.
///
/// In a closure of a [`join`](crate::join) the region shelters that closure alone, and the joins inside it. Waits of the other closure are refused as soon as
/// the cancel comes.
///
/// # Panics
///
/// With the panic of `f`.
///
/// ```
/// use forebear::{CancelReason, Request, check_cancelled, shield, spawn};
/// let job = Request::try_new(|| {
///     Request::current().unwrap().abort(CancelReason::Asked);
///     let saved = shield(|| spawn(|| 7).take())?; // waits in spite of it
///     check_cancelled()?;
///     Ok(saved)
/// });
/// assert!(job.wait().is_err());
/// ```
pub fn shield<R>(f: impl FnOnce() -> R) -> R {
    let Some(fiber) = fiber::get() else { return f() };
    let Some(top) = fiber.request() else { return f() };
    if top.bare.load().has(SHIELDED) {
        return f();
    }
    open(fiber, top);
    let result = catch_unwind(AssertUnwindSafe(f));
    close(top);
    result.unwrap_or_else(|payload| resume(payload))
}

/// Opens the outermost region of the request on top of the fiber.
fn open(fiber: &Fiber, top: &Header) {
    if !fiber.branches.is_empty() {
        // The other arms of joins that have begun, which the region does not shelter. They would be taken for arms that were made in it.
        mutant!("region_leaves_arms_unpublished", (), (above().publish_arms)(fiber));
    }
    // What runs is held by its runner, so it is there after the region.
    top.word().shield();
}

/// Closes it.
fn close(top: &Header) {
    top.word().unshield(true);
    // Marked within, or before and not delivered by then.
    if cancel::is_cancelled(top) && !top.has_state(DELIVERED) {
        // SAFETY: it runs here.
        mutant!("region_end_tells_nobody", (), unsafe { cancel::deliver(NonNull::from(top)) });
    }
}

/// A region for what a destructor makes and waits for, while an unwind runs the destructor. The waits are sheltered in any case. But what a cancelled request makes is
/// cancelled, and what is called here would unwind with that: out of a destructor inside an unwind, which ends the process.
#[must_use]
pub(crate) struct UnwindRegion(Option<NonNull<Header>>);

impl UnwindRegion {
    /// Opens one if an unwind runs what calls this, and no region is open.
    #[inline(always)]
    pub(crate) fn open_if_unwinding(fiber: &Fiber) -> UnwindRegion {
        UnwindRegion(if std::thread::panicking() { open_in_unwind(fiber) } else { None })
    }

    /// Closes it, on the stack that has opened it.
    #[inline(always)]
    pub(crate) fn close(self) {
        if let Some(top) = self.0 {
            // SAFETY: W1: the request is claimed and runs on this stack, below what calls this, so its runner or waiter holds it.
            close(unsafe { top.as_ref() });
        }
    }
}

#[cold]
fn open_in_unwind(fiber: &Fiber) -> Option<NonNull<Header>> {
    let top = fiber.request().filter(|top| !top.bare.load().has(SHIELDED))?;
    is_unwinding(fiber).then(|| {
        open(fiber, top);
        NonNull::from(top)
    })
}
