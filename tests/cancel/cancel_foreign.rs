//! Requests that run in foreign threads: they are told there, and so is what they made, wherever it is.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use cancelling::{Gate, asleep, ends_cancelled, sleeper, was_cancelled};
use forebear::{
    AnyRequest, CancelReason, Cancellation, Request, Runtime, State, WaitError, check_cancelled,
    is_cancelled, join, scope, spawn, yield_now,
};
use support::order::root;
use support::{Come, Flag, Joined, hold_thread_until, on_each, until};

/// Has a thread of its own run a request directly. Returns when that has begun.
fn run_elsewhere<T: Send + Sync + 'static>(
    runtime: &Runtime,
    body: impl FnOnce() -> T + Send + 'static,
) -> (Request<T>, JoinHandle<()>) {
    let started = Flag::new();
    let up = started.clone();
    let request = Request::builder().name("elsewhere").on(runtime).build(move || {
        up.raise();
        body()
    });
    let runs = request.clone();
    let thread = thread::spawn(move || _ = runs.wait());
    until(|| started.is_up());
    assert_eq!(request.assigned_worker(), None);
    (request, thread)
}

fn sleeping(gate: &Request<()>) -> impl FnOnce() -> Result<(), WaitError> + Send + 'static {
    let gate = gate.clone();
    move || gate.wait().copied()
}

// ---- the request itself -------------------------------------------------------------------------------------------------

#[test]
fn its_wait_is_ended_at_once() {
    type Way = fn(&Request<()>) -> Result<(), WaitError>;
    let ways: [Way; 4] = [
        |gate| gate.wait().copied(),
        |gate| gate.watch().copied(),
        |gate| gate.wait_timeout(std::time::Duration::MAX).copied(),
        |gate| gate.to_untyped().wait(),
    ];
    for way in ways {
        on_each(|runtime| {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let (tell, told) = mpsc::channel();
            let (request, thread) = run_elsewhere(runtime, move || {
                tell.send(way(&closed)).unwrap();
                assert!(is_cancelled() && check_cancelled().is_err() && yield_now().is_err());
                assert!(matches!(closed.wait(), Err(WaitError::Cancelled)), "and every further one");
            });
            // The thread that runs it is demand.
            assert_eq!(request.cancel(), Cancellation::Vetoed);
            assert_eq!(request.abort(CancelReason::Other(1)), Cancellation::Marked);
            assert!(matches!(told.come().unwrap(), Err(WaitError::Cancelled)));
            assert_eq!(ends_cancelled(&request), CancelReason::Other(1));
            thread.joined().unwrap();
        });
    }
}

#[test]
fn it_learns_while_it_computes_or_yields() {
    on_each(|runtime| {
        let (computes, one) = run_elsewhere(runtime, || hold_thread_until(is_cancelled));
        let (yields, two) = run_elsewhere(runtime, || until(|| yield_now().is_err()));
        for request in [&computes, &yields] {
            request.abort(CancelReason::Asked);
            ends_cancelled(request);
        }
        one.joined().unwrap();
        two.joined().unwrap();
    });
}

#[test]
fn what_it_lent_its_stack_to_is_asked_in_turn() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let (request, thread) = run_elsewhere(runtime, move || {
            let child = Request::new(move || {
                let grandchild = Request::new(sleeping(&closed));
                let answer = grandchild.wait().cloned();
                assert!(is_cancelled());
                (grandchild, answer)
            });
            give.send(child.clone()).unwrap();
            assert!(matches!(child.wait(), Err(WaitError::Cancelled)));
        });
        let child = given.come().unwrap();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        ends_cancelled(&child);
        thread.joined().unwrap();
    });
}

/// In one thread, requests of several runtimes may stand on each other.
#[test]
fn what_it_lent_its_stack_to_may_be_of_another_runtime() {
    on_each(|runtime| {
        let other = support::runtime(1);
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let theirs = other.clone();
        let (request, thread) = run_elsewhere(runtime, move || {
            let guest = Request::builder().on(&theirs).build(move || {
                let child = Request::builder().on(&theirs).own_stack().spawn(sleeping(&closed));
                give.send((Request::current().unwrap(), child.to_untyped())).unwrap();
                closed.wait().copied()
            });
            let _ = guest.wait();
            assert!(is_cancelled());
        });
        let (guest, child) = given.come().unwrap();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        was_cancelled(&guest);
        was_cancelled(&child);
        thread.joined().unwrap();
    });
}

