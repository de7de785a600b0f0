//! [`Process`]: a worker process, and the three threads that serve it. The head of [`local`](super) says what each does.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebear::timer::local::ENVIRONMENT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::files::Files;
use super::frames::{Inlet, Said, ToWorker, Welcome};
use super::outlet::Outlet;
use super::restart::{left, restart};
use super::{LocalCluster, MARK, ROOM, lock};
use crate::by_task::ByTask;
use crate::dispatch::{Dispatcher, Going, Port};
use crate::engine::{Life, Order, Refused, Report, TaskId, WarningHook, WorkerId, own_program};

/// The way to a worker process.
pub(super) struct Process {
    pub(super) pid: u32,
    pidfd: OwnedFd,
    orders: Outlet,
    /// What it runs; and when each task is to have ended that was told to cancel, or has only so much time. A cancel may come after the answer, and is passed over then.
    running: Mutex<ByTask<Option<Instant>>>,
    grace: Duration,
    /// When it was told to leave.
    stopped: OnceLock<Instant>,
    /// When it had made its resources.
    ready: OnceLock<Instant>,
    /// It has finished a task.
    finished: AtomicBool,
    /// Somebody wanted its end.
    wanted: AtomicBool,
    /// The program has killed it by the control.
    killed: AtomicBool,
    /// Why it cannot work for this coordinator.
    refused: Mutex<Option<String>>,
    warnings: WarningHook,
}

/// Starts a worker process, and its three threads.
pub(super) fn launch(
    cluster: &LocalCluster,
    dispatcher: &Arc<Dispatcher>,
    id: WorkerId,
    index: usize,
) -> io::Result<Arc<Process>> {
    let settings = &cluster.settings;
    let (mine, its) = UnixStream::pair()?;
    let (read, socket) = (mine.try_clone()?, mine.try_clone()?);
    let program = match &settings.program {
        Some(program) => program.clone(),
        None => own_program()?,
    };
    // The threads are there first: a process that exists is always served, and always reaped.
    let (weak, of) = (cluster.dispatcher.clone(), id.clone());
    let (reads, reader) = spawn_for("reader", move |process: Arc<Process>| process.read(read, &weak, &of))?;
    let (writes, _) = spawn_for("writer", |process: Arc<Process>| process.write())?;
    let (weak, again, of) = (cluster.dispatcher.clone(), cluster.clone(), id.clone());
    // Somebody has to know the names while there is a worker to start again.
    let names = cluster.control.upgrade();
    let (watches, _) = spawn_for("watcher", move |(process, child): (Arc<Process>, Child)| {
        let status = watch(&process.pidfd, child);
        // What it has said before its death counts.
        let _ = socket.shutdown(Shutdown::Both);
        let _ = reader.join();
        Files::open(again.store.clone()).forget_process(process.pid);
        let wanted = process.orders.close() || process.wanted.load(Ordering::Relaxed);
        if let Some(dispatcher) = weak.upgrade() {
            let killed = process.killed.load(Ordering::Relaxed);
            dispatcher.gone(&of, if killed { Going::Killed } else { Going::Died });
        }
        if wanted {
            left(&again, &of);
        } else {
            let life = process.life(status);
            if life.ready.is_some() {
                process.warnings.warn(Ended { worker: of.name(), how: &life.how });
            }
            let refused = lock(&process.refused).take();
            restart(&again, &of, &life, refused);
        }
        drop(names);
    })?;
    let mut command = Command::new(&program);
    if let Some(timers) = &cluster.timers {
        command.env(ENVIRONMENT, timers);
    }
    let mut child = command
        .args(&settings.args)
        .env(MARK, fstat(&its)?.st_ino.to_string())
        .stdin(Stdio::from(OwnedFd::from(its)))
        .process_group(0)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
    let pidfd = match pidfd_of(&child) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
    };
    let process = Arc::new(Process {
        pid: child.id(),
        pidfd,
        orders: Outlet::new(mine, settings.args_limit + ROOM),
        running: Mutex::default(),
        grace: settings.cancel_grace,
        stopped: OnceLock::new(),
        ready: OnceLock::new(),
        finished: AtomicBool::new(false),
        wanted: AtomicBool::new(false),
        killed: AtomicBool::new(false),
        refused: Mutex::new(None),
        warnings: settings.warnings.clone(),
    });
    let welcome = Welcome {
        id: id.clone(),
        index,
        tasks: cluster.signatures.clone(),
        grace: settings.cancel_grace,
        store: cluster.store.clone(),
        cache: settings.cache,
    };
    process.orders.put(&welcome);
    process.orders.flush();
    dispatcher.join(id, settings.slots, process.clone());
    // Each of them waits for this.
    let _ = reads.send(process.clone());
    let _ = writes.send(process.clone());
    let _ = watches.send((process.clone(), child));
    Ok(process)
}

