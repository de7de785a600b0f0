//! A waiter's place in a queue. The head of [`super`] has the invariants.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::{Context, Ticket};
use forebear_context::lineage::{LEAST_KEY, Priority, next_root, root_key};

use crate::heap::{Linked, Links};

/// One waiter's place in a [`LockQueue`](super::LockQueue), with what the queue's owner wants to know of it.
pub struct Place<T = ()> {
    pub(super) links: Links<Place<T>>,
    /// In which of the heaps it stands.
    pub(super) stands: Cell<Option<bool>>,
    pub(super) context: NonNull<Context>,
    pub(super) ticket: Cell<Ticket>,
    /// What the waiter wants, and what it was given.
    pub value: T,
}

impl<T> Linked for Place<T> {
    fn links(&self) -> &Links<Place<T>> {
        &self.links
    }
}

impl<T> Place<T> {
    /// A place for a wait of `context` that it has begun under `ticket`. A context of no urgency, a thread's, draws the number that a
    /// root would have that was made now.
    ///
    /// # Safety
    ///
    /// L4, for as long as anything of the place is called.
    pub unsafe fn new(context: &Context, ticket: Ticket, value: T) -> Place<T> {
        // SAFETY: by contract.
        unsafe { Place::with_key(context, ticket, key_of(context), value) }
    }

    /// A place for a context whose urgency is `key`, which is not that of a thread. It calls nothing.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn with_key(context: &Context, ticket: Ticket, key: u64, value: T) -> Place<T> {
        Place {
            links: Links::new(key),
            stands: Cell::new(None),
            context: NonNull::from(context),
            ticket: Cell::new(ticket),
            value,
        }
    }

    /// The next wait of the same context. While the place stands nowhere.
    pub fn renew(&self, ticket: Ticket) {
        self.ticket.set(ticket);
        let (key, number) = self.links.key.get();
        // SAFETY: L4.
        let now = unsafe { self.context.as_ref() }.urgency();
        self.links.key.set((key.min(now), number));
    }

    /// Whether it stands in a queue. Under the queue's lock (L1).
    pub fn is_listed(&self) -> bool {
        self.stands.get().is_some()
    }

    /// On which thread its waiter is: [`Context::place`].
    pub(crate) fn on(&self) -> usize {
        // SAFETY: L4.
        unsafe { self.context.as_ref() }.place().get()
    }

    /// The root key it stands by; smaller goes first.
    pub fn key(&self) -> u64 {
        self.links.key.get().0
    }
}

fn key_of(context: &Context) -> u64 {
    match context.urgency() {
        LEAST_KEY.. => root_key(Priority::NORMAL, next_root()),
        key => key,
    }
}

impl<T> fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("key", &self.key()).finish_non_exhaustive()
    }
}
