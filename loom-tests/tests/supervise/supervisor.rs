//! A supervisor's gate between steps and saves, when its chief's place is given up, and what its watch publishes.
//!
//! Shipped: `supervise/src/supervisor/gate.rs`, `seat.rs` and `published.rs`, compiled here as they are, with loom's names behind `crate::shim`; below them `RwLock`, `Mutex` and `Event`.
#![cfg(loom)]

// What the shipped files import from `forebear`.
extern crate self as forebear;

pub use forebear_runtime::Cancelled;

/// As in `forebear`.
pub mod sync {
    pub use forebear_sync::{Event, Mutex, RwLock};
}

mod shim {
    pub(crate) use forebear_context::shim::{Mutex, MutexGuard, atomic};
}

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../../../supervise/src/supervisor/gate.rs"]
mod gate;
#[path = "../support/party/mod.rs"]
mod party;
#[path = "../../../supervise/src/supervisor/published.rs"]
mod published;
#[path = "../../../supervise/src/supervisor/seat.rs"]
#[expect(dead_code, reason = "what a wait for the end and a watch call has no race of its own")]
mod seat;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use forebear_context::shim::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use forebear_context::shim::{Mutex, thread};

use self::cell::{exhaust, explore};
use self::gate::Gate;
use self::party::Party;
use self::published::Published;
use self::seat::Seat;

/// A state of two halves, its counter, and the steps that were written.
struct Job {
    gate: Gate,
    halves: [AtomicU32; 2],
    steps: AtomicU32,
    written: Mutex<Vec<u32>>,
}

impl Job {
    fn new() -> Arc<Job> {
        let zero = || AtomicU32::new(0);
        let halves = [zero(), zero()];
        Arc::new(Job { gate: Gate::new(), halves, steps: zero(), written: Mutex::default() })
    }

    fn step(&self) {
        let change = || self.halves.iter().for_each(|half| _ = half.fetch_add(1, Relaxed));
        self.gate.step(change, || _ = self.steps.fetch_add(1, Relaxed)).unwrap();
    }

    fn now(&self) -> [u32; 3] {
        [&self.steps, &self.halves[0], &self.halves[1]].map(|of| of.load(Relaxed))
    }

    /// Whatever it writes is of one moment between two steps.
    fn save(&self, copies: bool) -> u32 {
        let read = || Ok::<_, Infallible>(self.now());
        let Ok(step) = self.gate.save(
            read,
            |_| copies,
            |taken| {
                // Without a copy the state itself is written.
                let [step, one, two] = if copies { taken } else { self.now() };
                assert!(step == one && one == two, "{step}: {one}, {two}");
                self.written.lock().unwrap().push(step);
                Ok(step)
            },
        );
        step
    }
}

/// Does `f` as another thread.
fn other(job: &Arc<Job>, f: impl FnOnce(&Job) + 'static) -> thread::JoinHandle<()> {
    let job = job.clone();
    thread::spawn(move || Party::new(0).on(|| f(&job)))
}

/// Does a save see a step in part, or another number than that of its steps?
#[test]
fn a_save_meets_a_step() {
    exhaust(&["before", "after"], |answers| {
        let job = Job::new();
        let steps = other(&job, Job::step);
        let saved = Party::new(0).on(|| job.save(true));
        steps.join().unwrap();
        answers.note(if saved == 0 { "before" } else { "after" });
    });
}

/// Is a state that has no copy left alone until it is written?
#[test]
fn a_save_without_a_copy_holds_the_steps_back() {
    exhaust(&["before", "after"], |answers| {
        let job = Job::new();
        let steps = other(&job, Job::step);
        let saved = Party::new(0).on(|| job.save(false));
        steps.join().unwrap();
        answers.note(if saved == 0 { "before" } else { "after" });
    });
}

/// Is what is written last of the latest step?
#[test]
fn two_saves_are_written_in_the_order_of_their_steps() {
    explore(&[], |_| {
        let job = Job::new();
        let saves = other(&job, |job| _ = job.save(true));
        let steps = other(&job, Job::step);
        Party::new(0).on(|| job.save(true));
        saves.join().unwrap();
        steps.join().unwrap();
        let written = job.written.lock().unwrap();
        assert!(written.len() == 2 && written.is_sorted(), "{written:?}");
    });
}

/// Does a save write after the end of the session, when another chief may come?
#[test]
fn the_end_of_a_session_meets_a_save() {
    exhaust(&["saved", "refused"], |answers| {
        let job = Job::new();
        let [is_chief, is_over] = [true, false].map(|so| Arc::new(AtomicBool::new(so)));
        let (chief, over) = (is_chief.clone(), is_over.clone());
        let saves = other(&job, move |job| {
            let read = || if chief.load(Relaxed) { Ok(()) } else { Err(()) };
            let write = |()| {
                assert!(!over.load(Relaxed), "too late");
                Ok(())
            };
            let saved = job.gate.save(read, |()| true, write);
            job.steps.store(saved.is_ok().into(), Relaxed);
        });
        is_chief.store(false, Relaxed);
        assert!(Party::new(0).on(|| job.gate.wait_for_save(Duration::MAX)));
        is_over.store(true, Relaxed);
        saves.join().unwrap();
        answers.note(if job.steps.load(Relaxed) == 1 { "saved" } else { "refused" });
    });
}

/// Is a change seen by a thread that waits for it?
#[test]
fn what_is_published_is_seen_by_a_thread_that_waits_for_it() {
    explore(&[], |_| {
        let published = Arc::new(Published::new(0));
        let finds = published.clone();
        let finder = thread::spawn(move || {
            Party::new(0).on(|| finds.publish(1));
        });
        Party::new(0).on(|| {
            while published.take() < 1 {
                published.changed().wait().unwrap();
            }
        });
        finder.join().unwrap();
    });
}

/// Is the place of a session that is left given up while a save writes, or never?
#[test]
fn a_save_meets_the_leave_of_its_session() {
    /// What a chief holds. Its drop is the moment from which another one may come.
    struct Lock(Arc<Mutex<bool>>);

    impl Drop for Lock {
        fn drop(&mut self) {
            let was = std::mem::replace(&mut *self.0.lock().unwrap(), true);
            assert!(!was, "given up twice");
        }
    }

    exhaust(&["saved", "refused"], |answers| {
        let free = Arc::new(Mutex::new(false));
        let seat = Arc::new(Seat::new(Some(Lock(free.clone()))));
        let (leaves, is_free) = (seat.clone(), free.clone());
        let saves = thread::spawn(move || {
            let writer = seat.begin();
            let saved = writer.is_some();
            if saved {
                assert!(!*is_free.lock().unwrap(), "another chief may write beside it");
            }
            drop(writer);
            saved
        });
        leaves.leave(|| ());
        let saved = saves.join().unwrap();
        assert!(*free.lock().unwrap(), "the last of both gives it up, and handles may live on");
        answers.note(if saved { "saved" } else { "refused" });
    });
}