/// A thread that begins when it is sent what it works on, and ends if that is never sent.
fn spawn_for<T: Send + 'static>(
    what: &str,
    f: impl FnOnce(T) + Send + 'static,
) -> io::Result<(mpsc::Sender<T>, thread::JoinHandle<()>)> {
    let (send, sent) = mpsc::channel();
    let thread = spawn(what, move || sent.recv().map_or((), f))?;
    Ok((send, thread))
}

pub(super) fn spawn(what: &str, f: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(format!("cluster: {what}")).spawn(f)
}

fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Says that a worker that had begun to work has ended by itself.
struct Ended<'a> {
    worker: &'a str,
    how: &'a str,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ended { worker, how } = self;
        write!(f, "the worker `{worker}` has ended ({how}). It is started again, and its tasks run again.")
    }
}

/// Waits until the worker is dead, kills its group, and reaps it.
fn watch(pidfd: &OwnedFd, mut child: Child) -> io::Result<ExitStatus> {
    let mut dead = [PollFd::new(pidfd, PollFlags::IN)];
    while poll(&mut dead, None) == Err(rustix::io::Errno::INTR) {}
    // The number is its own until it is reaped.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    child.wait()
}

impl Process {
    /// How it was, now that it has ended and all is read that it has said.
    fn life(&self, status: io::Result<ExitStatus>) -> Life {
        Life {
            ready: self.ready.get().map(Instant::elapsed),
            finished: self.finished.load(Ordering::Relaxed),
            busy: !lock(&self.running).is_empty(),
            // There is no server.
            alone: false,
            how: status.map_or_else(|error| error.to_string(), |status| status.to_string()),
        }
    }

    /// The program wants its end, by the control.
    pub(super) fn kill_for_program(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.killed.store(true, Ordering::Relaxed);
        self.kill();
    }

    fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn read(&self, socket: UnixStream, dispatcher: &Weak<Dispatcher>, id: &WorkerId) {
        let (mut reports, mut said) = (Inlet::new(socket), Vec::new());
        loop {
            match reports.receive() {
                Ok(Some(Said::Report(report))) => {
                    match &report {
                        Report::Answer { task, .. } => self.answered(*task),
                        Report::Ready => _ = self.ready.set(Instant::now()),
                        Report::Draining => self.wanted.store(true, Ordering::Relaxed),
                        Report::Progress { .. } | Report::Dump { .. } => {}
                    }
                    said.push(report);
                }
                Ok(Some(Said::Refused { why })) => *lock(&self.refused) = Some(why),
                // With its cluster, a worker that is just starting loses the server of timers. That is no fault.
                Ok(Some(Said::Warns { text })) if dispatcher.upgrade().is_some_and(|of| of.is_open()) => {
                    self.warnings.warn(format_args!("the worker `{id}`: {text}"))
                }
                Ok(Some(Said::Warns { .. })) => {}
                Ok(None) => break,
                Err(error) => {
                    if let Some(dispatcher) = dispatcher.upgrade() {
                        dispatcher.reports(id, said.drain(..));
                    }
                    self.refuse(&error, dispatcher, id);
                    return self.kill();
                }
            }
            // Reports that came together go on together.
            if !reports.has_frame() {
                let Some(dispatcher) = dispatcher.upgrade() else { break };
                dispatcher.reports(id, said.drain(..));
            }
        }
        // It says nothing more: a worker that lives on is none.
        self.kill();
    }

