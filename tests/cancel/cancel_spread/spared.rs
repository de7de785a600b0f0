//! To nobody else: whom it spares, and whom it does not concern.

use std::sync::mpsc;
use std::thread;

use forebear::{CancelReason, Cancellation, Request, State, spawn, yield_now};

use super::cancelling::{Gate, asleep, ends_cancelled, sleeper};
use super::sleeping;
use super::support::order::root;
use super::support::{Come, Joined, on_each, until};

#[test]
fn not_to_what_is_detached() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let (sleep, later) = (sleeping(&closed), sleeping(&closed));
            let detached = Request::builder().detached().spawn(move || {
                let child = spawn(sleep);
                asleep(&child);
                child.take().unwrap()
            });
            asleep(&detached);
            give.send((detached, Request::builder().detached().build(later))).unwrap();
            closed.wait().copied()
        });
        let (detached, later) = given.come().unwrap();
        parent.cancel();
        ends_cancelled(&parent);
        later.submit();
        asleep(&later);
        assert!(!detached.is_cancelled() && !later.is_cancelled());
        gate.open();
        assert!(detached.take().unwrap().is_ok() && later.take().unwrap().is_ok());
    });
}

#[test]
fn not_to_a_child_that_somebody_else_waits_for_until_they_go() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let shared = [(); 2].map(|()| {
                let child = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            give.send(shared).unwrap();
            closed.wait().copied()
        });
        let [kept, dropped] = given.come().unwrap();
        let keeper = crate::cancelling::waiter(runtime, &kept);
        let dropper = crate::cancelling::waiter(runtime, &dropped);
        asleep(&parent);
        parent.cancel();
        ends_cancelled(&parent);
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!kept.is_cancelled() && !dropped.is_cancelled(), "others want them");
        dropper.cancel();
        assert_eq!(ends_cancelled(&dropped), CancelReason::Parent);
        gate.open();
        assert!(keeper.take().unwrap().is_ok() && kept.take().unwrap().is_ok());
    });
}

#[test]
fn not_to_a_child_that_a_foreign_thread_waits_for() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(sleeping(&closed));
            asleep(&child);
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&parent);
        let wants = child.clone();
        let waiter = thread::spawn(move || wants.wait().cloned());
        // A veto shows that it waits.
        until(|| child.cancel() == Cancellation::Vetoed || child.is_cancelled());
        if !child.is_cancelled() {
            parent.cancel();
            ends_cancelled(&parent);
            assert!(!child.is_cancelled());
            gate.open();
            assert!(waiter.joined().unwrap().unwrap().is_ok());
            assert_eq!(child.state(), State::Finished);
        } else {
            drop(waiter.joined());
        }
    });
}

#[test]
fn not_from_a_child_to_its_parent_and_siblings() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let children = [(); 3].map(|()| {
                let child = spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            give.send(children).unwrap();
            closed.wait().copied()
        });
        let [a, b, c] = given.come().unwrap();
        asleep(&parent);
        // On its own, while its parent lives: which the original refused.
        assert_eq!(b.cancel(), Cancellation::Marked);
        assert_eq!(ends_cancelled(&b), CancelReason::Asked);
        assert!(![parent.is_cancelled(), a.is_cancelled(), c.is_cancelled()].contains(&true));
        gate.open();
        assert!(parent.take().unwrap().is_ok() && a.take().unwrap().is_ok() && c.take().unwrap().is_ok());
    });
}

#[test]
fn not_from_a_request_that_is_over_to_its_children() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let parent = root(runtime).spawn(move || {
            let child = spawn(sleeping(&closed));
            asleep(&child);
            child
        });
        let child = parent.watch().unwrap().clone();
        assert_eq!(parent.cancel(), Cancellation::AlreadyDone);
        assert_eq!(parent.abort(CancelReason::Other(1)), Cancellation::AlreadyDone);
        assert!(!child.is_cancelled());
        gate.open();
        assert!(child.wait().unwrap().is_ok());
    });
}

#[test]
fn not_to_strangers_on_the_same_worker() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let strangers: Vec<_> = (0..10).map(|_| sleeper(runtime, &gate)).collect();
        let family: Vec<_> = (0..10).map(|_| sleeper(runtime, &gate)).collect();
        family.iter().for_each(|member| _ = member.cancel());
        family.iter().for_each(|member| _ = ends_cancelled(member));
        assert!(strangers.iter().all(|stranger| !stranger.is_cancelled()));
        gate.open();
        strangers.into_iter().for_each(|stranger| stranger.take().unwrap().unwrap());
    });
}
