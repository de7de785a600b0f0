//! A request: one callable, run at most once; one value, reached through handles.

#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use forebear::{AnyRequest, CancelReason, Outcome, Request, State, WaitError, spawn, yield_now};
use support::{Count, Flag, Joined, in_both_worlds, inside_each, join_all, on_each, until};

// ---- when it runs -------------------------------------------------------------------------------------------------------

#[test]
fn nothing_runs_before_submit_or_wait() {
    on_each(|runtime| {
        let ran = Count::new();
        let request = {
            let ran = ran.clone();
            runtime.enter(|| Request::new(move || ran.up()))
        };
        // The workers have done everything else there is to do, and this was not part of it.
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        assert_eq!((ran.get(), request.state(), request.get()), (0, State::New, None));
        assert_eq!(request.wait().unwrap(), &0);
        assert_eq!(ran.get(), 1);
    });
}

#[test]
fn submit_lets_it_run_without_anybody_waiting() {
    in_both_worlds(|| {
        let ran = Flag::new();
        let up = ran.clone();
        let request = Request::new(move || up.raise());
        request.submit();
        ran.wait();
    });
}

#[test]
fn submit_is_idempotent_and_returns_the_handle() {
    in_both_worlds(|| {
        let ran = Count::new();
        let request = {
            let ran = ran.clone();
            Request::new(move || ran.up())
        };
        let again: &Request<usize> = request.submit().submit();
        assert_eq!(again.to_untyped(), request.to_untyped());
        assert_eq!(request.wait().unwrap(), &0);
        request.submit();
        assert_eq!(request.submit().wait().unwrap(), &0, "also when it is over");
        assert_eq!(ran.get(), 1);
    });
}

/// Requests and foreign threads submit and wait at once, some of them before it is submitted at all.
#[test]
fn the_callable_runs_once_however_many_wait() {
    on_each(|runtime| {
        for _ in 0..30 {
            let ran = Count::new();
            let request = {
                let ran = ran.clone();
                runtime.enter(|| Request::new(move || ran.up()))
            };
            let waiters: Vec<_> = (0..8)
                .map(|n| {
                    let request = request.clone();
                    runtime.spawn(move || {
                        if n % 2 == 0 {
                            request.submit();
                        }
                        *request.wait().unwrap()
                    })
                })
                .collect();
            let start = Barrier::new(4);
            thread::scope(|threads| {
                join_all([(); 4].map(|()| {
                    threads.spawn(|| {
                        start.wait();
                        assert_eq!(request.wait().unwrap(), &0);
                        assert!(request.to_untyped().wait().is_ok());
                    })
                }));
            });
            for waiter in waiters {
                assert_eq!(waiter.take().unwrap(), 0);
            }
            assert_eq!(ran.get(), 1);
        }
    });
}

#[test]
fn dropping_the_handle_of_a_submitted_request_does_not_stop_it() {
    in_both_worlds(|| {
        let (spawned, submitted) = (Flag::new(), Flag::new());
        let up = spawned.clone();
        drop(spawn(move || up.raise()));
        let up = submitted.clone();
        let request = Request::new(move || up.raise());
        request.submit();
        drop(request);
        spawned.wait();
        submitted.wait();
    });
}

#[test]
fn an_untyped_handle_submits_and_waits_too() {
    in_both_worlds(|| {
        let request = Request::new(|| 1);
        let any: AnyRequest = AnyRequest::from(&request);
        assert!(!any.is_done());
        any.wait().unwrap();
        assert!(any.is_done());
        assert_eq!(request.get(), Some(&1));
    });
}

// ---- the value ----------------------------------------------------------------------------------------------------------

#[test]
fn the_value_is_lent_any_number_of_times() {
    in_both_worlds(|| {
        let request = Request::new(|| String::from("value"));
        let (a, b) = (request.wait().unwrap(), request.wait().unwrap());
        assert!(std::ptr::eq(a, b), "one value, in one place");
        let other = request.clone();
        assert!(std::ptr::eq(other.wait().unwrap(), a));
        assert!(std::ptr::eq(request.force(), a));
        assert!(std::ptr::eq(request.get().unwrap(), a));
    });
}

#[test]
fn take_moves_the_value_out_for_the_only_handle() {
    in_both_worlds(|| {
        let drops = Count::new();
        for make in [0, 1, 2, 3] {
            let probe = drops.probe();
            let request = Request::new(move || probe);
            match make {
                0 => {}
                1 => drop(request.submit()),
                2 => drop(request.wait().unwrap()),
                _ => until(|| request.submit().is_done()),
            }
            let before = drops.get();
            let value = request.take().unwrap();
            assert_eq!(drops.get(), before, "it is moved, not dropped");
            drop(value);
            assert_eq!(drops.get(), before + 1);
        }
    });
}

