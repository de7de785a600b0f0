//! The waiters for one event, which all continue when it has happened: below [`Event`](crate::Event) and [`Latch`](crate::Latch).
//!
//! # The race
//!
//! *A waiter against the event.* The thread that causes the event first records it in a word of the caller's, and then takes the queue's lock in
//! [`let_go`](WaitSet::let_go). A waiter reads that word under the lock, and enters the queue under the same hold. So either the waiter finds that
//! the event has happened, or it is in the queue when the other thread takes the lock, and is woken.

use std::panic::Location;

use forebear_context::context::Reason;

use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{ChosenList, LockQueue, Place};
use crate::queued_wait::{Limit, QueuedWaiter, WaitTerms, wait_in_queue};
use crate::raw_lock::Refused;

/// See the module head.
#[derive(Debug)]
pub(crate) struct WaitSet {
    queue: Guarded<LockQueue>,
}

/// What a wait set waits for.
struct WaitSetQueue<'a, F> {
    wait_set: &'a WaitSet,
    has_happened: F,
}

impl WaitSet {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> WaitSet {
        WaitSet { queue: Guarded::new(LockQueue::new()) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> WaitSet {
        WaitSet { queue: Guarded::new(LockQueue::new()) }
    }

    /// Waits until [`let_go`](Self::let_go) is called, unless it has happened. To be inlined, as [`wait_in_queue`].
    #[inline(always)]
    pub(crate) fn wait(
        &self,
        reason: Reason,
        what: &'static str,
        limit: Limit,
        caller: &'static Location<'static>,
        has_happened: impl Fn() -> bool,
    ) -> Result<(), Refused> {
        let terms = WaitTerms { reason, what, limit, caller };
        with_context!(|context| wait_in_queue(
            &WaitSetQueue { wait_set: self, has_happened },
            context,
            (),
            terms
        ))
    }

    /// Puts a waiter there, unless it has happened.
    ///
    /// # Safety
    ///
    /// L2: the place stays until it has left.
    pub(crate) unsafe fn enter(&self, place: &Place, has_happened: impl Fn() -> bool) -> bool {
        #[cfg(mutant = "wait_set_checked_before_the_lock")]
        let happened = has_happened();
        self.queue.with(|queue| {
            // The thread that makes it happen takes this lock afterwards.
            #[cfg(not(mutant = "wait_set_checked_before_the_lock"))]
            let happened = has_happened();
            if happened {
                return false;
            }
            // SAFETY: L1; L2: by contract.
            unsafe { queue.enter(place) };
            true
        })
    }

    /// A waiter leaves. False: the event has happened, and its place was taken out.
    ///
    /// # Safety
    ///
    /// It was put there.
    pub(crate) unsafe fn leave(&self, place: &Place) -> bool {
        // SAFETY: L1.
        self.queue.with(|queue| unsafe { queue.remove(place) })
    }

    /// The event has happened, and later calls see that: wakes all waiters.
    #[cold]
    #[inline(never)]
    pub(crate) fn let_go(&self) {
        self.queue.with(everybody).wake();
    }
}

/// Chooses all waiters of a queue, under its lock. The caller wakes them.
pub(crate) fn everybody<T>(queue: &LockQueue<T>) -> ChosenList<T> {
    let mut chosen = ChosenList::new();
    // SAFETY: L1, by the caller, who wakes them.
    while let Some(one) = unsafe { queue.choose() } {
        chosen.push(one);
    }
    chosen
}

impl<F: Fn() -> bool> QueuedWaiter<()> for WaitSetQueue<'_, F> {
    fn at_once(&self, (): &()) -> bool {
        (self.has_happened)()
    }

    fn enter(&self, place: &Place) -> bool {
        // SAFETY: L2: the place stays in its frame until it is out.
        unsafe { self.wait_set.enter(place, &self.has_happened) }
    }

    fn leave(&self, place: &Place) -> bool {
        // SAFETY: it stood there.
        unsafe { self.wait_set.leave(place) };
        true
    }
}
