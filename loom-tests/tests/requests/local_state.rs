//! Local requests of the request word as it ships: what an owner does without an exchange, against who borrows the request and has no count.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | no fence on the owner's side | neither sees the other: run twice | `local_without_light_fence` |
//! | none on the side of who asks | the same | `revoked_without_heavy_fence` |
//! | a step that is not looked back from | the same | `local_step_unchecked` |
//! | who asks reads the byte and does not mark it | the owner does not learn which of them was first | `revoked_by_load` |
//! | an owner that was asked meanwhile goes on in any case | run twice | `revoked_counts_always` |
//! | an owner that keeps the mark of the step before | it takes the step for seen, and goes on | `mark_taken_for_ones_own` |
//! | byte written relaxed | the value is read before it is there | `local_step_relaxed` |
//! | published by load and store | a claim from in between is taken back | `published_by_store` |
//! | a look at the word alone, after giving up | who does not fence any more is not seen | `local_step_after_giving_up` |
//! | a look whether the word is what births are | it is new, published, and claimed elsewhere, as births are by then | `new_taken_for_local` |
//! | given up before the fence | another asks without one | `gives_up_before_the_fence` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::sync::Arc;

use forebear_context::shim::thread;
use forebear_runtime::model::word::{Cancel, HandleDrop, LocalOwner};

use self::cell::{BLOCKING, How, Job, exhaust, explore, with};

const PATIENT: u32 = 100;

fn told(how: How) -> &'static str {
    match how {
        How::Over => "over",
        How::Ran => "ran it",
        How::Parked => "parked",
    }
}

fn told_own(how: (How, bool)) -> &'static str {
    match how {
        (How::Ran, true) => "owner: locally",
        (How::Ran, false) => "owner: ran it",
        (How::Over | How::Parked, _) => "owner: did not run it",
    }
}

fn waits(job: &Job) -> How {
    job.ask();
    let how = job.wait(&job.waiter(&BLOCKING), true, None);
    job.read();
    how
}

/// It is submitted and waited for by its owner, and waited for by one who borrows it: one of them runs it.
#[test]
fn a_local_request_is_waited_for_by_one_who_borrows_it() {
    explore(
        &["over", "ran it", "parked", "owner: locally", "owner: ran it", "owner: did not run it"],
        |answers| {
            let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
            let other = with(&job, waits);
            let listed = Cell::new(false);
            job.submit_own(&listed);
            answers.note(told_own(job.wait_own(&job.waiter(&BLOCKING), &listed)));
            answers.note(told(other.join().unwrap()));
            if listed.get() {
                // Claimed elsewhere: a stale entry.
                job.run_own_entry(&listed);
            }
            job.drop_own();
            job.check();
        },
    );
}

/// A thread that finds the request over sees the value.
#[test]
fn a_local_request_that_is_over_is_read_by_one_who_borrows_it() {
    explore(
        &["over", "ran it", "parked", "owner: locally", "owner: ran it", "owner: did not run it"],
        |answers| {
            let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
            let other = with(&job, waits);
            answers.note(told_own(job.wait_own(&job.waiter(&BLOCKING), &Cell::new(false))));
            answers.note(told(other.join().unwrap()));
            job.drop_own();
            job.check();
        },
    );
}

/// It is cancelled by one who borrows it, at any step.
#[test]
fn a_local_request_is_cancelled_by_one_who_borrows_it() {
    explore(&["ended", "vetoed", "too late", "ran", "did not run"], |answers| {
        let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
        let other = with(&job, |job| {
            job.ask();
            job.cancel()
        });
        let listed = Cell::new(false);
        job.submit_own(&listed);
        let (how, _) = job.wait_own(&job.waiter(&BLOCKING), &listed);
        answers.note(if how == How::Ran { "ran" } else { "did not run" });
        answers.note(match other.join().unwrap() {
            Cancel::Ended => "ended",
            // Its waiter lends it the stack, and so is demand.
            Cancel::Vetoed => "vetoed",
            Cancel::TooLate => "too late",
            _ => "something else",
        });
        if listed.get() {
            job.run_own_entry(&listed);
        }
        job.drop_own();
        job.check();
    });
}