// ---- what it made -------------------------------------------------------------------------------------------------------

/// Runs `then` in a foreign thread's request that has made children on workers, aborts that, and checks that they end.
#[track_caller]
fn children_end_while_it(then: impl Fn(&Request<()>) + Send + Copy + 'static) {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let (request, thread) = run_elsewhere(runtime, move || {
            let (sleep, deeper) = (sleeping(&closed), sleeping(&closed));
            let child = spawn(move || {
                let grandchild = Request::builder().own_stack().spawn(deeper);
                asleep(&grandchild);
                (sleep(), grandchild.to_untyped())
            });
            let queued = spawn(sleeping(&closed));
            asleep(&child);
            give.send([child.to_untyped(), queued.to_untyped()]).unwrap();
            drop((child, queued));
            then(&closed);
        });
        let children = given.come().unwrap();
        request.abort(CancelReason::Asked);
        children.iter().for_each(|child| _ = was_cancelled(child));
        ends_cancelled(&request);
        thread.joined().unwrap();
    });
}

#[test]
fn its_children_are_reached_while_it_waits() {
    children_end_while_it(|gate| assert!(matches!(gate.wait(), Err(WaitError::Cancelled))));
}

#[test]
fn its_children_are_reached_when_it_looks() {
    children_end_while_it(|_| hold_thread_until(|| check_cancelled().is_err()));
    children_end_while_it(|_| until(|| yield_now().is_err()));
}

#[test]
fn its_children_are_reached_though_it_never_looks_and_ends() {
    children_end_while_it(|_| {
        let me = Request::current().unwrap();
        hold_thread_until(|| me.is_cancelled());
    });
}

#[test]
fn its_children_are_reached_while_it_is_in_a_scope() {
    children_end_while_it(|gate| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| gate.wait().copied());
                }
            });
        }));
        assert!(is_cancelled());
        drop(caught);
    });
}

#[test]
fn its_arms_and_children_are_reached_while_it_joins() {
    children_end_while_it(|gate| {
        let begun = Flag::new();
        let (first, second) = join(
            || begun.wait(),
            || {
                begun.raise();
                gate.wait().copied()
            },
        );
        assert!(matches!((first, second), ((), Err(WaitError::Cancelled))));
    });
}

#[test]
fn in_a_shielded_region_they_are_not_reached_before_its_end() {
    on_each(|runtime| {
        let (mut gate, shut) = (Gate::new(runtime), Gate::new(runtime));
        let (inside, closed) = (gate.request(), shut.request());
        let (give, given) = mpsc::channel();
        let (request, thread) = run_elsewhere(runtime, move || {
            let child = Request::builder().own_stack().spawn(sleeping(&closed));
            asleep(&child);
            forebear::shield(|| {
                give.send(child.clone()).unwrap();
                inside.wait().unwrap();
                assert_eq!(spawn(|| 7).take().unwrap(), 7);
            });
            assert!(matches!(closed.wait(), Err(WaitError::Cancelled)));
        });
        let child = given.come().unwrap();
        request.abort(CancelReason::Asked);
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!child.is_cancelled() && !request.is_done());
        gate.open();
        ends_cancelled(&request);
        ends_cancelled(&child);
        thread.joined().unwrap();
    });
}

// ---- orphans ------------------------------------------------------------------------------------------------------------

/// A request made on a worker runs in a foreign thread, makes children, and ends: they are its parent's.
fn orphans(runtime: &Runtime, gate: &Gate, exits: bool) -> (Request<Result<(), WaitError>>, Vec<AnyRequest>) {
    let (closed, stays) = (gate.request(), gate.request());
    let (give, given) = mpsc::channel();
    let grandparent = root(runtime).name("grandparent").spawn(move || {
        let parent = Request::builder().name("parent").build(move || {
            let children: [Request<_>; 2] = [(); 2].map(|()| {
                let child = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            children.map(|child| child.to_untyped()).to_vec()
        });
        give.send(parent).unwrap();
        stays.wait().copied()
    });
    let parent = given.come().unwrap();
    asleep(&grandparent);
    let children = match exits {
        true => thread::spawn(move || parent.wait().unwrap().clone()).joined().unwrap(),
        false => parent.wait().unwrap().clone(),
    };
    (grandparent, children)
}

#[test]
fn orphans_of_a_thread_that_does_something_else_are_reached() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (grandparent, children) = orphans(runtime, &gate, false);
        grandparent.cancel();
        ends_cancelled(&grandparent);
        // Not by this thread, which does not wait for anything.
        hold_thread_until(|| children.iter().all(AnyRequest::is_done));
        children.iter().for_each(|child| _ = was_cancelled(child));
    });
}

