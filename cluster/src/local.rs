//! [`LocalProcesses`]: worker processes on this machine.
//!
//! # How a worker lives
//!
//! The coordinator starts a program, mostly its own, with one end of a socket pair as standard input. The program calls [`worker::entry`](crate::worker::entry) first, which
//! finds that it is a worker and follows the orders that come in. Messages are frames: a length of four bytes, little end first, and a message of [`engine`](crate::engine) in postcard.
//!
//! Each worker has three threads here:
//!
//! * The *writer* takes orders from a channel, so a [`Port`] never waits. It also kills a worker that does not heed a cancel within the grace.
//! * The *reader* hands reports to the dispatcher. A frame that cannot be read kills the worker.
//! * The *watcher* waits for the pidfd. Then it kills what is left of the process group, reaps the worker, has the reader end, which first hands on what the worker has said,
//!   and tells the dispatcher that the worker is gone. It is the only one who tells so.
//!
//! # A worker that ends by itself
//!
//! It is started again, as the next incarnation, unless somebody wanted its end: a kill or a drain by the control, SIGTERM, or the end of the cluster. The watcher does that, after a pause that doubles each time the worker does not become ready. After a number of
//! such failures in a row its name is *given up*. When all names are, the engine is away: nobody will ever take a task, so calls that wait are answered `Unavailable`.
//!
//! A pidfd names the process and no other, so a kill never hits a stranger. The process group's number cannot be taken again before the worker is reaped.
//!
//! A worker knows by an environment variable that it is one: the number of the socket that is its standard input. It takes that socket away from there, so a program that the
//! worker starts is none.
//! When its socket ends, a worker cancels all, waits at most as long as the grace says, and ends. So no worker outlives its coordinator for longer, however that ends.

mod files;
pub(crate) mod worker;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::files::Files;
use crate::cache::CACHE;
use crate::dispatch::{Dispatcher, Port};
use crate::engine::{Engine, Event, Job, Link, Order, Report, TaskId, WorkerId, start_error};
use crate::error::ClusterError;
use crate::in_process::LocalLink;

/// What says to a program that it is a worker: the inode of the socket that is its standard input.
pub(crate) const MARK: &str = "FOREBEAR_CLUSTER_WORKER";

/// After a first end before it was ready, a worker is started again so much later.
const PAUSE: Duration = Duration::from_millis(50);

/// No frame is longer.
const LONGEST: usize = 1 << 30;

/// The first message to a worker.
#[derive(Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) id: WorkerId,
    pub(crate) index: usize,
    /// The names and types of the coordinator's tasks.
    pub(crate) tasks: Vec<(String, String)>,
    /// How long what runs may take to end when the orders end.
    pub(crate) grace: Duration,
    /// The directory of the objects, and the limit of the cache.
    pub(crate) store: PathBuf,
    pub(crate) cache: u64,
}

/// What a worker is told, after the welcome.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Order(Order),
    /// There are no more orders, since the coordinator wants so. If they end without this, the coordinator is dead.
    Leave,
}

/// What a worker says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    Report(Report),
    /// It has other tasks than the coordinator, and ends.
    Refused {
        why: String,
    },
}

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
#[derive(Clone)]
pub struct LocalProcesses {
    workers: usize,
    slots: usize,
    cancel_grace: Duration,
    restarts: u32,
    start_delay: (Duration, Duration),
    cache: u64,
    store_dir: Option<PathBuf>,
    program: Option<OsString>,
    args: Vec<OsString>,
    control: LocalProcessesControl,
}

/// Adds worker processes to a cluster of [`LocalProcesses`], and takes them away, while it runs.
#[derive(Clone, Default)]
pub struct LocalProcessesControl(Arc<Mutex<Control>>);

#[derive(Default)]
struct Control {
    cluster: Option<Cluster>,
    names: BTreeMap<String, Named>,
    /// All names are given up, and the coordinator knows.
    away: bool,
}

/// The newest worker of a name.
struct Named {
    incarnation: u64,
    index: usize,
    process: Weak<Process>,
    /// So many in a row have ended before they were ready.
    failures: u32,
    given_up: bool,
    /// Why the last one could not work for this coordinator.
    refused: Option<String>,
}

#[derive(Clone)]
struct Cluster {
    dispatcher: Weak<Dispatcher>,
    signatures: Vec<(String, String)>,
    settings: LocalProcesses,
    /// The directory of the objects.
    store: PathBuf,
    control: Weak<Mutex<Control>>,
}

