//! tokio: the multi-thread runtime, a spawned task wherever forebear has a request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::Instant;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet, spawn, yield_now};

use crate::load::{Across, How, Load};
use crate::rival::{Job, Rival, Run, Spawn};
use crate::work::{self, Memory};

mod ending;
mod sync;
mod time;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A runtime without the driver for sockets, and without that for time unless time is measured.
#[derive(Debug)]
pub struct Tokio {
    runtime: Runtime,
    workers: usize,
}

impl Tokio {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Tokio {
        Tokio {
            runtime: Builder::new_multi_thread().worker_threads(workers).build().expect("tokio's runtime"),
            workers,
        }
    }

    /// Another one, with the driver for time.
    fn with_time(&self) -> Tokio {
        let runtime = Builder::new_multi_thread().worker_threads(self.workers).enable_time().build();
        Tokio { runtime: runtime.expect("tokio's runtime"), workers: self.workers }
    }

    /// Runs the future on a worker; blocks until it is over.
    fn inside<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let task = self.runtime.spawn(future);
        self.runtime.block_on(task).expect("a task panicked")
    }
}

async fn sum(tasks: Vec<JoinHandle<u64>>) -> u64 {
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("a task panicked");
    }
    sum
}

fn fib(n: u64) -> Boxed<u64> {
    Box::pin(async move {
        if n < 2 {
            return n;
        }
        let other = spawn(fib(n - 1));
        let mine = fib(n - 2).await;
        mine + other.await.expect("a task panicked")
    })
}

fn tree(first: u64, leaves: u64) -> Boxed<u64> {
    Box::pin(async move {
        if leaves == 1 {
            return first;
        }
        let part = leaves / 10;
        sum((0..10).map(|i| spawn(tree(first + i * part, part))).collect()).await
    })
}

fn parts(leaves: u64, micros: u64) -> Boxed<u64> {
    Box::pin(async move {
        if leaves == 1 {
            return work::leaf(micros);
        }
        let other = spawn(parts(leaves - leaves / 2, micros));
        let mine = parts(leaves / 2, micros).await;
        mine + other.await.expect("a task panicked")
    })
}

fn nested(levels: u64) -> Boxed<u64> {
    Box::pin(async move {
        if levels == 0 {
            return 0;
        }
        spawn(nested(levels - 1)).await.expect("a task panicked") + 1
    })
}

/// The loop keeps the bound: tokio offers none.
async fn members(n: u64, bound: usize) -> u64 {
    let (mut set, mut begun, mut sum) = (JoinSet::new(), 0, 0);
    loop {
        while begun < n && set.len() < bound {
            set.spawn(async { 1_u64 });
            begun += 1;
        }
        match set.join_next().await {
            Some(one) => sum += one.expect("a task panicked"),
            None => return sum,
        }
    }
}

async fn mark(it: &'static AtomicU8) -> u64 {
    it.store(1, Relaxed);
    0
}

async fn turns(tasks: u64, yields: u64) -> u64 {
    let turn = || async move {
        for _ in 0..yields {
            yield_now().await;
        }
        yields
    };
    sum((0..tasks).map(|_| spawn(turn())).collect()).await
}

async fn suspend(n: u64, scattered: bool) -> Run {
    let gates: Vec<_> = (0..if scattered { 1000 } else { 1 }).map(|_| Arc::new(Notify::new())).collect();
    let parked = Arc::new(AtomicU64::new(0));
    let (before, start) = (Memory::now(), Instant::now());
    let mut tasks = Vec::with_capacity(n as usize);
    for gate in gates.iter().cycle().take(n as usize) {
        let (gate, parked) = (gate.clone(), parked.clone());
        tasks.push(spawn(async move {
            let mut opened = std::pin::pin!(gate.notified());
            opened.as_mut().enable();
            parked.fetch_add(1, AcqRel);
            opened.await;
            1
        }));
    }
    while parked.load(Acquire) < n {
        yield_now().await;
    }
    let create = start.elapsed();
    let figures = Memory::figures(before, Memory::now(), n, create);
    let wake = Run::timed_async(async {
        gates.iter().for_each(|gate| gate.notify_waiters());
        sum(tasks).await
    });
    Run { figures, ..wake.await }
}

/// No task runs meanwhile: the only worker makes them.
async fn queued(n: u64) -> Run {
    let (before, start) = (Memory::now(), Instant::now());
    let mut future = 0;
    let all: Vec<JoinHandle<u64>> = (0..n)
        .map(|i| {
            let work = work::two_words(i);
            let work = async move { work() };
            // Less the byte, a word with its alignment, in which a future keeps how far it is.
            future = size_of_val(&work) - size_of::<u64>();
            spawn(work)
        })
        .collect();
    let figures = Memory::bare(before, n, future, size_of::<JoinHandle<u64>>());
    Run { value: sum(all).await, elapsed: start.elapsed(), figures }
}

