//! What does not end in time: it is named, and nothing that may be borrowed from it goes.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebear::{CancelReason, Request, Runtime, ShutdownError, State, WaitError, scope, shield, yield_now};

use super::support::order::root;
use super::support::{Count, Flag, Watchdog, hold_thread_until, until};
use super::{SECOND, clocked, is_over, is_shut_down, stuck, while_time_passes};
use crate::cancelling::asleep;

#[test]
fn a_laggard_that_borrows_from_a_live_scope_is_named_and_its_memory_stays() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(2);
    let free = Flag::new();
    // Where the endless loop counts: in the frame of the request that has opened the scope.
    let seen = std::sync::Arc::new(AtomicPtr::new(std::ptr::null_mut::<AtomicU64>()));
    let owner = {
        let (seen, free) = (seen.clone(), free.clone());
        Request::builder().name("owner").on(&runtime).spawn(move || {
            let rounds = AtomicU64::new(7);
            scope(|s| {
                Request::builder().name("endless").own_stack().spawn_in(s, || {
                    seen.store((&raw const rounds).cast_mut(), Ordering::Release);
                    while !free.is_up() {
                        rounds.fetch_add(1, Ordering::AcqRel);
                        thread::yield_now();
                    }
                });
            });
        })
    };
    hold_thread_until(|| !seen.load(Ordering::Acquire).is_null());
    asleep(&owner);
    let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();

    let named: Vec<_> = error.laggards().iter().map(|laggard| (&*laggard.name, laggard.state)).collect();
    assert!(named.contains(&("endless", State::Running)), "{error:?}");
    assert!(named.contains(&("owner", State::Suspended)), "{error:?}");
    assert_eq!(named.len(), 2);
    let text = error.to_string();
    assert!(
        text.contains("'endless' (running on worker ") && text.contains("waits for the jobs of its scope"),
        "{text}"
    );
    let owns = error.laggards().iter().find(|laggard| laggard.name == "owner").unwrap();
    assert_eq!((owns.id, owns.worker), (owner.id(), owner.assigned_worker()));

    drop(runtime);
    // SAFETY: none but the promise that is tested: the frame of a laggard stays.
    let rounds = unsafe { &*seen.load(Ordering::Acquire) };
    let before = rounds.load(Ordering::Acquire);
    assert!(before >= 7);
    hold_thread_until(|| rounds.load(Ordering::Acquire) > before);
    free.raise();
}

#[test]
fn a_shutdown_that_is_repeated_waits_for_the_laggards_and_then_frees_the_rest() {
    for workers in [1, 2, 4] {
        let _dog = Watchdog::new(workers);
        let (runtime, clock) = clocked(workers);
        let free = Flag::new();
        let request = stuck(&runtime, "stuck", &free);
        for _ in 0..3 {
            let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
            let [laggard] = error.laggards() else { panic!("{error:?}") };
            assert_eq!(
                (&*laggard.name, laggard.state, laggard.worker),
                ("stuck", State::Running, request.assigned_worker())
            );
        }
        free.raise();
        runtime.shutdown(Duration::MAX).unwrap();
        is_over(request.wait());
        assert_eq!(runtime.metrics().live_stacks, 0);
        runtime.shutdown(Duration::ZERO).unwrap();
        runtime.finish(Duration::ZERO).unwrap();
    }
}

#[test]
fn without_any_grace_what_runs_is_named_at_once() {
    let _dog = Watchdog::new("");
    let (runtime, _clock) = clocked(2);
    let free = Flag::new();
    let _request = stuck(&runtime, "stuck", &free);
    let error = runtime.shutdown(Duration::ZERO).unwrap_err();
    assert!(error.laggards().iter().any(|laggard| laggard.name == "stuck"), "{error:?}");
    free.raise();
    runtime.shutdown(Duration::MAX).unwrap();
}

#[test]
fn dropping_the_last_handle_after_a_shutdown_does_not_wait_for_laggards() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(2);
    let free = Flag::new();
    let request = stuck(&runtime, "stuck", &free);
    while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    drop(runtime);
    assert!(!request.is_done());
    free.raise();
    // It may still end.
    hold_thread_until(|| request.is_done());
}

