//! Shielded regions: a cancel is held back until the region ends.

#[path = "shield/arms.rs"]
mod arms;
#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, sleeper, was_cancelled};
use forebear::sync::Event;
use forebear::{
    CancelReason, Cancellation, Request, Runtime, State, TimeoutError, WaitError, check_cancelled,
    is_cancelled, join, shield, spawn, yield_now,
};
use support::order::root;
use support::{Come, Count, Flag, hold_thread_until, in_both_worlds, on_each, on_each_of, until};

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(20);

fn cancel_me() {
    assert_eq!(Request::current().unwrap().abort(CancelReason::Asked), Cancellation::Marked);
}

#[test]
fn outside_any_request_it_only_calls() {
    in_both_worlds(|| {
        assert_eq!(shield(|| shield(|| 7)), 7);
        let caught = catch_unwind(|| shield(|| std::panic::resume_unwind(Box::new(1))));
        assert!(caught.is_err());
        assert_eq!(shield(|| spawn(|| 8).take().unwrap()), 8);
    });
}

#[test]
fn inside_the_current_request_does_not_look_cancelled_and_may_wait() {
    in_both_worlds(|| {
        let request = Request::new(|| {
            shield(|| {
                cancel_me();
                assert!(!is_cancelled() && check_cancelled().is_ok() && yield_now().is_ok());
                assert_eq!(spawn(|| 1).take().unwrap(), 1);
                assert_eq!(spawn(|| 2).wait().unwrap(), &2);
                assert_eq!(Request::new(|| 3).wait().unwrap(), &3);
                assert_eq!(Request::builder().own_stack().build(|| 4).wait().unwrap(), &4);
                assert_eq!(Request::new(|| 5).wait_timeout(Duration::MAX).unwrap(), &5);
                assert_eq!(Request::new(|| 6).watch().unwrap(), &6);
                assert_eq!(Request::ready(7).take().unwrap(), 7);
                assert_eq!(join(|| spawn(|| 8).take().unwrap(), || spawn(|| 9).take().unwrap()), (8, 9));
            });
            assert!(is_cancelled() && check_cancelled().is_err() && yield_now().is_err());
            assert!(matches!(spawn(|| 1).take(), Err(WaitError::Cancelled)));
            assert!(matches!(Request::ready(1).wait(), Err(WaitError::Cancelled)));
        });
        // To everybody else it is cancelled all the while.
        assert!(request.wait().is_err());
        ends_cancelled(&request);
    });
}

#[test]
fn a_cancel_that_comes_from_elsewhere_ends_no_wait_inside() {
    on_each(|runtime| {
        let (mut first, second) = (Gate::new(runtime), Gate::new(runtime));
        let (inside, outside) = (first.request(), second.request());
        let (tell, told) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            tell.send(shield(|| inside.wait().copied())).unwrap();
            tell.send(outside.wait().copied()).unwrap();
        });
        asleep(&request);
        for _ in 0..3 {
            assert_eq!(request.cancel(), Cancellation::Marked);
        }
        assert!(request.is_cancelled());
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert_eq!(request.state(), State::Suspended);
        assert!(told.try_recv().is_err());
        first.open();
        assert!(told.come().unwrap().is_ok());
        assert!(matches!(told.come().unwrap(), Err(WaitError::Cancelled)));
        ends_cancelled(&request);
    });
}

#[test]
fn children_and_targets_are_not_told_before_it_ends() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let shut = Gate::new(runtime);
        let (inside, closed, (give, given)) = (gate.request(), shut.request(), mpsc::channel());
        let request = root(runtime).spawn(move || {
            let [a, b] = [closed.clone(), closed.clone()];
            let child = Request::builder().own_stack().spawn(move || a.wait().copied());
            asleep(&child);
            shield(|| {
                let born_inside = Request::builder().own_stack().spawn(move || b.wait().copied());
                asleep(&born_inside);
                give.send((child, born_inside)).unwrap();
                inside.wait().copied().unwrap();
            });
            let _ = closed.wait();
        });
        let (child, born_inside) = given.come().unwrap();
        asleep(&request);
        request.cancel();
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!child.is_cancelled() && !born_inside.is_cancelled());
        gate.open();
        ends_cancelled(&request);
        ends_cancelled(&child);
        ends_cancelled(&born_inside);
    });
}

