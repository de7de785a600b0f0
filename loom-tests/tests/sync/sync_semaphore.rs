//! `Semaphore`: permits that are given back while others come for them, and leave.
//!
//! Shipped: `Semaphore`, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::Semaphore;

use self::cell::{exhaust, explore};
use self::party::Party;

/// Permits, and what they are for; loom watches that.
struct Shared {
    permits: Semaphore,
    count: UnsafeCell<u32>,
}

// SAFETY: that loom finds nothing is what shows it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn shared(permits: usize) -> Arc<Shared> {
    Arc::new(Shared { permits: Semaphore::new(permits), count: UnsafeCell::new(0) })
}

impl Shared {
    /// Counts with so many permits in its hand.
    fn count(&self, permits: usize) {
        let _permits = self.permits.acquire_many(permits).unwrap();
        // SAFETY: the permits, where they are all there are.
        self.count.with_mut(|count| unsafe { *count += 1 });
    }
}

/// Spawns a party that does `f`.
fn party(shared: &Arc<Shared>, f: impl FnOnce(&Shared) + 'static) -> (Arc<Party>, thread::JoinHandle<()>) {
    let (party, shared) = (Party::new(0), shared.clone());
    let there = party.clone();
    (party, thread::spawn(move || there.on(|| f(&shared))))
}

#[test]
fn a_release_meets_a_newcomer() {
    exhaust(&[], |_| {
        let shared = shared(0);
        let waiter = party(&shared, |shared| drop(shared.permits.acquire().unwrap()));
        shared.permits.add_permits(1);
        waiter.1.join().unwrap();
        assert_eq!(shared.permits.available(), 1);
    });
}

#[test]
fn who_has_the_only_permit_is_alone() {
    explore(&[], |_| {
        let shared = shared(1);
        let others = [0; 2].map(|_| party(&shared, |shared| shared.count(1)));
        Party::new(0).on(|| shared.count(1));
        for other in others {
            other.1.join().unwrap();
        }
        assert_eq!(shared.permits.available(), 1);
        // SAFETY: nobody else is there.
        assert_eq!(shared.count.with(|count| unsafe { *count }), 3);
    });
}

/// A permit comes free while one waiter leaves; another waits behind it, or comes.
fn a_release_meets_a_leaver(cause: Cause) {
    explore(&["had", "left"], move |answers| {
        let shared = shared(0);
        let answers = answers.clone();
        let (leaver, leaving) =
            party(&shared, move |shared| match shared.permits.acquire_timeout(Duration::from_secs(1)) {
                Ok(_) => answers.note("had"),
                Err(_) => answers.note("left"),
            });
        let (_, staying) = party(&shared, move |shared| {
            leaver.end_wait(cause);
            shared.count(1);
        });
        shared.permits.add_permits(1);
        leaving.join().unwrap();
        staying.join().unwrap();
        assert_eq!(shared.permits.available(), 1);
    });
}

#[test]
fn a_release_meets_a_waiter_whose_time_is_up() {
    a_release_meets_a_leaver(Cause::TimedOut);
}

#[test]
fn a_release_meets_a_waiter_that_is_cancelled() {
    a_release_meets_a_leaver(Cause::Cancelled);
}

/// Behind one that wants more than there is stands one that wants no more; when the first leaves the second goes on.
#[test]
fn a_large_request_leaves_and_a_small_one_goes_on() {
    explore(&["had", "left"], |answers| {
        let shared = shared(1);
        let answers = answers.clone();
        let (large, leaving) = party(&shared, move |shared| {
            match shared.permits.acquire_many_timeout(2, Duration::from_secs(1)) {
                Ok(_) => answers.note("had"),
                Err(_) => answers.note("left"),
            }
        });
        let small = party(&shared, |shared| shared.count(1));
        // If it cannot leave it has what it wants.
        if !large.end_wait(Cause::TimedOut) {
            shared.permits.add_permits(1);
        }
        leaving.join().unwrap();
        small.1.join().unwrap();
        assert!(shared.permits.available() > 0);
    });
}
