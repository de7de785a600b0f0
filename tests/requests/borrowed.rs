//! What is only borrowed by another thread: a `&Request` has no count, and the request is not the less its own for that.
//!
//! A worker makes, submits, waits for and drops its requests in plain stores until somebody else touches one (`runtime/src/state/word/local.rs`). Each
//! test here lets somebody else come at every step.

#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear::{CancelReason, Request, Runtime, State, WaitError, spawn};
use support::{Count, Watchdog, on_each, runtime};

/// Far fewer than a worker's patience (64): each of these finds the worker keeping its local requests.
const ROUNDS: usize = 8;

/// What another thread does with a request that it has borrowed.
type Touch = fn(&Request<u64>);

/// These may cancel it.
const CANCELS: [&str; 2] = ["cancel", "abort"];
/// These wait for others to run it.
const IDLE: [&str; 2] = ["watch", "wait_timeout"];

const TOUCHES: &[(&str, Touch)] = &[
    ("wait", |r| assert!(r.wait().is_ok_and(|&n| n == 7))),
    ("watch", |r| assert!(r.watch().is_ok_and(|&n| n == 7))),
    ("wait_timeout", |r| assert!(r.wait_timeout(Duration::from_secs(60)).is_ok_and(|&n| n == 7))),
    ("submit", |r| _ = r.submit()),
    ("clone", |r| drop(r.clone())),
    ("clone and take", |r| assert!(!matches!(r.clone().take(), Ok(n) if n != 7))),
    ("any", |r| drop(r.to_untyped())),
    ("any and wait", |r| assert!(r.to_untyped().wait().is_ok())),
    ("get", |r| assert!(r.get().is_none_or(|&n| n == 7))),
    ("state", |r| _ = r.state()),
    ("is_done", |r| _ = r.is_done()),
    ("debug", |r| assert!(format!("{r:?}").contains("Request"))),
    ("on_done", |r| _ = r.on_done(|_| ())),
    ("cancel", |r| _ = r.cancel()),
    ("abort", |r| _ = r.abort(CancelReason::Aborted)),
];

/// What its maker does with it meanwhile, and what it is told if it waits.
type Own = fn(&Request<u64>) -> Option<Result<u64, WaitError>>;

const STEPS: &[(&str, Own)] = &[
    ("nothing", |_| None),
    ("submits", |r| {
        r.submit();
        None
    }),
    ("waits", |r| Some(r.wait().copied())),
    ("submits and waits", |r| Some(r.submit().wait().copied())),
    ("submits, spawns and waits", |r| {
        r.submit();
        let other = spawn(|| 1);
        other.take().unwrap();
        Some(r.wait().copied())
    }),
    ("waits twice", |r| {
        let first = r.wait().copied();
        let second = r.wait().copied();
        assert_eq!(first.is_ok(), second.is_ok(), "an outcome does not change");
        Some(second)
    }),
];

fn check(touch: &str, step: &str, answer: Option<Result<u64, WaitError>>, ran: usize) {
    assert!(ran <= 1, "{touch}, {step}: run {ran} times");
    match answer {
        None => {}
        Some(Ok(7)) => assert_eq!(ran, 1, "{touch}, {step}"),
        Some(Err(WaitError::TargetCancelled(_))) if CANCELS.contains(&touch) => {}
        Some(other) => panic!("{touch}, {step}: {other:?}"),
    }
}

/// The other thread comes while the maker is at it.
#[test]
fn what_is_borrowed_by_a_thread_runs_once_whatever_its_maker_does_meanwhile() {
    let _dog = Watchdog::new("");
    for &(touch, f) in TOUCHES {
        for &(step, own) in STEPS {
            if IDLE.contains(&touch) && !step.contains("waits") {
                continue;
            }
            let runtime = runtime(1);
            runtime.run(|| {
                for round in 0..ROUNDS {
                    let ran = Count::new();
                    let counted = ran.clone();
                    let request = Request::new(move || {
                        counted.up();
                        7
                    });
                    let ready = AtomicUsize::new(0);
                    let meet = || {
                        ready.fetch_add(1, Ordering::SeqCst);
                        while ready.load(Ordering::SeqCst) < 2 {
                            std::hint::spin_loop();
                        }
                    };
                    let answer = thread::scope(|scope| {
                        let there = scope.spawn(|| {
                            meet();
                            for _ in 0..round * 20 {
                                std::hint::spin_loop();
                            }
                            f(&request);
                        });
                        meet();
                        let answer = own(&request);
                        // Not left to the scope, which the race detector does not see.
                        there.join().unwrap();
                        answer
                    });
                    check(touch, step, answer, ran.get());
                    drop(request);
                    assert!(ran.get() <= 1);
                }
            });
        }
    }
}

