//! What was cancelled ends cancelled, in whichever order its mark, its children's ends and its own end come.

#[path = "../support/mod.rs"]
mod support;

use std::hint::spin_loop;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use forebear::sync::Mutex as RequestMutex;
use forebear::time::sleep;
use forebear::{
    CancelReason, Cancellation, Error, Request, RequestPool, State, WaitError, try_scope, try_spawn,
};
use support::order::root;
use support::{Flag, Watchdog, runtime, until};

fn spin_until(flag: &Flag) {
    while !flag.is_up() {
        spin_loop();
    }
}

/// A cancelled request computes, so its mark is set and has not been delivered. Its child lends its stack to a grandchild, which
/// waits for another child of the cancelled one: that target is cancelled with its parent, and the waiter, whose own parent is
/// not marked yet, learns from the target's end that it is cancelled, too.
#[test]
fn a_grandchild_that_hears_of_the_cancel_by_its_targets_end_is_cancelled_and_so_is_who_lends_to_it() {
    let _watchdog = Watchdog::new("");
    let runtime = runtime(2);
    let (begun, go, over) = (Flag::new(), Flag::new(), Flag::new());
    let (hand_out, made) = mpsc::channel();
    let told = Arc::new(Mutex::new(Vec::new()));
    let eldest = root(&runtime).spawn({
        let (begun, go, over, told) = (begun.clone(), go.clone(), over.clone(), told.clone());
        move || {
            let target = Request::new(|| ());
            let child = Request::try_new(move || {
                let notes = told.clone();
                let grandchild = Request::try_new(move || {
                    begun.raise();
                    spin_until(&go);
                    let answer = target.wait().copied();
                    notes.lock().unwrap().push((answer.clone().unwrap_err(), target.state()));
                    Ok::<(), Error>(answer?)
                });
                let answer = grandchild.wait().copied();
                told.lock().unwrap().push((answer.clone().unwrap_err(), grandchild.state()));
                Ok::<(), Error>(answer?)
            });
            hand_out.send(child).unwrap();
            spin_until(&over);
        }
    });
    let child = made.recv().unwrap();
    child.submit();
    spin_until(&begun);
    assert_eq!(eldest.cancel(), Cancellation::Marked);
    let on_its_way = !child.is_cancelled();
    go.raise();
    let answer = child.watch();
    over.raise();
    assert!(on_its_way, "the eldest delivers its mark at its next wait");
    assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Parent))), "{answer:?}");
    assert!(matches!(eldest.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
    for (answer, state) in told.lock().unwrap().iter() {
        assert!(matches!(answer, WaitError::Cancelled), "who is cancelled is told that first: {answer:?}");
        assert_eq!(*state, State::Cancelled);
    }
    assert_eq!(told.lock().unwrap().len(), 2);
}

/// One that is wanted by somebody outside the family is spared, and fails by what it has been told.
#[test]
fn a_child_that_is_wanted_outside_hears_that_its_target_was_cancelled() {
    let _watchdog = Watchdog::new("");
    let runtime = runtime(2);
    let (begun, go, over) = (Flag::new(), Flag::new(), Flag::new());
    let (hand_out, made) = mpsc::channel();
    let eldest = root(&runtime).spawn({
        let (begun, go, over) = (begun.clone(), go.clone(), over.clone());
        move || {
            let target = Request::new(|| ());
            let child = Request::try_new(move || {
                begun.raise();
                spin_until(&go);
                let answer = target.wait().copied();
                assert!(
                    matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Parent))),
                    "{answer:?}"
                );
                Ok::<(), Error>(answer?)
            });
            hand_out.send(child).unwrap();
            spin_until(&over);
        }
    });
    let child = made.recv().unwrap();
    child.submit();
    spin_until(&begun);
    let elsewhere = support::runtime(1);
    let wanted = elsewhere.spawn({
        let child = child.clone();
        move || child.wait().copied()
    });
    until(|| wanted.state() == State::Suspended);
    assert_eq!(eldest.cancel(), Cancellation::Marked);
    go.raise();
    let answer = wanted.take().unwrap();
    over.raise();
    let Err(WaitError::Failed(failure)) = &answer else { panic!("{answer:?}") };
    let cause = failure.downcast_ref::<WaitError>();
    assert!(matches!(cause, Some(WaitError::TargetCancelled(CancelReason::Parent))), "{cause:?}");
}

const PAUSE: Duration = Duration::from_micros(50);

/// Two children wait for a third, and are waited for.
fn shared_child() -> forebear::Result<()> {
    loop {
        let shared = Request::try_new(|| Ok(sleep(PAUSE)?));
        let both = [shared.clone(), shared].map(|shared| try_spawn(move || Ok(shared.wait().copied()?)));
        for child in both {
            child.take()?;
        }
    }
}

/// Members of a pool wait for a child of the pool's user.
fn members() -> forebear::Result<()> {
    loop {
        let shared = Request::try_new(|| Ok(sleep(PAUSE)?));
        let mut pool = RequestPool::new();
        for _ in 0..4 {
            let shared = shared.clone();
            pool.try_add(move || Ok(shared.wait().copied()?));
        }
        pool.wait()?;
    }
}

/// Jobs of a scope wait for a child of the scope's owner, under a lock.
fn jobs() -> forebear::Result<()> {
    let lock = RequestMutex::new(());
    loop {
        let shared = Request::try_new(|| Ok(sleep(PAUSE)?));
        try_scope(|scope| {
            let jobs = [(); 4].map(|()| {
                let (shared, lock) = (shared.clone(), &lock);
                scope.try_spawn(move || {
                    let _guard = lock.lock_or_cancelled()?;
                    Ok(shared.wait().copied()?)
                })
            });
            for job in jobs {
                job.take()?;
            }
            Ok(())
        })?;
    }
}

/// The moments are drawn; `loom-tests` goes through the orders.
#[test]
fn what_was_cancelled_ends_cancelled() {
    let _watchdog = Watchdog::new("");
    for workers in [1, 2] {
        let runtime = runtime(workers);
        for shape in [shared_child, members, jobs] {
            for round in 0..400_u64 {
                let request = runtime.try_spawn(shape);
                let moment = Instant::now() + Duration::from_nanos(100_000 + round * 7919 % 300_000);
                while Instant::now() < moment {
                    spin_loop();
                }
                request.cancel();
                let answer = request.watch();
                assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Asked))), "{answer:?}");
            }
        }
    }
}
