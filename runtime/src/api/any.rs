//! [`AnyRequest`]: a handle that knows nothing of the value.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::error::WaitError;
use forebear_context::shim::atomic::{AtomicU64, Ordering};

use crate::api::request::Request;
use crate::deadlock::foreign_stacks;
use crate::memory::arena;
use crate::record::header::{ARM, Header};
use crate::schedule::wait::{self, Terms};
use crate::stack::fiber::Fiber;
use crate::state::word::{self, CANCELLED, FAILED, FINISHED};

/// An untyped handle. It keeps the request's record, never its value and never unstarted work. When the last
/// [`Request`] of an unsubmitted request is dropped, the request ends, even if untyped handles are left.
///
/// `Send` and `Sync` for every value type; equal and hashed by identity.
///
/// ```
/// use forebear::{AnyRequest, Request, spawn};
///
/// let job = spawn(|| std::cell::Cell::new(1)); // not `Sync`: the typed handle stays here
/// let any: AnyRequest = job.to_untyped();
/// std::thread::spawn(move || any.wait()).join().unwrap()?;
/// assert!(job.is_done());
/// # Ok::<(), forebear::WaitError>(())
/// ```
///
/// ```
/// use std::time::Duration;
/// use forebear::{Request, State};
///
/// let tile = Request::builder().name("tile").order_hint(3).build(|| 7);
/// let any = tile.to_untyped();
/// assert_eq!((any.name(), any.state(), any.deadline()), ("tile", State::New, None));
/// assert_eq!((any.id(), any.assigned_worker()), (tile.id(), None));
/// assert!(any.set_order_hint(1));
/// any.wait_timeout(Duration::from_secs(60))?;
/// assert_eq!(any.state(), State::Finished);
/// any.watch()?; // it is over
/// # Ok::<(), forebear::WaitError>(())
/// ```
pub struct AnyRequest {
    header: NonNull<Header>,
}

// SAFETY: it reaches the header only, all of whose parts a link may touch are atomic or constant.
unsafe impl Send for AnyRequest {}
// SAFETY: as above.
unsafe impl Sync for AnyRequest {}

impl AnyRequest {
    /// A handle with a link of its own.
    ///
    /// # Safety
    ///
    /// The caller knows that somebody holds a count.
    pub(crate) unsafe fn linked(header: NonNull<Header>) -> AnyRequest {
        // SAFETY: by contract.
        unsafe { header.as_ref() }.word().add_link();
        AnyRequest { header }
    }

    /// The header that this handle's link keeps.
    pub(crate) fn raw(&self) -> NonNull<Header> {
        self.header
    }

    /// For the crate: what it holds a count of.
    pub(crate) fn header_ptr(&self) -> NonNull<Header> {
        self.header
    }

    /// The header, with the handle's link.
    pub(crate) fn into_raw(self) -> NonNull<Header> {
        std::mem::ManuallyDrop::new(self).header
    }

    fn header(&self) -> &Header {
        // SAFETY: this handle's link (W4).
        unsafe { self.header.as_ref() }
    }

    /// Waits until the request has ended; submits it if need be. As [`Request::wait`], without the value.
    ///
    /// # Errors
    ///
    /// As [`Request::wait`].
    #[inline]
    pub fn wait(&self) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over(self.header)? };
        self.answer()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, by the clock of the request's runtime. Never runs the request here.
    /// A timeout of zero looks, as [`Request::wait_timeout`].
    ///
    /// # Errors
    ///
    /// As `wait`; and [`TimedOut`](WaitError::TimedOut).
    #[inline]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over_on(self.header, Terms::within(self.header(), timeout))? };
        self.answer()
    }

    /// As [`wait`](Self::wait), but without demand: a [`cancel`](Self::cancel) does not spare the request because of this wait. Never runs the
    /// request on the caller's stack.
    ///
    /// # Errors
    ///
    /// As `wait`.
    pub fn watch(&self) -> Result<(), WaitError> {
        // SAFETY: this handle's link.
        unsafe { wait::until_over_on(self.header, Terms { watches: true, ..Terms::default() })? };
        self.answer()
    }

    pub(crate) fn answer(&self) -> Result<(), WaitError> {
        if self.header().life_here() == FINISHED {
            return Ok(());
        }
        // SAFETY: terminal, at least here, and this handle's link.
        Err(unsafe { wait::refusal(self.header) })
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

    /// The request that created this one; when that is over and nobody holds it, perhaps the nearest ancestor that is not.
    /// `None` for a root.
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
        parent.word().try_add_link().then(|| AnyRequest { header: NonNull::from(parent) })
    }
}

impl Clone for AnyRequest {
    fn clone(&self) -> Self {
        self.header().word().add_link();
        AnyRequest { header: self.header }
    }
}

impl Drop for AnyRequest {
    fn drop(&mut self) {
        if self.header().word().release_link() {
            // SAFETY: W4.
            unsafe { arena::end(self.header) };
        }
    }
}

impl PartialEq for AnyRequest {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl Eq for AnyRequest {}

impl Hash for AnyRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.header.hash(state);
    }
}

impl<T> From<&Request<T>> for AnyRequest {
    fn from(request: &Request<T>) -> Self {
        request.to_untyped()
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

/// A number that no other request of this process has. Drawn when first asked for.
///
/// ```
/// use std::collections::HashMap;
/// use forebear::{Request, RequestId};
///
/// let (one, another) = (Request::new(|| 1), Request::new(|| 2));
/// let names: HashMap<RequestId, &str> = [(one.id(), "one"), (another.id(), "another")].into();
/// assert_eq!(names[&one.clone().id()], "one");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl RequestId {
    /// The number itself: for logs, for tables, for the metrics of another system. Not 0.
    ///
    /// ```
    /// use forebear::spawn;
    ///
    /// let id = spawn(|| ()).id();
    /// assert_eq!(format!("#{}", id.as_u64()), id.to_string());
    /// ```
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// One that nothing has yet.
    pub(crate) fn next() -> RequestId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        RequestId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

pub(crate) fn is_done(h: &Header) -> bool {
    h.life_here() >= FINISHED
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
                let here = crate::stack::fiber::get().and_then(Fiber::worker);
                foreign_stacks::with_holder(here, Fiber::context_at(fiber), |stack| {
                    parked = stack.is_parked()
                });
            }
            if parked { State::Suspended } else { State::Running }
        }
    }
}

pub(crate) fn worker_of(h: &Header) -> Option<usize> {
    let ran_on = h.ran_on.load(Ordering::Acquire);
    // SAFETY: an arena stays while a header that ran on it does (M3).
    let worker = unsafe { ran_on.as_ref() }?.worker;
    (worker != u32::MAX).then_some(worker as usize)
}

pub(crate) fn id_of(h: &Header) -> RequestId {
    let id = &h.side_or_new().id;
    let known = id.load(Ordering::Relaxed);
    if known != 0 {
        return RequestId(known);
    }
    let RequestId(drawn) = RequestId::next();
    match id.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => RequestId(drawn),
        Err(other) => RequestId(other),
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