#[test]
fn orphans_of_a_thread_that_has_gone_are_reached() {
    let _not =
        support::not_on(support::Modes::Seeded, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (grandparent, children) = orphans(runtime, &gate, true);
        grandparent.cancel();
        ends_cancelled(&grandparent);
        hold_thread_until(|| children.iter().all(AnyRequest::is_done));
        children.iter().for_each(|child| _ = was_cancelled(child));
    });
}

/// The cancel comes while the thread runs the parent, which then ends.
#[test]
fn orphans_of_a_cancelled_request_are_reached_when_it_ends() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (give, given) = mpsc::channel();
        let (request, thread) = run_elsewhere(runtime, move || {
            let child = Request::builder().own_stack().spawn(sleeping(&closed));
            asleep(&child);
            let me = Request::current().unwrap();
            give.send(child.to_untyped()).unwrap();
            hold_thread_until(|| me.is_cancelled());
        });
        let child = given.come().unwrap();
        request.abort(CancelReason::Asked);
        was_cancelled(&child);
        ends_cancelled(&request);
        thread.joined().unwrap();
    });
}

#[test]
fn who_cancels_runs_no_more_than_it_must() {
    let _not = support::not_on(support::Modes::Both, "the thread that waits is the worker");
    on_each(|runtime| {
        // A foreign thread cancels what sleeps on workers: their code runs there.
        let gate = Gate::new(runtime);
        let sleepers: Vec<_> = (0..10).map(|_| sleeper(runtime, &gate)).collect();
        let me = thread::current().id();
        let (tell, told) = mpsc::channel();
        for sleeper in &sleepers {
            let tell = tell.clone();
            sleeper.on_cancelled(move || tell.send(thread::current().id()).unwrap());
        }
        drop(tell);
        sleepers.iter().for_each(|sleeper| _ = sleeper.cancel());
        sleepers.iter().for_each(|sleeper| _ = ends_cancelled(sleeper));
        assert!(told.iter().all(|ran_on| ran_on != me));
        assert!(sleepers.iter().all(|sleeper| sleeper.state() == State::Cancelled));
    });
}

/// Threads come and go, each running a request that makes children, while their common parent is cancelled.
#[test]
fn a_storm_of_threads_that_run_children_of_a_cancelled_request() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        for round in 0..20 {
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let parent = root(runtime).spawn(move || {
                let children: Vec<_> = (0..8)
                    .map(|_| {
                        let closed = closed.clone();
                        Request::new(move || {
                            let child = Request::builder().own_stack().spawn(sleeping(&closed));
                            drop(spawn(sleeping(&closed)));
                            child.to_untyped()
                        })
                    })
                    .collect();
                give.send(children).unwrap();
                closed.wait().copied()
            });
            let children = given.come().unwrap();
            asleep(&parent);
            let threads: Vec<_> = children
                .iter()
                .map(|child| {
                    let child = child.clone();
                    thread::spawn(move || drop(child.wait().cloned()))
                })
                .collect();
            for _ in 0..round * 7 {
                thread::yield_now();
            }
            // What is over now has left its children to the parent; the others are wanted by who runs them.
            let over: Vec<_> = children.iter().filter(|child| child.is_done()).cloned().collect();
            parent.cancel();
            ends_cancelled(&parent);
            for child in over {
                was_cancelled(child.wait().unwrap());
            }
            for thread in threads {
                thread.joined().unwrap();
            }
            for child in children {
                if let Ok(orphan) = child.watch() {
                    orphan.cancel();
                    was_cancelled(orphan);
                }
            }
        }
    });
}
