//! The cases of Rust's `library/std/tests/sync`, rewritten for these primitives, as far as no test of ours says the same already.
//!
//! `docs/foreign-suites.md` says which case is where, and which has no counterpart.

#[path = "../support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::spawn;
use forebear::sync::{
    Barrier, Condvar, Event, Latch, LazyLock, MappedMutexGuard, MappedRwLockReadGuard,
    MappedRwLockWriteGuard, Mutex, MutexGuard, Once, OnceLock, RawMutex, ReentrantMutex, RwLock,
    RwLockReadGuard, RwLockWriteGuard, Semaphore,
};
use support::order::root;
use support::{Count, Joined, in_both_worlds, on_each};

// ---- mutex.rs ------------------------------------------------------------------------------------------------------------------

/// smoke, try_lock, test_mutex_arc_nested, test_mutex_unsized, test_get_mut, test_into_inner
#[test]
fn a_mutex_is_used_in_every_plain_way() {
    in_both_worlds(|| {
        let mutex = Mutex::new(());
        drop(mutex.lock());
        drop(mutex.lock());
        *mutex.try_lock().unwrap() = ();
        let outer = Arc::new(Mutex::new(Arc::new(Mutex::new(1))));
        let theirs = outer.clone();
        assert_eq!(spawn(move || *theirs.lock().lock()).wait().copied().unwrap(), 1);
        let slice: &Mutex<[i32]> = &Mutex::new([1, 2, 3]);
        slice.lock()[2] = 5;
        assert_eq!(*slice.lock(), [1, 2, 5]);
        let mut mutex = Mutex::from(10);
        *mutex.get_mut() = 20;
        assert_eq!(mutex.into_inner(), 20);
    });
}

/// lots_and_lots
#[test]
fn many_add_to_what_a_mutex_guards() {
    on_each(|runtime| {
        const J: u32 = 500;
        let mutex = Arc::new(Mutex::new(0));
        let add = || {
            let mutex = mutex.clone();
            move || (0..J).for_each(|_| *mutex.lock() += 1)
        };
        let requests = [(); 3].map(|()| root(runtime).spawn(add()));
        let threads = [(); 3].map(|()| thread::spawn(add()));
        for thread in threads {
            thread.joined().unwrap();
        }
        for request in requests {
            request.wait().unwrap();
        }
        assert_eq!(*mutex.lock(), 6 * J);
    });
}

/// test_into_inner_drop, of both
#[test]
fn what_is_taken_out_is_dropped_once() {
    let drops = Count::new();
    let inner = Mutex::new(drops.probe()).into_inner();
    let other = RwLock::new(drops.probe()).into_inner();
    assert_eq!(drops.get(), 0);
    drop((inner, other));
    assert_eq!(drops.get(), 2);
}

/// test_panics, test_mutex_arc_access_in_unwind
#[test]
fn a_mutex_is_not_poisoned_and_may_be_had_in_an_unwind() {
    in_both_worlds(|| {
        struct Adds<'a>(&'a Mutex<i32>);
        impl Drop for Adds<'_> {
            fn drop(&mut self) {
                *self.0.lock() += 1;
            }
        }
        let mutex = Mutex::new(42);
        for _ in 0..3 {
            let told = catch_unwind(AssertUnwindSafe(|| {
                let _adds = Adds(&mutex);
                let _held = mutex.lock();
                panic!("with it");
            }));
            assert!(told.is_err());
        }
        assert_eq!(*mutex.try_lock().unwrap(), 45);
    });
}

