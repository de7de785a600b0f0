//! A request's deadline comes while the request ends.
//!
//! Shipped: the due record and the word. The container of deadlines is here a mutex around the one entry, which owns a link.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::time::Instant;

use forebear_context::shim::{Arc, Mutex, thread};
use forebear_loom_tests::explore;
use forebear_runtime::model::due::Due;
use forebear_runtime::model::word::{CALLBACKS, CANCELLED, CLAIMED, Cancel, FINISHED, LINK, MARKED, Word};

use self::cell::exhaust;

const ENTRY: u64 = 7;

struct Limited {
    word: Word,
    due: Due,
    container: Mutex<Option<u64>>,
}

impl Limited {
    /// One that runs; its runner and its deadline's entry have a link each, and so has `more`.
    fn running(more: u64) -> Arc<Limited> {
        Limited::running_with(CALLBACKS, more)
    }

    /// The same with those bits.
    fn running_with(bits: u64, more: u64) -> Arc<Limited> {
        let due = Due::new(Instant::now());
        due.armed(ENTRY);
        let word = Word::new(CLAIMED | bits | (LINK * (2 + more)));
        Arc::new(Limited { word, due, container: Mutex::new(Some(ENTRY)) })
    }

    /// Its time is there. What came of it, if the entry was still there, and whether nobody knows the request any more.
    fn time_comes(&self) -> (Option<Cancel>, bool) {
        let entry = self.container.lock().unwrap().take();
        let came = entry.map(|_| self.due.fire(&self.word, || ()));
        (came, came.is_some() && self.word.release_link())
    }

    fn take_back(&self, entry: u64) -> bool {
        self.container.lock().unwrap().take_if(|there| *there == entry).is_some()
    }

    /// Its callable has returned: the end, as its runner goes through it. Whether nobody knows it any more.
    fn end(&self, has_family: bool) -> bool {
        self.word.add_link();
        let marked = self.word.complete(|| ()).has(MARKED);
        self.due.ends(has_family);
        self.word.finish(true, |_| if marked { CANCELLED } else { FINISHED });
        if self.due.ended(has_family, |entry| self.take_back(entry)) {
            self.word.release_link();
        }
        self.word.release_link()
    }

    /// The same of one without callbacks.
    fn end_uncalled(&self, has_family: bool) -> bool {
        self.word.add_link();
        self.due.ends(has_family);
        self.word.finish(true, |bits| if bits.has(MARKED) { CANCELLED } else { FINISHED });
        if self.due.ended(has_family, |entry| self.take_back(entry)) {
            self.word.release_link();
        }
        self.word.release_link()
    }

    /// The same on the worker that keeps the entry, as `finish_in_time` goes through it. Whether the entry was armed anew, and whether nobody knows the
    /// request any more.
    fn end_in_time(&self) -> (bool, bool) {
        let mut forgotten = None;
        let mut anew = false;
        let finish = || {
            let ended = self.word.try_finish(true, |bits| (!bits.has(MARKED)).then_some(FINISHED));
            forgotten = ended.ok().map(|(_, after)| after.is_forgotten());
            forgotten.is_some()
        };
        let arm = || {
            anew = true;
            *self.container.lock().unwrap() = Some(ENTRY);
            self.due.armed(ENTRY);
        };
        Due::ends_in_time(&self.word, true, || self.take_back(self.due.alarm()), finish, arm);
        (anew, forgotten.unwrap_or_else(|| self.end_uncalled(false)))
    }

    /// The last of its family has gone.
    fn family_ends(&self) -> bool {
        if self.due.family_ends(|entry| self.take_back(entry)) {
            self.word.release_link();
        }
        self.word.release_link()
    }
}