#[test]
fn take_is_refused_while_other_handles_exist_and_the_value_stays() {
    in_both_worlds(|| {
        let request = spawn(|| String::from("shared"));
        let other = request.clone();
        assert!(matches!(request.take(), Err(WaitError::Shared)));
        assert_eq!(other.wait().unwrap(), "shared");
        assert_eq!(other.take().unwrap(), "shared", "now it is the only one");
    });
}

#[test]
fn untyped_handles_children_and_waiters_do_not_count_for_take() {
    inside_each(|| {
        let request = spawn(|| {
            let me = Request::current().unwrap();
            let child = spawn(|| Request::current().unwrap());
            let child = child.take().unwrap();
            (me, child)
        });
        let any = request.to_untyped();
        let waiter = {
            let any = any.clone();
            spawn(move || any.wait())
        };
        let (me, child) = request.take().unwrap();
        assert_eq!(me, any);
        assert_ne!(child, any);
        waiter.take().unwrap().unwrap();
    });
}

#[test]
fn try_take_and_get_never_wait() {
    on_each(|runtime| {
        let free = Flag::new();
        let request = runtime.enter(|| {
            let free = free.clone();
            let request = Request::builder().own_stack().build(move || {
                free.wait();
                7
            });
            let request = request.try_take().expect_err("it is not even submitted");
            request.submit();
            request
        });
        assert!(request.get().is_none() && request.outcome().is_none() && !request.is_done());
        let request = request.try_take().expect_err("it runs");
        free.raise();
        request.wait().unwrap();
        let other = request.clone();
        let request = request.try_take().expect_err("there is another handle");
        drop(other);
        assert_eq!(request.try_take().ok(), Some(7));
    });
}

#[test]
fn outcome_tells_each_of_the_three_ends() {
    in_both_worlds(|| {
        let good = Request::new(|| 7);
        good.wait().unwrap();
        assert!(matches!(good.outcome(), Some(Outcome::Finished(7))));
        let bad = Request::<u32>::try_new(|| Err(forebear::Error::other("no")));
        assert!(bad.wait().is_err());
        let Some(Outcome::Failed(failure)) = bad.outcome() else { panic!("{bad:?}") };
        assert_eq!(failure.error().to_string(), "no");
        assert!(bad.get().is_none());
        assert!(bad.try_take().is_err());
        let ready = Request::ready(1);
        assert!(matches!(ready.outcome(), Some(Outcome::Finished(1))));
    });
}

#[test]
fn a_ready_request_is_finished_and_never_scheduled() {
    in_both_worlds(|| {
        let drops = Count::new();
        let ready = Request::ready(drops.probe());
        assert!(ready.is_done());
        assert_eq!(ready.state(), State::Finished);
        assert_eq!(ready.assigned_worker(), None);
        ready.submit();
        ready.to_untyped().wait().unwrap();
        let (second, name) = (ready.clone(), ready.name().to_owned());
        assert!(!name.is_empty());
        drop((ready, second));
        assert_eq!(drops.get(), 1);
        assert_eq!(Request::ready(3).take().unwrap(), 3);
        // Also in a thread that no runtime knows.
        assert_eq!(thread::spawn(|| *Request::ready(4).wait().unwrap()).joined().unwrap(), 4);
    });
}

/// A value that is only `Send` is waited for and taken where it was ordered.
#[test]
fn a_value_that_is_not_sync_may_be_used_where_it_was_ordered() {
    in_both_worlds(|| {
        let request = spawn(|| Cell::new(1));
        request.wait().unwrap().set(2);
        assert_eq!(request.take().unwrap().get(), 2);
    });
}

#[test]
fn large_and_strictly_aligned_callables_and_values_are_kept_whole() {
    #[repr(align(256))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Aligned([u8; 3]);
    in_both_worlds(|| {
        let big = [7_u64; 1000];
        let sum = spawn(move || big.iter().sum::<u64>());
        assert_eq!(sum.take().unwrap(), 7000);
        let value = Request::new(|| [9_u64; 5000]);
        assert_eq!(value.wait().unwrap()[4999], 9);
        let aligned = Aligned([1, 2, 3]);
        let request = Request::new(move || {
            assert_eq!((&raw const aligned).addr() % 256, 0);
            aligned
        });
        let lent = request.wait().unwrap();
        assert_eq!(((&raw const *lent).addr() % 256, *lent), (0, aligned));
        assert_eq!(spawn(move || aligned).take().unwrap(), aligned);
        spawn(|| ()).take().unwrap();
    });
}

// ---- what is dropped when ------------------------------------------------------------------------------------------------