/// panic_while_mapping_unlocked_poison, and those of rwlock.rs, without the poison
#[test]
fn a_panic_while_a_guard_is_mapped_lets_go() {
    fn part<T: ?Sized>(_: &mut T) -> &mut () {
        panic!("while it is mapped")
    }
    fn shared<T: ?Sized>(_: &T) -> &() {
        panic!("while it is mapped")
    }
    in_both_worlds(|| {
        let (mutex, lock) = (Mutex::new(()), RwLock::new(()));
        let ways: [&dyn Fn(); 9] = [
            &|| drop(MutexGuard::map(mutex.lock(), part)),
            &|| drop(MutexGuard::try_map(mutex.lock(), |unit| Some(part(unit)))),
            &|| drop(MappedMutexGuard::map(MutexGuard::map(mutex.lock(), |unit| unit), part)),
            &|| drop(MappedMutexGuard::try_map(MutexGuard::map(mutex.lock(), |u| u), |u| Some(part(u)))),
            &|| drop(RwLockReadGuard::map(lock.read(), shared)),
            &|| drop(RwLockReadGuard::try_map(lock.read(), |unit| Some(shared(unit)))),
            &|| drop(MappedRwLockReadGuard::map(RwLockReadGuard::map(lock.read(), |unit| unit), shared)),
            &|| drop(RwLockWriteGuard::map(lock.write(), part)),
            &|| drop(MappedRwLockWriteGuard::map(RwLockWriteGuard::map(lock.write(), |unit| unit), part)),
        ];
        for way in ways {
            assert!(catch_unwind(AssertUnwindSafe(way)).is_err());
            assert!(!mutex.is_locked() && !lock.is_locked());
        }
    });
}

// ---- condvar.rs ----------------------------------------------------------------------------------------------------------------

/// notify_one, test_mutex_arc_condvar, wait_while, wait_timeout_wake, wait_timeout_while_wake
#[test]
fn one_is_notified_in_every_kind_of_wait() {
    on_each(|runtime| {
        let ways: [fn(&Condvar, &mut MutexGuard<'_, bool>); 5] = [
            |changed, done| changed.wait(done).unwrap(),
            |changed, done| {
                while !**done {
                    changed.wait(done).unwrap();
                }
            },
            |changed, done| changed.wait_while(done, |done| !*done).unwrap(),
            |changed, done| changed.wait_timeout(done, Duration::MAX).unwrap(),
            |changed, done| changed.wait_timeout_while(done, Duration::MAX, |done| !*done).unwrap(),
        ];
        for way in ways {
            let shared = Arc::new((Mutex::new(false), Condvar::new()));
            let theirs = shared.clone();
            let mut done = shared.0.lock();
            let notifier = runtime.spawn(move || {
                *theirs.0.lock() = true;
                assert!(theirs.1.notify_one());
            });
            way(&shared.1, &mut done);
            assert!(*done);
            drop(done);
            notifier.wait().unwrap();
        }
    });
}

/// notify_all
#[test]
fn all_are_notified_when_the_last_has_come() {
    on_each(|runtime| {
        const N: usize = 10;
        let shared = Arc::new((Mutex::new(0), Condvar::new(), Event::new()));
        let come = || {
            let shared = shared.clone();
            move || {
                let mut count = shared.0.lock();
                *count += 1;
                if *count == N {
                    shared.2.set();
                }
                shared.1.wait_while(&mut count, |count| *count != 0).unwrap();
            }
        };
        let requests: Vec<_> = (0..N / 2).map(|_| root(runtime).spawn(come())).collect();
        let threads: Vec<_> = (N / 2..N).map(|_| thread::spawn(come())).collect();
        shared.2.wait().unwrap();
        *shared.0.lock() = 0;
        assert_eq!(shared.1.notify_all(), N);
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
    });
}

// ---- rwlock.rs -----------------------------------------------------------------------------------------------------------------

/// frob
#[test]
fn readers_and_writers_come_at_random() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0_u32));
        let visit = |seed: u64| {
            let lock = lock.clone();
            move || {
                let mut random = support::Random::new(seed);
                for _ in 0..200 {
                    if random.below(8) == 0 { *lock.write() += 1 } else { drop(lock.read()) }
                }
            }
        };
        let requests: Vec<_> = (0..5).map(|n| root(runtime).spawn(visit(n))).collect();
        let threads: Vec<_> = (5..8).map(|n| thread::spawn(visit(n))).collect();
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        assert!(lock.try_write().is_some());
    });
}

