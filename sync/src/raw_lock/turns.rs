//! When a release hands the lock to a waiting thread although running code could continue with it.
//!
//! A thread that was woken for the lock runs when the system gives it a processor. While other threads that take the
//! lock again and again keep all processors busy, that is at the end of a time slice: milliseconds, for each thread in
//! turn. A lock that is handed over blocks those other threads at once, so their processors are free for the woken
//! threads. Each such turn costs a few context switches. Hence there is at most one for each [`TURN`] (decision 0107;
//! parking_lot's *eventual fairness* does the same at random intervals).
//!
//! A request never has a turn. Its worker does not preempt the request that it runs, so a lock that is handed to
//! another of its requests would stay idle until the running one suspends.
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