#[test]
fn who_waits_from_outside_for_a_laggard_is_told_that_the_runtime_is_gone() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let other = Runtime::builder().workers(1).build().unwrap();
    let free = Flag::new();
    let request = stuck(&runtime, "stuck", &free);
    // Behind it, where nobody can get at it.
    let in_thread = {
        let request = request.clone();
        thread::spawn(move || request.wait().copied())
    };
    let timed = {
        let request = request.clone();
        thread::spawn(move || request.wait_timeout(Duration::MAX).copied())
    };
    let in_request = {
        let request = request.clone();
        root(&other).spawn(move || request.wait().copied())
    };
    asleep(&in_request);
    while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    for answer in [
        in_thread.join().unwrap(),
        timed.join().unwrap(),
        in_request.take().unwrap(),
        request.wait().copied(),
    ] {
        assert!(matches!(answer, Err(WaitError::ShutDown)), "{answer:?}");
    }
    free.raise();
    runtime.shutdown(Duration::MAX).unwrap();
    is_over(request.wait());
}

#[test]
fn a_foreign_scope_that_waits_for_a_laggard_stays_and_is_named() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let (free, started, over) = (Flag::new(), Flag::new(), Flag::new());
    thread::scope(|threads| {
        let waits = thread::Builder::new().name("patient".into()).spawn_scoped(threads, || {
            runtime.enter(|| {
                scope(|s| {
                    Request::builder().name("job").spawn_in(s, || {
                        started.raise();
                        hold_thread_until(|| free.is_up());
                    });
                    hold_thread_until(|| started.is_up());
                });
            });
            over.raise();
        });
        let waits = waits.unwrap();
        hold_thread_until(|| started.is_up());
        let mut error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
        // The thread may not have come to its wait.
        while error.laggards().len() < 2 {
            error = runtime.shutdown(Duration::ZERO).unwrap_err();
        }
        let scope = &error.laggards()[1];
        assert!(scope.name.contains("scope in thread 'patient'"), "{error}");
        assert_eq!((scope.worker, scope.state), (None, State::Suspended));
        assert_eq!(scope.waits_for.as_deref(), Some("request 'job'"));
        assert!(!over.is_up());
        free.raise();
        // Whether its job has heard of it is not said.
        _ = waits.join();
    });
    runtime.shutdown(Duration::MAX).unwrap();
}

#[test]
fn a_request_that_a_foreign_thread_runs_can_be_a_laggard() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let (free, started) = (Flag::new(), Flag::new());
    let request = {
        let (free, up) = (free.clone(), started.clone());
        Request::builder().name("direct").on(&runtime).build(move || {
            up.raise();
            hold_thread_until(|| free.is_up());
        })
    };
    let runner = {
        let request = request.clone();
        thread::spawn(move || request.wait().copied())
    };
    hold_thread_until(|| started.is_up());
    let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    let [laggard] = error.laggards() else { panic!("{error:?}") };
    assert_eq!((&*laggard.name, laggard.worker, laggard.state), ("direct", None, State::Running));
    assert_eq!(laggard.id, request.id());
    assert!(error.to_string().contains("in a foreign thread"));
    free.raise();
    is_over(runner.join().unwrap());
    runtime.shutdown(Duration::MAX).unwrap();
}

#[test]
fn a_suspended_laggard_is_named_with_what_it_waits_for() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(2);
    let free = Flag::new();
    let slow = stuck(&runtime, "slow", &free);
    let patient = {
        let slow = slow.clone();
        Request::builder().name("patient").on(&runtime).spawn(move || shield(|| slow.wait().is_err()))
    };
    asleep(&patient);
    let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    let laggard = error.laggards().iter().find(|laggard| laggard.name == "patient").unwrap();
    assert_eq!((laggard.state, laggard.waits_for.as_deref()), (State::Suspended, Some("request 'slow'")));
    free.raise();
    runtime.shutdown(Duration::MAX).unwrap();
    is_shut_down(patient.wait());
}

