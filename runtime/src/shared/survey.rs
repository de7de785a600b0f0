//! What a runtime knows of its surveys: whether one is due, and not before when. `deadlock/cycle/survey.rs` makes them.

use std::time::Instant;

use forebear_context::shim::Mutex;
use forebear_context::shim::atomic::{AtomicBool, Ordering};

/// What a runtime knows of its surveys.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub noted: AtomicBool,
    /// A request has been after another, so ways may lead through what has not started.
    declared: AtomicBool,
    /// Not before. Held during a survey.
    pub next: Mutex<Option<Instant>>,
}

impl Survey {
    /// Leaves word. Answers whether that is new.
    pub(crate) fn note(&self) -> bool {
        !self.noted.swap(true, Ordering::AcqRel)
    }

    /// A request is after others.
    pub(crate) fn note_declared(&self) {
        if !self.has_declared() {
            self.declared.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any has been.
    pub(crate) fn has_declared(&self) -> bool {
        self.declared.load(Ordering::Relaxed)
    }
}
