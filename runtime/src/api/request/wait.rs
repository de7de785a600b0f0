//! The waits for a request: with and without a limit, with and without demand.

use std::time::Duration;

use forebear_context::error::WaitError;

use super::Request;
use crate::record::header::Header;
use crate::schedule::wait::{self, Terms};

impl<T> Request<T> {
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
    #[track_caller]
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
    #[track_caller]
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
    #[track_caller]
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
    #[track_caller]
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
}
