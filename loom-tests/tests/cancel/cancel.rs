//! Cancelling, by the request word as it ships: marks against claims and ends, reasons, shields. What waiters and lenders have
//! to say is in `demand.rs`.
//!
//! Every model checks, beside what `cell` checks of all: marked at most once, and by the answer of exactly one; `CANCELLED`
//! in the end if and only if somebody was told that it is marked; each mark delivered once; a reason never read while it
//! is written. So who was told "marked" never sees a value, and who was told "too late" never sees a cancel.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | outcome taken from a look before the terminal exchange | told "marked", and it ends with a value | `outcome_before_exchange` |
//! | mark first, then end it if it was queued | a worker claims in between: it runs, and is ended | `mark_then_claim` |
//! | only the list is demand | a target is cancelled under the live waiter that runs it | `lender_is_no_demand` |
//! | admission by load and store | it is ended, and run | `admit_by_store` |
//! | a private one cancelled by a store though it has a handle | its owner claims by waiting: run, and ended | `private_cancelled_by_store` |
//! | fused take that looks at the handles only, or does not look again | an untyped handle's cancel is overwritten | `sole_ignores_links`, `no_closing_compare` |
//! | mark while somebody else holds the lock | the reason is read while it is written | `marked_past_the_lock` |
//! | unlock that does not release | who sees the mark does not see the reason | `unlock_relaxed` |
//! | reason after the mark | who sees the mark finds none | `reason_after_mark` |
//! | a parent's cancel in one exchange whoever waits | a child is cancelled under the live waiter that runs it | `inherited_past_demand` |
//! | the same while somebody holds the lock | marked by both | `inherited_past_the_lock` |
//! | a mark that does not say that it is inherited | who sees it takes it that somebody asked | `inherited_is_not_said` |
//! | a private one that is ended with its entry's link and the runner's | its header never ends | `inherited_keeps_the_entry` |
//! | shield looked at before the mark is set | delivered by both, or by nobody | `shield_seen_before_mark` |
//! | the end of a region delivers whatever mark it finds | one from before the region is delivered twice | `unshield_delivers_again` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;

use forebear_context::shim::thread;
use forebear_runtime::model::word::{
    CLAIMED, Cancel, HANDLE, HELD, HandleDrop, LINK, NEW, QUEUED, SPAWNED, SUBMITTED,
};

use self::cell::{BLOCKING, FROM_PARENT, How, Job, Region, SPINNING, Took, exhaust, explore, told, with};

// ---- against the end -----------------------------------------------------------------------------------------------

#[test]
fn a_request_is_cancelled_while_it_ends() {
    exhaust(&["marked", "too late"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        answers.note(told(job.cancel()));
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

#[test]
fn two_cancel_it_while_it_ends() {
    explore(&["marked", "too late", "already marked"], |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let finisher = with(&job, |job| job.execute(true));
        let other = with(&job, |job| {
            let answer = job.cancel_for(1);
            job.release_link();
            answer
        });
        answers.note(told(job.cancel()));
        job.drop_handle();
        answers.note(told(other.join().unwrap()));
        finisher.join().unwrap();
        job.check();
    });
}

// ---- against claims ------------------------------------------------------------------------------------------------

#[test]
fn a_queued_request_is_cancelled_while_a_worker_claims_it() {
    exhaust(&["ended", "marked", "too late"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | LINK);
        let worker = with(&job, Job::run_entry);
        let answer = job.cancel();
        answers.note(told(answer));
        job.drop_handle();
        assert_eq!(worker.join().unwrap(), answer != Cancel::Ended, "run or ended");
        job.check();
    });
}

/// A waiter that lends its stack stands in no list, and is demand all the same.
fn comes_while_a_waiter_claims(cancel: fn(&Job) -> Cancel) {
    exhaust(&["ended", "vetoed", "too late"], move |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = with(&job, Job::wait_and_go);
        let answer = cancel(&job);
        answers.note(told(answer));
        job.release_link();
        let how = waiter.join().unwrap();
        assert_eq!(how == How::Ran, answer != Cancel::Ended, "run or ended");
        job.release_link();
        job.check();
    });
}

