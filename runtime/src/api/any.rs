//! What users call on an [`AnyRequest`], a handle that knows nothing of the value.

use std::fmt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::error::WaitError;
use forebear_context::shim::atomic::Ordering;

#[cfg(doc)]
use crate::Request;
use crate::deadlock::foreign_stacks;
pub use crate::record::any::{AnyRequest, RequestId};
pub(crate) use crate::record::any::{id_of, is_done, worker_of};
use crate::record::fiber::Fiber;
use crate::record::header::{ARM, Header};
use crate::schedule::wait::{self, Terms};
use crate::shared::worker::OnRecord;
use crate::state::word::{self, CANCELLED, FAILED, FINISHED};

impl AnyRequest {
    /// Waits until the request has ended; submits it if need be. As [`Request::wait`], without the value.
    ///
    /// # Errors
    ///
    /// As [`Request::wait`].
    #[inline]
    #[track_caller]
    pub fn wait(&self) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over(self.raw())? };
        self.answer()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, by the clock of the request's runtime. Never runs the request here.
    /// A timeout of zero looks, as [`Request::wait_timeout`].
    ///
    /// # Errors
    ///
    /// As `wait`; and [`TimedOut`](WaitError::TimedOut).
    #[inline]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over_on(self.raw(), Terms::within(self.header(), timeout))? };
        self.answer()
    }

    /// As [`wait`](Self::wait), but without demand: a [`cancel`](Self::cancel) does not spare the request because of this wait. Never runs the
    /// request on the caller's stack.
    ///
    /// # Errors
    ///
    /// As `wait`.
    #[track_caller]
    pub fn watch(&self) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over_on(self.raw(), Terms { watches: true, ..Terms::default() })? };
        self.answer()
    }

    pub(crate) fn answer(&self) -> Result<(), WaitError> {
        if self.header().life_here() == FINISHED {
            return Ok(());
        }
        // SAFETY: terminal, at least here, and this handle's link.
        Err(unsafe { wait::refusal(self.raw()) })
    }

    /// Whether the request has ended, however.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    #[must_use]
    pub fn is_done(&self) -> bool {
        is_done(self.header())
    }

    /// What the request is doing: a snapshot. While its callbacks run, it is over to them only.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    #[must_use]
    pub fn state(&self) -> State {
        state_of(self.header())
    }

    /// The name it was given, else the type of its callable.
    #[must_use]
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// A number that no other request of this process has.
    #[must_use]
    pub fn id(&self) -> RequestId {
        id_of(self.header())
    }

    /// As [`Request::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.header().deadline()
    }

    /// The number of the worker it runs on, for life; `None` before it has started and in foreign threads.
    #[must_use]
    pub fn assigned_worker(&self) -> Option<usize> {
        worker_of(self.header())
    }

    /// The request that created this one. If that is over and there is no handle of it, perhaps the nearest ancestor
    /// that is not over. `None` for a root.
    ///
    /// ```
    /// use forebear::{Request, spawn};
    /// let parent = Request::builder().name("parent").build(|| {
    ///     let child = spawn(|| Request::current().and_then(|me| me.parent()));
    ///     child.take().unwrap().map(|parent| parent.name().to_owned())
    /// });
    /// assert_eq!(parent.take().unwrap().as_deref(), Some("parent"));
    /// ```
    #[must_use]
    pub fn parent(&self) -> Option<AnyRequest> {
        let mut parent = self.header().parent()?;
        while parent.is(ARM) {
            parent = parent.parent()?;
        }
        // Lazily: a handle that is made gives its link back when it is dropped.
        parent.word().try_add_link().then(|| AnyRequest::of_link(NonNull::from(parent)))
    }
}

impl fmt::Debug for AnyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(self.header(), "AnyRequest", f)
    }
}

/// What a request is doing.
///
/// ```
/// use forebear::{Request, State};
///
/// let seven = Request::new(|| 7);
/// assert_eq!(seven.state(), State::New);
/// seven.wait()?;
/// assert_eq!(seven.state(), State::Finished);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Made, not submitted.
    New,
    /// Submitted, not started.
    Queued,
    /// On top of a stack that runs, or about to be.
    Running,
    /// Started, and its stack waits for something.
    Suspended,
    /// Over, with a value.
    Finished,
    /// Over, with a failure.
    Failed,
    /// Over, cancelled.
    Cancelled,
}

pub(crate) fn state_of(h: &Header) -> State {
    match h.life_here() {
        word::NEW => State::New,
        word::HELD | word::QUEUED => State::Queued,
        FINISHED => State::Finished,
        FAILED => State::Failed,
        CANCELLED => State::Cancelled,
        _ => {
            let on_worker = worker_of(h).is_some();
            let fiber = NonNull::new(h.fiber.load(Ordering::Acquire)).filter(|_| on_worker);
            let mut parked = false;
            if let Some(fiber) = fiber {
                // The request may end meanwhile, and its runtime unmap the stack.
                let here = crate::record::fiber::get().and_then(Fiber::worker_record);
                foreign_stacks::with_holder(here, Fiber::context_at(fiber), |stack| {
                    parked = stack.is_parked()
                });
            }
            if parked { State::Suspended } else { State::Running }
        }
    }
}

pub(crate) fn describe(h: &Header, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bits = h.word().load();
    let mut out = f.debug_struct(what);
    out.field("name", &h.name()).field("state", &state_of(h));
    if let Some(worker) = worker_of(h) {
        out.field("worker", &worker);
    }
    if let Some(deadline) = h.deadline() {
        out.field("deadline", &deadline);
    }
    if let Some(failure) = bits.is_terminal().then(|| h.failure()).flatten() {
        out.field("failure", failure);
    }
    out.field("handles", &bits.handles()).field("links", &bits.links());
    out.finish()
}
