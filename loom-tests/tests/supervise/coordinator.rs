//! The board of a `Coordinator`: stops, ends, errors and joins that meet.
//!
//! Shipped: `supervise/src/coordinator/board.rs` and `waiting.rs`, compiled here as they are, with loom's names behind `crate::shim`; below them `Event`. Where a worker asked
//! last (an `AtomicCell` of another crate) is not modelled: it orders nothing.
#![cfg(loom)]

// What the shipped files import from `forebear`.
extern crate self as forebear;

pub use forebear_runtime::{Cancelled, Failure, TimeoutError};

/// A member that is a request has one, for reports. Here none is.
#[derive(Clone, Debug)]
pub enum AnyRequest {}

impl AnyRequest {
    /// As there. The models have none.
    pub fn id(&self) -> u64 {
        match *self {}
    }
}

/// As in `forebear`.
pub mod sync {
    pub use forebear_sync::Event;
}

mod shim {
    pub(crate) use forebear_context::shim::{Mutex, MutexGuard, atomic};
}

#[path = "../../../supervise/src/coordinator/board.rs"]
#[allow(dead_code, reason = "a part of it is called here")]
mod board;
#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;
#[path = "../../../supervise/src/coordinator/stop.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is public where it is shipped")]
mod stop;
#[path = "../../../supervise/src/coordinator/waiting.rs"]
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use forebear_context::shim::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_runtime::Error;

use self::board::{Board, Reported, Rules};
use self::cell::{exhaust, explore};
use self::party::Party;
use self::stop::Stop;

/// Does `f` as another thread.
fn other<R: 'static>(board: &Arc<Board>, f: impl FnOnce(&Board) -> R + 'static) -> JoinHandle<R> {
    let board = board.clone();
    thread::spawn(move || Party::new(0).on(|| f(&board)))
}

fn on<R>(f: impl FnOnce() -> R) -> R {
    Party::new(0).on(f)
}

fn board() -> Arc<Board> {
    Arc::new(Board::new())
}

fn report(board: &Board, name: &str) -> Reported {
    let failure = Failure::from_error(Error::other("broken"), name.to_owned(), None);
    board.report(failure, false, false, Rules { late_errors_count: false }).0
}

/// Does a join miss the end of its last member?
#[test]
fn the_last_member_ends_while_a_join_falls_asleep() {
    exhaust(&[], |_| {
        let board = board();
        let slot = board.enlist("member".into());
        let ends = other(&board, move |board| board.end(slot.id));
        on(|| {
            let join = board.begin_join();
            board.wait_for(&join, Duration::MAX).unwrap();
            assert_eq!(board.look(&join).left, 0);
            board.end_join(&join, true);
        });
        ends.join().unwrap();
        assert!(board.names().is_empty() && board.joins() == 0);
    });
}

/// Does the last of two ends wake each of the joins that wait for it?
#[test]
fn two_members_end_at_once_and_the_join_hears_of_the_last() {
    explore(&[], |_| {
        let board = board();
        let [one, two] = ["one", "two"].map(|name| board.enlist(name.into()).id);
        let joins = other(&board, |board| {
            let join = board.begin_join();
            board.wait_for(&join, Duration::MAX).unwrap();
            assert_eq!(board.look(&join).left, 0);
        });
        let ends = other(&board, move |board| board.end(one));
        on(|| board.end(two));
        ends.join().unwrap();
        joins.join().unwrap();
    });
}

/// Does a join that waits without limit hear of a stop, from which its grace counts?
#[test]
fn a_stop_comes_while_a_join_falls_asleep() {
    exhaust(&[], |_| {
        let board = board();
        board.enlist("straggler".into());
        let stops = other(&board, |board| assert!(board.request_stop().is_some()));
        on(|| {
            let join = board.begin_join();
            board.wait_for(&join, Duration::ZERO).unwrap();
            let look = board.look(&join);
            assert!(look.left == 1 && look.stop.is_some());
        });
        stops.join().unwrap();
    });
}

/// Is a thread that was woken by the stop answered that there is one?
#[test]
fn who_is_woken_by_the_stop_finds_it() {
    exhaust(&[], |_| {
        let board = board();
        let stops = other(&board, |board| _ = board.request_stop());
        on(|| {
            board.stopped.wait().unwrap();
            assert!(board.should_stop());
        });
        stops.join().unwrap();
    });
}

struct Counted(Arc<AtomicU32>);