impl Rival for Tokio {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Switch { tasks, yields, calls: 0 } => self.inside(Run::timed_async(turns(tasks, yields))),
            Load::Fib { n, how: How::Join | How::Value } => self.inside(Run::timed_async(fib(n))),
            Load::Set { n } => self.inside(Run::timed_async(async move {
                let mut set: JoinSet<u64> = (0..n).map(|i| async move { work::one(i) }).collect();
                let mut sum = 0;
                while let Some(one) = set.join_next().await {
                    sum += one.expect("a task panicked");
                }
                sum
            })),
            Load::SpawnIn { n, .. } => {
                let marks = work::marks(n);
                let mut run = self.inside(Run::timed_async(async move {
                    sum(marks.iter().map(|it| spawn(mark(it))).collect()).await
                }));
                run.value = work::marked(marks);
                run
            }
            Load::PoolMember { n, bound, inside } => {
                let members = Run::timed_async(members(n, bound));
                if inside { self.inside(members) } else { self.runtime.block_on(members) }
            }
            Load::SpawnOut { n, .. } => {
                let marks = work::marks(n);
                let mut run = Run::timed(|| {
                    let tasks = marks.iter().map(|it| self.runtime.spawn(mark(it))).collect();
                    self.runtime.block_on(sum(tasks))
                });
                run.value = work::marked(marks);
                run
            }
            Load::SpawnWaitOne { n, how: How::Value } => self.inside(Run::timed_async(async move {
                let mut sum = 0;
                for i in 0..n {
                    sum += spawn(async move { work::one(i) }).await.expect("a task panicked");
                }
                sum
            })),
            Load::Skynet { leaves, .. } => self.inside(Run::timed_async(tree(0, leaves))),
            Load::Coarse { arms } => {
                work::pause();
                self.inside(Run::timed_async(async move {
                    sum((0..arms).map(|_| spawn(async { work::arm() })).collect()).await
                }))
            }
            Load::Suspended { n, scattered } => self.inside(suspend(n, scattered)),
            Load::Queued { n } => self.inside(queued(n)),
            Load::Cancel { suspended, queued } => self.inside(ending::cancel_all(suspended, queued)),
            Load::CancelAt { n, stand } => self.with_time().inside(ending::cancel_at(n, stand)),
            Load::CancelSome { among, victims } => self.inside(ending::cancel_some(among, victims)),
            Load::Callbacks { n, each } => self.inside(ending::callbacks(n, each)),
            Load::Lock { n } => self.inside(sync::alone(n)),
            Load::LockContended { tasks, each } => self.inside(sync::contended(tasks, each, false)),
            Load::LockYield { tasks, each } => self.inside(sync::contended(tasks, each, true)),
            Load::Contend { of, many, sections } => sync::contend(&self.runtime, of, many, sections),
            Load::HandOver { n, of } => return sync::hand_over(&self.runtime, n, of),
            Load::PingPong { n, across: Across::One } => self.inside(sync::ping_pong(n)),
            Load::PingPong { n, across } => sync::ping_pong_across(n, across),
            Load::Mpsc { senders, each, capacity } => self.inside(sync::mpsc(senders, each, capacity)),
            Load::Oneshot { n, spawned } => self.inside(sync::oneshots(n, spawned)),
            Load::Timer { tasks, each, standing } => self.timers(tasks, each, standing),
            Load::Timeouts { n } => self.met(n),
            Load::Sleepers { n, spread_ms } => self.sleepers(n, spread_ms),
            Load::Urgent { urgent, spread_ms, leaves, micros, apart } => {
                self.urgent(urgent, spread_ms, (leaves, micros), apart)
            }
            Load::Depth { levels } => self.inside(Run::timed_async(nested(levels))),
            Load::TreeDog { tasks } => self.inside(Run::timed_async(async move {
                sum((0..tasks).map(|index| spawn(async move { work::image::task(index) })).collect()).await
            })),
            _ => return None,
        })
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        Some(Arc::new(Spawner(self.runtime.handle().clone())))
    }
}

struct Spawner(Handle);

impl Spawn for Spawner {
    fn spawn(&self, job: Job) {
        self.0.spawn(async { job() });
    }

    fn workers(&self) -> usize {
        self.0.metrics().num_workers()
    }
}
