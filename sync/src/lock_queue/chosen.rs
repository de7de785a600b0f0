//! Waiters that were chosen from a queue and are not woken yet. The head of [`super`] has the invariants.

use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::ready;

use super::Place;

/// A waiter that was chosen, to be woken once.
#[must_use = "it waits until it is woken"]
pub struct Chosen<T = ()> {
    place: NonNull<Place<T>>,
}

impl<T> Chosen<T> {
    /// The place's context has just been chosen (L3).
    pub(super) fn new(place: NonNull<Place<T>>) -> Chosen<T> {
        Chosen { place }
    }

    /// Its place, until it is woken (L3).
    #[must_use]
    pub fn place(&self) -> &Place<T> {
        // SAFETY: L3.
        unsafe { self.place.as_ref() }
    }

    /// Wakes it. What this thread did before is visible to the waiter.
    pub fn wake(self) {
        let (context, ticket) = (self.place().context, self.place().ticket.get());
        // SAFETY: chosen, and this takes `self`.
        unsafe { ready(context, ticket) };
    }
}

impl<T> fmt::Debug for Chosen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chosen").field(self.place()).finish()
    }
}

/// Several chosen waiters, in order, to be woken after all locks are released. No allocation: they are linked by
/// their places.
#[must_use = "they wait until they are woken"]
pub struct ChosenList<T = ()> {
    first: Option<NonNull<Place<T>>>,
    last: Option<NonNull<Place<T>>>,
}

impl<T> ChosenList<T> {
    /// An empty list.
    pub const fn new() -> ChosenList<T> {
        ChosenList { first: None, last: None }
    }

    /// Appends a waiter.
    pub fn push(&mut self, chosen: Chosen<T>) {
        let this = Some(chosen.place);
        chosen.place().links.next().set(None);
        match self.last {
            // SAFETY: L3.
            Some(last) => unsafe { last.as_ref() }.links.next().set(this),
            None => self.first = this,
        }
        self.last = this;
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Wakes all of them, in order. Returns how many.
    pub fn wake(mut self) -> usize {
        let mut woken = 0;
        while let Some(place) = self.first {
            // SAFETY: L3: read before it is woken.
            self.first = unsafe { place.as_ref() }.links.next().get();
            Chosen { place }.wake();
            woken += 1;
        }
        woken
    }
}

impl<T> Default for ChosenList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for ChosenList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenList").field("is_empty", &self.is_empty()).finish()
    }
}
