//! The request word as it ships: claims, waiters, the leaver.
//!
//! The other files about it are `handles.rs` (counts, taking), `publication.rs`, `cancel.rs`, `demand.rs` and
//! `callbacks.rs`; the last three have tables of their own.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | claim by load and store | both claimers see it queued and run it | `claim_by_store` |
//! | lock taken after the terminal exchange | the node is pushed where nobody looks any more: it sleeps for ever | `lock_after_terminal` |
//! | terminal exchange past a lock that is held | the list is taken while a waiter pushes | `finish_ignores_lock` |
//! | terminal exchange that only releases | an unchanged word hides a waiter that came between | `terminal_release_only` |
//! | slot settled by load and store | two wakers believe that they won | `settle_by_store` |
//! | slot settled relaxed | the woken one does not see the value | `settle_relaxed` |
//! | foreign thread that is settled goes without the lock | its waker unlocks memory that is gone | `settled_skips_prepare` |
//! | leaver goes at terminal without waiting | the finisher writes into a frame that is gone | `leaver_does_not_wait` |
//! | node let go of by a relaxed store | its last reads are not over when it is reused | `released_relaxed` |
//! | node's link read after the wake | it is somebody else's memory by then, and the rest of the list is lost | `node_read_after_wake` |
//! | unlock by a remembered word | a count or a claim from in between is taken back | `unlock_remembered` |
//! | last handle by subtraction | a link ends the header under the drop of the value | `last_handle_by_sub` |
//! | end of a terminal one by a look at its counts | a child gets a handle to a parent that is being ended | `alone_by_look` |
//! | counts down relaxed | the value or header is reused before the others' last reads | `link_down_relaxed`, `handle_down_relaxed` |
//! | word read relaxed | the same, for who finds itself alone | `load_relaxed` |
//! | fused take that compares handles only | an untyped handle's claim is overwritten | `sole_ignores_links` |
//! | fused take without the second look | the header ends under a handle that the callable gave away | `no_closing_compare` |
//! | end of a popped one by its handles only | the same | `popped_sole_by_handles` |
//! | plain drop that compares handles only | an untyped handle's link is lost | `sole_drop_ignores_links` |
//! | plain claim of a popped entry that has a handle | its owner claims by waiting: run twice | `plain_pop_with_handle` |
//! | publication by load and store | a handle that goes meanwhile comes back | `publish_by_store` |
//! | publication without a bit in the word | the maker's plain store meets the thief's claim | `publish_keeps_private` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::sync::Arc;

use forebear_context::context::{Cause, ForeignContext};
use forebear_context::shim::thread;
use forebear_runtime::model::word::{CLAIMED, HANDLE, LINK, QUEUED, SPAWNED, SUBMITTED, WAITERS};

use self::cell::{BLOCKING, How, Job, Left, SPINNING, exhaust, explore, with};

fn told(how: How) -> &'static str {
    match how {
        How::Over => "over",
        How::Ran => "ran it",
        How::Parked => "parked",
    }
}

// ---- claim ---------------------------------------------------------------------------------------------------------

/// A worker has the entry, a waiter has a handle: one of them runs it.
#[test]
fn a_queue_and_a_waiter_run_it_once() {
    exhaust(&["over", "ran it", "parked", "queue ran it", "queue found it stale"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | LINK);
        let queue = {
            let (job, answers) = (Arc::clone(&job), answers.clone());
            thread::spawn(move || {
                answers.note(if job.run_entry() { "queue ran it" } else { "queue found it stale" })
            })
        };
        answers.note(told(job.wait(&job.waiter(&BLOCKING), true, None)));
        job.read();
        job.drop_handle();
        queue.join().unwrap();
        job.check();
    });
}

#[test]
fn a_queue_and_two_waiters_run_it_once() {
    explore(&["over", "ran it", "parked", "queue ran it", "queue found it stale"], |answers| {
        let job = Job::with_turns(QUEUED | SUBMITTED | (2 * HANDLE) | LINK);
        let queue = {
            let (job, answers) = (Arc::clone(&job), answers.clone());
            thread::spawn(move || {
                answers.note(if job.run_entry() { "queue ran it" } else { "queue found it stale" })
            })
        };
        let wait = |job: &Job| {
            let how = job.wait(&job.waiter(&BLOCKING), true, None);
            job.read();
            job.drop_handle();
            how
        };
        let other = with(&job, wait);
        answers.note(told(wait(&job)));
        let other = other.join().unwrap();
        answers.note(told(other));
        queue.join().unwrap();
        job.check();
    });
}

// ---- waiters -------------------------------------------------------------------------------------------------------

