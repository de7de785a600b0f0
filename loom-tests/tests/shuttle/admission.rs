//! Pools of many members, with cancels, and others who want what is held back.

use std::sync::{Arc, OnceLock};

use forebear_loom_tests::roam;
use forebear_runtime::{CancelReason, Outcome, Request, RequestPool, State, WaitError, shield, yield_now};

use crate::support::{Count, Ledger, Wants, draw, finish, pause, runtime, thread, until_cancelled};

/// Eight members, three at a time, while the pool is cancelled from elsewhere: each is run or dropped, the bound holds, and
/// what is over at the end was handed on, unless the pool was stopped. In half of the executions the last goes on until it is.
#[test]
fn eight_members_are_admitted_three_at_a_time_while_the_pool_is_cancelled() {
    roam(4, &["all", "none", "some"], |answers| {
        let (runtime, ledger, active) = (runtime(2), Ledger::default(), Count::default());
        let mut handed_on = 0;
        let came = runtime.enter(|| {
            let mut pool = RequestPool::new().max_active(3);
            let forever = draw(2) * 7;
            for n in 0..8 {
                let (captured, probes, active) = (ledger.probe(), ledger.clone(), active.clone());
                pool.add(move || {
                    active.up();
                    // A cancel goes past: it returns a value all the same.
                    if n > 0 && n == forever {
                        until_cancelled()
                    } else {
                        _ = yield_now()
                    }
                    active.down();
                    drop(captured);
                    probes.probe()
                });
            }
            let canceller = pool.canceller();
            let cancels = thread(move || {
                pause(2_000);
                canceller.cancel();
            });
            let came = pool.wait_each(|_, _value| handed_on += 1);
            cancels.join().unwrap();
            came
        });
        assert!(active.most() <= 3, "{} at a time", active.most());
        assert_eq!(active.get(), 0, "members that are not over");
        assert_eq!(ledger.alive(), 0, "captures and values");
        match came {
            Ok(()) => assert_eq!(handed_on, 8),
            Err(WaitError::TargetCancelled(CancelReason::PoolCancelled)) => {}
            Err(other) => panic!("{other:?}"),
        }
        answers.note(match handed_on {
            8 => "all",
            0 => "none",
            _ => "some",
        });
        finish(&runtime);
    });
}

/// Requests that somebody made are included; while the pool holds them back, one is waited for and one submitted, and one is
/// cancelled, or the waiter of the pool is. Each is run once, or is cancelled, and what somebody wants is not forgotten.
#[test]
fn members_that_are_held_back_are_waited_for_cancelled_and_submitted_meanwhile() {
    roam(4, &["finished", "member cancelled", "waiter cancelled"], |answers| {
        let (runtime, ledger, ran) = (runtime(2), Ledger::default(), Count::default());
        let members: Vec<Request<()>> = runtime.enter(|| {
            (0..6)
                .map(|_| {
                    let (captured, ran) = (ledger.probe(), ran.clone());
                    Request::new(move || {
                        ran.up();
                        _ = yield_now();
                        drop(captured);
                    })
                })
                .collect()
        });
        let included = members.clone();
        let owner = runtime.spawn(move || {
            let mut pool = RequestPool::<()>::new().max_active(2);
            for member in included {
                pool.include(member);
            }
            pool.wait()
        });
        let waits = thread({
            let wanted = members[3].clone();
            move || {
                pause(500);
                wanted.wait().copied()
            }
        });
        let submits = thread({
            let wanted = members[5].clone();
            move || {
                pause(500);
                _ = wanted.submit();
            }
        });
        let cancels = thread({
            let (member, owner) = (members[4].to_untyped(), owner.to_untyped());
            move || {
                pause(1_000);
                if draw(2) == 0 { member.cancel() } else { owner.cancel() }
            }
        });
        cancels.join().unwrap();
        submits.join().unwrap();
        match (waits.join().unwrap(), members[3].outcome()) {
            (Ok(()), Some(Outcome::Finished(()))) => {}
            (Err(WaitError::TargetCancelled(_)), Some(Outcome::Cancelled(_))) => {}
            other => panic!("{other:?}"),
        }
        answers.note(match owner.take() {
            Ok(Ok(())) => {
                assert_eq!(ran.get(), 6);
                "finished"
            }
            Ok(Err(_)) => "member cancelled",
            Err(_) => "waiter cancelled",
        });
        finish(&runtime);
        // It was submitted, whatever became of the pool.
        assert!(members[5].is_done(), "nobody has run it");
        drop(members);
        assert_eq!(ledger.alive(), 0);
    });
}

