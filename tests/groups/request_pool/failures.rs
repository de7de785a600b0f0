//! What fails stops the pool: members, receivers, unwinds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::support::{Count, Flag, WaitsInDrop, in_both_worlds, until};
use crate::{Gauge, is_stopped_by, until_cancelled, yields};
use forebear::{
    CancelReason, Cancellation, Error, Outcome, Request, RequestPool, TimeoutError, WaitError, shield,
    try_scope,
};

#[test]
fn d27_the_first_failure_comes_out_when_the_rest_has_been_aborted_and_is_over() {
    in_both_worlds(|| {
        let (over, cancelled, drops) = (Count::new(), Count::new(), Count::new());
        let (running, began) = (Gauge::default(), Count::new());
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..2 {
            let cancelled = cancelled.clone();
            let (over, running, began) = (&over, &running, &began);
            pool.try_add(move || {
                let _inside = running.enter();
                began.up();
                Request::current().unwrap().on_done(move |how| {
                    assert!(matches!(how, Outcome::Cancelled(CancelReason::SiblingFailed)), "{how:?}");
                    cancelled.up();
                });
                let ended = until_cancelled();
                // They are waited for, however long they take to leave.
                shield(|| yields(20));
                over.up();
                ended
            });
        }
        pool.try_add(|| {
            began.wait_for(2);
            Err(Error::other("the first"))
        });
        for _ in 0..10 {
            let probe = drops.probe();
            pool.add(move || unreachable!("{probe:?} begins after a failure"));
        }
        let Err(WaitError::Failed(failure)) = pool.wait() else { panic!("it has failed") };
        assert_eq!(failure.error().to_string(), "the first");
        assert_eq!((over.get(), cancelled.get(), running.now(), drops.get()), (2, 2, 0, 10));
    });
}

#[test]
fn a_failure_that_comes_of_the_abort_is_not_the_first() {
    in_both_worlds(|| {
        let began = Count::new();
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..2 {
            pool.try_add(|| {
                began.up();
                let _ = until_cancelled();
                Err(Error::other("of the abort"))
            });
        }
        pool.add(|| {
            began.wait_for(2);
            resume_unwind(Box::new("the first"));
        });
        let Err(WaitError::Failed(failure)) = pool.wait() else { panic!("it has failed") };
        assert_eq!(failure.panic_message(), Some("the first"));
    });
}

#[test]
fn a_failure_inside_a_scope_leaves_the_scope_as_that_failure() {
    in_both_worlds(|| {
        let left = try_scope(|s| {
            s.spawn(|| yields(3));
            let mut pool = RequestPool::new();
            pool.try_add(|| Ok("x".parse::<u32>().map(drop)?));
            Ok(pool.wait()?)
        });
        let Err(WaitError::Failed(failure)) = left else { panic!("{left:?}") };
        assert!(failure.downcast_ref::<std::num::ParseIntError>().is_some());
    });
}

#[test]
fn a_pool_that_is_dropped_or_unwound_past_drops_its_members_unrun() {
    in_both_worlds(|| {
        let drops = Count::new();
        let fill = || {
            let probe = drops.probe();
            let mut pool = RequestPool::new();
            pool.add(move || unreachable!("{probe:?} was never waited for"));
            pool
        };
        drop(fill());
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _pool = fill();
            resume_unwind(Box::new("body"));
        }));
        assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "body");
        assert_eq!(drops.get(), 2);
    });
}

#[test]
fn a_pool_may_be_forgotten() {
    /// Where a leak checker still finds them.
    static FORGOTTEN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    struct Forgotten<'a>(
        #[allow(dead_code, reason = "kept")] RequestPool<'a>,
        #[allow(dead_code, reason = "kept")] *mut (),
    );
    in_both_worlds(|| {
        let mut out = [0; 2];
        let drops = Count::new();
        let probe = drops.probe();
        let (a, b) = out.split_at_mut(1);
        let mut pool = RequestPool::new();
        pool.add(|| a[0] = 1).add(move || drop(probe)).add(|| b[0] = 1);
        let canceller = pool.canceller();
        let forgotten = Box::into_raw(Box::new(Forgotten(pool, FORGOTTEN.load(Ordering::Acquire))));
        FORGOTTEN.store(forgotten.cast(), Ordering::Release);
        canceller.cancel();
        yields(5);
        assert_eq!((out, drops.get()), ([0; 2], 0));
    });
}

