//! A waker that is no worker of the runtime, against the end of that runtime: `Visits` and the mailbox, as they ship.
//!
//! The record of the runtime is a cell that loom watches: the waker reads it when it wakes the worker, and the thread that closes the runtime
//! writes it, as if it were freed.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a visit begins after the push | the runtime is closed before the visit is counted | `visit_begins_after_the_push` |
//! | the thread that closes the runtime does not wait | the record is freed under the waker | `visits_are_not_awaited` |
//! | the end of a visit is no release | the waker's reads are not ordered before the record is freed | `visit_ends_relaxed` |
#![cfg(loom)]

use std::ptr::NonNull;

use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_loom_tests::{exhaust, explore};
use forebear_pool::{Linked, Mailbox};
use forebear_runtime::model::visits::Visits;

/// A request's stack, whose wait has been settled.
struct Coroutine {
    link: AtomicPtr<Coroutine>,
}

// SAFETY: always the same field, which is private and used by nobody else.
unsafe impl Linked for Coroutine {
    unsafe fn link<'a>(this: NonNull<Coroutine>) -> &'a AtomicPtr<Coroutine> {
        // SAFETY: live, by the caller's promise.
        unsafe { &(*this.as_ptr()).link }
    }
}

struct Runtime {
    visits: Visits,
    mailbox: Mailbox<Coroutine>,
    record: UnsafeCell<u32>,
}

// SAFETY: that is what the models ask: loom sees every access of the record.
unsafe impl Sync for Runtime {}
// SAFETY: as above.
unsafe impl Send for Runtime {}

impl Runtime {
    fn new() -> Arc<Runtime> {
        Arc::new(Runtime { visits: Visits::new(), mailbox: Mailbox::new(), record: UnsafeCell::new(7) })
    }

    /// As `Chain::send` does it from outside.
    fn wake_from_outside(&self) {
        let coroutine = Box::leak(Box::new(Coroutine { link: AtomicPtr::new(std::ptr::null_mut()) }));
        let hand_over = || {
            // SAFETY: fresh from a box, in no mailbox, freed only after it has come out.
            let _is_first = unsafe { self.mailbox.push(NonNull::from(coroutine)) };
            // SAFETY: that is what the models ask.
            self.record.with(|record| assert_eq!(unsafe { *record }, 7, "the record has been freed"));
        };
        // SAFETY: VI1: the coroutine is handed over inside.
        unsafe { self.visits.during(hand_over) };
    }

    /// The worker resumes this many requests, which are the last; then the runtime is closed.
    fn run_and_close(&self, requests: usize) {
        let mut ended = 0;
        while ended < requests {
            let arrived = self.mailbox.take_all();
            // SAFETY: what comes out came from a box.
            ended += arrived.map(|coroutine| drop(unsafe { Box::from_raw(coroutine.as_ptr()) })).count();
            if ended < requests {
                thread::yield_now();
            }
        }
        self.visits.await_none();
        // SAFETY: that is what the models ask.
        self.record.with_mut(|record| unsafe { *record = 0 });
    }
}

/// Is the record there until the waker has woken the worker?
#[test]
fn a_waker_from_outside_keeps_the_record_of_the_runtime() {
    exhaust(&["closed"], |answers| {
        let runtime = Runtime::new();
        let waker = {
            let runtime = runtime.clone();
            thread::spawn(move || runtime.wake_from_outside())
        };
        runtime.run_and_close(1);
        answers.note("closed");
        waker.join().unwrap();
    });
}

/// Does the thread that closes the runtime wait for both?
#[test]
fn two_wakers_from_outside_keep_the_record_of_the_runtime() {
    explore(&["closed"], |answers| {
        let runtime = Runtime::new();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let runtime = runtime.clone();
                thread::spawn(move || runtime.wake_from_outside())
            })
            .collect();
        runtime.run_and_close(2);
        answers.note("closed");
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}