/// The way to a worker process.
struct Process {
    pidfd: OwnedFd,
    orders: Mutex<Option<Sender<Order>>>,
    /// What it runs; and when each task is to have ended that was told to cancel. A cancel may come after the answer, and is passed over then.
    running: Mutex<HashMap<TaskId, Option<Instant>>>,
    grace: Duration,
    /// It has made its resources.
    ready: AtomicBool,
    /// Somebody wanted its end.
    wanted: AtomicBool,
    /// Why it cannot work for this coordinator.
    refused: Mutex<Option<String>>,
}

impl LocalProcesses {
    /// So many worker processes, named `worker-0` and so on. Each runs one task at a time.
    #[must_use]
    pub fn new(workers: usize) -> LocalProcesses {
        LocalProcesses {
            workers,
            slots: 1,
            cancel_grace: Duration::from_secs(10),
            restarts: 5,
            start_delay: (Duration::ZERO, Duration::ZERO),
            cache: CACHE,
            store_dir: None,
            program: None,
            args: Vec::new(),
            control: LocalProcessesControl::default(),
        }
    }

    /// Each worker runs so many tasks at once. 1 if not told otherwise, and at least.
    #[must_use]
    pub fn slots(mut self, slots: usize) -> LocalProcesses {
        self.slots = slots.max(1);
        self
    }

    /// A worker whose task has not ended so long after a cancel is killed. Its other tasks run again elsewhere. 10 s if not told otherwise.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> LocalProcesses {
        self.cancel_grace = grace;
        self
    }

    /// A worker that ends by itself is started again, but not any more when it has ended so many times in a row before it was ready. When that holds for all workers, calls that wait answer
    /// [`ClusterError::Unavailable`]. 5 if not told otherwise, 0: none is started again after such an end.
    #[must_use]
    pub fn restarts(mut self, restarts: u32) -> LocalProcesses {
        self.restarts = restarts;
        self
    }

    /// The workers of the start are not started all at once, but each `each` after the one before, and all within `most`. A start begins with the first one, unless
    /// [`min_workers`](crate::ClusterCoordinatorBuilder::min_workers) asks for more. At once if not told otherwise.
    #[must_use]
    pub fn start_delay(mut self, each: Duration, most: Duration) -> LocalProcesses {
        self.start_delay = (each, most);
        self
    }

    /// Each worker keeps so many bytes of [`Stored`](crate::Stored) values that it has read. 256 MiB if not told otherwise.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> LocalProcesses {
        self.cache = bytes;
        self
    }

    /// Large values are files in a new directory below this one, which is removed with the cluster. The system's temporary directory if not told otherwise.
    #[must_use]
    pub fn store_dir(mut self, dir: impl AsRef<Path>) -> LocalProcesses {
        self.store_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Another program than this one. It calls [`worker::entry`](crate::worker::entry) with the same tasks.
    #[must_use]
    pub fn program(mut self, program: impl AsRef<OsStr>) -> LocalProcesses {
        self.program = Some(program.as_ref().to_owned());
        self
    }

    /// The arguments of the program. None if not told otherwise.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> LocalProcesses {
        self.args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
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
            failures: 0,
            given_up: false,
            refused: None,
        });
        let id = WorkerId::new(name, known.incarnation + 1);
        let process = launch(&cluster, &dispatcher, id.clone(), known.index).map_err(start_error)?;
        known.incarnation += 1;
        known.process = Arc::downgrade(&process);
        (known.failures, known.given_up, known.refused) = (0, false, None);
        if mem::take(&mut control.away) {
            drop(control);
            dispatcher.tell(Event::Available);
        }
        Ok(id)
    }

    /// The worker of this name ends what it has, takes no more, and leaves. Nothing happens if there is none.
    pub fn drain(&self, name: &str) {
        let control = lock(&self.0);
        let dispatcher = control.cluster.as_ref().and_then(|cluster| cluster.dispatcher.upgrade());
        let id = control.names.get(name).map(|named| WorkerId::new(name, named.incarnation));
        drop(control);
        if let (Some(dispatcher), Some(id)) = (dispatcher, id) {
            dispatcher.drain(&id);
        }
    }

    /// Kills the worker of this name. Its tasks run again on others. Nothing happens if there is none.
    pub fn kill(&self, name: &str) {
        let process = lock(&self.0).names.get(name).and_then(|named| named.process.upgrade());
        if let Some(process) = process {
            process.wanted.store(true, Ordering::Relaxed);
            process.kill();
        }
    }
}

