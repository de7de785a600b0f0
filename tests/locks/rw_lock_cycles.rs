//! `RwLock`: cycles of waits that lead through those who read.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cancelling::asleep;
use forebear::sync::{Mutex, RwLock, RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
use forebear::{Request, WaitError, spawn, yield_now};
use support::order::root;
use support::{Flag, Watchdog, on_each, until};

/// Exactly one of them was told of a cycle with these names in it; the other went on.
fn one_is_told<T: std::fmt::Debug>(both: [&Request<T>; 2], parts: &[&str]) {
    let told: Vec<_> = both.into_iter().map(|request| request.wait()).filter_map(Result::err).collect();
    let [WaitError::Failed(failure)] = &told[..] else { panic!("one of them is told: {told:?}") };
    let text = failure.panic_message().unwrap();
    for part in ["deadlock", "tests/locks/rw_lock_cycles.rs"].iter().chain(parts) {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(failure.location().unwrap().file(), file!(), "the panic is where the caller waits");
}

#[test]
fn a_cycle_through_one_who_reads_is_found_and_named_whoever_closes_it() {
    on_each(|runtime| {
        for reader_first in [true, false] {
            let (lock, other) = (Arc::new(RwLock::new(())), Arc::new(Mutex::new(())));
            let (has_lock, has_other, go_on) = (Flag::new(), Flag::new(), Flag::new());
            let reader = {
                let (lock, other, mine, theirs, go_on) =
                    (lock.clone(), other.clone(), has_lock.clone(), has_other.clone(), go_on.clone());
                root(runtime).name("reader").spawn(move || {
                    let _reading = lock.read();
                    mine.raise();
                    theirs.wait();
                    if !reader_first {
                        go_on.wait();
                    }
                    drop(other.lock());
                })
            };
            let writer = {
                let (lock, other, mine, theirs, go_on) =
                    (lock.clone(), other.clone(), has_other.clone(), has_lock.clone(), go_on.clone());
                root(runtime).name("writer").spawn(move || {
                    let _other = other.lock();
                    mine.raise();
                    theirs.wait();
                    if reader_first {
                        go_on.wait();
                    }
                    drop(lock.write());
                })
            };
            asleep(if reader_first { &reader } else { &writer });
            go_on.raise();
            one_is_told([&reader, &writer], &["`writer`", "`reader`", "RwLock", "Mutex"]);
            assert!(!lock.is_locked());
        }
    });
}

#[test]
fn to_write_while_one_reads_is_told_at_once() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        // So that no worker is idle, and makes a survey.
        let told = Flag::new();
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let told = told.clone();
                root(runtime).spawn(move || {
                    while !told.is_up() {
                        yield_now().unwrap();
                    }
                })
            })
            .collect();
        let theirs = lock.clone();
        let request = root(runtime).name("both").spawn(move || {
            let _reading = theirs.read();
            drop(theirs.write());
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it is told") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("deadlock") && text.contains("`both`") && text.contains("RwLock"), "{text}");
        told.raise();
        busy.iter().for_each(|request| _ = request.wait().unwrap());
        assert!(!lock.is_locked());
    });
}

#[test]
fn of_two_that_read_and_both_want_to_write_one_is_told() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0));
        let reads = [0; 2].map(|_| Flag::new());
        let both = [0, 1].map(|me| {
            let (lock, reads) = (lock.clone(), reads.clone());
            root(runtime).name(["one", "two"][me]).spawn(move || {
                let reading = lock.read();
                reads[me].raise();
                reads[1 - me].wait();
                let mut writing = lock.write();
                *writing += 1;
                drop(reading);
            })
        });
        // The first at the gate waits for itself; when it has been told, the other does.
        for request in &both {
            let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it reads, too") };
            assert!(failure.panic_message().unwrap().contains("deadlock"), "{failure:#}");
        }
        assert!(!lock.is_locked());
    });
}

