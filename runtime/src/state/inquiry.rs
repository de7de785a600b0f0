//! The inquiry: how one thread asks each worker what is on it, and for how long it waits for the answers.
//!
//! Only the worker itself can read its private queue, and only it knows which of its stacks runs. So a dump *asks*: it puts the
//! inquiry into the worker's [box](Asked), raises `MESSAGE` in the worker's attention word, and wakes the worker. The worker *answers*
//! at its next scheduling point.
//!
//! # States of one worker's answer
//!
//! ```text
//!  asked ──▶ begun ──▶ given
//!    │
//!    └─────▶ dropped        the asker has waited long enough
//! ```
//!
//! The worker moves the state to *begun* before it reads anything, and the asker moves it to *dropped*, both under the
//! lock of the inquiry. Either the worker begins its answer in time, and the asker waits until it is complete, however
//! large it is. Or the worker never begins, and the asker reads from outside.
//!
//! # The race
//!
//! The asker puts the inquiry into the box, then raises the bit by an exchange. The worker takes the bit down by an exchange, then looks
//! into the box. Of the two exchanges one is the later: the worker's sees the inquiry, or the asker's leaves the bit up.

use std::mem;
use std::sync::PoisonError;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::mutant;
use forebear_context::shim::{Arc, Mutex, MutexGuard, thread};

use crate::state::attention::{Attention, MESSAGE};

/// How far one worker's answer is.
enum Answer<A> {
    Asked,
    Begun,
    Given(A),
    Dropped,
}

/// A question to several workers.
pub struct Inquiry<A> {
    asker: thread::Thread,
    answers: Mutex<Vec<Answer<A>>>,
}

impl<A> Inquiry<A> {
    /// To so many workers, by the thread that calls.
    pub fn new(workers: usize) -> Arc<Inquiry<A>> {
        let answers = (0..workers).map(|_| Answer::Asked).collect();
        Arc::new(Inquiry { asker: thread::current(), answers: Mutex::new(answers) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Answer<A>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker answers, unless the asker has dropped the question.
    pub fn answer(&self, worker: usize, answer: impl FnOnce() -> A) {
        #[cfg(not(mutant = "answer_without_begin"))]
        {
            let mut answers = self.lock();
            if !matches!(answers[worker], Answer::Asked) {
                return;
            }
            answers[worker] = Answer::Begun;
        }
        let answer = answer();
        self.lock()[worker] = Answer::Given(answer);
        // The asker sleeps with a limit. Loom lets nobody unpark a thread that waits for something else.
        #[cfg(not(loom))]
        self.asker.unpark();
    }

    /// Whether all have answered.
    pub fn is_complete(&self) -> bool {
        self.lock().iter().all(|answer| matches!(answer, Answer::Given(_) | Answer::Dropped))
    }

    /// Time is up: those that have not begun need not. Whether others are still answering.
    pub fn stop(&self) -> bool {
        let mut answers = self.lock();
        for answer in answers.iter_mut().filter(|answer| matches!(answer, Answer::Asked)) {
            *answer = Answer::Dropped;
        }
        answers.iter().any(|answer| matches!(answer, Answer::Begun))
    }

    /// The worker's answer, once. `None`: it was dropped.
    pub fn take(&self, worker: usize) -> Option<A> {
        match mem::replace(&mut self.lock()[worker], Answer::Dropped) {
            Answer::Given(answer) => Some(answer),
            _ => None,
        }
    }
}

impl<A> std::fmt::Debug for Inquiry<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inquiry").finish_non_exhaustive()
    }
}

/// Where the questions to one worker lie.
pub struct Asked<A> {
    /// Whether there are any: a look without the lock.
    any: AtomicBool,
    inquiries: Mutex<Vec<Arc<Inquiry<A>>>>,
}

impl<A> Default for Asked<A> {
    fn default() -> Asked<A> {
        Asked { any: AtomicBool::new(false), inquiries: Mutex::new(Vec::new()) }
    }
}

impl<A> Asked<A> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Inquiry<A>>>> {
        self.inquiries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker whose attention word this is. The caller wakes it afterwards.
    pub fn ask(&self, inquiry: &Arc<Inquiry<A>>, attention: &Attention) {
        mutant!("asked_after_the_message", attention.insist(MESSAGE));
        let mut inquiries = self.lock();
        inquiries.push(inquiry.clone());
        self.any.store(true, Ordering::Release);
        drop(inquiries);
        mutant!("asked_after_the_message", (), attention.insist(MESSAGE));
    }

    /// Whether there are questions. By the worker, after it has taken the bit down.
    #[inline(always)]
    pub fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the questions. By the worker, after it has taken the bit down.
    #[inline]
    pub fn take(&self) -> Vec<Arc<Inquiry<A>>> {
        if !self.are_any() {
            return Vec::new();
        }
        let mut inquiries = self.lock();
        self.any.store(false, Ordering::Relaxed);
        mem::take(&mut *inquiries)
    }

    /// Takes one back that may not have been answered.
    pub fn withdraw(&self, inquiry: &Arc<Inquiry<A>>) {
        self.lock().retain(|asked| !Arc::ptr_eq(asked, inquiry));
    }
}

impl<A> std::fmt::Debug for Asked<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}
