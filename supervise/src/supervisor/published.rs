//! [`Published`]: the newest of something that one thread finds out, for others that wait for a change of it.
//!
//! One thread or request waits at a time: a look of another one would reset the event for both.
//!
//! # The race
//!
//! A change against a waiter that falls asleep. The finder stores the value, then sets the event. A waiter resets the event, then takes the value, then waits: what is stored after
//! it has taken the value sets the event again.

use std::sync::PoisonError;

use forebear::sync::Event;

use crate::shim::Mutex;

/// See the module head.
pub(super) struct Published<T> {
    changed: Event,
    newest: Mutex<T>,
}

impl<T: Clone> Published<T> {
    pub(super) fn new(first: T) -> Published<T> {
        Published { changed: Event::new(), newest: Mutex::new(first) }
    }

    /// Stores what was found, and wakes the threads and requests that wait for a change.
    pub(super) fn publish(&self, found: T) {
        #[cfg(mutant = "published_after_the_event")]
        self.changed.set();
        let before =
            std::mem::replace(&mut *self.newest.lock().unwrap_or_else(PoisonError::into_inner), found);
        #[cfg(not(mutant = "published_after_the_event"))]
        self.changed.set();
        drop(before);
    }

    /// The newest. From here on a change ends the next wait for [`changed`](Self::changed).
    pub(super) fn take(&self) -> T {
        #[cfg(not(mutant = "published_taken_before_the_reset"))]
        self.changed.reset();
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        #[cfg(mutant = "published_taken_before_the_reset")]
        self.changed.reset();
        newest
    }

    /// Set by each change, and by other code that is to wake the threads that wait.
    pub(super) fn changed(&self) -> &Event {
        &self.changed
    }
}
