//! [`Member`]: what a worker holds of its coordinator, and how its end is noticed.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use forebear::{AnyRequest, CancelReason, Cancelled, Error, Failure, Outcome};

use super::Coordinator;
use super::board::Slot;
use super::joinable::CancelRequest;
use super::stop::Stop;

/// A worker's own handle. Its [`should_stop`](Self::should_stop) also notes the place of the call, for the report on stragglers.
///
/// A [spawned](Coordinator::spawn) worker receives a reference to one. A member from [`Coordinator::enlist`] is the worker's registration: the worker
/// counts as ended when the member is dropped.
///
/// ```
/// use forebear_supervise::Coordinator;
/// use std::time::Duration;
///
/// let coordinator = Coordinator::new();
/// coordinator.spawn_thread("worker", |me| {
///     assert_eq!((me.name(), me.coordinator().joined()), ("worker", false));
///     if !me.should_stop() {
///         me.request_stop();
///     }
///     assert!(me.wait_for_stop_timeout(Duration::MAX)?);
///     me.check_stop().unwrap_err();
///     Ok(())
/// })?;
/// coordinator.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Member {
    coordinator: Coordinator,
    slot: Arc<Slot>,
    /// The worker has ended when this goes.
    ends: bool,
    /// It was made while its thread was unwinding: that this goes on says nothing of the worker.
    in_unwind: bool,
}

/// The error of a worker whose [`Member`] was dropped by a panic.
///
/// ```
/// use forebear_supervise::{Coordinator, Vanished};
///
/// let coordinator = Coordinator::new();
/// let me = coordinator.enlist("thread");
/// let thread = std::thread::spawn(move || {
///     let _registered = me;
///     panic!("an empty table");
/// });
/// thread.join().unwrap_err();
/// let error = coordinator.join().unwrap_err();
/// assert!(error.failure().unwrap().downcast_ref::<Vanished>().is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vanished;

impl fmt::Display for Vanished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker has panicked")
    }
}

impl StdError for Vanished {}

/// The request of a worker was cancelled, and not by the stop of its coordinator: the error that is reported for it. It did not run, or not to its end.
///
/// ```
/// use forebear::{CancelReason, Request};
/// use forebear_supervise::{Coordinator, WorkerCancelled};
///
/// let coordinator = Coordinator::new();
/// let upload = Request::new(|| ());
/// upload.cancel(); // before it has begun
/// coordinator.register("uploader", upload)?;
/// let error = coordinator.join().unwrap_err();
/// let cancelled: &WorkerCancelled = error.failure().unwrap().downcast_ref().unwrap();
/// assert_eq!(cancelled.reason, CancelReason::Asked);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCancelled {
    /// Why it was cancelled.
    pub reason: CancelReason,
}

impl fmt::Display for WorkerCancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker was cancelled before it came to its end: {}", self.reason)
    }
}

impl StdError for WorkerCancelled {}

impl Member {
    pub(super) fn new(coordinator: Coordinator, slot: Arc<Slot>) -> Member {
        Member { coordinator, slot, ends: true, in_unwind: thread::panicking() }
    }

    /// Another handle of the same worker, whose drop means nothing.
    pub(super) fn borrowed(&self) -> Member {
        Member {
            coordinator: self.coordinator.clone(),
            slot: self.slot.clone(),
            ends: false,
            in_unwind: false,
        }
    }