/// A waiter that comes while it ends is woken, or sees that it is over. Blocking: what is lost is a deadlock.
#[test]
fn a_waiter_that_comes_at_the_end_is_answered() {
    exhaust(&["over", "parked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        answers.note(told(job.wait(&job.waiter(&BLOCKING), true, None)));
        job.read();
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// The same with nothing between waker and waiter but the slot: the orders.
#[test]
fn a_waiter_sees_what_was_done_before_it_was_woken() {
    exhaust(&["over", "parked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        answers.note(told(job.wait(&job.waiter(&SPINNING), true, None)));
        job.read();
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

#[test]
fn two_waiters_that_come_at_the_end_are_answered() {
    explore(&["both over", "one parked", "both parked"], |answers| {
        let job = Job::with_turns(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let finisher = with(&job, |job| job.execute(true));
        let wait = |job: &Job| {
            let how = job.wait(&job.waiter(&BLOCKING), true, None);
            job.read();
            job.drop_handle();
            how
        };
        let other = with(&job, wait);
        let how = wait(&job);
        answers.note(match (how, other.join().unwrap()) {
            (How::Over, How::Over) => "both over",
            (How::Parked, How::Parked) => "both parked",
            _ => "one parked",
        });
        finisher.join().unwrap();
        job.check();
    });
}

/// A thread may go as soon as it is woken: the waker is done with its context by then, however early it was woken.
#[test]
fn a_thread_that_is_woken_may_go() {
    exhaust(&["over", "parked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        let waiter = job.waiter(&BLOCKING);
        answers.note(told(job.wait(&waiter, true, None)));
        waiter.end();
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// The same of one that is nudged: that is no end, and its wait may be ended right after it.
#[test]
fn a_thread_that_is_nudged_and_then_woken_may_go() {
    exhaust(&["over", "parked"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let waiter = job.waiter(&BLOCKING);
        let finisher = {
            let (job, waiter) = (Arc::clone(&job), Arc::clone(&waiter));
            thread::spawn(move || {
                // SAFETY: a waiter begins with a foreign context, which goes when this thread has ended its wait.
                unsafe { ForeignContext::nudge(waiter.context().into()) };
                job.execute(true);
            })
        };
        answers.note(told(job.wait(&waiter, true, None)));
        waiter.end();
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// One waiter stands there already, so a second that comes and unlocks between the finisher's look and its exchange
/// leaves the word as it was, bit for bit. The finisher must have acquired the second all the same.
#[test]
fn a_waiter_that_leaves_the_word_unchanged_is_woken() {
    exhaust(&["over", "woken"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let (first, second) = (job.waiter(&SPINNING), job.waiter(&SPINNING));
        assert!(job.stand(&first));
        let other = with(&job, move |job| job.stand(&second).then_some(second));
        job.execute(true);
        match other.join().unwrap() {
            Some(second) => {
                assert!(!second.context().is_waiting(), "a waiter in the list that was not woken");
                answers.note("woken");
            }
            None => answers.note("over"),
        }
        assert!(!first.context().is_waiting());
        job.drop_handle();
        job.drop_handle();
        job.check();
    });
}

/// A waiter more urgent than the target's maker gives it a second entry. One of the two is run, the other is stale.
#[test]
fn a_request_with_two_entries_is_run_once() {
    exhaust(&["over", "started", "first run", "second run"], |answers| {
        let job = Job::new(SPAWNED);
        let first = with(&job, Job::run_popped);
        let waiter = job.waiter(&SPINNING);
        if job.stand(&waiter) {
            if !job.enter_again() {
                answers.note("started");
            } else if job.run_entry() {
                answers.note("second run");
            } else {
                answers.note("first run");
            }
            job.park(&waiter);
        } else {
            answers.note("over");
        }
        job.read();
        job.drop_handle();
        first.join().unwrap();
        job.check();
    });
}

// ---- the leaver ----------------------------------------------------------------------------------------------------

fn told_left(left: Left) -> &'static str {
    match left {
        Left::Unlinked(_) => "unlinked",
        Left::Released => "released",
        Left::Woken => "woken",
    }
}

/// The last waiter goes while it ends: its node is taken out by one of the two, and nobody touches it afterwards.
#[test]
fn a_leaver_and_the_finisher_part() {
    exhaust(&["unlinked", "released", "woken", "over"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        let waiter = job.waiter(&SPINNING);
        if job.stand(&waiter) {
            answers.note(told_left(job.leave(&waiter, Cause::TimedOut)));
        } else {
            answers.note("over");
        }
        job.drop_handle();
        finisher.join().unwrap();
        job.check();
    });
}

/// One goes, one stays: the one that stays is woken whatever becomes of the other's node.
#[test]
fn a_leaver_does_not_take_a_stayer_with_it() {
    exhaust(&["unlinked", "released", "woken"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | (2 * HANDLE) | LINK);
        let (leaver, stayer) = (job.waiter(&SPINNING), job.waiter(&SPINNING));
        assert!(job.stand(&leaver) && job.stand(&stayer));
        let finisher = with(&job, |job| job.execute(true));
        answers.note(told_left(job.leave(&leaver, Cause::TimedOut)));
        job.drop_handle();
        finisher.join().unwrap();
        assert!(!stayer.context().is_waiting(), "a waiter in the list that was not woken");
        job.read();
        job.drop_handle();
        job.check();
    });
}

/// While a waiter that leaves holds the lock, a worker claims and an untyped handle goes: the unlock takes nothing of
/// that back.
#[test]
fn an_unlock_keeps_what_happened_meanwhile() {
    exhaust(&["unlinked", "released", "woken"], |answers| {
        let job = Job::new(QUEUED | SUBMITTED | HANDLE | (2 * LINK));
        let waiter = job.waiter(&SPINNING);
        assert!(job.stand(&waiter));
        let queue = {
            let job = Arc::clone(&job);
            thread::spawn(move || {
                job.release_link();
                assert!(job.run_entry());
            })
        };
        answers.note(told_left(job.leave(&waiter, Cause::TimedOut)));
        assert!(!job.word.load().has(WAITERS));
        job.drop_handle();
        queue.join().unwrap();
        job.check();
    });
}
