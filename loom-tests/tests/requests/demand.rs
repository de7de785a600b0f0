//! Demand, by the request word as it ships: waiters that leave, and lenders, while their target is cancelled, claimed or ends.
//!
//! What every model checks is told in `cancel.rs`. Here above all: a cancel that was vetoed is not forgotten when nobody is left
//! who wants the target, and a target is not cancelled under one who does.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a scan that looks at marks and not at shields | it is cancelled under a waiter that goes on waiting | `shielded_is_no_demand` |
//! | demand decided when the lock is taken | the same, if that waiter claims it during the scan | `demand_decided_at_lock` |
//! | veto without the lock | the last waiter goes in between, and the cancel is forgotten | `veto_without_lock` |
//! | a leaver that does not look at the veto | the same | `leaver_ignores_veto` |
//! | a cancelled waiter that leaves like any other | its target goes on for nobody | `leaver_does_not_ask` |
//! | unlock by a remembered word | a claim from in between is taken back | `unlock_remembered` |
//! | lent taken off without the lock | lender and last waiter each leave it to the other | `lent_off_without_lock` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::sync::Arc;

use forebear_context::context::Cause;
use forebear_context::shim::thread;
use forebear_runtime::model::word::{CLAIMED, Cancel, HANDLE, LENT, LINK, QUEUED, SUBMITTED};

use self::cell::{BLOCKING, How, Job, Left, SPINNING, exhaust, explore, told, told_left, with};

// ---- demand that leaves --------------------------------------------------------------------------------------------

