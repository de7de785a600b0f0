//! Hints as they ship: a thread changes the hint of an entry, against workers that take entries, waiters and cancels that claim them, and the close.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | taken out under the lock, and put back under the next | a worker finds a place without a member, and sleeps | `hint_moved_in_two_steps` |
//! | the hint of what is in the inbox is left alone | the answer says that it counts, and it does not | `hint_of_the_inbox_stays` |
//! | who takes an entry does not say so | a hint of what was started is said to count | `hint_of_what_is_taken_counts` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_runtime::model::shared_queue::{Hint, HintGroup, Injector, Pushed, QueueEntry};
use forebear_runtime::model::word::{Cancel, HANDLE, LINK, QUEUED, SUBMITTED};

use self::cell::{Job, exhaust, explore, with};

/// A queued request with a hint.
struct Tile {
    job: Arc<Job>,
    link: AtomicPtr<Tile>,
    key: u64,
    hint: Hint,
}

// SAFETY: the link is the shared queue's, and the key constant.
unsafe impl QueueEntry for Tile {
    fn link(&self) -> &AtomicPtr<Tile> {
        &self.link
    }

    fn key(&self) -> u64 {
        self.key
    }

    fn hint(&self) -> Option<&Hint> {
        Some(&self.hint)
    }
}

/// Siblings, and the queue where they stand.
struct Screen {
    tiles: Vec<Tile>,
    roots: Injector<Tile>,
}

// SAFETY: tiles are handed over through the queue; that is what the models are about.
unsafe impl Send for Screen {}
// SAFETY: as above.
unsafe impl Sync for Screen {}

impl Screen {
    /// So many tiles with the hints 0, 10, 20, of which the first ones stand in the queue.
    fn new(tiles: usize, queued: usize) -> Arc<Screen> {
        let tile = |number: usize| Tile {
            job: Job::new(QUEUED | SUBMITTED | HANDLE | LINK),
            link: AtomicPtr::new(ptr::null_mut()),
            key: number as u64 + 1,
            hint: Hint::new(10 * number as i64, HintGroup::Siblings(1)),
        };
        let screen = Arc::new(Screen { tiles: (0..tiles).map(tile).collect(), roots: Injector::new() });
        (0..queued).for_each(|number| screen.push(number));
        screen
    }

    fn push(&self, number: usize) {
        assert_ne!(self.roots.push(NonNull::from(&self.tiles[number])), Pushed::Closed);
    }

    /// What a worker does with the first entry. Answers its number, and whether it ran it.
    fn run_first(&self) -> Option<(usize, bool)> {
        // SAFETY: tiles outlive the execution's threads.
        let tile = unsafe { self.roots.pop(NO_KEY)?.as_ref() };
        Some((tile.key as usize - 1, tile.job.run_entry()))
    }

    /// `Request::set_order_hint`.
    fn set(&self, number: usize, hint: i64) -> bool {
        let tile = &self.tiles[number];
        self.roots.set_hint(tile, hint) && tile.job.word.load().is_unstarted()
    }

    /// All that is left, in its order; each has run once, and has no hint any more that counts.
    fn finish(&self) -> Vec<usize> {
        let rest = std::iter::from_fn(|| self.run_first().map(|(number, _)| number)).collect();
        for tile in &self.tiles {
            assert!(!self.roots.set_hint(tile, -1), "it was taken");
            tile.job.drop_handle();
            tile.job.check();
        }
        rest
    }
}