/// A worker has ended, and nobody wanted that: starts it again, after a pause if it never was ready. One that was refused would be refused again, and is given up.
fn restart(cluster: &Cluster, id: &WorkerId, was_ready: bool, refused: Option<String>) {
    let Some(shared) = cluster.control.upgrade() else { return };
    let mut control = lock(&shared);
    // A newer one of that name is there.
    let its = |control: &mut Control| {
        control.names.get(id.name()).is_some_and(|n| n.incarnation == id.incarnation())
    };
    if !its(&mut control) {
        return;
    }
    let Some(named) = control.names.get_mut(id.name()) else { return };
    named.failures = match (was_ready, &refused) {
        (true, _) => 0,
        (false, None) => named.failures + 1,
        (false, Some(_)) => u32::MAX,
    };
    named.refused = refused;
    let failures = named.failures;
    if failures > 0 && failures <= cluster.settings.restarts {
        drop(control);
        let (_open, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(PAUSE * (1 << (failures - 1).min(10)));
        control = lock(&shared);
    }
    let Some(dispatcher) = cluster.dispatcher.upgrade().filter(|dispatcher| dispatcher.is_open()) else {
        return;
    };
    if !its(&mut control) {
        return;
    }
    let next = WorkerId::new(id.name(), id.incarnation() + 1);
    let index = control.names.get(id.name()).map_or(0, |named| named.index);
    let again = failures <= cluster.settings.restarts && failures < u32::MAX;
    let process = again.then(|| launch(cluster, &dispatcher, next, index));
    let Some(named) = control.names.get_mut(id.name()) else { return };
    if let Some(Ok(process)) = process {
        named.incarnation += 1;
        named.process = Arc::downgrade(&process);
        return;
    }
    named.given_up = true;
    if control.names.values().all(|named| named.given_up) && !mem::replace(&mut control.away, true) {
        let refused = control.names.iter().find_map(|(name, named)| Some((name, named.refused.clone()?)));
        let reason = match refused {
            Some((name, why)) => format!("no worker can be started; `{name}` was refused: {why}"),
            None => "each worker process has ended again and again before it was ready: see what they wrote"
                .into(),
        };
        drop(control);
        dispatcher.tell(Event::Unavailable { reason });
    }
}

impl Engine for LocalProcesses {
    fn start(self: Box<Self>, job: Job) -> Result<Box<dyn Link>, ClusterError> {
        if worker::is_worker() {
            return Err(start_error("this process is a worker itself: call `worker::entry` first in `main`"));
        }
        let dispatcher = Arc::new(Dispatcher::new(job.events));
        let signatures = job.tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
        let (control, workers, delay) = (self.control.clone(), self.workers, self.start_delay);
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
        let store = Files::make(&base).map_err(|error| {
            start_error(format_args!("no directory for large values in {}: {error}", base.display()))
        })?;
        let store = Arc::new(store);
        let cluster = Cluster {
            dispatcher: weak,
            signatures: signatures.collect(),
            settings,
            store: store.dir().to_owned(),
            control: Arc::downgrade(&control.0),
        };
        *inner = Control { cluster: Some(cluster), ..Control::default() };
        drop(inner);
        let link = Box::new(LocalLink { dispatcher, store });
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
            let started = spawn("start", move || start_later(&later, at_once..workers, each, most));
            started.map_err(|error| {
                link.close();
                start_error(error)
            })?;
        }
        Ok(link)
    }
}

/// Starts the workers of these numbers, each so long after the one before, and all within `most`. Ends with the cluster.
fn start_later(control: &Weak<Mutex<Control>>, workers: Range<usize>, each: Duration, most: Duration) {
    let begun = Instant::now();
    for number in workers {
        let delay = each.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX)).min(most);
        while begun.elapsed() < delay {
            // It looks now and then whether the cluster is still there.
            let (_open, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(delay.saturating_sub(begun.elapsed()).min(Duration::from_secs(1)));
            let Some(control) = control.upgrade() else { return };
            let dispatcher = lock(&control).cluster.as_ref().and_then(|cluster| cluster.dispatcher.upgrade());
            if dispatcher.is_none_or(|dispatcher| !dispatcher.is_open()) {
                return;
            }
        }
        let Some(control) = control.upgrade().map(LocalProcessesControl) else { return };
        if let Err(error) = control.add(&format!("worker-{number}")) {
            eprintln!("forebear-cluster: `worker-{number}` cannot be started: {error}");
        }
    }
}

