//! Members run, once each, and what they come to is handed on.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::support::{Count, Flag, in_both_worlds, inside_each, on_each};
use crate::yields;
use forebear::{Request, RequestPool, State, no_suspend, spawn};

#[test]
fn a_pool_runs_nothing_before_it_is_waited_for_and_then_everything_once() {
    in_both_worlds(|| {
        for members in [1, 2, 7, 100] {
            let runs = Count::new();
            let mut pool = RequestPool::new();
            for n in 0..members {
                let runs = &runs;
                pool.add(move || {
                    yields(n % 3);
                    runs.up();
                });
            }
            yields(3);
            assert_eq!((runs.get(), pool.len(), pool.is_empty()), (0, members, false));
            pool.wait().unwrap();
            assert_eq!(runs.get(), members);
        }
    });
}

#[test]
fn the_wait_returns_when_all_are_over_callbacks_included() {
    in_both_worlds(|| {
        let called = Count::new();
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..10 {
            let called = called.clone();
            pool.add(move || {
                Request::current().unwrap().on_done(move |_| {
                    yields(5);
                    called.up();
                });
            });
        }
        pool.wait().unwrap();
        assert_eq!(called.get(), 10);
    });
}

#[test]
fn an_empty_pool_returns_at_once() {
    in_both_worlds(|| {
        RequestPool::<()>::new().wait().unwrap();
        RequestPool::<u8>::default().max_active(3).memory_limit(0).wait_each(|_, _| unreachable!()).unwrap();
        assert_eq!(RequestPool::<u8>::new().collect().unwrap(), []);
    });
}

#[test]
fn members_borrow_disjoint_pieces_of_one_buffer() {
    in_both_worlds(|| {
        let from: Vec<usize> = (0..1_000).collect();
        let mut to = vec![0; from.len()];
        let mut pool = RequestPool::new();
        for (from, to) in from.chunks(7).zip(to.chunks_mut(7)) {
            pool.add(move || from.iter().zip(to).for_each(|(from, to)| *to = from + 1));
        }
        pool.wait().unwrap();
        assert!(to.iter().enumerate().all(|(at, n)| *n == at + 1));
    });
}

#[test]
fn values_come_with_their_number_and_are_collected_in_order_of_adding() {
    in_both_worlds(|| {
        let make = || {
            let mut pool = RequestPool::new().max_active(4);
            for n in 0..50 {
                if n % 10 == 0 {
                    // Has no number.
                    pool.include(Request::new(|| "no value of the pool's"));
                }
                pool.add(move || {
                    yields((50 - n) % 5);
                    n
                });
            }
            pool
        };
        assert_eq!(make().collect().unwrap(), (0..50).collect::<Vec<_>>());
        let mut seen = [false; 50];
        make()
            .wait_each(|index, value| {
                assert_eq!(index, value);
                assert!(!std::mem::replace(&mut seen[index], true));
            })
            .unwrap();
        assert_eq!(seen, [true; 50]);
    });
}

#[test]
fn a_value_need_not_be_sync() {
    in_both_worlds(|| {
        let mut pool = RequestPool::new();
        pool.add(|| Cell::new(1)).include(spawn(|| Cell::new(2)));
        assert_eq!(pool.collect().unwrap()[0].get(), 1);
    });
}

#[test]
fn members_are_requests_of_their_own_that_descend_from_the_waiter() {
    inside_each(|| {
        let me = Request::current().unwrap();
        let mut pool = RequestPool::new();
        for _ in 0..3 {
            pool.add(|| Request::current().unwrap());
        }
        let members = pool.collect().unwrap();
        for (n, member) in members.iter().enumerate() {
            assert!(*member != me && !members[..n].contains(member));
            assert_eq!(member.state(), State::Finished);
            let mut ancestors = std::iter::successors(member.parent(), |one| one.parent());
            assert!(ancestors.any(|one| one == me));
        }
    });
}

#[test]
fn results_are_handed_on_in_the_waiters_own_request_as_they_come() {
    in_both_worlds(|| {
        let (me, thread) = (Request::current(), thread::current().id());
        let go = Flag::new();
        let mut pool = RequestPool::new().max_active(2);
        pool.add(|| go.wait());
        pool.add(|| ());
        let mut order = Vec::new();
        pool.wait_each(|index, ()| {
            assert_eq!((Request::current(), thread::current().id()), (me.clone(), thread));
            order.push(index);
            go.raise();
        })
        .unwrap();
        assert_eq!(order, [1, 0]);
    });
}

#[test]
fn in_a_region_that_must_not_suspend_a_pool_panics_and_runs_nothing() {
    in_both_worlds(|| {
        let mut pool = RequestPool::new();
        pool.add(|| unreachable!());
        let refused = catch_unwind(AssertUnwindSafe(|| no_suspend("gl context", || pool.wait())));
        let message = refused.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("a pool") && message.contains("gl context"), "{message}");
        no_suspend("gl context", || RequestPool::<()>::new().wait()).unwrap();
    });
}

/// Nobody is woken for each of many small results; yet all are handed on while a member runs that waits for the last of them.
#[test]
fn results_that_come_fast_are_handed_on_though_another_member_runs_on() {
    in_both_worlds(|| {
        for bound in [2, 3, 16, 200] {
            let (go, small) = (Flag::new(), 100);
            let mut pool = RequestPool::new().max_active(bound);
            pool.add(|| go.wait());
            for n in 0..small {
                pool.add(move || yields(n % 2));
            }
            let mut order = Vec::new();
            pool.wait_each(|index, ()| {
                order.push(index);
                if order.len() == small {
                    go.raise();
                }
            })
            .unwrap();
            assert_eq!(order.pop(), Some(0));
            order.sort_unstable();
            assert!(order.into_iter().eq(1..=small));
        }
    });
}

/// Each value comes about when the waiter, which has taken the one before, goes to sleep.
#[test]
fn no_result_is_missed_between_a_look_and_a_sleep() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (mut pool, mut sum) = (RequestPool::new().max_active(1), 0);
            for n in 0..10_000 {
                pool.add(move || n);
            }
            pool.wait_each(|_, n| sum += n).unwrap();
            assert_eq!(sum, 49_995_000);
        });
    });
}
