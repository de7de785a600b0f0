//! chili: `join` with a heartbeat, and nothing else. The calling thread is one of the workers.
//!
//! Flat work is done by halving a range, which is not a spawn a task: read those rows as a parallel loop. By default
//! chili tries to share work only at every 64th join; coarse work and images use its every-join form.

use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use chili::{Config, Scope, ThreadPool};

use crate::load::{How, Load};
use crate::rival::{Rival, Run};
use crate::work;

/// A pool of its own, not the global one.
#[derive(Debug)]
pub struct Chili {
    pool: ThreadPool,
}

impl Chili {
    /// Starts the pool, with the default heartbeat of 100 microseconds.
    #[must_use]
    pub fn start(workers: usize) -> Chili {
        Chili {
            pool: ThreadPool::with_config(Config {
                thread_count: NonZero::new(workers),
                ..Config::default()
            }),
        }
    }
}

fn fib(s: &mut Scope<'_>, n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = s.join(|s| fib(s, n - 1), |s| fib(s, n - 2));
    a + b
}

fn mark(s: &mut Scope<'_>, marks: &[AtomicU8]) {
    match marks {
        [] => {}
        [one] => one.store(1, Relaxed),
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            s.join(|s| mark(s, left), |s| mark(s, right));
        }
    }
}

/// The numbers `first..first + count`, halved down to single ones.
fn each_shared(s: &mut Scope<'_>, first: u64, count: u64, f: fn(u64) -> u64) -> u64 {
    if count == 1 {
        return f(first);
    }
    let half = count / 2;
    let (a, b) = s.join_with_heartbeat_every::<1, _, _, _, _>(
        |s| each_shared(s, first, half, f),
        |s| each_shared(s, first + half, count - half, f),
    );
    a + b
}

/// The same leaves as skynet's tree, in halves.
fn leaves_sum(s: &mut Scope<'_>, first: u64, count: u64) -> u64 {
    if count == 1 {
        return first;
    }
    let half = count / 2;
    let (a, b) = s.join(|s| leaves_sum(s, first, half), |s| leaves_sum(s, first + half, count - half));
    a + b
}

fn nested(s: &mut Scope<'_>, levels: u64) -> u64 {
    if levels == 0 {
        return 0;
    }
    let ((), below) = s.join(|_| (), |s| nested(s, levels - 1));
    below + 1
}

impl Rival for Chili {
    fn run(&self, load: Load) -> Option<Run> {
        if matches!(load, Load::Coarse { .. }) {
            work::pause();
        }
        let mut scope = self.pool.scope();
        let s = &mut scope;
        Some(match load {
            Load::Fib { n, how: How::Join } => Run::timed(|| fib(s, n)),
            Load::SpawnIn { n, .. } => {
                let marks = work::marks(n);
                let mut run = Run::timed(|| {
                    mark(s, marks);
                    0
                });
                run.value = work::marked(marks);
                run
            }
            Load::Skynet { leaves, .. } => Run::timed(|| leaves_sum(s, 0, leaves)),
            Load::Coarse { arms } => Run::timed(|| each_shared(s, 0, arms, |_| work::arm())),
            Load::Depth { levels } => Run::timed(|| nested(s, levels)),
            Load::TreeDog { tasks } => Run::timed(|| each_shared(s, 0, tasks, work::image::task)),
            _ => return None,
        })
    }
}