/// Starts a worker process, and its three threads.
fn launch(
    cluster: &Cluster,
    dispatcher: &Arc<Dispatcher>,
    id: WorkerId,
    index: usize,
) -> io::Result<Arc<Process>> {
    let settings = &cluster.settings;
    let (mine, its) = UnixStream::pair()?;
    let program = match &settings.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.into_os_string(),
    };
    let mut child = Command::new(program)
        .args(&settings.args)
        .env(MARK, fstat(&its)?.st_ino.to_string())
        .stdin(Stdio::from(OwnedFd::from(its)))
        .process_group(0)
        .spawn()?;
    let prepared = pidfd_of(&child).and_then(|pidfd| Ok((pidfd.try_clone()?, pidfd, mine.try_clone()?)));
    let (watched, pidfd, read) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
    };
    let (orders, taken) = mpsc::channel();
    let process = Arc::new(Process {
        pidfd,
        orders: Mutex::new(Some(orders)),
        running: Mutex::default(),
        grace: settings.cancel_grace,
        ready: AtomicBool::new(false),
        wanted: AtomicBool::new(false),
        refused: Mutex::new(None),
    });
    let welcome = Welcome {
        id: id.clone(),
        index,
        tasks: cluster.signatures.clone(),
        grace: settings.cancel_grace,
        store: cluster.store.clone(),
        cache: settings.cache,
    };
    let socket = mine.try_clone()?;
    let (its, weak) = (process.clone(), cluster.dispatcher.clone());
    let of = id.clone();
    let reader = spawn("reader", move || its.read(read, &weak, &of))?;
    let its = Arc::downgrade(&process);
    spawn("writer", move || write(mine, &welcome, &taken, &its))?;
    let (weak, again) = (cluster.dispatcher.clone(), cluster.clone());
    // Somebody has to know the names while there is a worker to start again.
    let names = cluster.control.upgrade();
    dispatcher.join(id.clone(), settings.slots, process.clone());
    let its = process.clone();
    spawn("watcher", move || {
        watch(&watched, child);
        // What it has said before its death counts.
        let _ = socket.shutdown(Shutdown::Both);
        let _ = reader.join();
        let wanted = lock(&its.orders).take().is_none() || its.wanted.load(Ordering::Relaxed);
        if let Some(dispatcher) = weak.upgrade() {
            dispatcher.gone(&id, false);
        }
        if !wanted {
            let refused = lock(&its.refused).take();
            restart(&again, &id, its.ready.load(Ordering::Relaxed), refused);
        }
        drop(names);
    })?;
    Ok(process)
}

fn spawn(what: &str, f: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(format!("cluster: {what}")).spawn(f)
}

fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits until the worker is dead, kills its group, and reaps it.
fn watch(pidfd: &OwnedFd, mut child: Child) {
    let mut dead = [PollFd::new(pidfd, PollFlags::IN)];
    while poll(&mut dead, None) == Err(rustix::io::Errno::INTR) {}
    // The number is its own until it is reaped.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
}

impl Process {
    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn read(&self, mut socket: UnixStream, dispatcher: &Weak<Dispatcher>, id: &WorkerId) {
        loop {
            let report = match receive(&mut socket) {
                Ok(Some(Said::Report(report))) => report,
                Ok(Some(Said::Refused { why })) => {
                    *lock(&self.refused) = Some(why);
                    continue;
                }
                Ok(None) => break,
                Err(_) => return self.kill(),
            };
            match &report {
                Report::Answer { task, .. } => self.answered(*task),
                Report::Ready => self.ready.store(true, Ordering::Relaxed),
                Report::Draining => self.wanted.store(true, Ordering::Relaxed),
                Report::Progress { .. } => {}
            }
            let Some(dispatcher) = dispatcher.upgrade() else { break };
            dispatcher.report(id, report);
        }
        // It says nothing more: a worker that lives on is none.
        self.kill();
    }

    fn answered(&self, task: TaskId) {
        lock(&self.running).remove(&task);
    }

    /// How long until the next task has to have ended. `Err`: one is late.
    fn patience(&self) -> Result<Option<Duration>, ()> {
        let next = lock(&self.running).values().flatten().min().copied();
        match next.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Err(()),
            left => Ok(left),
        }
    }
}