#[test]
fn a_receiver_that_unwinds_has_the_rest_aborted_and_waited_for_first() {
    in_both_worlds(|| {
        let (began, running, drops, told) = (Count::new(), Gauge::default(), Count::new(), Count::new());
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..2 {
            pool.try_add(|| {
                let _inside = running.enter();
                let told = told.clone();
                Request::current().unwrap().on_done(move |how| {
                    if matches!(how, Outcome::Cancelled(CancelReason::ScopeUnwound)) {
                        told.up();
                    }
                });
                began.up();
                until_cancelled()
            });
        }
        pool.add(|| began.wait_for(2));
        let probe = drops.probe();
        pool.add(move || unreachable!("{probe:?} begins after an unwind"));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _ = pool.wait_each(|index, ()| {
                assert_eq!((index, running.now()), (2, 2));
                resume_unwind(Box::new("receiver"));
            });
        }));
        assert_eq!(*unwound.unwrap_err().downcast::<&str>().unwrap(), "receiver");
        assert_eq!((running.now(), drops.get(), told.get()), (0, 1, 2));
    });
}

#[test]
fn a_receiver_that_fails_has_the_rest_aborted_and_its_error_comes_out() {
    in_both_worlds(|| {
        let running = Gauge::default();
        let fill = || {
            let mut pool = RequestPool::new().max_active(2);
            pool.try_add(|| {
                let _inside = running.enter();
                until_cancelled()
            });
            pool.add(|| ());
            pool
        };
        let answer = fill().try_wait_each(|_, ()| Err(Error::other("disk full")));
        let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.error().to_string(), "disk full");
        let answer = fill().try_wait_each(|_, ()| Err(WaitError::TimedOut.into()));
        assert!(matches!(answer, Err(WaitError::TimedOut)), "{answer:?}");
        assert_eq!(running.now(), 0);
    });
}

#[test]
fn a_member_that_is_aborted_by_others_stops_the_pool() {
    in_both_worlds(|| {
        let running = Gauge::default();
        let mut pool = RequestPool::new().max_active(2);
        pool.try_add(|| {
            let _inside = running.enter();
            until_cancelled()
        });
        pool.add(|| {
            let me = Request::current().unwrap();
            assert_eq!(me.abort(CancelReason::Other(4)), Cancellation::Marked);
        });
        is_stopped_by(&pool.wait(), CancelReason::Other(4));
        assert_eq!(running.now(), 0);
    });
}

#[test]
fn a_value_whose_destructor_panics_is_a_failure_of_its_member() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new("destructor"));
        }
    }
    in_both_worlds(|| {
        let mut pool = RequestPool::new();
        pool.add(|| Bomb);
        let Err(WaitError::Failed(failure)) = pool.wait() else { panic!("it has failed") };
        assert_eq!(failure.panic_message(), Some("destructor"));
    });
}

#[test]
fn an_error_that_tells_of_somebody_elses_cancel_is_a_failure() {
    in_both_worlds(|| {
        let mut pool = RequestPool::<()>::new();
        pool.try_add(|| Err(TimeoutError::Cancelled.into()));
        let answer = pool.wait();
        assert!(matches!(answer, Err(WaitError::Failed(_))), "{answer:?}");
    });
}

/// A member has failed by then.
#[test]
fn the_error_of_a_member_is_dropped_before_the_panic_of_the_receiver_goes_on() {
    in_both_worlds(|| {
        let dropped = Count::new();
        let error = WaitsInDrop(dropped.clone());
        let (received, begun) = (Flag::new(), Flag::new());
        let mut pool = RequestPool::new().max_active(2);
        let (wanted, up) = (received.clone(), begun.clone());
        pool.add(|| ());
        pool.try_add(move || {
            up.raise();
            wanted.wait();
            Err(error.into())
        });
        let canceller = pool.canceller();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            pool.wait_each(|_, ()| {
                begun.wait();
                received.raise();
                until(|| format!("{canceller:?}").contains("stopped: true"));
                resume_unwind(Box::new("receiver"))
            })
        }));
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"receiver"));
        assert_eq!(dropped.get(), 1);
    });
}
