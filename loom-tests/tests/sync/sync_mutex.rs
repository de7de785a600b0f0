//! The lock below `Mutex`: exclusion, releases against waiters that come and leave, hand-overs, reservations.
//!
//! Shipped: `Mutex`, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::cell::RefCell;
use std::time::Duration;

use forebear_context::context::{Cause, Context, OwnerWait, Table, Ticket};
use forebear_context::error::{Cycle, TimeoutError};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::Mutex;

use self::cell::{Answers, explore, explore_long};
use self::party::{Party, TABLE};

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

type Shared = Arc<Mutex<Watched>>;

fn shared() -> Shared {
    Arc::new(Mutex::new(Watched(UnsafeCell::new(0))))
}

/// Spawns a party that does `f` with the lock.
fn party(
    place: usize,
    lock: &Shared,
    f: impl FnOnce(&Shared) + 'static,
) -> (Arc<Party>, thread::JoinHandle<()>) {
    let (party, lock) = (Party::new(place), lock.clone());
    let there = party.clone();
    (party, thread::spawn(move || there.on(|| f(&lock))))
}

#[test]
fn three_threads_exclude_each_other_and_all_go_on() {
    explore(&[], |_| {
        let lock = shared();
        let others = [0; 2].map(|place| party(place, &lock, |lock| lock.lock().add()).1);
        Party::new(0).on(|| lock.lock().add());
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(lock.lock().get(), 3);
        assert!(!lock.is_locked());
    });
}

#[test]
fn threads_that_no_runtime_knows_exclude_each_other() {
    explore(&[], |_| {
        let lock = shared();
        let theirs = lock.clone();
        let other = thread::spawn(move || {
            theirs.lock().add();
            theirs.lock().add();
        });
        lock.lock().add();
        other.join().unwrap();
        assert_eq!(lock.lock().get(), 3);
    });
}

thread_local! {
    /// What the holder's context is made of, which whoever finds the holder looks at. Threads of a model share it.
    static RECORD: RefCell<Option<(Arc<Watched>, Answers)>> = const { RefCell::new(None) };
}

static LOOKS: Table = Table { wait_for_owner: look_at_owner, ..TABLE };

unsafe fn look_at_owner(_: &Context, _: Ticket, wait: &OwnerWait, _: bool) -> Option<Cycle> {
    // SAFETY: on the waiter's own stack.
    if unsafe { wait.owner() }.is_some() {
        RECORD.with_borrow(|record| {
            let (record, answers) = record.as_ref().unwrap();
            assert_eq!(record.get(), 1);
            answers.note("found");
        });
    }
    None
}

#[test]
fn the_holder_that_a_waiter_finds_is_seen_as_it_was_made() {
    explore(&["found"], |answers| {
        let (lock, record) = (shared(), Arc::new(Watched(UnsafeCell::new(0))));
        RECORD.set(Some((record.clone(), answers.clone())));
        let theirs = lock.clone();
        let holder = thread::spawn(move || {
            record.add();
            Party::new(0).on(|| theirs.lock().add());
        });
        // SAFETY: the table is for a party.
        unsafe { Party::with_table(&LOOKS) }.on(|| lock.lock().add());
        holder.join().unwrap();
        RECORD.take();
    });
}

/// The holder lets go while one waiter leaves; another waits behind it.
fn a_release_meets_a_leaver(place: usize, cause: Cause, left: TimeoutError) {
    explore(&["had", "left"], move |answers| {
        let lock = shared();
        let own = Party::new(place);
        let held = own.on(|| lock.lock());
        let answers = answers.clone();
        let (leaver, leaving) =
            party(place, &lock, move |lock| match lock.lock_timeout(Duration::from_secs(1)) {
                Ok(held) => {
                    held.add();
                    answers.note("had");
                }
                Err(error) => {
                    assert_eq!(error, left);
                    answers.note("left");
                }
            });
        let stayer = party(place, &lock, move |lock| {
            leaver.end_wait(cause);
            lock.lock().add();
        });
        own.on(|| drop(held));
        leaving.join().unwrap();
        stayer.1.join().unwrap();
        assert!(
            lock.try_lock().is_some_and(|held| held.get() >= 1),
            "the one that stays has had it, and it is free"
        );
    });
}

