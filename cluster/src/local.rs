//! [`LocalProcesses`]: worker processes on this machine.
//!
//! # How a worker lives
//!
//! The coordinator starts a program, mostly its own, with one end of a socket pair as standard input. The program calls [`worker::entry`](crate::worker::entry) first, which
//! finds that it is a worker and follows the orders that come in. Messages are frames: a length of four bytes, little end first, and a message of [`engine`](crate::engine) with a version.
//!
//! Each worker has three threads here:
//!
//! * The *writer* sends the orders that the socket does not take at once, so a [`Port`](crate::dispatch::Port) never waits; see [`outlet`]. It also kills a worker that does not heed a cancel within the grace, or reads nothing for so long after it was told to leave.
//! * The *reader* hands reports to the dispatcher. A frame that cannot be read is counted and has the worker killed; its tasks go to others. A worker of another version is given up. An answer for a task or an attempt that the worker does not have is dropped and counted.
//! * The *watcher* waits for the pidfd. Then it kills what is left of the process group, and reaps the worker. It ends
//!   the reader, which first passes on the worker's last messages, and reports to the dispatcher that the worker is
//!   gone. No other thread reports that.
//!
//! # A worker that ends by itself
//!
//! It is started again, as the next incarnation, unless somebody wanted its end: a kill or a drain by the control, SIGTERM, or the end of the cluster. The watcher does that, after a pause that doubles each time the worker does not become ready, or ends soon after;
//! [`restart`] has the rules. After a number of ends in a row in which it had finished no task, and had none that could be the cause, its name is *given up*. When all names are that were not killed or drained, the engine is away: nobody will ever take a task, so calls that wait are answered `Unavailable`.
//!
//! # A worker that hangs
//!
//! The coordinator's process has a server of expiration timers, and the workers know where; see [`timers`]. The socket stands in the directory of the objects. A task that is not over
//! when its timer expires ends with its worker, by SIGKILL. So does one that is not over the grace after its cancel, or after the end of its time. To the watcher that is a death as any other.
//!
//! A pidfd names the process and no other, so a kill never hits a stranger. The process group's number cannot be taken again before the worker is reaped.
//!
//! A worker knows by an environment variable that it is one: the number of the socket that is its standard input. It takes that socket away from there, so a program that the
//! worker starts is none.
//! When its socket ends, or the coordinator's pidfd says that it is dead, a worker cancels all, waits, and ends. So no worker outlives its coordinator for longer than twice the grace and some seconds, however that ends;
//! [`worker`] says how.

mod files;
mod frames;
mod outlet;
mod process;
mod restart;
mod timers;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use self::files::Files;
use self::frames::LONGEST;
use self::process::{Process, launch, spawn};
use self::restart::start_later;
use crate::cache::CACHE;
use crate::dispatch::Dispatcher;
use crate::engine::{Engine, Event, Failures, Job, Link, MAX_SLOTS, WarningHook, WorkerId, start_error};
use crate::error::ClusterError;
use crate::in_process::LocalLink;

/// What says to a program that it is a worker: the inode of the socket that is its standard input.
pub(crate) const MARK: &str = "FOREBEAR_CLUSTER_WORKER";

/// What an order takes beside the arguments: its numbers, and the name of its task.
const ROOM: usize = 64 << 10;

/// The engine whose workers are processes on this machine: the program starts itself.
///
/// Its `main` calls [`worker::entry`](crate::worker::entry) first. A worker that dies, however, is seen at once; its tasks go to others, and it is started [again](Self::restarts). One that does not heed a cancel is killed after the
/// [grace](Self::cancel_grace). All workers end with the coordinator. Linux only.
///
/// ```no_run
/// use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses, TaskFn, Tasks, tasks, worker};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn known() -> Tasks {
///     tasks![SQUARE]
/// }
///
/// fn main() -> Result<(), ClusterError> {
///     worker::entry(known()); // does not return in a worker
///     let cluster = ClusterCoordinator::builder(LocalProcesses::new(4)).tasks(known()).start()?;
///     println!("{}", cluster.schedule(&SQUARE, 7)?.fetch().unwrap());
///     Ok(())
/// }
/// ```
///
/// ```no_run
/// use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses, tasks};
/// use std::time::Duration;
///
/// let engine = LocalProcesses::new(4)
///     .program("./worker") // another program, which calls `worker::entry`
///     .args(["--table", "big"])
///     .slots(2)
///     .restarts(3)
///     .cancel_grace(Duration::from_secs(2))
///     .start_delay(Duration::from_millis(50), Duration::from_secs(1))
///     .cache(64 << 20)
///     .store_dir("/var/tmp")
///     .on_warning(|text| eprintln!("{text}"));
/// let control = engine.control();
/// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![]).start()?;
/// control.add("one more")?;
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone)]
pub struct LocalProcesses {
    workers: usize,
    slots: usize,
    cancel_grace: Duration,
    restarts: u32,
    start_delay: (Duration, Duration),
    cache: u64,
    args_limit: usize,
    store_dir: Option<PathBuf>,
    timers: bool,
    program: Option<OsString>,
    args: Vec<OsString>,
    warnings: WarningHook,
    control: LocalProcessesControl,
}

