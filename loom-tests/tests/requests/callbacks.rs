//! Callbacks, by the request word as it ships: subscribers against the end, and what comes while they are called.
//!
//! Every model checks, beside what `cell` checks of all: each callback is called once, by the finisher or by its subscriber,
//! and all are told the outcome that the waiters are told.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | terminal whether or not there are callbacks | one that subscribed in between is never called | `finish_ignores_callbacks` |
//! | no second look after the first batch | the same | `completing_looks_once` |
//! | batch taken after the unlock | it is taken while somebody pushes | `batch_taken_after_unlock` |
//! | subscribing after the terminal exchange | nobody looks into the list any more | `lock_after_terminal` |
//! | a mark while completing | callbacks are told of a value, waiters of a cancel | `marked_while_completing` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use forebear_context::context::Cause;
use forebear_runtime::model::word::{CLAIMED, Cancel, HANDLE, LINK, QUEUED, SUBMITTED};

use self::cell::{Call, Job, Left, SPINNING, exhaust, explore, with};

fn subscribe(job: &Job) -> &'static str {
    let told = if job.subscribe(Call::Plain) { "called by the finisher" } else { "called on the spot" };
    job.drop_handle();
    told
}

// ---- subscribers ---------------------------------------------------------------------------------------------------

#[test]
fn a_subscriber_comes_while_it_ends() {
    exhaust(&["called by the finisher", "called on the spot"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        answers.note(subscribe(&job));
        finisher.join().unwrap();
        job.check();
    });
}

/// One is there already, so the request is completing while the other comes.
#[test]
fn a_subscriber_comes_while_another_is_called() {
    exhaust(&["called by the finisher", "called on the spot"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        assert!(job.subscribe(Call::Plain));
        let finisher = with(&job, |job| job.execute(true));
        answers.note(subscribe(&job));
        finisher.join().unwrap();
        job.check();
    });
}

#[test]
fn two_subscribers_come_while_it_ends() {
    explore(&["called by the finisher", "called on the spot"], |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let finisher = with(&job, |job| job.execute(true));
        let other = with(&job, subscribe);
        answers.note(subscribe(&job));
        answers.note(other.join().unwrap());
        finisher.join().unwrap();
        job.check();
    });
}

/// One that is called subscribes another, beside one from elsewhere.
#[test]
fn a_callback_subscribes_while_another_subscriber_comes() {
    explore(&["called by the finisher", "called on the spot"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        assert!(job.subscribe(Call::Subscribes));
        let finisher = with(&job, |job| job.execute(true));
        answers.note(subscribe(&job));
        finisher.join().unwrap();
        job.check();
    });
}

// ---- cancels -------------------------------------------------------------------------------------------------------

/// The outcome is fixed when the first is called: a cancel that comes later is too late.
#[test]
fn a_cancel_comes_while_callbacks_are_called() {
    exhaust(&["marked", "too late"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        assert!(job.subscribe(Call::Plain));
        let finisher = with(&job, |job| job.execute(true));
        let answer = job.cancel();
        answers.note(if answer == Cancel::Marked { "marked" } else { "too late" });
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

#[test]
fn a_cancel_and_a_subscriber_come_while_it_ends() {
    explore(&["called by the finisher", "called on the spot", "marked", "too late"], |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let finisher = with(&job, |job| job.execute(true));
        let canceller = with(&job, Job::cancel_and_go);
        answers.note(subscribe(&job));
        answers.note(if canceller.join().unwrap() == Cancel::Marked { "marked" } else { "too late" });
        finisher.join().unwrap();
        job.check();
    });
}

/// Whoever ends an unstarted request calls its callbacks.
#[test]
fn a_subscriber_comes_while_it_is_cancelled_unstarted() {
    exhaust(&["called by the finisher", "called on the spot"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | (2 * LINK));
        let canceller = with(&job, Job::cancel_and_go);
        answers.note(subscribe(&job));
        assert_eq!(canceller.join().unwrap(), Cancel::Ended);
        assert!(!job.run_entry(), "ended, and run");
        job.check();
    });
}

// ---- waiters -------------------------------------------------------------------------------------------------------

/// A waiter whose time is up while callbacks are called takes its node out, as before; what is remembered is too late.
#[test]
fn a_waiter_leaves_while_callbacks_are_called() {
    exhaust(&["marked it", "too late", "released", "woken"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        assert!(job.subscribe(Call::Plain));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        assert_eq!(job.cancel(), Cancel::Vetoed);
        let finisher = with(&job, |job| job.execute(true));
        answers.note(match job.leave(&waiter, Cause::TimedOut) {
            Left::Unlinked(Cancel::Marked) => "marked it",
            Left::Unlinked(Cancel::TooLate) => "too late",
            Left::Unlinked(_) => "a cancel that was vetoed, and forgotten",
            Left::Released => "released",
            Left::Woken => "woken",
        });
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// A waiter is woken after all earlier subscribers have been called.
#[test]
fn a_waiter_is_woken_after_the_callbacks() {
    exhaust(&["over", "woken"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        assert!(job.subscribe(Call::Subscribes));
        let finisher = with(&job, |job| job.execute(true));
        let waiter = job.waiter(&SPINNING);
        if job.stand(&waiter) {
            job.park(&waiter);
            answers.note("woken");
        } else {
            answers.note("over");
        }
        assert_eq!(job.called(), 2, "woken before its callbacks were called");
        job.read();
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}