#[test]
fn to_read_twice_with_a_writer_in_between_is_a_cycle() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        let (reads, go_on) = (Flag::new(), Flag::new());
        let reader = {
            let (lock, reads, go_on) = (lock.clone(), reads.clone(), go_on.clone());
            root(runtime).name("reader").spawn(move || {
                let _reading = lock.read();
                reads.raise();
                go_on.wait();
                drop(lock.read());
            })
        };
        reads.wait();
        let theirs = lock.clone();
        let writer = root(runtime).name("writer").spawn(move || drop(theirs.write()));
        asleep(&writer);
        go_on.raise();
        one_is_told([&reader, &writer], &["`reader`", "`writer`", "RwLock"]);
    });
}

#[test]
fn a_thread_that_reads_is_found_in_a_cycle_too() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(()));
        runtime.enter(|| {
            spawn(|| ()).wait().unwrap();
            let reading = lock.read();
            let theirs = lock.clone();
            let child = Request::builder().own_stack().name("child").spawn(move || drop(theirs.write()));
            match child.wait() {
                Err(WaitError::CircularWait(cycle)) => {
                    assert!(cycle.to_string().contains("child"), "{cycle}");
                    drop(reading);
                    child.wait().unwrap();
                }
                Err(WaitError::Failed(failure)) => assert!(format!("{failure:#}").contains("deadlock")),
                other => panic!("{other:?}"),
            }
        });
        until(|| !lock.is_locked());
    });
}

#[test]
fn a_writer_that_waits_for_readers_that_go_on_is_in_no_cycle() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::new(0));
        // Readers wait for each other's work, in a chain, and for yields; a writer comes in between all the time.
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || {
                    for _ in 0..20 {
                        *lock.write() += 1;
                        yield_now().unwrap();
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let lock = lock.clone();
                root(runtime).spawn(move || {
                    for _ in 0..20 {
                        let reading = lock.read();
                        let child = Request::builder().own_stack().spawn(|| yield_now().unwrap());
                        child.wait().unwrap();
                        drop(reading);
                    }
                })
            })
            .collect();
        for request in writers.iter().chain(&readers) {
            request.wait().unwrap();
        }
        assert_eq!(*lock.read(), 60);
    });
}

/// What a thread does with a lock.
type Act = dyn Fn(&RwLock<u32>) + Send + Sync;

/// What a fresh thread, which no runtime knows, is told when it does that, some times over.
fn told_in_a_thread(what: impl Fn(&RwLock<u32>) + Send + Sync) -> Vec<String> {
    let lock = RwLock::named("plan", 7);
    let once = || {
        let told = catch_unwind(AssertUnwindSafe(|| what(&lock)))
            .map_err(|told| *told.downcast::<String>().unwrap());
        // Whoever was refused has left nothing behind.
        assert!(!lock.is_locked());
        assert!(lock.try_write().is_some());
        told.err().unwrap_or_default()
    };
    std::thread::scope(|scope| scope.spawn(|| (0..20).map(|_| once()).collect()).join().unwrap())
}

#[test]
fn a_thread_that_no_runtime_knows_is_told_that_it_waits_for_what_it_reads_or_writes_itself() {
    let _dog = Watchdog::new("");
    let cycles: [&Act; 8] = [
        &|lock| drop((lock.read(), lock.write())),
        &|lock| drop((lock.read(), lock.read(), lock.write_or_cancelled())),
        &|lock| drop((lock.try_read(), lock.write_timeout(Duration::MAX))),
        &|lock| drop((RwLockWriteGuard::downgrade(lock.write()), lock.write())),
        &|lock| {
            let _reads = RwLockReadGuard::map(lock.read(), |value| value);
            drop(RwLockUpgradableReadGuard::upgrade(lock.upgradable_read()));
        },
        &|lock| drop((lock.write(), lock.read())),
        &|lock| drop((lock.try_write(), lock.read_or_cancelled())),
        &|lock| drop((RwLockUpgradableReadGuard::upgrade(lock.upgradable_read()), lock.read())),
    ];
    for (n, cycle) in cycles.iter().enumerate() {
        for told in told_in_a_thread(cycle) {
            for part in ["deadlock", "an RwLock \"plan\"", "tests/locks/rw_lock_cycles.rs"] {
                assert!(told.contains(part), "{n}: {told}");
            }
        }
    }
}

