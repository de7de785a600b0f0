//! may: stackful coroutines that move between its workers.
//!
//! Its scheduler is a static: the number of workers is that of the first start in a process. Its pool of stacks is set
//! to 20,000 instead of 1,000, which makes a spawn up to ten times as cheap. Above some 32,000 stacks it fails, so
//! flat loads come in batches.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::Instant;

use may::coroutine::{JoinHandle, yield_now};
use may::go;
use may::sync::SyncFlag;

use crate::load::{Across, How, Load};
use crate::rival::{Rival, Run};
use crate::work::{self, Memory};

mod sync;

/// How many coroutines are alive at a time where a load makes more.
const BATCH: usize = 20_000;

/// The scheduler in the static.
#[derive(Debug)]
pub struct May;

impl May {
    /// Sets the number of workers, if this is the first start.
    #[must_use]
    pub fn start(workers: usize) -> May {
        may::config().set_workers(workers).set_pool_capacity(BATCH);
        May
    }
}

fn value<T>(handle: JoinHandle<T>) -> T {
    handle.join().unwrap_or_else(|_| panic!("a coroutine panicked"))
}

fn sum(handles: Vec<JoinHandle<u64>>) -> u64 {
    handles.into_iter().map(value).sum()
}

/// Runs the closure in a coroutine; blocks until it is over.
fn inside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    value(go!(f))
}

fn fib(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let other = go!(move || fib(n - 1));
    let mine = fib(n - 2);
    mine + value(other)
}

fn tree(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let part = leaves / 10;
    sum((0..10).map(|i| go!(move || tree(first + i * part, part))).collect())
}

fn mark_all(marks: &'static [AtomicU8]) -> u64 {
    let mark = |mark: &'static AtomicU8| {
        go!(move || {
            mark.store(1, Relaxed);
            0
        })
    };
    marks.chunks(BATCH).map(|batch| sum(batch.iter().map(mark).collect())).sum()
}

#[inline(never)]
fn behind_one() {
    yield_now();
    std::hint::black_box(());
}

#[inline(never)]
fn behind_two() {
    behind_one();
    std::hint::black_box(());
}

#[inline(never)]
fn behind_three() {
    behind_two();
    std::hint::black_box(());
}

fn turns(tasks: u64, yields: u64, pause: impl Fn() + Copy + Send + 'static) -> Run {
    let turn = move || {
        (0..yields).for_each(|_| pause());
        yields
    };
    inside(move || Run::timed(|| sum((0..tasks).map(|_| go!(turn)).collect())))
}

/// Made and woken by the caller's thread: a coroutine that yields in a loop on the only worker would keep it from
/// starting the others.
fn suspend(n: u64, scattered: bool) -> Run {
    let gates: Vec<_> = (0..if scattered { 1000 } else { 1 }).map(|_| Arc::new(SyncFlag::new())).collect();
    let parked = Arc::new(AtomicU64::new(0));
    let (before, start) = (Memory::now(), Instant::now());
    let mut tasks = Vec::with_capacity(n as usize);
    for gate in gates.iter().cycle().take(n as usize) {
        let (gate, parked) = (gate.clone(), parked.clone());
        tasks.push(go!(move || {
            parked.fetch_add(1, AcqRel);
            gate.wait();
            1
        }));
    }
    while parked.load(Acquire) < n {
        std::thread::yield_now();
    }
    let create = start.elapsed();
    let figures = Memory::figures(before, Memory::now(), n, create);
    let wake = Run::timed(|| {
        gates.iter().for_each(|gate| gate.fire());
        sum(tasks)
    });
    Run { figures, ..wake }
}

impl Rival for May {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Switch { tasks, yields, calls: 0 } => turns(tasks, yields, yield_now),
            Load::Switch { tasks, yields, calls: 1 } => turns(tasks, yields, behind_one),
            Load::Switch { tasks, yields, .. } => turns(tasks, yields, behind_three),
            Load::Fib { n, how: How::Join | How::Value } => inside(move || Run::timed(|| fib(n))),
            Load::SpawnIn { n, .. } => {
                let marks = work::marks(n);
                let mut run = inside(move || Run::timed(|| mark_all(marks)));
                run.value = work::marked(marks);
                run
            }
            Load::SpawnOut { n, .. } => {
                let marks = work::marks(n);
                let mut run = Run::timed(|| mark_all(marks));
                run.value = work::marked(marks);
                run
            }
            Load::SpawnWaitOne { n, how: How::Value } => {
                inside(move || Run::timed(|| (0..n).map(|i| value(go!(move || work::one(i)))).sum()))
            }
            Load::Skynet { leaves, .. } => inside(move || Run::timed(|| tree(0, leaves))),
            Load::Coarse { arms } => {
                work::pause();
                inside(move || Run::timed(|| sum((0..arms).map(|_| go!(work::arm)).collect())))
            }
            Load::Suspended { n, scattered } => suspend(n, scattered),
            Load::Lock { n } => inside(move || sync::alone(n)),
            Load::LockContended { tasks, each } => inside(move || sync::contended(tasks, each, false)),
            Load::LockYield { tasks, each } => inside(move || sync::contended(tasks, each, true)),
            Load::Contend { of, many, sections } => sync::contend(of, many, sections),
            Load::PingPong { n, across: Across::One } => inside(move || sync::ping_pong(n)),
            Load::Mpsc { senders, each, .. } => inside(move || sync::mpsc(senders, each)),
            Load::Oneshot { n, spawned } => inside(move || sync::oneshots(n, spawned)),
            Load::TreeDog { tasks } => inside(move || {
                Run::timed(|| sum((0..tasks).map(|index| go!(move || work::image::task(index))).collect()))
            }),
            _ => return None,
        })
    }
}
