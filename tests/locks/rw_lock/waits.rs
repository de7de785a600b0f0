//! Which waiter is first, how waits end, and what must not wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::sync::{Mutex, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};
use forebear::{
    Cancellation, Cancelled, Priority, Request, State, TimeoutError, WaitError, no_suspend, yield_now,
};

use super::cancelling::{ends_cancelled, on_each_clocked};
use super::support::order::{BY_URGENCY, Gate, on_one, root, wait_by_urgency};
use super::support::{Flag, Joined, hold_workers, in_both_worlds, on_each, until};
use super::{Shared, settle, sleeper};

// ---- order ----------------------------------------------------------------------------------------------------------

#[test]
fn a_writer_is_not_starved_by_readers_who_keep_coming() {
    on_each(|runtime| {
        let lock = Shared::default();
        let over = Flag::new();
        // There is always one who reads.
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (lock, over) = (lock.clone(), over.clone());
                root(runtime).spawn(move || {
                    let mut reading = lock.read();
                    while !over.is_up() {
                        let _ = yield_now();
                        // The next before the last is gone, if it is to be had.
                        let next = lock.try_read();
                        drop(reading);
                        reading = next.unwrap_or_else(|| lock.read());
                    }
                })
            })
            .collect();
        let writer = {
            let lock = lock.clone();
            root(runtime).spawn(move || (0..20).for_each(|_| *lock.write() += 1))
        };
        writer.wait().unwrap();
        over.raise();
        readers.iter().for_each(|reader| reader.wait().copied().unwrap());
        assert_eq!(*lock.read(), 20);
    });
}

#[test]
fn a_reader_is_not_starved_by_writers_who_keep_coming() {
    on_each(|runtime| {
        let lock = Shared::default();
        let over = Flag::new();
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (lock, over) = (lock.clone(), over.clone());
                root(runtime).spawn(move || {
                    while !over.is_up() {
                        *lock.write() += 1;
                        let _ = yield_now();
                    }
                })
            })
            .collect();
        let reader = {
            let lock = lock.clone();
            root(runtime).spawn(move || {
                for _ in 0..20 {
                    drop(lock.read());
                    let _ = yield_now();
                }
            })
        };
        reader.wait().unwrap();
        over.raise();
        writers.iter().for_each(|writer| writer.wait().copied().unwrap());
    });
}

#[test]
fn the_most_urgent_waiter_is_first_and_equals_by_age() {
    on_one(|runtime, log| {
        let lock = Shared::default();
        let writing = lock.write();
        let theirs = lock.clone();
        let waiters = wait_by_urgency(runtime, &log, move || *theirs.write() += 1);
        drop(writing);
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}

/// The writer becomes as urgent as a reader that waits for it, and is so no longer when it has let that one in.
#[test]
fn who_downgrades_is_as_urgent_as_before_the_readers_that_it_lets_in_had_come() {
    on_one(|runtime, log| {
        let lock = Shared::default();
        let (first, second) = (Gate::new(runtime), Gate::new(runtime));
        let waits = |gate: &Gate| {
            let gate = gate.request.to_untyped();
            move || gate.wait().unwrap()
        };
        let writer = {
            let (lock, log, first, second) = (lock.clone(), log.clone(), waits(&first), waits(&second));
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                let writing = lock.write();
                first();
                let reading = RwLockWriteGuard::downgrade(writing);
                second();
                log.note("writer");
                drop(reading);
            })
        };
        until(|| writer.state() == State::Suspended);
        let reader = root(runtime).priority(Priority::URGENT).spawn({
            let lock = lock.clone();
            move || drop(lock.read())
        });
        until(|| reader.state() == State::Suspended);
        first.open();
        reader.wait().unwrap();
        let normal = {
            let (log, second) = (log.clone(), waits(&second));
            root(runtime).spawn(move || {
                second();
                log.note("normal");
            })
        };
        for one in [&writer, &normal] {
            until(|| one.state() == State::Suspended);
        }
        let held = hold_workers(runtime);
        second.open();
        held.release();
        for one in [&writer, &normal] {
            one.wait().unwrap();
        }
        log.check(&["normal", "writer"]);
    });
}

// ---- how waits end --------------------------------------------------------------------------------------------------

