//! Existing requests as members.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::support;
use crate::support::{Count, Flag, in_both_worlds, inside_each, on_each, until};
use crate::{Gauge, is_stopped_by, until_cancelled, yields};
use forebear::{CancelReason, Cancellation, Error, Request, RequestPool, State, WaitError, shield, spawn};

#[test]
fn requests_that_are_new_running_or_ready_may_be_included_also_twice() {
    in_both_worlds(|| {
        let go = Flag::new();
        let (new, running, ready) = (Request::new(|| 1), support::spawn_running(&go), Request::ready("2"));
        let mut pool = RequestPool::new();
        pool.include(running.clone()).include(new.clone()).include(new.clone()).include(ready.clone());
        pool.add(|| go.raise());
        let mut pool = pool.max_active(2);
        assert_eq!(pool.len(), 5);
        pool.include(running.clone());
        pool.wait().unwrap();
        assert_eq!((new.get(), ready.get(), running.get()), (Some(&1), Some(&"2"), Some(&())));
    });
}

#[test]
fn an_included_request_that_is_held_back_is_run_by_whoever_waits_for_it() {
    in_both_worlds(|| {
        let held = Request::new(|| 7);
        let wants = held.clone();
        let mut pool = RequestPool::new().max_active(1);
        pool.add(move || *wants.wait().unwrap()).include(held);
        assert_eq!(pool.collect().unwrap(), [7]);
    });
}

#[test]
fn the_failure_of_an_included_request_is_the_pools_as_it_is() {
    in_both_worlds(|| {
        let bad = Request::builder().name("bad").try_build(|| Err::<u8, _>(Error::other("no")));
        let mut pool = RequestPool::<()>::new();
        pool.include(bad.clone());
        let Err(WaitError::Failed(failure)) = pool.wait() else { panic!("it has failed") };
        assert_eq!(failure.path().collect::<Vec<_>>(), ["bad"]);

        let never = Request::new(|| ());
        never.abort(CancelReason::Other(3));
        let mut pool = RequestPool::<()>::new();
        pool.include(never);
        is_stopped_by(&pool.wait(), CancelReason::Other(3));
    });
}

#[test]
fn d27_included_requests_are_aborted_with_the_rest_begun_or_not() {
    in_both_worlds(|| {
        let began = Count::new();
        let (told, never) = (began.clone(), Request::new(|| unreachable!()));
        let endless = Request::try_new(move || {
            told.up();
            until_cancelled()
        });
        let mut pool = RequestPool::<()>::new().max_active(2);
        pool.include(endless.clone());
        pool.try_add(|| {
            began.wait_for(1);
            Err(Error::other("no"))
        });
        pool.include(never.clone());
        assert!(matches!(pool.wait(), Err(WaitError::Failed(_))));
        for request in [endless, never] {
            assert_eq!(request.state(), State::Cancelled);
            is_stopped_by(&request.wait().copied(), CancelReason::SiblingFailed);
        }
    });
}

#[test]
fn an_included_request_that_somebody_wants_is_spared_if_only_the_waiter_is_cancelled() {
    on_each(|runtime| {
        let (go, began) = (Flag::new(), Flag::new());
        let (open, up) = (go.clone(), began.clone());
        let shared = runtime.enter(|| {
            Request::new(move || {
                up.raise();
                open.wait();
                7
            })
        });
        shared.submit();
        began.wait();
        let mine = shared.clone();
        let operator = runtime.spawn(move || {
            let mut pool = RequestPool::<()>::new();
            pool.include(mine);
            pool.wait().unwrap_err().is_cancelled()
        });
        until(|| operator.state() == State::Suspended);
        let wants = shared.clone();
        let live = runtime.spawn(move || *wants.wait().unwrap());
        until(|| live.state() == State::Suspended);
        assert_eq!(operator.cancel(), Cancellation::Marked);
        until(|| operator.is_done());
        go.raise();
        assert_eq!((live.take().unwrap(), operator.state()), (7, State::Cancelled));
    });
}

#[test]
fn to_include_the_waiter_itself_is_a_circular_wait() {
    inside_each(|| {
        let itself = Arc::new(Mutex::new(None::<Request<()>>));
        let mine = itself.clone();
        let cycle = Request::builder().name("cycle").build(move || {
            let me = mine.lock().unwrap().take().unwrap();
            let mut pool = RequestPool::new();
            pool.include(me).add(|| unreachable!());
            let answer = pool.wait();
            let Err(WaitError::CircularWait(cycle)) = answer else { panic!("{answer:?}") };
            assert_eq!(cycle.names().collect::<Vec<_>>(), ["cycle", "cycle"]);
        });
        *itself.lock().unwrap() = Some(cycle.clone());
        cycle.wait().unwrap();
    });
}

#[test]
fn the_value_of_an_included_request_goes_when_it_is_over_if_nobody_keeps_it() {
    in_both_worlds(|| {
        let gauge = Arc::new(Gauge::default());
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..100 {
            let gauge = gauge.clone();
            pool.include(Request::new(move || gauge.probe()));
        }
        pool.add(|| ());
        pool.wait().unwrap();
        assert_eq!(gauge.now(), 0);
        assert!(gauge.most() <= 3, "{} of 100", gauge.most());
    });
}

#[test]
fn an_included_request_that_is_aborted_is_waited_for() {
    in_both_worlds(|| {
        let (began, over) = (Flag::new(), Count::new());
        let (up, ended) = (began.clone(), over.clone());
        let endless = spawn(move || {
            up.raise();
            let _ = until_cancelled();
            shield(|| yields(50));
            ended.up();
        });
        began.wait();
        let mut pool = RequestPool::<()>::new();
        pool.include(endless);
        let canceller = pool.canceller();
        pool.try_add(until_cancelled);
        let thread = thread::spawn(move || canceller.cancel());
        is_stopped_by(&pool.wait(), CancelReason::PoolCancelled);
        assert_eq!(over.get(), 1);
        thread.join().unwrap();
    });
}