#[test]
fn what_is_made_inside_is_not_born_cancelled() {
    on_each(|runtime| {
        let (tell, told) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            cancel_me();
            // Before the region.
            assert!(spawn(|| ()).to_untyped().is_cancelled());
            let kept = shield(|| {
                let nested = spawn(|| spawn(|| spawn(|| 1).take().unwrap()).take().unwrap());
                assert_eq!(nested.take().unwrap(), 1);
                tell.send("all ran").unwrap();
                Request::new(|| ())
            });
            // Made inside, submitted outside.
            assert!(kept.submit().is_cancelled());
        });
        ends_cancelled(&request);
        assert_eq!(told.come().unwrap(), "all ran");
    });
}

/// The mark is there, and its notice not yet read, when the region opens.
#[test]
fn a_region_that_opens_after_the_mark_shelters_its_children() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        for way in 0..3 {
            let (started, marked) = (Flag::new(), Flag::new());
            let (up, may) = (started.clone(), marked.clone());
            let (tell, told) = mpsc::channel();
            let request = root(runtime).spawn(move || {
                up.raise();
                hold_thread_until(|| may.is_up());
                let answer = shield(|| match way {
                    0 => spawn(|| 7).take(),
                    1 => Request::builder().own_stack().spawn(|| 7).take(),
                    _ => spawn(|| spawn(|| 7).take()).take().and_then(|answer| answer),
                });
                tell.send(answer).unwrap();
            });
            started.wait();
            assert_eq!(request.cancel(), Cancellation::Marked);
            marked.raise();
            let answer = told.come().unwrap();
            assert!(matches!(answer, Ok(7)), "{answer:?}, way {way}");
            ends_cancelled(&request);
        }
    });
}

/// Whatever was asked for while the region was open is done at its end: also what was there before it.
#[test]
fn the_end_of_the_region_delivers_to_children_from_before_it() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let (started, marked) = (Flag::new(), Flag::new());
        let (up, may) = (started.clone(), marked.clone());
        let request = root(runtime).spawn(move || {
            let closed = closed.clone();
            let child = Request::builder().own_stack().spawn(move || closed.wait().copied());
            asleep(&child);
            give.send(child).unwrap();
            up.raise();
            hold_thread_until(|| may.is_up());
            // Marked already, and not told: this region is the first thing that happens.
            shield(|| yield_now().unwrap());
        });
        let child = given.come().unwrap();
        started.wait();
        request.cancel();
        marked.raise();
        ends_cancelled(&request);
        assert_eq!(ends_cancelled(&child), CancelReason::Parent);
    });
}

/// A cancelled waiter takes its target with it unless the target's creator lives, and one in a region does.
#[test]
fn what_was_made_by_one_in_a_region_is_not_told_by_a_waiter_of_its() {
    on_each(|runtime| {
        let (mut gate, never) = (Gate::new(runtime), Gate::new(runtime));
        let (closed, shut, (give, given)) = (gate.request(), never.request(), mpsc::channel());
        let parent = root(runtime).name("parent").spawn(move || {
            let (tell, told) = mpsc::channel();
            let maker = Request::builder().own_stack().spawn(move || {
                let made = Request::builder().own_stack().spawn(move || shut.wait().copied());
                asleep(&made);
                tell.send(made).unwrap();
                shield(|| closed.wait().copied())
            });
            asleep(&maker);
            let made = told.come().unwrap();
            give.send((maker, made.clone())).unwrap();
            made.wait().map(drop)
        });
        let (maker, made) = given.come().unwrap();
        asleep(&parent);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&parent);
        assert!(maker.is_cancelled() && !made.is_cancelled(), "held back until the region ends");
        gate.open();
        ends_cancelled(&maker);
        ends_cancelled(&made);
    });
}

#[test]
fn regions_nest_and_the_outermost_counts() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            shield(|| {
                shield(|| {
                    cancel_me();
                    shield(|| assert!(!is_cancelled()));
                });
                assert!(!is_cancelled() && yield_now().is_ok());
                assert_eq!(spawn(|| 1).take().unwrap(), 1);
            });
            assert!(is_cancelled());
            // One that opens after the cancel.
            shield(|| assert!(!is_cancelled() && yield_now().is_ok() && spawn(|| 1).take().is_ok()));
            assert!(is_cancelled() && yield_now().is_err());
        });
        ends_cancelled(&request);
    });
}

