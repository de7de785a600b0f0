//! [`ClusterCoordinator`]: schedules tasks on workers, and keeps what comes back.
//!
//! # The parts
//!
//! * `board`: the tasks that have not ended, the error latch and the limits, under one lock. Its head has the states of a task, and who may change what.
//! * `shared`: what the handles share, and what they have the engine do.
//! * `builder`: the settings. `options`: those of one task. `metrics`: what is counted.
//! * `watchdog`: reports when no task ends. `inquiry`: what workers do, asked of them.
//! * `journal`: results that outlive the coordinator.
//! * [`remote`](crate::remote): the values.
//! * [`engine`](crate::engine): what carries the tasks, and what it owes.
//!
//! # Vocabulary
//!
//! * A *task* is one call of a [`TaskFn`]. It is *queued*, then *leased* to a worker, and at last *done*, *failed* or *cancelled*.
//! * An *attempt* is one lease. A task has more than one only if a worker died.
//! * A *generation* is what was scheduled between two errors.
//! * A *worker* is one incarnation of a program that runs tasks.
//!
//! # The promises
//!
//! 1. A task runs at least once, unless it is cancelled. It runs exactly once if no worker fails.
//! 2. The first error is raised once, from the next `schedule`, `join` or `done`. Before that the rest has been cancelled, and nothing runs any more.
//! 3. A cancellation is never raised in place of its cause.
//! 4. A result survives its worker.
//! 5. A full queue makes `schedule` wait, and never blocks the return of a task.
//! 6. A waiter is suspended, and can be cancelled. That cancels the tasks that only this waiter wanted.

pub(crate) mod board;
mod builder;
mod inquiry;
mod journal;
mod metrics;
mod options;
mod shared;
mod watchdog;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebear::sync::Event as Wake;
use forebear::{Request, TimeoutError, shield};
use serde::Serialize;

use self::board::{Unmet, Until};
pub use self::builder::ClusterCoordinatorBuilder;
pub use self::inquiry::WorkerDump;
pub use self::metrics::Metrics;
pub use self::options::{TaskOptions, TryScheduleError};
pub(crate) use self::shared::Shared;
use self::shared::{Owner, encode};
pub use self::watchdog::{Stall, StalledTask};
use crate::engine::{Engine, Resource, ResourceId, StoreError, TaskId, WorkerState, WorkerStatus};
use crate::error::{ClusterError, FetchError};
use crate::holds::noted;
use crate::map::Map;
use crate::remote::{Fetch, RemoteValue};
use crate::stored::Stored;
use crate::task::{PerWorker, ResourceFn, TaskFn};

/// Schedules tasks on workers that may come, go and die.
///
/// A handle: clone it to share it. When the last one goes, everything is cancelled and the workers leave; [`shutdown`](Self::shutdown) waits for that. The drop of the last handle waits for two seconds at
/// most, and only if the engine has to tell workers elsewhere, or a server keeps something of the job. So a program can return from `main`. It does not wait in a request that unwinds.
///
/// # Errors of tasks
///
/// The first task that fails cancels all that was scheduled. When nothing runs any more, the next [`schedule`](Self::schedule), [`join`](Self::join) or
/// [`done`](Self::done) raises the error, once. After that the coordinator schedules tasks as if it were new.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, FetchError, InProcess, TaskFn, tasks};
///
/// const CHECK: TaskFn<i32, u32> = TaskFn::new("check", |_, n| Ok(u32::try_from(n)?));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![CHECK]).start()?;
/// let bad = cluster.schedule(&CHECK, -1)?;
/// assert!(matches!(cluster.join(), Err(ClusterError::Task(_))));
/// assert!(matches!(bad.fetch(), Err(FetchError::Task(_))), "it answers the same each time");
/// assert!(cluster.join().is_ok(), "the error was raised once");
/// assert_eq!(cluster.schedule(&CHECK, 1)?.fetch().unwrap(), 1);
/// # Ok::<(), ClusterError>(())
/// ```
///
/// # Source
///
/// `tf.distribute.experimental.coordinator.ClusterCoordinator` of TensorFlow. `docs/cluster.md` in the repository lists the differences, row by row.
#[derive(Clone)]
pub struct ClusterCoordinator(Arc<Handle>);