#[test]
fn what_is_lent_a_stack_and_what_lends_it_are_both_named() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let (free, started) = (Flag::new(), Flag::new());
    let lender = {
        let (free, up) = (free.clone(), started.clone());
        Request::builder().name("lender").on(&runtime).spawn(move || {
            let child = Request::builder().name("lent to").build(move || {
                up.raise();
                hold_thread_until(|| free.is_up());
            });
            let _ = child.wait();
        })
    };
    hold_thread_until(|| started.is_up());
    let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    let named: Vec<_> = error.laggards().iter().map(|laggard| (&*laggard.name, laggard.state)).collect();
    assert_eq!(named, [("lent to", State::Running), ("lender", State::Suspended)]);
    assert!(error.laggards()[1].waits_for.as_ref().unwrap().contains("'lent to'"));
    free.raise();
    runtime.shutdown(Duration::MAX).unwrap();
    is_shut_down(lender.wait());
}

#[test]
fn what_ends_within_the_grace_is_no_laggard() {
    let _dog = Watchdog::new("");
    for round in 0..200_u64 {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let ran = Count::new();
        let requests: Vec<_> = (0..20)
            .map(|n| {
                let ran = ran.clone();
                root(&runtime).name(format!("number {n}")).spawn(move || {
                    ran.up();
                    for _ in 0..(round % 7) * n {
                        if yield_now().is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        // Asked at any moment of their lives, the answer names some of these and nothing else, and is whole.
        match runtime.shutdown(Duration::ZERO) {
            Ok(()) => {}
            Err(error @ ShutdownError::Laggards { .. }) => {
                for laggard in error.laggards() {
                    assert!(laggard.name.starts_with("number "), "{error:?}");
                    assert!(requests.iter().any(|request| request.id() == laggard.id), "{error:?}");
                }
            }
            Err(error) => panic!("{error}"),
        }
        runtime.shutdown(Duration::MAX).unwrap();
        assert!(requests.iter().all(Request::is_done));
    }
}

#[test]
fn the_reason_is_told_by_a_laggard_that_looks_at_last() {
    let _dog = Watchdog::new("");
    let (runtime, clock) = clocked(1);
    let (free, started) = (Flag::new(), Flag::new());
    let request = {
        let (free, up) = (free.clone(), started.clone());
        root(&runtime).spawn(move || {
            up.raise();
            hold_thread_until(|| free.is_up());
            forebear::check_cancelled().is_err()
        })
    };
    hold_thread_until(|| started.is_up());
    while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
    free.raise();
    runtime.shutdown(Duration::MAX).unwrap();
    until(|| request.is_done());
    assert!(matches!(request.outcome(), Some(forebear::Outcome::Cancelled(CancelReason::Shutdown))));
}

/// The branches of a join stand on two stacks if one of them was begun by another worker, or while the other one is suspended.
#[test]
fn a_laggard_in_a_join_is_listed_once_as_it_runs_or_in_the_wait_that_tells_most() {
    for runs in [false, true] {
        let _dog = Watchdog::new(runs);
        let (runtime, clock) = clocked(1);
        let (begun, free) = (Flag::new(), Flag::new());
        let event = std::sync::Arc::new(forebear::sync::Event::new());
        let joiner = {
            let (begun, free, event) = (begun.clone(), free.clone(), event.clone());
            Request::builder().name("joiner").on(&runtime).spawn(move || {
                forebear::join(
                    || shield(|| _ = event.wait()),
                    || {
                        begun.raise();
                        if runs {
                            hold_thread_until(|| free.is_up());
                        } else {
                            shield(|| _ = event.wait());
                        }
                    },
                );
            })
        };
        hold_thread_until(|| begun.is_up());
        let error = while_time_passes(&clock, || runtime.shutdown(SECOND)).unwrap_err();
        let [laggard] = error.laggards() else { panic!("{error:?}") };
        assert_eq!(laggard.id, joiner.id());
        if runs {
            assert_eq!(laggard.state, State::Running, "{error:?}");
        } else {
            assert!(laggard.waits_for.as_ref().is_some_and(|what| what.contains("vent")), "{error:?}");
        }
        assert_eq!(error.to_string().matches("'joiner'").count(), 1, "{error}");
        free.raise();
        event.set();
        runtime.shutdown(Duration::MAX).unwrap();
    }
}
