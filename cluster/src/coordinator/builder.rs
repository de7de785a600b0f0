//! [`ClusterCoordinatorBuilder`]: the settings of a coordinator.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use super::board::{Board, Limit, Unmet, Until};
use super::inquiry::Inquiries;
use super::journal::Journal;
use super::watchdog::{self, Stall};
use super::{ClusterCoordinator, Handle, Shared};
use crate::engine::{Engine, EventSink, Job, WorkerState, start_error};
use crate::error::ClusterError;
use crate::task::Tasks;

/// How long a start waits for its workers, if not told otherwise.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Describes a [`ClusterCoordinator`], and starts it.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(4))
///     .tasks(tasks![NEXT])
///     .min_workers(2) // go on when two of the four are there
///     .queue_limit(1_000, 64 << 20)
///     .max_attempts(2)
///     .start()?;
/// # Ok::<(), ClusterError>(())
/// ```
#[must_use = "`start` starts it"]
pub struct ClusterCoordinatorBuilder {
    engine: Box<dyn Engine>,
    tasks: Tasks,
    min_workers: usize,
    start_timeout: Duration,
    limit: Limit,
    max_attempts: u32,
    watchdog: Option<(Duration, watchdog::Hook)>,
    journal: Option<PathBuf>,
}

impl ClusterCoordinatorBuilder {
    pub(super) fn new(engine: Box<dyn Engine>) -> ClusterCoordinatorBuilder {
        let limit = Limit { tasks: 256 << 10, bytes: 256 << 20 };
        ClusterCoordinatorBuilder {
            engine,
            tasks: Tasks::new(),
            min_workers: 1,
            start_timeout: START_TIMEOUT,
            limit,
            max_attempts: 4,
            watchdog: None,
            journal: None,
        }
    }

    /// What can be scheduled: the same tasks as the workers know.
    pub fn tasks(mut self, tasks: Tasks) -> Self {
        self.tasks = tasks;
        self
    }

    /// [`start`](Self::start) waits for so many workers. Others may be ready later. Default: 1. With 0 it waits for none, and workers may be added when the cluster runs.
    ///
    /// Other workers than those that an engine on this machine starts come only by its control. So a start that waits for more is refused at once. Over a server it waits, since workers may come from elsewhere.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess};
    ///
    /// let engine = InProcess::new(0);
    /// let refused = ClusterCoordinator::builder(engine.clone()).start();
    /// assert!(matches!(refused, Err(ClusterError::TooFewWorkers { wanted: 1, starts: 0, .. })));
    /// let control = engine.control();
    /// let cluster = ClusterCoordinator::builder(engine).min_workers(0).start()?;
    /// control.add("late");
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn min_workers(mut self, workers: usize) -> Self {
        self.min_workers = workers;
        self
    }

    /// The queue holds so many tasks, whose arguments take so many bytes. Default: 2<sup>18</sup> tasks, and 256 MiB.
    ///
    /// Tasks that a worker has do not count. A task whose worker has died needs no room when it returns to the queue.
    pub fn queue_limit(mut self, tasks: usize, bytes: usize) -> Self {
        self.limit = Limit { tasks: tasks.max(1), bytes };
        self
    }

