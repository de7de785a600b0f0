//! Idle workers: that what a busy request has made comes to workers that have nothing to do.

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear::pool::WorkerState;
use forebear::{Request, RequestBuilder, Runtime, State, spawn};
use support::{Count, Flag, Watchdog, hold_thread_until};

/// Not on the stack of the thread that waits for it.
fn on_a_worker(runtime: &Runtime) -> RequestBuilder {
    Request::builder().on(runtime).own_stack()
}

/// Runs `f` on one of two workers. The other is busy until `f` raises the flag that it is given, and then has nothing to do.
fn beside_one_that_becomes_idle(f: impl FnOnce(&Runtime, &Flag) + Send + 'static) {
    let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
    let (both, release) = (Arc::new(std::sync::Barrier::new(2)), Flag::new());
    let held = {
        let (both, release) = (both.clone(), release.clone());
        on_a_worker(&runtime).spawn(move || {
            both.wait();
            hold_thread_until(|| release.is_up());
        })
    };
    let maker = {
        let runtime = runtime.clone();
        on_a_worker(&runtime.clone()).spawn(move || {
            both.wait();
            // Both were hungry until now. What is made first answers that, what is made next stays private.
            spawn(|| ()).take().unwrap();
            f(&runtime, &release);
        })
    };
    held.wait().unwrap();
    maker.wait().unwrap();
}

/// Lets the other worker go, and returns when it sleeps, or has found one of `children`.
fn let_it_fall_asleep(runtime: &Runtime, release: &Flag, children: &[Request<()>]) {
    release.raise();
    hold_thread_until(|| {
        runtime.states().contains(&WorkerState::Sleeping)
            || children.iter().any(|child| child.state() != State::Queued)
    });
}

/// Two requests that wait for each other without a scheduling point: no worker comes to the end of both.
fn two_that_must_meet() -> [impl FnOnce() + Send + 'static + Clone; 2] {
    let (one, other) = (Flag::new(), Flag::new());
    let meet = |mine: Flag, theirs: Flag| {
        move || {
            mine.raise();
            hold_thread_until(|| theirs.is_up());
        }
    };
    [meet(one.clone(), other.clone()), meet(other, one)]
}

#[test]
fn a_take_that_runs_its_target_leaves_the_rest_to_idle_workers() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        beside_one_that_becomes_idle(|runtime, release| {
            let children = two_that_must_meet().map(spawn);
            let_it_fall_asleep(runtime, release, &children);
            for child in children {
                child.take().unwrap();
            }
        });
    }
}

#[test]
fn a_wait_that_runs_its_target_leaves_the_rest_to_idle_workers() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        beside_one_that_becomes_idle(|runtime, release| {
            let children = two_that_must_meet().map(Request::new);
            for child in &children {
                child.submit();
            }
            let_it_fall_asleep(runtime, release, &children);
            children.iter().for_each(|child| child.wait().copied().unwrap());
        });
    }
}

#[test]
fn what_a_callback_submits_is_left_to_idle_workers_by_who_waits_for_it() {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        beside_one_that_becomes_idle(|runtime, release| {
            let input = Request::new(|| ());
            let children = two_that_must_meet().map(Request::new);
            for child in &children {
                let child = child.clone();
                input.on_done(move |_| _ = child.submit());
            }
            input.wait().unwrap();
            let_it_fall_asleep(runtime, release, &children);
            children.iter().for_each(|child| child.wait().copied().unwrap());
        });
    }
}

// ---- while the maker comes to no scheduling point ------------------------------------------------------------------------------

const CHILDREN: usize = 4;

/// Among so many workers `make` makes four children in a request; each waits, without a scheduling point, until all have begun, and the maker
/// waits for that, too.
fn all_begin_beside_their_maker(workers: usize, make: fn(Count) -> Vec<Request<()>>) {
    for _ in 0..20 {
        let _dog = Watchdog::new("");
        let runtime = Runtime::builder().workers(workers).build().unwrap();
        let maker = on_a_worker(&runtime).spawn(move || {
            let begun = Count::new();
            let children = make(begun.clone());
            hold_thread_until(|| begun.get() == CHILDREN);
            for child in children {
                child.take().unwrap();
            }
        });
        maker.wait().unwrap();
    }
}

fn begins(begun: &Count) -> impl FnOnce() + Send + 'static {
    let begun = begun.clone();
    move || {
        begun.up();
        hold_thread_until(|| begun.get() == CHILDREN);
    }
}

#[test]
fn what_a_busy_request_made_is_run_by_idle_workers() {
    for workers in [CHILDREN + 1, 16] {
        all_begin_beside_their_maker(workers, |begun| (0..CHILDREN).map(|_| spawn(begins(&begun))).collect());
    }
}

#[test]
fn what_a_busy_request_made_and_submitted_is_run_by_idle_workers() {
    for workers in [CHILDREN + 1, 16] {
        all_begin_beside_their_maker(workers, |begun| {
            let children: Vec<_> = (0..CHILDREN).map(|_| Request::new(begins(&begun))).collect();
            for child in &children {
                child.submit();
            }
            children
        });
    }
}

/// One idle worker takes them one after the other, also more than a raid takes.
#[test]
fn all_that_a_busy_request_made_is_run_by_an_idle_worker() {
    let _dog = Watchdog::new("");
    beside_one_that_becomes_idle(|_, release| {
        let begun = Count::new();
        let children: Vec<_> = (0..1_000)
            .map(|n| {
                let begun = begun.clone();
                let f = move || _ = begun.up();
                let child = if n % 2 == 0 { spawn(f) } else { Request::new(f) };
                child.submit();
                child
            })
            .collect();
        // Some are gone by value before any of them is shown.
        let kept: Vec<_> =
            children.into_iter().enumerate().filter_map(|(n, child)| (n % 3 != 0).then_some(child)).collect();
        release.raise();
        hold_thread_until(|| begun.get() == 1_000);
        assert!(kept.iter().all(|child| child.wait().is_ok()));
    });
}

/// A maker that comes to scheduling points again and again, of each kind, while others raid it in between.
#[test]
fn a_raided_worker_takes_waits_drops_and_cancels_as_if_nobody_had_raided_it() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(4).build().unwrap();
    for round in 0..200 {
        let ran = Count::new();
        let made = on_a_worker(&runtime).spawn({
            let ran = ran.clone();
            move || {
                let mut made = 0;
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(2) {
                    let make = || {
                        let ran = ran.clone();
                        Request::new(move || _ = ran.up())
                    };
                    let make_by_value = || {
                        let ran = ran.clone();
                        spawn(move || _ = ran.up())
                    };
                    let mut kept: Vec<_> = (0..4).map(|_| make_by_value()).collect();
                    kept.extend((0..4).map(|_| make()));
                    for child in &kept {
                        child.submit();
                    }
                    made += kept.len();
                    let busy = Instant::now();
                    while busy.elapsed() < Duration::from_micros(round * 5) {
                        std::hint::spin_loop();
                    }
                    for (n, child) in kept.into_iter().enumerate() {
                        match (n as u64 + round) % 4 {
                            0 => child.take().unwrap(),
                            1 => *child.wait().unwrap(),
                            2 => drop(child),
                            _ => _ = child.to_untyped().cancel(),
                        }
                    }
                }
                made
            }
        });
        let made = made.take().unwrap();
        runtime.run(|| ());
        // Only what was cancelled may not have run.
        hold_thread_until(|| ran.get() >= made * 3 / 4);
        assert!(ran.get() <= made);
    }
}