impl Port for Process {
    fn order(&self, order: Order) {
        match &order {
            Order::Run { envelope, .. } => _ = lock(&self.running).insert(envelope.task, None),
            Order::Cancel(task) => {
                if let Some(end) = lock(&self.running).get_mut(task) {
                    *end = Instant::now().checked_add(self.grace);
                }
            }
            _ => {}
        }
        if let Some(orders) = &*lock(&self.orders) {
            let _ = orders.send(order);
        }
    }

    /// The worker's socket ends, and the worker with it.
    fn stop(&self) {
        lock(&self.orders).take();
    }
}

/// Sends orders until there are no more, and kills a worker that is late.
fn write(mut socket: UnixStream, welcome: &Welcome, orders: &Receiver<Order>, process: &Weak<Process>) {
    let mut sent = send(&mut socket, welcome);
    while sent.is_ok() {
        let patience = match process.upgrade() {
            None => break,
            Some(process) => match process.patience() {
                Ok(patience) => patience,
                Err(()) => return process.kill(),
            },
        };
        let order = match patience {
            None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(left) => orders.recv_timeout(left),
        };
        match order {
            Ok(order) => sent = send(&mut socket, &Told::Order(order)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if sent.is_ok() {
        let _ = send(&mut socket, &Told::Leave);
    }
    let _ = socket.shutdown(Shutdown::Write);
    // The worker ends by that, unless it is stuck.
    if let Some(process) = process.upgrade() {
        let left = Timespec::try_from(process.grace).ok();
        if poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], left.as_ref()) == Ok(0) {
            process.kill();
        }
    }
}

/// Writes a frame.
pub(crate) fn send<T: Serialize>(socket: &mut UnixStream, message: &T) -> io::Result<()> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > LONGEST {
        return Err(io::Error::other("a message is too long"));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    socket.write_all(&frame)
}

/// Reads a frame. `None`: there are no more.
pub(crate) fn receive<T: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match socket.read(&mut length)? {
        0 => return Ok(None),
        read => socket.read_exact(&mut length[read..])?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::Error::other("a message is too long"));
    }
    // It grows as the bytes come: a wrong length takes no memory.
    let mut frame = Vec::new();
    if socket.take(length as u64).read_to_end(&mut frame)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&frame).map(Some).map_err(io::Error::other)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Envelope;

    /// What a reader makes of these bytes.
    fn received(bytes: &[u8]) -> io::Result<Option<Said>> {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bytes).unwrap();
        drop(there);
        receive(&mut here)
    }

    #[test]
    fn a_cancel_that_comes_after_the_answer_is_no_reason_to_kill() {
        let (task, grace) = (TaskId(1), Duration::ZERO);
        let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let (ready, wanted) = (AtomicBool::new(true), AtomicBool::new(false));
        let process = Process {
            pidfd,
            orders: Mutex::default(),
            running: Mutex::default(),
            grace,
            ready,
            wanted,
            refused: Mutex::default(),
        };
        let envelope = Envelope {
            job: 1,
            task,
            generation: 0,
            name: "task".into(),
            args: Arc::from([]),
            needs: None,
            max_attempts: 1,
            time_left: None,
        };
        process.order(Order::Run { envelope: envelope.clone(), attempt: 1 });
        assert_eq!(process.patience(), Ok(None));
        process.answered(task);
        process.order(Order::Cancel(task));
        assert_eq!(process.patience(), Ok(None));
        process.order(Order::Run { envelope, attempt: 1 });
        process.order(Order::Cancel(task));
        assert_eq!(process.patience(), Err(()));
    }

    #[test]
    fn frames_that_are_torn_too_long_or_garbage_are_errors() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let report = Said::Report(Report::Progress { task: TaskId(7), thousandths: 250 });
        send(&mut here, &report).unwrap();
        drop(here);
        let mut whole = Vec::new();
        there.read_to_end(&mut whole).unwrap();
        assert_eq!(received(&whole).unwrap(), Some(report));
        assert_eq!(received(&[]).unwrap(), None);
        for end in 1..whole.len() {
            assert!(received(&whole[..end]).is_err(), "torn at {end}");
        }
        assert!(received(&u32::MAX.to_le_bytes()).is_err());
        assert!(received(&(LONGEST as u32).to_le_bytes()).is_err());
        assert!(received(&[1, 0, 0, 0, 99]).is_err());
    }
}
