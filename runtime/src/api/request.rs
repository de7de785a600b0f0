//! [`Request`]: the handle to one computation and, later, its value. How it is made, submitted, and converted; each other use of a handle
//! has a file below.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

use forebear_context::error::Error;
use forebear_context::lineage::Lineage;

mod counts;
mod ending;
mod hint;
mod outcome;
mod read;
mod spawn;
mod take;
mod wait;

pub use self::ending::CancelOnDrop;
pub use self::outcome::Outcome;
pub(crate) use self::spawn::{Counted, spawn_of, spawn_with};
pub use self::spawn::{spawn, try_spawn};

use self::spawn::new_with;
use self::take::take_value;
use crate::api::any::AnyRequest;
use crate::api::builder::RequestBuilder;
use crate::record::cell::{self, Fallible, Plain};
use crate::record::fiber;
use crate::record::header::Header;
use crate::schedule::submit;
use crate::state::word::{FINISHED, HANDLE, SUBMITTED};

/// A handle to one computation and, later, its value.
///
/// A request wraps one callable. Nothing runs before [`submit`](Self::submit) or [`wait`](Self::wait). The callable runs
/// at most once, for any number of waiters. Handles are counted like [`Arc`](std::sync::Arc): clone one to share it. Dropping the
/// last handle of a submitted request does not stop it; its value is dropped when it can no longer be reached.
///
/// A handle is `Send` and `Sync` if the value is both. A value that is only `Send` is waited for and taken on the thread that made the
/// request.
///
/// ```
/// use forebear::Request;
///
/// let image = Request::new(|| vec![1.0, 2.0, 3.0]);
/// let (a, b) = (image.clone(), image.clone());
/// let sum = Request::try_new(move || Ok(a.wait()?.iter().sum::<f64>()));
/// let max = Request::try_new(move || Ok(b.wait()?.iter().fold(0.0_f64, |m, x| m.max(*x))));
/// max.submit(); // elsewhere, if a worker is idle
/// assert_eq!(sum.wait()? / max.wait()?, 2.0); // `sum` runs right here
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[doc(alias = "async")]
#[doc(alias = "Future")]
#[doc(alias = "task")]
pub struct Request<T> {
    header: NonNull<Header>,
    value: PhantomData<T>,
}

// SAFETY: as `Arc<T>`: through a handle a `&T` can be had on any thread (hence `Sync`), and the last handle, wherever it
// is, drops or moves out the `T` (hence `Send`). The callable is `Send` by the bounds of the function that made the request.
unsafe impl<T: Send + Sync> Send for Request<T> {}
// SAFETY: as above: a `&Request<T>` can be cloned.
unsafe impl<T: Send + Sync> Sync for Request<T> {}
impl<T> Unpin for Request<T> {}
impl<T: RefUnwindSafe> UnwindSafe for Request<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Request<T> {}

impl<T: Send + 'static> Request<T> {
    /// A request for what `f` returns. Nothing runs yet.
    ///
    /// It belongs to the runtime that is current here, and is a child of the current request, if there is one.
    ///
    /// ```
    /// use forebear::Request;
    /// let answer = Request::new(|| 6 * 7);
    /// assert_eq!(answer.get(), None);
    /// assert_eq!(answer.wait()?, &42);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[inline]
    pub fn new(f: impl FnOnce() -> T + Send + 'static) -> Self {
        // SAFETY: the callable is `'static`.
        unsafe { new_with(Plain(f)) }
    }

    /// A request for what `f` returns, unless that is an error: then the request fails with it.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    /// let read = Request::try_new(|| Ok(std::fs::read("no such file")?));
    /// let Err(WaitError::Failed(failure)) = read.wait() else { panic!() };
    /// assert!(failure.downcast_ref::<std::io::Error>().is_some());
    /// ```
    #[must_use = "a request does nothing until it is submitted or waited for"]
    #[inline]
    pub fn try_new(f: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Self {
        // SAFETY: the callable is `'static`.
        unsafe { new_with(Fallible(f)) }
    }
}

