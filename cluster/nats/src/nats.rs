//! [`Nats`]: the settings of the engine, and [`NatsControl`], which changes the workers that this process has started.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebear::shield;
use forebear_cluster::ClusterError;
use forebear_cluster::engine::{Engine, Job, Link, MAX_SLOTS, WarningHook, start_error};
use tokio::sync::mpsc::unbounded_channel;

use crate::access::{Access, Tls, Who};
use crate::engine::{FAREWELL, NatsLink, Plan, start};
use crate::launch::{Handover, Launcher, worker_name};
use crate::wire::{Names, Times};

/// The server keeps the lock of a job for so long at most. Its own limit is some centuries, which a duration may exceed.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The engine over NATS JetStream: a `nats-server` carries the tasks, and workers on any machine take them.
///
/// Workers come by [`worker::run`](crate::worker::run). The coordinator can also start some itself, as processes of its own program: [`workers`](Self::workers); their `main` calls
/// [`worker::entry`](crate::worker::entry) first.
///
/// A worker that is silent for a [lease](Self::lease) is gone, and its tasks go to others. If this process has started it, that is seen at once.
///
/// Beyond loopback a server is not connected to without credentials, unless [told so](Self::without_authentication).
///
/// ```no_run
/// use forebear_cluster::{ClusterCoordinator, ClusterError, TaskFn, Tasks, tasks};
/// use forebear_cluster_nats::{Nats, worker};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn known() -> Tasks {
///     tasks![SQUARE]
/// }
///
/// fn main() -> Result<(), ClusterError> {
///     worker::entry(known()); // does not return in a worker
///     let engine = Nats::new("nats://127.0.0.1:4222", "squares").workers(2);
///     let cluster = ClusterCoordinator::builder(engine).tasks(known()).start()?;
///     println!("{}", cluster.schedule(&SQUARE, 7)?.fetch().unwrap());
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Nats {
    access: Access,
    job: String,
    workers: usize,
    slots: u32,
    lease: Duration,
    cancel_grace: Duration,
    connect_timeout: Duration,
    unavailable_after: Duration,
    replicas: usize,
    cache: u64,
    start_delay: (Duration, Duration),
    restarts: u32,
    program: Option<OsString>,
    args: Vec<OsString>,
    warnings: WarningHook,
    control: NatsControl,
}

/// Starts worker processes for a cluster of [`Nats`], and takes them away, while it runs. It knows those that this process has started.
#[derive(Clone, Default)]
pub struct NatsControl(Arc<Mutex<Control>>);

#[derive(Default)]
struct Control {
    launcher: Option<Arc<Launcher>>,
    dropped: Arc<AtomicU64>,
}

impl Nats {
    /// The job of this name on that server: `nats://HOST:PORT`, or `tls://HOST:PORT`; several with commas, if the servers are a cluster. The engine
    /// connects to these and to no others: a server may name more, which it ignores.
    ///
    /// A server has one coordinator for each job at a time. After one that was killed, the next start waits for a [lease](Self::lease). The name has letters, digits, `-` and `_`, at most 64.
    pub fn new(server: &str, job: &str) -> Nats {
        Nats {
            access: Access::new(server),
            job: job.to_owned(),
            workers: 0,
            slots: 1,
            lease: Duration::from_secs(15),
            cancel_grace: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            unavailable_after: Duration::from_secs(10),
            replicas: 1,
            cache: 256 << 20,
            start_delay: (Duration::ZERO, Duration::ZERO),
            restarts: 5,
            program: None,
            args: Vec::new(),
            warnings: WarningHook::default(),
            control: NatsControl::default(),
        }
    }