/// Adds worker processes to a cluster of [`LocalProcesses`], and takes them away, while it runs.
///
/// ```no_run
/// use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses, tasks};
///
/// let engine = LocalProcesses::new(2).program("./worker");
/// let control = engine.control();
/// let cluster = ClusterCoordinator::builder(engine).tasks(tasks![]).start()?;
/// let third = control.add("third")?;
/// control.drain("worker-0"); // leaves when its tasks have ended
/// control.kill(third.name()); // its tasks run again on `worker-1`
/// assert_eq!(control.dropped(), 0);
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Default)]
pub struct LocalProcessesControl(Arc<Mutex<LocalControl>>);

#[derive(Default)]
struct LocalControl {
    cluster: Option<LocalCluster>,
    names: BTreeMap<String, Named>,
    /// All names are given up, and the coordinator knows.
    away: bool,
}

/// The newest worker of a name.
struct Named {
    incarnation: u64,
    index: usize,
    process: Weak<Process>,
    /// Those in a row that have ended too soon.
    failures: Failures,
    /// How the last one has ended.
    ended: String,
    given_up: bool,
    /// It has ended by a kill or a drain.
    left: bool,
    /// Why the last one could not work for this coordinator.
    refused: Option<String>,
}

#[derive(Clone)]
struct LocalCluster {
    dispatcher: Weak<Dispatcher>,
    signatures: Vec<(String, String)>,
    settings: LocalProcesses,
    /// The directory of the objects.
    store: PathBuf,
    /// The socket of the expiration timers.
    timers: Option<PathBuf>,
    control: Weak<Mutex<LocalControl>>,
}

impl LocalProcesses {
    /// So many worker processes, named `worker-0` and so on. Each runs one task at a time. With 0 all come by the [control](Self::control), and
    /// [`min_workers`](crate::ClusterCoordinatorBuilder::min_workers) is 0, too.
    #[must_use]
    pub fn new(workers: usize) -> LocalProcesses {
        LocalProcesses {
            workers,
            slots: 1,
            cancel_grace: Duration::from_secs(10),
            restarts: 5,
            start_delay: (Duration::ZERO, Duration::ZERO),
            cache: CACHE,
            args_limit: LONGEST - ROOM,
            store_dir: None,
            timers: true,
            program: None,
            args: Vec::new(),
            warnings: WarningHook::default(),
            control: LocalProcessesControl::default(),
        }
    }

    /// Each worker runs so many tasks at once. Default: 1, which is also the least; the most is [`MAX_SLOTS`].
    #[must_use]
    pub fn slots(mut self, slots: usize) -> LocalProcesses {
        self.slots = slots.clamp(1, MAX_SLOTS);
        self
    }