/// So long the drop of the last handle waits for the engine.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the clones of a coordinator share. Values share `Shared` alone.
struct Handle(Arc<Shared>);

impl ClusterCoordinator {
    /// Describes a coordinator on that engine.
    pub fn builder(engine: impl Engine) -> ClusterCoordinatorBuilder {
        ClusterCoordinatorBuilder::new(Box::new(engine))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Schedules a task: any worker may run it.
    ///
    /// A task of the same cluster may schedule, but while it waits for the value of another task it keeps its worker's slot. When such tasks have all slots, none of them ends: nothing finds that out.
    ///
    /// The arguments are encoded here. Waits if the [queue](ClusterCoordinatorBuilder::queue_limit) is full, or until an error is raised. Suspends then. A cancellation
    /// point then.
    ///
    /// # Errors
    ///
    /// [`ClusterError`]; nothing is scheduled then. [`ClusterError::Task`] is the first error of a task before.
    pub fn schedule<A: Serialize, R>(
        &self,
        task: &TaskFn<A, R>,
        args: A,
    ) -> Result<RemoteValue<R>, ClusterError> {
        self.schedule_with(&TaskOptions::new(), task, args)
    }

    /// The same, with options.
    ///
    /// ```
    /// use forebear::time::sleep;
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, InProcess, TaskFn, TaskOptions, tasks};
    /// use std::time::Duration;
    ///
    /// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(sleep(Duration::MAX)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]).start()?;
    /// cluster.schedule_with(&TaskOptions::new().timeout(Duration::from_millis(1)), &NEVER, ())?;
    /// let Err(ClusterError::Task(failure)) = cluster.join() else { unreachable!() };
    /// assert_eq!(*failure.kind(), FailureKind::TimedOut);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`schedule`](Self::schedule).
    pub fn schedule_with<A: Serialize, R>(
        &self,
        options: &TaskOptions,
        task: &TaskFn<A, R>,
        args: A,
    ) -> Result<RemoteValue<R>, ClusterError> {
        self.schedule_noted(options, task, args, None)
    }

    /// The same, and `some` is set when the task has ended.
    pub(crate) fn schedule_noted<A: Serialize, R>(
        &self,
        options: &TaskOptions,
        task: &TaskFn<A, R>,
        args: A,
        some: Option<Arc<Wake>>,
    ) -> Result<RemoteValue<R>, ClusterError> {
        let shared = self.shared();
        let call = shared.prepare(options, task, &args, some)?;
        if let Some(value) = shared.find(&call)? {
            return Ok(value);
        }
        let room = Until::Room(call.args.len());
        let added = shared.wait(room, None, |state| call.list(state)).map_err(Unmet::error)?;
        Ok(shared.submit(call, added))
    }