/// The only waiter's time is up while somebody cancels its target. Whoever comes second marks it: a veto is remembered.
#[test]
fn the_last_waiter_leaves_while_its_target_is_cancelled() {
    exhaust(&["marked", "vetoed", "left", "left, marked it"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let canceller = with(&job, Job::cancel_and_go);
        answers.note(told_left(job.leave(&waiter, Cause::TimedOut)));
        answers.note(told(canceller.join().unwrap()));
        assert!(job.was_marked(), "a cancel that was vetoed, and forgotten");
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

#[test]
fn the_last_waiter_leaves_while_its_target_is_cancelled_and_ends() {
    let answers = ["marked", "vetoed", "too late", "left", "left, marked it", "released", "woken"];
    explore(&answers, |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let canceller = with(&job, Job::cancel_and_go);
        let finisher = with(&job, |job| job.execute(true));
        let left = job.leave(&waiter, Cause::TimedOut);
        job.drop_handle();
        let answer = canceller.join().unwrap();
        finisher.join().unwrap();
        if answer == Cancel::Vetoed && matches!(left, Left::Unlinked(_)) {
            assert_eq!(left, Left::Unlinked(Cancel::Marked), "a cancel that was vetoed, and forgotten");
        }
        answers.note(told_left(left));
        answers.note(told(answer));
        job.check();
    });
}

/// A cancel is remembered, the last waiter leaves, and a worker claims: ended or run, and marked in any case.
#[test]
fn the_last_waiter_of_a_queued_one_leaves_while_it_is_claimed() {
    exhaust(&["left, ended it", "left, marked it", "released", "woken"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | LINK);
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        assert_eq!(job.cancel(), Cancel::Vetoed);
        let worker = with(&job, Job::run_entry);
        let left = job.leave(&waiter, Cause::TimedOut);
        answers.note(told_left(left));
        job.drop_handle();
        let ended = left == Left::Unlinked(Cancel::Ended);
        assert_eq!(worker.join().unwrap(), !ended, "run or ended");
        job.check();
    });
}

#[test]
fn the_last_waiter_of_a_queued_one_leaves_while_it_is_claimed_and_cancelled() {
    let answers = [
        "left",
        "left, ended it",
        "left, marked it",
        "released",
        "woken",
        "ended",
        "marked",
        "vetoed",
        "too late",
    ];
    explore(&answers, |answers| {
        let job = Job::with_turns(QUEUED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let worker = with(&job, Job::run_entry);
        let canceller = with(&job, Job::cancel_and_go);
        answers.note(told_left(job.leave(&waiter, Cause::TimedOut)));
        job.drop_handle();
        answers.note(told(canceller.join().unwrap()));
        worker.join().unwrap();
        job.check();
    });
}

/// The waiter is cancelled, and asks its target to cancel.
#[test]
fn a_cancelled_waiter_leaves_while_its_target_ends() {
    exhaust(&["left, marked it", "released", "woken"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let finisher = with(&job, |job| job.execute(true));
        waiter.mark();
        answers.note(told_left(job.leave(&waiter, Cause::Cancelled)));
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// The same of a waiter that is parked: it is marked, then woken, by another thread, while its target ends.
#[test]
fn a_parked_waiter_is_cancelled_while_its_target_ends() {
    explore(&["left, marked it", "released", "woken", "came first", "came late", "over"], |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | HANDLE | LINK);
        let waiter = job.waiter(&BLOCKING);
        let finisher = with(&job, |job| job.execute(true));
        if job.stand(&waiter) {
            let canceller = {
                let waiter = Arc::clone(&waiter);
                thread::spawn(move || waiter.cancel())
            };
            let left = job.park_or_leave(&waiter);
            answers.note(told_left(left));
            let came_first = canceller.join().unwrap();
            assert_eq!(came_first, left != Left::Woken);
            answers.note(if came_first { "came first" } else { "came late" });
        } else {
            answers.note("over");
        }
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// Its only waiter is cancelled, and so is the target: by the scan, which finds no demand, or by the leaver.
#[test]
fn a_cancelled_waiter_leaves_while_its_target_is_cancelled() {
    let answers = ["marked", "vetoed", "already marked", "left, marked it", "left, already marked"];
    exhaust(&answers, |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let canceller = with(&job, Job::cancel_and_go);
        waiter.mark();
        answers.note(told_left(job.leave(&waiter, Cause::Cancelled)));
        answers.note(told(canceller.join().unwrap()));
        assert!(job.was_marked(), "nobody is left who wants it");
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

/// A waiter that is marked within a shielded region waits on, and is demand until it leaves.
#[test]
fn a_shielded_waiter_leaves_while_its_target_is_cancelled() {
    exhaust(&["vetoed: left, marked it", "marked: left"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        waiter.mark_shielded();
        let canceller = with(&job, Job::cancel_and_go);
        let left = job.leave(&waiter, Cause::TimedOut);
        answers.note(match (canceller.join().unwrap(), left) {
            (Cancel::Vetoed, Left::Unlinked(Cancel::Marked)) => "vetoed: left, marked it",
            (Cancel::Marked, Left::Unlinked(Cancel::Unasked)) => "marked: left",
            _ => "else",
        });
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

/// One's time is up, one is cancelled, and a cancel is remembered: the last of them fires it.
#[test]
fn two_waiters_leave_and_the_last_fires_what_is_remembered() {
    exhaust(&["first ended it", "second ended it"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | (2 * HANDLE) | LINK);
        let (first, second) = (job.waiter(&SPINNING), job.waiter(&SPINNING));
        assert!(job.stand(&first) && job.stand(&second));
        assert_eq!(job.cancel(), Cancel::Vetoed);
        let other = with(&job, move |job| {
            let left = job.leave(&second, Cause::TimedOut);
            job.drop_handle();
            left
        });
        first.mark();
        let left = job.leave(&first, Cause::Cancelled);
        job.drop_handle();
        let ended = Left::Unlinked(Cancel::Ended);
        answers.note(match (left, other.join().unwrap()) {
            (first, _) if first == ended => "first ended it",
            (_, second) if second == ended => "second ended it",
            _ => "a cancel that was vetoed, and forgotten",
        });
        assert!(!job.run_entry(), "ended, and run");
        job.check();
    });
}

/// One waiter is cancelled and has not left yet, another claims the target, while a cancel looks who waits: the one that
/// stands in the list does not count, the one that has claimed does, though nobody saw it in the list.
#[test]
fn a_waiter_claims_while_a_cancel_looks_who_waits() {
    exhaust(&["ended", "vetoed", "too late"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | (2 * HANDLE) | (2 * LINK));
        let idle = job.waiter(&SPINNING);
        assert!(job.stand(&idle));
        idle.mark();
        let lender = with(&job, Job::wait_and_go);
        let answer = job.cancel();
        answers.note(told(answer));
        job.release_link();
        assert_eq!(lender.join().unwrap() == How::Ran, answer != Cancel::Ended, "run or ended");
        job.drop_handle();
        job.release_link();
        job.check();
    });
}

/// Two cancels reach the two waiters of one target, which each then asks on its waiter's behalf before the waiters have
/// left. Whichever comes second finds both marked.
#[test]
fn two_waiters_are_cancelled_and_their_target_with_them() {
    exhaust(&["marked", "vetoed", "already marked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let (first, second) = (job.waiter(&SPINNING), job.waiter(&SPINNING));
        assert!(job.stand(&first) && job.stand(&second));
        let other = {
            let (job, second) = (Arc::clone(&job), Arc::clone(&second));
            thread::spawn(move || {
                second.mark();
                job.cancel()
            })
        };
        first.mark();
        answers.note(told(job.cancel()));
        answers.note(told(other.join().unwrap()));
        assert!(job.was_marked(), "both who waited are marked");
        job.execute(true);
        job.drop_handle();
        job.drop_handle();
        job.check();
    });
}

// ---- lenders -------------------------------------------------------------------------------------------------------

/// The request on whose stack it runs is cancelled while somebody cancels it.
#[test]
fn a_lender_is_cancelled_while_its_target_is() {
    exhaust(&["vetoed", "already marked", "too late"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | LENT | HANDLE | LINK);
        let canceller = with(&job, Job::cancel_and_go);
        // Until then the lender is demand, so nobody else has marked it.
        job.execute_with(false, || assert_eq!(job.lender_cancelled(true), Cancel::Marked));
        job.drop_handle();
        answers.note(told(canceller.join().unwrap()));
        job.check();
    });
}

/// The same of a lender that does not ask, since the target is another's affair: what is remembered fires all the same.
#[test]
fn a_lender_goes_without_asking_while_its_target_is_cancelled() {
    exhaust(&["lender: marked", "lender: unasked", "marked", "vetoed", "too late"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | LENT | HANDLE | LINK);
        let canceller = with(&job, Job::cancel_and_go);
        job.execute_with(false, || {
            answers.note(match job.lender_cancelled(false) {
                Cancel::Marked => "lender: marked",
                Cancel::Unasked => "lender: unasked",
                Cancel::AlreadyMarked => "lender: already marked",
                unexpected => told(unexpected),
            });
        });
        job.drop_handle();
        let answer = canceller.join().unwrap();
        answers.note(told(answer));
        assert_eq!(job.was_marked(), answer != Cancel::TooLate, "a cancel that was vetoed, and forgotten");
        job.check();
    });
}

/// The lender is cancelled while the only other waiter leaves: the later of the two lets the cancel through.
#[test]
fn a_lender_is_cancelled_while_the_other_waiter_leaves() {
    exhaust(&["lender: marked", "lender: vetoed", "left", "left, marked it"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | LENT | (2 * HANDLE));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let other = with(&job, move |job| {
            let left = job.leave(&waiter, Cause::TimedOut);
            job.drop_handle();
            left
        });
        job.execute_with(false, || {
            answers.note(match job.lender_cancelled(true) {
                Cancel::Marked => "lender: marked",
                Cancel::Vetoed => "lender: vetoed",
                unexpected => told(unexpected),
            });
            answers.note(told_left(other.join().unwrap()));
            assert!(job.was_marked(), "nobody is left who wants it");
        });
        job.drop_handle();
        job.check();
    });
}

#[test]
fn a_lender_is_cancelled_while_the_other_waiter_leaves_and_somebody_cancels() {
    let answers = [
        "lender: marked",
        "lender: vetoed",
        "left",
        "left, others stay",
        "left, marked it",
        "released",
        "woken",
        "vetoed",
        "already marked",
        "too late",
    ];
    explore(&answers, |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | LENT | (2 * HANDLE) | LINK);
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let other = with(&job, move |job| {
            let left = job.leave(&waiter, Cause::TimedOut);
            job.drop_handle();
            left
        });
        let canceller = with(&job, Job::cancel_and_go);
        let mut lender = Cancel::Unasked;
        job.execute_with(false, || lender = job.lender_cancelled(true));
        job.drop_handle();
        answers.note(match lender {
            Cancel::Marked => "lender: marked",
            Cancel::Vetoed => "lender: vetoed",
            unexpected => told(unexpected),
        });
        let left = other.join().unwrap();
        answers.note(told_left(left));
        answers.note(told(canceller.join().unwrap()));
        if matches!(left, Left::Unlinked(_)) {
            assert!(job.was_marked(), "nobody is left who wants it");
        }
        job.check();
    });
}