#[test]
fn a_release_meets_a_waiter_whose_time_is_up() {
    a_release_meets_a_leaver(0, Cause::TimedOut, TimeoutError::TimedOut);
}

#[test]
fn a_release_meets_a_waiter_that_is_cancelled() {
    a_release_meets_a_leaver(0, Cause::Cancelled, TimeoutError::Cancelled);
}

#[test]
fn a_hand_over_meets_a_waiter_that_leaves() {
    a_release_meets_a_leaver(7, Cause::TimedOut, TimeoutError::TimedOut);
}

#[test]
fn one_that_gives_way_is_seen_to() {
    explore_long(&["had", "left"], |answers| {
        let lock = shared();
        let own = Party::new(7);
        let held = own.on(|| lock.lock());
        let answers = answers.clone();
        // While this one stands there, the lock is not forgotten when it is free.
        let (leaver, leaving) =
            party(8, &lock, move |lock| match lock.lock_timeout(Duration::from_secs(1)) {
                Ok(_) => answers.note("had"),
                Err(_) => answers.note("left"),
            });
        let woken = party(7, &lock, move |lock| {
            let held = lock.lock();
            leaver.end_wait(Cause::TimedOut);
            held.add();
        });
        own.on(|| {
            drop(held);
            // The other of this worker may have been woken, and is on its way.
            lock.lock().add();
        });
        leaving.join().unwrap();
        woken.1.join().unwrap();
        assert_eq!(lock.try_lock().map(|held| held.get()), Some(2));
    });
}

#[test]
fn a_release_that_wakes_nobody_relies_on_one_that_is_on_its_way() {
    explore(&[], |_| {
        let lock = shared();
        let own = Party::new(0);
        let held = own.on(|| lock.lock());
        let others = [0; 2].map(|place| party(place, &lock, |lock| lock.lock().add()).1);
        own.on(|| {
            drop(held);
            // One of the others may be on its way, or have come too late, or has the lock.
            lock.lock().add();
        });
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(lock.try_lock().map(|held| held.get()), Some(3));
    });
}

#[test]
fn a_waiter_that_loses_again_and_again_has_it_in_the_end() {
    explore(&[], |_| {
        let lock = shared();
        let loser = party(0, &lock, |lock| lock.lock().add()).1;
        Party::new(0).on(|| {
            for _ in 0..4 {
                let held = lock.lock();
                // So that the other comes meanwhile, and loses.
                thread::yield_now();
                held.add();
            }
        });
        loser.join().unwrap();
        assert_eq!(lock.lock().get(), 5);
    });
}

static ALONE: Table = Table { is_alone: always, ..TABLE };

unsafe fn always(_: &Context) -> bool {
    true
}

/// One that looks for a held lock before it waits, or loses.
fn alone() -> Arc<Party> {
    // SAFETY: the table is for a party.
    unsafe { Party::with_table(&ALONE) }
}

#[test]
fn one_that_looks_for_a_held_lock_does_not_rely_on_what_it_has_seen() {
    explore(&[], |_| {
        let lock = shared();
        let own = Party::new(0);
        let held = own.on(|| lock.lock());
        let (looker, theirs) = (alone(), lock.clone());
        let looks = thread::spawn(move || looker.on(|| theirs.lock().add()));
        own.on(|| {
            held.add();
            drop(held);
            lock.lock().add();
        });
        looks.join().unwrap();
        assert_eq!(lock.try_lock().map(|held| held.get()), Some(3));
    });
}

#[test]
fn one_that_looks_for_a_held_lock_waits_in_the_end() {
    explore(&["left"], |answers| {
        let lock = shared();
        let own = Party::new(0);
        let held = own.on(|| lock.lock());
        let (party, theirs, answers) = (alone(), lock.clone(), answers.clone());
        let there = party.clone();
        let looker = thread::spawn(move || {
            there.on(|| {
                answers.note(match theirs.lock_timeout(Duration::from_secs(1)) {
                    Ok(_) => "had",
                    Err(_) => "left",
                });
            });
        });
        // The lock stays held until that one waits, as if its thread were needed for more.
        while !party.end_wait(Cause::TimedOut) {
            thread::yield_now();
        }
        own.on(|| drop(held));
        looker.join().unwrap();
        assert!(lock.try_lock().is_some());
    });
}
