//! [`Coordinator`]: workers that stop together.
//!
//! # The parts
//!
//! * `board`: what is shared, under one lock, and the argument why no wake-up is lost.
//! * `builder`: the settings.
//! * `member`: what a worker holds, and how its end is noticed.
//! * `delayed`: the wait between a stop and the cancel of the workers.
//! * `joinable`, `stop`: how requests, threads and child processes become members, and how a stop reaches them.
//! * `report`: what becomes of an error.
//! * `join`, `waiting`: the wait for all of them, and what it answers.
//! * `looper`: turns on a grid of time.
//! * `signals`: SIGINT and SIGTERM.
//!
//! User code (a looper, a hook, a stopper, the test for clean stops, a destructor) is called without the lock.

mod board;
mod builder;
mod delayed;
mod join;
mod joinable;
mod looper;
mod member;
mod report;
#[cfg(unix)]
pub(crate) mod signals;
mod stop;
mod waiting;

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebear::{Cancelled, Error, Failure, Request, Runtime, TimeoutError};

use self::board::{Board, Rules};
pub use self::builder::CoordinatorBuilder;
use self::delayed::Delayed;
pub(crate) use self::join::holder_of_its_worker;
pub use self::join::{JoinError, JoinOptions, LastCheck, Straggler};
pub use self::joinable::{ChildFailed, Joinable};
pub use self::looper::{Every, Looper};
pub(crate) use self::member::attempt;
pub use self::member::{Member, Vanished, WorkerCancelled};
pub use self::report::EndOfInput;
pub(crate) use self::report::caller_name;
pub use self::stop::Stop;

type IsClean = Box<dyn Fn(&Failure) -> bool + Send + Sync>;

/// Workers that stop together. The first error decides.
///
/// A *worker* is a request, a thread or a child process that was registered by [`spawn`](Self::spawn) or one of its siblings. Each worker, and each other thread or request
/// with a handle, may [request a stop](Self::request_stop) or [report](Self::report) an error, which requests a stop, too. Workers call
/// [`should_stop`](Member::should_stop) from time to time. A stop also reaches workers that are blocked: it cancels requests, and sends SIGTERM to child
/// processes. [`join`](Self::join) waits until all workers have ended, and returns the first error.
///
/// A handle: clone it to share it.
///
/// # Life
///
/// ```text
///   running  --request_stop, report, a worker's error-->  stopping  --join-->  joined
///      ^                                                                         |
///      +----------------------------- clear_stop --------------------------------+
/// ```
///
/// # Examples
///
/// ```
/// use forebear_supervise::Coordinator;
/// use forebear::channel;
///
/// let coordinator = Coordinator::new();
/// let (sender, receiver) = channel::bounded(4);
/// coordinator.spawn("producer", move |me| {
///     for n in 0_u32.. {
///         me.check_stop()?;
///         sender.send(n).map_err(|_| forebear::Error::other("the consumer is gone"))?;
///     }
///     Ok(())
/// });
/// let stop = coordinator.clone();
/// coordinator.spawn("consumer", move |_| {
///     while receiver.recv()? < 1_000 {}
///     stop.request_stop(); // wakes the producer, which may be blocked in `send`
///     Ok(())
/// });
/// coordinator.join()?;
/// # Ok::<(), forebear_supervise::JoinError>(())
/// ```
///
/// # Source
///
/// `tf.train.Coordinator` of TensorFlow, with its loopers. `docs/coordination.md` in the repository lists the differences, row by row.
#[derive(Clone)]
pub struct Coordinator(Arc<CoordinatorShared>);

pub(crate) struct CoordinatorShared {
    board: Board,
    grace: Duration,
    cancel_after: Duration,
    /// The thread that waits for this delay.
    delayed: Delayed,
    rules: Rules,
    is_clean: IsClean,
    on_unhandled_failure: Box<dyn Fn(&Failure) + Send + Sync>,
    on_warning: Box<dyn Fn(&str) + Send + Sync>,
    runtime: Option<Runtime>,
}

impl Coordinator {
    /// A coordinator with the defaults of the [builder](Self::builder).
    #[must_use]
    pub fn new() -> Coordinator {
        match CoordinatorBuilder::default().build() {
            Ok(coordinator) => coordinator,
            Err(_) => unreachable!("only handlers of signals can fail"),
        }
    }