    /// So many worker processes of this program are started with the cluster, named `worker-0` and so on. None if not told otherwise. No worker from elsewhere can have one of these names while this process keeps
    /// it: it is refused.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Nats {
        self.workers = workers;
        self
    }

    /// Each worker that this process starts runs so many tasks at once. 1 if not told otherwise, and at least; at most [`MAX_SLOTS`].
    #[must_use]
    pub fn slots(mut self, slots: usize) -> Nats {
        self.slots = slots.clamp(1, MAX_SLOTS) as u32;
        self
    }

    /// A worker that says nothing for so long is gone. 15 s if not told otherwise, 100 ms at least.
    ///
    /// What stands still for longer, for instance since its machine sleeps, loses its tasks; they run again elsewhere. A shorter lease finds deaths
    /// sooner, and takes more messages: one for each sixth of it, but at most one each second. A longer lease than a year is taken as a year.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Nats {
        self.lease = lease.clamp(Duration::from_millis(100), LONGEST_LEASE);
        self
    }

    /// A worker process whose task has not ended so long after a cancel, or after the end of its own time, ends itself. Its other tasks run again elsewhere. 10 s if not told otherwise.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Nats {
        self.cancel_grace = grace;
        self
    }

    /// A start without a connection after so long fails. Until then it tries again if there is no server, or none that answers. One try takes five seconds at most. 5 s if not told otherwise.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Nats {
        self.connect_timeout = timeout;
        self
    }

    /// When the server is away for so long, `schedule`, `join` and `done` answer [`ClusterError::Unavailable`] until it is back. 10 s if not told otherwise. A shorter absence
    /// delays them. A server counts as away, too, while it does not let the streams of the job be read, or its lock be renewed: servers that are a cluster may have no leader for
    /// one of these, for seconds or for good. In the second case only another job, or another run of this one, continues. A start waits so long for them to have leaders, and fails then.
    ///
    /// The same holds for tasks that the server refuses for so long, for instance since its store is full. An object that it refuses for so long is an error of the call; one with
    /// the arguments or the result of a task fails that task, as [`FailureKind::Store`](forebear_cluster::FailureKind::Store). So does a record of its end.
    #[must_use]
    pub fn unavailable_after(mut self, after: Duration) -> Nats {
        self.unavailable_after = after;
        self
    }

    /// So many servers of a cluster keep each message: 3, for instance, survive the loss of one. 1 if not told otherwise.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Nats {
        self.replicas = replicas.max(1);
        self
    }

    /// Each worker that this process starts keeps so many bytes of [`Stored`](forebear_cluster::Stored) values that it has read. 256 MiB if not told otherwise.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> Nats {
        self.cache = bytes;
        self
    }

    /// Authenticates by a token.
    #[must_use]
    pub fn token(mut self, token: &str) -> Nats {
        self.access.who = Who::Token(token.to_owned());
        self
    }

    /// Authenticates by a name and a password.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Nats {
        self.access.who = Who::User { name: name.to_owned(), password: password.to_owned() };
        self
    }

    /// Authenticates by a file with a JWT and a key, as `nsc` writes it.
    #[must_use]
    pub fn credentials(mut self, file: impl AsRef<Path>) -> Nats {
        self.access.who = Who::File(file.as_ref().to_owned());
        self
    }

    /// Connects by TLS. The server's certificate is signed by what is in that file.
    #[must_use]
    pub fn tls(mut self, authority: impl AsRef<Path>) -> Nats {
        let own = self.access.tls.take().and_then(|tls| tls.own);
        self.access.tls = Some(Tls { authority: authority.as_ref().to_owned(), own });
        self
    }

    /// Connects without credentials to another machine, too. Any peer that reaches that server can run the program's tasks.
    #[must_use]
    pub fn without_authentication(mut self) -> Nats {
        self.access.open = true;
        self
    }

    /// The workers of the start are not started all at once, but each `each` after the one before, and all within `most`. A start begins with the first one, unless
    /// [`min_workers`](forebear_cluster::ClusterCoordinatorBuilder::min_workers) asks for more. At once if not told otherwise.
    #[must_use]
    pub fn start_delay(mut self, each: Duration, most: Duration) -> Nats {
        self.start_delay = (each, most);
        self
    }

    /// A worker that this process has started and that ends by itself is started again, after a pause that doubles if it ends soon: from 50 ms, up to 6.4 s. After more than so many ends in a row
    /// before it had finished a task it is not. An end with tasks in hand is theirs, and does not count: [`max_attempts`](forebear_cluster::ClusterCoordinatorBuilder::max_attempts) limits those. Nor does an end while
    /// the server is away. Default: 5. With 0 no worker is started again after such an end.
    ///
    /// A worker that is not started again is a [warning](Self::on_warning). If none is left, calls wait on: workers may come from elsewhere, or by [`NatsControl::add`].
    #[must_use]
    pub fn restarts(mut self, restarts: u32) -> Nats {
        self.restarts = restarts;
        self
    }

    /// Another program than this one for the workers. It calls [`worker::entry`](crate::worker::entry) with the same tasks.
    #[must_use]
    pub fn program(mut self, program: impl AsRef<OsStr>) -> Nats {
        self.program = Some(program.as_ref().to_owned());
        self
    }

    /// The arguments of the workers' program. None if not told otherwise.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Nats {
        self.args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        self
    }

    /// Receives warnings, as text for a human reader: which worker cannot be started, is not started again, or cannot join, and why. The hook is called on a thread of the engine and must not wait for the cluster.
    /// Default: they are written to standard error.
    #[must_use]
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Nats {
        self.warnings = WarningHook::new(hook);
        self
    }

    /// What changes the workers of this cluster later on.
    pub fn control(&self) -> NatsControl {
        self.control.clone()
    }
}

