//! The counts of the request word as it ships: last handles, links, and what may be done without an exchange.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::sync::Arc;

use forebear_context::shim::thread::{self, JoinHandle};
use forebear_runtime::model::word::{
    CANCELLED, CLAIMED, FINISHED, HANDLE, HandleDrop, LINK, NEW, SPAWNED, SPAWNED_DETACHED, SUBMITTED,
};

use self::cell::{BLOCKING, How, Job, Took, exhaust, explore, with};

fn told(dropped: HandleDrop) -> &'static str {
    match dropped {
        HandleDrop::NotLast => "not the last",
        HandleDrop::Unstarted => "unstarted",
        HandleDrop::Running => "running",
        HandleDrop::Terminal => "terminal, a link left",
        HandleDrop::TerminalAlone => "terminal, alone",
    }
}

fn told_take(took: Took) -> &'static str {
    match took {
        Took::Alone => "alone",
        Took::Value => "as the only handle",
        Took::Shared => "shared",
        Took::Cancelled => "cancelled",
    }
}

fn told_wait(how: How) -> &'static str {
    match how {
        How::Over => "over",
        How::Ran => "ran it",
        How::Parked => "parked",
    }
}

/// An untyped handle elsewhere, which waits and goes.
fn untyped_waiter(job: &Arc<Job>) -> JoinHandle<How> {
    with(job, |job| {
        let how = job.wait(&job.waiter(&BLOCKING), true, None);
        job.release_link();
        how
    })
}

// ---- the last handle -----------------------------------------------------------------------------------------------

/// The last handle goes, it ends, and the last link goes: the value is dropped by one of the first two, and the header
/// outlives that.
#[test]
fn the_last_handle_goes_while_it_ends() {
    explore(&["running", "terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let finisher = with(&job, |job| job.execute(true));
        let link = with(&job, Job::release_link);
        answers.note(told(job.drop_handle()));
        finisher.join().unwrap();
        link.join().unwrap();
        job.check();
    });
}

/// The same of two threads, without a bound.
#[test]
fn the_last_handle_goes_while_a_link_goes() {
    exhaust(&["terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::finished(FINISHED | HANDLE | LINK);
        let link = with(&job, Job::release_link);
        thread::yield_now();
        answers.note(told(job.drop_handle()));
        link.join().unwrap();
        job.check();
    });
}

/// Without a value there is no short way, and the last look is the one that acquires.
#[test]
fn the_last_handle_of_a_cancelled_one_goes_while_a_link_goes() {
    exhaust(&["terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::cancelled(CANCELLED | HANDLE | LINK);
        let link = with(&job, Job::release_link);
        thread::yield_now();
        answers.note(told(job.drop_handle()));
        link.join().unwrap();
        job.check();
    });
}

/// A child asks for its parent while the parent's last handle goes: it gets a link, or it is told that there is nobody; never
/// a link to a header that is being ended.
#[test]
fn the_last_handle_goes_while_a_child_asks_for_its_parent() {
    exhaust(&["asked in time", "too late to ask", "terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::finished_parent(FINISHED | HANDLE);
        let child = with(&job, Job::ask_for_parent);
        thread::yield_now();
        answers.note(told(job.drop_handle()));
        answers.note(if child.join().unwrap() { "asked in time" } else { "too late to ask" });
        job.check();
    });
}

#[test]
fn handles_and_a_link_go_at_the_terminal_state() {
    explore(&["not the last", "terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::finished(FINISHED | (2 * HANDLE) | LINK);
        let link = with(&job, Job::release_link);
        let other = with(&job, |job| {
            job.read();
            job.drop_handle()
        });
        answers.note(told(job.drop_handle()));
        answers.note(told(other.join().unwrap()));
        link.join().unwrap();
        job.check();
    });
}

/// A handle is cloned from another while it ends: the counts stand beside whatever else the word says.
#[test]
fn a_handle_is_cloned_while_it_ends() {
    exhaust(&["running", "terminal, alone"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | LINK);
        let finisher = with(&job, |job| job.execute(true));
        job.touch();
        job.word.add_handle();
        assert_eq!(job.drop_handle(), HandleDrop::NotLast);
        answers.note(told(job.drop_handle()));
        finisher.join().unwrap();
        job.check();
    });
}