    /// The same, but does not wait. Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, TryScheduleError, tasks};
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let nobody = ClusterCoordinator::builder(InProcess::new(0)).min_workers(0);
    /// let cluster = nobody.queue_limit(1, 1 << 20).tasks(tasks![NEXT]).start()?;
    /// assert!(cluster.try_schedule(&NEXT, 1).is_ok());
    /// assert!(matches!(cluster.try_schedule(&NEXT, 2), Err(TryScheduleError::Full(2))));
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TryScheduleError`].
    pub fn try_schedule<A: Serialize, R>(
        &self,
        task: &TaskFn<A, R>,
        args: A,
    ) -> Result<RemoteValue<R>, TryScheduleError<A>> {
        let shared = self.shared();
        let call =
            shared.prepare(&TaskOptions::new(), task, &args, None).map_err(TryScheduleError::Cluster)?;
        match shared.board.try_now(Until::Room(call.args.len()), |state| call.list(state)) {
            Ok(Some(added)) => Ok(shared.submit(call, added)),
            Ok(None) => Err(TryScheduleError::Full(args)),
            Err(error) => Err(TryScheduleError::Cluster(error)),
        }
    }

    /// Schedules one task for each of the arguments, and yields the results in their order. The arguments are taken as there is room in a window, so there may be
    /// any number of them.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![SQUARE]).start()?;
    /// let first: Result<Vec<u64>, ClusterError> = cluster.map(&SQUARE, 1..).take(4).collect();
    /// assert_eq!(first?, [1, 4, 9, 16]);
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn map<A: Serialize, R, I: IntoIterator<Item = A>>(
        &self,
        task: &TaskFn<A, R>,
        args: I,
    ) -> Map<I::IntoIter, A, R> {
        Map::new(self.clone(), *task, args.into_iter())
    }

    /// Waits until all tasks have ended that were scheduled before.
    ///
    /// A join that is cancelled cancels the tasks that nothing else can need. Its own request has scheduled them, no
    /// fetch waits for them, there is at most one handle of each value, and no other join waits for them.
    ///
    /// A task that joins its own cluster waits for itself, for ever unless it is cancelled.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Task`] is the first error of a task; then no task runs any more, also none of other callers. [`ClusterError::Unavailable`]: the engine is
    /// away; tasks may still run.
    pub fn join(&self) -> Result<(), ClusterError> {
        self.join_within(None).map_err(Unmet::error)
    }

    fn join_within(&self, timeout: Option<Duration>) -> Result<(), Unmet> {
        let shared = self.shared();
        let cut = shared.board.next();
        let joined = shared.wait(Until::Over(cut), timeout, |_| ());
        if let (Err(Unmet::Error(ClusterError::Cancelled)), Some(me)) = (&joined, Request::current()) {
            let unwanted = shared.board.unwanted_without(cut, me.id());
            // The last first: a queued one is not to start in the place of a running one.
            unwanted.into_iter().rev().for_each(|task| shared.cancel(task));
        }
        joined
    }

    /// The same, for `timeout` at most. `false`: not all have ended. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    /// use std::time::Duration;
    ///
    /// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]).start()?;
    /// let value = cluster.schedule(&NEVER, ())?;
    /// assert!(!cluster.join_timeout(Duration::from_millis(1))?);
    /// value.cancel();
    /// assert!(cluster.join_timeout(Duration::from_secs(60))?);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join).
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool, ClusterError> {
        match self.join_within(Some(timeout)) {
            Ok(()) => Ok(true),
            Err(Unmet::TimedOut) => Ok(false),
            Err(Unmet::Error(error)) => Err(error),
        }
    }

    /// Waits until no error is about to be raised.
    ///
    /// # Errors
    ///
    /// The error, if there was one and nobody else has been given it.
    pub(crate) fn raise(&self) -> Result<(), ClusterError> {
        self.shared().wait(Until::Settled, None, |_| ()).map_err(Unmet::error)
    }

    /// Whether the engine can carry tasks.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Unavailable`].
    pub(crate) fn check_away(&self) -> Result<(), ClusterError> {
        self.shared().board.check_away()
    }

    /// Whether all that was scheduled has ended. Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let engine = InProcess::new(0);
    /// let control = engine.control();
    /// let cluster = ClusterCoordinator::builder(engine).min_workers(0).tasks(tasks![NEXT]).start()?;
    /// let value = cluster.schedule(&NEXT, 1)?;
    /// assert!(!cluster.done()?); // there is no worker
    /// control.add("first");
    /// assert_eq!(value.fetch().unwrap(), 2);
    /// assert!(cluster.done()?);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`join`](Self::join), but not `Cancelled`. While an error is about to be raised, and something still runs, the answer is `false`.
    pub fn done(&self) -> Result<bool, ClusterError> {
        Ok(self.shared().board.try_now(Until::Over(TaskId(u64::MAX)), |_| ())?.is_some())
    }

    /// Fetches all values of a structure: see [`Fetch`].
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// The first one, in the order of the structure.
    pub fn fetch<F: Fetch>(&self, values: F) -> Result<F::Output, FetchError> {
        values.fetch_all()
    }

    /// Has each worker make a resource: those that are here, and those that come, before they take tasks. A task that has the token among its arguments finds its
    /// worker's part by [`TaskCtx::local`](crate::TaskCtx::local).
    ///
    /// A resource that cannot be made on a worker fails the tasks that ask for it there, and no others. When the last clone of the token is dropped, and the tasks that
    /// were scheduled before have ended, the workers drop their parts.
    ///
    /// An engine may limit the size of the arguments; over NATS they have at most 256 KiB. [`put`](Self::put) takes larger data, and its token is an argument. What tokens among the arguments name, stored values
    /// and other resources, stays as long as this resource does.
    ///
    /// Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, PerWorker, ResourceFn, TaskFn, tasks};
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// const COUNTER: ResourceFn<u32, AtomicU32> = ResourceFn::new("counter", |_, first| Ok(first.into()));
    /// const COUNT: TaskFn<PerWorker<AtomicU32>, u32> =
    ///     TaskFn::new("count", |ctx, counter| Ok(ctx.local(&counter)?.fetch_add(1, Ordering::Relaxed)));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![COUNTER, COUNT]).start()?;
    /// let counter = cluster.per_worker(&COUNTER, 7)?;
    /// assert_eq!(cluster.schedule(&COUNT, counter.clone())?.fetch().unwrap(), 7);
    /// assert_eq!(cluster.schedule(&COUNT, counter)?.fetch().unwrap(), 8);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClusterError`], but not `Task`: a failure on a worker fails the tasks that ask for the resource there.
    pub fn per_worker<A: Serialize, R: Send + Sync + 'static>(
        &self,
        resource: &ResourceFn<A, R>,
        args: A,
    ) -> Result<PerWorker<R>, ClusterError> {
        let shared = self.shared();
        let name = shared.tasks.check_resource(resource)?.clone();
        let (args, holds) = noted(|| encode(&args));
        let args = args?;
        let limit = shared.link.get().map_or(usize::MAX, |link| link.resource_limit());
        if args.len() > limit {
            return Err(ClusterError::TooLarge { bytes: args.len(), limit });
        }
        if !shared.board.is_open() {
            return Err(ClusterError::Closed);
        }
        let id = ResourceId(shared.resources.fetch_add(1, Ordering::AcqRel) + 1);
        let owner: Arc<dyn Any + Send + Sync> =
            Arc::new(Owner { shared: Arc::downgrade(shared), id, _holds: holds });
        let spec = Resource { job: shared.job, id, name, args };
        shared.tell(|link| link.make(spec));
        Ok(PerWorker { job: shared.job, id, owner: Some(owner), of: PhantomData })
    }

    /// Puts a value into the engine's store, once for all tasks that take the token: see [`Stored`].
    ///
    /// Suspends while the store takes it. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Stored, TaskFn, tasks};
    ///
    /// const DOT: TaskFn<(Stored<Vec<f64>>, f64), f64> =
    ///     TaskFn::new("dot", |ctx, (weights, x)| Ok(weights.get(ctx)?.iter().map(|w| w * x).sum()));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![DOT]).start()?;
    /// let weights = cluster.put(&vec![0.5; 1 << 10])?;
    /// let sums: Result<Vec<f64>, _> = cluster.map(&DOT, (0..4).map(|x| (weights.clone(), f64::from(x)))).collect();
    /// assert_eq!(sums?, [0.0, 512.0, 1024.0, 1536.0]);
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClusterError::Encode`], [`ClusterError::Store`], [`ClusterError::Unavailable`], [`ClusterError::Closed`], [`ClusterError::Cancelled`].
    pub fn put<T: Serialize>(&self, value: &T) -> Result<Stored<T>, ClusterError> {
        let shared = self.shared();
        let bytes = encode(value)?;
        if !shared.board.is_open() {
            return Err(ClusterError::Closed);
        }
        match shared.keep(bytes) {
            Ok(kept) => Ok(Stored::new(kept)),
            Err(StoreError::Cancelled) => Err(ClusterError::Cancelled),
            Err(StoreError::Unavailable { reason }) => {
                let since = Instant::now();
                Err(self.check_away().err().unwrap_or(ClusterError::Unavailable { since, reason }))
            }
            Err(error) => Err(ClusterError::Store { message: error.to_string() }),
        }
    }

    /// The workers, of each name the newest incarnation, also if it is [gone](crate::engine::WorkerState::Gone); of those that are gone the last [`GONE`](crate::engine::GONE). Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::engine::WorkerState;
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
    ///
    /// let engine = InProcess::new(2).slots(4);
    /// let cluster = ClusterCoordinator::builder(engine).min_workers(2).start()?;
    /// let workers = cluster.workers();
    /// assert!(workers.iter().all(|worker| worker.state == WorkerState::Ready));
    /// assert_eq!(workers.iter().map(|worker| worker.slots).sum::<usize>(), 8);
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.shared().board.workers()
    }

    /// What each worker does: the requests of its runtime, what each waits for, and who holds that. Workers that are [gone](crate::engine::WorkerState::Gone) are not asked. One that has not answered after this time is listed
    /// without a text: it stands still, or its answer was lost. Tasks and their state do not matter: a worker whose tasks are all stuck answers.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    /// use std::time::Duration;
    ///
    /// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]).start()?;
    /// let _value = cluster.schedule(&NEVER, ())?;
    /// let dumps = cluster.dump(Duration::from_secs(60))?;
    /// assert!(dumps[0].to_string().contains("`task never`"));
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClusterError::Closed`], [`ClusterError::Cancelled`].
    pub fn dump(&self, limit: Duration) -> Result<Vec<WorkerDump>, ClusterError> {
        let is_there = |worker: &WorkerStatus| worker.state != WorkerState::Gone;
        let workers: Vec<_> = self.workers().into_iter().filter(is_there).map(|worker| worker.id).collect();
        self.shared().ask(&workers, limit)
    }

    /// What was counted since the start. Does not suspend.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![NEXT]).start()?;
    /// let _: Vec<u32> = cluster.map(&NEXT, 0..3).collect::<Result<_, _>>()?;
    /// let metrics = cluster.metrics();
    /// assert_eq!((metrics.scheduled, metrics.done, metrics.fetched), (3, 3, 3));
    /// # Ok::<(), ClusterError>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shared().board.metrics()
    }

    /// Cancels all that was scheduled, waits until nothing runs any more, and lets the workers go. From now on all other calls answer [`ClusterError::Closed`].
    ///
    /// If workers elsewhere have to be told to leave, or a server keeps something of the job, it waits for that, too. When it has returned, the process may end, and another coordinator of the job can start.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    ///
    /// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
    ///
    /// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
    /// cluster.shutdown()?;
    /// assert!(matches!(cluster.schedule(&NEXT, 1), Err(ClusterError::Closed)));
    /// # Ok::<(), ClusterError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClusterError::Cancelled`], [`ClusterError::Unavailable`]: the workers may still run something. It can be repeated.
    pub fn shutdown(&self) -> Result<(), ClusterError> {
        let shared = self.shared();
        shared.follow(shared.board.begin_end());
        shared.wait(Until::Ended, None, |_| ()).map_err(Unmet::error)?;
        shared.close();
        match shared.wait_closed(Duration::MAX) {
            Err(TimeoutError::Cancelled) => Err(ClusterError::Cancelled),
            Ok(()) | Err(TimeoutError::TimedOut) => Ok(()),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.follow(self.0.board.begin_end());
        self.0.close();
        // A request that unwinds cannot suspend: see `docs/pinning.md`. The engine ends by itself.
        let unwinds = thread::panicking() && Request::current().is_some();
        if unwinds || self.0.wait_closed(Duration::ZERO).is_ok() {
            return;
        }
        // In a region that must not suspend the wait panics, and a drop must not.
        let _ = catch_unwind(AssertUnwindSafe(|| shield(|| self.0.wait_closed(FAREWELL))));
    }
}

impl Unmet {
    pub(in crate::coordinator) fn error(self) -> ClusterError {
        match self {
            Unmet::Error(error) => error,
            Unmet::TimedOut => unreachable!("there was no limit"),
        }
    }
}

impl fmt::Debug for ClusterCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCoordinator").field("metrics", &self.metrics()).finish_non_exhaustive()
    }
}