#[test]
fn a_queued_request_is_cancelled_while_a_waiter_claims_it() {
    comes_while_a_waiter_claims(Job::cancel);
}

#[test]
fn a_queued_request_is_cancelled_while_a_worker_and_a_waiter_want_it() {
    explore(&["ended", "marked", "vetoed", "too late", "over", "ran it", "parked"], |answers| {
        let job = Job::with_turns(QUEUED | SUBMITTED | HANDLE | (2 * LINK));
        let worker = with(&job, Job::run_entry);
        let waiter = with(&job, Job::wait_and_go);
        answers.note(told(job.cancel()));
        job.release_link();
        answers.note(match waiter.join().unwrap() {
            How::Over => "over",
            How::Ran => "ran it",
            How::Parked => "parked",
        });
        worker.join().unwrap();
        job.check();
    });
}

#[test]
fn a_new_one_is_cancelled_while_its_last_handle_goes() {
    exhaust(&["cancelled", "dropped"], |answers| {
        let job = Job::new(NEW | HANDLE | LINK);
        let handle = with(&job, Job::drop_handle);
        let answer = job.cancel();
        job.release_link();
        let dropped = handle.join().unwrap();
        assert_eq!(answer == Cancel::Ended, dropped != HandleDrop::Unstarted, "ended by one of the two");
        answers.note(if answer == Cancel::Ended { "cancelled" } else { "dropped" });
        job.check();
    });
}

#[test]
fn a_new_one_is_cancelled_while_it_is_submitted() {
    exhaust(&["not submitted", "a stale entry", "marked", "too late"], |answers| {
        let job = Job::new(NEW | (2 * HANDLE));
        let submitter = with(&job, |job| {
            let submitted = job.submit();
            job.drop_handle();
            (submitted, submitted && job.run_entry())
        });
        let answer = job.cancel();
        job.drop_handle();
        answers.note(match (answer, submitter.join().unwrap()) {
            (Cancel::Ended, (false, _)) => "not submitted",
            (Cancel::Ended, (true, false)) => "a stale entry",
            (answer, (true, true)) => told(answer),
            _ => "run, or ended, by both or neither",
        });
        job.check();
    });
}

/// A pool admits what somebody cancels.
#[test]
fn a_held_one_is_cancelled_while_it_is_admitted() {
    exhaust(&["ended", "marked", "too late"], |answers| {
        let job = Job::new(HELD | SUBMITTED | HANDLE | LINK);
        let pool = with(&job, Job::admit);
        let answer = job.cancel();
        answers.note(told(answer));
        job.drop_handle();
        assert_eq!(pool.join().unwrap(), answer != Cancel::Ended, "run or ended");
        job.check();
    });
}

// ---- in the private queue -------------------------------------------------------------------------------------------

/// The worker that has it in its list cancels it there, and works off the list.
fn cancel_there(job: &Job, cancel: fn(&Job, &Cell<bool>) -> Cancel) -> Cancel {
    let listed = Cell::new(true);
    let answer = cancel(job, &listed);
    if listed.get() {
        job.run_popped();
    }
    answer
}

/// Its maker is cancelled.
fn cancel_listed(job: &Job) -> Cancel {
    cancel_there(job, Job::cancel_listed)
}

fn comes_while_a_handle_elsewhere_waits(cancel: fn(&Job, &Cell<bool>) -> Cancel) {
    exhaust(&["ended", "vetoed", "too late"], move |answers| {
        let job = Job::new(SPAWNED);
        let waiter = with(&job, Job::wait_and_go);
        let answer = cancel_there(&job, cancel);
        answers.note(told(answer));
        assert_eq!(waiter.join().unwrap() == How::Ran, answer != Cancel::Ended, "run or ended");
        job.check();
    });
}