#[test]
fn a_thread_that_no_runtime_knows_may_have_a_lock_as_often_as_it_need_not_wait_for_itself() {
    let _dog = Watchdog::new("");
    let told = told_in_a_thread(|lock| {
        drop((lock.read(), lock.read()));
        drop((lock.upgradable_read(), lock.read()));
        drop(lock.write());
        // A wait with a limit ends by that.
        let reads = lock.read();
        assert!(lock.write_timeout(Duration::from_nanos(1)).is_err());
        assert!(lock.write_timeout(Duration::ZERO).is_err());
        drop(reads);
        let writes = lock.write();
        assert!(lock.read_timeout(Duration::from_nanos(1)).is_err());
        drop(writes);
        // Many locks.
        let many: Vec<_> = (0..20).map(RwLock::new).collect();
        let guards: Vec<_> = many.iter().map(RwLock::read).collect();
        drop(guards);
        many.iter().for_each(|lock| drop(lock.write()));
        // What others read or write is waited for.
        let (reads, go_on) = (Flag::new(), Flag::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _reading = lock.read();
                reads.raise();
                go_on.wait();
            });
            reads.wait();
            let mine = lock.read();
            assert!(lock.try_write().is_none());
            drop(mine);
            go_on.raise();
            drop(lock.write());
        });
    });
    assert!(told.iter().all(String::is_empty), "{told:?}");
}

/// Calls `what` on a thread that no runtime knows.
fn unknown<R: Send>(what: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(what).join().unwrap())
}

#[test]
fn a_thread_that_no_runtime_knows_is_told_that_it_waits_for_itself_however_many_locks_it_holds() {
    let _dog = Watchdog::new("");
    unknown(|| {
        let (mutexes, rw_locks) = ([(); 20].map(|()| Mutex::new(0)), [(); 20].map(|()| RwLock::new(0)));
        let held: Vec<_> = mutexes.iter().map(Mutex::lock).collect();
        let read: Vec<_> = rw_locks.iter().map(RwLock::read).collect();
        for mutex in &mutexes {
            assert!(catch_unwind(AssertUnwindSafe(|| drop(mutex.lock()))).is_err());
        }
        for rw_lock in &rw_locks {
            assert!(catch_unwind(AssertUnwindSafe(|| drop(rw_lock.write()))).is_err());
        }
        drop((held, read));
        // What was given back is free.
        mutexes.iter().for_each(|mutex| drop(mutex.lock()));
        rw_locks.iter().for_each(|rw_lock| drop(rw_lock.write()));
    });
}

/// A guard that is forgotten stays on its thread's list. A later lock at the same address is another.
#[test]
fn a_lock_at_the_address_of_one_whose_guard_was_forgotten_is_waited_for() {
    let _dog = Watchdog::new("");
    fn wait_for<G, H>(hold: impl Fn() -> G + Sync, take: impl Fn() -> H) {
        let held = Flag::new();
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = hold();
                held.raise();
                // The other waits now, or soon, and not for itself.
                (0..1000).for_each(|_| std::thread::yield_now());
            });
            while !held.is_up() {
                std::thread::yield_now();
            }
            drop(take());
            // ThreadSanitizer sees a join, not the end of a scope.
            holder.join().unwrap();
        });
    }
    for _ in 0..20 {
        unknown(|| {
            let mut mutex = Mutex::new(0);
            std::mem::forget(mutex.lock());
            mutex = Mutex::new(0);
            wait_for(|| mutex.lock(), || mutex.lock());
        });
        unknown(|| {
            let mut rw_lock = RwLock::new(0);
            std::mem::forget(rw_lock.write());
            rw_lock = RwLock::new(0);
            wait_for(|| rw_lock.write(), || rw_lock.read());
        });
        unknown(|| {
            let mut rw_lock = RwLock::new(0);
            std::mem::forget(rw_lock.read());
            rw_lock = RwLock::new(0);
            wait_for(|| rw_lock.read(), || rw_lock.write());
        });
    }
}
