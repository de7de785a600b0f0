//! One runtime is shut down while another's requests deal with it.

use std::thread;

use forebear::{Request, Runtime, WaitError, scope, yield_now};

use super::support::order::root;
use super::support::{Count, Flag, Watchdog, runtime};
use super::{LONG, SECOND, WORKERS, clocked, is_over, is_shut_down, stuck, while_time_passes};
use crate::cancelling::asleep;

#[test]
fn requests_of_another_runtime_that_wait_are_told() {
    for workers in WORKERS {
        let _dog = Watchdog::new(workers);
        let (ends, lives) = (runtime(workers), runtime(workers));
        let target = root(&ends).spawn(|| while yield_now().is_ok() {});
        let waiters: Vec<_> = (0..10)
            .map(|n| {
                let target = target.clone();
                root(&lives).spawn(move || match n % 2 {
                    0 => target.wait().copied(),
                    _ => target.wait_timeout(LONG).copied(),
                })
            })
            .collect();
        waiters.iter().for_each(asleep);
        ends.shutdown(LONG).unwrap();
        waiters.into_iter().for_each(|waiter| is_shut_down(waiter.take().unwrap()));
        assert_eq!(lives.spawn(|| 1).take().unwrap(), 1);
    }
}

#[test]
fn a_request_shuts_down_another_runtime_and_suspends_meanwhile() {
    for workers in WORKERS {
        let _dog = Watchdog::new(workers);
        let (ends, lives) = (runtime(workers), runtime(1));
        let (free, ran) = (Flag::new(), Count::new());
        let request = {
            let free = free.clone();
            root(&ends).spawn(move || forebear::shield(|| free.wait()))
        };
        asleep_or_running(&request);
        let stops = {
            let ends = ends.clone();
            root(&lives).spawn(move || ends.shutdown(LONG).is_ok())
        };
        asleep(&stops);
        // The one worker has nothing else to wait with.
        let up = ran.clone();
        lives.spawn(move || up.up()).take().unwrap();
        free.raise();
        assert!(stops.take().unwrap());
        is_over(request.wait());
        assert_eq!(ran.get(), 1);
    }
}

fn asleep_or_running<T>(request: &Request<T>) {
    super::support::hold_thread_until(|| {
        matches!(request.state(), forebear::State::Running | forebear::State::Suspended)
    });
}

#[test]
fn a_request_that_lags_behind_another_runtimes_laggard_is_let_go() {
    let _dog = Watchdog::new("");
    let ((ends, clock), lives) = (clocked(1), runtime(2));
    let free = Flag::new();
    let target = stuck(&ends, "stuck", &free);
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let target = target.clone();
            root(&lives).spawn(move || matches!(target.wait(), Err(WaitError::ShutDown)))
        })
        .collect();
    waiters.iter().for_each(asleep);
    while_time_passes(&clock, || ends.shutdown(SECOND)).unwrap_err();
    for waiter in waiters {
        assert!(waiter.take().unwrap());
    }
    lives.shutdown(LONG).unwrap();
    free.raise();
    ends.shutdown(LONG).unwrap();
}

#[test]
fn both_are_shut_down_while_each_waits_for_the_other() {
    for round in 0..30 {
        let _dog = Watchdog::new(round);
        let (one, other) = (runtime(2), runtime(2));
        let entwine = |here: &Runtime, there: &Runtime| {
            let there = there.clone();
            root(here).spawn(move || {
                for _ in 0.. {
                    if there.spawn(|| 1).take().is_err() || yield_now().is_err() {
                        break;
                    }
                }
            })
        };
        let requests = [entwine(&one, &other), entwine(&other, &one)];
        thread::scope(|threads| {
            threads.spawn(|| one.shutdown(LONG).unwrap());
            threads.spawn(|| other.shutdown(LONG).unwrap());
        });
        assert!(requests.iter().all(Request::is_done));
    }
}

#[test]
fn several_may_call_at_once() {
    for workers in WORKERS {
        let _dog = Watchdog::new(workers);
        let runtime = runtime(workers);
        let requests: Vec<_> =
            (0..20).map(|_| root(&runtime).spawn(|| while yield_now().is_ok() {})).collect();
        thread::scope(|threads| {
            for n in 0..4 {
                let runtime = &runtime;
                threads.spawn(move || match n {
                    0 => runtime.finish(LONG).unwrap(),
                    _ => runtime.shutdown(LONG).unwrap(),
                });
            }
        });
        requests.iter().for_each(|request| is_shut_down(request.wait()));
    }
}

#[test]
fn a_scope_of_another_runtimes_request_ends() {
    let _dog = Watchdog::new("");
    let (ends, lives) = (runtime(1), runtime(1));
    let started = Flag::new();
    let owner = {
        let (ends, started) = (ends.clone(), started.clone());
        root(&lives).try_spawn(move || {
            let ended = std::panic::catch_unwind(|| {
                ends.enter(|| {
                    scope(|s| {
                        s.spawn(|| {
                            started.raise();
                            while yield_now().is_ok() {}
                        });
                    });
                });
            });
            Ok(ended.is_err())
        })
    };
    started.wait();
    ends.shutdown(LONG).unwrap();
    assert!(owner.take().unwrap(), "its job was cancelled");
}