#[test]
fn a_private_one_is_cancelled_while_a_handle_elsewhere_waits() {
    comes_while_a_handle_elsewhere_waits(Job::cancel_listed);
}

#[test]
fn a_private_one_is_cancelled_while_its_handle_elsewhere_goes() {
    exhaust(&["ended, and a handle left", "ended, alone"], |answers| {
        let job = Job::new(SPAWNED);
        let handle = with(&job, Job::drop_handle);
        thread::yield_now();
        assert_eq!(cancel_listed(&job), Cancel::Ended);
        answers.note(match handle.join().unwrap() {
            HandleDrop::Running if !job.had_reason() => "ended, alone",
            _ => "ended, and a handle left",
        });
        job.check();
    });
}

#[test]
fn a_private_one_is_cancelled_while_an_untyped_handle_cancels_it() {
    exhaust(&["ended here", "ended there"], |answers| {
        let job = Job::new(SPAWNED + LINK);
        let other = with(&job, Job::cancel_and_go);
        let answer = cancel_listed(&job);
        let other = other.join().unwrap();
        assert_eq!(answer == Cancel::Ended, other != Cancel::Ended, "ended by one of the two");
        answers.note(if other == Cancel::Ended { "ended there" } else { "ended here" });
        job.drop_handle();
        job.check();
    });
}

/// Takes by value what stands in this thread's private queue, and works off the list.
fn take(job: &Job, during: impl FnOnce()) -> &'static str {
    let listed = Cell::new(true);
    let took = job.take(&job.waiter(&BLOCKING), &listed, during);
    if listed.get() {
        assert!(!job.run_popped(), "taken, and still to run");
    }
    told_take(took)
}

fn told_take(took: Took) -> &'static str {
    match took {
        Took::Alone => "taken alone",
        Took::Value => "taken",
        Took::Shared => "shared",
        Took::Cancelled => "nothing to take",
    }
}

/// A plain store may stand for the claim only if nobody can cancel it at that moment.
#[test]
fn a_fused_take_sees_an_untyped_handle_that_cancels() {
    exhaust(&["taken", "nothing to take", "ended", "vetoed", "too late"], |answers| {
        let job = Job::new(SPAWNED + LINK);
        let canceller = with(&job, Job::cancel_and_go);
        answers.note(take(&job, || {}));
        answers.note(told(canceller.join().unwrap()));
        job.check();
    });
}

/// The callable gives away a handle to itself, and somebody cancels by it: whoever takes it is demand.
#[test]
fn a_fused_take_that_gives_itself_away_is_spared() {
    exhaust(&["taken", "vetoed", "too late"], |answers| {
        let job = Job::new(SPAWNED);
        let mut canceller = None;
        answers.note(take(&job, || {
            job.word.add_link();
            canceller = Some(with(&job, Job::cancel_and_go));
        }));
        answers.note(told(canceller.unwrap().join().unwrap()));
        job.check();
    });
}

/// Its maker has published it and takes it by value, a thief has the entry, and somebody cancels.
#[test]
fn a_published_one_is_taken_and_stolen_and_cancelled() {
    let answers =
        ["taken", "nothing to take", "stolen", "a stale entry", "ended", "marked", "vetoed", "too late"];
    explore(&answers, |answers| {
        let job = Job::with_turns(SPAWNED + LINK);
        let canceller = with(&job, Job::cancel_and_go);
        job.touch();
        job.word.publish();
        let thief = with(&job, Job::run_entry);
        answers.note(told_take(job.take(&job.waiter(&BLOCKING), &Cell::new(false), || {})));
        answers.note(if thief.join().unwrap() { "stolen" } else { "a stale entry" });
        answers.note(told(canceller.join().unwrap()));
        job.check();
    });
}

// ---- inherited from the parent -------------------------------------------------------------------------------------

