//! rayon: `join`, and scopes. A task cannot suspend.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use rayon::{Scope, ThreadPool, ThreadPoolBuilder, join, scope};

use crate::load::{How, Load};
use crate::rival::{Job, Rival, Run, Spawn};
use crate::work;
use crate::work::graph::Graph;

/// A pool of its own, not the global one.
#[derive(Debug)]
pub struct Rayon {
    pool: Arc<ThreadPool>,
}

impl Rayon {
    /// Starts the pool.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Rayon {
        let pool = ThreadPoolBuilder::new().num_threads(workers).build().expect("rayon's pool");
        Rayon { pool: Arc::new(pool) }
    }
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib(n - 1), || fib(n - 2));
    a + b
}

fn tree(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let mut sums = [0; 10];
    let part = leaves / 10;
    scope(|s| {
        for (i, sum) in (0..).zip(&mut sums) {
            s.spawn(move |_| *sum = tree(first + i * part, part));
        }
    });
    sums.iter().sum()
}

fn halves(arms: u64) -> u64 {
    if arms == 1 {
        return work::arm();
    }
    let (a, b) = join(|| halves(arms / 2), || halves(arms - arms / 2));
    a + b
}

fn parts(leaves: u64, micros: u64) -> u64 {
    if leaves == 1 {
        return work::leaf(micros);
    }
    let (a, b) = join(|| parts(leaves / 2, micros), || parts(leaves - leaves / 2, micros));
    a + b
}

/// A thread of its own sleeps until the next instant, and spawns what is due: a task of rayon's cannot sleep.
#[allow(clippy::disallowed_methods, reason = "the instants are the load")]
fn spawn_when_due(pool: &ThreadPool, due: &[Instant]) -> Vec<u64> {
    let (late, all) = mpsc::channel();
    let mut order = due.to_vec();
    order.sort_unstable();
    for due in order {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let late = late.clone();
        pool.spawn(move || late.send(work::lateness(due)).expect("it is received below"));
    }
    drop(late);
    all.iter().collect()
}

/// One scope inside the other; a waiting thread runs other tasks on top of its own stack.
fn nested(levels: u64) -> u64 {
    if levels == 0 {
        return 0;
    }
    let mut below = 0;
    scope(|s: &Scope<'_>| s.spawn(|_| below = nested(levels - 1)));
    below + 1
}

impl Rival for Rayon {
    fn run(&self, load: Load) -> Option<Run> {
        let pool = &self.pool;
        Some(match load {
            Load::Fib { n, .. } => pool.install(|| Run::timed(|| fib(n))),
            Load::SpawnIn { n, how: How::Scope } => {
                let marks = work::marks(n);
                let all =
                    |s: &Scope<'static>| marks.iter().for_each(|mark| s.spawn(|_| mark.store(1, Relaxed)));
                let mut run = pool.install(|| {
                    Run::timed(|| {
                        scope(all);
                        0
                    })
                });
                run.value = work::marked(marks);
                run
            }
            Load::SpawnOut { n, how: How::Scope } => {
                let marks = work::marks(n);
                let all =
                    |s: &Scope<'static>| marks.iter().for_each(|mark| s.spawn(|_| mark.store(1, Relaxed)));
                let mut run = Run::timed(|| {
                    pool.in_place_scope(all);
                    0
                });
                run.value = work::marked(marks);
                run
            }
            Load::SpawnWaitOne { n, .. } => pool.install(|| {
                Run::timed(|| {
                    let mut sum = 0;
                    for i in 0..n {
                        let mut one = 0;
                        scope(|s| s.spawn(|_| one = work::one(i)));
                        sum += one;
                    }
                    sum
                })
            }),
            Load::Skynet { leaves, .. } => pool.install(|| Run::timed(|| tree(0, leaves))),
            Load::Graph { shape, micros, .. } => {
                let (graph, workers) = (Graph::of(shape), pool.current_num_threads());
                let level = |level: &Vec<u32>| level.par_iter().for_each(|&i| graph.run(i, micros));
                pool.install(|| graph.timed(workers, micros, || graph.levels.iter().for_each(level)))
            }
            Load::Coarse { arms } => {
                work::pause();
                pool.install(|| Run::timed(|| halves(arms)))
            }
            Load::Depth { levels } => pool.install(|| Run::timed(|| nested(levels))),
            Load::Urgent { urgent, spread_ms, leaves, micros, apart: false } => {
                let due = work::instants(urgent, spread_ms);
                thread::scope(|s| {
                    let late = s.spawn(|| spawn_when_due(pool, &due));
                    let run = pool.install(|| Run::timed(|| parts(leaves, micros)));
                    work::beside(run, &due, late.join().expect("the timer's thread panicked"))
                })
            }
            Load::TreeDog { tasks } => pool.install(|| {
                Run::timed(|| {
                    let sum = AtomicU64::new(0);
                    scope(|s| {
                        for index in 0..tasks {
                            let sum = &sum;
                            s.spawn(move |_| _ = sum.fetch_add(work::image::task(index), Relaxed));
                        }
                    });
                    sum.into_inner()
                })
            }),
            _ => return None,
        })
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        Some(Arc::new(Spawner(self.pool.clone())))
    }
}

struct Spawner(Arc<ThreadPool>);

impl Spawn for Spawner {
    fn spawn(&self, job: Job) {
        self.0.spawn(job);
    }

    fn workers(&self) -> usize {
        self.0.current_num_threads()
    }
}