/// The last tile becomes the first while a worker takes one.
#[test]
fn a_hint_that_changes_as_a_worker_takes_orders_what_is_left() {
    exhaust(&["first", "too late"], |answers| {
        let screen = Screen::new(3, 3);
        let worker = with(&screen, Screen::run_first);
        let counts = screen.set(2, -1);
        match worker.join().unwrap() {
            Some((2, true)) => {
                answers.note("first");
                assert_eq!(screen.finish(), [0, 1]);
            }
            Some((0, true)) => {
                answers.note("too late");
                assert!(counts, "it stands there");
                assert_eq!(screen.finish(), [2, 1]);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// A worker looks for the last time before it sleeps. The one tile stands there all the while.
#[test]
fn a_tile_is_found_while_its_hint_changes() {
    exhaust(&["changed", "started"], |answers| {
        let screen = Screen::new(1, 1);
        let worker = with(&screen, Screen::run_first);
        answers.note(if screen.set(0, 7) { "changed" } else { "started" });
        assert_eq!(worker.join().unwrap(), Some((0, true)), "a worker that finds nothing sleeps");
        assert_eq!(screen.finish(), [0; 0]);
    });
}

/// A tile is submitted while its hint changes, and a worker takes one: the hint counts wherever the tile is.
#[test]
fn a_hint_that_changes_as_its_request_is_queued_counts() {
    explore(&["first", "too late"], |answers| {
        let screen = Screen::new(3, 2);
        let maker = with(&screen, |screen| screen.push(2));
        let worker = with(&screen, Screen::run_first);
        let counts = screen.set(2, -1);
        maker.join().unwrap();
        let taken = worker.join().unwrap();
        let rest = screen.finish();
        match taken {
            Some((2, true)) => {
                answers.note("first");
                assert_eq!(rest, [0, 1]);
            }
            Some((0, true)) => {
                answers.note("too late");
                assert!(counts, "it has not started");
                assert_eq!(rest, [2, 1]);
            }
            other => panic!("{other:?}"),
        }
    });
}

/// A waiter runs a tile on its own stack, and its entry stays. A worker takes what it finds, and each runs once.
#[test]
fn a_hint_changes_as_a_waiter_starts_its_request() {
    explore(&["changed", "started"], |answers| {
        let screen = Screen::new(2, 2);
        let waiter = with(&screen, |screen| screen.tiles[0].job.run_here());
        let worker = with(&screen, Screen::run_first);
        answers.note(if screen.set(0, 50) { "changed" } else { "started" });
        let (ran, taken) = (waiter.join().unwrap(), worker.join().unwrap().unwrap());
        assert_eq!(taken.1, taken.0 == 1 || !ran, "the one entry that is stale");
        assert_eq!(screen.finish(), [1 - taken.0]);
    });
}

/// The same with a cancel instead of a waiter.
#[test]
fn a_hint_changes_as_its_request_is_cancelled() {
    explore(&["changed", "over"], |answers| {
        let screen = Screen::new(2, 2);
        let canceller = with(&screen, |screen| screen.tiles[0].job.cancel());
        let worker = with(&screen, Screen::run_first);
        answers.note(if screen.set(0, 50) { "changed" } else { "over" });
        let (came, taken) = (canceller.join().unwrap(), worker.join().unwrap().unwrap());
        assert_eq!(taken.1, taken.0 == 1 || came != Cancel::Ended, "the one entry that is stale");
        assert_eq!(screen.finish(), [1 - taken.0]);
    });
}

/// The queue is closed at a shutdown: the thread that closes it gets each tile once, and a hint counts before or not at all.
#[test]
fn a_hint_changes_as_the_queue_is_closed() {
    exhaust(&["changed", "taken out"], |answers| {
        let screen = Screen::new(2, 2);
        let closer = with(&screen, |screen| {
            let taken = screen.roots.close(|_| false);
            // SAFETY: tiles outlive the execution's threads.
            taken.into_iter().map(|tile| unsafe { tile.as_ref() }.key).collect::<Vec<_>>()
        });
        answers.note(if screen.set(0, 50) { "changed" } else { "taken out" });
        let mut closed = closer.join().unwrap();
        closed.sort_unstable();
        assert_eq!(closed, [1, 2]);
        for tile in &screen.tiles {
            assert!(tile.job.run_entry());
        }
        assert_eq!(screen.finish(), [0; 0]);
    });
}
