//! forte: `join` and scopes with a heartbeat. A task cannot suspend. The calling thread is one of the workers.
//!
//! Its pool is a static; the number of workers is that of the last start.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forte::{ThreadPool, Worker};

use crate::load::{How, Load};
use crate::rival::{Rival, Run};
use crate::work;

static POOL: ThreadPool = ThreadPool::new();

/// The pool in the static.
#[derive(Debug)]
pub struct Forte;

impl Forte {
    /// Gives the pool one thread fewer than workers: the caller is the last.
    #[must_use]
    pub fn start(workers: usize) -> Forte {
        POOL.resize_to(workers.saturating_sub(1));
        Forte
    }
}

impl Drop for Forte {
    fn drop(&mut self) {
        POOL.depopulate();
    }
}

fn fib(w: &Worker, n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = w.join(|w| fib(w, n - 1), |w| fib(w, n - 2));
    a + b
}

fn tree(w: &Worker, first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let mut sums = [0; 10];
    let part = leaves / 10;
    w.scope(|s| {
        for (i, sum) in (0..).zip(&mut sums) {
            s.spawn(move |w: &Worker| *sum = tree(w, first + i * part, part));
        }
    });
    sums.iter().sum()
}

fn halves(w: &Worker, arms: u64) -> u64 {
    if arms == 1 {
        return work::arm();
    }
    let (a, b) = w.join(|w| halves(w, arms / 2), |w| halves(w, arms - arms / 2));
    a + b
}

fn nested(w: &Worker, levels: u64) -> u64 {
    if levels == 0 {
        return 0;
    }
    let mut below = 0;
    let into = &mut below;
    w.scope(|s| s.spawn(move |w: &Worker| *into = nested(w, levels - 1)));
    below + 1
}

fn load_on(w: &Worker, load: Load) -> Option<Run> {
    Some(match load {
        Load::Fib { n, how: How::Join } => Run::timed(|| fib(w, n)),
        Load::SpawnIn { n, how: How::Scope } => {
            let marks = work::marks(n);
            let mut run = Run::timed(|| {
                w.scope(|s| marks.iter().for_each(|mark| s.spawn(|_: &Worker| mark.store(1, Relaxed))));
                0
            });
            run.value = work::marked(marks);
            run
        }
        Load::SpawnWaitOne { n, .. } => Run::timed(|| {
            let mut sum = 0;
            for i in 0..n {
                let mut one = 0;
                let into = &mut one;
                w.scope(|s| s.spawn(move |_: &Worker| *into = work::one(i)));
                sum += one;
            }
            sum
        }),
        Load::Skynet { leaves, .. } => Run::timed(|| tree(w, 0, leaves)),
        Load::Coarse { arms } => Run::timed(|| halves(w, arms)),
        Load::Depth { levels } => Run::timed(|| nested(w, levels)),
        Load::TreeDog { tasks } => Run::timed(|| {
            let sum = AtomicU64::new(0);
            let into = &sum;
            w.scope(|s| {
                for index in 0..tasks {
                    s.spawn(move |_: &Worker| _ = into.fetch_add(work::image::task(index), Relaxed));
                }
            });
            sum.into_inner()
        }),
        _ => return None,
    })
}

impl Rival for Forte {
    fn run(&self, load: Load) -> Option<Run> {
        if matches!(load, Load::Coarse { .. }) {
            work::pause();
        }
        POOL.with_worker(|w| load_on(w, load))
    }
}
