//! What a failure does to the family of who failed: its unfinished children are cancelled, if nobody else wants them.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::panic::resume_unwind;
use std::sync::mpsc;

use cancelling::{Gate, asleep, ends_cancelled, waiter, was_cancelled};
use forebear::{AnyRequest, CancelReason, Error, Priority, Request, State, WaitError, spawn};
use support::order::root;
use support::{Come, Count, on_each, until};

type Sleep = Request<Result<(), WaitError>>;

/// Has a request make children by `make`, then fail, by a panic and by an error.
fn failing<C: Send + 'static>(
    make: impl Fn(&Request<()>) -> C + Send + Copy + 'static,
    then: impl Fn(C, &forebear::Runtime, &mut Gate),
) {
    on_each(|runtime| {
        for by_panic in [true, false] {
            let mut gate = Gate::new(runtime);
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let parent = root(runtime).try_spawn(move || {
                give.send(make(&closed)).unwrap();
                match by_panic {
                    true => resume_unwind(Box::new("failed")),
                    false => Err::<(), _>(Error::other("failed")),
                }
            });
            let made = given.come().unwrap();
            assert!(matches!(parent.watch(), Err(WaitError::Failed(_))));
            then(made, runtime, &mut gate);
            assert!(matches!(parent.watch(), Err(WaitError::Failed(_))));
            assert!(!parent.is_cancelled());
        }
    });
}

fn sleeping(gate: &Request<()>) -> impl FnOnce() -> Result<(), WaitError> + Send + 'static {
    let gate = gate.clone();
    move || gate.wait().copied()
}

/// In the original they went on computing, for nobody.
#[test]
fn d26_the_children_of_a_failed_request_are_cancelled() {
    failing(
        |gate| -> Vec<AnyRequest> {
            let asleep_here = spawn(sleeping(gate));
            asleep(&asleep_here);
            let elsewhere = Request::builder().own_stack().spawn(sleeping(gate));
            asleep(&elsewhere);
            let urgent = Request::builder().priority(Priority::URGENT).spawn(sleeping(gate));
            let queued: Vec<_> = (0..10).map(|_| spawn(sleeping(gate))).collect();
            let queued_on_their_own = Request::builder().own_stack().spawn(sleeping(gate));
            [asleep_here, elsewhere, urgent, queued_on_their_own]
                .iter()
                .chain(&queued)
                .map(Request::to_untyped)
                .collect()
        },
        |children, _, _| {
            for child in children {
                assert_eq!(was_cancelled(&child), CancelReason::ParentFailed);
            }
        },
    );
}

#[test]
fn and_what_those_have_made() {
    failing(
        |gate| {
            let (give, given) = mpsc::channel();
            let sleep = (sleeping(gate), sleeping(gate));
            let child = Request::builder().own_stack().spawn(move || {
                let grandchild = spawn(sleep.0);
                asleep(&grandchild);
                give.send(grandchild.to_untyped()).unwrap();
                (sleep.1)()
            });
            asleep(&child);
            (child, given.come().unwrap())
        },
        |(child, grandchild), _, _| {
            assert_eq!(ends_cancelled(&child), CancelReason::ParentFailed);
            assert_eq!(was_cancelled(&grandchild), CancelReason::Parent);
        },
    );
}

#[test]
fn not_those_that_somebody_else_waits_for() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let go = Gate::new(runtime);
        let may = go.request();
        let parent = root(runtime).spawn(move || {
            let children: [Sleep; 2] = [(); 2].map(|()| {
                let child = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            give.send(children).unwrap();
            may.wait().unwrap();
            resume_unwind(Box::new("failed"))
        });
        let [kept, dropped] = given.come().unwrap();
        let (keeper, dropper) = (waiter(runtime, &kept), waiter(runtime, &dropped));
        drop(go);
        let answer: Result<&(), _> = parent.watch();
        assert!(matches!(answer, Err(WaitError::Failed(_))));
        assert!(!kept.is_cancelled() && !dropped.is_cancelled());
        // And they remember.
        dropper.cancel();
        // The waiter that goes asks too: either may be the reason.
        assert!(matches!(ends_cancelled(&dropped), CancelReason::ParentFailed | CancelReason::Asked));
        gate.open();
        assert!(keeper.take().unwrap().is_ok() && kept.take().unwrap().is_ok());
    });
}

