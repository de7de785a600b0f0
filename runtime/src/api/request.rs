//! [`Request`]: the handle to one computation and, later, its value.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebear_context::error::{CancelReason, Error, Failure, WaitError};
use forebear_context::lineage::Lineage;

mod counts;
mod ending;
mod hint;
mod spawn;
mod take;

pub use self::ending::CancelOnDrop;
pub(crate) use self::spawn::{Counted, spawn_of, spawn_with};
pub use self::spawn::{spawn, try_spawn};

use self::spawn::new_with;
use self::take::take_value;
use crate::api::any::{AnyRequest, RequestId, State};
use crate::api::builder::RequestBuilder;
use crate::cancel;
use crate::record::cell::{self, Fallible, Plain};
use crate::record::fiber;
use crate::record::header::Header;
use crate::schedule::submit;
use crate::schedule::wait::{self, Terms};
use crate::state::word::{CANCELLED, FAILED, FINISHED, HANDLE, SUBMITTED};

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
/// max.submit(); // elsewhere, if anybody is idle
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
    /// A request that is already finished, with `value`. It is never scheduled.
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
    /// If the runtime has ended, the request ends here, cancelled with [`CancelReason::Shutdown`].
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

    /// Waits for the value. Submits the request if need be.
    ///
    /// In a request this suspends; in a foreign thread it blocks. If the target has not started, the wait may run it on the caller's stack. A
    /// cancellation point.
    ///
    /// # Errors
    ///
    /// * [`Cancelled`](WaitError::Cancelled) if the *caller* was cancelled, in whatever state the target is.
    /// * [`Failed`](WaitError::Failed) with the target's failure; or with a [`StackError`](forebear_context::error::StackError) if there is no
    ///   stack for the other work of the worker meanwhile.
    /// * [`TargetCancelled`](WaitError::TargetCancelled) if the target was cancelled.
    /// * [`CircularWait`](WaitError::CircularWait) if the target is the caller itself, or waits for it, directly or through others. Mostly the
    ///   wait that closes the cycle gets the error.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    /// let bad = Request::<u32>::new(|| panic!("no"));
    /// assert!(matches!(bad.wait(), Err(WaitError::Failed(failure)) if failure.is_panic()));
    /// ```
    #[inline]
    pub fn wait(&self) -> Result<&T, WaitError> {
        // SAFETY: this handle lasts as long as the borrow.
        if unsafe { wait::runs_locally(self.header) } {
            // It has run right here.
            // SAFETY: W2: it is over with a value; this handle.
            return Ok(unsafe { Header::value::<T>(self.header).as_ref() });
        }
        self.wait_slowly()
    }

    /// All waits but the one that is most common. Not inlined, for the switch is inlined here.
    #[inline(never)]
    fn wait_slowly(&self) -> Result<&T, WaitError> {
        // SAFETY: this handle lasts as long as the borrow.
        unsafe { wait::until_over(self.header)? };
        self.answer()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, by the clock of the request's runtime. A wait that timed out leaves no
    /// trace. Never runs the request on the caller's stack.
    ///
    /// A timeout of zero polls: it submits the request if need be and reads its state. It neither suspends nor lets other requests run. So a
    /// loop of such polls inside a request has to call [`yield_now`](crate::yield_now): else it may keep the worker from what it polls for.
    ///
    /// # Errors
    ///
    /// As `wait`; and [`TimedOut`](WaitError::TimedOut) if the request was not over by then.
    ///
    /// ```
    /// use forebear::{Request, WaitError};
    /// use std::time::Duration;
    /// let (send, go) = std::sync::mpsc::channel();
    /// let late = Request::new(move || go.recv().unwrap());
    /// assert!(matches!(late.wait_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
    /// send.send(7).unwrap();
    /// assert_eq!(late.wait_timeout(Duration::from_secs(60))?, &7);
    /// # Ok::<(), WaitError>(())
    /// ```
    #[inline]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<&T, WaitError> {
        // SAFETY: this handle lasts as long as the borrow.
        unsafe { wait::until_over_on(self.header, Terms::within(self.header(), timeout))? };
        self.answer()
    }

    /// As [`wait`](Self::wait), but without demand: a [`cancel`](Self::cancel) does not spare the request because of this wait. Never runs the
    /// request on the caller's stack.
    ///
    /// # Errors
    ///
    /// As `wait`.
    ///
    /// ```
    /// use forebear::{Request, WaitError, spawn};
    /// let never = Request::new(|| ());
    /// never.cancel();
    /// let told = spawn(move || never.watch().is_err());
    /// assert!(told.take()?);
    /// # Ok::<(), WaitError>(())
    /// ```
    pub fn watch(&self) -> Result<&T, WaitError> {
        // SAFETY: this handle lasts as long as the borrow.
        unsafe { wait::until_over_on(self.header, Terms { watches: true, ..Terms::default() })? };
        self.answer()
    }

    #[inline]
    pub(crate) fn answer(&self) -> Result<&T, WaitError> {
        self.get().ok_or_else(|| {
            // SAFETY: terminal, and this handle.
            unsafe { wait::refusal(self.header) }
        })
    }

    /// [`wait`](Self::wait)`().`[`or_unwind`](forebear_context::error::OrUnwind::or_unwind)`()`, in one word: for code
    /// that has no `Result` to return.
    ///
    /// Does not exist under `panic = "abort"`.
    ///
    /// # Panics
    ///
    /// Unwinds with the error that `wait` would return. No panic hook runs for it inside a request.
    ///
    /// ```
    /// use forebear::Request;
    /// assert_eq!(*Request::new(|| 7).force(), 7);
    /// ```
    #[cfg(panic = "unwind")]
    #[inline]
    #[track_caller]
    pub fn force(&self) -> &T {
        match self.wait() {
            Ok(value) => value,
            Err(error) => forebear_context::error::internal::unwind_with(
                error.into(),
                forebear_context::context::in_request(),
            ),
        }
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

    /// The value if the request has finished. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let seven = Request::new(|| 7);
    /// assert_eq!(seven.get(), None);
    /// seven.wait()?;
    /// assert_eq!(seven.get(), Some(&7));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        if self.header().life_here() == FINISHED {
            // SAFETY: W2: finished, and while this handle is there nobody moves the value out (CB3, if it is completing).
            return Some(unsafe { Header::value::<T>(self.header).as_ref() });
        }
        None
    }

    /// How the request ended; `None` while it has not. Never waits.
    ///
    /// ```
    /// use forebear::{Outcome, Request};
    /// let seven = Request::ready(7);
    /// assert!(matches!(seven.outcome(), Some(Outcome::Finished(7))));
    /// ```
    pub fn outcome(&self) -> Option<Outcome<'_, T>> {
        let h = self.header();
        match h.life_here() {
            FINISHED => self.get().map(Outcome::Finished),
            FAILED => {
                h.word().mark_seen();
                h.failure().map(Outcome::Failed)
            }
            CANCELLED => Some(Outcome::Cancelled(cancel::reason(h))),
            _ => None,
        }
    }

    /// Whether the request has ended, however.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    #[must_use]
    pub fn is_done(&self) -> bool {
        crate::api::any::is_done(self.header())
    }

    /// What the request is doing: a snapshot, which may be out of date at once. While the request's callbacks run, only they see its final state.
    /// Other code sees `Running` or `Suspended` until the last callback has returned.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](crate::yield_now).
    ///
    /// ```
    /// use forebear::{Request, State};
    ///
    /// let seven = Request::new(|| 7);
    /// assert_eq!((seven.state(), seven.is_done()), (State::New, false));
    /// seven.wait()?;
    /// assert_eq!((seven.state(), seven.is_done()), (State::Finished, true));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> State {
        crate::api::any::state_of(self.header())
    }

    /// The name it was given, else the type of its callable.
    #[must_use]
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// A number that no other request of this process has.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let (one, another) = (Request::new(|| 1), Request::new(|| 2));
    /// assert!(one.id() == one.clone().id() && one.id() != another.id());
    /// ```
    #[must_use]
    pub fn id(&self) -> RequestId {
        crate::api::any::id_of(self.header())
    }

    /// The time by which it has to be over: the deadline it was made with, or one of an ancestor's if that is nearer. `None`: there is no limit.
    /// It does not change, not even when the request is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::{Request, spawn};
    ///
    /// let job = Request::builder().timeout(Duration::from_secs(60)).build(|| {
    ///     let child = Request::builder().timeout(Duration::from_secs(3600)).build(|| ());
    ///     let sooner = Request::builder().timeout(Duration::from_secs(1)).build(|| ());
    ///     (child.deadline(), sooner.deadline())
    /// });
    /// let due = job.deadline();
    /// let (child, sooner) = job.take()?;
    /// assert!(child == due && sooner < due);
    /// assert_eq!(spawn(|| ()).deadline(), None);
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.header().deadline()
    }

    /// The number of the worker that runs it, from its start on; `None` before that, and if a foreign thread runs it.
    ///
    /// ```
    /// use forebear::{Request, Runtime};
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.run(|| Request::current().and_then(|me| me.assigned_worker())), Some(0));
    /// assert_eq!(Request::new(|| 7).assigned_worker(), None);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[must_use]
    pub fn assigned_worker(&self) -> Option<usize> {
        crate::api::any::worker_of(self.header())
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

    /// Drops the value as soon as nobody else can reach it, and keeps an untyped handle.
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

/// How a request ended.
///
/// ```
/// use forebear::{Outcome, Request};
///
/// fn line(request: &Request<u32>) -> String {
///     match request.outcome() {
///         None => String::from("not yet"),
///         Some(Outcome::Finished(value)) => format!("finished with {value}"),
///         Some(Outcome::Failed(failure)) => format!("failed: {failure}"),
///         Some(Outcome::Cancelled(why)) => format!("cancelled: {why}"),
///     }
/// }
/// let seven = Request::new(|| 7);
/// assert_eq!(line(&seven), "not yet");
/// seven.wait()?;
/// assert_eq!(line(&seven), "finished with 7");
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[derive(Debug)]
pub enum Outcome<'a, T> {
    /// With this value.
    Finished(&'a T),
    /// With this failure.
    Failed(&'a Failure),
    /// Cancelled, for this reason.
    Cancelled(CancelReason),
}

impl<T> Clone for Outcome<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Outcome<'_, T> {}

const _: () = {
    // `Request` is one pointer, also in an `Option`.
    assert!(size_of::<Option<Request<u64>>>() == size_of::<usize>());
};