    /// Its coordinator.
    #[must_use]
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The name by which the worker was registered.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// Whether a stop has been requested. Does not suspend; takes about a nanosecond: a relaxed load, and two stores of where and when this was called.
    #[inline]
    #[track_caller]
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.coordinator.0.board.should_stop_at(&self.slot, Location::caller())
    }

    /// An error if a stop has been requested, for `?`. Does not suspend.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    #[inline]
    #[track_caller]
    pub fn check_stop(&self) -> Result<(), Cancelled> {
        if self.should_stop() { Err(Cancelled::new()) } else { Ok(()) }
    }

    /// As [`Coordinator::wait_for_stop`].
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::new();
    /// coordinator.spawn("server", |me| {
    ///     me.wait_for_stop()?; // then closes its connections
    ///     Ok(())
    /// });
    /// coordinator.request_stop();
    /// coordinator.join()?;
    /// # Ok::<(), forebear_supervise::JoinError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_for_stop(&self) -> Result<(), Cancelled> {
        self.coordinator.wait_for_stop()
    }

    /// As [`Coordinator::wait_for_stop_timeout`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_for_stop_timeout(&self, timeout: Duration) -> Result<bool, Cancelled> {
        self.coordinator.wait_for_stop_timeout(timeout)
    }

    /// As [`Coordinator::request_stop`].
    pub fn request_stop(&self) {
        self.coordinator.request_stop();
    }

    /// As [`Coordinator::report`], in the worker's name.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::new();
    /// let me = coordinator.enlist("reader");
    /// me.report(std::io::Error::other("no such file"))?;
    /// drop(me); // the worker has ended
    /// assert_eq!(coordinator.join().unwrap_err().failure().unwrap().request(), "reader");
    /// # Ok::<(), forebear::Failure>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As there.
    pub fn report(&self, error: impl Into<Error>) -> Result<(), Failure> {
        self.coordinator.report_as(self.name().to_owned(), error.into())
    }

    /// As [`Coordinator::guard`], in the worker's name: calls `f`, and reports its error or panic.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::new();
    /// let me = coordinator.enlist("parser");
    /// assert_eq!(me.guard(|| Ok("12".parse::<u32>()?)), Some(12));
    /// assert_eq!(me.guard(|| Ok("12x".parse::<u32>()?)), None);
    /// drop(me); // the worker has ended
    /// assert_eq!(coordinator.join().unwrap_err().failure().unwrap().request(), "parser");
    /// ```
    pub fn guard<T>(&self, f: impl FnOnce() -> Result<T, Error>) -> Option<T> {
        self.coordinator.guard_as(self.name(), f)
    }

    /// Sets how a stop wakes the worker, for a [`Joinable`](super::Joinable) of your own. If a stop was requested before, `stopper` is called at once. Does not suspend.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    /// use std::sync::mpsc;
    ///
    /// let coordinator = Coordinator::new();
    /// let (stop, stopped) = mpsc::channel();
    /// let me = coordinator.enlist("blocked in a channel of std");
    /// me.stop_by(move || _ = stop.send(()));
    /// coordinator.request_stop();
    /// stopped.recv()?; // was woken
    /// drop(me);
    /// coordinator.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_by(&self, stopper: impl Stop) {
        self.attach(Box::new(stopper), None);
    }

    /// The worker is this request: a stop cancels it. It ends when this member is dropped.
    fn is_request(&self, request: &AnyRequest) {
        self.is_request_and(request, || ());
    }

    /// The same. The stop calls `and` as well.
    pub(crate) fn is_request_and(&self, request: &AnyRequest, and: impl FnOnce() + Send + 'static) {
        let mut cancel = CancelRequest { request: request.clone(), slot: self.slot.clone() };
        let mut and = Some(and);
        let stopper = move || {
            and.take().into_iter().for_each(|and| and());
            cancel.stop();
        };
        self.attach(Box::new(stopper), Some(request.clone()));
    }

    fn attach(&self, stopper: Box<dyn Stop>, request: Option<AnyRequest>) {
        let board = &self.coordinator.0.board;
        if let Some(mut late) = board.attach(self.slot.id, stopper, request) {
            self.coordinator.call(self.name(), &mut *late);
            board.give_back(self.slot.id, late);
        }
    }

    /// The worker's code has returned this, and nothing of its request is reported after that.
    pub(super) fn has_returned(&self, result: Result<(), Error>) -> Result<(), Error> {
        self.slot.reported.store(true, Ordering::Relaxed);
        result.map_err(|error| self.tell(error))
    }

    /// Reports the error that the worker returns. A failure of its request is not reported after that.
    pub(super) fn tell(&self, error: Error) -> Error {
        let follows = error.is_cancelled();
        let failure = Failure::from_error(error, self.name().to_owned(), None);
        self.slot.reported.store(true, Ordering::Relaxed);
        self.coordinator.record_or_tell(failure.clone(), follows);
        failure.into()
    }

    /// The request is the worker: a stop cancels it, its failure is reported, and the worker ends with it.
    pub(super) fn watch_request(self, request: &AnyRequest) {
        self.is_request(request);
        request.on_done(move |outcome| {
            if let Some((failure, follows)) = self.outcome_of(&outcome) {
                self.coordinator.record_or_tell(failure, follows);
            }
            drop(self);
        });
    }

    /// The failure that the outcome of the worker's request reports, and whether it is a cancellation. `None`: the worker has run to its end, and has
    /// reported what it has failed with; or a stop has cancelled it.
    fn outcome_of(&self, outcome: &Outcome<'_, ()>) -> Option<(Failure, bool)> {
        if self.slot.reported.load(Ordering::Relaxed) {
            return None;
        }
        match outcome {
            Outcome::Failed(failure) => {
                let follows = failure.downcast_ref::<Cancelled>().is_some();
                Some((failure.renamed(self.name().to_owned()), follows))
            }
            Outcome::Cancelled(reason) if !self.slot.stopped.load(Ordering::Relaxed) => {
                let cancelled = WorkerCancelled { reason: *reason };
                Some((Failure::from_error(cancelled.into(), self.name().to_owned(), None), true))
            }
            Outcome::Cancelled(_) | Outcome::Finished(_) => None,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !self.ends {
            return;
        }
        if thread::panicking() && !self.in_unwind {
            let failure = Failure::from_error(Vanished.into(), self.name().to_owned(), None);
            self.coordinator.record_or_tell(failure, false);
        }
        self.coordinator.0.board.end(self.slot.id);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Calls `f`. Its error or panic comes back as a failure of this name, and whether it is a cancellation.
pub(crate) fn attempt<T>(name: &str, f: impl FnOnce() -> Result<T, Error>) -> Result<T, (Failure, bool)> {
    let failed = |error: Error| {
        let follows = error.is_cancelled();
        (Failure::from_error(error, name.to_owned(), None), follows)
    };
    #[cfg(panic = "unwind")]
    let ran = catch_unwind(AssertUnwindSafe(|| forebear::catch(f).and_then(|result| result)));
    #[cfg(not(panic = "unwind"))]
    let ran = catch_unwind(AssertUnwindSafe(f));
    match ran {
        Ok(result) => result.map_err(failed),
        Err(payload) => Err((Failure::from_panic(payload, name.to_owned(), None), false)),
    }
}
