//! A future's registration against the end of its request, and against a cancel: the listener as it ships, in the list of a request's word.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a poll that puts its waker in place, whatever has happened | the task is told to wait, and nobody wakes it | `waker_renewed_past_the_end` |
//! | an owner that unlinks its node and keeps the list's count | the listener stays for ever | `delisted_keeps_the_count` |
//! | an owner that leaves its node to the finisher, and gives its handle up at once | the finisher reads the list in a header that has gone | `listener_owner_goes_first` |
//! | a finisher that wakes the listeners of its list and forgets one | its task is never woken | `last_listener_forgotten` |
//! | a finisher that notifies all listeners in their order of arrival | a waker waits for what the notice behind it wakes | `wakers_in_their_turn` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::null;
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};

use forebear_context::shim::Arc;
use forebear_runtime::model::listener::{Listener, Notice, Wakes};
use forebear_runtime::model::word::{CLAIMED, HANDLE, LINK, SUBMITTED};

use self::cell::{Job, exhaust, told, with};

/// A task, which counts how often it is woken. Not seen by loom: it orders nothing.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: StdArc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Task {
    fn new() -> StdArc<Task> {
        StdArc::default()
    }

    fn waker(self: &StdArc<Task>) -> Waker {
        Waker::from(StdArc::clone(self))
    }

    fn woken(&self) -> usize {
        self.0.load(Relaxed)
    }
}

fn running() -> StdArc<Job> {
    Job::new(CLAIMED | SUBMITTED | HANDLE | LINK)
}

/// The first poll comes while the request ends: it is told that it is over, or woken.
#[test]
fn a_future_that_registers_at_the_end_is_told_or_woken() {
    exhaust(&["told", "woken"], |answers| {
        let (job, task) = (running(), Task::new());
        let finisher = with(&job, |job| job.execute(true));
        let listener = Listener::new(Wakes::by(task.waker()), 0, null());
        let listed = job.enlist(&listener);
        finisher.join().unwrap();
        assert_eq!(task.woken(), usize::from(listed), "a task that waits for nothing");
        answers.note(if listed { "woken" } else { "told" });
        drop(listener);
        assert_eq!(StdArc::strong_count(&task), 1, "a waker that is kept");
        job.drop_handle();
        job.check();
    });
}

/// A later poll, by another task, comes while the request ends: that task is woken, or told.
#[test]
fn a_waker_that_is_renewed_at_the_end_is_woken_or_told() {
    exhaust(&["told", "woken"], |answers| {
        let (job, first, last) = (running(), Task::new(), Task::new());
        let listener = Listener::new(Wakes::by(first.waker()), 0, null());
        assert!(job.enlist(&listener));
        let finisher = with(&job, |job| job.execute(true));
        let pending = listener.notice().renew(&last.waker());
        finisher.join().unwrap();
        assert_eq!(last.woken(), usize::from(pending), "a task that waits for nothing");
        assert_eq!(first.woken() + last.woken(), 1);
        answers.note(if pending { "woken" } else { "told" });
        drop(listener);
        assert_eq!(
            (StdArc::strong_count(&first), StdArc::strong_count(&last)),
            (1, 1),
            "a waker that is kept"
        );
        job.drop_handle();
        job.check();
    });
}

/// The future is dropped while the request ends: either takes the node out, and its memory goes (loom counts).
#[test]
fn a_future_that_is_dropped_at_the_end_leaves_nothing() {
    exhaust(&["withdrawn", "left to the finisher"], |answers| {
        let (job, task) = (running(), Task::new());
        let listener = Listener::new(Wakes::by(task.waker()), 0, null());
        assert!(job.enlist(&listener));
        let finisher = with(&job, |job| job.execute(true));
        let left = job.delist(&listener);
        listener.notice().retire();
        drop(listener);
        finisher.join().unwrap();
        assert!(task.woken() <= usize::from(left.is_none()));
        assert_eq!(StdArc::strong_count(&task), 1, "a waker that is kept");
        answers.note(if left.is_some() { "withdrawn" } else { "left to the finisher" });
        job.drop_handle();
        job.check();
    });
}

