//! `RwLock`: who has it together, in which order, and the ways from one kind of having it to another.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard,
};
use forebear::{
    Cancellation, Cancelled, Request, Runtime, State, TimeoutError, WaitError, no_suspend, shield, yield_now,
};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Flag, Joined, in_both_worlds, on_each, until};

type Shared = Arc<RwLock<usize>>;

fn settle(runtime: &Runtime) {
    for _ in 0..20 {
        runtime.run(|| yield_now().unwrap());
    }
}

/// A request that does `f` with the lock, and sleeps when this returns.
fn sleeper<T: Send + 'static>(
    runtime: &Runtime,
    lock: &Shared,
    f: impl FnOnce(&RwLock<usize>) -> T + Send + 'static,
) -> Request<T> {
    let lock = lock.clone();
    let request = root(runtime).spawn(move || f(&lock));
    asleep(&request);
    settle(runtime);
    request
}

// ---- who has it together -------------------------------------------------------------------------------------------------------

#[test]
fn readers_share_it_and_a_writer_is_alone() {
    in_both_worlds(|| {
        let lock = RwLock::new(1);
        assert!(!lock.is_locked());
        let (one, another) = (lock.read(), lock.try_read().unwrap());
        assert!(lock.is_locked() && lock.try_write().is_none());
        let upgradable = lock.upgradable_read();
        assert_eq!((*one, *another, *upgradable, *lock.read()), (1, 1, 1, 1));
        assert!(lock.try_upgradable_read().is_none() && lock.try_write().is_none());
        drop((one, another));
        assert!(lock.try_write().is_none());
        drop(upgradable);
        let mut writing = lock.try_write().unwrap();
        *writing += 1;
        assert!(
            lock.try_read().is_none() && lock.try_write().is_none() && lock.try_upgradable_read().is_none()
        );
        drop(writing);
        assert_eq!(*lock.write(), 2);
        assert!(!lock.is_locked());
    });
}

#[test]
fn requests_and_threads_exclude_each_other_also_across_waits() {
    on_each(|runtime| {
        // Two that are the same whenever nobody writes.
        let lock = Arc::new(RwLock::new((0_u32, 0_u32)));
        let visit = |seed: usize| {
            let lock = lock.clone();
            move || {
                for round in seed..seed + 120 {
                    match round % 6 {
                        0 | 1 => {
                            let mut both = lock.write();
                            both.0 += 1;
                            if round % 4 == 0 {
                                let _ = yield_now();
                            }
                            both.1 += 1;
                        }
                        2 => {
                            let looked = lock.upgradable_read();
                            let before = looked.0;
                            let _ = yield_now();
                            let mut both = RwLockUpgradableReadGuard::upgrade(looked);
                            assert_eq!(both.0, before, "nobody has written since");
                            *both = (before + 1, before + 1);
                        }
                        3 => {
                            let mut both = lock.write();
                            *both = (both.0 + 1, both.1 + 1);
                            let written = both.0;
                            let both = RwLockWriteGuard::downgrade(both);
                            let _ = yield_now();
                            assert_eq!(*both, (written, written));
                        }
                        _ => {
                            let both = lock.read();
                            let seen = *both;
                            assert_eq!(seen.0, seen.1);
                            let _ = yield_now();
                            assert_eq!(*both, seen);
                        }
                    }
                }
            }
        };
        let requests: Vec<_> = (0..5).map(|n| root(runtime).spawn(visit(n))).collect();
        let threads: Vec<_> = (0..2).map(|n| thread::spawn(visit(n))).collect();
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        // Of six rounds each four write.
        assert_eq!(*lock.read(), (7 * 80, 7 * 80));
        assert!(!lock.is_locked());
    });
}

// ---- from one to another -------------------------------------------------------------------------------------------------------

