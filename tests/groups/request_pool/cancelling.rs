//! Cancelling a pool, its waiter, and its members.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::support::{
    Come, Count, Flag, Joined, hold_thread_until, in_both_worlds, on_each, on_each_of, until,
};
use crate::{Gauge, endless, is_stopped_by, until_cancelled};
use forebear::{
    CancelReason, Cancellation, Canceller, Error, Request, RequestPool, State, WaitError, is_cancelled, join,
    shield, spawn, yield_now,
};

#[test]
fn cancelled_before_the_wait_it_runs_nothing() {
    in_both_worlds(|| {
        let drops = Count::new();
        let mut pool = RequestPool::new();
        for _ in 0..10 {
            let probe = drops.probe();
            pool.add(move || unreachable!("{probe:?}"));
        }
        pool.canceller().cancel();
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
        assert_eq!(drops.get(), 10);
    });
}

#[test]
fn d3_cancelled_by_a_thread_while_the_wait_goes_on_it_answers() {
    in_both_worlds(|| {
        let (began, running) = (Count::new(), Gauge::default());
        let pool = endless(&began, &running);
        let canceller = pool.canceller();
        let told = began.clone();
        let thread = thread::spawn(move || {
            hold_thread_until(|| told.get() == 3);
            canceller.cancel();
        });
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
        assert_eq!(running.now(), 0);
        thread.joined().unwrap();
    });
}

#[test]
fn d3_cancelled_by_another_request_while_the_wait_goes_on_it_answers() {
    in_both_worlds(|| {
        let (began, running) = (Count::new(), Gauge::default());
        let pool = endless(&began, &running);
        let (canceller, told) = (pool.canceller(), began.clone());
        let other = spawn(move || {
            told.wait_for(3);
            canceller.cancel();
        });
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
        assert_eq!(running.now(), 0);
        other.wait().unwrap();
    });
}

#[test]
fn cancelled_by_the_receiver_it_hands_nothing_on_any_more() {
    in_both_worlds(|| {
        let (began, running) = (Count::new(), Gauge::default());
        let mut pool = RequestPool::new().max_active(4);
        pool.try_add(|| {
            let _inside = running.enter();
            began.up();
            until_cancelled()
        });
        for _ in 0..9 {
            pool.add(|| began.wait_for(1));
        }
        let canceller = pool.canceller();
        let mut handed_on = 0;
        let answer = pool.wait_each(|_, ()| {
            handed_on += 1;
            canceller.cancel();
        });
        is_stopped_by(&answer, CancelReason::PoolCancelled);
        assert_eq!((handed_on, running.now()), (1, 0));
    });
}

#[test]
fn a_member_may_cancel_its_own_pool() {
    in_both_worlds(|| {
        let (began, running) = (Count::new(), Gauge::default());
        let mut pool = RequestPool::new().max_active(2);
        let canceller = pool.canceller();
        pool.try_add(|| {
            let _inside = running.enter();
            began.up();
            until_cancelled()
        });
        let told = &began;
        pool.try_add(move || {
            told.wait_for(1);
            canceller.cancel();
            assert!(is_cancelled());
            until_cancelled()
        });
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
        assert_eq!(running.now(), 0);
    });
}

/// The waiter's worker is not needed for it.
#[test]
fn a_cancel_reaches_a_member_that_never_waits_though_it_keeps_the_only_worker() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    on_each(|runtime| {
        let computing = Flag::new();
        let (send, canceller) = mpsc::channel::<Canceller>();
        let up = computing.clone();
        let job = runtime.spawn(move || {
            let mut pool = RequestPool::new();
            send.send(pool.canceller()).unwrap();
            pool.add(|| {
                up.raise();
                hold_thread_until(is_cancelled);
            });
            pool.wait()
        });
        let canceller = canceller.come().unwrap();
        hold_thread_until(|| computing.is_up());
        canceller.cancel();
        is_stopped_by(&job.take().unwrap(), CancelReason::PoolCancelled);
    });
}

/// Two members on two workers: one fails, the other computes and asks. Which worker takes which is not ours to say, so
/// they try until it has happened.
#[test]
fn a_failure_reaches_a_sibling_that_never_waits() {
    on_each_of(&[2, 4], |runtime| {
        let apart = Flag::new();
        while !apart.is_up() {
            let (here, computing) = (AtomicUsize::new(usize::MAX), Flag::new());
            let mine = || Request::current().unwrap().assigned_worker().unwrap();
            let answer = runtime.run(|| {
                let mut pool = RequestPool::new().max_active(2);
                pool.try_add(|| {
                    here.store(mine(), Ordering::Release);
                    // Forks offer the other member to who is idle.
                    while !join(|| (), || apart.is_up()).1 {
                        yield_now()?;
                    }
                    computing.raise();
                    hold_thread_until(is_cancelled);
                    Ok(())
                });
                pool.try_add(|| {
                    until(|| here.load(Ordering::Acquire) != usize::MAX);
                    if here.load(Ordering::Acquire) != mine() {
                        apart.raise();
                        hold_thread_until(|| computing.is_up());
                    }
                    Err(Error::other("elsewhere"))
                });
                pool.wait()
            });
            assert!(matches!(answer, Err(WaitError::Failed(_))), "{answer:?}");
        }
    });
}

