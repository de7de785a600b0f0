//! Requests as futures: how code of other executors waits for one.
//!
//! A future is a [listener](crate::state::listener) in its request's list of waiters. No thread is blocked and no stack is held.
//!
//! # What a poll does
//!
//! The first poll does what a wait does before it suspends ([`crate::schedule::wait`]). It submits a new request,
//! returns the error of a cycle or a refusal, and enters the list of waiters. It never runs the request, and never
//! suspends. From then on the future is demand, as a waiting foreign thread is, until the request is over or the future
//! is dropped. The request is as urgent as the code that polled first. Later polls renew the waker.
//!
//! # What a drop does
//!
//! The future of a `&Request` withdraws: it leaves the list, and a cancel that it alone had vetoed takes effect. If it is dropped in a
//! cancelled request, it asks its target to cancel, as a cancelled waiter does. The future of a `Request` also cancels it, unless the
//! future has ended.
//!
//! # When a runtime gives up
//!
//! A runtime that is shut down over laggards wakes the futures that were polled outside of it. A future registers with the runtime first, and
//! then reads the flag that says so. The runtime sets the flag first, and then walks the register. The next poll returns `ShutDown`.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use forebear_context::error::WaitError;

use crate::api::any::AnyRequest;
use crate::api::request::Request;
use crate::cancel::Marked;
use crate::foreign;
use crate::record::header::Header;
use crate::schedule::registration::{RegisterResult, Registration};
use crate::shared::OfRuntime;
use crate::shared::ending::Stage;
use crate::state::listener::Wakes;

/// What all futures of requests have.
#[derive(Default)]
struct FutureWait {
    registration: Registration<Wakes>,
    /// It is in the register of the request's runtime.
    outside: bool,
}

impl FutureWait {
    /// Registers the future if it is not, and ends the registration when the request is over.
    ///
    /// # Safety
    ///
    /// RG1.
    unsafe fn poll(
        &mut self,
        header: NonNull<Header>,
        task: &mut Context<'_>,
    ) -> Poll<Result<(), WaitError>> {
        // SAFETY: by contract.
        let answer = unsafe { self.register(header, task) };
        if answer.is_ready() {
            // SAFETY: by contract.
            unsafe { self.end(header) };
        }
        answer
    }

    /// Registers the task's waker with the request. Ready: the request is over, or cannot be awaited.
    ///
    /// # Safety
    ///
    /// RG1.
    unsafe fn register(
        &mut self,
        header: NonNull<Header>,
        task: &mut Context<'_>,
    ) -> Poll<Result<(), WaitError>> {
        let Some(fiber) = foreign::fiber() else { return Poll::Ready(Err(WaitError::ShutDown)) };
        let clone = || Wakes::by_clone_of(task.waker());
        // SAFETY: by contract.
        let (shared, outside) = match unsafe { self.registration.enter(fiber, header, clone) } {
            RegisterResult::Over => return Poll::Ready(Ok(())),
            RegisterResult::Refused(error) => return Poll::Ready(Err(error)),
            RegisterResult::Stands(_) => {
                let listener = self.registration.listener();
                let waits = listener.is_some_and(|listener| listener.notice().renew(task.waker()));
                // Else it has been notified.
                return if waits { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            RegisterResult::Entered(shared, outside) => (shared, outside),
        };
        if outside && let Some(listener) = self.registration.listener() {
            self.outside = true;
            shared.futures.register(listener);
            if shared.ending.is(Stage::GivenUp) {
                return Poll::Ready(Err(WaitError::ShutDown));
            }
        }
        Poll::Pending
    }

    /// Withdraws the future: it waits no longer.
    ///
    /// # Safety
    ///
    /// RG1.
    unsafe fn end(&mut self, header: NonNull<Header>) {
        let mut marked = Marked::default();
        // SAFETY: by contract.
        let listener = unsafe { self.registration.leave(header, &mut marked) };
        marked.carry_out();
        let Some(listener) = listener else { return };
        // SAFETY: M3: what was registered has an arena, and RG1 keeps it.
        if self.outside && let Some(arena) = unsafe { header.as_ref().arena.get().as_ref() }
            // In a forked child its lock may be held by a thread that is not there.
            && !arena.shared().is_inherited()
        {
            arena.shared().futures.forget(&listener);
        }
        listener.notice().retire();
    }
}

#[cold]
#[track_caller]
fn polled_after_its_end(what: &str) -> ! {
    panic!("forebear: {what} was polled after its end")
}

/// The future of a `&`[`Request`]: waits as [`Request::wait`] does, and blocks no thread. By [`IntoFuture`], hence by `(&request).await`.
///
/// The first poll submits the request, if it is new. It does not run the request, save in a runtime without worker threads, where
/// [`submit`](Request::submit) does so. From the first poll to its end or its drop the future counts as demand for the request, as a waiting thread
/// does. A poll does not suspend; in a cancelled request it returns [`Cancelled`](WaitError::Cancelled). The thread that ends the request calls
/// the waker, once at most, after it has woken all waiters; a slow waker delays that thread.
///
/// Dropping the future withdraws its demand, and nothing else. The request continues, unless it was cancelled meanwhile and this future
/// alone had spared it.
///
/// If a future closes a cycle of waits, the cycle is not found, unless the request polls a future of its own.
///
/// # Errors
///
/// Its output is as that of [`Request::wait`].
///
/// # Panics
///
/// If it is polled after its end.
///
/// ```
/// use forebear::{Request, WaitError, block_on};
///
/// let image = Request::new(|| vec![1, 2, 3]);
/// let sum = block_on(async { Ok::<i32, WaitError>((&image).await?.iter().sum()) });
/// assert_eq!(sum??, 6);
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct WaitFuture<'a, T> {
    request: &'a Request<T>,
    wait: FutureWait,
    over: bool,
}

/// The future of a [`Request`]: waits and takes as [`Request::take`] does, and blocks no thread. By [`IntoFuture`], hence by
/// `request.await`.
///
/// As [`WaitFuture`]; but dropping it before its end, polled or not, [cancels](Request::cancel) the request, which spares what others want.
/// For a request that is to continue, await `&request`.
///
/// # Errors
///
/// Its output is as that of [`Request::take`].
///
/// # Panics
///
/// If it is polled after its end.
///
/// ```
/// use forebear::{block_on, spawn};
///
/// let page = spawn(|| String::from("made"));
/// assert_eq!(block_on(page)??, "made");
/// let never = forebear::Request::new(|| unreachable!());
/// let kept = never.to_untyped();
/// drop(never.into_future()); // as if the client had gone away
/// assert!(kept.is_cancelled());
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a future does nothing unless it is polled, and cancels its request when it is dropped"]
pub struct TakeFuture<T> {
    request: Option<Request<T>>,
    wait: FutureWait,
}

/// The future of a `&`[`AnyRequest`]: as [`WaitFuture`], without the value.
///
/// # Panics
///
/// If it is polled after its end.
///
/// ```
/// use forebear::{block_on, spawn};
///
/// let job = spawn(|| ()).to_untyped();
/// block_on(&job)??;
/// assert!(job.is_done());
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct DoneFuture<'a> {
    request: &'a AnyRequest,
    wait: FutureWait,
    over: bool,
}

