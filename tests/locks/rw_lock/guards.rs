//! Which guards exist together, and how one kind becomes another.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::sync::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard,
    RwLockWriteGuard,
};
use forebear::{TimeoutError, shield, yield_now};

use super::cancelling::ends_cancelled;
use super::support::order::root;
use super::support::{Joined, in_both_worlds, on_each, until};
use super::{Shared, settle, sleeper};

// ---- who has it together --------------------------------------------------------------------------------------------

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

// ---- from one to another --------------------------------------------------------------------------------------------

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
