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
    /// Asks the request to stop, unless somebody who is not cancelled still waits for it.
    ///
    /// The cancel spreads to its children and to what it waits for, each of which is asked as by `cancel`: it is spared while
    /// somebody who is not cancelled waits for it. What it waits for and has not made itself is spared also if somebody who does not
    /// wait has submitted it, as long as its own maker lives or is no request.
    ///
    /// A cancelled request that has not started never runs. One that is suspended in a wait goes on at once, and the wait
    /// answers [`Cancelled`](forebear_context::error::WaitError::Cancelled); so does every further wait in it. The exception is
    /// a wait that runs its target on its own stack, while that target is spared for somebody else: it goes on when the target
    /// has ended. One that computes goes on until it waits, or asks [`is_cancelled`](crate::is_cancelled). When it is over, each wait
    /// for it returns [`TargetCancelled`](forebear_context::error::WaitError::TargetCancelled).
    ///
    /// A thread that waits counts: while `main` waits for the request, a cancel from a signal handler or a button is
    /// [`Vetoed`](Cancellation::Vetoed), and remembered until `main` waits no more. To stop the request although `main` waits, as Ctrl-C is
    /// meant, call [`abort`](Self::abort).
    ///
    /// Does not wait for the request to end, and does not suspend. If the request had not started, its callable is dropped and
    /// its callbacks are called here and now.
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

    /// As [`cancel`](Self::cancel), also while others wait for it. Their waits return
    /// [`TargetCancelled`](forebear_context::error::WaitError::TargetCancelled) with `why` when it is over. Its children
    /// and what it waits for are asked as by `cancel`.
    ///
    /// Answers [`Marked`](Cancellation::Marked) or [`AlreadyDone`](Cancellation::AlreadyDone). The reason of the first
    /// mark stays.
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

    /// A guard that cancels the request when it is dropped, for a caller that may go away.
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

    /// Has `f` called with the value when the request has finished.
    ///
    /// Callbacks run before any wait for the request returns, one after the other in order of subscription, where the
    /// request ran and as a part of it: it is the current one, and they may wait, create and cancel. To them, and to nobody
    /// else yet, the request has ended: a wait for it answers at once, but a `take` is refused as circular. If it is over
    /// already, `f` is called here and now, if this was the outcome. If `f` panics the request has failed: the rest of
    /// these callbacks is left out, and those of failure are called.
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

    /// Has `f` called with the failure when the request has failed. That counts as looking at it. A panic of `f` goes to
    /// the hook. For the rest see [`on_finished`](Self::on_finished).
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
        let failed = |_: NonNull<Header>, told: CallWith<'_>| {
            if let CallWith::Failed(failure) = told {
                f(failure);
            }
        };
        // SAFETY: this handle.
        unsafe { callbacks::subscribe(self.header, Call::new(CallOn::Failed, failed)) };
        self
    }

    /// Has `f` called when the request has ended as cancelled. A panic of `f` goes to the hook. For the rest see
    /// [`on_finished`](Self::on_finished).
    ///
    /// ```
    /// use forebear::Request;
    /// let (send, told) = std::sync::mpsc::channel();
    /// let never = Request::new(|| ());
    /// never.on_cancelled(move || send.send(()).unwrap()).cancel();
    /// assert_eq!(told.recv(), Ok(()));
    /// ```
    #[doc(alias = "notify_cancelled")]
    pub fn on_cancelled(&self, f: impl FnOnce() + Send + 'static) -> &Self {
        // SAFETY: this handle.
        unsafe { callbacks::subscribe(self.header, Call::new(CallOn::Cancelled, |_, _| f())) };
        self
    }

    /// Has `f` called with the outcome when the request has ended, however; after the callbacks of that outcome. A panic
    /// of `f` goes to the hook. The request is over for others only after the last callback has returned: until then
    /// [`state`](Request::state) tells them `Running` or `Suspended`, and [`is_done`](Request::is_done) is false. For the rest see [`on_finished`](Self::on_finished).
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
    Call::new(CallOn::Done, move |header, told| match told {
        // SAFETY: CB2.
        CallWith::Finished => f(Outcome::Finished(unsafe { value(header).as_ref() })),
        CallWith::Failed(failure) => f(Outcome::Failed(failure)),
        CallWith::Cancelled(reason) => f(Outcome::Cancelled(reason)),
        CallWith::Nothing => {}
    })
}

/// Cancels its request when it is dropped; see [`Request::cancel_on_drop`].
#[must_use = "it cancels the request when it is dropped"]
pub struct CancelOnDrop {
    request: Option<AnyRequest>,
}

impl CancelOnDrop {
    /// Lets the request be.
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