#[test]
fn a_writer_that_downgrades_lets_readers_in_and_no_writer() {
    on_each(|runtime| {
        let lock = Shared::default();
        let mut writing = lock.write();
        let reader = sleeper(runtime, &lock, |lock| *lock.read());
        let writer = sleeper(runtime, &lock, |lock| *lock.write() += 10);
        *writing = 1;
        let reading = RwLockWriteGuard::downgrade(writing);
        assert_eq!(reader.wait().copied().unwrap(), 1);
        settle(runtime);
        assert!(!writer.is_done());
        assert_eq!(*reading, 1);
        drop(reading);
        writer.wait().unwrap();
        assert_eq!(*lock.read(), 11);
    });
}

#[test]
fn an_upgrade_waits_for_those_who_read_and_lets_nobody_in_between() {
    on_each(|runtime| {
        let lock = Shared::default();
        let reading = lock.read();
        let upgrader = sleeper(runtime, &lock, |lock| {
            let looked = lock.upgradable_read();
            let mut writing = RwLockUpgradableReadGuard::upgrade(looked);
            *writing += 1;
            let looked = RwLockWriteGuard::downgrade_to_upgradable(writing);
            assert!(lock.try_write().is_none() && lock.try_upgradable_read().is_none());
            let reading = RwLockUpgradableReadGuard::downgrade(looked);
            // When the one that waits to read has come through.
            until(|| lock.try_upgradable_read().is_some());
            *reading
        });
        // It is about to write: nobody comes in any more.
        assert!(lock.try_read().is_none());
        assert_eq!(lock.read_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
        let late = sleeper(runtime, &lock, |lock| *lock.read());
        assert_eq!(*reading, 0);
        drop(reading);
        assert_eq!(upgrader.wait().copied().unwrap(), 1);
        assert_eq!(late.wait().copied().unwrap(), 1);
    });
}

/// A reader that stands outside comes in as soon as nobody writes, nor is about to: also if an upgradable reader stays.
#[test]
fn readers_come_in_beside_one_that_reads_upgradably_again() {
    on_each(|runtime| {
        let lock = Shared::default();
        let mut writing = lock.write();
        let reader = sleeper(runtime, &lock, |lock| *lock.read());
        *writing = 1;
        let looked = RwLockWriteGuard::downgrade_to_upgradable(writing);
        assert_eq!(reader.wait().copied().unwrap(), 1);
        // The same when it gives up to write.
        let reading = lock.read();
        let clone = lock.clone();
        let upgrader = {
            drop(looked);
            root(runtime).spawn(move || {
                let looked = clone.upgradable_read();
                let (looked, error) =
                    RwLockUpgradableReadGuard::upgrade_or_cancelled(looked).expect_err("it is cancelled");
                // It keeps the guard until the reader has come in.
                let came = shield(|| {
                    until(|| *clone.read() == 1);
                    true
                });
                drop(looked);
                assert!(came);
                error
            })
        };
        until(|| lock.try_read().is_none());
        let late = sleeper(runtime, &lock, |lock| *lock.read());
        upgrader.cancel();
        assert_eq!(late.wait().copied().unwrap(), 1);
        drop(reading);
        ends_cancelled(&upgrader);
        assert!(!lock.is_locked());
    });
}

#[test]
fn an_upgrade_that_is_refused_gives_the_guard_back() {
    on_each(|runtime| {
        let lock = Shared::default();
        let reading = lock.read();
        let looked = lock.upgradable_read();
        let looked = RwLockUpgradableReadGuard::try_upgrade(looked).unwrap_err();
        let Err((looked, error)) =
            RwLockUpgradableReadGuard::upgrade_timeout(looked, Duration::from_millis(2))
        else {
            panic!("somebody reads")
        };
        assert_eq!(error, TimeoutError::TimedOut);
        // It is as before.
        assert!(lock.try_read().is_some() && lock.try_write().is_none());
        drop(looked);
        let leaver = sleeper(runtime, &lock, |lock| {
            match RwLockUpgradableReadGuard::upgrade_or_cancelled(lock.upgradable_read()) {
                Ok(_) => unreachable!("somebody reads"),
                Err((looked, cancelled)) => {
                    assert!(lock.try_read().is_some());
                    drop(looked);
                    cancelled
                }
            }
        });
        leaver.cancel();
        ends_cancelled(&leaver);
        drop(reading);
        let looked = lock.upgradable_read();
        let mut writing = RwLockUpgradableReadGuard::try_upgrade(looked).unwrap();
        *writing = 5;
        drop(writing);
        let looked = lock.upgradable_read();
        let Ok(writing) = RwLockUpgradableReadGuard::upgrade_timeout(looked, Duration::ZERO) else {
            panic!()
        };
        drop(writing);
        let Ok(writing) = RwLockUpgradableReadGuard::upgrade_or_cancelled(lock.upgradable_read()) else {
            panic!()
        };
        assert_eq!(*writing, 5);
        drop(writing);
        assert!(!lock.is_locked());
    });
}

#[test]
fn a_guard_of_a_part_keeps_the_whole() {
    in_both_worlds(|| {
        let mut lock = RwLock::new([0; 4]);
        let part = RwLockWriteGuard::map(lock.write(), |all| &mut all[..2]);
        let mut part = MappedRwLockWriteGuard::map(part, |half| &mut half[1..]);
        part[0] = 42;
        assert!(lock.try_read().is_none());
        drop(part);
        assert_eq!(*lock.get_mut(), [0, 42, 0, 0]);
        let part = RwLockReadGuard::map(lock.read(), |all| &all[..2]);
        let part = MappedRwLockReadGuard::map(part, |half| &half[1..]);
        assert_eq!((&*part, format!("{part:?}")), (&[42][..], "[42]".to_owned()));
        assert!(lock.try_read().is_some() && lock.try_write().is_none());
        drop(part);
        let whole = RwLockReadGuard::try_map(lock.read(), |_| None::<&u8>).unwrap_err();
        assert_eq!(*RwLockReadGuard::try_map(whole, |all| all.last()).unwrap(), 0);
        let whole = RwLockWriteGuard::try_map(lock.write(), |_| None::<&mut u8>).unwrap_err();
        *RwLockWriteGuard::try_map(whole, |all| all.last_mut()).unwrap() = 7;
        assert!(!lock.is_locked());
        assert_eq!(lock.into_inner(), [0, 42, 0, 7]);
    });
}

/// A guard to read a reference may be used where a shorter one is wanted.
#[test]
fn guards_to_read_are_covariant() {
    fn shorter<'a>(_: RwLockReadGuard<'_, &'a i32>, _: &'a i32) {}
    fn part<'a>(_: MappedRwLockReadGuard<'_, &'a i32>, _: &'a i32) {}
    let long = 1;
    let lock = RwLock::new(&long);
    let pair = RwLock::new((&long, ()));
    {
        let short = 2;
        shorter(lock.read(), &short);
        part(RwLockReadGuard::map(pair.read(), |pair| &pair.0), &short);
    }
    assert_eq!((**lock.read(), *pair.read().0), (1, 1));
}

#[test]
fn it_holds_what_has_no_size() {
    let lock: &RwLock<[i32]> = &RwLock::new([1, 2, 3]);
    lock.write()[0] = 4;
    assert_eq!(*lock.read(), [4, 2, 3]);
    assert_eq!(format!("{lock:?}"), "RwLock { value: [4, 2, 3], .. }");
    let _writing = lock.write();
    assert_eq!(format!("{lock:?}"), "RwLock { value: <locked>, .. }");
}

// ---- order ---------------------------------------------------------------------------------------------------------------------

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

// ---- how waits end -------------------------------------------------------------------------------------------------------------

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

// ---- circles, regions, unwinding -----------------------------------------------------------------------------------------------

#[test]
fn a_circle_through_one_who_writes_is_found_and_named() {
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
        for part in ["deadlock", "`writer`", "`reader`", "RwLock", "Mutex", "tests/rw_lock.rs"] {
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
