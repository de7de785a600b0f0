//! Cancelling a request, and being called when it ends.

use std::fmt;
use std::ptr::NonNull;

use forebear_context::error::{CancelReason, Failure};

use super::{Outcome, Request};
use crate::api::any::AnyRequest;
use crate::cancel::{self, Cancellation};
use crate::record::header::Header;
use crate::schedule::callbacks::{self, Call, CallOn, CallWith};
use crate::state::word::MARKED;

impl<T> Request<T> {
    /// Asks the request to stop, unless a request or thread that is not cancelled still waits for it.
    ///
    /// The cancel spreads to its children and to what it waits for. Each of these is asked as by `cancel`: a waiter
    /// that is not cancelled spares it. A target that another request or thread has made is also spared if it was
    /// submitted by a request or thread that does not wait for it. That holds as long as its maker lives, or if its
    /// maker is no request.
    ///
    /// A cancelled request that has not started never runs. A suspended one continues at once, and its wait
    /// returns [`Cancelled`](forebear_context::error::WaitError::Cancelled); so does every further wait in it. The exception is
    /// a wait that runs its target on its own stack, while that target is spared: by another waiter, or by its maker. It continues when the target
    /// has ended. A request that computes continues until it waits, or asks [`is_cancelled`](crate::is_cancelled). When it is over, each wait
    /// for it returns [`TargetCancelled`](forebear_context::error::WaitError::TargetCancelled).
    ///
    /// A thread that waits counts. While `main` waits for the request, a cancel from a signal handler or a button is
    /// [`Vetoed`](Cancellation::Vetoed), and takes effect when `main` waits no more. To stop the request although `main` waits, as for Ctrl-C,
    /// call [`abort`](Self::abort).
    ///
    /// Does not wait for the request to end, and does not suspend. If the request had not started, this call drops its callable and
    /// runs its callbacks.
    ///
    /// ```
    /// use forebear::{Cancellation, Request, WaitError};
    ///
    /// let never = Request::new(|| unreachable!());
    /// assert_eq!(never.cancel(), Cancellation::Marked);
    /// assert!(matches!(never.wait(), Err(WaitError::TargetCancelled(_))));
    /// assert_eq!(Request::ready(1).cancel(), Cancellation::AlreadyDone);
    /// ```
    pub fn cancel(&self) -> Cancellation {
        // SAFETY: this handle.
        unsafe { cancel::cancel(self.header) }
    }

    /// As [`cancel`](Self::cancel), but waiters do not spare the request. Their waits return
    /// [`TargetCancelled`](forebear_context::error::WaitError::TargetCancelled) with `why` when it is over. Its children
    /// and what it waits for are asked as by `cancel`.
    ///
    /// Returns [`Marked`](Cancellation::Marked) or [`AlreadyDone`](Cancellation::AlreadyDone). The reason of the first cancel stays.
    ///
    /// ```
    /// use forebear::{CancelReason, Request, WaitError};
    ///
    /// let never = Request::new(|| unreachable!());
    /// never.abort(CancelReason::Other(7));
    /// assert!(matches!(never.wait(), Err(WaitError::TargetCancelled(CancelReason::Other(7)))));
    /// ```
    pub fn abort(&self, why: CancelReason) -> Cancellation {
        // SAFETY: this handle.
        unsafe { cancel::abort(self.header, why) }
    }