#[test]
fn never_those_that_have_ended_before() {
    failing(
        |_| {
            let bad = spawn(|| -> u32 { resume_unwind(Box::new("first")) });
            let good = spawn(|| 7);
            let gone = Request::new(|| 8);
            gone.cancel();
            assert!(bad.wait().is_err() && good.wait().is_ok());
            until(|| gone.is_done());
            (bad, good, gone)
        },
        |(bad, good, gone), _, _| {
            assert_eq!(
                (bad.state(), good.state(), gone.state()),
                (State::Failed, State::Finished, State::Cancelled)
            );
            assert!(matches!(bad.wait(), Err(WaitError::Failed(failure)) if failure.is_panic()));
            assert_eq!(good.take().unwrap(), 7);
            assert_eq!(ends_cancelled(&gone), CancelReason::Asked);
        },
    );
}

#[test]
fn not_those_that_are_detached() {
    failing(
        |gate| {
            let child = Request::builder().detached().spawn(sleeping(gate));
            asleep(&child);
            child
        },
        |child, _, gate| {
            assert!(!child.is_cancelled());
            gate.open();
            child.take().unwrap().unwrap();
        },
    );
}

/// Orphans of a child that is over are the failed one's too.
#[test]
fn through_children_that_are_over() {
    failing(
        |gate| {
            let sleep = sleeping(gate);
            let middle = spawn(move || {
                let orphan = spawn(sleep);
                asleep(&orphan);
                orphan.to_untyped()
            });
            middle.take().unwrap()
        },
        |orphan, _, _| {
            assert!(matches!(was_cancelled(&orphan), CancelReason::Parent | CancelReason::ParentFailed))
        },
    );
}

/// A failing child does not touch its siblings, unless its parent fails by it.
#[test]
fn a_failed_childs_siblings_go_with_their_parent_only() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        for handed_on in [false, true] {
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let parent = root(runtime).try_spawn(move || {
                let sibling = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&sibling);
                give.send(sibling).unwrap();
                let bad = spawn(|| -> u32 { resume_unwind(Box::new("bad")) });
                let answer = bad.take().map(drop);
                if handed_on { Ok(answer?) } else { Ok(()) }
            });
            let sibling = given.come().unwrap();
            assert_eq!(parent.watch().is_err(), handed_on);
            match handed_on {
                true => assert_eq!(ends_cancelled(&sibling), CancelReason::ParentFailed),
                false => {
                    assert!(!sibling.is_cancelled());
                    gate.open();
                    sibling.take().unwrap().unwrap();
                    gate = Gate::new(runtime);
                }
            }
        }
    });
}

/// A success callback that panics makes a failure of it: that counts.
#[test]
fn also_when_it_fails_by_a_callback() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).build(move || {
            let child = spawn(sleeping(&closed));
            asleep(&child);
            give.send(child).unwrap();
        });
        parent.on_finished(|()| resume_unwind(Box::new("too bad")));
        parent.submit();
        let child = given.come().unwrap();
        assert!(matches!(parent.watch(), Err(WaitError::Failed(_))));
        assert_eq!(ends_cancelled(&child), CancelReason::ParentFailed);
    });
}

#[test]
fn d24_what_the_cancelled_children_had_captured_is_dropped() {
    on_each(|runtime| {
        let drops = Count::new();
        let probes = drops.clone();
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let parent = root(runtime).spawn(move || {
            for n in 0..30 {
                let (probe, sleep) = (probes.probe(), sleeping(&closed));
                let body = move || {
                    let _probe = probe;
                    sleep()
                };
                match n % 3 {
                    0 => drop(spawn(body)),
                    1 => drop(Request::builder().own_stack().spawn(body)),
                    _ => drop(Request::new(body)),
                }
            }
            resume_unwind(Box::new("failed"))
        });
        let answer: Result<&(), _> = parent.watch();
        assert!(answer.is_err());
        until(|| drops.get() == 30);
    });
}
