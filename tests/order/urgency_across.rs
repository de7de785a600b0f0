//! Urgency from a request of one runtime to what it waits for in another.
//!
//! As in `tests/order/urgency.rs`, what is to be ordered is queued while the worker is held.

#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, mpsc};

use forebear::{AnyRequest, Priority, Request, Runtime, State};
use support::order::{Gate, Log, on_one, root};
use support::{Flag, Watchdog, hold_thread_until, hold_workers, runtime, until};

type Lock = Arc<forebear::sync::Mutex<()>>;

/// An urgent request of a runtime of its own, which waits for the target.
fn urgent_elsewhere(elsewhere: &Runtime, target: &AnyRequest) -> Request<()> {
    let target = target.clone();
    let waiter = root(elsewhere).priority(Priority::URGENT).spawn(move || target.wait().unwrap());
    until(|| waiter.state() == State::Suspended);
    waiter
}

/// Three as urgent as most, which note that they are others.
fn others(runtime: &Runtime, log: &Log) -> [Request<()>; 3] {
    [(); 3].map(|()| {
        let log = log.clone();
        root(runtime).spawn(move || log.note("other"))
    })
}

/// Opens the gate while three others are ready, and waits for the waiter and for them.
fn open_beside_others<T>(here: &Runtime, log: &Log, gate: Gate, waiter: &Request<T>) {
    let held = hold_workers(here);
    let others = others(here, log);
    gate.open();
    held.release();
    waiter.wait().unwrap();
    others.iter().for_each(|other| *other.wait().unwrap());
}

/// Runs a test with two runtimes of one worker each.
fn on_two(test: impl FnOnce(&Runtime, &Runtime, Log)) {
    on_one(|one, log| {
        let elsewhere = runtime(1);
        test(one, &elsewhere, log);
    });
}

#[test]
fn a_waiters_urgency_reaches_an_unstarted_target_of_another_runtime() {
    on_two(|here, elsewhere, log| {
        let held = hold_workers(here);
        let target = {
            let log = log.clone();
            root(here).priority(Priority::BACKGROUND).spawn(move || log.note("target"))
        };
        let others = others(here, &log);
        let waiter = urgent_elsewhere(elsewhere, &target.to_untyped());
        held.release();
        waiter.wait().unwrap();
        others.iter().for_each(|other| *other.wait().unwrap());
        log.check(&["target", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_reaches_a_target_that_is_private_to_a_worker_of_another_runtime() {
    on_two(|here, elsewhere, log| {
        let (give, given) = mpsc::channel();
        let free = Flag::new();
        let parent = {
            let (log, free) = (log.clone(), free.clone());
            root(here).priority(Priority::BACKGROUND).spawn(move || {
                let child = Request::builder().own_stack().build(move || log.note("target"));
                child.submit();
                give.send(child.clone()).unwrap();
                hold_thread_until(|| free.is_up());
            })
        };
        let target: Request<()> = given.recv().unwrap();
        let others = others(here, &log);
        let waiter = urgent_elsewhere(elsewhere, &target.to_untyped());
        free.raise();
        waiter.wait().unwrap();
        parent.wait().unwrap();
        others.iter().for_each(|other| *other.wait().unwrap());
        log.check(&["target", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_reaches_a_started_target_of_another_runtime_when_it_is_woken() {
    on_two(|here, elsewhere, log| {
        let gate = Gate::new(here);
        let target = {
            let (log, gate) = (log.clone(), gate.request.to_untyped());
            root(here).priority(Priority::BACKGROUND).spawn(move || {
                gate.wait().unwrap();
                log.note("target");
            })
        };
        until(|| target.state() == State::Suspended);
        let waiter = urgent_elsewhere(elsewhere, &target.to_untyped());
        open_beside_others(here, &log, gate, &waiter);
        log.check(&["target", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_goes_on_through_another_runtime_to_what_its_target_waits_for() {
    on_two(|here, elsewhere, log| {
        let gate = Gate::new(here);
        let noted = |name: &'static str, on: AnyRequest| {
            let log = log.clone();
            root(here).priority(Priority::BACKGROUND).spawn(move || {
                on.wait().unwrap();
                log.note(name);
            })
        };
        let first = noted("first", gate.request.to_untyped());
        let second = noted("second", first.to_untyped());
        until(|| second.state() == State::Suspended);
        let waiter = urgent_elsewhere(elsewhere, &second.to_untyped());
        open_beside_others(here, &log, gate, &waiter);
        log.check(&["first", "second", "other", "other", "other"]);
    });
}

#[test]
fn a_waiters_urgency_reaches_the_holder_of_a_lock_in_another_runtime() {
    on_two(|here, elsewhere, log| {
        let gate = Gate::new(here);
        let lock = Lock::default();
        let holder = {
            let (log, gate, lock) = (log.clone(), gate.request.to_untyped(), lock.clone());
            root(here).priority(Priority::BACKGROUND).spawn(move || {
                let _held = lock.lock();
                gate.wait().unwrap();
                log.note("holder");
            })
        };
        until(|| holder.state() == State::Suspended);
        let waiter = root(elsewhere).priority(Priority::URGENT).spawn(move || drop(lock.lock()));
        until(|| waiter.state() == State::Suspended);
        open_beside_others(here, &log, gate, &waiter);
        log.check(&["holder", "other", "other", "other"]);
    });
}

/// What is left with a runtime that has ended meanwhile keeps neither its record nor the request.
#[test]
fn a_raise_that_comes_as_the_other_runtime_ends_leaves_nothing_there() {
    let _watchdog = Watchdog::new("two runtimes");
    let elsewhere = runtime(1);
    for round in 0..200 {
        let value = Arc::new(());
        let here = runtime(1);
        let target = {
            let value = value.clone();
            root(&here).spawn(move || drop(value))
        };
        let waiter = {
            let target = target.to_untyped();
            root(&elsewhere).priority(Priority::URGENT).spawn(move || target.wait().unwrap())
        };
        drop(here);
        waiter.wait().unwrap();
        drop((waiter, target));
        assert_eq!(Arc::strong_count(&value), 1, "round {round}");
    }
}