    /// Whether the request has been cancelled: it may still be running, and may have failed all the same.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.header().bare.load().has(MARKED)
    }

    /// A guard that cancels the request when it is dropped, for a caller that may be dropped itself.
    ///
    /// ```
    /// use forebear::Request;
    /// let page = Request::new(|| 7);
    /// drop(page.cancel_on_drop());
    /// assert!(page.is_cancelled());
    /// ```
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop { request: Some(self.to_untyped()) }
    }

    /// Calls `f` with the value when the request has finished.
    ///
    /// Callbacks run before any wait for the request returns, one after the other in order of subscription. They run where the
    /// request ran and as a part of it: it is the current request, and they may wait, create and cancel. For them alone
    /// the request has ended: a wait for it returns at once, but a `take` is refused as circular.
    ///
    /// If the request was cancelled, whatever waits in a callback answers `Cancelled`, and so does a channel's `send`:
    /// [`on_cancelled`](Self::on_cancelled) says what to call instead.
    ///
    /// If the request is over already, this call runs `f` itself, if this was the outcome. If `f` panics before that, the request has failed: the
    /// rest of these callbacks is left out, and those of failure are called.
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// ```
    /// use forebear::Request;
    /// let (send, told) = std::sync::mpsc::channel();
    /// let seven = Request::new(|| 7);
    /// seven.on_finished(move |n| send.send(*n).unwrap());
    /// seven.wait()?;
    /// assert_eq!(told.recv(), Ok(7));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[doc(alias = "notify_finished")]
    pub fn on_finished(&self, f: impl FnOnce(&T) + Send + 'static) -> &Self
    where
        T: Sync,
    {
        let call = of_value::<T>(f);
        // SAFETY: this handle; its value is a `T`.
        unsafe { callbacks::subscribe(self.header, call) };
        self
    }

    /// Calls `f` with the failure when the request has failed. That counts as handling the failure. A panic of `f`
    /// at that time is reported to [`on_unhandled_failure`](crate::RuntimeBuilder::on_unhandled_failure). For the rest see
    /// [`on_finished`](Self::on_finished).
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// ```
    /// use forebear::Request;
    /// let (send, told) = std::sync::mpsc::channel();
    /// let bad = Request::try_new(|| Ok("x".parse::<u32>()?));
    /// bad.on_failed(move |failure| send.send(failure.chain().count()).unwrap()).submit();
    /// assert_eq!(told.recv(), Ok(1));
    /// ```
    #[doc(alias = "notify_failed")]
    pub fn on_failed(&self, f: impl FnOnce(&Failure) + Send + 'static) -> &Self {
        let failed = |_: NonNull<Header>, outcome: CallWith<'_>| {
            if let CallWith::Failed(failure) = outcome {
                f(failure);
            }
        };
        // SAFETY: this handle.
        unsafe { callbacks::subscribe(self.header, Call::new(CallOn::Failed, failed)) };
        self
    }

    /// Calls `f` when the request has ended as cancelled. A panic of `f` at that time is reported to
    /// [`on_unhandled_failure`](crate::RuntimeBuilder::on_unhandled_failure). For the rest see [`on_finished`](Self::on_finished).
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// `f` runs as the cancelled request. So whatever waits in it answers `Cancelled`, and so does
    /// [`Sender::send`](https://docs.rs/forebear/latest/forebear/channel/struct.Sender.html#method.send), also where it need not wait: it sends nothing, and
    /// `let _ = sender.send(…)` loses the event. These deliver: `try_send`, `send` of a oneshot or watch channel, a channel of std. If `f` has to wait,
    /// as for room in a bounded channel, let it do so inside [`shield`](crate::shield()).
    ///
    /// ```
    /// use forebear::Request;
    /// let (send, told) = std::sync::mpsc::channel();
    /// let never = Request::new(|| ());
    /// never.on_cancelled(move || send.send(()).unwrap()).cancel();
    /// assert_eq!(told.recv(), Ok(()));
    /// ```
    ///
    /// The same by forebear's own channel:
    ///
    /// ```
    /// use forebear::Request;
    /// use forebear::channel::unbounded;
    ///
    /// let (events, told) = unbounded();
    /// let never = Request::new(|| ());
    /// never.on_cancelled(move || events.try_send("cancelled").expect("somebody listens")).cancel();
    /// assert_eq!(told.recv(), Ok("cancelled"));
    /// ```
    #[doc(alias = "notify_cancelled")]
    pub fn on_cancelled(&self, f: impl FnOnce() + Send + 'static) -> &Self {
        // SAFETY: this handle.
        unsafe { callbacks::subscribe(self.header, Call::new(CallOn::Cancelled, |_, _| f())) };
        self
    }

    /// Has `f` called with the outcome when the request has ended, however; after the callbacks of that outcome. A panic
    /// of `f` at that time is reported to [`on_unhandled_failure`](crate::RuntimeBuilder::on_unhandled_failure). The request is over for others only after the last callback has returned: until then
    /// [`state`](Request::state) returns `Running` or `Suspended` to them, and [`is_done`](Request::is_done) is false. For the rest see [`on_finished`](Self::on_finished).
    ///
    /// If the request was cancelled, `f` cannot report that by a channel's `send`: see [`on_cancelled`](Self::on_cancelled).
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// ```
    /// use forebear::{Outcome, Request};
    /// let (send, told) = std::sync::mpsc::channel();
    /// Request::new(|| 7).on_done(move |how| send.send(matches!(how, Outcome::Finished(7))).unwrap()).submit();
    /// assert_eq!(told.recv(), Ok(true));
    /// ```
    #[doc(alias = "add_done_callback")]
    pub fn on_done(&self, f: impl FnOnce(Outcome<'_, T>) + Send + 'static) -> &Self
    where
        T: Sync,
    {
        let call = done::<T>(|header| Header::value::<T>(header).cast(), f);
        // SAFETY: this handle; its value is a `T`.
        unsafe { callbacks::subscribe(self.header, call) };
        self
    }
}