/// An untyped handle waits for a new request, and so may run it, while the last handle goes, and so may end it.
#[test]
fn the_last_handle_of_a_new_one_goes_while_it_is_claimed() {
    exhaust(&["unstarted", "running", "terminal, a link left", "terminal, alone"], |answers| {
        let job = Job::new(NEW | HANDLE | LINK);
        let untyped = with(&job, |job| {
            job.wait(&job.waiter(&BLOCKING), true, None);
            job.release_link();
        });
        answers.note(told(job.drop_handle()));
        untyped.join().unwrap();
        job.check();
    });
}

/// Two submit, and one of them pushes. The entry is run, or is stale, and the handles go meanwhile.
#[test]
fn a_new_one_is_submitted_once() {
    exhaust(&["first", "second"], |answers| {
        let submit = |job: &Job| {
            let first = job.submit();
            if first {
                assert!(job.run_entry());
            }
            job.drop_handle();
            first
        };
        let job = Job::new(NEW | (2 * HANDLE));
        let other = with(&job, submit);
        let first = submit(&job);
        assert_ne!(first, other.join().unwrap());
        answers.note(if first { "first" } else { "second" });
        job.check();
    });
}

#[test]
fn a_new_one_is_submitted_and_claimed_by_a_waiter() {
    exhaust(&["submitted and run", "submitted, a stale entry", "too late to submit"], |answers| {
        let job = Job::new(NEW | (2 * HANDLE));
        let waiter = with(&job, |job| {
            job.wait(&job.waiter(&BLOCKING), true, None);
            job.read();
            job.drop_handle();
        });
        answers.note(match job.submit() {
            true if job.run_entry() => "submitted and run",
            true => "submitted, a stale entry",
            false => "too late to submit",
        });
        job.drop_handle();
        waiter.join().unwrap();
        job.check();
    });
}

// ---- the fused take ------------------------------------------------------------------------------------------------

/// Takes what stands in this thread's private queue, and works off the list.
fn take(job: &Job, during: impl FnOnce()) -> Took {
    let listed = Cell::new(true);
    let took = job.take(&job.waiter(&BLOCKING), &listed, during);
    if listed.get() {
        assert!(!job.run_popped(), "taken, and still to run");
    }
    took
}

#[test]
fn a_fused_take_sees_an_untyped_handle_that_only_looks() {
    exhaust(&["alone", "as the only handle"], |answers| {
        let job = Job::new(SPAWNED + LINK);
        let untyped = with(&job, Job::release_link);
        thread::yield_now();
        answers.note(told_take(take(&job, || {})));
        untyped.join().unwrap();
        job.check();
    });
}

#[test]
fn a_fused_take_sees_an_untyped_handle_that_waits() {
    exhaust(&["as the only handle", "over", "ran it", "parked"], |answers| {
        let job = Job::new(SPAWNED + LINK);
        let untyped = untyped_waiter(&job);
        answers.note(told_take(take(&job, || {})));
        answers.note(told_wait(untyped.join().unwrap()));
        job.check();
    });
}

/// The callable gives away a handle to itself, which somebody reads by.
#[test]
fn a_fused_take_that_gives_itself_away_sees_who_looks() {
    exhaust(&["alone", "as the only handle"], |answers| {
        let job = Job::new(SPAWNED);
        let mut untyped = None;
        let took = take(&job, || {
            job.word.add_link();
            untyped = Some(with(&job, Job::release_link));
            thread::yield_now();
        });
        answers.note(told_take(took));
        untyped.unwrap().join().unwrap();
        job.check();
    });
}

/// The same, and somebody waits by it.
#[test]
fn a_fused_take_that_gives_itself_away_wakes_who_waits() {
    exhaust(&["as the only handle", "over", "parked"], |answers| {
        let job = Job::new(SPAWNED);
        let mut untyped = None;
        let took = take(&job, || {
            job.word.add_link();
            untyped = Some(untyped_waiter(&job));
        });
        answers.note(told_take(took));
        answers.note(told_wait(untyped.unwrap().join().unwrap()));
        job.check();
    });
}

