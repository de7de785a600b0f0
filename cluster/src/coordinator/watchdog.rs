//! The watchdog: a thread that tells a hook when tasks are scheduled and none has ended for a while.
//!
//! It looks once in each period, and reports if the count of ended tasks is the same as at the last look, again in each period. It ends with the coordinator.

use std::fmt;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::{Shared, WorkerDump};
use crate::engine::{WorkerId, WorkerState, WorkerStatus};

/// So many workers are asked what they do, those that run the oldest tasks first.
const ASKED: usize = 16;
/// Their answers are waited for in this time; in the period, if that is longer and not too long.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What a watchdog reports: see [`ClusterCoordinatorBuilder::watchdog`](crate::ClusterCoordinatorBuilder::watchdog). Its text has a line for each task that runs.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Stall, TaskFn, tasks};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let (send, stalls) = mpsc::channel();
/// let nobody = ClusterCoordinator::builder(InProcess::new(0)).min_workers(0).tasks(tasks![NEXT]);
/// let hook = move |stall: &Stall| _ = send.send((stall.queued, stall.workers.len()));
/// let cluster = nobody.watchdog(Duration::from_millis(1), hook).start()?;
/// let _value = cluster.schedule(&NEXT, 1)?;
/// assert_eq!(stalls.recv(), Ok((1, 0))); // a queue, and no worker
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// For how many periods in a row no task has ended.
    pub periods: u32,
    /// Tasks that wait for a worker.
    pub queued: usize,
    /// Tasks that workers have, the oldest first.
    pub running: Vec<StalledTask>,
    /// The workers, as [`ClusterCoordinator::workers`](crate::ClusterCoordinator::workers).
    pub workers: Vec<WorkerStatus>,
    /// What the workers do that run the oldest tasks, at most 16 of them; if none runs, what others do.
    pub dumps: Vec<WorkerDump>,
}

/// A task that runs while none ends.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Stall, TaskFn, tasks};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// const NEVER: TaskFn<(), ()> = TaskFn::new("never", |_, ()| Ok(forebear::time::sleep(Duration::MAX)?));
///
/// let (send, stalled) = mpsc::channel();
/// let builder = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEVER]);
/// let hook = move |stall: &Stall| stall.running.iter().for_each(|task| _ = send.send(task.clone()));
/// let cluster = builder.watchdog(Duration::from_millis(1), hook).start()?;
/// cluster.schedule(&NEVER, ())?;
/// let task = stalled.recv().unwrap();
/// assert_eq!((&*task.name, task.worker.name(), task.attempt), ("never", "worker-0", 1));
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StalledTask {
    /// The name of its function.
    pub name: Arc<str>,
    /// The worker that runs it.
    pub worker: WorkerId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// For how long this attempt has run.
    pub ran: Duration,
}

impl Stall {
    /// The workers to ask.
    fn suspects(&self) -> Vec<WorkerId> {
        let mut suspects: Vec<WorkerId> = Vec::new();
        let there = self.workers.iter().filter(|worker| worker.state != WorkerState::Gone);
        let run = self.running.iter().map(|task| &task.worker);
        let all: Vec<&WorkerId> = match self.running[..] {
            [] => there.map(|worker| &worker.id).collect(),
            _ => run.collect(),
        };
        for id in all {
            if suspects.len() < ASKED && !suspects.contains(id) {
                suspects.push(id.clone());
            }
        }
        suspects
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers.len();
        write!(
            f,
            "no task has ended for {} periods: {} are queued, {} run on {workers} workers",
            self.periods,
            self.queued,
            self.running.len()
        )?;
        for task in &self.running {
            write!(
                f,
                "\n  `{}` on {}, attempt {}, for {:.1?}",
                task.name, task.worker, task.attempt, task.ran
            )?;
        }
        self.dumps.iter().try_for_each(|dump| write!(f, "\n{dump}"))
    }
}

pub(super) type Hook = Box<dyn Fn(&Stall) + Send + Sync>;

/// Starts the thread. It ends when what this returns is dropped.
pub(super) fn start(shared: Weak<Shared>, period: Duration, hook: Hook) -> io::Result<Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    thread::Builder::new().name("cluster: watchdog".into()).spawn(move || {
        let (mut ended, mut periods) = (None, 0);
        while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            let Some(shared) = shared.upgrade() else { return };
            let (now, mut stall) = shared.board.stall();
            let still = ended.replace(now) == Some(now) && !(stall.running.is_empty() && stall.queued == 0);
            periods = if still { periods + 1 } else { 0 };
            if still {
                stall.periods = periods;
                // It is closed just now.
                let dumps = shared.ask(&stall.suspects(), period.clamp(PATIENCE.0, PATIENCE.1));
                drop(shared);
                stall.dumps = dumps.unwrap_or_default();
                hook(&stall);
            }
        }
    })?;
    Ok(stop)
}