#[test]
fn a_wait_with_a_limit_times_out_and_leaves_no_trace() {
    in_both_worlds(|| {
        let lock = RwLock::new(0);
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            let reading = lock.read();
            assert_eq!(lock.write_timeout(limit).err(), Some(TimeoutError::TimedOut));
            // Readers come in again.
            assert!(lock.try_read().is_some());
            drop(reading);
            let writing = lock.write();
            assert_eq!(lock.read_timeout(limit).err(), Some(TimeoutError::TimedOut));
            assert_eq!(lock.write_timeout(limit).err(), Some(TimeoutError::TimedOut));
            assert_eq!(lock.upgradable_read_timeout(limit).err(), Some(TimeoutError::TimedOut));
            drop(writing);
            assert!(lock.try_write().is_some());
        }
        drop(lock.read_timeout(Duration::ZERO).unwrap());
        drop(lock.upgradable_read_timeout(Duration::MAX).unwrap());
        *lock.write_timeout(Duration::MAX).unwrap() += 1;
        assert_eq!(lock.into_inner(), 1);
    });
}

#[test]
fn the_time_of_a_writer_is_that_for_its_turn_and_for_the_readers_together() {
    on_each_clocked(|runtime, clock| {
        let lock = Shared::default();
        let second = Duration::from_secs(1);
        let reading = lock.read();
        let looked = lock.upgradable_read();
        let writer = sleeper(runtime, &lock, move |lock| lock.write_timeout(second).map(|_| ()));
        clock.advance(second / 2);
        drop(looked);
        // Its turn: it waits for the reader.
        until(|| lock.try_read().is_none());
        clock.advance(second / 2 - Duration::from_nanos(1));
        settle(runtime);
        assert!(!writer.is_done());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(writer.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        assert!(lock.try_read().is_some());
        drop(reading);
        assert!(lock.try_write().is_some());
    });
}

#[test]
fn a_cancelled_waiter_leaves_at_once_and_a_plain_one_stays() {
    on_each(|runtime| {
        let lock = Shared::default();
        // It waits for its turn; and it waits for the readers.
        for reads in [false, true] {
            let (reading, writing) = match reads {
                true => (Some(lock.read()), None),
                false => (None, Some(lock.write())),
            };
            let leaver = sleeper(runtime, &lock, |lock| lock.write_or_cancelled().map(|_| ()));
            assert_eq!(leaver.cancel(), Cancellation::Marked);
            ends_cancelled(&leaver);
            let plain = sleeper(runtime, &lock, |lock| *lock.write() += 1);
            plain.cancel();
            settle(runtime);
            assert_eq!(plain.state(), State::Suspended);
            drop((reading, writing));
            ends_cancelled(&plain);
        }
        let writing = lock.write();
        for way in [
            |lock: &RwLock<usize>| lock.read_or_cancelled().map(|_| ()),
            |lock: &RwLock<usize>| lock.upgradable_read_or_cancelled().map(|_| ()),
        ] {
            let leaver = sleeper(runtime, &lock, way);
            assert_eq!(leaver.cancel(), Cancellation::Marked);
            ends_cancelled(&leaver);
        }
        drop(writing);
        assert_eq!(*lock.try_write().unwrap(), 2);
        drop((lock.read_or_cancelled().unwrap(), lock.upgradable_read_or_cancelled().unwrap()));
        drop(lock.write_or_cancelled().unwrap());
    });
}

#[test]
fn in_a_cancelled_request_cancelled_is_told_first() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let lock = RwLock::new(());
            Request::current().unwrap().cancel();
            assert_eq!(lock.read_or_cancelled().err(), Some(Cancelled::new()));
            assert_eq!(lock.write_or_cancelled().err(), Some(Cancelled::new()));
            assert_eq!(lock.upgradable_read_or_cancelled().err(), Some(Cancelled::new()));
            assert_eq!(lock.write_timeout(Duration::MAX).err(), Some(TimeoutError::Cancelled));
            let looked = lock.upgradable_read();
            let told = RwLockUpgradableReadGuard::upgrade_or_cancelled(looked);
            assert!(told.is_err_and(|(_, error)| error == Cancelled::new()));
            assert!(!lock.is_locked());
        });
        ends_cancelled(&request);
    });
}