#[test]
fn a_panic_inside_ends_the_region() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                shield(|| {
                    shield(cancel_me);
                    std::panic::resume_unwind(Box::new("out"))
                })
            }));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"out"));
            assert!(is_cancelled() && yield_now().is_err());
        });
        ends_cancelled(&request);
        // And nothing of it is left for who is not cancelled.
        let request = root(runtime).spawn(|| {
            let _ = catch_unwind(|| shield(|| std::panic::resume_unwind(Box::new(1))));
            cancel_me();
            assert!(is_cancelled());
        });
        ends_cancelled(&request);
    });
}

/// What runs on the same stack as another request has its own say.
#[test]
fn a_region_is_its_requests_and_not_the_stacks() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            shield(|| {
                let child = Request::new(|| {
                    cancel_me();
                    assert!(is_cancelled() && yield_now().is_err());
                });
                assert!(matches!(child.wait(), Err(WaitError::TargetCancelled(_))));
                let child = Request::new(|| {
                    shield(cancel_me);
                    assert!(is_cancelled());
                });
                assert!(child.wait().is_err());
                // The child's region has not closed this one.
                cancel_me();
                assert!(!is_cancelled() && yield_now().is_ok());
            });
            assert!(is_cancelled());
        });
        ends_cancelled(&request);
    });
}

#[test]
fn a_lender_in_a_region_is_told_when_it_ends() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let lender = root(runtime).spawn(move || {
            let answer = shield(|| {
                let lent = Request::new(move || closed.wait().copied());
                give.send(lent.clone()).unwrap();
                lent.wait().unwrap().clone()
            });
            answer.unwrap();
            assert!(is_cancelled());
        });
        let lent = given.come().unwrap();
        asleep(&lent);
        assert_eq!(lender.cancel(), Cancellation::Marked);
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!lent.is_cancelled());
        // It wants it.
        assert_eq!(lent.cancel(), Cancellation::Vetoed);
        gate.open();
        ends_cancelled(&lender);
        assert_eq!(lent.state(), State::Finished);
    });
}

#[test]
fn a_waiter_in_a_region_is_demand() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let target = sleeper(runtime, &gate);
        let wants = target.clone();
        let waiter = root(runtime).spawn(move || shield(|| wants.wait().cloned()).map(drop));
        asleep(&waiter);
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        gate.open();
        ends_cancelled(&waiter);
        assert_eq!(target.state(), State::Finished);
    });
}

#[test]
fn callbacks_of_a_cancelled_request_may_wait_in_a_region() {
    in_both_worlds(|| {
        let cleaned = Count::new();
        let (up, down) = (cleaned.clone(), cleaned.clone());
        let request = Request::new(|| ());
        request.on_cancelled(move || {
            assert!(matches!(spawn(|| 1).take(), Err(WaitError::Cancelled)));
            assert_eq!(shield(|| spawn(|| 1).take()).unwrap(), 1);
            up.up();
        });
        request.on_done(move |_| {
            assert!(shield(yield_now).is_ok());
            down.up();
        });
        request.cancel();
        assert_eq!(cleaned.get(), 2);
    });
}

/// The marks fall while regions open and close, on one thread and from another.
#[test]
fn a_storm_of_regions_and_cancels_loses_no_cancel() {
    let _not = support::not_on(
        support::Modes::Synchronous,
        "what it cancels never suspends, so nothing else would run",
    );
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        for round in 0..200 {
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let started = Flag::new();
            let up = started.clone();
            let request = root(runtime).spawn(move || {
                let sleep = closed.clone();
                let child = Request::builder().own_stack().spawn(move || sleep.wait().copied());
                give.send(child.to_untyped()).unwrap();
                up.raise();
                while !is_cancelled() {
                    shield(|| {
                        let answer = spawn(|| 7).take();
                        assert!(matches!(answer, Ok(7)), "{answer:?}");
                        if round % 3 == 0 {
                            yield_now().unwrap();
                        }
                    });
                }
                assert!(matches!(closed.wait(), Err(WaitError::Cancelled)));
            });
            started.wait();
            for _ in 0..round % 17 {
                thread::yield_now();
            }
            assert_eq!(request.cancel(), Cancellation::Marked);
            ends_cancelled(&request);
            was_cancelled(&given.come().unwrap());
        }
    });
}