/// It aborts the request, or finds it over, or nothing at all; and of those who have a link one is the last.
#[test]
fn a_deadline_comes_at_the_end() {
    exhaust(&["cancelled", "late", "taken back"], |answers| {
        let request = Limited::running(0);
        let timer = {
            let request = request.clone();
            thread::spawn(move || request.time_comes())
        };
        let last = request.end(false);
        let (came, its_last) = timer.join().unwrap();
        assert!(last != its_last && request.word.load().is_forgotten(), "one of them is the last");
        let cancelled = request.word.load().life() == CANCELLED;
        answers.note(match came {
            Some(Cancel::Marked) => {
                assert!(cancelled && !request.due.is_kept());
                "cancelled"
            }
            Some(Cancel::TooLate) => {
                assert!(!cancelled && request.due.came_late());
                "late"
            }
            None => {
                assert!(!cancelled && !request.due.is_kept());
                "taken back"
            }
            other => panic!("{other:?}"),
        });
    });
}

/// Whoever finds the request over finds that its deadline is kept: what asks its way up once past it would never come back.
#[test]
fn a_question_that_comes_to_the_end_of_one_that_leaves_a_family_does_not_go_past_it() {
    exhaust(&["runs", "kept"], |answers| {
        let request = Limited::running(1);
        let child = {
            let request = request.clone();
            thread::spawn(move || {
                let over = request.word.load().is_terminal();
                (over, request.due.is_kept())
            })
        };
        assert!(!request.end(true), "the family has a link, and so has the entry");
        let (over, kept) = child.join().unwrap();
        assert!(kept || !over, "it was passed");
        answers.note(if over { "kept" } else { "runs" });
        assert!(request.family_ends(), "the family was the last");
    });
}

/// The last of the family goes as the deadline comes to ask it.
#[test]
fn a_deadline_that_is_kept_comes_as_the_last_of_the_family_goes() {
    exhaust(&["late", "taken back"], |answers| {
        let request = Limited::running(1);
        assert!(!request.end(true));
        let timer = {
            let request = request.clone();
            thread::spawn(move || request.time_comes())
        };
        let last = request.family_ends();
        let (came, its_last) = timer.join().unwrap();
        assert!(last != its_last && request.word.load().is_forgotten(), "one of them is the last");
        answers.note(match came {
            Some(Cancel::TooLate) => "late",
            None => "taken back",
            other => panic!("{other:?}"),
        });
    });
}

/// The same where nobody is called back.
#[test]
fn a_deadline_comes_at_the_end_of_one_without_callbacks() {
    exhaust(&["cancelled", "late", "taken back"], |answers| {
        let request = Limited::running_with(0, 0);
        let timer = {
            let request = request.clone();
            thread::spawn(move || request.time_comes())
        };
        let last = request.end_uncalled(false);
        let (came, its_last) = timer.join().unwrap();
        assert!(last != its_last && request.word.load().is_forgotten(), "one of them is the last");
        let cancelled = request.word.load().life() == CANCELLED;
        assert_eq!(cancelled, came == Some(Cancel::Marked));
        answers.note(match came {
            Some(Cancel::Marked) => "cancelled",
            Some(Cancel::TooLate) => "late",
            None => "taken back",
            other => panic!("{other:?}"),
        });
    });
}

/// Its own worker takes the entry back before the end, as its time comes and another thread aborts it.
#[test]
fn a_deadline_that_is_taken_back_before_the_end_leaves_no_count_behind() {
    explore(&["cancelled", "armed anew", "in time"], |answers| {
        let request = Limited::running_with(0, 1);
        let timer = {
            let request = request.clone();
            thread::spawn(move || request.time_comes())
        };
        let canceller = {
            let request = request.clone();
            thread::spawn(move || (request.word.abort(|| ()), request.word.release_link()))
        };
        let (anew, last) = request.end_in_time();
        let (came, timers_last) = timer.join().unwrap();
        let (aborted, cancellers_last) = canceller.join().unwrap();
        assert_eq!(1, u8::from(last) + u8::from(timers_last) + u8::from(cancellers_last), "one is the last");
        assert!(request.word.load().is_forgotten());
        let marked = aborted == Cancel::Marked || came == Some(Cancel::Marked);
        assert_eq!(request.word.load().life() == CANCELLED, marked);
        answers.note(match (anew, marked) {
            (true, _) => "armed anew",
            (false, true) => "cancelled",
            (false, false) => "in time",
        });
    });
}
