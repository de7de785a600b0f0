//! How a header stands in a list. It stands in one list at a time, and `place` says in which (H3).
//!
//! | list | links | who touches them |
//! |---|---|---|
//! | the private queue of the worker that made it | `next`, `prev` | that worker; raiders follow `next` ([`crate::state::raid`]) |
//! | the children of its parent | `next`, `prev` | the owner of `arena`, or the holder of that arena's lock of lists (N1) |
//! | the inbox of the injector | `next` | the pusher, then the reader that empties the inbox (E3) |
//! | an arena's returns; requests that were put off | `fiber` | the thread that alone knows the header (M2), then the owner of the list |

use forebear_context::shim::atomic::{AtomicPtr, Ordering};

use super::Header;
use crate::record::drop_queue::PutOff;
use crate::state::raid::{Placed, PrivateEntry};
use crate::state::shared_queue::{Hint, QueueEntry};

impl PrivateEntry for Header {
    fn place(&self) -> &Placed {
        &self.place
    }

    fn next(&self) -> &AtomicPtr<Header> {
        &self.next
    }
}

// SAFETY: the link of a list of returns, which a claimed request that was put off stands in no other of (M2).
unsafe impl PutOff for Header {
    fn next_put_off(&self) -> *mut Header {
        self.next_return()
    }

    fn set_next_put_off(&self, next: *mut Header) {
        self.set_next_return(next);
    }
}

// SAFETY: the link is `next`, which is the shared queue's while the header is on its way through the inbox (H3); the root key
// does not change once the header is shared (LN2).
unsafe impl QueueEntry for Header {
    #[inline(always)]
    fn link(&self) -> &AtomicPtr<Header> {
        &self.next
    }

    #[inline(always)]
    fn key(&self) -> u64 {
        self.lineage.key()
    }

    #[inline(always)]
    fn hint(&self) -> Option<&Hint> {
        if self.is_hinted() { self.side().map(|side| &side.hint) } else { None }
    }
}

impl Header {
    /// The next in its list. By the owner of that, as what follows.
    #[inline(always)]
    pub(crate) fn next_listed(&self) -> *const Header {
        self.next.load(Ordering::Relaxed)
    }

    /// The one before it in its list; null if it is the first.
    #[inline(always)]
    pub(crate) fn prev_listed(&self) -> *const Header {
        self.prev.get()
    }

    /// The next in a list of returns, or of drops put off; `next` and `prev` are its family's until it has returned.
    #[inline(always)]
    pub(crate) fn next_return(&self) -> *mut Header {
        self.fiber.load(Ordering::Relaxed).cast()
    }

    /// Links it into a list of returns. By the thread that alone knows it.
    #[inline(always)]
    pub(crate) fn set_next_return(&self, next: *mut Header) {
        self.fiber.store(next.cast(), Ordering::Relaxed);
    }
}