    /// A task with which so many workers have died fails: [`FailureKind::Poisoned`](crate::FailureKind::Poisoned). Default: 4.
    ///
    /// If the last of these workers had other tasks, too, any of them may be the cause. Each is run once more, alone on a worker, and fails if that dies as well.
    /// A worker that the program kills by the control of its engine does not count.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// How long [`start`](Self::start) waits for the [workers](Self::min_workers). Default: 60 seconds. Workers that end before they are
    /// ready, for instance because they have other tasks, would else keep it for ever.
    ///
    /// ```no_run
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses};
    /// use std::time::Duration;
    ///
    /// let slow = LocalProcesses::new(64).program("./worker"); // each reads a large table first
    /// let builder = ClusterCoordinator::builder(slow).min_workers(64);
    /// let cluster = builder.start_timeout(Duration::from_secs(600)).start()?;
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Calls a hook when tasks are scheduled and none has ended for a period; again in each period until one ends. Default: there is no hook.
    ///
    /// The hook runs on a thread of its own. It must not wait for the cluster.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
    ///
    /// let (send, stalls) = mpsc::channel();
    /// let builder = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]);
    /// let cluster = builder.watchdog(Duration::from_millis(5), move |stall| _ = send.send(stall.to_string())).start()?;
    /// cluster.schedule(&NEVER, ())?;
    /// assert!(stalls.iter().any(|stall| stall.contains("`never` on worker-0 (1), attempt 1")));
    /// # Ok::<(), ClusterError>(())
    /// ```
    pub fn watchdog(mut self, period: Duration, hook: impl Fn(&Stall) + Send + Sync + 'static) -> Self {
        self.watchdog = Some((period, Box::new(hook)));
        self
    }

    /// Keeps the results of tasks that have a [key](crate::TaskOptions::key) in this file. A coordinator that is killed and started again finds there what the one before it has not fetched. Default: there is no
    /// journal.
    ///
    /// A result is in the file before a fetch or a join answers. Records are added, never removed: delete the file when the job is over, or to have all computed anew. They are not forced to the disk: a
    /// power cut may lose the last ones, which are then computed again. On Linux one coordinator at a time has the file.
    ///
    /// ```
    /// use forebear_cluster::{ClusterCoordinator, InProcess, TaskFn, TaskOptions, tasks};
    ///
    /// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
    ///
    /// # let file = std::env::temp_dir().join(format!("journal-{}", std::process::id()));
    /// for run in 0..2 {
    ///     let builder = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![SQUARE]);
    ///     let cluster = builder.journal(&file).start()?;
    ///     let value = cluster.schedule_with(&TaskOptions::new().key("seven"), &SQUARE, 7)?;
    ///     assert_eq!(value.fetch()?, 49);
    ///     assert_eq!(cluster.metrics().kept, run); // the second run does not compute it
    /// }
    /// # std::fs::remove_file(&file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn journal(mut self, file: impl AsRef<Path>) -> Self {
        self.journal = Some(file.as_ref().to_owned());
        self
    }

    /// Starts the engine, and waits for the [workers](Self::min_workers). One that fails or is cancelled ends the engine, and waits for that as the drop of the last handle does.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NameTaken`], if two tasks have one name. [`ClusterError::TooFewWorkers`], if the engine starts fewer workers. [`ClusterError::Start`], if the engine cannot start, if
    /// the journal cannot be opened or is another coordinator's, or if all workers were refused since they have other
    /// tasks. Also if too few workers are ready after the [time-out](Self::start_timeout). [`ClusterError::Cancelled`].
    pub fn start(self) -> Result<ClusterCoordinator, ClusterError> {
        self.tasks.check()?;
        let wanted = self.min_workers;
        if let Some(starts) = self.engine.workers_at_start().filter(|starts| *starts < wanted) {
            return Err(ClusterError::TooFewWorkers { wanted, starts });
        }
        let open = |file: &PathBuf| {
            let opened = Journal::open(file);
            opened.map_err(|error| start_error(format_args!("the journal {}: {error}", file.display())))
        };
        let journal = self.journal.as_ref().map(open).transpose()?;
        let shared = Arc::new_cyclic(|weak| Shared {
            board: Board::new(self.limit, weak.clone()),
            link: OnceLock::new(),
            tasks: self.tasks.clone(),
            limit: self.limit,
            max_attempts: self.max_attempts,
            // Different in each coordinator, with all the probability that is needed.
            job: RandomState::new().build_hasher().finish(),
            resources: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            journal,
            inquiries: Inquiries::default(),
            heard: Mutex::default(),
            watchdog: OnceLock::new(),
        });
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        let events = EventSink::of_batches(move |events| {
            if let Some(shared) = weak.upgrade() {
                shared.on_events(events);
            }
        });
        let link = self.engine.start(Job { tasks: self.tasks, events })?;
        let _ = shared.link.set(link);
        // Dropped by an error from here on, it ends the engine.
        let coordinator = ClusterCoordinator(Arc::new(Handle(shared)));
        if let Some((period, hook)) = self.watchdog {
            let shared = coordinator.shared();
            let started = watchdog::start(Arc::downgrade(shared), period, hook);
            let _ = shared.watchdog.set(started.map_err(start_error)?);
        }
        let wanted = Until::Workers(self.min_workers);
        match coordinator.shared().wait(wanted, Some(self.start_timeout), |_| ()) {
            Ok(()) => Ok(coordinator),
            Err(Unmet::Error(ClusterError::Unavailable { reason, .. })) => Err(start_error(reason)),
            Err(Unmet::Error(error)) => Err(error),
            Err(Unmet::TimedOut) => {
                let (workers, time) = (coordinator.workers(), self.start_timeout);
                let ready = workers.iter().filter(|worker| worker.state == WorkerState::Ready).count();
                let why = if workers.is_empty() { "start some" } else { "see what the others wrote" };
                Err(start_error(format_args!(
                    "{ready} of {} workers were ready after {time:?}; {why}, or set `min_workers` or `start_timeout`",
                    self.min_workers,
                )))
            }
        }
    }
}

impl fmt::Debug for ClusterCoordinatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterCoordinatorBuilder")
            .field("tasks", &self.tasks)
            .field("min_workers", &self.min_workers)
            .field("start_timeout", &self.start_timeout)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}