impl Request<()> {
    /// The request that the caller runs in; `None` outside any request.
    ///
    /// Right everywhere: in directly run children, in the arms of a join (the request that called `join`, stolen or not),
    /// in foreign threads.
    ///
    /// ```
    /// use forebear::Request;
    /// assert!(Request::current().is_none());
    /// let name = Request::builder().name("me").build(|| Request::current().unwrap().name().to_owned());
    /// assert_eq!(name.wait()?, "me");
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn current() -> Option<AnyRequest> {
        let mut top = fiber::get()?.request()?;
        while top.is(crate::record::header::ARM) {
            top = top.parent()?;
        }
        // SAFETY: what runs is held by its runner.
        Some(unsafe { AnyRequest::linked(NonNull::from(top)) })
    }

    /// A description of requests to make: name, priority, stack size and more.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let load = Request::builder().name("load").build(|| 5);
    /// assert_eq!((load.name(), load.wait()?), ("load", &5));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn builder() -> RequestBuilder {
        RequestBuilder::default()
    }
}

impl<T> Request<T> {
    /// A request that is already finished, with `value`. It is never scheduled. Its name is `ready`.
    ///
    /// ```
    /// use forebear::Request;
    /// assert_eq!(Request::ready(7).take().ok(), Some(7));
    /// ```
    pub fn ready(value: T) -> Self {
        // SAFETY: one handle, which this is.
        unsafe { Self::from_raw(cell::make_ready(FINISHED | HANDLE, Lineage::root(0, 0), value)) }
    }

    /// The handle that the word counts.
    ///
    /// # Safety
    ///
    /// One count of the header's handles is given to the result, and its value is a `T`.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(header: NonNull<Header>) -> Self {
        Request { header, value: PhantomData }
    }

    /// For the crate: what it holds a count of.
    pub(crate) fn header_ptr(&self) -> NonNull<Header> {
        self.header
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: this handle's count (W4).
        unsafe { self.header.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    /// Schedules the request, unless that has been done. Does not suspend.
    ///
    /// If the runtime has ended, the request ends here, cancelled with [`CancelReason::Shutdown`](crate::CancelReason::Shutdown).
    ///
    /// ```
    /// use forebear::Request;
    /// let seven = Request::new(|| 7);
    /// assert_eq!(seven.submit().submit().wait()?, &7);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[inline]
    pub fn submit(&self) -> &Self {
        // SAFETY: this handle.
        unsafe { submit::submit(self.header, SUBMITTED) };
        self
    }

    /// The value if the request has finished and this is the only handle; otherwise the handle comes back. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// # Errors
    ///
    /// The handle.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let seven = Request::new(|| 7);
    /// let Err(seven) = seven.try_take() else { panic!("it has not run") };
    /// seven.wait()?;
    /// assert_eq!(seven.try_take().ok(), Some(7));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    pub fn try_take(self) -> Result<T, Self> {
        let bits = self.header().word().load();
        if bits.life() == FINISHED && bits.handles() == 1 && self.header().has_value.get() {
            let header = self.into_raw();
            // SAFETY: terminal with a value, and ours is the only handle.
            return Ok(unsafe { take_value(header) });
        }
        Err(self)
    }

    /// An untyped handle of the same request.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (number, text) = (Request::new(|| 7), Request::new(|| String::from("seven")));
    /// for any in [number.to_untyped(), text.to_untyped()] {
    ///     any.wait()?;
    /// }
    /// assert!(number.is_done() && text.is_done());
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn to_untyped(&self) -> AnyRequest {
        // SAFETY: this handle's count.
        unsafe { AnyRequest::linked(self.header) }
    }

    /// Drops the value as soon as no other handle or request can reach it, and keeps an untyped handle.
    ///
    /// ```
    /// use forebear::Request;
    /// let big = Request::new(|| vec![0; 1 << 20]);
    /// big.wait()?;
    /// let rest = big.into_untyped();
    /// assert!(rest.is_done());
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn into_untyped(self) -> AnyRequest {
        self.to_untyped()
    }
}

impl<T> From<&Request<T>> for AnyRequest {
    fn from(request: &Request<T>) -> Self {
        request.to_untyped()
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::api::any::describe(self.header(), "Request", f)
    }
}

const _: () = {
    // `Request` is one pointer, also in an `Option`.
    assert!(size_of::<Option<Request<u64>>>() == size_of::<usize>());
};
