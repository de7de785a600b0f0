//! How many are active at a time, and how much memory they declare.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support;
use crate::support::order::Log;
use crate::support::{
    Count, Flag, Random, Watchdog, hold_thread_until, in_both_worlds, on_each_of, runtime, until,
};
use crate::{Gauge, yields};
use forebear::{Request, RequestPool, join, parallelism};

#[test]
fn suspended_members_count_and_each_that_ends_lets_the_next_begin_in_order() {
    in_both_worlds(|| {
        let (began, gauge) = (Count::new(), Gauge::default());
        let turns: Vec<_> = (0..12).map(|_| AtomicUsize::new(0)).collect();
        let gates: Vec<_> = (0..12).map(|_| Flag::new()).collect();
        let mut pool = RequestPool::new().max_active(5);
        for (turn, gate) in turns.iter().zip(&gates) {
            let (began, gauge) = (&began, &gauge);
            pool.add(move || {
                let _inside = gauge.enter();
                turn.store(began.up(), Ordering::Release);
                gate.wait();
            });
        }
        thread::scope(|threads| {
            // Opened out of order, one at a time: the next begins each time, and no other.
            let opener = threads.spawn(|| {
                for (turn, open) in [3, 0, 4, 2, 1, 7, 5, 6, 9, 8, 11, 10].into_iter().enumerate() {
                    hold_thread_until(|| began.get() == 12.min(5 + turn));
                    gates[open].raise();
                }
            });
            pool.wait().unwrap();
            support::join_all([opener]);
        });
        let mut turns: Vec<_> = turns.into_iter().map(AtomicUsize::into_inner).collect();
        // The first five began together; after that there was one at a time.
        turns[..5].sort_unstable();
        assert_eq!(turns, (0..12).collect::<Vec<_>>());
        assert_eq!((gauge.most(), gauge.now()), (5, 0));
    });
}

#[test]
fn by_default_and_for_0_as_many_are_active_as_there_are_workers() {
    in_both_worlds(|| {
        for zero in [false, true] {
            let (gauge, workers) = (Gauge::default(), parallelism().get());
            let pool = RequestPool::new();
            let mut pool = if zero { pool.max_active(0) } else { pool };
            for _ in 0..20 {
                pool.add(|| {
                    let _inside = gauge.enter();
                    // So many do begin.
                    until(|| gauge.most() >= workers);
                    yields(3);
                });
            }
            pool.wait().unwrap();
            assert_eq!(gauge.most(), workers);
        }
    });
}

#[test]
fn one_at_a_time_runs_them_in_the_order_of_adding() {
    in_both_worlds(|| {
        let log = Log::default();
        let mut pool = RequestPool::new().max_active(1);
        let mut expected = Vec::new();
        for n in 0..30 {
            let log = log.clone();
            pool.add(move || {
                log.note(format!("{n} begins"));
                yields(n % 3);
                log.note(format!("{n} ends"));
            });
            expected.extend([format!("{n} begins"), format!("{n} ends")]);
        }
        pool.wait().unwrap();
        assert_eq!(log.told(), expected);
    });
}

/// Values, and what the members have captured.
#[test]
fn d5_never_more_are_alive_than_the_bound_and_none_afterwards() {
    in_both_worlds(|| {
        let gauge = Arc::new(Gauge::default());
        let fill = |bound: usize| {
            let mut pool = RequestPool::new().max_active(bound);
            for _ in 0..300 {
                let gauge = gauge.clone();
                pool.add(move || gauge.probe());
            }
            pool
        };
        for bound in [1, 3, 10] {
            fill(bound).wait().unwrap();
            fill(bound).wait_each(|_, _value| assert!(gauge.now() <= bound)).unwrap();
            assert_eq!(gauge.now(), 0);
            assert!(gauge.most() <= bound, "{} of {bound}", gauge.most());
        }
    });
}

#[test]
fn d6_the_declared_memory_of_the_active_stays_within_the_bound() {
    in_both_worlds(|| {
        const BOUND: usize = 100;
        let (sum, most, runs) = (AtomicUsize::new(0), AtomicUsize::new(0), Count::new());
        let mut random = Random::new(7);
        let mut pool = RequestPool::new().max_active(8).memory_limit(BOUND as u64);
        for n in 0..200 {
            let bytes = if n == 100 { 1_000 } else { random.below(60) };
            let (sum, most, runs) = (&sum, &most, &runs);
            pool.add_sized(bytes as u64, move || {
                let now = sum.fetch_add(bytes, Ordering::AcqRel) + bytes;
                most.fetch_max(if n == 100 { 0 } else { now }, Ordering::AcqRel);
                if n == 100 {
                    assert_eq!(now, bytes, "one that is larger than the bound runs alone");
                }
                yields(n % 4);
                sum.fetch_sub(bytes, Ordering::AcqRel);
                runs.up();
            });
        }
        pool.wait().unwrap();
        assert_eq!(runs.get(), 200);
        assert!(most.into_inner() <= BOUND);
    });
}