/// The other thread comes at a known step: before, when it is submitted, while it runs, and when it is over.
#[test]
fn what_is_borrowed_by_a_thread_is_found_as_it_is() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    runtime.run(|| {
        let state_there =
            |request: &Request<u64>| thread::scope(|s| s.spawn(|| request.state()).join().unwrap());
        let new = Request::new(|| 7_u64);
        assert_eq!(state_there(&new), State::New);
        let queued = Request::new(|| 7_u64);
        queued.submit();
        assert_eq!(state_there(&queued), State::Queued);
        assert_eq!(queued.take().unwrap(), 7);
        let over = Request::new(|| 7_u64);
        over.submit().wait().unwrap();
        assert_eq!(state_there(&over), State::Finished);
        assert_eq!(thread::scope(|s| *s.spawn(|| over.get().unwrap()).join().unwrap()), 7);

        let (ask, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let running = Request::new(move || {
            ask.send(()).unwrap();
            told.recv().unwrap()
        });
        let running = &running;
        let state = thread::scope(|scope| {
            let there = scope.spawn(move || {
                asked.recv().unwrap();
                let state = running.state();
                tell.send(7_u64).unwrap();
                assert_eq!(running.wait().unwrap(), &7);
                state
            });
            assert_eq!(running.wait().unwrap(), &7);
            there.join().unwrap()
        });
        assert_eq!(state, State::Running);
    });
}

/// By value nobody is asked: what was submitted by its maker is so for who has it now.
#[test]
fn what_goes_to_another_thread_by_value_is_found_as_it_is() {
    on_each(|runtime| {
        let ran = Count::new();
        let make = || {
            let ran = ran.clone();
            Request::new(move || {
                ran.up();
                7_u64
            })
        };
        let (new, over) = runtime.run(|| {
            let (new, queued, over) = (make(), make(), make());
            queued.submit();
            over.submit().wait().unwrap();
            thread::scope(|scope| scope.spawn(move || drop(queued)).join().unwrap());
            (new, over)
        });
        drop(new);
        assert_eq!(over.take().unwrap(), 7);
        ran.wait_for(2);
    });
}

/// After many have been touched a worker gives its local requests up; those that it still has are found as they are.
#[test]
fn a_worker_whose_requests_are_often_touched_gives_local_state_up() {
    let _dog = Watchdog::new("");
    let runtime = runtime(1);
    runtime.run(|| {
        for _ in 0..5 {
            let ran = Count::new();
            let made: Vec<_> = (0..200)
                .map(|n| {
                    let ran = ran.clone();
                    let request = Request::new(move || {
                        ran.up();
                        n
                    });
                    if n % 3 == 0 {
                        request.submit();
                    }
                    request
                })
                .collect();
            thread::scope(|scope| {
                let there = scope.spawn(|| made.iter().for_each(|r| _ = r.wait().unwrap()));
                made.iter().rev().for_each(|r| _ = r.wait().unwrap());
                // Not left to the scope, which the race detector does not see.
                there.join().unwrap();
            });
            assert!(made.iter().enumerate().all(|(n, r)| *r.get().unwrap() == n));
            assert_eq!(ran.get(), 200);
        }
    });
}

/// A stolen child asks about its parent, which runs locally: nobody can be asked who is not there.
#[test]
fn a_stolen_child_of_what_runs_locally_finds_its_parent() {
    let _dog = Watchdog::new("");
    let runtime = runtime(2);
    runtime.run(|| {
        for _ in 0..20 {
            let outer = Request::new(|| {
                let me = Request::current().unwrap();
                let children: Vec<_> =
                    (0..8).map(|_| spawn(|| Request::current().unwrap().parent())).collect();
                children.into_iter().all(|child| child.take().unwrap().is_some_and(|parent| parent == me))
            });
            assert!(outer.submit().wait().unwrap());
        }
    });
}

/// A cancel that comes while it runs locally is seen by it, and is its outcome.
#[test]
fn a_cancel_by_a_borrower_reaches_what_runs_locally() {
    let _dog = Watchdog::new("");
    let runtime: Runtime = runtime(1);
    runtime.run(|| {
        let (ask, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let target = Request::new(move || {
            ask.send(()).unwrap();
            told.recv().unwrap();
            forebear::yield_now().is_err()
        });
        let target = &target;
        thread::scope(|scope| {
            scope.spawn(move || {
                asked.recv().unwrap();
                target.abort(CancelReason::Aborted);
                tell.send(()).unwrap();
            });
            assert!(matches!(target.wait(), Err(WaitError::TargetCancelled(CancelReason::Aborted))));
        });
        assert!(target.is_cancelled());
    });
}
