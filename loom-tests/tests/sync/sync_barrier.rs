//! `Barrier`: its generations, and one that leaves as the last one comes.
//!
//! Shipped: `Barrier`, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::Barrier;

use self::cell::explore;
use self::party::Party;

const ROUNDS: usize = 2;

/// A barrier for two, and what each has done in each round; loom watches that.
struct Shared {
    barrier: Barrier,
    done: [[UnsafeCell<bool>; ROUNDS]; 2],
}

// SAFETY: that loom finds nothing is what shows it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// What each does: in each round it sees what the other has done, and one of them leads.
    fn meet(&self, me: usize) -> usize {
        let mut led = 0;
        for round in 0..ROUNDS {
            // SAFETY: its own.
            self.done[me][round].with_mut(|done| unsafe { *done = true });
            led += usize::from(self.barrier.wait().unwrap().is_leader());
            // SAFETY: the barrier.
            assert!(self.done[1 - me][round].with(|done| unsafe { *done }));
        }
        led
    }
}

#[test]
fn two_meet_again_and_again() {
    explore(&[], |_| {
        let done = std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(false)));
        let shared = Arc::new(Shared { barrier: Barrier::new(2), done });
        let theirs = shared.clone();
        let other = thread::spawn(move || Party::new(0).on(|| theirs.meet(1)));
        let led = Party::new(0).on(|| shared.meet(0));
        assert_eq!(led + other.join().unwrap(), ROUNDS);
    });
}

/// One leaves while the other comes. Either both have met, and say so; or the one that has left is not counted, and another takes its
/// place.
fn the_last_one_meets_a_leaver(cause: Cause) {
    explore(&["left", "met"], move |answers| {
        let barrier = Arc::new(Barrier::new(2));
        let leaver = Party::new(0);
        let (there, theirs) = (leaver.clone(), barrier.clone());
        let leaving = thread::spawn(move || {
            there.on(|| theirs.wait_timeout(Duration::from_secs(1)).map(|result| result.is_leader()))
        });
        let theirs = barrier.clone();
        let staying = thread::spawn(move || Party::new(0).on(|| theirs.wait().unwrap().is_leader()));
        leaver.end_wait(cause);
        let first = match leaving.join().unwrap() {
            Ok(is_leader) => {
                answers.note("met");
                is_leader
            }
            Err(_) => {
                answers.note("left");
                Party::new(0).on(|| barrier.wait().unwrap().is_leader())
            }
        };
        assert!(first != staying.join().unwrap(), "one of the two leads");
    });
}

#[test]
fn the_last_one_meets_a_waiter_whose_time_is_up() {
    the_last_one_meets_a_leaver(Cause::TimedOut);
}

#[test]
fn the_last_one_meets_a_waiter_that_is_cancelled() {
    the_last_one_meets_a_leaver(Cause::Cancelled);
}
