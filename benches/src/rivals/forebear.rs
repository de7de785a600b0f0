//! forebear itself, by its public face and with the default features of the released crate.
//!
//! Switched on by the cargo feature `forebear`. Under `--cfg forebear_unordered` the same file is the other side of
//! `order`: it then has another name, so that the figures of the two builds cannot be confused.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use forebear::time::MonotonicClock;
use forebear::{Request, RequestPool, Runtime, block_on, join, scope, shield, spawn, yield_now};

use crate::load::{Across, How, Load, With};
use crate::rival::{Job, Rival, Run, Spawn};
use crate::work::graph::Graph;
use crate::work::{self, Memory, forest};

mod ending;
mod graph;
mod growth;
mod sync;
mod time;

/// The guaranteed stack of each of the million suspended requests: the smallest size class.
const SMALL_STACK: usize = 48 * 1024;

/// A runtime of its own, not the default one.
#[derive(Debug)]
pub struct Forebear {
    runtime: Runtime,
    workers: usize,
    /// The guaranteed stack where many requests are suspended at once; `None` for the default.
    stack: Option<usize>,
}

impl Forebear {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Forebear {
        let runtime = Runtime::builder().workers(workers).build().expect("forebear's runtime");
        Forebear { runtime, workers, stack: Some(SMALL_STACK) }
    }

    /// The same with one worker, which never estimates the time.
    ///
    /// # Panics
    ///
    /// As there.
    #[must_use]
    pub fn by_a_clock_that_is_read() -> Forebear {
        let runtime =
            Runtime::builder().workers(1).clock(MonotonicClock).build().expect("forebear's runtime");
        Forebear { runtime, workers: 1, stack: Some(SMALL_STACK) }
    }

