//! A completion: a request that nobody runs, against its completer, a cancel and a waiter, by the request word as it ships.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a completer that claims by a store | a cancel claims it, too, and it ends twice | `completed_by_store` |
//! | a claim that leaves a cancel time until the end | the value was taken from the completer, and the request is cancelled | `completed_as_claimed` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::sync::Arc;

use forebear_runtime::model::word::{HANDLE, HELD, LINK, SUBMITTED};

use self::cell::{BLOCKING, How, Job, exhaust, explore, told, with};

/// What a completer does: `completer.rs`.
fn complete(job: &Job) -> bool {
    job.touch();
    if job.word.claim_by_completer() {
        job.execute(true);
        return true;
    }
    job.release_link();
    false
}

/// One with a handle, the completer's link, and perhaps a canceller's.
fn completion(links: u64) -> Arc<Job> {
    Job::new(HELD | SUBMITTED | HANDLE | (links * LINK))
}

#[test]
fn a_completion_and_a_cancel_end_it_once() {
    exhaust(&["ended", "too late", "completed", "came too late"], |answers| {
        let job = completion(2);
        let canceller = with(&job, Job::cancel_and_go);
        let completed = complete(&job);
        answers.note(if completed { "completed" } else { "came too late" });
        answers.note(told(canceller.join().unwrap()));
        assert_eq!(job.was_marked(), !completed, "a value that was taken, and is not told");
        job.drop_handle();
        job.check();
    });
}

#[test]
fn who_waits_for_a_completion_is_told() {
    exhaust(&["over", "parked"], |answers| {
        let job = completion(1);
        let completer = with(&job, |job| assert!(complete(job)));
        let waiter = job.waiter(&BLOCKING);
        match job.wait(&waiter, true, None) {
            How::Over => answers.note("over"),
            How::Parked => answers.note("parked"),
            How::Ran => panic!("a waiter has run what has no code"),
        }
        completer.join().unwrap();
        job.read();
        job.drop_handle();
        job.check();
    });
}

#[test]
fn a_completion_a_cancel_and_the_last_handle() {
    explore(&["completed", "came too late"], |answers| {
        let job = completion(2);
        let canceller = with(&job, Job::cancel_and_go);
        let completer = with(&job, complete);
        job.drop_handle();
        answers.note(if completer.join().unwrap() { "completed" } else { "came too late" });
        let _ = canceller.join().unwrap();
        job.check();
    });
}
