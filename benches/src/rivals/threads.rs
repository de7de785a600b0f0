//! std's threads: one for each task where that is feasible. For image work: a thread for each core, and a shared
//! counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};
use std::thread;

use crate::load::{Across, Handed, How, Load};
use crate::rival::{Rival, Run};
use crate::work;

pub(super) mod sync;

/// Threads, without a pool.
#[derive(Debug)]
pub struct Threads {
    workers: usize,
}

impl Threads {
    /// Only remembers how many threads the hand-written pool may have.
    #[must_use]
    pub fn start(workers: usize) -> Threads {
        Threads { workers }
    }

    /// `workers` threads, the caller being one, take numbers from one counter.
    pub(super) fn each(&self, tasks: u64, f: impl Fn(u64) -> u64 + Sync) -> u64 {
        let next = AtomicU64::new(0);
        let take = || {
            let mut sum = 0;
            loop {
                let index = next.fetch_add(1, Relaxed);
                if index >= tasks {
                    return sum;
                }
                sum += f(index);
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.workers).map(|_| scope.spawn(take)).collect();
            let mine = take();
            mine + others.into_iter().map(|thread| thread.join().expect("a thread panicked")).sum::<u64>()
        })
    }
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let other = thread::spawn(move || fib(n - 1));
    let mine = fib(n - 2);
    mine + other.join().expect("a thread panicked")
}

impl Rival for Threads {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Fib { n, how: How::Join | How::Value } => Run::timed(|| fib(n)),
            Load::SpawnWaitOne { n, how: How::Value } => {
                let one = |i: u64| thread::spawn(move || work::one(i)).join().expect("a thread panicked");
                Run::timed(|| (0..n).map(one).sum())
            }
            Load::Coarse { arms } => {
                work::pause();
                Run::timed(|| self.each(arms, |_| work::arm()))
            }
            Load::TreeDog { tasks } => Run::timed(|| self.each(tasks, work::image::task)),
            Load::Lock { n } => sync::alone::<Mutex<u64>>(n),
            Load::ReadLock { n } => {
                sync::alone_reading(n, RwLock::new(1), |lock| *lock.read().expect("nobody panics"))
            }
            Load::LockContended { tasks, each } => sync::contended::<Mutex<u64>>(self, tasks, each),
            Load::LockYield { tasks, each } => sync::held_across_a_yield(tasks, each),
            Load::Contend { many, sections, .. } => work::contend::by_threads(&Mutex::new(0), many, sections),
            Load::Append { many, .. } => work::contend::append_by_threads(&Mutex::new(0), many),
            Load::PingPong { n, across: Across::Asleep } => sync::ping_pong::<sync::Std>(n),
            Load::Mpsc { senders, each, capacity } => sync::mpsc::<sync::Std>(senders, each, capacity),
            Load::Oneshot { n, spawned: false } => sync::oneshots::<sync::Std>(n),
            Load::HandOver { n, of: Handed::Turn } => sync::meet(n),
            Load::HandOver { n, of: Handed::Item(capacity) } => sync::mpsc::<sync::Std>(1, n, capacity),
            _ => return None,
        })
    }
}