impl<'a, T> IntoFuture for &'a Request<T> {
    type Output = Result<&'a T, WaitError>;
    type IntoFuture = WaitFuture<'a, T>;

    fn into_future(self) -> WaitFuture<'a, T> {
        WaitFuture { request: self, wait: FutureWait::default(), over: false }
    }
}

impl<T> IntoFuture for Request<T> {
    type Output = Result<T, WaitError>;
    type IntoFuture = TakeFuture<T>;

    fn into_future(self) -> TakeFuture<T> {
        TakeFuture { request: Some(self), wait: FutureWait::default() }
    }
}

impl<'a> IntoFuture for &'a AnyRequest {
    type Output = Result<(), WaitError>;
    type IntoFuture = DoneFuture<'a>;

    fn into_future(self) -> DoneFuture<'a> {
        DoneFuture { request: self, wait: FutureWait::default(), over: false }
    }
}

impl<'a, T> Future for WaitFuture<'a, T> {
    type Output = Result<&'a T, WaitError>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.over {
            polled_after_its_end("a `WaitFuture`");
        }
        // SAFETY: RG1: the handle is borrowed.
        let answer = unsafe { this.wait.poll(this.request.header_ptr(), task) };
        this.over = answer.is_ready();
        answer.map(|over| over.and_then(|()| this.request.answer()))
    }
}

impl<T> Future for TakeFuture<T> {
    type Output = Result<T, WaitError>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(request) = &this.request else { polled_after_its_end("a `TakeFuture`") };
        // SAFETY: RG1: the handle is there.
        match unsafe { this.wait.poll(request.header_ptr(), task) } {
            Poll::Pending => Poll::Pending,
            Poll::Ready(over) => {
                let Some(request) = this.request.take() else { unreachable!("looked at above") };
                Poll::Ready(match over {
                    Ok(()) => request.take(),
                    Err(error) => {
                        request.cancel();
                        Err(error)
                    }
                })
            }
        }
    }
}

impl Future for DoneFuture<'_> {
    type Output = Result<(), WaitError>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.over {
            polled_after_its_end("a `DoneFuture`");
        }
        // SAFETY: RG1: the handle is borrowed.
        let answer = unsafe { this.wait.poll(this.request.header_ptr(), task) };
        this.over = answer.is_ready();
        answer.map(|over| over.and_then(|()| this.request.answer()))
    }
}

impl<T> Drop for WaitFuture<'_, T> {
    fn drop(&mut self) {
        // SAFETY: RG1: the handle is borrowed.
        unsafe { self.wait.end(self.request.header_ptr()) };
    }
}

impl<T> Drop for TakeFuture<T> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            // SAFETY: RG1: the handle is there.
            unsafe { self.wait.end(request.header_ptr()) };
            request.cancel();
        }
    }
}

impl Drop for DoneFuture<'_> {
    fn drop(&mut self) {
        // SAFETY: RG1: the handle is borrowed.
        unsafe { self.wait.end(self.request.header_ptr()) };
    }
}

impl<T> fmt::Debug for WaitFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WaitFuture").field(self.request).finish()
    }
}

impl<T> fmt::Debug for TakeFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TakeFuture").field(&self.request).finish()
    }
}

impl fmt::Debug for DoneFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DoneFuture").field(self.request).finish()
    }
}
