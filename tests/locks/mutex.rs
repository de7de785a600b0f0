//! `Mutex`: what it excludes, how it ends, and what its waiters tell the scheduler.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::sync::{MappedMutexGuard, Mutex, MutexGuard};
use forebear::{CancelReason, Cancellation, Priority, Request, TimeoutError, WaitError, spawn, yield_now};
use support::order::{BY_URGENCY, Gate, on_one, open_beside_a_normal_one, root, wait_by_urgency};
use support::{Flag, Joined, Watchdog, hold_workers, in_both_worlds, kinds, on_each, until};

// ---- what it excludes ----------------------------------------------------------------------------------------------------------

#[test]
fn requests_and_threads_exclude_each_other_also_across_waits() {
    on_each(|runtime| {
        let count = Arc::new(Mutex::new(0_u32));
        let add = |count: Arc<Mutex<u32>>| {
            move || {
                for round in 0..200 {
                    let mut held = count.lock();
                    let seen = *held;
                    if round % 4 == 0 {
                        let _ = yield_now();
                    }
                    *held = seen + 1;
                }
            }
        };
        let requests: Vec<_> = (0..6).map(|_| runtime.spawn(add(count.clone()))).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(add(count.clone()))).collect();
        for thread in threads {
            thread.joined().unwrap();
        }
        for request in &requests {
            request.wait().unwrap();
        }
        assert_eq!(*count.lock(), 8 * 200);
        assert!(!count.is_locked());
    });
}

#[test]
fn it_is_not_reentrant_and_says_so_when_asked() {
    in_both_worlds(|| {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.is_locked() && mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    });
}

#[test]
fn a_guard_of_a_part_keeps_the_whole_locked() {
    in_both_worlds(|| {
        let mutex = Mutex::new((1, vec![2, 3]));
        let mut part = MutexGuard::map(mutex.lock(), |whole| &mut whole.1);
        part.push(4);
        assert!(mutex.is_locked() && mutex.try_lock().is_none());
        let mut slice = MappedMutexGuard::map(part, |list| &mut list[1..]);
        slice[0] = 30;
        let Ok(mut last) = MappedMutexGuard::try_map(slice, |slice| slice.last_mut()) else { panic!() };
        *last = 40;
        assert_eq!(format!("{last} {last:?}"), "40 40");
        let Err(last) = MappedMutexGuard::try_map(last, |_| None::<&mut i32>) else { panic!() };
        assert!(mutex.is_locked());
        drop(last);
        let Err(whole) = MutexGuard::try_map(mutex.lock(), |_| None::<&mut i32>) else { panic!() };
        assert_eq!(*whole, (1, vec![2, 30, 40]));
        let Ok(first) = MutexGuard::try_map(whole, |whole| Some(&mut whole.0)) else { panic!() };
        assert!(mutex.is_locked());
        drop(first);
        assert!(!mutex.is_locked());
    });
}

#[test]
fn a_panic_in_a_map_lets_go_of_it() {
    in_both_worlds(|| {
        let mutex = Mutex::new(());
        let told = catch_unwind(AssertUnwindSafe(|| {
            drop(MutexGuard::map(mutex.lock(), |_| -> &mut u32 { panic!("in a map") }));
        }));
        assert!(told.is_err() && !mutex.is_locked());
    });
}

// ---- how waits end -------------------------------------------------------------------------------------------------------------