    /// A worker whose task has not ended so long after a cancel, or after the end of its [time](crate::TaskOptions::timeout), is killed. Its other tasks run again elsewhere. A worker whose
    /// coordinator has died ends within twice this time and some seconds, also while a task computes. Default: 10 seconds.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> LocalProcesses {
        self.cancel_grace = grace;
        self
    }

    /// A worker that ends by itself is started again, after a pause that doubles if it ends soon: from 50 ms, up to 6.4 seconds. It is given up when it has ended more than so many times in a row before it had
    /// finished a task. An end with tasks in hand is theirs, and does not count: [`max_attempts`](crate::ClusterCoordinatorBuilder::max_attempts) limits those. When all are given up, calls that wait return
    /// [`ClusterError::Unavailable`], which says how the last one has ended. Default: 5. With 0 none is started again after such an end.
    #[must_use]
    pub fn restarts(mut self, restarts: u32) -> LocalProcesses {
        self.restarts = restarts;
        self
    }

    /// The workers of the start are not started all at once, but each `each` after the one before, and all within `most`. A start begins with the first one, unless
    /// [`min_workers`](crate::ClusterCoordinatorBuilder::min_workers) asks for more. Default: all at once.
    #[must_use]
    pub fn start_delay(mut self, each: Duration, most: Duration) -> LocalProcesses {
        self.start_delay = (each, most);
        self
    }

    /// Each worker keeps so many bytes of [`Stored`](crate::Stored) values that it has read. Default: 256 MiB.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> LocalProcesses {
        self.cache = bytes;
        self
    }

    /// The encoded arguments of a task or a resource take at most so many bytes. `schedule` and `per_worker` answer [`ClusterError::TooLarge`] for more; a [`put`](crate::ClusterCoordinator::put) takes any size.
    /// Default, and at most: 64 KiB less than 1 GiB. The [queue](crate::ClusterCoordinatorBuilder::queue_limit) has a limit of its own. The least is 1 MiB.
    ///
    /// ```
    /// use forebear_cluster::LocalProcesses;
    ///
    /// // A caller that passes more than this by value has forgotten a `put`.
    /// let engine = LocalProcesses::new(4).args_limit(16 << 20);
    /// ```
    #[must_use]
    pub fn args_limit(mut self, bytes: usize) -> LocalProcesses {
        self.args_limit = bytes.clamp(1 << 20, LONGEST - ROOM);
        self
    }

    /// Large values are files in a new directory below this one, which is removed with the cluster. Default: the system's temporary directory.
    #[must_use]
    pub fn store_dir(mut self, dir: impl AsRef<Path>) -> LocalProcesses {
        self.store_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// The engine gives its workers no expiration timers. By default it does: a task guards a call that can hang by [`expires`](forebear::timer::expires), and the engine kills a worker with a task that is stuck
    /// beyond its timer. The task runs again elsewhere, and a task that is stuck each time fails as [`Poisoned`](crate::FailureKind::Poisoned).
    ///
    /// ```
    /// use forebear::timer::expires;
    /// use forebear_cluster::TaskFn;
    /// use std::time::Duration;
    ///
    /// const SIZE: TaskFn<String, u64> = TaskFn::new("size", |_, path| {
    ///     let _timer = expires(Duration::from_secs(30))?; // a file system may answer never
    ///     Ok(std::fs::metadata(path)?.len())
    /// });
    /// ```
    #[must_use]
    pub fn no_timers(mut self) -> LocalProcesses {
        self.timers = false;
        self
    }

    /// Another program than this one. It calls [`worker::entry`](crate::worker::entry) with the same tasks.
    #[must_use]
    pub fn program(mut self, program: impl AsRef<OsStr>) -> LocalProcesses {
        self.program = Some(program.as_ref().to_owned());
        self
    }

    /// The arguments of the program. Default: none.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> LocalProcesses {
        self.args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        self
    }

    /// Receives warnings, as text for a human reader: which worker cannot be started, or is not started again, and why. The hook is called on a thread of the engine and must not wait for the cluster.
    /// Default: they are written to standard error.
    #[must_use]
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> LocalProcesses {
        self.warnings = WarningHook::new(hook);
        self
    }

    /// What changes the workers of this cluster later on.
    #[must_use]
    pub fn control(&self) -> LocalProcessesControl {
        self.control.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalProcessesControl {
    /// Starts a worker. If there was one of this name, the new one is its next incarnation; if that is still there, it is [killed](Self::kill) first.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Start`], if the program cannot be started. [`ClusterError::Closed`], if the cluster does not run.
    pub fn add(&self, name: &str) -> Result<WorkerId, ClusterError> {
        self.kill(name);
        let mut control = lock(&self.0);
        let cluster = control.cluster.clone().ok_or(ClusterError::Closed)?;
        let dispatcher = cluster.dispatcher.upgrade().ok_or(ClusterError::Closed)?;
        let index = control.names.len();
        let known = control.names.entry(name.to_owned());
        let known = known.or_insert(Named {
            incarnation: 0,
            index,
            process: Weak::new(),
            failures: Failures::default(),
            ended: String::new(),
            given_up: false,
            left: false,
            refused: None,
        });
        let id = WorkerId::new(name, known.incarnation + 1);
        let process = launch(&cluster, &dispatcher, id.clone(), known.index).map_err(start_error)?;
        known.incarnation += 1;
        known.process = Arc::downgrade(&process);
        (known.failures, known.given_up, known.left, known.refused) =
            (Failures::default(), false, false, None);
        if mem::take(&mut control.away) {
            drop(control);
            dispatcher.tell(Event::Available);
        }
        Ok(id)
    }

    /// The worker of this name ends the tasks that it has, takes no more, and leaves. It is not started again. Nothing happens if there is none. Does not suspend.
    pub fn drain(&self, name: &str) {
        let control = lock(&self.0);
        let dispatcher = control.cluster.as_ref().and_then(|cluster| cluster.dispatcher.upgrade());
        let id = control.names.get(name).map(|named| WorkerId::new(name, named.incarnation));
        drop(control);
        if let (Some(dispatcher), Some(id)) = (dispatcher, id) {
            dispatcher.drain(&id);
        }
    }

    /// How many messages of workers the coordinator has dropped so far: unreadable ones, and those about a task or an attempt that the worker does not have.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let control = lock(&self.0);
        let dispatcher = control.cluster.as_ref().and_then(|cluster| cluster.dispatcher.upgrade());
        dispatcher.map_or(0, |dispatcher| dispatcher.count_dropped())
    }

    /// Kills the worker of this name. Its tasks run again on others, and this death does not count toward their [limit](crate::ClusterCoordinatorBuilder::max_attempts). It is not started again. Nothing happens if there is none. Does not suspend.
    pub fn kill(&self, name: &str) {
        let process = lock(&self.0).names.get(name).and_then(|named| named.process.upgrade());
        if let Some(process) = process {
            process.kill_for_program();
        }
    }
}

