//! The sleep protocol of `forebear-pool`, as it ships: `Signals` driven by `Worker::idle`.
//!
//! A lost wake-up shows as a deadlock: a worker that sleeps for ever beside its work, and a main thread that joins it.
#![cfg(loom)]

use std::time::Duration;

use forebear_context::shim::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire};
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_context::shim::{Arc, Condvar, Mutex};
use forebear_pool::{Signals, Supply, Worker};

/// Work for anyone, mail for worker 0, and a count of what has been taken. Work is counted by atomics that a look reads by
/// a plain load: a lock here would order more than the protocol may rely on, since a supply need not have one.
struct Stall {
    signals: Signals,
    shared: AtomicU32,
    mail: AtomicU32,
    taken: Mutex<u32>,
    taken_moved: Condvar,
    /// Sleepers look again by themselves.
    tick: Option<Duration>,
    /// Worker 1 refuses the work for anyone.
    refused: bool,
}

/// Where a task came from.
#[derive(Debug, PartialEq, Eq)]
enum From {
    Shared,
    Mail,
}

impl Stall {
    fn new(workers: usize) -> Arc<Stall> {
        Stall::with_tick(workers, None)
    }

    fn with_tick(workers: usize, tick: Option<Duration>) -> Arc<Stall> {
        Stall::with(Signals::new(workers), tick, false)
    }

    fn with(signals: Signals, tick: Option<Duration>, refused: bool) -> Arc<Stall> {
        Arc::new(Stall {
            signals,
            shared: AtomicU32::new(0),
            mail: AtomicU32::new(0),
            taken: Mutex::new(0),
            taken_moved: Condvar::new(),
            tick,
            refused,
        })
    }

    fn put_for_anyone(&self) {
        self.shared.fetch_add(1, AcqRel);
        self.signals.notify_any();
    }

    fn put_for_worker_0(&self) {
        self.mail.fetch_add(1, AcqRel);
        self.signals.wake(0);
    }

    /// Says that one more has been taken, and holds the worker up until `all` have been.
    fn meet(&self, all: u32) {
        let mut taken = self.taken.lock().unwrap();
        *taken += 1;
        self.taken_moved.notify_all();
        drop(taken);
        self.wait_for(all);
    }

    /// Waits until `all` have been taken.
    fn wait_for(&self, all: u32) {
        let mut taken = self.taken.lock().unwrap();
        while *taken < all {
            taken = self.taken_moved.wait(taken).unwrap();
        }
    }
}

fn one_of(count: &AtomicU32) -> bool {
    let mut seen = count.load(Acquire);
    while seen > 0 {
        match count.compare_exchange(seen, seen - 1, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(other) => seen = other,
        }
    }
    false
}

impl Supply for Stall {
    type Task = From;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, worker: usize) -> Option<From> {
        if worker == 0 && one_of(&self.mail) {
            return Some(From::Mail);
        }
        let takes = !(self.refused && worker == 1);
        (takes && one_of(&self.shared)).then_some(From::Shared)
    }

    fn steal(&self, worker: usize) -> Option<From> {
        if self.refused && worker == 1 && self.shared.load(Acquire) > 0 {
            self.signals.notify_one_of(|sleeper| sleeper == 0);
        }
        None
    }

    /// Nothing, so that a search does not look: the model has enough looks without.
    fn best(&self, _: usize) -> u64 {
        u64::MAX
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        self.tick
    }
}

/// A thread that is worker `index` and runs `body`.
fn worker(
    stall: &Arc<Stall>,
    index: usize,
    body: impl FnOnce(&Worker<Stall>) + Send + 'static,
) -> JoinHandle<()> {
    let stall = Arc::clone(stall);
    thread::spawn(move || body(&Worker::attach(stall, index)))
}

#[test]
fn one_item_reaches_the_sleeper() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| assert_eq!(worker.idle(), Some(From::Shared)));
        stall.put_for_anyone();
        sleeper.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

#[test]
fn two_items_reach_the_sleeper() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| {
            assert_eq!(worker.idle(), Some(From::Shared));
            assert_eq!(worker.idle(), Some(From::Shared));
        });
        stall.put_for_anyone();
        stall.put_for_anyone();
        sleeper.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

#[test]
fn two_producers_wake_one_sleeper() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| {
            assert_eq!(worker.idle(), Some(From::Shared));
            assert_eq!(worker.idle(), Some(From::Shared));
        });
        let other = {
            let stall = Arc::clone(&stall);
            thread::spawn(move || stall.put_for_anyone())
        };
        stall.put_for_anyone();
        other.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// Two tasks that wait for each other: whoever takes the first is no use to the second, and a notifier that relied on