#[test]
fn a_wait_with_a_limit_times_out_and_leaves_no_trace() {
    in_both_worlds(|| {
        let mutex = Arc::new(Mutex::new(0));
        let held = mutex.lock();
        assert_eq!(mutex.lock_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
        assert_eq!(mutex.lock_timeout(Duration::from_millis(2)).err(), Some(TimeoutError::TimedOut));
        drop(held);
        // Nobody stands in its way.
        *mutex.try_lock().expect("nobody has it") += 1;
        assert_eq!(*mutex.lock_timeout(Duration::MAX).unwrap(), 1);
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_takes_nothing_along() {
    on_each(|runtime| {
        let mutex = Arc::new(Mutex::new(()));
        let held = mutex.lock();
        let (near, theirs) = (Flag::new(), mutex.clone());
        let waiter = {
            let near = near.clone();
            runtime.spawn(move || {
                near.raise();
                theirs.lock_or_cancelled().map(drop)
            })
        };
        near.wait();
        assert_eq!(waiter.cancel(), Cancellation::Marked);
        let told = waiter.wait();
        assert!(matches!(told, Err(WaitError::TargetCancelled(CancelReason::Asked))), "{told:?}");
        assert!(mutex.is_locked());
        drop(held);
        assert!(mutex.try_lock().is_some());
    });
}

#[test]
fn a_plain_lock_is_had_also_by_a_cancelled_request() {
    on_each(|runtime| {
        let mutex = Arc::new(Mutex::new(0));
        let held = mutex.lock();
        let (near, theirs) = (Flag::new(), mutex.clone());
        let waiter = {
            let near = near.clone();
            runtime.spawn(move || {
                near.raise();
                *theirs.lock() += 1;
            })
        };
        near.wait();
        waiter.cancel();
        drop(held);
        assert!(waiter.wait().is_err());
        assert_eq!(*mutex.lock(), 1);
    });
}

#[test]
fn a_lock_that_went_to_one_who_leaves_goes_to_the_next() {
    on_each(|runtime| {
        for round in 0..50 {
            let mutex = Arc::new(Mutex::new(0));
            let held = mutex.lock();
            let waiters: Vec<_> = (0..6)
                .map(|_| {
                    let theirs = mutex.clone();
                    runtime.spawn(move || theirs.lock_or_cancelled().map(|mut held| *held += 1))
                })
                .collect();
            for waiter in waiters.iter().skip(round % 2).step_by(2) {
                waiter.cancel();
            }
            drop(held);
            for waiter in &waiters {
                let _ = waiter.wait();
            }
            assert!(mutex.try_lock().is_some());
        }
    });
}

// ---- order ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_most_urgent_waiter_gets_it_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let mutex = Arc::new(Mutex::new(()));
        let held = mutex.lock();
        let theirs = mutex.clone();
        let waiters = wait_by_urgency(runtime, &log, move || drop(theirs.lock()));
        drop(held);
        for waiter in &waiters {
            waiter.wait().unwrap();
        }
        log.check(&BY_URGENCY);
    });
}

// ---- urgency -------------------------------------------------------------------------------------------------------------------

/// request → lock → request → unstarted request: what the holder waits for is started before what is less urgent than the waiter.
#[test]
fn urgency_goes_through_a_lock_to_what_its_holder_waits_for() {
    on_one(|runtime, log| {
        let mutex = Arc::new(Mutex::new(()));
        let gate = Gate::new(runtime);
        // In the background: holds the lock, and waits for something in the background that has not started.
        let holding = Flag::new();
        let holder = {
            let (theirs, log, up, gate) = (mutex.clone(), log.clone(), holding.clone(), gate.request.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                let _held = theirs.lock();
                up.raise();
                gate.wait().unwrap();
                let log2 = log.clone();
                let below = Request::builder().own_stack().spawn(move || log2.note("below"));
                below.wait().unwrap();
                log.note("holder");
            })
        };
        holding.wait();
        let near = Flag::new();
        let waiter = {
            let (theirs, log, up) = (mutex.clone(), log.clone(), near.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                up.raise();
                let _held = theirs.lock();
                log.note("urgent");
            })
        };
        near.wait();
        open_beside_a_normal_one(runtime, &log, gate, &[&holder, &waiter]);
        log.check(&["below", "holder", "urgent", "normal"]);
    });
}

/// request → request → lock → request → unstarted request, and back: who holds the lock is as urgent as its most urgent waiter's most
/// urgent waiter for as long as it holds it, and no longer.
#[test]
fn urgency_rises_through_three_and_a_lock_and_falls_when_the_lock_is_given_back() {
    on_one(|runtime, log| {
        let mutex = Arc::new(Mutex::new(()));
        let (first, second) = (Gate::new(runtime), Gate::new(runtime));
        let holding = Flag::new();
        let holder = {
            let (theirs, log, up) = (mutex.clone(), log.clone(), holding.clone());
            let (first, second) = (first.request.clone(), second.request.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                let held = theirs.lock();
                up.raise();
                first.wait().unwrap();
                let below = {
                    let log = log.clone();
                    Request::builder().own_stack().spawn(move || log.note("below the holder"))
                };
                below.wait().unwrap();
                log.note("holder, with the lock");
                drop(held);
                second.wait().unwrap();
                log.note("holder, without");
            })
        };
        holding.wait();
        let near = Flag::new();
        let middle = {
            let (theirs, log, up) = (mutex.clone(), log.clone(), near.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                up.raise();
                let _held = theirs.lock();
                log.note("middle");
            })
        };
        near.wait();
        let near = Flag::new();
        let urgent = {
            let (middle, log, up) = (middle.clone(), log.clone(), near.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                up.raise();
                middle.wait().unwrap();
                log.note("urgent");
            })
        };
        near.wait();
        let near = Flag::new();
        let normal = {
            let (second, log, up) = (second.request.clone(), log.clone(), near.clone());
            root(runtime).spawn(move || {
                up.raise();
                second.wait().unwrap();
                log.note("normal, in the way");
            })
        };
        near.wait();
        open_beside_a_normal_one(runtime, &log, first, &[&urgent]);
        let held = hold_workers(runtime);
        second.open();
        held.release();
        for request in [&holder, &middle, &normal] {
            request.wait().unwrap();
        }
        log.check(&[
            "below the holder",
            "holder, with the lock",
            "middle",
            "urgent",
            "normal",
            "normal, in the way",
            "holder, without",
        ]);
    });
}