/// The one member that is admitted waits for a request that waits for one that is held back; so does a foreign thread. None of
/// them has a place to give, so it is admitted beyond the bound, whoever of them comes last.
#[test]
fn what_is_held_back_is_admitted_when_those_inside_wait_for_it() {
    roam(3, &["asked before", "asked meanwhile"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let probe = ledger.probe();
        let wanted = runtime.enter(|| {
            Request::new(move || {
                drop(probe);
                7
            })
        });
        let between = runtime.enter(|| {
            let wanted = wanted.clone();
            Request::builder().own_stack().build(move || *wanted.wait().unwrap() + 1)
        });
        let asks = thread({
            let between = between.clone();
            move || {
                pause(1_000);
                between.submit();
            }
        });
        let foreign = thread({
            let wanted = wanted.clone();
            move || {
                pause(1_000);
                wanted.wait().copied()
            }
        });
        let (member, mut begun) = (between.clone(), false);
        runtime.enter(|| {
            let mut pool = RequestPool::new().max_active(1);
            pool.add(|| {
                begun = !member.is_done();
                pause(100);
                assert_eq!(*member.wait().unwrap(), 8);
            });
            pool.include(wanted.clone());
            pool.wait().unwrap();
        });
        asks.join().unwrap();
        assert_eq!(foreign.join().unwrap().unwrap(), 7);
        answers.note(if begun { "asked meanwhile" } else { "asked before" });
        drop((wanted, between, member));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0);
    });
}

/// Waits for a pool that is stopped from elsewhere meanwhile.
fn wait_while_it_is_stopped(pool: RequestPool<'_, ()>) {
    let canceller = pool.canceller();
    let cancels = thread(move || {
        pause(2_000);
        canceller.cancel();
    });
    let came = pool.wait();
    cancels.join().unwrap();
    assert!(matches!(came, Err(WaitError::TargetCancelled(CancelReason::PoolCancelled))), "{came:?}");
}

/// A pool that holds two requests back is stopped from elsewhere. The captures of the first wait for the second when they are dropped, and so does a
/// thread. None of the two is left waiting, whichever thread ends the first.
#[test]
fn captures_of_what_a_stopped_pool_holds_back_wait_for_another() {
    roam(4, &["cancelled", "ran"], |answers| {
        let (runtime, ledger) = (runtime(2), Ledger::default());
        let place = Arc::new(OnceLock::new());
        let (captured, wants) = (ledger.probe(), Wants(place.clone()));
        let (first, second) = runtime.enter(|| {
            let first = Request::new(move || drop((captured, wants)));
            (first, Request::new(|| ()))
        });
        place.set(second.clone()).unwrap();
        let waits = thread({
            let wanted = second.clone();
            move || {
                pause(1_000);
                wanted.wait().copied()
            }
        });
        runtime.enter(|| {
            let mut pool = RequestPool::new().max_active(1);
            pool.add(until_cancelled);
            pool.include(first.clone()).include(second.clone());
            wait_while_it_is_stopped(pool);
        });
        assert_eq!(first.state(), State::Cancelled);
        answers.note(match waits.join().unwrap() {
            Ok(()) => "ran",
            Err(WaitError::TargetCancelled(CancelReason::PoolCancelled)) => "cancelled",
            other => panic!("{other:?}"),
        });
        finish(&runtime);
        drop((first, second, place));
        assert_eq!(ledger.alive(), 0);
    });
}

/// A pool is stopped from elsewhere while its waiter falls asleep. The member that has begun is shielded, and waits for what is abandoned with the
/// captures of one that never begins: the waiter drops those.
#[test]
fn a_stop_wakes_the_waiter_of_a_pool_whose_member_waits_for_what_has_not_begun() {
    roam(4, &["begun", "not begun"], |answers| {
        let (runtime, begun) = (runtime(2), Count::default());
        runtime.enter(|| {
            let (completer, answer) = Request::<()>::completer("answer");
            let mut pool = RequestPool::new().max_active(1);
            let up = begun.clone();
            pool.add(move || {
                up.up();
                assert!(matches!(shield(|| answer.wait().copied()), Err(WaitError::Failed(_))));
            });
            pool.add(move || drop(completer));
            wait_while_it_is_stopped(pool);
        });
        answers.note(if begun.get() > 0 { "begun" } else { "not begun" });
        finish(&runtime);
    });
}
