//! Born cancelled: what a cancelled request makes never runs, however it is made.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;

use cancelling::{Gate, asleep, ends_cancelled, was_cancelled};
use forebear::sync::Event;
use forebear::{
    AnyRequest, CancelReason, Cancellation, Priority, Request, Runtime, State, WaitError, join, scope, spawn,
    try_scope, try_spawn,
};
use support::order::root;
use support::{Come, Count, Flag, hold_thread_until, in_both_worlds, on_each, on_each_of, until};

/// What must not run.
fn never() -> u32 {
    unreachable!("it was born cancelled")
}

fn cancel_me() {
    assert_eq!(Request::current().unwrap().abort(CancelReason::Asked), Cancellation::Marked);
}

/// Calls `make` in a request that has cancelled itself, and checks that what it made ends so, and why.
#[track_caller]
fn born_cancelled(make: fn(&Runtime) -> AnyRequest) {
    on_each(|runtime| {
        let (give, given) = mpsc::channel();
        let request = runtime.enter(|| {
            let runtime = runtime.clone();
            Request::builder().own_stack().spawn(move || {
                cancel_me();
                give.send(make(&runtime)).unwrap();
            })
        });
        let made = given.come().unwrap();
        ends_cancelled(&request);
        assert_eq!(was_cancelled(&made), CancelReason::Parent);
        assert_eq!((made.state(), made.assigned_worker()), (State::Cancelled, None), "it never ran");
    });
}

#[test]
fn by_spawn() {
    born_cancelled(|_| spawn(never).to_untyped());
    born_cancelled(|_| try_spawn(|| Ok(never())).to_untyped());
    born_cancelled(|_| {
        let kept = [(); 20].map(|()| spawn(never));
        kept[11].to_untyped()
    });
    born_cancelled(|runtime| runtime.spawn(never).to_untyped());
}

#[test]
fn by_new() {
    born_cancelled(|_| Request::new(never).to_untyped());
    born_cancelled(|_| Request::new(never).submit().to_untyped());
    born_cancelled(|_| Request::try_new(|| Ok(never())).submit().to_untyped());
    born_cancelled(|_| {
        let request = Request::new(never);
        assert!(matches!(request.wait(), Err(WaitError::Cancelled)));
        request.to_untyped()
    });
    born_cancelled(|_| {
        let request = Request::new(never);
        let any = request.to_untyped();
        assert!(matches!(request.take(), Err(WaitError::Cancelled)));
        any
    });
    // Made before, submitted after.
    on_each(|runtime| {
        let (give, given) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let early = Request::new(never);
            cancel_me();
            give.send(early.submit().to_untyped()).unwrap();
        });
        was_cancelled(&given.come().unwrap());
        ends_cancelled(&request);
    });
}

#[test]
fn by_a_builder() {
    born_cancelled(|_| Request::builder().build(never).to_untyped());
    born_cancelled(|_| Request::builder().name("named").spawn(never).to_untyped());
    born_cancelled(|_| Request::builder().own_stack().spawn(never).to_untyped());
    born_cancelled(|_| Request::builder().stack_size(1 << 20).try_spawn(|| Ok(never())).to_untyped());
    born_cancelled(|_| Request::builder().priority(Priority::URGENT).spawn(never).to_untyped());
    born_cancelled(|runtime| Request::builder().on(runtime).spawn(never).to_untyped());
}

#[test]
fn by_a_scope() {
    born_cancelled(|_| {
        let mut made = None;
        let _ = catch_unwind(AssertUnwindSafe(|| scope(|s| made = Some(s.spawn(never).to_untyped()))));
        made.unwrap()
    });
    born_cancelled(|_| {
        let mut made = None;
        let _ = try_scope(|s| {
            made = Some(s.try_spawn(|| Ok(never())).to_untyped());
            Ok(())
        });
        made.unwrap()
    });
    born_cancelled(|_| {
        let mut made = None;
        let own = Request::builder().own_stack();
        let _ =
            catch_unwind(AssertUnwindSafe(|| scope(|s| made = Some(own.spawn_in(s, never).to_untyped()))));
        made.unwrap()
    });
}

#[test]
fn in_the_arms_of_a_join_and_both_arms_run() {
    born_cancelled(|_| join(|| spawn(never).to_untyped(), || ()).0);
    born_cancelled(|_| join(|| (), || spawn(never).to_untyped()).1);
    // The arms are the request itself: they run.
    on_each(|runtime| {
        let ran = Count::new();
        let (a, b) = (ran.clone(), ran.clone());
        let request = root(runtime).spawn(move || {
            cancel_me();
            join(|| a.up(), || b.up())
        });
        ends_cancelled(&request);
        assert_eq!(ran.get(), 2);
    });
}

