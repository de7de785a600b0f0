//! The request word as it ships: pools that hold a request back, admit it, or let go of it.
//!
//! That one is cancelled while it is admitted is a model of `cancel.rs`.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | hold by what was seen when the lock was taken | a claim from in between is taken back: run twice, or never over | `hold_after_claim` |
//! | let go while somebody else holds the lock | it stands in the list of a new one, which nobody has submitted: it sleeps for ever | `let_go_past_the_lock` |
//! | let go of what has waiters | the same | `let_go_of_the_wanted` |
//! | a submission of what is held back is forgotten | it was submitted, and nobody runs it | `held_submit_forgotten` |
//! | a waiter that claims what is held back | the bound is broken; the pool admits what runs | `waiter_claims_held` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::sync::Arc;

use forebear_context::shim::thread::{self, JoinHandle};
use forebear_runtime::model::word::{HANDLE, HELD, LINK, NEW};

use self::cell::{BLOCKING, How, Job, exhaust};

/// A thread that does `f` to the job, and gives a handle back.
fn with<T: 'static>(job: &Arc<Job>, f: impl FnOnce(&Job) -> T + 'static) -> JoinHandle<T> {
    let job = Arc::clone(job);
    thread::spawn(move || {
        let answer = f(&job);
        job.drop_handle();
        answer
    })
}

fn waits(job: &Job) -> How {
    let waiter = job.waiter(&BLOCKING);
    job.wait(&waiter, true, None)
}

/// A pool begins with what somebody claims. What it has held back it admits.
#[test]
fn a_new_one_is_held_back_while_a_waiter_claims_it() {
    exhaust(&["the waiter ran it", "the pool ran it"], |answers| {
        let job = Job::new(NEW | (2 * HANDLE));
        let waiter = with(&job, Job::run_here);
        let admitted = job.hold() && job.admit();
        job.drop_handle();
        answers.note(match (waiter.join().unwrap(), admitted) {
            (true, false) => "the waiter ran it",
            (false, true) => "the pool ran it",
            _ => "run by both or neither",
        });
        job.check();
    });
}

/// A pool stops, and lets go of what somebody is about to wait for.
#[test]
fn one_is_let_go_of_while_a_waiter_comes() {
    exhaust(&["the waiter ran it", "the pool ran it"], |answers| {
        let job = Job::new(HELD | (2 * HANDLE) | LINK);
        let waiter = with(&job, waits);
        let admitted = job.let_go();
        job.drop_handle();
        answers.note(match (waiter.join().unwrap(), admitted) {
            (How::Ran, false) => "the waiter ran it",
            (How::Parked | How::Over, true) => "the pool ran it",
            _ => "run by both or neither",
        });
        job.check();
    });
}

/// A pool stops, and lets go of what somebody submits.
#[test]
fn one_is_let_go_of_while_it_is_submitted() {
    exhaust(&["the submitter's entry", "the pool's entry"], |answers| {
        let job = Job::new(HELD | (2 * HANDLE) | LINK);
        let submitter = with(&job, |job| job.submit() && job.run_entry());
        let admitted = job.let_go();
        job.drop_handle();
        answers.note(match (submitter.join().unwrap(), admitted) {
            (true, false) => "the submitter's entry",
            (false, true) => "the pool's entry",
            _ => "run by both or neither",
        });
        job.check();
    });
}

/// A pool admits what somebody is about to wait for.
#[test]
fn one_is_admitted_while_a_waiter_comes() {
    exhaust(&["the waiter ran it", "the pool ran it"], |answers| {
        let job = Job::new(HELD | (2 * HANDLE) | LINK);
        assert!(!job.run_here(), "it is held back");
        let waiter = with(&job, waits);
        let admitted = job.admit();
        job.drop_handle();
        answers.note(match (waiter.join().unwrap(), admitted) {
            (How::Ran, false) => "the waiter ran it",
            (How::Parked | How::Over, true) => "the pool ran it",
            _ => "run by both or neither",
        });
        job.check();
    });
}

/// Two pools begin with the same request.
#[test]
fn two_pools_hold_one_back() {
    exhaust(&["the first", "the second", "one after the other"], |answers| {
        let job = Job::new(NEW | (2 * HANDLE));
        let other = with(&job, |job| job.hold().then(|| job.let_go()));
        let held = job.hold().then(|| job.let_go());
        let (held, other) = (held.is_some(), other.join().unwrap().is_some());
        job.drop_handle();
        answers.note(match (held, other) {
            (true, false) => "the first",
            (false, true) => "the second",
            (true, true) => "one after the other",
            (false, false) => "neither",
        });
        job.check();
    });
}