#[test]
fn a_child_is_cancelled_with_its_parent_while_a_waiter_claims_it() {
    comes_while_a_waiter_claims(Job::inherit);
}

/// An abort and the parent's cancel at once: marked by one of them, and the reason is that one's.
#[test]
fn a_mark_that_is_inherited_says_so() {
    exhaust(&["abort: marked", "abort: already marked", "marked", "already marked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let parent = with(&job, |job| {
            let answer = job.inherit();
            let reason = job.reason();
            job.release_link();
            (answer, reason)
        });
        let answer = job.abort(3);
        let (other, reason) = parent.join().unwrap();
        assert_ne!(answer == Cancel::Marked, other == Cancel::Marked, "marked by one of the two");
        assert_eq!(reason, Some(if answer == Cancel::Marked { 3 } else { FROM_PARENT }));
        answers.note(told(other));
        answers.note(if answer == Cancel::Marked { "abort: marked" } else { "abort: already marked" });
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

#[test]
fn a_private_child_is_cancelled_with_its_parent_while_a_handle_elsewhere_waits() {
    comes_while_a_handle_elsewhere_waits(Job::inherit_listed);
}

// ---- aborts, reasons, shields --------------------------------------------------------------------------------------

/// An abort and a cancel at once: the reason is there for whoever sees the mark, and is the abort's if the mark is.
#[test]
fn the_first_reason_stays() {
    exhaust(&["abort: marked", "abort: already marked", "marked", "already marked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let canceller = with(&job, |job| {
            let answer = job.cancel();
            let reason = job.reason();
            job.release_link();
            (answer, reason)
        });
        let answer = job.abort(3);
        let (other, reason) = canceller.join().unwrap();
        assert_eq!(reason, (answer == Cancel::Marked).then_some(3));
        answers.note(told(other));
        answers.note(if answer == Cancel::Marked { "abort: marked" } else { "abort: already marked" });
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

/// An abort ignores waiters. A thread that sees the mark finds the reason.
#[test]
fn an_abort_is_seen_with_its_reason() {
    exhaust(&["seen", "not seen"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let aborter = with(&job, |job| {
            assert_eq!(job.abort(3), Cancel::Marked);
            job.drop_handle();
        });
        thread::yield_now();
        if job.is_marked() {
            assert_eq!(job.reason(), Some(3));
            answers.note("seen");
        } else {
            answers.note("not seen");
        }
        aborter.join().unwrap();
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

fn told_region(region: Region) -> &'static str {
    match region {
        Region::Quiet => "region: not marked in it",
        Region::Before => "region: marked before",
        Region::Delivers => "region: delivers",
    }
}

/// Whoever marks it, the mark is delivered once: by the aborter, or by the end of the region.
#[test]
fn an_abort_meets_a_shielded_region() {
    let answers = [
        "marked",
        "marked, shielded",
        "too late",
        "region: not marked in it",
        "region: marked before",
        "region: delivers",
    ];
    exhaust(&answers, |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let aborter = with(&job, |job| {
            let answer = job.abort(3);
            job.drop_handle();
            answer
        });
        job.execute_with(true, || {
            answers.note(told_region(job.shielded(|| {})));
        });
        answers.note(told(aborter.join().unwrap()));
        job.check();
    });
}

#[test]
fn an_abort_and_a_cancel_meet_a_shielded_region() {
    let answers = [
        "marked",
        "marked, shielded",
        "already marked",
        "too late",
        "region: not marked in it",
        "region: marked before",
        "region: delivers",
    ];
    explore(&answers, |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let aborter = with(&job, |job| {
            let answer = job.abort(3);
            job.drop_handle();
            answer
        });
        let canceller = with(&job, Job::cancel_and_go);
        job.execute_with(true, || {
            answers.note(told_region(job.shielded(|| {})));
        });
        answers.note(told(aborter.join().unwrap()));
        answers.note(told(canceller.join().unwrap()));
        job.check();
    });
}
