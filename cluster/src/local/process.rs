//! [`Process`]: a worker process, and the three threads that serve it. The head of [`local`](super) says what each does.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::frames::{Said, Told, Welcome, receive, send};
use super::restart::restart;
use super::{Cluster, MARK, lock};
use crate::dispatch::{Dispatcher, Port};
use crate::engine::{Order, Report, TaskId, WorkerId};

/// The way to a worker process.
pub(super) struct Process {
    pidfd: OwnedFd,
    orders: Mutex<Option<Sender<Order>>>,
    /// What it runs; and when each task is to have ended that was told to cancel. A cancel may come after the answer, and is passed over then.
    running: Mutex<HashMap<TaskId, Option<Instant>>>,
    grace: Duration,
    /// It has made its resources.
    ready: AtomicBool,
    /// Somebody wanted its end.
    pub(super) wanted: AtomicBool,
    /// Why it cannot work for this coordinator.
    refused: Mutex<Option<String>>,
}

/// Starts a worker process, and its three threads.
pub(super) fn launch(
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

pub(super) fn spawn(what: &str, f: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
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
    pub(super) fn kill(&self) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Envelope;

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
}
