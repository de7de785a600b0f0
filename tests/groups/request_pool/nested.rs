//! Pools in pools, and in everything else.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support;
use crate::support::{Count, Joined, Random, hold_thread_until, in_both_worlds};
use crate::{Gauge, endless, is_stopped_by, yields};
use forebear::{
    CancelReason, Canceller, Error, Request, RequestPool, WaitError, check_cancelled, join, scope,
};

fn nested(out: &mut [u32], max_active: usize) -> Result<(), WaitError> {
    if out.len() < 3 {
        out.iter_mut().for_each(|n| *n += 1);
        return Ok(());
    }
    let (a, rest) = out.split_at_mut(out.len() / 3);
    let (b, c) = rest.split_at_mut(rest.len() / 2);
    let mut pool = RequestPool::new().max_active(max_active);
    for part in [a, b, c] {
        pool.try_add(move || Ok(nested(part, max_active)?));
    }
    pool.wait()
}

#[test]
fn pools_nest_to_any_depth_on_any_number_of_workers() {
    fn chain(depth: usize) -> usize {
        let mut pool = RequestPool::new().max_active(1);
        pool.add(move || if depth == 0 { 0 } else { chain(depth - 1) + 1 });
        pool.collect().unwrap()[0]
    }
    in_both_worlds(|| {
        assert_eq!(chain(500), 500);
        for max_active in [0, 1, 2, 100] {
            let mut out = vec![0; 300];
            nested(&mut out, max_active).unwrap();
            assert_eq!(out, vec![1; 300]);
        }
    });
}

#[test]
fn a_cancel_goes_through_nested_pools() {
    in_both_worlds(|| {
        let (began, running) = (Count::new(), Gauge::default());
        let mut outer = RequestPool::new().max_active(2);
        for _ in 0..2 {
            outer.try_add(|| {
                let answer = endless(&began, &running).wait();
                assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
                Ok(answer?)
            });
        }
        let (canceller, told) = (outer.canceller(), began.clone());
        let thread = thread::spawn(move || {
            hold_thread_until(|| told.get() == 6);
            canceller.cancel();
        });
        is_stopped_by(&outer.wait(), CancelReason::PoolCancelled);
        assert_eq!(running.now(), 0);
        thread.joined().unwrap();
    });
}

#[test]
fn a_pool_waits_in_joins_scopes_callbacks_and_receivers() {
    in_both_worlds(|| {
        fn pool(n: usize) -> usize {
            let mut pool = RequestPool::new();
            for n in 0..n {
                pool.add(move || n);
            }
            let mut sum = 0;
            pool.wait_each(|_, n| sum += n).unwrap();
            sum
        }
        assert_eq!(join(|| pool(5), || pool(6)), (10, 15));
        assert_eq!(scope(|s| s.spawn(|| pool(7)).take().unwrap()), 21);
        let called = Arc::new(AtomicUsize::new(0));
        let request = Request::new(|| pool(3));
        let sum = called.clone();
        request.on_finished(move |n| sum.store(n + pool(8), Ordering::Release));
        request.wait().unwrap();
        assert_eq!(called.load(Ordering::Acquire), 3 + 28);
        let mut outer = RequestPool::new();
        for n in 0..4 {
            outer.add(move || n);
        }
        outer.wait_each(|_, n| assert_eq!(pool(n), n * n.saturating_sub(1) / 2)).unwrap();
    });
}

/// Random pools in pools, some of whose members fail, are cancelled, or cancel. Whatever the answer, nothing is left
/// running, nothing runs twice, and a pool that is well has run all.
#[test]
fn whatever_becomes_of_a_pool_nothing_is_left_of_it() {
    fn one(seed: u64, depth: usize, canceller: Option<&Canceller>) -> Result<usize, WaitError> {
        let mut random = Random::new(seed);
        let (running, runs, drops) = (Gauge::default(), Count::new(), Count::new());
        let bound = 1 + random.below(4);
        let mut pool = RequestPool::new().max_active(bound);
        let members = random.below(8);
        for _ in 0..members {
            let (seed, what, probe) = (random.next(), random.below(300), drops.probe());
            let (running, runs, mine) = (&running, &runs, pool.canceller());
            pool.try_add(move || {
                let (_inside, _probe) = (running.enter(), probe);
                assert!(running.now() <= bound);
                runs.up();
                match what {
                    0 => return Err(Error::other("drawn")),
                    1 => mine.cancel(),
                    2 => resume_unwind(Box::new("drawn")),
                    3 => _ = Request::current().unwrap().abort(CancelReason::Other(1)),
                    4 => canceller.unwrap_or(&mine).cancel(),
                    5..=100 => yields(what % 5),
                    _ => {}
                }
                check_cancelled()?;
                if depth == 0 { Ok(1) } else { Ok(one(seed, depth - 1, Some(&mine))? + 1) }
            });
        }
        if random.below(3) == 0 {
            pool.include(Request::new(|| yields(2)));
        }
        let mut sum = 0;
        let answer = if random.below(2) == 0 {
            pool.collect().map(|values| sum = values.into_iter().sum())
        } else {
            pool.wait_each(|_, n| {
                sum += n;
                if n % 50 == 49 {
                    yields(1);
                }
            })
        };
        assert_eq!((running.now(), drops.get()), (0, members));
        assert!(running.most() <= bound);
        assert!(answer.is_err() || runs.get() == members);
        answer.map(|()| sum)
    }
    let rounds = if support::soaking() { 20_000 } else { 100 };
    in_both_worlds(|| {
        let mut well = 0;
        for seed in 0..rounds {
            well += usize::from(one(seed, 3, None).is_ok());
        }
        assert!(well > 0);
    });
}

#[test]
fn the_handles_say_what_they_are() {
    fn is_send_and_sync<T: Send + Sync + Clone + 'static>(_: &T) {}
    let mut pool = RequestPool::new().max_active(2).memory_limit(9);
    pool.add(|| ());
    let canceller = pool.canceller();
    is_send_and_sync(&canceller);
    assert_eq!(format!("{pool:?}"), "RequestPool { members: 1, max_active: 2, memory: 9, stopped: false }");
    canceller.clone().cancel();
    assert_eq!(format!("{canceller:?}"), "Canceller { stopped: true }");
}