// ---- cycles -------------------------------------------------------------------------------------------------------------------

#[test]
fn a_cycle_of_locks_is_found_and_named() {
    // One that has waited before has looked who waits for it, and need not look again at each wait.
    for (kind, have_waited) in kinds().flat_map(|kind| [(kind, false), (kind, true)]) {
        let _dog = Watchdog::new(format_args!("{kind:?}, {have_waited}"));
        let runtime = kind.build();
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let (has_a, has_b) = (Flag::new(), Flag::new());
        let party = |name: &'static str,
                     first: &Arc<Mutex<()>>,
                     second: &Arc<Mutex<()>>,
                     mine: &Flag,
                     other: &Flag| {
            let (first, second, mine, other) = (first.clone(), second.clone(), mine.clone(), other.clone());
            Request::builder().name(name).own_stack().on(&runtime).spawn(move || {
                if have_waited {
                    Request::builder().own_stack().spawn(|| ()).wait().unwrap();
                }
                let _first = first.lock();
                mine.raise();
                other.wait();
                drop(second.lock());
            })
        };
        let one = party("one", &a, &b, &has_a, &has_b);
        let two = party("two", &b, &a, &has_b, &has_a);
        let told: Vec<_> = [one.wait(), two.wait()].into_iter().filter_map(Result::err).collect();
        let [WaitError::Failed(failure)] = &told[..] else { panic!("one of them is told: {told:?}") };
        let text = failure.panic_message().unwrap();
        for part in ["deadlock", "`one`", "`two`", "Mutex", "tests/locks/mutex.rs"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn a_cycle_through_a_lock_and_a_request_is_found_and_named() {
    on_each(|runtime| {
        let mutex = Arc::new(Mutex::new(()));
        let (locked, theirs) = (Flag::new(), mutex.clone());
        let child_locked = locked.clone();
        let holder = Request::builder().name("holder").own_stack().on(runtime).spawn(move || {
            let _held = theirs.lock();
            let again = theirs.clone();
            let child = Request::builder().name("child").own_stack().spawn(move || {
                child_locked.wait();
                drop(again.lock());
            });
            locked.raise();
            child.wait().copied()
        });
        let Err(error) = holder.wait().unwrap() else { panic!("somebody is told") };
        let text = format!("{error:#}");
        assert!(text.contains("`child`") && text.contains("holder"), "{text}");
        assert!(mutex.try_lock().is_some());
    });
}

#[test]
fn a_lock_within_itself_is_a_cycle_of_one() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let mutex = Mutex::new(());
            let _held = mutex.lock();
            drop(mutex.lock());
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!() };
        assert!(failure.panic_message().unwrap().contains("deadlock"), "{failure:#}");
    });
}

#[test]
fn threads_that_run_no_request_are_found_in_cycles_too() {
    on_each(|runtime| {
        let mutex = Arc::new(Mutex::new(()));
        runtime.enter(|| {
            spawn(|| ()).wait().unwrap();
            let held = mutex.lock();
            let (near, theirs) = (Flag::new(), mutex.clone());
            let up = near.clone();
            let child = Request::builder().own_stack().name("child").spawn(move || {
                up.raise();
                drop(theirs.lock());
            });
            near.wait();
            match child.wait() {
                // This wait closed the cycle.
                Err(WaitError::CircularWait(cycle)) => {
                    assert!(cycle.to_string().contains("child"), "{cycle}");
                    drop(held);
                    child.wait().unwrap();
                }
                // The child's did.
                Err(WaitError::Failed(failure)) => assert!(format!("{failure:#}").contains("deadlock")),
                other => panic!("{other:?}"),
            }
        });
        until(|| !mutex.is_locked());
    });
}

// ---- what others are told -------------------------------------------------------------------------------------------------------

#[test]
fn a_laggard_in_front_of_a_lock_says_which() {
    let _dog = Watchdog::new("one worker");
    let runtime = support::runtime(1);
    let mutex = Arc::new(Mutex::new(()));
    let held = mutex.lock();
    let (near, theirs) = (Flag::new(), mutex.clone());
    let up = near.clone();
    let waiter = runtime.spawn(move || {
        up.raise();
        drop(theirs.lock());
    });
    near.wait();
    let Err(error) = runtime.shutdown(Duration::from_millis(20)) else { panic!("it cannot end") };
    let told = format!("{:?}", error.laggards());
    assert!(told.contains("a Mutex (tests/locks/mutex.rs:"), "{told}");
    drop(held);
    let _ = waiter.wait();
}