    /// The same, with stacks of the default size everywhere.
    #[must_use]
    pub(super) fn with_default_stacks(self) -> Forebear {
        Forebear { stack: None, ..self }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A runtime with stacks for many suspended requests.
    fn small(&self) -> Runtime {
        let builder = Runtime::builder().workers(self.workers);
        let builder = match self.stack {
            Some(stack) => builder.stack_size(stack),
            None => builder,
        };
        builder.build().expect("forebear's runtime")
    }
}

// The switch itself has to be inlined into the loop that yields; this must not stand between.
#[inline(always)]
fn pause() {
    yield_now().expect("nobody cancels");
}

// Not inlined, and not turned into jumps: each leaves a return address behind, as a user's own functions do.
#[inline(never)]
fn behind_one() {
    yield_now().expect("nobody cancels");
    black_box(());
}

#[inline(never)]
fn behind_two() {
    behind_one();
    black_box(());
}

#[inline(never)]
fn behind_three() {
    behind_two();
    black_box(());
}

fn taken<T>(request: Request<T>) -> T {
    request.take().expect("nobody cancels, nothing panics")
}

fn sum(requests: Vec<Request<u64>>) -> u64 {
    requests.into_iter().map(taken).sum()
}

fn fib_join(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (a, b) = join(|| fib_join(n - 1), || fib_join(n - 2));
    a + b
}

fn fib_value(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let other = spawn(move || fib_value(n - 1));
    let mine = fib_value(n - 2);
    mine + taken(other)
}

fn fib_reference(n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let other = Request::new(move || fib_reference(n - 1));
    other.submit();
    let mine = fib_reference(n - 2);
    mine + other.wait().expect("nobody cancels, nothing panics")
}

fn tree(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let part = leaves / 10;
    let children: [_; 10] = std::array::from_fn(|i| {
        let first = first + i as u64 * part;
        spawn(move || tree(first, part))
    });
    children.into_iter().map(taken).sum()
}

fn scopes(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let mut sums = [0; 10];
    let part = leaves / 10;
    scope(|s| {
        for (i, sum) in (0..).zip(&mut sums) {
            s.spawn(move || *sum = scopes(first + i * part, part));
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

fn nested(levels: u64) -> u64 {
    if levels == 0 {
        return 0;
    }
    let below = Request::new(move || nested(levels - 1));
    below.wait().expect("nobody cancels, nothing panics") + 1
}

fn mark_in_scope(marks: &'static [AtomicU8]) {
    scope(|s| {
        for mark in marks {
            s.spawn(|| mark.store(1, Relaxed));
        }
    });
}

/// Many requests that wait for one request, the gate.
///
/// The gate calls `yield_now` in a loop until all others wait for it, then reads the clock and the memory, and ends.
/// Scattered requests wait for a thousand requests that wait for the gate.
fn suspend(n: u64, scattered: bool) -> Run {
    let parked = Arc::new(AtomicU64::new(0));
    let (before, start) = (Memory::now(), Instant::now());
    let all = parked.clone();
    let first = Request::new(move || {
        while all.load(Acquire) < n {
            pause();
        }
        let create = start.elapsed();
        (Memory::figures(before, Memory::now(), n, create), Instant::now())
    });
    first.submit();
    let gates: Vec<Request<()>> = if scattered {
        let gate = |_| {
            let first = first.clone();
            spawn(move || _ = first.wait().expect("nobody cancels, nothing panics"))
        };
        (0..1000).map(gate).collect()
    } else {
        Vec::new()
    };
    let crowd: Vec<Request<u64>> = (0..n as usize)
        .map(|i| {
            let parked = parked.clone();
            if scattered {
                let gate = gates[i % gates.len()].clone();
                spawn(move || {
                    parked.fetch_add(1, AcqRel);
                    gate.wait().expect("nobody cancels, nothing panics");
                    1
                })
            } else {
                let first = first.clone();
                spawn(move || {
                    parked.fetch_add(1, AcqRel);
                    first.wait().expect("nobody cancels, nothing panics");
                    1
                })
            }
        })
        .collect();
    let value = sum(crowd);
    let (figures, opened) = first.wait().expect("nobody cancels, nothing panics");
    Run { elapsed: opened.elapsed(), value, figures: figures.clone() }
}

/// Requests in their maker's list.
fn queued(n: u64) -> Run {
    let (before, start) = (Memory::now(), Instant::now());
    let mut closure = 0;
    let all: Vec<Request<u64>> = (0..n)
        .map(|i| {
            let work = work::two_words(i);
            closure = size_of_val(&work);
            spawn(work)
        })
        .collect();
    let figures = Memory::bare(before, n, closure, size_of::<Request<u64>>());
    Run { value: sum(all), elapsed: start.elapsed(), figures }
}

/// A root of `order`: children that suspend once, so that resumed, unstarted and running requests compete.
fn root(children: u64) -> u64 {
    let child = || {
        pause();
        1
    };
    sum((0..children).map(|_| spawn(child)).collect())
}

/// Requests that are each made with a feature beside their work, submitted, and waited for.
fn features(n: u64, with: With) -> Run {
    fn each(n: u64, one: impl Fn(u64) -> u64) -> Run {
        Run::timed(|| (0..n).map(one).sum())
    }
    fn waited(request: &Request<u64>) -> u64 {
        request.submit();
        *request.wait().expect("nobody cancels, nothing panics")
    }
    match with {
        With::Nothing => each(n, |i| waited(&Request::new(move || work::one(i)))),
        With::Name => each(n, |i| waited(&Request::builder().name("a name").build(move || work::one(i)))),
        With::Callback => each(n, |i| {
            let request = Request::new(move || work::one(i));
            request.on_finished(|value| _ = black_box(*value));
            waited(&request)
        }),
        With::Deadline => {
            let limit = Duration::from_secs(3600);
            each(n, |i| waited(&Request::builder().timeout(limit).build(move || work::one(i))))
        }
        With::OwnStack => each(n, |i| waited(&Request::builder().own_stack().build(move || work::one(i)))),
        With::TimeOut => each(n, |i| {
            let request = Request::new(move || work::one(i));
            request.submit();
            *request.wait_timeout(Duration::from_secs(3600)).expect("it is over in time")
        }),
        With::OneInput => each(n, |i| waited(&Request::new(move || work::one(i)).then(|value| *value))),
        With::EightInputs => each(n, |i| {
            let inputs: [_; 8] = std::array::from_fn(|_| Request::new(|| ()));
            waited(&Request::builder().after_all(&inputs).build(move || work::one(i)))
        }),
        With::Completion => each(n, |i| {
            let (completer, answer) = Request::completer("a completion");
            completer.complete(work::one(i)).expect("nobody cancels");
            waited(&answer)
        }),
        With::Shield => each(n, |i| waited(&Request::new(move || shield(|| work::one(i))))),
        With::ShieldInJoin => {
            each(n, |i| waited(&Request::new(move || join(|| shield(|| work::one(i)), || ()).0)))
        }
        With::Future => each(n, |i| {
            let request = Request::new(move || work::one(i));
            *block_on(&request).expect("nobody cancels").expect("nothing panics")
        }),
    }
}

impl Forebear {
    fn turns<const CALLS: u8>(&self, tasks: u64, yields: u64) -> Run {
        let turn = move || {
            for _ in 0..yields {
                // Called by name: a function that is handed over is called through a shim that is not always inlined.
                match CALLS {
                    0 => pause(),
                    1 => behind_one(),
                    _ => behind_three(),
                }
            }
            yields
        };
        self.runtime.run(move || Run::timed(|| sum((0..tasks).map(|_| spawn(turn)).collect())))
    }
}

impl Rival for Forebear {
    fn run(&self, load: Load) -> Option<Run> {
        let rt = &self.runtime;
        Some(match load {
            Load::Switch { tasks, yields, calls: 0 } => self.turns::<0>(tasks, yields),
            Load::Switch { tasks, yields, calls: 1 } => self.turns::<1>(tasks, yields),
            Load::Switch { tasks, yields, .. } => self.turns::<3>(tasks, yields),
            Load::Fib { n, how: How::Join | How::Scope } => rt.run(|| Run::timed(|| fib_join(n))),
            Load::Fib { n, how: How::Value } => rt.run(|| Run::timed(|| fib_value(n))),
            Load::Fib { n, how: How::Reference } => rt.run(|| Run::timed(|| fib_reference(n))),
            Load::SpawnIn { n, how } => {
                let marks = work::marks(n);
                let mark = |mark: &'static AtomicU8| {
                    spawn(move || {
                        mark.store(1, Relaxed);
                        0
                    })
                };
                let mut run = rt.run(|| {
                    Run::timed(|| match how {
                        How::Value | How::Reference => sum(marks.iter().map(mark).collect()),
                        How::Join | How::Scope => {
                            mark_in_scope(marks);
                            0
                        }
                    })
                });
                run.value = work::marked(marks);
                run
            }
            Load::PoolMember { n, bound, inside } => {
                let members = || {
                    Run::timed(|| {
                        let mut pool = RequestPool::new().max_active(bound);
                        for _ in 0..n {
                            pool.add(|| 1_u64);
                        }
                        let mut sum = 0;
                        pool.wait_each(|_, one| sum += one).expect("no failure");
                        sum
                    })
                };
                if inside { rt.run(members) } else { rt.enter(members) }
            }
            Load::SpawnOut { n, how } => {
                let marks = work::marks(n);
                let mark = |mark: &'static AtomicU8| {
                    rt.spawn(move || {
                        mark.store(1, Relaxed);
                        0
                    })
                };
                let mut run = Run::timed(|| match how {
                    How::Value | How::Reference => sum(marks.iter().map(mark).collect()),
                    How::Join | How::Scope => {
                        rt.enter(|| mark_in_scope(marks));
                        0
                    }
                });
                run.value = work::marked(marks);
                run
            }
            Load::SpawnWaitOne { n, how: How::Reference } => rt.run(|| {
                Run::timed(|| {
                    let mut sum = 0;
                    for i in 0..n {
                        let request = Request::new(move || work::one(i));
                        request.submit();
                        sum += request.wait().expect("nobody cancels, nothing panics");
                    }
                    sum
                })
            }),
            Load::SpawnWaitOne { n, .. } => {
                rt.run(|| Run::timed(|| (0..n).map(|i| taken(spawn(move || work::one(i)))).sum()))
            }
            Load::Skynet { leaves, how: How::Scope } => rt.run(|| Run::timed(|| scopes(0, leaves))),
            Load::Skynet { leaves, .. } => rt.run(|| Run::timed(|| tree(0, leaves))),
            Load::Coarse { arms } => {
                work::pause();
                rt.run(|| Run::timed(|| halves(arms)))
            }
            Load::Suspended { n, scattered } => self.small().run(|| suspend(n, scattered)),
            Load::Queued { n } => rt.run(|| queued(n)),
            Load::Burst { n } => {
                let small = self.small();
                work::memory::burst(n, || small.run(|| suspend(n, false)))
            }
            Load::Depth { levels } => rt.run(|| Run::timed(|| nested(levels))),
            Load::Cancel { suspended, queued } => self.small().run(|| ending::cancel_all(suspended, queued)),
            Load::CancelSome { among, victims } => self.small().run(|| ending::cancel_some(among, victims)),
            Load::CancelAt { n, stand } => self.small().run(|| ending::cancel_at(n, stand)),
            Load::Callbacks { n, each } => rt.run(|| ending::callbacks(n, each)),
            Load::Features { n, with } => rt.run(|| features(n, with)),
            Load::Roots { roots, children } => {
                Run::timed(|| sum((0..roots).map(|_| rt.spawn(move || root(children))).collect()))
            }
            Load::Graph { shape, micros, edges } => {
                let workers = self.workers;
                rt.run(|| graph::run(Graph::of(shape), workers, micros, edges))
            }
            Load::Set { n } => rt.run(|| graph::set(n)),
            Load::Dependents { n, edges } => rt.run(|| graph::dependents(n, edges)),
            Load::Growth { of, up_to } => growth::curve(self.workers, of, up_to),
            // The same for all runtimes: see `crate::rival::run`.
            Load::Forest { .. } | Load::Idle { .. } | Load::Wake { .. } => return None,
            Load::Lock { n } => rt.run(|| sync::alone(n)),
            Load::ReadLock { n } => rt.run(|| sync::alone_reading(n)),
            Load::LockContended { tasks, each } => rt.run(|| sync::contended(tasks, each, || ())),
            Load::LockYield { tasks, each } => rt.run(|| sync::contended(tasks, each, pause)),
            Load::Contend { of, many, sections } => sync::contend(rt, of, many, sections),
            Load::Append { of, many } => sync::append_in_order(rt, of, many),
            Load::PingPong { n, across: Across::One } => rt.run(|| sync::ping_pong(n)),
            Load::PingPong { n, across } => sync::ping_pong_across(rt, n, across),
            Load::Mpsc { senders, each, capacity } => rt.run(|| sync::mpsc(senders, each, capacity)),
            Load::HandOver { n, of } => sync::hand_over(rt, n, of),
            Load::Oneshot { n, spawned } => rt.run(|| sync::oneshots(n, spawned)),
            Load::Timer { tasks, each, standing } => rt.run(|| time::timers(tasks, each, standing)),
            Load::Timeouts { n } => rt.run(|| time::met(n)),
            Load::Sleepers { n, spread_ms } => self.small().run(|| time::sleepers(n, spread_ms)),
            Load::Urgent { apart: true, .. } => return None,
            Load::Urgent { urgent, spread_ms, leaves, micros, .. } => {
                time::urgent(rt, urgent, spread_ms, || parts(leaves, micros))
            }
            Load::TreeDog { tasks } => rt.run(|| {
                Run::timed(|| {
                    let sum = AtomicU64::new(0);
                    scope(|s| {
                        for index in 0..tasks {
                            let sum = &sum;
                            s.spawn(move || _ = sum.fetch_add(work::image::task(index), Relaxed));
                        }
                    });
                    sum.into_inner()
                })
            }),
        })
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        Some(Arc::new(Spawner(self.runtime.clone(), self.workers)))
    }
}

struct Spawner(Runtime, usize);

impl Spawn for Spawner {
    fn spawn(&self, job: Job) {
        // What the last handle leaves continues.
        drop(self.0.spawn(job));
    }

    fn workers(&self) -> usize {
        self.1
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let metrics = self.0.metrics();
        vec![
            (forest::PUBLISHED, metrics.published),
            (forest::STEALS, metrics.steals),
            (forest::SLEEPS, metrics.sleeps),
        ]
    }
}
