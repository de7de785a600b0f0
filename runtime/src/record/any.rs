//! [`AnyRequest`]: a link to a request's header, as a handle. What users call on it is in `api/any.rs`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr::NonNull;

use forebear_context::error::{Error, Failure};
use forebear_context::shim::atomic::{AtomicU64, Ordering};

#[cfg(doc)]
use crate::Request;
use crate::record::arena;
use crate::record::header::Header;
use crate::state::word::FINISHED;

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
#[doc(alias = "AbortHandle")]
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
    /// A count is held elsewhere, as the caller knows.
    pub(crate) unsafe fn linked(header: NonNull<Header>) -> AnyRequest {
        // SAFETY: by contract.
        unsafe { header.as_ref() }.word().add_link();
        AnyRequest { header }
    }

    /// The handle that a link becomes, which is the caller's.
    pub(crate) fn of_link(header: NonNull<Header>) -> AnyRequest {
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

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this handle's link (W4).
        unsafe { self.header.as_ref() }
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

/// The lanes that a waiter has spawned, and perhaps some that are over: what its wait, [`Reason::Pool`](forebear_context::context::Reason::Pool), points at.
pub(crate) type Lanes = Vec<AnyRequest>;

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

/// The next to be drawn.
static NEXT: AtomicU64 = AtomicU64::new(1);

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
        RequestId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// None that is smaller will be drawn.
    pub(crate) fn undrawn() -> RequestId {
        RequestId(NEXT.load(Ordering::Relaxed))
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

/// Its number, if that was drawn; else 0.
pub(crate) fn drawn_id(h: &Header) -> u64 {
    h.side().map_or(0, |side| side.id.load(Ordering::Relaxed))
}

/// The failure that `request` gets from a call inside it. If it ends with this failure, it does not pass it on. `other`: the name where there is no
/// request.
#[cold]
pub(crate) fn failure_inside(error: Error, request: Option<&Header>, other: &'static str) -> Failure {
    match request {
        None => Failure::from_error(error, other, None),
        Some(h) => {
            Failure::from_error(error, h.name().to_owned(), None).made_by(id_of(h.identity()).as_u64())
        }
    }
}