impl Engine for LocalProcesses {
    fn workers_at_start(&self) -> Option<usize> {
        Some(self.workers)
    }

    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError> {
        if worker::is_worker() {
            return Err(start_error("this process is a worker itself: call `worker::entry` first in `main`"));
        }
        let dispatcher = Arc::new(Dispatcher::new(job.events));
        let signatures = job.tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
        let (control, workers, delay) = (self.control.clone(), self.workers, self.start_delay);
        let args_limit = self.args_limit;
        let mut inner = lock(&control.0);
        let old = inner.cluster.as_ref().and_then(|old| old.dispatcher.upgrade());
        if old.is_some_and(|old| old.is_open()) {
            return Err(start_error("a clone of this engine runs already; make another engine"));
        }
        let (weak, settings) = (
            Arc::downgrade(&dispatcher),
            LocalProcesses { control: LocalProcessesControl::default(), ..*self },
        );
        let base = settings.store_dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut store = Files::make(&base).map_err(|error| {
            start_error(format_args!("no directory for large values in {}: {error}", base.display()))
        })?;
        let warnings = settings.warnings.clone();
        let timers = if settings.timers {
            let names = Arc::downgrade(&control.0);
            let server = timers::start(store.dir(), workers, names, warnings.clone());
            Some(server.map_err(|error| start_error(format_args!(
                    "no expiration timers: {error} (their socket is in {}, or in the directory for temporary files if that path is too long: name a shorter one by `store_dir` or TMPDIR, or \
                     ask for `no_timers`)",
                    store.dir().display()
                )))?)
        } else {
            None
        };
        let socket = timers.as_ref().map(|server| server.path().to_owned());
        store.with_timers(timers);
        let store = Arc::new(store);
        let cluster = LocalCluster {
            dispatcher: weak,
            signatures: signatures.collect(),
            settings,
            store: store.dir().to_owned(),
            timers: socket,
            control: Arc::downgrade(&control.0),
        };
        *inner = LocalControl { cluster: Some(cluster), ..LocalControl::default() };
        drop(inner);
        let link = Box::new(LocalLink { dispatcher, store, args_limit });
        let (each, most) = delay;
        let at_once = if each.is_zero() { workers } else { workers.min(1) };
        for number in 0..at_once {
            if let Err(error) = control.add(&format!("worker-{number}")) {
                link.close();
                return Err(error);
            }
        }
        if at_once < workers {
            let later = Arc::downgrade(&control.0);
            let started =
                spawn("start", move || start_later(&later, at_once..workers, each, most, &warnings));
            started.map_err(|error| {
                link.close();
                start_error(error)
            })?;
        }
        Ok(link)
    }
}

impl fmt::Debug for LocalProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalProcesses")
            .field("workers", &self.workers)
            .field("slots", &self.slots)
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalProcessesControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalProcessesControl").finish_non_exhaustive()
    }
}