#[test]
fn a_turn_that_went_to_one_who_leaves_goes_to_the_next() {
    on_each(|runtime| {
        for round in 0..50 {
            let lock = Shared::default();
            let (reading, looked) = (lock.read(), lock.upgradable_read());
            let waiters: Vec<_> = (0..8)
                .map(|n| {
                    let lock = lock.clone();
                    root(runtime).spawn(move || match n % 4 < 2 {
                        true => lock.write_or_cancelled().map(|mut held| *held += 1),
                        false => lock.read_or_cancelled().map(|_| ()),
                    })
                })
                .collect();
            let canceller = {
                let waiters = waiters.clone();
                thread::spawn(move || {
                    waiters.iter().skip(round % 2).step_by(2).for_each(|waiter| _ = waiter.cancel());
                })
            };
            drop(looked);
            drop(reading);
            canceller.joined().unwrap();
            for (n, waiter) in waiters.iter().enumerate() {
                let answer = waiter.wait();
                assert!(n % 2 == round % 2 || matches!(answer, Ok(Ok(()))), "{answer:?}");
            }
            assert!(lock.try_write().is_some());
        }
    });
}

// ---- cycles, regions, unwinding ------------------------------------------------------------------------------------

#[test]
fn a_cycle_through_one_who_writes_is_found_and_named() {
    on_each(|runtime| {
        let (lock, other) = (Shared::default(), Arc::new(Mutex::new(())));
        let (has_lock, has_other) = (Flag::new(), Flag::new());
        let writer = {
            let (lock, other, mine, theirs) =
                (lock.clone(), other.clone(), has_lock.clone(), has_other.clone());
            root(runtime).name("writer").spawn(move || {
                let _writing = lock.write();
                mine.raise();
                theirs.wait();
                drop(other.lock());
            })
        };
        let reader = {
            let (lock, other, mine, theirs) =
                (lock.clone(), other.clone(), has_other.clone(), has_lock.clone());
            root(runtime).name("reader").spawn(move || {
                let _other = other.lock();
                mine.raise();
                theirs.wait();
                drop(lock.read());
            })
        };
        let told: Vec<_> = [writer.wait(), reader.wait()].into_iter().filter_map(Result::err).collect();
        let [WaitError::Failed(failure)] = &told[..] else { panic!("one of them is told: {told:?}") };
        let text = failure.panic_message().unwrap();
        for part in ["deadlock", "`writer`", "`reader`", "RwLock", "Mutex", "tests/locks/rw_lock/waits.rs"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!lock.is_locked());
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name_and_leaves_no_trace() {
    on_each(|runtime| {
        let lock = Shared::default();
        let reading = lock.read();
        let theirs = lock.clone();
        let request = runtime.spawn(move || {
            no_suspend("a region", || drop(theirs.read()));
            let told = [
                catch_unwind(AssertUnwindSafe(|| no_suspend("a region", || drop(theirs.write())))),
                catch_unwind(AssertUnwindSafe(|| {
                    let looked = theirs.upgradable_read();
                    no_suspend("a region", || drop(RwLockUpgradableReadGuard::upgrade(looked)));
                })),
            ];
            for told in told {
                let text = *told.unwrap_err().downcast::<String>().unwrap();
                assert!(text.contains("a region") && text.contains("RwLock"), "{text}");
                // Others come in as before.
                assert!(theirs.try_read().is_some() && theirs.try_upgradable_read().is_some());
            }
        });
        request.wait().unwrap();
        drop(reading);
        assert!(lock.try_write().is_some());
    });
}

#[test]
fn it_is_had_while_a_panic_unwinds_and_given_back_by_it() {
    in_both_worlds(|| {
        struct Writes<'a>(&'a RwLock<i32>);
        impl Drop for Writes<'_> {
            fn drop(&mut self) {
                *self.0.write() += 1;
            }
        }
        let lock = RwLock::new(1);
        let told = catch_unwind(AssertUnwindSafe(|| {
            let _writes = Writes(&lock);
            let _writing = lock.write();
            panic!("while it is had");
        }));
        assert!(told.is_err());
        assert_eq!(*lock.try_write().unwrap(), 2);
    });
}
