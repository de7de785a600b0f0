//! The end of a runtime: `shutdown` refuses, aborts, waits for its grace, and names what is left; `finish` lets work end first.
//!
//! What is to end in time is given a grace that nobody waits for; what is to lag, one on a clock that is moved by hand.

mod across;
mod at_exit;
mod dependents;
mod driven;
mod finishes;
mod laggards;
mod races;
mod said;
mod unwinds;

#[path = "../../support/cancelling.rs"]
mod cancelling;
#[path = "../../support/mod.rs"]
mod support;

use std::thread;
use std::time::Duration;

use forebear::time::ManualClock;
use forebear::{CancelReason, Request, Runtime, ShutdownError, WaitError};

/// The numbers of workers that are tested with; the modes without threads have tests of their own.
const WORKERS: [usize; 3] = [1, 2, 4];

/// Runs the test against runtimes of these sizes.
#[track_caller]
fn on_each(test: impl Fn(&Runtime)) {
    support::on_each_of(&WORKERS, test);
}

/// Longer than any test lasts.
const LONG: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// Ends by the runtime's end, and not before.
#[track_caller]
fn is_shut_down<T: std::fmt::Debug>(answer: Result<T, WaitError>) {
    assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Shutdown))), "{answer:?}");
}

/// Ends by the runtime's end, or had nothing to look any more.
#[track_caller]
fn is_over<T: std::fmt::Debug>(answer: Result<T, WaitError>) {
    if answer.is_err() {
        is_shut_down(answer);
    }
}

/// A runtime on a clock of its own.
fn clocked(workers: usize) -> (Runtime, ManualClock) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(workers).name("test").clock(clock.clone()).build().unwrap();
    (runtime, clock)
}

/// Calls `end`, and moves the clock until it has returned.
fn while_time_passes(
    clock: &ManualClock,
    end: impl FnOnce() -> Result<(), ShutdownError> + Send,
) -> Result<(), ShutdownError> {
    thread::scope(|threads| {
        let ends = threads.spawn(end);
        while !ends.is_finished() {
            clock.advance(SECOND);
            thread::yield_now();
        }
        ends.join().unwrap()
    })
}

/// A root that never ends by itself, and does not look whether it is cancelled: only `free` ends it.
fn stuck(runtime: &Runtime, name: &'static str, free: &support::Flag) -> Request<()> {
    let (free, started) = (free.clone(), support::Flag::new());
    let up = started.clone();
    let request = Request::builder().name(name).on(runtime).spawn(move || {
        up.raise();
        support::hold_thread_until(|| free.is_up());
    });
    support::hold_thread_until(|| started.is_up());
    request
}