#[test]
fn d1_cancelling_a_request_inside_a_pool_wait_makes_it_cancelled_never_failed() {
    on_each(|runtime| {
        for _ in 0..30 {
            let began = Count::new();
            let over = Count::new();
            let (told, ended) = (began.clone(), over.clone());
            let operator = runtime.enter(|| {
                Request::try_new(move || {
                    let running = Gauge::default();
                    let answer = endless(&told, &running).wait();
                    assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
                    assert_eq!(running.now(), 0);
                    ended.up();
                    Ok(answer?)
                })
            });
            operator.submit();
            began.wait_for(3);
            assert_eq!(operator.cancel(), Cancellation::Marked);
            until(|| operator.is_done());
            assert_eq!((operator.state(), over.get()), (State::Cancelled, 1));
        }
    });
}

#[test]
fn d1_the_same_in_a_request_that_a_foreign_thread_runs() {
    on_each(|runtime| {
        for _ in 0..10 {
            let began = Count::new();
            let told = began.clone();
            let operator = runtime.enter(|| {
                Request::try_new(move || {
                    let running = Gauge::default();
                    let answer = endless(&told, &running).wait();
                    assert_eq!(running.now(), 0);
                    Ok(answer?)
                })
            });
            let theirs = operator.clone();
            let thread = thread::spawn(move || theirs.wait().copied());
            began.wait_for(3);
            operator.abort(CancelReason::Other(5));
            is_stopped_by(&thread.joined().unwrap(), CancelReason::Other(5));
            assert_eq!(operator.state(), State::Cancelled);
        }
    });
}

#[test]
fn a_cancelled_waiter_waits_for_members_that_somebody_else_wants() {
    on_each(|runtime| {
        let (send, member) = mpsc::channel();
        let operator = runtime.enter(|| {
            Request::try_new(move || {
                let over = Count::new();
                let mut pool = RequestPool::new();
                pool.try_add(|| {
                    send.send(Request::current().unwrap()).unwrap();
                    let ended = until_cancelled();
                    over.up();
                    ended
                });
                let answer = pool.wait();
                assert_eq!(over.get(), 1);
                Ok(answer?)
            })
        });
        operator.submit();
        let member = member.come().unwrap();
        let wants = member.clone();
        // It is wanted by a request that lives; a cancel would spare it, the pool aborts it.
        let live = runtime.spawn(move || wants.wait());
        until(|| live.state() == State::Suspended);
        assert_eq!(operator.cancel(), Cancellation::Marked);
        is_stopped_by(&live.take().unwrap(), CancelReason::Parent);
        until(|| operator.is_done());
        assert_eq!(operator.state(), State::Cancelled);
    });
}

#[test]
fn in_a_cancelled_request_a_pool_answers_cancelled_and_runs_nothing_but_in_a_shield() {
    on_each(|runtime| {
        let job = runtime.spawn(|| {
            Request::current().unwrap().cancel();
            let mut pool = RequestPool::new();
            pool.add(|| unreachable!());
            assert!(matches!(pool.wait(), Err(WaitError::Cancelled)));
            assert!(matches!(RequestPool::<()>::new().wait(), Err(WaitError::Cancelled)));
            let mut pool = RequestPool::new();
            pool.add(|| 7);
            assert_eq!(shield(|| pool.collect()).unwrap(), [7]);
        });
        job.watch().unwrap_err();
        assert_eq!(job.state(), State::Cancelled);
    });
}

#[test]
fn a_cancel_that_comes_when_all_has_been_handed_on_changes_nothing() {
    in_both_worlds(|| {
        let mut pool = RequestPool::new();
        let canceller = pool.canceller();
        pool.add(|| 1);
        pool.wait_each(|_, _| canceller.cancel()).unwrap();
        canceller.cancel();
    });
}

#[test]
fn a_waiter_that_is_cancelled_is_told_that_before_all_else() {
    on_each(|runtime| {
        let job = runtime.spawn(|| {
            let me = Request::current().unwrap();
            let mut pool = RequestPool::new();
            let canceller = pool.canceller();
            pool.add(move || {
                canceller.cancel();
                me.abort(CancelReason::Asked);
            });
            let answer = pool.wait();
            assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
        });
        is_stopped_by(&job.watch().copied(), CancelReason::Asked);
    });
}

#[test]
fn the_first_reason_stays_whatever_members_come_to_after_it() {
    in_both_worlds(|| {
        let mut pool = RequestPool::<()>::new().max_active(1);
        let canceller = pool.canceller();
        pool.try_add(move || {
            canceller.cancel();
            Err(Error::other("late"))
        });
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
    });
}

/// The failure comes at any moment of the other's beginning.
#[test]
fn a_member_that_begins_while_the_pool_stops_hears_of_it() {
    on_each_of(&[2, 4], |runtime| {
        runtime.enter(|| {
            for round in 0..400 {
                let mut pool = RequestPool::new().max_active(2);
                pool.try_add(move || {
                    (0..round).for_each(|_| std::hint::spin_loop());
                    Err(Error::other("no"))
                });
                pool.try_add(until_cancelled).try_add(until_cancelled);
                assert!(matches!(pool.wait(), Err(WaitError::Failed(_))));
            }
        });
    });
}