/// test_rw_arc
#[test]
fn readers_do_not_catch_a_writer_in_the_act() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0));
        let theirs = lock.clone();
        let writer = root(runtime).spawn(move || {
            let mut value = theirs.write();
            for _ in 0..10 {
                let before = *value;
                *value = -1;
                let _ = forebear::yield_now();
                *value = before + 1;
            }
        });
        let readers: Vec<_> = (0..5)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || assert!(*lock.read() >= 0))
            })
            .collect();
        readers.iter().for_each(|reader| reader.wait().copied().unwrap());
        writer.wait().unwrap();
        assert_eq!(*lock.read(), 10);
    });
}

/// test_downgrade_observe, test_downgrade_atomic
#[test]
fn nobody_writes_between_a_write_and_the_read_it_becomes() {
    on_each(|runtime| {
        const N: u32 = 50;
        let lock = Arc::new(RwLock::new(0));
        let writers: Vec<_> = (0..6)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || {
                    for _ in 0..N {
                        let mut writing = lock.write();
                        *writing += 1;
                        let written = *writing;
                        let reading = RwLockWriteGuard::downgrade(writing);
                        let _ = forebear::yield_now();
                        assert_eq!(*reading, written);
                    }
                })
            })
            .collect();
        writers.iter().for_each(|writer| writer.wait().copied().unwrap());
        assert_eq!(*lock.read(), 6 * N);
    });
}

/// test_rwlock_try_write
#[test]
fn nobody_writes_beside_a_part_that_is_read() {
    in_both_worlds(|| {
        let lock = RwLock::new(0);
        let whole = lock.read();
        assert!(lock.try_write().is_none());
        drop(whole);
        let part = RwLockReadGuard::map(lock.read(), |_| &());
        assert!(lock.try_write().is_none());
        drop(part);
        assert!(lock.try_write().is_some());
    });
}

// ---- once.rs, reentrant_lock.rs, barrier.rs ------------------------------------------------------------------------------------

/// wait_for_force_to_finish: one that waits while a second attempt is made.
#[test]
fn who_comes_during_the_second_attempt_waits_for_it() {
    on_each(|runtime| {
        let once = Arc::new(Once::new());
        assert!(catch_unwind(|| Once::new().call_once(|| panic!("in vain"))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| once.call_once(|| panic!("in vain")))).is_err());
        let (begun, free) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let (theirs, theirs_begun, theirs_free) = (once.clone(), begun.clone(), free.clone());
        let second = root(runtime).spawn(move || {
            theirs.call_once(|| {
                theirs_begun.set();
                theirs_free.wait().unwrap();
            });
        });
        begun.wait().unwrap();
        let theirs = once.clone();
        let third = root(runtime).spawn(move || theirs.call_once(|| unreachable!("it is being done")));
        free.set();
        second.wait().unwrap();
        third.wait().unwrap();
    });
}

/// smoke, is_mutex
#[test]
fn a_reentrant_mutex_adds_up_what_its_owner_does() {
    on_each(|runtime| {
        let mutex = Arc::new(ReentrantMutex::new(RefCell::new(0)));
        let held = mutex.lock();
        let theirs = mutex.clone();
        let other = root(runtime).spawn(move || *theirs.lock().borrow());
        for n in 0..100 {
            *mutex.lock().borrow_mut() += n;
        }
        drop(held);
        assert_eq!(other.wait().copied().unwrap(), 4950);
    });
}

/// check_barrier_is_ref_unwind_safe, and is_sync_send of the others
#[test]
fn they_may_be_shared_and_seen_after_a_panic() {
    fn shared<T: Send + Sync>() {}
    fn seen<T: Send + Sync + UnwindSafe + RefUnwindSafe>() {}
    seen::<Barrier>();
    seen::<Condvar>();
    seen::<Event>();
    seen::<Latch>();
    seen::<LazyLock<String>>();
    seen::<Once>();
    seen::<OnceLock<String>>();
    seen::<RawMutex>();
    seen::<Semaphore>();
    shared::<Mutex<RefCell<u8>>>();
    shared::<ReentrantMutex<RefCell<u8>>>();
    shared::<RwLock<u8>>();
}
