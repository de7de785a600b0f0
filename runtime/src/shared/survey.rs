//! What a runtime knows of its surveys: whether one is due, and not before when. `deadlock/cycle/survey.rs` makes them.

use std::sync::TryLockError;
use std::time::Instant;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

/// What a runtime knows of its surveys.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    noted: AtomicBool,
    /// A request has been after another, so ways may lead through what has not started.
    declared: AtomicBool,
    /// Not before. Held during a survey.
    next: Mutex<Option<Instant>>,
}

impl Survey {
    /// Requests a survey. Answers whether none was requested before.
    pub(crate) fn note(&self) -> bool {
        !self.noted.swap(true, Ordering::AcqRel)
    }

    /// Whether a survey is requested.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed)
    }

    /// Takes the request for a survey back. Answers whether there was one. The caller sees each edge whose waiter has requested a survey before.
    pub(crate) fn take_note(&self) -> bool {
        self.noted.swap(false, Ordering::AcqRel)
    }

    /// Begins a survey: the time before which none is made, which the caller sets anew. None if another thread makes one.
    pub(crate) fn try_begin(&self) -> Option<MutexGuard<'_, Option<Instant>>> {
        match self.next.try_lock() {
            Ok(next) => Some(next),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
