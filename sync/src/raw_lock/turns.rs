//! When a release hands the lock to a waiting thread although running code could go on with it.
//!
//! A thread that was woken for the lock runs when the system gives it a processor. While others who take the lock again and again keep all processors busy, that is at the end
//! of a time slice: milliseconds, for each thread in turn. A lock that has been handed over stops those others at once, so their processors are free for the threads that were
//! woken. Each such turn costs a few changes of threads, and hence there is one for each [`TURN`] at most (decision 0107; parking_lot's *eventual fairness* does
//! the same at intervals of chance).
//!
//! A request never has a turn: its worker does not take another request from its processor, so a lock that is handed to a request stays idle as long as that worker computes.
//!
//! The field is touched under the lock of the queue only (L1).

use std::cell::Cell;
use std::time::{Duration, Instant};

/// So long after the last turn a release gives the next.
pub(super) const TURN: Duration = Duration::from_micros(500);

/// The turns of one lock.
#[derive(Debug)]
pub(super) struct Turns {
    /// From then on the next turn is due. Nothing before the first release that wakes a thread.
    due: Cell<Option<Instant>>,
}

impl Turns {
    pub(super) const fn new() -> Turns {
        Turns { due: Cell::new(None) }
    }

    /// Whether a release at this time gives a turn; then the next is due a [`TURN`] later.
    pub(super) fn give(&self, now: Instant) -> bool {
        let due = self.due.get();
        if due.is_some_and(|due| now < due) {
            return false;
        }
        self.due.set(Some(now + TURN));
        due.is_some()
    }
}
