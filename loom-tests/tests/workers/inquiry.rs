//! How a dump asks the workers: `Inquiry` and `Asked`, as they ship, with the attention word.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | the bit is raised before the question is there | the worker takes the bit down, finds nothing, and never looks again | `asked_after_the_message` |
//! | a worker does not say that it begins | it answers a question that was dropped, after the asker has looked from outside | `answer_without_begin` |
#![cfg(loom)]

use forebear_context::shim::atomic::{AtomicUsize, Ordering::Relaxed};
use forebear_context::shim::{Arc, thread};
use forebear_loom_tests::exhaust;
use forebear_runtime::model::attention::{Attention, MESSAGE};
use forebear_runtime::model::inquiry::{Asked, Inquiry};

#[derive(Default)]
struct Worker {
    attention: Attention,
    asked: Asked<usize>,
}

impl Worker {
    /// As `attend_messages`.
    fn scheduling_point(&self) {
        if self.attention.get() & MESSAGE != 0 {
            self.attention.clear(MESSAGE);
            for inquiry in self.asked.take() {
                inquiry.answer(0, || 7);
            }
        }
    }
}

/// Is a question answered at the worker's scheduling point, or at its next one?
#[test]
fn a_question_is_answered_or_its_message_stays_up() {
    exhaust(&["answered", "next time"], |answers| {
        let worker = Arc::new(Worker::default());
        // Something else has raised the bit.
        worker.attention.raise(MESSAGE);
        let inquiry = Inquiry::new(1);
        let thread = {
            let worker = worker.clone();
            thread::spawn(move || worker.scheduling_point())
        };
        worker.asked.ask(&inquiry, &worker.attention);
        thread.join().unwrap();
        if inquiry.is_complete() {
            assert_eq!(inquiry.take(0), Some(7));
            answers.note("answered");
        } else {
            worker.scheduling_point();
            assert!(inquiry.is_complete(), "nobody will look for it again");
            answers.note("next time");
        }
    });
}

/// Does a worker leave a question alone that the asker has dropped?
#[test]
fn what_was_dropped_is_not_answered() {
    exhaust(&["dropped", "begun", "given"], |answers| {
        let (inquiry, answered) = (Inquiry::new(1), Arc::new(AtomicUsize::new(0)));
        let thread = {
            let (inquiry, answered) = (inquiry.clone(), answered.clone());
            thread::spawn(move || {
                inquiry.answer(0, || {
                    answered.fetch_add(1, Relaxed);
                    7
                });
            })
        };
        let begun = inquiry.stop();
        let taken = if begun { None } else { inquiry.take(0) };
        thread.join().unwrap();
        let looks = answered.load(Relaxed);
        if begun {
            assert_eq!(inquiry.take(0), Some(7), "what was begun is given");
            answers.note("begun");
        } else if taken.is_some() {
            assert_eq!(looks, 1);
            answers.note("given");
        } else {
            assert_eq!(looks, 0, "the worker looked at what is its own, for nobody");
            answers.note("dropped");
        }
    });
}