impl Stop for Counted {
    fn stop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Is a member that registers during a stop stopped, and once?
#[test]
fn a_stop_reaches_a_member_that_is_being_registered() {
    exhaust(&["by the stop", "by itself"], |answers| {
        let (board, stops) = (board(), Arc::new(AtomicU32::new(0)));
        let stopped = other(&board, |board| {
            let Some(epoch) = board.request_stop() else { panic!("nobody else stops") };
            let mut reached = 0;
            for (slot, mut stopper) in board.reach(epoch) {
                stopper.stop();
                board.give_back(slot.id, stopper);
                reached += 1;
            }
            reached
        });
        on(|| {
            let slot = board.enlist("member".into());
            if let Some(mut stopper) = board.attach(slot.id, Box::new(Counted(stops.clone())), None) {
                stopper.stop();
                board.give_back(slot.id, stopper);
                answers.note("by itself");
            }
        });
        if stopped.join().unwrap() == 1 {
            answers.note("by the stop");
        }
        assert_eq!(stops.load(Relaxed), 1);
    });
}

/// Is exactly one of two errors the first, and the other kept beside it?
#[test]
fn of_two_errors_at_once_one_decides_and_the_other_is_kept() {
    exhaust(&["one", "two"], |answers| {
        let board = board();
        let reports = other(&board, |board| assert!(matches!(report(board, "one"), Reported::Taken)));
        on(|| assert!(matches!(report(&board, "two"), Reported::Taken)));
        reports.join().unwrap();
        let join = board.begin_join();
        let (first, also) = board.end_join(&join, true).unwrap();
        assert_eq!(also.len(), 1, "both are known");
        answers.note(if first.request() == "one" { "one" } else { "two" });
    });
}

/// Is an error either in the answer of the join, or handed back to the thread that reports it?
#[test]
fn an_error_meets_the_answer_of_a_join() {
    exhaust(&["answered", "handed back"], |answers| {
        let board = board();
        let reports = other(&board, |board| matches!(report(board, "late"), Reported::AfterJoin(_)));
        let answered = on(|| {
            let join = board.begin_join();
            board.wait_for(&join, Duration::MAX).unwrap();
            board.end_join(&join, true).is_some()
        });
        let handed_back = reports.join().unwrap();
        assert!(answered != handed_back, "it is heard of once");
        answers.note(if answered { "answered" } else { "handed back" });
    });
}

/// Of a stop and a clear, does the later one decide both what a look and what a wait answers?
#[test]
fn a_clear_meets_a_stop() {
    exhaust(&["stopped", "cleared"], |answers| {
        let board = board();
        let clears = other(&board, Board::clear);
        on(|| assert!(board.request_stop().is_some()));
        clears.join().unwrap();
        let stopped = board.should_stop();
        if stopped {
            on(|| board.stopped.wait()).unwrap();
        }
        answers.note(if stopped { "stopped" } else { "cleared" });
    });
}

/// Does a clear take an error and its stop back together, or neither?
#[test]
fn a_clear_meets_an_error() {
    exhaust(&["reported", "cleared"], |answers| {
        let board = board();
        let reports = other(&board, |board| assert!(matches!(report(board, "broken"), Reported::Taken)));
        on(|| board.clear());
        reports.join().unwrap();
        let (stopped, failed) = (board.should_stop(), board.failure().is_some());
        assert_eq!(stopped, failed, "a stop without its error, or an error without its stop");
        answers.note(if failed { "reported" } else { "cleared" });
    });
}

/// Does a stop that comes beside the start of the next session stop that session?
#[test]
fn a_stop_meets_the_start_of_the_next_session() {
    explore(&[], |_| {
        let board = board();
        on(|| {
            assert!(board.request_stop().is_some());
            let join = board.begin_join();
            assert!(board.end_join(&join, true).is_none());
        });
        let stops = other(&board, |board| _ = board.request_stop());
        on(|| _ = board.renew());
        stops.join().unwrap();
        assert!(board.should_stop(), "it was asked for after the join had answered");
        on(|| board.stopped.wait()).unwrap();
    });
}

/// Is an error that comes after a join either handed back, or the answer of the join after the clear?
#[test]
fn an_error_between_two_joins_is_handed_back_or_kept_for_the_next() {
    exhaust(&["handed back", "answered"], |answers| {
        let board = board();
        on(|| {
            let join = board.begin_join();
            assert!(board.end_join(&join, true).is_none());
        });
        let reports = other(&board, |board| matches!(report(board, "late"), Reported::AfterJoin(_)));
        let answered = on(|| {
            board.clear();
            let join = board.begin_join();
            board.wait_for(&join, Duration::MAX).unwrap();
            board.end_join(&join, true).is_some()
        });
        let handed_back = reports.join().unwrap();
        assert!(answered != handed_back, "it is heard of once");
        answers.note(if answered { "answered" } else { "handed back" });
    });
}

/// Does the delayed cancel of a stop reach a member after that stop was cleared, while the next one stands?
#[test]
fn a_stop_that_was_cleared_reaches_nobody_in_the_next() {
    exhaust(&["reached", "late"], |answers| {
        let (board, cleared) = (board(), Arc::new(AtomicBool::new(false)));
        let slot = board.enlist("member".into());
        let attached = board.attach(slot.id, Box::new(Counted(Arc::new(AtomicU32::new(0)))), None);
        assert!(attached.is_none(), "there is no stop yet");
        let Some(first) = board.request_stop() else { panic!("it is the first") };
        let is_cleared = cleared.clone();
        let cancels = other(&board, move |board| {
            let late = is_cleared.load(Relaxed);
            let reached = board.reach(first).len();
            assert!(!late || reached == 0, "the next stop has a delay of its own");
            reached
        });
        on(|| {
            board.clear();
            cleared.store(true, Relaxed);
            assert!(board.request_stop().is_some());
        });
        answers.note(if cancels.join().unwrap() == 1 { "reached" } else { "late" });
    });
}

/// Does a join go on waiting when its stop is cleared, and hear of the end?
#[test]
fn a_stop_is_cleared_while_a_join_waits() {
    explore(&[], |_| {
        let board = board();
        let slot = board.enlist("member".into());
        assert!(board.request_stop().is_some());
        let joins = other(&board, |board| {
            let join = board.begin_join();
            board.wait_for(&join, Duration::MAX).unwrap();
            assert_eq!(board.look(&join).left, 0);
        });
        on(|| {
            board.clear();
            board.end(slot.id);
        });
        joins.join().unwrap();
    });
}