/// Its owner submits it and works its list off, while one who borrows it waits.
#[test]
fn a_listed_local_request_is_popped_while_it_is_waited_for() {
    explore(&["over", "ran it", "parked", "popped", "stale entry"], |answers| {
        let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
        let other = with(&job, waits);
        let listed = Cell::new(false);
        job.submit_own(&listed);
        if listed.get() {
            answers.note(if job.run_own_entry(&listed) { "popped" } else { "stale entry" });
        } else {
            answers.note("stale entry");
        }
        answers.note(told(other.join().unwrap()));
        job.drop_own();
        job.check();
    });
}

/// It was borrowed by one who touched it or did not, and then goes in its arena, listed: it is run, and its value is dropped.
#[test]
fn a_listed_local_request_is_dropped_by_its_owner_after_it_was_borrowed() {
    exhaust(&["asked", "a local request"], |answers| {
        let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
        let asks = with(&job, |job| job.ask());
        let listed = Cell::new(false);
        job.submit_own(&listed);
        answers.note(if job.word.is_local() { "a local request" } else { "asked" });
        asks.join().unwrap();
        job.drop_own();
        assert!(job.run_own_entry(&listed), "nobody else claims it");
        job.check();
    });
}

/// Its handle goes elsewhere by value, and is dropped there without asking, while its owner works its list off.
#[test]
fn a_listed_local_request_goes_by_value_while_it_is_popped() {
    exhaust(&["running", "terminal", "popped"], |answers| {
        let job = Job::local_of(&Arc::new(LocalOwner::new(PATIENT)));
        let listed = Cell::new(false);
        job.submit_own(&listed);
        let other = with(&job, |job| {
            job.publish_state();
            job.drop_handle()
        });
        assert!(job.run_own_entry(&listed), "nobody else claims it");
        answers.note("popped");
        answers.note(match other.join().unwrap() {
            HandleDrop::Running => "running",
            _ => "terminal",
        });
        job.check();
    });
}

/// Its owner gives up for another's sake: who asks for this one then passes no fence.
#[test]
fn an_owner_gives_up_while_another_of_its_requests_is_revoked() {
    explore(
        &["over", "ran it", "parked", "owner: locally", "owner: ran it", "owner: did not run it"],
        |answers| {
            let local_owner = Arc::new(LocalOwner::new(1));
            let (first, job) = (Job::local_of(&local_owner), Job::local_of(&local_owner));
            let other = {
                let (first, job) = (Arc::clone(&first), Arc::clone(&job));
                thread::spawn(move || {
                    first.ask();
                    waits(&job)
                })
            };
            answers.note(told_own(job.wait_own(&job.waiter(&BLOCKING), &Cell::new(false))));
            answers.note(told(other.join().unwrap()));
            job.drop_own();
            job.check();
            first.drop_own();
            first.check();
        },
    );
}

/// The same while one passes the last fence, and another finds that it need not.
#[test]
fn an_owner_gives_up_while_another_thread_revokes_too() {
    explore(&["the owner's", "another's"], |answers| {
        let local_owner = Arc::new(LocalOwner::new(1));
        let (first, job) = (Job::local_of(&local_owner), Job::local_of(&local_owner));
        let asks = with(&first, Job::ask);
        let other = with(&job, |job| {
            job.ask();
            job.word.claim_new()
        });
        // It is not run: the question is only whose it is.
        let own = job.start_own();
        let others = other.join().unwrap();
        asks.join().unwrap();
        assert_ne!(own, others, "claimed by both, or by nobody");
        answers.note(if own { "the owner's" } else { "another's" });
    });
}
