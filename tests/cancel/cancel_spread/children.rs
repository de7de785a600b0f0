//! To a child, whatever it is doing, also while it is being made.

use std::sync::mpsc;
use std::thread;

use forebear::{CancelReason, Cancellation, Priority, Request, State, check_cancelled, is_cancelled, spawn};

use super::cancelling::{Gate, asleep, ends_cancelled};
use super::support::order::root;
use super::support::{Come, Count, Flag, hold_thread_until, on_each, on_each_of, until};
use super::{Sleep, sleeping, spreads_to, support};

#[test]
fn to_a_child_that_is_queued_or_has_just_started() {
    spreads_to(|gate| spawn(sleeping(gate)).to_untyped());
    spreads_to(|gate| {
        let [a, b, c] = [(); 3].map(|()| spawn(sleeping(gate)));
        drop((a, c));
        b.to_untyped()
    });
}

#[test]
fn to_a_child_that_sleeps() {
    spreads_to(|gate| {
        let child = spawn(sleeping(gate));
        asleep(&child);
        child.to_untyped()
    });
}

#[test]
fn to_a_child_with_a_stack_of_its_own() {
    spreads_to(|gate| Request::builder().own_stack().spawn(sleeping(gate)).to_untyped());
    spreads_to(|gate| {
        let child = Request::builder().own_stack().spawn(sleeping(gate));
        asleep(&child);
        child.to_untyped()
    });
}

#[test]
fn to_a_child_with_a_priority_of_its_own() {
    for priority in [Priority::URGENT, Priority::BACKGROUND] {
        spreads_to(move |gate| {
            let child = Request::builder().priority(priority).spawn(sleeping(gate));
            assert!(child.to_untyped().parent() == Request::current());
            asleep(&child);
            child.to_untyped()
        });
    }
    spreads_to(|gate| Request::builder().priority(Priority::BACKGROUND).spawn(sleeping(gate)).to_untyped());
}

#[test]
fn to_a_child_on_another_worker() {
    on_each_of(&[2, 4], |runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            // Held until another worker has it.
            let started = Flag::new();
            let up = started.clone();
            let sleep = sleeping(&closed);
            let child: Sleep = Request::builder().own_stack().spawn(move || {
                up.raise();
                sleep()
            });
            hold_thread_until(|| started.is_up());
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&child);
        asleep(&parent);
        assert_ne!(child.assigned_worker(), parent.assigned_worker());
        parent.cancel();
        ends_cancelled(&child);
        ends_cancelled(&parent);
    });
}

/// The child was private to its maker, and was claimed by somebody who has a handle, who wants it while it waits.
#[test]
fn to_a_child_that_another_request_runs_when_that_goes() {
    on_each_of(&[2, 4], |runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let started = Flag::new();
            let (up, sleep) = (started.clone(), sleeping(&closed));
            let child: Sleep = spawn(move || {
                up.raise();
                sleep()
            });
            give.send(child).unwrap();
            // Held until somebody else has it.
            hold_thread_until(|| started.is_up());
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        let other = crate::cancelling::waiter(runtime, &child);
        asleep(&child);
        asleep(&parent);
        parent.cancel();
        ends_cancelled(&parent);
        assert!(!child.is_cancelled());
        assert_eq!(other.cancel(), Cancellation::Marked);
        ends_cancelled(&other);
        ends_cancelled(&child);
    });
}

#[test]
fn to_a_child_that_runs_on_its_stack() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = Request::new(sleeping(&closed));
            give.send(child.clone()).unwrap();
            child.wait().cloned()
        });
        let child = given.come().unwrap();
        asleep(&child);
        parent.cancel();
        assert_eq!(ends_cancelled(&child), CancelReason::Parent);
        ends_cancelled(&parent);
    });
}

/// A parent that sleeps on the worker that its child computes on: the child asks in vain unless asking looks.
#[test]
fn to_a_child_that_computes_and_asks() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = spawn(move || hold_thread_until(is_cancelled));
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        until(|| child.state() == State::Running);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&child);
        ends_cancelled(&parent);
    });
}

#[test]
fn to_a_child_that_computes_on_its_stack_and_asks() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let started = Flag::new();
        let up = started.clone();
        let parent = root(runtime).spawn(move || {
            let child = Request::new(move || {
                up.raise();
                hold_thread_until(|| check_cancelled().is_err());
            });
            child.wait().copied()
        });
        started.wait();
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&parent);
    });
}

/// The original let a cancelled parent see a child whose lock did not exist yet.
#[test]
fn d28_a_child_that_is_made_while_its_parent_is_cancelled_is_reached_or_born_so() {
    let _not =
        support::not_on(support::Modes::Synchronous, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (made, ended) = (Count::new(), Count::new());
        for round in 0..100_u64 {
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let started = Flag::new();
            let (up, born, over) = (started.clone(), made.clone(), ended.clone());
            let parent = root(runtime).spawn(move || {
                up.raise();
                for n in 0..500 {
                    let child = match (round + n) % 5 {
                        0 => spawn(sleeping(&closed)),
                        1 => Request::new(sleeping(&closed)),
                        2 => Request::builder().own_stack().spawn(sleeping(&closed)),
                        3 => Request::builder().priority(Priority::URGENT).spawn(sleeping(&closed)),
                        _ => {
                            let sleep = sleeping(&closed);
                            spawn(move || spawn(sleep).take()?)
                        }
                    };
                    born.up();
                    let over = over.clone();
                    child.on_done(move |_| _ = over.up());
                    child.submit();
                    give.send(child).unwrap();
                    if is_cancelled() {
                        break;
                    }
                }
                hold_thread_until(is_cancelled);
            });
            started.wait();
            for _ in 0..round {
                thread::yield_now();
            }
            parent.cancel();
            ends_cancelled(&parent);
            for child in given {
                assert_eq!(ends_cancelled(&child), CancelReason::Parent);
            }
        }
        assert_eq!(made.get(), ended.get());
    });
}