#[test]
fn the_declared_memory_is_used_up_to_the_bound() {
    in_both_worlds(|| {
        let began = Count::new();
        let mut pool = RequestPool::new().max_active(9).memory_limit(10);
        for bytes in [3, 3, 4, 0, 10, 5, 5] {
            let began = &began;
            // Four at first, then one, then two: they wait for each other.
            let (others, turn) = if bytes == 10 { (5, 4) } else { (if bytes == 5 { 7 } else { 4 }, 0) };
            pool.add_sized(bytes, move || {
                assert!(began.up() >= turn);
                began.wait_for(others);
            });
        }
        pool.wait().unwrap();
        assert_eq!(began.get(), 7);
    });
}

#[test]
fn without_a_bound_on_memory_what_is_declared_does_not_matter() {
    in_both_worlds(|| {
        let began = Count::new();
        let mut pool = RequestPool::new().max_active(3);
        for _ in 0..3 {
            pool.add_sized(u64::MAX, || {
                began.up();
                began.wait_for(3);
            });
        }
        pool.wait().unwrap();
    });
}

#[test]
fn a_member_for_which_there_is_no_room_is_not_overtaken() {
    in_both_worlds(|| {
        let (began, go) = (Count::new(), Flag::new());
        let mut pool = RequestPool::new().max_active(3).memory_limit(10);
        for (n, bytes) in [8, 8, 1].into_iter().enumerate() {
            let (began, go) = (&began, &go);
            pool.add_sized(bytes, move || {
                began.up();
                if n == 0 {
                    // If the third had been started it would be here before this ends.
                    yields(100);
                    assert_eq!(began.get(), 1);
                    go.raise();
                }
                go.wait();
            });
        }
        pool.wait().unwrap();
        assert_eq!(began.get(), 3);
    });
}

#[test]
fn members_that_have_begun_go_on_before_many_more_begin() {
    let _dog = Watchdog::new("one worker");
    runtime(1).run(|| {
        let began = Count::new();
        let mut pool = RequestPool::new().max_active(2);
        pool.add(|| {
            yields(1);
            assert!(began.get() < 5, "{} of 100 have begun meanwhile", began.get());
        });
        for _ in 0..100 {
            pool.add(|| _ = began.up());
        }
        pool.wait().unwrap();
    });
}

/// Though the waiter is stuck behind it.
#[test]
fn while_one_member_keeps_its_worker_the_others_are_run_elsewhere() {
    on_each_of(&[2, 4], |runtime| {
        runtime.run(|| {
            let (ended, elsewhere) = (Count::new(), Flag::new());
            let keeper = AtomicUsize::new(usize::MAX);
            // Where a member was started; it may have been taken elsewhere from there.
            let started = || Request::current().unwrap().parent().unwrap().assigned_worker().unwrap();
            let mut pool = RequestPool::new();
            pool.add(|| {
                keeper.store(Request::current().unwrap().assigned_worker().unwrap(), Ordering::Release);
                // Forks offer what is here to who is idle.
                while !elsewhere.is_up() && ended.get() < 200 {
                    join(|| (), || ());
                }
                hold_thread_until(|| ended.get() == 200);
            });
            for _ in 0..200 {
                pool.add(|| {
                    if ![usize::MAX, started()].contains(&keeper.load(Ordering::Acquire)) {
                        elsewhere.raise();
                    }
                    ended.up();
                });
            }
            pool.wait().unwrap();
        });
    });
}

#[test]
fn the_bound_on_memory_is_met_to_the_byte() {
    in_both_worlds(|| {
        for (more, together) in [(0, 2), (1, 1)] {
            let gauge = Gauge::default();
            let mut pool = RequestPool::new().max_active(8).memory_limit(10);
            for n in 0..8 {
                pool.add_sized(5 + n % 2 * more, || {
                    let _inside = gauge.enter();
                    yields(10);
                });
            }
            pool.wait().unwrap();
            assert!(gauge.most() <= together, "{} at a time", gauge.most());
        }
    });
}
