//! Memory: what is over is given back, or used again; nothing grows with the number of requests that have been.
//!
//! Each test measures the resident memory of a child process in which nothing else runs.

#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

use std::thread;

use forebear::{Request, Runtime, spawn};
use support::{Joined, Watchdog, again_in_child, is_child, resident, runtime, soaking};

/// Runs `body` in a child process, once.
fn alone(test: &str, body: impl FnOnce()) {
    if is_child(test) {
        let _dog = Watchdog::new("");
        body();
        return;
    }
    let _dog = Watchdog::new("");
    let (ok, told) = again_in_child(test, ("ALONE", "1"), "");
    assert!(ok, "{told}");
}

/// Checks that `work`, done `times` times, leaves memory where it was when a tenth was done: within one in a hundred; in a
/// short run also within what free lists and stacks take at their height, a few megabytes. Whatever stayed of each round
/// would come to several times that.
#[track_caller]
fn stays(times: usize, mut work: impl FnMut()) {
    let warm = (times / 10).max(100).min(times / 2);
    let mut early = 0;
    for round in 0..times {
        if round == warm {
            early = resident();
        }
        work();
    }
    let late = resident();
    let grown = late.saturating_sub(early);
    let allowed = (early / 100).max(if soaking() { 256 << 10 } else { 6 << 20 });
    assert!(grown <= allowed, "{early} bytes when warm, {late} at the end: {grown} more");
}

fn requests() -> usize {
    match (soaking(), cfg!(debug_assertions)) {
        (true, _) => 100_000_000,
        (false, false) => 10_000_000,
        (false, true) => 1_000_000,
    }
}

#[test]
fn roots_that_land_alternately_on_two_workers_take_no_more_memory_in_the_end() {
    alone("roots_that_land_alternately_on_two_workers_take_no_more_memory_in_the_end", || {
        let runtime = Runtime::builder().workers(2).run_on_caller(false).build().unwrap();
        stays(requests() / 1_000, || {
            let batch: Vec<_> = (0..1_000).map(|n| runtime.spawn(move || n)).collect();
            for (n, request) in batch.into_iter().enumerate() {
                assert_eq!(request.take().unwrap(), n);
            }
        });
    });
}

/// Made on one worker, run on the other, dropped by a third party.
#[test]
fn requests_that_travel_take_no_more_memory_in_the_end() {
    alone("requests_that_travel_take_no_more_memory_in_the_end", || {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        stays(requests() / 2_500, || {
            let made = runtime.spawn(|| {
                (0..1_000)
                    .map(|n| {
                        let inner = spawn(move || n);
                        let other = inner.clone();
                        (inner, spawn(move || *other.wait().unwrap()))
                    })
                    .collect::<Vec<_>>()
            });
            for (inner, outer) in made.take().unwrap() {
                assert_eq!(outer.take().unwrap(), *inner.wait().unwrap());
            }
        });
    });
}

/// All kinds of ends: dropped unsubmitted, failed, looked at or not, cleaned, by untyped handles.
#[test]
fn every_way_to_end_gives_the_memory_back() {
    alone("every_way_to_end_gives_the_memory_back", || {
        let runtime = Runtime::builder().workers(2).on_unhandled_failure(|_| ()).build().unwrap();
        let ends = || {
            for size in [1, 100, 3_000] {
                let big = vec![1_u8; size];
                let data = big.clone();
                drop(Request::new(move || data.len()));
                let data = big.clone();
                let any = Request::builder().name("x".repeat(100)).build(move || data).into_untyped();
                assert!(any.is_done());
                let data = big.clone();
                let failed = spawn(move || -> u8 { std::panic::resume_unwind(Box::new(data)) });
                assert!(failed.wait().is_err());
                let data = big.clone();
                drop(spawn(move || -> u8 { std::panic::resume_unwind(Box::new(data)) }));
                let (kept, data) = (Request::ready(big.clone()), big.clone());
                spawn(move || kept.wait().unwrap().len() + data.len()).to_untyped().wait().unwrap();
                let _ = spawn(move || big).id();
            }
        };
        stays(requests() / 500, || {
            runtime.run(ends);
            runtime.enter(ends);
        });
    });
}

/// Arenas of threads that are gone are used by those that come.
#[test]
fn many_short_lived_foreign_threads_that_make_requests_take_bounded_memory() {
    alone("many_short_lived_foreign_threads_that_make_requests_take_bounded_memory", || {
        let runtime = runtime(2);
        stays(if cfg!(debug_assertions) { 3_000 } else { 20_000 }, || {
            let (runtime, other) = (runtime.clone(), runtime.clone());
            let made = thread::spawn(move || {
                runtime.enter(|| {
                    for n in 0..20 {
                        assert_eq!(Request::new(move || n).take().unwrap(), n);
                        spawn(move || spawn(move || n));
                        drop(Request::new(|| ()));
                    }
                    (0..20).map(|n| spawn(move || n)).collect::<Vec<_>>()
                })
            });
            // What it made is waited for and dropped by yet another.
            let made = made.joined().unwrap();
            thread::spawn(move || {
                other.enter(|| {
                    for request in &made {
                        request.wait().unwrap();
                    }
                });
            })
            .joined()
            .unwrap();
        });
    });
}

#[test]
fn runtimes_that_are_gone_have_given_everything_back() {
    alone("runtimes_that_are_gone_have_given_everything_back", || {
        stays(if cfg!(debug_assertions) { 1_000 } else { 5_000 }, || {
            let runtime = runtime(2);
            let value = runtime.run(|| spawn(|| 1).take().unwrap());
            let outlives = runtime.spawn(move || value);
            let never = runtime.enter(|| Request::new(|| ()));
            drop(runtime);
            assert_eq!(*outlives.wait().unwrap(), 1);
            drop((outlives, never));
        });
    });
}

/// Suspended requests give their stacks back for others to use.
#[test]
fn stacks_are_used_again() {
    alone("stacks_are_used_again", || {
        let runtime = runtime(2);
        let round = || {
            let flag = support::Flag::new();
            let gate = {
                let flag = flag.clone();
                Request::builder().own_stack().spawn(move || flag.wait())
            };
            let waiters: Vec<_> = (0..100)
                .map(|_| {
                    let gate = gate.clone();
                    Request::builder().own_stack().spawn(move || gate.wait().copied())
                })
                .collect();
            flag.raise();
            for waiter in waiters {
                waiter.take().unwrap().unwrap();
            }
        };
        for _ in 0..20 {
            runtime.enter(round);
        }
        let stacks = runtime.metrics().live_stacks;
        stays(300, || runtime.enter(round));
        assert!(
            runtime.metrics().live_stacks <= stacks.max(220),
            "{} stacks before, {:?}",
            stacks,
            runtime.metrics()
        );
    });
}
