//! `Once` and `OnceLock`: who does it, who sees it, and what a panic leaves.
//!
//! Shipped: `Once`, `OnceLock`, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::{Once, OnceLock};

use self::cell::{exhaust, explore};
use self::party::Party;

/// A count that loom watches.
struct Watched(UnsafeCell<u32>);

impl Watched {
    fn new(count: u32) -> Watched {
        Watched(UnsafeCell::new(count))
    }

    fn add(&self) {
        // SAFETY: none but that of what the models are about.
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

type Shared = Arc<(Once, Watched)>;

fn do_once(shared: &Shared) {
    shared.0.call_once(|| shared.1.add());
    assert_eq!(shared.1.get(), 1);
}

#[test]
fn what_is_done_once_is_seen_by_all() {
    explore(&[], |_| {
        let shared = Shared::new((Once::new(), Watched::new(0)));
        let others = [0; 2].map(|_| {
            let shared = shared.clone();
            thread::spawn(move || Party::new(0).on(|| do_once(&shared)))
        });
        Party::new(0).on(|| do_once(&shared));
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_value_is_whole_for_whoever_finds_it() {
    exhaust(&["found", "not yet"], |answers| {
        let cell = Arc::new(OnceLock::new());
        let theirs = cell.clone();
        let maker = thread::spawn(move || {
            Party::new(0).on(|| {
                theirs.get_or_init(|| {
                    let value = Watched::new(0);
                    value.add();
                    value
                });
            });
        });
        // Loom would not look at the later orders otherwise.
        thread::yield_now();
        match cell.get() {
            Some(value) => {
                assert_eq!(value.get(), 1);
                answers.note("found");
            }
            None => answers.note("not yet"),
        }
        maker.join().unwrap();
    });
}

#[test]
fn one_that_panics_lets_the_next_try() {
    explore(&["panicked", "was done before"], |answers| {
        let shared = Shared::new((Once::new(), Watched::new(0)));
        let theirs = shared.clone();
        let stayer = thread::spawn(move || Party::new(0).on(|| do_once(&theirs)));
        Party::new(0).on(|| {
            let fails = AssertUnwindSafe(|| {
                shared.0.call_once(|| std::panic::resume_unwind(Box::new("in vain")));
            });
            match catch_unwind(fails) {
                Err(_) => answers.note("panicked"),
                Ok(()) => answers.note("was done before"),
            }
        });
        stayer.join().unwrap();
        assert!(shared.0.is_completed());
    });
}

/// One that only waits for it leaves while it is being done; another waits to do it.
#[test]
fn the_end_meets_a_waiter_whose_time_is_up() {
    explore(&["done", "left"], |answers| {
        let shared = Shared::new((Once::new(), Watched::new(0)));
        let (leaver, theirs) = (Party::new(0), shared.clone());
        let (there, answers) = (leaver.clone(), answers.clone());
        let leaving = thread::spawn(move || {
            there.on(|| match theirs.0.wait_timeout(Duration::from_secs(1)) {
                Ok(()) => {
                    assert_eq!(theirs.1.get(), 1);
                    answers.note("done");
                }
                Err(_) => answers.note("left"),
            });
        });
        let theirs = shared.clone();
        let other = thread::spawn(move || Party::new(0).on(|| do_once(&theirs)));
        leaver.end_wait(Cause::TimedOut);
        Party::new(0).on(|| do_once(&shared));
        leaving.join().unwrap();
        other.join().unwrap();
    });
}