/// The first arm waits, so the second one runs apart from its maker, which is cancelled meanwhile.
#[test]
fn in_an_arm_that_is_published() {
    on_each(|runtime| {
        let (give, given) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let second = || {
                cancel_me();
                // Its handle stays: without one it might end for that, before the cancel reaches it.
                let unsubmitted = Request::new(never);
                let made = [spawn(never).to_untyped(), unsubmitted.to_untyped()];
                give.send((made, unsubmitted)).unwrap();
            };
            let end = Event::new();
            join(|| end.wait(), second)
        });
        let (made, _unsubmitted) = given.come().unwrap();
        ends_cancelled(&request);
        for made in made {
            assert_eq!(was_cancelled(&made), CancelReason::Parent, "{made:?}");
            assert_eq!((made.state(), made.assigned_worker()), (State::Cancelled, None), "it never ran");
        }
    });
}

/// The worker that the maker runs on is held, and has not heard of the cancel. If it runs both arms, it knows.
#[test]
fn in_an_arm_that_cancels_its_maker_on_another_worker() {
    on_each_of(&[2, 4], |runtime| {
        let (give, given) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let (begun, held, over) = (Event::new(), Event::new(), Flag::new());
            let ran_on = Mutex::new(None);
            let here = || thread::current().id();
            let first = || {
                begun.wait().unwrap();
                held.set();
                let alone = *ran_on.lock().unwrap() == Some(here());
                hold_thread_until(|| alone || over.is_up());
            };
            let second = || {
                *ran_on.lock().unwrap() = Some(here());
                begun.set();
                held.wait().unwrap();
                cancel_me();
                give.send(spawn(never).is_done()).unwrap();
                over.raise();
            };
            join(first, second)
        });
        assert!(given.come().unwrap(), "it was born cancelled");
        ends_cancelled(&request);
    });
}

#[test]
fn in_a_callback() {
    on_each(|runtime| {
        let (give, given) = mpsc::channel();
        let request = root(runtime).build(cancel_me);
        request.on_cancelled(move || give.send(spawn(never).to_untyped()).unwrap());
        request.submit();
        ends_cancelled(&request);
        was_cancelled(&given.come().unwrap());
    });
}

#[test]
fn in_a_foreign_thread_that_runs_the_request() {
    on_each(|runtime| {
        let request = runtime.enter(|| {
            Request::new(|| {
                cancel_me();
                let made = [spawn(never), Request::new(never), Request::builder().own_stack().spawn(never)];
                made.iter().for_each(|made| {
                    made.submit();
                    assert!(made.is_done());
                });
                let jobs = catch_unwind(AssertUnwindSafe(|| scope(|s| s.spawn(never).to_untyped())));
                drop(jobs);
            })
        });
        assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
        assert_eq!(request.assigned_worker(), None);
    });
}

#[test]
fn their_callables_are_dropped_and_their_callbacks_called() {
    on_each(|runtime| {
        let (drops, told) = (Count::new(), Count::new());
        let (probes, up) = (drops.clone(), told.clone());
        let request = root(runtime).spawn(move || {
            cancel_me();
            for n in 0..10 {
                let (probe, up) = (probes.probe(), up.clone());
                let body = move || drop((probe, never()));
                let made = if n % 2 == 0 { spawn(body) } else { Request::new(body) };
                made.on_finished(|()| unreachable!()).on_cancelled(move || _ = up.up());
                made.submit();
            }
        });
        ends_cancelled(&request);
        until(|| drops.get() == 10 && told.get() == 10);
    });
}

#[test]
fn not_what_is_detached() {
    on_each(|runtime| {
        let (give, given) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            cancel_me();
            give.send(Request::builder().detached().spawn(|| spawn(|| 7).take().unwrap())).unwrap();
            give.send(Request::builder().detached().build(|| 7)).unwrap();
        });
        for made in given.all() {
            assert_eq!(made.take().unwrap(), 7);
        }
        ends_cancelled(&request);
    });
}

#[test]
fn not_what_belongs_to_another_runtime() {
    on_each(|runtime| {
        let other = support::runtime(1);
        let (give, given) = mpsc::channel();
        let theirs = other.clone();
        let request = root(runtime).spawn(move || {
            cancel_me();
            give.send(theirs.spawn(|| 7)).unwrap();
        });
        assert_eq!(given.come().unwrap().take().unwrap(), 7, "a root there");
        ends_cancelled(&request);
    });
}

/// What a cancelled request's spared child makes is that child's.
#[test]
fn not_what_a_spared_child_makes() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let inner = closed.clone();
            let child = Request::builder().own_stack().spawn(move || {
                inner.wait().unwrap();
                spawn(|| spawn(|| 7).take().unwrap()).take().unwrap()
            });
            asleep(&child);
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        let keeper = cancelling::waiter(runtime, &child);
        parent.cancel();
        ends_cancelled(&parent);
        gate.open();
        assert!(keeper.take().unwrap().is_ok());
        assert_eq!(child.take().unwrap(), 7);
    });
}

/// Born to a request that is over, as a callback or the holder of an unsubmitted one may see it.
#[test]
fn a_child_of_a_finished_parent_is_not_cancelled_by_it() {
    in_both_worlds(|| {
        let parent = Request::new(|| Request::new(|| 7));
        let child = parent.wait().unwrap().clone();
        assert_eq!(parent.cancel(), Cancellation::AlreadyDone);
        assert_eq!(child.wait().unwrap(), &7);
    });
}
