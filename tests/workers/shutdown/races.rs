//! Submissions that race with a shutdown: each has run, or is cancelled with `Shutdown`; nothing is lost, and nobody hangs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forebear::time::{Clock, sleep};
use forebear::{CancelReason, Outcome, Request, Runtime, WaitError, join, scope, shield, spawn, yield_now};

use super::LONG;
use super::support::order::root;
use super::support::{Flag, Random, Watchdog, join_all, runtime, soaking};

fn rounds() -> u64 {
    if soaking() { 10_000 } else { 60 }
}

/// How many callables were made, have run, and were dropped unrun.
#[derive(Default)]
struct Ledger {
    made: AtomicUsize,
    ran: AtomicUsize,
    dropped: AtomicUsize,
}

struct Entry {
    ledger: Arc<Ledger>,
    has_run: bool,
}

impl Entry {
    fn new(ledger: &Arc<Ledger>) -> Entry {
        ledger.made.fetch_add(1, Ordering::AcqRel);
        Entry { ledger: ledger.clone(), has_run: false }
    }

    fn run(mut self) {
        self.has_run = true;
        self.ledger.ran.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.has_run {
            self.ledger.dropped.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Ledger {
    #[track_caller]
    fn check(&self) {
        let all = |count: &AtomicUsize| count.load(Ordering::Acquire);
        assert_eq!(all(&self.made), all(&self.ran) + all(&self.dropped));
    }
}

/// It has ended by itself, or by the shutdown.
#[track_caller]
fn is_settled(request: &Request<()>) {
    match request.outcome() {
        Some(Outcome::Finished(()) | Outcome::Cancelled(CancelReason::Shutdown | CancelReason::Parent)) => {}
        other => panic!("{other:?} of {request:?}"),
    }
}

#[test]
fn roots_submitted_while_it_is_shut_down_run_or_are_cancelled() {
    for seed in 0..rounds() {
        let _dog = Watchdog::new(seed);
        let runtime = runtime(1 + seed as usize % 3);
        let ledger = Arc::new(Ledger::default());
        thread::scope(|threads| {
            let submitters: Vec<_> = (0..3)
                .map(|n| {
                    let (runtime, ledger) = (&runtime, &ledger);
                    threads.spawn(move || {
                        let mut random = Random::new(seed * 10 + n);
                        let mut made = Vec::new();
                        // To the first that is refused, and a few more.
                        let mut refused = 0;
                        while refused < 5 {
                            let entry = Entry::new(ledger);
                            let request = match random.below(4) {
                                0 => runtime.spawn(move || entry.run()),
                                1 => {
                                    let request = runtime.enter(|| Request::new(move || entry.run()));
                                    request.submit();
                                    request
                                }
                                2 => {
                                    let request = runtime.enter(|| Request::new(move || entry.run()));
                                    _ = request.wait();
                                    request
                                }
                                _ => root(runtime).spawn(move || {
                                    _ = yield_now();
                                    entry.run();
                                }),
                            };
                            if matches!(request.outcome(), Some(Outcome::Cancelled(_))) {
                                refused += 1;
                            }
                            made.push(request);
                        }
                        for request in made {
                            match request.wait() {
                                Ok(()) | Err(WaitError::TargetCancelled(CancelReason::Shutdown)) => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..seed % 40 {
                thread::yield_now();
            }
            runtime.shutdown(LONG).unwrap();
            join_all(submitters);
        });
        ledger.check();
    }
}

#[test]
fn children_made_while_it_is_shut_down_run_or_are_cancelled() {
    for seed in 0..rounds() {
        let _dog = Watchdog::new(seed);
        let runtime = runtime(1 + seed as usize % 3);
        let ledger = Arc::new(Ledger::default());
        let trees: Vec<_> = (0..4)
            .map(|n| {
                let ledger = ledger.clone();
                root(&runtime).spawn(move || {
                    let mut random = Random::new(seed * 100 + n);
                    while grow(&ledger, &mut random, 0) {}
                })
            })
            .collect();
        for _ in 0..seed % 60 {
            thread::yield_now();
        }
        runtime.shutdown(LONG).unwrap();
        trees.iter().for_each(is_settled);
        drop(trees);
        ledger.check();
        assert_eq!(runtime.metrics().live_stacks, 0);
    }
}

/// Makes something at random; false if it has been told to stop.
fn grow(ledger: &Arc<Ledger>, random: &mut Random, depth: usize) -> bool {
    let entry = Entry::new(ledger);
    let below = {
        let (ledger, seed) = (ledger.clone(), random.next());
        move || {
            entry.run();
            if depth < 3 {
                grow(&ledger, &mut Random::new(seed), depth + 1);
            }
        }
    };
    match random.below(9) {
        0 => spawn(below).take().is_ok(),
        1 => {
            drop(spawn(below));
            yield_now().is_ok()
        }
        2 => Request::new(below).wait().is_ok(),
        3 => Request::builder().own_stack().spawn(below).wait().is_ok(),
        4 => {
            join(below, || _ = yield_now());
            !forebear::is_cancelled()
        }
        5 => {
            _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scope(|s| drop(s.spawn(below)))));
            !forebear::is_cancelled()
        }
        6 => shield(|| spawn(below).take()).is_ok() && !forebear::is_cancelled(),
        7 => {
            Request::builder().detached().spawn(below);
            yield_now().is_ok()
        }
        _ => spawn(below).wait_timeout(Duration::from_secs(3_600)).is_ok(),
    }
}

#[test]
fn a_finish_that_races_with_submissions_loses_nothing() {
    for seed in 0..rounds() {
        let _dog = Watchdog::new(seed);
        let runtime = runtime(1 + seed as usize % 2);
        let ledger = Arc::new(Ledger::default());
        thread::scope(|threads| {
            let submitter = threads.spawn(|| {
                let made: Vec<_> = (0..50)
                    .map(|_| {
                        let entry = Entry::new(&ledger);
                        runtime.spawn(move || entry.run())
                    })
                    .collect();
                for request in made {
                    match request.wait() {
                        Ok(()) | Err(WaitError::TargetCancelled(CancelReason::Shutdown)) => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
            runtime.finish(Duration::MAX).unwrap();
            join_all([submitter]);
        });
        ledger.check();
    }
}

#[test]
fn waits_from_outside_race_with_the_end_of_the_grace() {
    for seed in 0..rounds() / 5 {
        let _dog = Watchdog::new(seed);
        let runtime: Runtime = runtime(1);
        let free = super::support::Flag::new();
        let request = super::stuck(&runtime, "stuck", &free);
        thread::scope(|threads| {
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    let request = request.clone();
                    threads.spawn(move || {
                        let answer = request.wait();
                        assert!(
                            matches!(
                                answer,
                                Err(WaitError::ShutDown | WaitError::TargetCancelled(CancelReason::Shutdown))
                            ),
                            "{answer:?}"
                        );
                    })
                })
                .collect();
            for _ in 0..seed {
                thread::yield_now();
            }
            runtime.shutdown(Duration::ZERO).unwrap_err();
            join_all(waiters);
        });
        free.raise();
        runtime.shutdown(LONG).unwrap();
    }
}

/// A clock that drops what it is given when the runtime's timer thread asks it.
#[derive(Clone, Debug, Default)]
struct DropsOnTimer(Arc<Mutex<Option<Runtime>>>);

impl Clock for DropsOnTimer {
    fn now(&self) -> Instant {
        if thread::current().name().is_some_and(|name| name.ends_with(" timer")) {
            drop(self.0.lock().unwrap().take());
        }
        Instant::now()
    }
}

/// The end waits for a request that sleeps, and the thread that wakes it is the one that dropped the handle.
#[test]
fn the_timer_thread_may_drop_the_last_handle() {
    let _dog = Watchdog::new("the timer thread");
    let clock = DropsOnTimer::default();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let given = Flag::new();
    let go = given.clone();
    let request = Request::builder().on(&runtime).spawn(move || {
        go.wait();
        sleep(Duration::from_millis(1)).unwrap();
    });
    *clock.0.lock().unwrap() = Some(runtime);
    given.raise();
    request.wait().unwrap();
    assert!(clock.0.lock().unwrap().is_none(), "the timer thread asks the clock before it wakes anybody");
}
