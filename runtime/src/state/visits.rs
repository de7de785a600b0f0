//! Visits: a thread that wakes a worker keeps the record of that worker's runtime.
//!
//! A waker puts a request's stack into the mailbox of the worker that owns it, and then wakes that worker. From the push on the worker can
//! resume the request. The request can be the last one of its runtime, and the user can drop the last handle. Then the runtime's threads end,
//! its stacks are unmapped and its record is freed, all before the waker has come to the wake-up. A waker that is a worker of the same
//! runtime cannot meet this: its own thread is joined before. Any other waker *visits* the runtime: it counts itself before the push, and
//! takes itself off the count when it has woken the worker. The thread that closes the runtime waits until nobody visits it.
//!
//! A visitor does not hold a count of the record instead. If that count were the last one, the visitor would drop the
//! user's clock and hooks. Their destructors would run in the middle of a wake-up and under the locks of its callers.
//!
//! # Invariants
//!
//! * **VI1** A visit begins while the runtime cannot be closed: the visitor has settled the wait of one of its requests and has not handed that
//!   request to its worker. So the thread that closes the runtime sees every visit that begins.
//! * **VI2** The decrement is the visitor's last access to the runtime's record.

use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{mutant, thread};

/// How many threads visit a runtime. See the module head.
#[derive(Debug)]
pub struct Visits(AtomicUsize);

impl Visits {
    /// Nobody visits.
    pub fn new() -> Visits {
        Visits(AtomicUsize::new(0))
    }

    /// Calls `with` as a visitor. Not to be called where `with` can unwind.
    ///
    /// # Safety
    ///
    /// VI1.
    pub unsafe fn during(&self, with: impl FnOnce()) {
        #[cfg(mutant = "visit_begins_after_the_push")]
        with();
        // The closing thread reads the count after a chain of releases and acquires that begins with the push of this visitor.
        self.0.fetch_add(1, Ordering::Relaxed);
        #[cfg(not(mutant = "visit_begins_after_the_push"))]
        with();
        let order = mutant!("visit_ends_relaxed", Ordering::Relaxed, Ordering::Release);
        // VI2.
        self.0.fetch_sub(1, order);
    }

    /// Returns when nobody visits. By the thread that closes the runtime.
    pub fn await_none(&self) {
        #[cfg(not(mutant = "visits_are_not_awaited"))]
        while self.0.load(Ordering::Acquire) != 0 {
            // A visit is two or three stores and a wake-up.
            thread::yield_now();
        }
    }
}

impl Default for Visits {
    fn default() -> Visits {
        Visits::new()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicBool, Ordering}; // not modelled: a test
    use std::sync::{Arc, mpsc};
    use std::thread;

    use crate::{Runtime, State};

    thread_local! {
        /// What a test does where this thread has handed a stack over, and has not woken its worker.
        static BETWEEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// The calling thread has handed a stack over, and has not woken its worker.
    pub(crate) fn after_the_push() {
        if let Ok(Some(between)) = BETWEEN.try_with(RefCell::take) {
            between();
        }
    }

    #[test]
    fn a_runtime_is_not_closed_while_a_thread_from_outside_wakes_one_of_its_workers() {
        let of_one_worker = || Runtime::builder().workers(1).build().unwrap();
        let (runtime, other) = (of_one_worker(), of_one_worker());
        let shared = runtime.shared().clone();
        let closed = Arc::new(AtomicBool::new(false));
        let (wait_is_seen, wait_seen) = mpsc::channel();
        let (pushed, is_pushed) = mpsc::channel();
        let (answer, was_closed) = mpsc::channel();
        let awaited = {
            let closed = closed.clone();
            other.spawn(move || {
                wait_seen.recv().unwrap();
                BETWEEN.set(Some(Box::new(move || {
                    pushed.send(()).unwrap();
                    while !shared.is_over() {
                        thread::yield_now();
                    }
                    let is_closed = |_| {
                        thread::yield_now();
                        closed.load(Ordering::Relaxed)
                    };
                    answer.send((0..100_000).any(is_closed)).unwrap();
                })));
            })
        };
        let waiter = runtime.spawn(move || awaited.wait().map(drop).unwrap());
        while waiter.state() != State::Suspended {
            thread::yield_now();
        }
        wait_is_seen.send(()).unwrap();
        is_pushed.recv().unwrap();
        // Its worker has not been woken for the waiter: it is woken for this.
        runtime.run(|| ());
        waiter.take().unwrap();
        drop(runtime);
        closed.store(true, Ordering::Relaxed);
        assert!(!was_closed.recv().unwrap(), "the runtime was closed under its visitor");
    }
}
