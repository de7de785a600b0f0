//! `RwLock`: readers against a writer that waits for the last of them.
//!
//! Shipped: `RwLock`, the lock below `Mutex` as its writers' lock, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::{RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};

use self::cell::{exhaust, explore};
use self::party::Party;

/// A count that loom watches.
struct Watched(UnsafeCell<u32>);

impl Watched {
    fn add(&self) {
        // SAFETY: none but the lock's, which is what the models are about.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|count| unsafe { *count })
    }
}

// SAFETY: that loom finds nothing is what shows it.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

type Shared = Arc<RwLock<Watched>>;

fn shared() -> Shared {
    Arc::new(RwLock::new(Watched(UnsafeCell::new(0))))
}

/// Spawns a party that does `f` with the lock.
fn party(lock: &Shared, f: impl FnOnce(&RwLock<Watched>) + 'static) -> (Arc<Party>, thread::JoinHandle<()>) {
    let (party, lock) = (Party::new(0), lock.clone());
    let there = party.clone();
    (party, thread::spawn(move || there.on(|| f(&lock))))
}

#[test]
fn a_reader_and_a_writer_exclude_each_other() {
    exhaust(&["before", "after"], |answers| {
        let lock = shared();
        let writer = party(&lock, |lock| lock.write().add());
        Party::new(0).on(|| match lock.read().get() {
            0 => answers.note("before"),
            _ => answers.note("after"),
        });
        writer.1.join().unwrap();
        assert_eq!(lock.read().get(), 1);
        assert!(!lock.is_locked());
    });
}

#[test]
fn two_readers_and_a_writer_all_go_on() {
    explore(&[], |_| {
        let lock = shared();
        let readers = [0; 2].map(|_| party(&lock, |lock| _ = lock.read().get()));
        Party::new(0).on(|| lock.write().add());
        for reader in readers {
            reader.1.join().unwrap();
        }
        assert_eq!(lock.read().get(), 1);
        assert!(!lock.is_locked());
    });
}

/// A reader that is let in is counted: the next writer waits for it.
#[test]
fn two_writers_and_a_reader_all_go_on() {
    explore(&[], |_| {
        let lock = shared();
        let reader = party(&lock, |lock| {
            let reading = lock.read();
            let before = reading.get();
            thread::yield_now();
            assert_eq!(reading.get(), before);
        });
        let writer = party(&lock, |lock| lock.write().add());
        Party::new(0).on(|| lock.write().add());
        reader.1.join().unwrap();
        writer.1.join().unwrap();
        assert_eq!(lock.read().get(), 2);
        assert!(!lock.is_locked());
    });
}

#[test]
fn a_writer_becomes_a_reader_and_a_reader_a_writer() {
    explore(&["before", "after"], |answers| {
        let lock = shared();
        let answers = answers.clone();
        let other = party(&lock, move |lock| {
            let looked = lock.upgradable_read();
            let before = looked.get();
            answers.note(if before == 0 { "before" } else { "after" });
            let writing = RwLockUpgradableReadGuard::upgrade(looked);
            assert_eq!(writing.get(), before);
            writing.add();
        });
        Party::new(0).on(|| {
            // Loom would not look at the other order otherwise.
            thread::yield_now();
            let writing = lock.write();
            writing.add();
            let written = writing.get();
            let reading = RwLockWriteGuard::downgrade(writing);
            assert_eq!(reading.get(), written);
        });
        other.1.join().unwrap();
        assert_eq!(lock.read().get(), 2);
    });
}

/// A writer's time is up while it waits for the last reader; another writer comes after it, and another reader.
#[test]
fn the_last_reader_goes_while_a_writer_leaves() {
    explore(&["left", "wrote"], |answers| {
        let lock = shared();
        let own = Party::new(0);
        let reading = own.on(|| lock.read());
        let answers = answers.clone();
        let (leaver, leaving) = party(&lock, move |lock| match lock.write_timeout(Duration::from_secs(1)) {
            Ok(writing) => {
                writing.add();
                answers.note("wrote");
            }
            Err(_) => answers.note("left"),
        });
        let stayer = party(&lock, move |lock| {
            leaver.end_wait(Cause::TimedOut);
            let _ = lock.read().get();
            lock.write().add();
        });
        own.on(|| drop(reading));
        leaving.join().unwrap();
        stayer.1.join().unwrap();
        assert!(lock.try_write().is_some_and(|writing| writing.get() >= 1), "it is free");
    });
}

/// The last reader has seen that somebody waits for it, and comes to wake when that writer has left, another reads, and the next writer
/// waits for that one.
#[test]
fn a_reader_that_wakes_late_lets_no_writer_in_beside_another() {
    explore(&["left", "wrote"], |answers| {
        let lock = shared();
        let own = Party::new(0);
        let reading = own.on(|| lock.read());
        let answers = answers.clone();
        let (leaver, leaving) = party(&lock, move |lock| {
            match lock.write_timeout(Duration::from_secs(1)) {
                Ok(_) => answers.note("wrote"),
                Err(_) => answers.note("left"),
            }
            let reading = lock.read();
            let before = reading.get();
            thread::yield_now();
            assert_eq!(reading.get(), before);
        });
        let writer = party(&lock, move |lock| {
            leaver.end_wait(Cause::TimedOut);
            lock.write().add();
        });
        own.on(|| drop(reading));
        leaving.join().unwrap();
        writer.1.join().unwrap();
        assert_eq!(lock.read().get(), 1);
    });
}