// ---- the other plain stores ----------------------------------------------------------------------------------------

/// The worker pops the entry while a handle elsewhere waits.
#[test]
fn a_popped_entry_and_a_handle_that_waits() {
    exhaust(&["popped and run", "a stale entry", "over", "ran it", "parked"], |answers| {
        let job = Job::new(SPAWNED);
        let waiter = with(&job, |job| {
            let how = job.wait(&job.waiter(&BLOCKING), true, None);
            job.read();
            job.drop_handle();
            how
        });
        answers.note(if job.run_popped() { "popped and run" } else { "a stale entry" });
        answers.note(told_wait(waiter.join().unwrap()));
        job.check();
    });
}

/// The worker pops the entry while a handle elsewhere goes: if it went first, nobody is left to be told of the end.
#[test]
fn a_popped_entry_and_a_handle_that_goes() {
    exhaust(&["nobody was told", "running", "terminal, alone"], |answers| {
        let job = Job::new(SPAWNED);
        let handle = with(&job, Job::drop_handle);
        thread::yield_now();
        assert!(job.run_popped());
        let dropped = told(handle.join().unwrap());
        answers.note(if job.ended_alone() { "nobody was told" } else { dropped });
        job.check();
    });
}

/// Nobody knew of it when it was popped, but its callable gives away a handle to itself.
#[test]
fn a_popped_entry_that_gives_itself_away() {
    exhaust(&["nobody was told", "terminal"], |answers| {
        let job = Job::new(SPAWNED_DETACHED);
        let mut untyped = None;
        let ran = job.run_popped_with(|| {
            job.word.add_link();
            untyped = Some(with(&job, Job::release_link));
            thread::yield_now();
        });
        assert!(ran);
        untyped.unwrap().join().unwrap();
        answers.note(if job.ended_alone() { "nobody was told" } else { "terminal" });
        job.check();
    });
}

/// The sole handle goes where the entry is, while an untyped one elsewhere goes too.
#[test]
fn a_sole_handle_that_goes_sees_an_untyped_one() {
    exhaust(&["by a store", "by an exchange"], |answers| {
        let job = Job::new(SPAWNED + LINK);
        let untyped = with(&job, Job::release_link);
        thread::yield_now();
        answers.note(if job.drop_own_handle() { "by a store" } else { "by an exchange" });
        assert!(job.run_popped());
        untyped.join().unwrap();
        job.check();
    });
}

// ---- take at the terminal state ------------------------------------------------------------------------------------

/// The value is moved out while the last link goes, as that of an entry which is stale: the header is ended once, after both.
#[test]
fn a_take_moves_the_value_out_while_a_link_goes() {
    exhaust(&["as the only handle"], |answers| {
        let job = Job::finished(FINISHED | HANDLE | LINK);
        let link = with(&job, Job::release_link);
        thread::yield_now();
        answers.note(told_take(job.take_over()));
        link.join().unwrap();
        job.check();
    });
}

/// A child asks for its parent while the parent's value is taken.
#[test]
fn a_take_moves_the_value_out_while_a_child_asks_for_its_parent() {
    exhaust(&["asked in time", "too late to ask", "as the only handle"], |answers| {
        let job = Job::finished_parent(FINISHED | HANDLE);
        let child = with(&job, Job::ask_for_parent);
        thread::yield_now();
        answers.note(told_take(job.take_over()));
        answers.note(if child.join().unwrap() { "asked in time" } else { "too late to ask" });
        job.check();
    });
}

#[test]
fn a_take_sees_the_reads_of_handles_that_are_gone() {
    exhaust(&["as the only handle", "shared"], |answers| {
        let job = Job::finished(FINISHED | (2 * HANDLE));
        let other = with(&job, |job| {
            job.read();
            job.drop_handle();
        });
        thread::yield_now();
        answers.note(told_take(job.take_over()));
        other.join().unwrap();
        job.check();
    });
}