#[test]
fn captured_values_are_dropped_when_the_callable_has_returned() {
    in_both_worlds(|| {
        let drops = Count::new();
        let captured = drops.probe();
        let request = Request::new(move || {
            let _used = &captured;
            1
        });
        assert_eq!(drops.get(), 0);
        request.wait().unwrap();
        assert_eq!(drops.get(), 1, "though the handle is still there");
        // And when it failed.
        let captured = drops.probe();
        let request = Request::<u32>::try_new(move || {
            let _used = &captured;
            Err(forebear::Error::other("no"))
        });
        assert!(request.wait().is_err());
        assert_eq!(drops.get(), 2);
    });
}

#[test]
fn the_value_is_dropped_with_the_last_handle() {
    in_both_worlds(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = Request::new(move || probe);
        let (other, any) = (request.clone(), request.to_untyped());
        request.wait().unwrap();
        drop(request);
        assert_eq!(drops.get(), 0);
        drop(other);
        assert_eq!(drops.get(), 1, "an untyped handle does not keep it");
        assert!(any.is_done());
        any.wait().unwrap();
    });
}

#[test]
fn the_value_of_a_request_without_handles_is_dropped_when_it_ends() {
    in_both_worlds(|| {
        let drops = Count::new();
        let (go, probe) = (Flag::new(), drops.probe());
        let may = go.clone();
        let request = Request::builder().own_stack().spawn(move || {
            may.wait();
            probe
        });
        let any = request.to_untyped();
        drop(request);
        go.raise();
        any.wait().unwrap();
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn a_childs_value_goes_before_its_parent_ends_if_the_parent_dropped_it() {
    inside_each(|| {
        let drops = Count::new();
        for _ in 0..5 {
            let probe = drops.probe();
            let child = spawn(move || probe);
            child.wait().unwrap();
            let before = drops.get();
            drop(child);
            assert_eq!(drops.get(), before + 1);
        }
    });
}

#[test]
fn clean_drops_the_value_and_keeps_an_untyped_handle() {
    in_both_worlds(|| {
        let drops = Count::new();
        let probe = drops.probe();
        let request = Request::builder().name("big").build(move || probe);
        request.wait().unwrap();
        let other = request.clone();
        let rest = request.into_untyped();
        assert_eq!(drops.get(), 0, "there is another who can reach it");
        drop(other.into_untyped());
        assert_eq!(drops.get(), 1);
        assert_eq!((rest.is_done(), rest.state(), rest.name()), (true, State::Finished, "big"));
        rest.wait().unwrap();
    });
}

#[test]
fn an_unsubmitted_request_whose_last_handle_goes_ends_cancelled_on_the_spot() {
    in_both_worlds(|| {
        let (drops, ran) = (Count::new(), Arc::new(AtomicBool::new(false)));
        let (probe, flag) = (drops.probe(), ran.clone());
        let request = Request::new(move || {
            flag.store(true, Ordering::Relaxed);
            drop(probe);
        });
        let (other, any) = (request.clone(), request.to_untyped());
        drop(request);
        assert!(!any.is_done(), "there is another handle");
        drop(other);
        assert_eq!(any.state(), State::Cancelled);
        assert_eq!(drops.get(), 1, "the callable is gone, unrun");
        assert!(matches!(
            any.wait(),
            Err(WaitError::TargetCancelled(CancelReason::Asked | CancelReason::Other(_)))
        ));
        assert!(!ran.load(Ordering::Relaxed));
    });
}

/// Somebody waits by an untyped handle when the request is dropped unsubmitted: waiting submits, so it runs.
#[test]
fn what_an_untyped_handle_waits_for_is_run_though_the_typed_ones_go() {
    on_each(|runtime| {
        for _ in 0..30 {
            let request = runtime.enter(|| Request::new(|| ()));
            let any = request.to_untyped();
            let start = Barrier::new(2);
            thread::scope(|threads| {
                let waiter = threads.spawn(|| {
                    start.wait();
                    // Whichever came first: it ran, or it was cancelled, but the wait comes back.
                    let _ = any.wait();
                    assert!(any.is_done());
                });
                start.wait();
                drop(request);
                join_all([waiter]);
            });
        }
    });
}

#[test]
fn handles_may_be_cloned_and_dropped_from_many_threads_at_once() {
    on_each(|runtime| {
        let drops = Count::new();
        for _ in 0..20 {
            let probe = drops.probe();
            let before = drops.get();
            let request = runtime.spawn(move || probe);
            let start = Barrier::new(4);
            thread::scope(|threads| {
                let start = &start;
                join_all([(); 4].map(|()| {
                    let request = request.clone();
                    threads.spawn(move || {
                        start.wait();
                        for _ in 0..50 {
                            let more = request.clone();
                            let any = more.to_untyped();
                            drop((any.clone(), more));
                            drop(any);
                        }
                    })
                }));
            });
            request.wait().unwrap();
            assert_eq!(drops.get(), before);
            drop(request);
            assert_eq!(drops.get(), before + 1);
        }
    });
}
