//! smol's parts: async-executor in its static form, a thread a worker that drives it, a task wherever forebear has a
//! request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use async_executor::{StaticExecutor, Task};
use event_listener::{Event, EventListener};
use futures_lite::future::{block_on, yield_now};

use crate::load::{Across, How, Load};
use crate::rival::{Job, Rival, Run, Spawn};
use crate::work::{self, Memory};

mod sync;
mod time;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

static EXECUTOR: StaticExecutor = StaticExecutor::new();

/// The executor in the static, and the threads that drive it.
#[derive(Debug)]
pub struct Smol {
    stop: Arc<Event>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Smol {
    /// Starts the threads.
    #[must_use]
    pub fn start(workers: usize) -> Smol {
        let (stop, stopped) = (Arc::new(Event::new()), Arc::new(AtomicBool::new(false)));
        let threads = (0..workers).map(|_| {
            let (stop, stopped) = (stop.clone(), stopped.clone());
            thread::spawn(move || {
                block_on(EXECUTOR.run(async move {
                    let told = stop.listen();
                    if !stopped.load(Acquire) {
                        told.await;
                    }
                }));
            })
        });
        let threads = threads.collect();
        Smol { stop, stopped, threads }
    }

    /// Runs the future on one of the threads; blocks until it is over.
    fn inside<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        block_on(spawn(future))
    }
}

impl Drop for Smol {
    fn drop(&mut self) {
        self.stopped.store(true, Release);
        self.stop.notify(usize::MAX);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nothing to add in a destructor.
            let _ = thread.join();
        }
    }
}

fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Task<T> {
    EXECUTOR.spawn(future)
}

async fn sum(tasks: Vec<Task<u64>>) -> u64 {
    let mut sum = 0;
    for task in tasks {
        sum += task.await;
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
        mine + other.await
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

fn nested(levels: u64) -> Boxed<u64> {
    Box::pin(async move {
        if levels == 0 {
            return 0;
        }
        spawn(nested(levels - 1)).await + 1
    })
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
    let gates: Vec<_> = (0..if scattered { 1000 } else { 1 }).map(|_| Arc::new(Event::new())).collect();
    let parked = Arc::new(AtomicU64::new(0));
    let (before, start) = (Memory::now(), Instant::now());
    let mut tasks = Vec::with_capacity(n as usize);
    for gate in gates.iter().cycle().take(n as usize) {
        let (gate, parked) = (gate.clone(), parked.clone());
        tasks.push(spawn(async move {
            let opened: EventListener = gate.listen();
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
        gates.iter().for_each(|gate| _ = gate.notify(usize::MAX));
        sum(tasks).await
    });
    Run { figures, ..wake.await }
}

/// No task runs meanwhile: the only worker makes them.
async fn queued(n: u64) -> Run {
    let (before, start) = (Memory::now(), Instant::now());
    let mut future = 0;
    let all: Vec<Task<u64>> = (0..n)
        .map(|i| {
            let work = work::two_words(i);
            let work = async move { work() };
            // Less the byte, a word with its alignment, in which a future keeps how far it is.
            future = size_of_val(&work) - size_of::<u64>();
            spawn(work)
        })
        .collect();
    let figures = Memory::bare(before, n, future, size_of::<Task<u64>>());
    Run { value: sum(all).await, elapsed: start.elapsed(), figures }
}

impl Rival for Smol {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Switch { tasks, yields, calls: 0 } => self.inside(Run::timed_async(turns(tasks, yields))),
            Load::Fib { n, how: How::Join | How::Value } => self.inside(Run::timed_async(fib(n))),
            Load::SpawnIn { n, .. } => {
                let marks = work::marks(n);
                let mut run = self.inside(Run::timed_async(async move {
                    sum(marks.iter().map(|it| spawn(mark(it))).collect()).await
                }));
                run.value = work::marked(marks);
                run
            }
            Load::SpawnOut { n, .. } => {
                let marks = work::marks(n);
                let mut run = Run::timed(|| {
                    let tasks = marks.iter().map(|it| spawn(mark(it))).collect();
                    block_on(sum(tasks))
                });
                run.value = work::marked(marks);
                run
            }
            Load::SpawnWaitOne { n, how: How::Value } => self.inside(Run::timed_async(async move {
                let mut sum = 0;
                for i in 0..n {
                    sum += spawn(async move { work::one(i) }).await;
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
            Load::Lock { n } => self.inside(sync::alone(n)),
            Load::LockContended { tasks, each } => self.inside(sync::contended(tasks, each, false)),
            Load::LockYield { tasks, each } => self.inside(sync::contended(tasks, each, true)),
            Load::PingPong { n, across: Across::One } => self.inside(sync::ping_pong(n)),
            Load::PingPong { n, across } => sync::ping_pong_across(n, across),
            Load::Mpsc { senders, each, capacity } => self.inside(sync::mpsc(senders, each, capacity)),
            Load::Oneshot { n, spawned } => self.inside(sync::oneshots(n, spawned)),
            Load::Timer { tasks, each, standing } => self.inside(time::timers(tasks, each, standing)),
            Load::Timeouts { n } => self.inside(time::met(n)),
            Load::Sleepers { n, spread_ms } => self.inside(time::sleepers(n, spread_ms)),
            Load::Depth { levels } => self.inside(Run::timed_async(nested(levels))),
            Load::TreeDog { tasks } => self.inside(Run::timed_async(async move {
                sum((0..tasks).map(|index| spawn(async move { work::image::task(index) })).collect()).await
            })),
            _ => return None,
        })
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        Some(Arc::new(Spawner(self.threads.len())))
    }
}

struct Spawner(usize);

impl Spawn for Spawner {
    fn spawn(&self, job: Job) {
        spawn(async { job() }).detach();
    }

    fn workers(&self) -> usize {
        self.0
    }
}