    /// Describes a coordinator.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::builder()
    ///     .grace(Duration::from_secs(10))
    ///     .clean_stop::<std::num::ParseIntError>()
    ///     .build()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> CoordinatorBuilder {
        CoordinatorBuilder::default()
    }

    /// Whether a stop has been requested. Does not suspend. One relaxed load.
    ///
    /// A worker calls [`Member::should_stop`] instead, which also notes the place of the call.
    #[inline]
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.0.board.should_stop()
    }

    /// Requests a stop, without an error. Any thread or request may call this, any number of times. Does not suspend.
    ///
    /// From now on [`should_stop`](Self::should_stop) answers true, and a [wait for the stop](Self::wait_for_stop) ends. Blocked requests are cancelled and child
    /// processes get SIGTERM, at once or after the [delay](CoordinatorBuilder::cancel_after). If the caller is a worker itself, its next wait answers [`Cancelled`].
    pub fn request_stop(&self) {
        let begun = self.0.board.request_stop();
        self.reach(begun);
    }

    /// Stops the members where they are blocked, at once or after the delay, if a stop has begun.
    fn reach(&self, begun: Option<u64>) {
        let Some(epoch) = begun else { return };
        if self.0.cancel_after.is_zero() {
            return self.reach_members(epoch);
        }
        Delayed::reach_later(&self.0, epoch);
    }

    fn reach_members(&self, epoch: u64) {
        for (slot, mut stopper) in self.0.board.reach(epoch) {
            self.call(&slot.name, &mut *stopper);
            self.0.board.give_back(slot.id, stopper);
        }
    }

    /// Calls a worker's stopper. Its panic is a failure of that worker, and keeps the stop from no other one.
    fn call(&self, name: &str, stopper: &mut dyn Stop) {
        let stop = || {
            stopper.stop();
            Ok(())
        };
        if let Err((failure, follows)) = member::attempt(name, stop) {
            self.record_or_tell(failure, follows);
        }
    }

    /// Waits until a stop is requested.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`], if the calling request is cancelled without a stop. After a stop the answer is `Ok`, also in a request that the stop cancels.
    pub fn wait_for_stop(&self) -> Result<(), Cancelled> {
        match self.0.board.stopped.wait() {
            Err(_) if self.should_stop() => Ok(()),
            answer => answer,
        }
    }

    /// As [`wait_for_stop`](Self::wait_for_stop), up to `timeout` on the clock of the caller's runtime. `false`: no stop was requested in that time. A timeout of
    /// zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// As [`wait_for_stop`](Self::wait_for_stop).
    pub fn wait_for_stop_timeout(&self, timeout: Duration) -> Result<bool, Cancelled> {
        match self.0.board.stopped.wait_timeout(timeout) {
            Ok(()) => Ok(true),
            Err(_) if self.should_stop() => Ok(true),
            Err(TimeoutError::TimedOut) => Ok(false),
            Err(TimeoutError::Cancelled) => Err(Cancelled::new()),
        }
    }

    /// Clears the stop, the recorded errors and [`joined`](Self::joined), so that the coordinator can be used again. Does not affect workers that still
    /// run. Does not suspend.
    ///
    /// ```
    /// use forebear_supervise::{Coordinator, EndOfInput};
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// assert!(!coordinator.wait_for_stop_timeout(Duration::ZERO)?);
    /// coordinator.report(std::fmt::Error)?;
    /// coordinator.wait_for_stop()?;
    /// assert!(coordinator.requested_error().is_some() && coordinator.workers().is_empty());
    /// coordinator.join().unwrap_err();
    /// assert!(coordinator.joined());
    ///
    /// coordinator.clear_stop();
    /// assert!(!coordinator.should_stop() && !coordinator.joined());
    /// coordinator.report(EndOfInput)?;
    /// coordinator.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear_stop(&self) {
        self.0.board.clear();
        self.0.delayed.wake();
    }

    /// Begins anew after a join: as [`clear_stop`](Self::clear_stop), but a stop that was requested since that join stays. Does nothing if no join has returned.
    pub(crate) fn renew(&self) {
        let begun = self.0.board.renew();
        self.0.delayed.wake();
        self.reach(begun);
    }

    /// Whether a join has returned since the last [`clear_stop`](Self::clear_stop). A join that was cancelled does not count.
    #[must_use]
    pub fn joined(&self) -> bool {
        self.0.board.joined()
    }

    /// The first error that was reported, without a join. The [hook](CoordinatorBuilder::on_unhandled_failure) does not receive it any more.
    #[must_use]
    pub fn requested_error(&self) -> Option<Failure> {
        self.0.board.failure()
    }

    /// The same, with the later errors.
    pub(crate) fn requested_failure(&self) -> Option<(Failure, Vec<Failure>)> {
        self.0.board.failures()
    }

    /// The names of the workers that have not ended, in the order in which they were registered.
    #[must_use]
    pub fn workers(&self) -> Vec<String> {
        self.0.board.names()
    }

    /// Runs `f` as a worker, in a request of its own. A stop cancels it, so a wait in it answers [`Cancelled`]. Its error or panic is reported. The request has no
    /// parent, since the coordinator may outlive the caller.
    ///
    /// What `f` owns is dropped before its error is reported. So if it owns one end of a channel, the worker at the other end may see that end go, and report that first. Let that
    /// worker take it for the end of its input, as by `while let Ok(item) = receiver.recv()`, or [`report`](Member::report) the error before the return.
    ///
    /// The caller need neither keep the request nor wait for it. Does not suspend.
    ///
    /// If the request is cancelled otherwise than by the stop, as by [`cancel`](Request::cancel) or with its runtime, and `f` does not come to its end, that is
    /// reported as [`WorkerCancelled`].
    ///
    /// ```
    /// use forebear::time::sleep;
    /// use forebear_supervise::Coordinator;
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// coordinator.spawn("sleeper", |_| Ok(sleep(Duration::MAX)?)); // a stop wakes it
    /// coordinator.request_stop();
    /// coordinator.join()?;
    /// # Ok::<(), forebear_supervise::JoinError>(())
    /// ```
    pub fn spawn(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&Member) -> Result<(), Error> + Send + 'static,
    ) -> Request<()> {
        let member = self.enlist(name);
        let within = member.borrowed();
        let mut builder = Request::builder().name(member.name().to_owned()).detached();
        if let Some(runtime) = &self.0.runtime {
            builder = builder.on(runtime);
        }
        // Reported there, since a cancelled request that returns may end as cancelled.
        let request = builder.try_build(move || within.has_returned(f(&within)));
        member.watch_request(&request.to_untyped());
        request.submit();
        request
    }

    /// Runs `f` as a worker in a thread of its own. A stop does not wake a blocked thread, so `f` calls [`should_stop`](Member::should_stop), or waits by
    /// [`wait_for_stop_timeout`](Member::wait_for_stop_timeout). The worker has ended when `f` has returned and was dropped. Does not suspend.
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    /// use std::time::Duration;
    ///
    /// let coordinator = Coordinator::new();
    /// coordinator.spawn_thread("poller", |me| {
    ///     while !me.wait_for_stop_timeout(Duration::from_millis(1))? {
    ///         // call what blocks the thread
    ///     }
    ///     Ok(())
    /// })?;
    /// coordinator.request_stop();
    /// coordinator.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the system starts no thread. `f` is dropped then.
    pub fn spawn_thread(
        &self,
        name: impl Into<String>,
        f: impl FnOnce(&Member) -> Result<(), Error> + Send + 'static,
    ) -> io::Result<()> {
        let member = self.enlist(name);
        let named = thread::Builder::new().name(member.name().replace('\0', " "));
        let run = move || {
            if let Err((failure, follows)) = member::attempt(member.name(), || f(&member)) {
                member.coordinator().record_or_tell(failure, follows);
            }
        };
        named.spawn(run).map(drop)
    }

    /// Registers a worker that already runs: a request, a thread's handle, a child process, or a [`Joinable`] of your own. Does not suspend.
    ///
    /// ```
    /// use forebear::{Error, Request};
    /// use forebear_supervise::Coordinator;
    ///
    /// let coordinator = Coordinator::new();
    /// coordinator.register("request", Request::new(|| 6 * 7))?; // submits it
    /// let thread = std::thread::spawn(|| Err::<(), Error>(Error::other("no such file")));
    /// coordinator.register("thread", thread)?;
    /// let error = coordinator.join().unwrap_err();
    /// assert_eq!(error.failure().unwrap().request(), "thread");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A thread's handle or a child process is watched by a thread, which the system may refuse to start. The worker is not registered then, and its handle is
    /// dropped. A child process continues to run.
    pub fn register(&self, name: impl Into<String>, worker: impl Joinable) -> io::Result<()> {
        worker.watch(self.enlist(name))
    }

    /// Registers the calling thread or request, or another one that the returned [`Member`] is moved to, as a worker. The worker has ended when the member is dropped. A
    /// stop does not wake a worker of this kind, unless [`Member::stop_by`] sets how. Does not suspend.
    ///
    /// A member that is dropped by a panic reports [`Vanished`].
    ///
    /// ```
    /// use forebear_supervise::Coordinator;
    /// let coordinator = Coordinator::new();
    /// std::thread::scope(|scope| {
    ///     let me = coordinator.enlist("scoped");
    ///     scope.spawn(move || while !me.should_stop() { std::thread::yield_now() });
    ///     coordinator.request_stop();
    ///     coordinator.join()
    /// })?;
    /// # Ok::<(), forebear_supervise::JoinError>(())
    /// ```
    pub fn enlist(&self, name: impl Into<String>) -> Member {
        Member::new(self.clone(), self.0.board.enlist(name.into()))
    }

    /// The name of the worker that the calling request is.
    pub(crate) fn calling_worker(&self) -> Option<String> {
        Request::current().and_then(|request| self.0.board.worker_of(&request))
    }

    /// On which its requests run.
    pub(crate) fn runtime(&self) -> Runtime {
        self.0.runtime.clone().unwrap_or_else(Runtime::current)
    }
}

impl Default for Coordinator {
    fn default() -> Self {
        Coordinator::new()
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("should_stop", &self.should_stop())
            .field("joined", &self.joined())
            .field("joins", &self.0.board.joins())
            .field("workers", &self.workers())
            .finish_non_exhaustive()
    }
}

/// For the signals: the coordinator, while it exists.
#[cfg(unix)]
pub(crate) type Handle = Weak<CoordinatorShared>;
