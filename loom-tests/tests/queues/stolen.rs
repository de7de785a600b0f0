//! A thief between two queues: what it has stolen stands in neither of them for a moment.
//!
//! Shipped: `SharedQueue`, `Signals`, `Worker::idle`. Transcribed: the few lines of `Worker::rob` that use them.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::{Arc, thread};
use forebear_pool::{Signals, Supply, Worker};
use forebear_runtime::model::shared_queue::SharedQueue;

use self::cell::explore;

/// The queues of the one that is robbed and of the thief, and the signals of the thief and of a third worker.
struct Queues {
    signals: Signals,
    robbed: SharedQueue<u8>,
    thiefs: SharedQueue<u8>,
}

impl Queues {
    /// `Worker::rob`. Answers what it runs at once; meanwhile the one that is robbed takes what is `left` for itself.
    fn rob(&self, left: impl FnOnce()) -> Option<NonNull<u8>> {
        let (mut first, mut rest) = (None, Vec::new());
        self.robbed.pop_half(NO_KEY, |key, entry| match first {
            None => first = Some(entry),
            Some(_) => rest.push((key, entry)),
        });
        left();
        if !rest.is_empty() {
            self.thiefs.push_stolen(rest, &self.signals);
        }
        first
    }
}

impl Supply for Queues {
    type Task = NonNull<u8>;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, _: usize) -> Option<NonNull<u8>> {
        None
    }

    fn steal(&self, _: usize) -> Option<NonNull<u8>> {
        self.robbed.pop(NO_KEY).or_else(|| self.thiefs.pop(NO_KEY))
    }

    fn best(&self, _: usize) -> u64 {
        NO_KEY
    }

    fn more(&self, _: usize) -> bool {
        self.robbed.key() != NO_KEY || self.thiefs.key() != NO_KEY
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        None
    }
}

/// Does a worker find what the thief has put into its own queue, though it looked at both queues in between, and sleeps?
#[test]
fn what_a_thief_keeps_for_later_is_found_by_a_worker_that_goes_to_sleep_meanwhile() {
    explore(&["robbed", "too late"], |answers| {
        let queues = Arc::new(Queues {
            signals: Signals::new(2),
            robbed: SharedQueue::new(),
            thiefs: SharedQueue::new(),
        });
        queues.robbed.push_all([1, 2, 3].map(|key| (key, NonNull::dangling())));
        let third = {
            let queues = Arc::clone(&queues);
            thread::spawn(move || {
                assert!(Worker::attach(queues, 1).idle().is_some());
            })
        };
        let mut left = 0;
        let _ = queues.rob(|| left = std::iter::from_fn(|| queues.robbed.pop(NO_KEY)).count());
        answers.note(if left == 1 { "robbed" } else { "too late" });
        third.join().unwrap();
    });
}
