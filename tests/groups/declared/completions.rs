//! What is after a request that nobody runs, and that somebody else completes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebear::time::sleep;
use forebear::{
    Abandoned, CancelReason, Request, RequestPool, RequestSet, Runtime, State, WaitError, scope, then_all,
    wait_all,
};

use crate::support::{Flag, Joined, Kind, Watchdog, on_each, until};

#[test]
fn what_is_after_a_completion_starts_when_that_is_completed() {
    on_each(|runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let first = runtime.enter(|| answer.then(|n: &u32| n + 1));
        let second = runtime.enter(|| first.then(|n| n * 2));
        assert!(matches!(second.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(second.wait_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
        assert_eq!((first.state(), second.state()), (State::Queued, State::Queued));
        let thread = thread::spawn(move || completer.complete(20).unwrap());
        assert_eq!(second.wait().unwrap(), &42);
        thread.joined().unwrap();
    });
}

#[test]
fn what_is_after_a_completion_that_is_given_up_fails() {
    on_each(|runtime| {
        let (completer, answer) = runtime.enter(|| Request::<u32>::completer("answer"));
        let dependent = runtime.enter(|| answer.then(|n| n + 1));
        dependent.submit();
        drop(completer);
        let Err(WaitError::Failed(failure)) = dependent.wait() else { panic!("it has no input") };
        assert!(failure.downcast_ref::<Abandoned>().is_some());
    });
}

/// Nothing here can go on, but another thread completes what it is after.
#[test]
fn a_wait_for_what_is_after_a_completion_is_no_cycle_without_workers() {
    let _dog = Watchdog::new("without workers");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    for n in 0..20 {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let input = runtime.enter(|| Request::new(|| 1));
        let first = runtime.enter(|| then_all((&answer, &input), |(n, one): (&u32, &u32)| n + one));
        let second = runtime.enter(|| first.then(|n| *n));
        let waiter = {
            let second = second.clone();
            runtime.spawn(move || second.wait().copied())
        };
        let seen = waiter.clone();
        let thread = thread::spawn(move || {
            until(|| seen.state() == State::Suspended);
            completer.complete(n).unwrap();
        });
        assert_eq!(second.wait().unwrap(), &(n + 1));
        // It holds a handle of the waiter.
        thread.joined().unwrap();
        assert_eq!(waiter.take().unwrap().unwrap(), n + 1);
    }
}

#[test]
fn what_is_after_a_completion_is_a_member_of_sets_and_pools() {
    on_each(|runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let made: Vec<_> = (0..8).map(|k| runtime.enter(|| answer.then(move |n: &u32| n + k))).collect();
        let mut set = RequestSet::new();
        made[..4].iter().for_each(|request| _ = set.insert(request.clone()));
        let mut pool = RequestPool::<'_, ()>::new();
        made[4..].iter().for_each(|request| _ = pool.include(request.clone()));
        let thread = thread::spawn(move || completer.complete(1).unwrap());
        while set.wait_next().unwrap().is_some() {}
        pool.wait().unwrap();
        wait_all(&made).unwrap();
        assert!((0..8).all(|k| made[k].get() == Some(&(k as u32 + 1))));
        thread.joined().unwrap();
    });
}

/// Nothing in the runtime can go on, and the scope has no stack that waits for the completion.
#[test]
fn a_scope_whose_job_is_after_a_completion_is_no_cycle() {
    on_each(|runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let inner = answer.clone();
        let body = move || {
            scope(|s| {
                let first = s.then(&inner, |n: &u32| n + 1);
                s.then(&first, |n| n * 2);
            })
        };
        let scoped = Request::builder().own_stack().on(runtime).spawn(body);
        let seen = scoped.clone();
        let thread = thread::spawn(move || {
            until(|| seen.state() == State::Suspended);
            completer.complete(20).unwrap();
        });
        scoped.wait().unwrap();
        thread.joined().unwrap();
    });
}

/// The completer ends it at any moment of the search for cycles.
#[test]
fn a_completion_at_any_moment_makes_no_cycle() {
    on_each(|runtime| {
        for n in 0..100 {
            let (completer, answer) = runtime.enter(|| Request::completer("answer"));
            let first = runtime.enter(|| answer.then(|n: &usize| n + 1));
            let last = (0..n % 5).fold(first, |last, _| runtime.enter(|| last.then(|n| *n)));
            last.submit();
            let start = Arc::new(AtomicBool::new(false));
            let started = start.clone();
            let thread = thread::spawn(move || {
                while !started.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                (0..n * 20).for_each(|_| std::hint::spin_loop());
                completer.complete(n).unwrap();
            });
            start.store(true, Ordering::Release);
            assert_eq!(last.wait().unwrap(), &(n + 1));
            thread.joined().unwrap();
        }
    });
}

/// In the seeded mode nothing ends a sleep without an end, so what is after it never starts.
#[test]
fn a_wait_for_what_is_after_something_that_stands_still_is_circular_without_workers() {
    let _dog = Watchdog::new("");
    let runtime = Kind::Seeded(1).build();
    runtime.enter(|| {
        let sleeps = Request::builder().name("sleeps").own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?));
        let after = sleeps.then(|()| 1);
        let told = after.then(|n| n + 1);
        let Err(WaitError::CircularWait(cycle)) = told.wait() else { panic!("{told:?}") };
        assert!(cycle.names().any(|name| name == "sleeps"), "{cycle}");
        // It sleeps on, and a cancel ends it.
        drop((after, told));
        sleeps.abort(CancelReason::Aborted);
    });
}

/// Whenever the completer comes: also if the dependent is after something that stands still, too.
#[test]
fn a_wait_for_what_is_after_a_completion_and_something_that_stands_still_waits_for_the_completer() {
    let _dog = Watchdog::new("");
    let runtime = Kind::Seeded(1).build();
    runtime.enter(|| {
        let sleeps = Request::builder().name("sleeps").own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?));
        let (completer, answer) = Request::<u32>::completer("answer");
        let completed = Flag::new();
        let up = completed.clone();
        let completes = thread::spawn(move || {
            // Time for the waiter to find that nothing can go on. Less of it hides a fault, and makes none.
            for _ in 0..200 {
                thread::yield_now();
            }
            up.raise();
            completer.complete(1).unwrap();
        });
        let both = then_all((&sleeps, &answer), |(_, n)| *n);
        assert!(matches!(both.wait(), Err(WaitError::CircularWait(_))));
        assert!(completed.is_up());
        completes.join().unwrap();
        sleeps.abort(CancelReason::Aborted);
    });
}