/// the first worker's search must be served by its passing the search on.
#[test]
fn two_items_wake_two_sleepers() {
    loom::model(|| {
        let stall = Stall::new(2);
        let sleepers = [0, 1].map(|index| {
            worker(&stall, index, |worker| {
                assert_eq!(worker.idle(), Some(From::Shared));
                worker.supply().meet(2);
            })
        });
        stall.put_for_anyone();
        stall.put_for_anyone();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

/// Three tasks that wait for each other. A searcher that has found one wakes two in its place, whether or not others search: as
/// where many sleep.
#[test]
fn a_searcher_that_wakes_two_in_its_place_loses_nothing() {
    let mut builder = loom::model::Builder::new();
    // Of four threads; with one it is many minutes.
    builder.preemption_bound = Some(0);
    builder.check(|| {
        let stall = Stall::with(Signals::with_sleepers_a_searcher(3, 0), None, false);
        let sleepers = [0, 1, 2].map(|index| {
            worker(&stall, index, |worker| {
                assert_eq!(worker.idle(), Some(From::Shared));
                worker.supply().meet(3);
            })
        });
        // All have announced that they sleep, and may be on the way.
        while stall.signals.sleeping() < 3 {
            loom::thread::yield_now();
        }
        stall.shared.fetch_add(3, AcqRel);
        stall.signals.notify_any();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

#[test]
fn a_named_wake_reaches_a_worker_that_goes_to_sleep() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| assert_eq!(worker.idle(), Some(From::Mail)));
        stall.put_for_worker_0();
        sleeper.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

#[test]
fn a_named_wake_and_one_for_anyone_are_both_served() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| {
            assert!(worker.idle().is_some());
            assert!(worker.idle().is_some());
        });
        let other = {
            let stall = Arc::clone(&stall);
            thread::spawn(move || stall.put_for_worker_0())
        };
        stall.put_for_anyone();
        other.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// Worker 0, woken for the shared item, may find mail instead, and mail holds it up until the item has been taken: so the
/// item must reach the other worker.
#[test]
fn mail_that_uses_up_a_wake_does_not_lose_the_item() {
    loom::model(|| {
        let stall = Stall::new(2);
        let sleepers = [0, 1].map(|index| {
            worker(&stall, index, |worker| {
                while let Some(from) = worker.idle() {
                    worker.supply().meet(if from == From::Mail { 2 } else { 0 });
                }
            })
        });
        stall.put_for_worker_0();
        stall.put_for_anyone();
        stall.wait_for(2);
        stall.signals.stop();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

/// The worker that a notifier wakes for an item, or relies on, may refuse it: the item reaches the other worker all the same.
#[test]
fn what_one_worker_refuses_reaches_the_other() {
    loom::model(|| {
        let stall = Stall::with(Signals::new(2), None, true);
        let takes = worker(&stall, 0, |worker| assert_eq!(worker.idle(), Some(From::Shared)));
        let refuses = worker(&stall, 1, |worker| assert_eq!(worker.idle(), None));
        stall.put_for_anyone();
        takes.join().unwrap();
        stall.signals.stop();
        refuses.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

#[test]
fn stop_reaches_a_worker_that_goes_to_sleep() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| assert_eq!(worker.idle(), None));
        stall.signals.stop();
        sleeper.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}

/// What is there when the stop comes is found by somebody: a searcher that leaves passes its search on.
#[test]
fn stop_leaves_nothing_untaken() {
    loom::model(|| {
        let stall = Stall::new(1);
        let sleeper = worker(&stall, 0, |worker| {
            assert_eq!(worker.idle(), Some(From::Shared));
            assert_eq!(worker.idle(), None);
        });
        stall.put_for_anyone();
        stall.signals.stop();
        sleeper.join().unwrap();
    });
}

/// A tick may pass at any moment: while a notifier has the worker in its hands, before its token comes, after.
#[test]
fn a_tick_that_passes_loses_no_wake() {
    loom::model(|| {
        let stall = Stall::with_tick(1, Some(Duration::from_millis(1)));
        let sleeper = worker(&stall, 0, |worker| {
            assert_eq!(worker.idle(), Some(From::Shared));
            assert_eq!(worker.idle(), Some(From::Shared));
        });
        stall.put_for_anyone();
        stall.put_for_anyone();
        sleeper.join().unwrap();
        assert_eq!((stall.signals.sleeping(), stall.signals.searching()), (0, 0));
    });
}
