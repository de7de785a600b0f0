//! `Condvar` and `Event`: notifications against waiters that come and leave.
//!
//! Shipped: `Condvar`, `Mutex`, `Event`, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::{Arc, thread};
use forebear_sync::{Condvar, Event, Mutex};

use self::cell::{exhaust, explore};
use self::party::Party;

type Shared = Arc<(Mutex<u32>, Condvar)>;

fn shared() -> Shared {
    Arc::new((Mutex::new(0), Condvar::new()))
}

/// Puts one more in, and notifies one.
fn put(shared: &Shared) {
    *shared.0.lock() += 1;
    shared.1.notify_one();
}

/// Waits until there is one, and takes it.
fn take(shared: &Shared) {
    let mut count = shared.0.lock();
    while *count == 0 {
        shared.1.wait(&mut count).unwrap();
    }
    *count -= 1;
}

/// Spawns a party that does `f`.
fn party(shared: &Shared, f: impl FnOnce(&Shared) + 'static) -> (Arc<Party>, thread::JoinHandle<()>) {
    let (party, shared) = (Party::new(0), shared.clone());
    let there = party.clone();
    (party, thread::spawn(move || there.on(|| f(&shared))))
}

#[test]
fn a_change_that_is_notified_is_seen_by_whoever_waits_for_it() {
    exhaust(&[], |_| {
        let shared = shared();
        let taker = party(&shared, take);
        Party::new(0).on(|| put(&shared));
        taker.1.join().unwrap();
        assert_eq!(*shared.0.lock(), 0);
    });
}

#[test]
fn all_are_notified_who_wait() {
    explore(&[], |_| {
        let shared = shared();
        let takers = [0; 2].map(|_| party(&shared, take));
        Party::new(0).on(|| {
            *shared.0.lock() += 2;
            shared.1.notify_all();
        });
        for taker in takers {
            taker.1.join().unwrap();
        }
    });
}

/// One waits with a limit that ends at any time; if it was told it passes on what it was told of. So the other goes on in the end.
fn a_notification_meets_a_leaver(cause: Cause) {
    explore(&["left", "told"], move |answers| {
        let shared = shared();
        let told = answers.clone();
        let (leaver, leaving) = party(&shared, move |shared| {
            let mut count = shared.0.lock();
            if *count == 0 {
                let answer = shared.1.wait_timeout(&mut count, Duration::from_secs(1));
                drop(count);
                if answer.is_ok() {
                    told.note("told");
                    shared.1.notify_one();
                } else {
                    told.note("left");
                }
            }
        });
        let (_, staying) = party(&shared, move |shared| {
            leaver.end_wait(cause);
            take(shared);
        });
        let own = Party::new(0);
        own.on(|| put(&shared));
        staying.join().unwrap();
        // The leaver may have come when all was over, and its time as well.
        own.on(|| put(&shared));
        leaving.join().unwrap();
        assert_eq!(*shared.0.lock(), 1);
    });
}

#[test]
fn a_notification_meets_a_waiter_whose_time_is_up() {
    a_notification_meets_a_leaver(Cause::TimedOut);
}

#[test]
fn a_notification_meets_a_waiter_that_is_cancelled() {
    a_notification_meets_a_leaver(Cause::Cancelled);
}

#[test]
fn an_event_is_set_while_somebody_comes() {
    exhaust(&[], |_| {
        let event = Arc::new(Event::new());
        let theirs = event.clone();
        let waiter = thread::spawn(move || Party::new(0).on(|| theirs.wait().unwrap()));
        event.set();
        waiter.join().unwrap();
    });
}
