//! No runtime: the same work as plain calls on the caller's thread. A bound, not a rival.

use std::hint::black_box;

use crate::load::Load;
use crate::rival::{Rival, Run};
use crate::work;

/// Plain calls.
#[derive(Debug)]
pub struct Single;

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    fib(n - 1) + fib(n - 2)
}

fn tree(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return black_box(first);
    }
    (0..10).map(|i| tree(first + i * (leaves / 10), leaves / 10)).sum()
}

impl Rival for Single {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Fib { n, .. } => Run::timed(|| black_box(fib(black_box(n)))),
            Load::Skynet { leaves, .. } => Run::timed(|| tree(0, leaves)),
            Load::Coarse { arms } => {
                work::pause();
                Run::timed(|| (0..arms).map(|_| work::arm()).sum())
            }
            Load::TreeDog { tasks } => Run::timed(|| (0..tasks).map(work::image::task).sum()),
            _ => return None,
        })
    }
}