    /// What it has said cannot be read. If that is a matter of versions, the next one would be refused, too.
    fn refuse(&self, error: &io::Error, dispatcher: &Weak<Dispatcher>, id: &WorkerId) {
        if error.kind() != io::ErrorKind::InvalidData {
            return; // it has died in the middle of a message
        }
        if let Some(dispatcher) = dispatcher.upgrade() {
            dispatcher.dropped();
        }
        let refused = error.get_ref().and_then(|error| error.downcast_ref::<Refused>());
        if let Some(Refused::Version { .. }) = refused {
            *lock(&self.refused) = Some(error.to_string());
        } else {
            self.warnings.warn(format_args!("the worker `{id}` is killed for what it has said: {error}"));
        }
    }

    fn answered(&self, task: TaskId) {
        self.finished.store(true, Ordering::Relaxed);
        lock(&self.running).remove(&task);
    }

    /// How long until the next task has to have ended, or the worker to have taken the order to leave. `Err`: one is late.
    fn patience(&self) -> Result<Option<Duration>, ()> {
        let next = lock(&self.running).values().flatten().min().copied();
        let left = self.stopped.get().and_then(|stopped| stopped.checked_add(self.grace));
        let next = [next, left].into_iter().flatten().min();
        match next.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Err(()),
            left => Ok(left),
        }
    }
}

impl Port for Process {
    fn order(&self, order: Order) {
        let within = |time: Duration| Instant::now().checked_add(time)?.checked_add(self.grace);
        let mut wakes = false;
        match &order {
            Order::Run { envelope, .. } => {
                wakes = envelope.time_left.is_some();
                lock(&self.running).insert(envelope.task, envelope.time_left.and_then(within));
            }
            Order::Cancel(task) => {
                wakes = true;
                if let Some(end) = lock(&self.running).get_mut(task) {
                    *end = [*end, within(Duration::ZERO)].into_iter().flatten().min();
                }
            }
            _ => {}
        }
        self.orders.put(&ToWorker::Order(order));
        if wakes {
            self.orders.wake();
        }
    }

    fn flush(&self) {
        self.orders.flush();
    }

    /// The worker's socket ends, and the worker with it.
    fn stop(&self) {
        self.stopped.get_or_init(Instant::now);
        self.orders.close();
    }
}

impl Process {
    /// Sends what could not be sent at once, and kills a worker that is late.
    fn write(&self) {
        let served = self
            .orders
            .serve(|| self.patience())
            .and_then(|()| self.orders.send_last(&ToWorker::Leave, || self.patience()));
        if let Err(None) = served {
            return self.kill();
        }
        self.orders.end();
        // The worker ends by that, unless it is stuck.
        let left = Timespec::try_from(self.grace).ok();
        if poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], left.as_ref()) == Ok(0) {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Envelope;

    #[test]
    fn only_a_task_that_is_late_is_a_reason_to_kill() {
        let (task, grace) = (TaskId(1), Duration::ZERO);
        let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let [finished, wanted, killed] = [const { AtomicBool::new(false) }; 3];
        let process = Process {
            pid: 1,
            pidfd,
            orders: Outlet::new(UnixStream::pair().unwrap().0, super::super::frames::LONGEST),
            running: Mutex::default(),
            grace,
            stopped: OnceLock::new(),
            ready: OnceLock::new(),
            finished,
            wanted,
            killed,
            refused: Mutex::default(),
            warnings: WarningHook::default(),
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
        process.order(Order::Run { envelope: envelope.clone(), attempt: 1 });
        process.order(Order::Cancel(task));
        assert_eq!(process.patience(), Err(()));
        // What it has time for is waited for as long, and a cancel does not make that longer.
        process.answered(task);
        let in_time = |left| Envelope { time_left: Some(left), ..envelope.clone() };
        process.order(Order::Run { envelope: in_time(Duration::from_secs(1_000)), attempt: 1 });
        assert!(matches!(process.patience(), Ok(Some(_))));
        process.order(Order::Cancel(task));
        assert_eq!(process.patience(), Err(()));
        process.order(Order::Run { envelope: in_time(Duration::ZERO), attempt: 2 });
        assert_eq!(process.patience(), Err(()));
    }
}