impl AnyRequest {
    /// As [`Request::cancel`].
    pub fn cancel(&self) -> Cancellation {
        // SAFETY: this handle's link.
        unsafe { cancel::cancel(self.raw()) }
    }

    /// As [`Request::abort`].
    pub fn abort(&self, why: CancelReason) -> Cancellation {
        // SAFETY: this handle's link.
        unsafe { cancel::abort(self.raw(), why) }
    }

    /// As [`Request::is_cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: this handle's link.
        unsafe { self.raw().as_ref() }.bare.load().has(MARKED)
    }

    /// As [`Request::on_done`], without the value.
    ///
    /// # Panics
    ///
    /// If `f` panics in this call, because the request is over already. The outcome stands.
    ///
    /// ```
    /// use forebear::{CancelReason, Cancellation, Outcome, Request};
    ///
    /// let (send, seen) = std::sync::mpsc::channel();
    /// let never = Request::new(|| unreachable!());
    /// let any = never.to_untyped();
    /// any.on_done(move |how| send.send(matches!(how, Outcome::Cancelled(_))).unwrap());
    /// assert_eq!(any.cancel(), Cancellation::Marked);
    /// assert!(any.is_cancelled() && seen.recv().unwrap());
    /// assert_eq!(any.abort(CancelReason::Other(7)), Cancellation::AlreadyDone);
    /// # drop(never);
    /// ```
    pub fn on_done(&self, f: impl FnOnce(Outcome<'_, ()>) + Send + 'static) -> &Self {
        let call = done::<()>(|_| NonNull::from(&()), f);
        // SAFETY: this handle's link; the value is not looked at.
        unsafe { callbacks::subscribe(self.raw(), call) };
        self
    }
}

/// A callback that may carry what its subscriber borrows: the value's type may, and a handle of it is held by somebody as
/// long as the value is looked at.
fn of_value<T>(f: impl FnOnce(&T) + Send + 'static) -> Call {
    // SAFETY: CB2.
    Call::new(CallOn::Finished, move |header, _| f(unsafe { Header::value::<T>(header).as_ref() }))
}

fn done<T>(
    value: impl FnOnce(NonNull<Header>) -> NonNull<T> + Send + 'static,
    f: impl FnOnce(Outcome<'_, T>) + Send + 'static,
) -> Call {
    Call::new(CallOn::Done, move |header, outcome| match outcome {
        // SAFETY: CB2.
        CallWith::Finished => f(Outcome::Finished(unsafe { value(header).as_ref() })),
        CallWith::Failed(failure) => f(Outcome::Failed(failure)),
        CallWith::Cancelled(reason) => f(Outcome::Cancelled(reason)),
        CallWith::Nothing => {}
    })
}

/// Cancels its request when it is dropped; see [`Request::cancel_on_drop`].
///
/// ```
/// use forebear::{CancelOnDrop, Request};
///
/// struct Page {
///     image: Request<u32>,
///     _guard: CancelOnDrop,
/// }
/// let image = Request::new(|| 7);
/// let page = Page { image: image.clone(), _guard: image.cancel_on_drop() };
/// drop(page); // the user has left it
/// assert!(image.is_cancelled());
/// ```
#[doc(alias = "AbortOnDropHandle")]
#[must_use = "it cancels the request when it is dropped"]
pub struct CancelOnDrop {
    request: Option<AnyRequest>,
}

impl CancelOnDrop {
    /// Drops the guard without a cancel.
    ///
    /// ```
    /// use forebear::Request;
    ///
    /// let image = Request::new(|| 7);
    /// image.cancel_on_drop().disarm();
    /// assert!(!image.is_cancelled());
    /// ```
    pub fn disarm(mut self) {
        self.request = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.cancel();
        }
    }
}

impl fmt::Debug for CancelOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelOnDrop").field("request", &self.request).finish()
    }
}
