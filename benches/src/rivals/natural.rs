//! forebear as its README and its examples use it: the second driver.
//!
//! Where it differs from [`forebear`](super::forebear):
//!
//! * stacks of the default size;
//! * each yield is made in a function of the user's own;
//! * requests are made from outside by [`Runtime::spawn`], without a scope;
//! * a disarmed time-out is that of a request, by the builder.
//!
//! `claims` runs it in a binary that is built with the plain release profile, without link-time optimisation and with the default
//! number of codegen units. Neither driver binds its threads to processors.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

use forebear::{Request, Runtime, spawn, yield_now};

use super::forebear::Forebear;
use crate::load::{How, Load};
use crate::rival::{Rival, Run, Spawn};
use crate::work::{self, HOUR};

/// A runtime of its own, and what the loads have in common with the first driver.
#[derive(Debug)]
pub struct Natural {
    runtime: Runtime,
    first: Forebear,
    /// Its instructions are counted, so which thread runs a request must not depend on chance.
    counted: bool,
}

impl Natural {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Natural {
        Natural::of(Forebear::start(workers).with_default_stacks())
    }

    /// The same with one worker, which never estimates what time it is.
    ///
    /// # Panics
    ///
    /// As there.
    #[must_use]
    pub fn by_a_clock_that_is_read() -> Natural {
        Natural { counted: true, ..Natural::of(Forebear::by_a_clock_that_is_read().with_default_stacks()) }
    }

    fn of(first: Forebear) -> Natural {
        Natural { runtime: first.runtime().clone(), first, counted: false }
    }
}

/// A function of the user's own that yields among other things.
#[inline(never)]
fn step(done: u64) -> u64 {
    yield_now().expect("nobody cancels");
    done + 1
}

#[inline(never)]
fn step_of_a_step(done: u64) -> u64 {
    step(done) + 1
}

#[inline(never)]
fn step_of_two(done: u64) -> u64 {
    step_of_a_step(done) + 1
}

fn turns(yields: u64, calls: u8) -> u64 {
    let mut done = 0;
    for _ in 0..yields {
        done = if calls < 2 { step(done) } else { step_of_two(done) - 2 };
    }
    done
}

fn sum(requests: Vec<Request<u64>>) -> u64 {
    requests.into_iter().map(|request| request.take().expect("nobody cancels, nothing panics")).sum()
}

/// Requests with a time-out that are over in time, one after the other.
fn timers(each: u64) -> u64 {
    let one = |i| {
        let request = Request::builder().timeout(HOUR).spawn(move || work::one(i));
        request.take().expect("it is over in time")
    };
    (0..each).map(one).sum()
}

/// The same, all made before the first is taken.
fn standing(each: u64) -> u64 {
    let one = |i| Request::builder().timeout(HOUR).spawn(move || work::one(i));
    sum((0..each).map(one).collect())
}

/// Requests made from outside, and all waited for.
fn spawn_out(rt: &Runtime, n: u64, how: How) -> Run {
    let marks = work::marks(n);
    let all = || marks.iter().map(|mark| rt.spawn(|| mark.store(1, Relaxed))).collect::<Vec<_>>();
    let mut run = Run::timed(|| {
        match how {
            How::Reference => {
                all().iter().for_each(|one| *one.wait().expect("nobody cancels, nothing panics"));
            }
            _ => all().into_iter().for_each(|one| one.take().expect("nobody cancels, nothing panics")),
        }
        0
    });
    run.value = work::marked(marks);
    run
}

impl Rival for Natural {
    fn run(&self, load: Load) -> Option<Run> {
        let rt = &self.runtime;
        Some(match load {
            Load::Switch { tasks, yields, calls } => rt.run(|| {
                Run::timed(|| sum((0..tasks).map(|_| spawn(move || turns(yields, calls))).collect()))
            }),
            Load::SpawnOut { n, how } if self.counted => {
                // The worker is blocked, so all of it is done by this thread.
                let (go_on, blocked) = mpsc::channel::<()>();
                let (started, has_started) = mpsc::channel();
                let worker = rt.spawn(move || {
                    started.send(()).expect("the other side waits");
                    // The other side is dropped.
                    let _ = blocked.recv();
                });
                has_started.recv().expect("it starts");
                let run = spawn_out(rt, n, how);
                drop(go_on);
                worker.take().expect("nobody cancels, nothing panics");
                run
            }
            Load::SpawnOut { n, how } => spawn_out(rt, n, how),
            Load::Timer { tasks, each, standing: false } => {
                rt.run(|| Run::timed(|| sum((0..tasks).map(|_| spawn(move || timers(each))).collect())))
            }
            Load::Timer { tasks, each, standing: true } => {
                rt.run(|| Run::timed(|| sum((0..tasks).map(|_| spawn(move || standing(each))).collect())))
            }
            load => return self.first.run(load),
        })
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        self.first.spawner()
    }
}