impl NatsControl {
    fn lock(&self) -> MutexGuard<'_, Control> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launcher(&self) -> Option<Arc<Launcher>> {
        self.lock().launcher.clone()
    }

    /// Starts a worker process. If there was one of this name, the new one is its next incarnation; if this process has started that one, it is [killed](Self::kill) first. While one
    /// from elsewhere has the name and is heard, the new one waits. From then on the name is kept for it, as those of the [start](Nats::workers): until it is killed, drained or given up, or leaves.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Start`], if the program cannot be started. [`ClusterError::Closed`], if the cluster does not run.
    pub fn add(&self, name: &str) -> Result<(), ClusterError> {
        let launcher =
            self.launcher().filter(|launcher| !launcher.is_closed()).ok_or(ClusterError::Closed)?;
        launcher.start(name).map_err(start_error)
    }

    /// The worker of this name ends what it has, takes no more, and leaves. Nothing happens if this process has not started it, or if it drains already.
    pub fn drain(&self, name: &str) {
        if let Some(launcher) = self.launcher() {
            launcher.drain(name);
        }
    }

    /// Kills the worker of this name. Its tasks run again on others, and this death does not count toward their [limit](forebear_cluster::ClusterCoordinatorBuilder::max_attempts). Nothing happens if this process has not started it.
    pub fn kill(&self, name: &str) {
        if let Some(launcher) = self.launcher() {
            launcher.kill(name);
        }
    }

    /// So many messages were dropped so far: of another version, torn, of another run, of a worker that is gone, or sent twice.
    ///
    /// Some are of no concern: a worker that was declared gone may say something still. That happens after each death, and after each pause of this process, of the server, of the network or of a worker that is longer than a
    /// [lease](Nats::lease): then workers join anew. A count that rises steadily without these means that somebody else writes to the job's subjects.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped.load(Ordering::Relaxed)
    }
}

impl Engine for Nats {
    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError> {
        let names = Names::new(&self.job).ok_or_else(|| {
            start_error(format_args!(
                "`{}` is no name of a job: 1 to 64 letters, digits, `-` and `_`",
                self.job
            ))
        })?;
        let (wishes, taken) = unbounded_channel();
        let handover = Handover {
            access: self.access.clone(),
            job: self.job.clone(),
            name: String::new(),
            slots: self.slots,
            launch: 0,
            grace: self.cancel_grace,
            cache: self.cache,
        };
        let launcher = Arc::new(Launcher::new(
            handover,
            self.restarts,
            self.program.clone(),
            self.args.clone(),
            self.warnings.clone(),
            wishes.clone(),
        ));
        let mut control = self.control.lock();
        if control.launcher.as_ref().is_some_and(|old| !old.is_closed()) {
            return Err(start_error("a clone of this engine runs already; make another engine"));
        }
        let dropped = Arc::new(AtomicU64::new(0));
        *control = Control { launcher: Some(launcher.clone()), dropped: dropped.clone() };
        drop(control);
        let plan = Plan {
            access: self.access,
            names,
            times: Times { patience: self.unavailable_after, ..Times::new(self.lease, self.cancel_grace) },
            replicas: self.replicas,
            connect_timeout: self.connect_timeout,
            unavailable_after: self.unavailable_after,
            // Different in each run, with all the probability that is needed.
            epoch: random(),
            launcher: launcher.clone(),
            dropped,
        };
        launcher.expect((0..self.workers).map(worker_name));
        let (objects, progress, wanted) = start(plan, job, taken).inspect_err(|_| launcher.release_all())?;
        let link = NatsLink { wishes, objects, progress, _wanted: wanted };
        let (each, most) = self.start_delay;
        let at_once = if each.is_zero() { self.workers } else { self.workers.min(1) };
        for number in 0..at_once {
            if let Err(error) = launcher.start(&worker_name(number)) {
                link.close();
                let _ = shield(|| link.wait_closed(FAREWELL));
                return Err(start_error(error));
            }
        }
        launcher.start_later(at_once..self.workers, each, most);
        Ok(Box::new(link))
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("access", &self.access)
            .field("job", &self.job)
            .field("workers", &self.workers)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NatsControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsControl").finish_non_exhaustive()
    }
}