/// The future is dropped while the request ends, and then the last handle: the header goes, and the finisher touches it no more.
#[test]
fn a_future_and_the_last_handle_are_dropped_at_the_end() {
    exhaust(&["withdrawn", "left to the finisher"], |answers| {
        let job = running();
        let listener = Listener::new(Wakes::by(Waker::noop().clone()), 0, null());
        assert!(job.enlist(&listener));
        let finisher = with(&job, |job| job.execute(true));
        let left = job.delist(&listener);
        drop(listener);
        job.drop_handle();
        finisher.join().unwrap();
        answers.note(if left.is_some() { "withdrawn" } else { "left to the finisher" });
        job.check();
    });
}

/// The only future goes while somebody cancels the request: whoever comes second marks it.
#[test]
fn the_last_future_goes_while_its_request_is_cancelled() {
    exhaust(&["marked", "vetoed", "left", "left, marked it"], |answers| {
        let job = Job::new(CLAIMED | SUBMITTED | HANDLE | (2 * LINK));
        let listener = Listener::new(Wakes::by(Waker::noop().clone()), 0, null());
        assert!(job.enlist(&listener));
        let canceller = with(&job, Job::cancel_and_go);
        let left = job.delist(&listener).expect("nobody has ended it");
        answers.note(cell::told_left(cell::Left::Unlinked(left)));
        answers.note(told(canceller.join().unwrap()));
        assert!(job.was_marked(), "a cancel that was vetoed, and forgotten");
        drop(listener);
        job.execute(true);
        job.drop_handle();
        job.check();
    });
}

/// Two futures and the end: both are woken, each once.
#[test]
fn the_end_wakes_every_future() {
    exhaust(&["both"], |answers| {
        let (job, tasks) = (running(), [Task::new(), Task::new()]);
        let listeners: Vec<Arc<_>> =
            tasks.iter().map(|task| Listener::new(Wakes::by(task.waker()), 0, null())).collect();
        assert!(listeners.iter().all(|listener| job.enlist(listener)));
        let finisher = with(&job, |job| job.execute(true));
        finisher.join().unwrap();
        assert!(tasks.iter().all(|task| task.woken() == 1), "a task that is not woken");
        answers.note("both");
        drop(listeners);
        job.drop_handle();
        job.check();
    });
}

/// As the member of a set: it wakes a context, and calls no user code.
struct Silent(StdArc<AtomicBool>);

impl Notice for Silent {
    const CALLS_USER_CODE: bool = false;

    fn over(&self, _: u64) {
        self.0.store(true, Relaxed);
    }
}

/// A task whose waker would wait for what the silent notice wakes. Whether it had to.
struct Waits {
    notified: StdArc<AtomicBool>,
    late: AtomicBool,
}

impl Wake for Waits {
    fn wake(self: StdArc<Self>) {
        self.late.store(!self.notified.load(Relaxed), Relaxed);
    }
}

/// A future, a member of a set and another future, in this order, and the end.
#[test]
fn who_calls_no_user_code_is_notified_before_every_waker() {
    exhaust(&["both"], |answers| {
        let (job, notified) = (running(), StdArc::<AtomicBool>::default());
        let tasks = [(); 2].map(|()| {
            let task = Waits { notified: notified.clone(), late: AtomicBool::new(true) };
            StdArc::new(task)
        });
        let futures = tasks
            .each_ref()
            .map(|task| Listener::new(Wakes::by(Waker::from(StdArc::clone(task))), 0, null()));
        let member = Listener::new(Silent(notified.clone()), 0, null());
        assert!(job.enlist(&futures[0]) && job.enlist(&member) && job.enlist(&futures[1]));
        with(&job, |job| job.execute(true)).join().unwrap();
        assert!(notified.load(Relaxed), "a member that is not notified");
        assert!(tasks.iter().all(|task| !task.late.load(Relaxed)), "a waker that was called too early");
        answers.note("both");
        drop((futures, member));
        job.drop_handle();
        job.check();
    });
}
