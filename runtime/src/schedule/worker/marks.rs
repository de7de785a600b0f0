//! What the loop does about cancelled requests and deadlines. It ends the requests that were put aside for it
//! ([`crate::record::put_aside`]). And it checks a request that was spawned while a bit of the worker's attention word
//! was set.
//!
//! The worker's record counts the cancelled requests that have started here and are not over. While there are any, the attention word says so by
//! `MARKS`, and every fork and wait on this worker looks whether it is its own request that is cancelled. While there are requests to end, `MESSAGE` is
//! up, so that the loop does not take its fast way past them.

use std::ptr::NonNull;

use forebear_context::shim::atomic::Ordering;

use super::{Next, Worker};
use crate::cancel;
use crate::cancel::unstarted;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::reclaim;
use crate::record::report;
use crate::state::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, MESSAGE, RAIDED};

/// After so many waits a worker looks whether any deadline of its own requests is left: code that makes one mostly makes another.
const LIMIT_LOOKS: u32 = 16;

impl Worker {
    /// Whether any request of the runtime has a deadline that is yet to come, or had a few waits ago.
    #[inline]
    pub(crate) fn is_among_limits(&self) -> bool {
        self.post.attention.get() & LIMITS != 0 && self.still_among_limits()
    }

    /// One more wait while it is said that there are deadlines: whether it need not look if that is still so.
    #[inline]
    pub(crate) fn passes_limits(&self) -> bool {
        let looks = self.limit_looks.get().wrapping_add(1);
        self.limit_looks.set(looks);
        !looks.is_multiple_of(LIMIT_LOOKS)
    }

    #[cold]
    fn still_among_limits(&self) -> bool {
        let deadlines = &self.shared().deadlines;
        if !self.passes_limits() {
            deadlines.settle_limits(self.index);
        }
        if deadlines.has_requests() {
            return true;
        }
        // Clear first, then look.
        self.post.attention.clear(LIMITS);
        let some = deadlines.has_requests();
        if some {
            self.post.attention.raise(LIMITS);
        }
        some
    }

    /// The loop is to call the hook for warnings. Here it cannot be called: it is code of the user's, and a wait has begun.
    pub(super) fn warn_later(&self, what: String) {
        self.put_aside.warn_later(what);
        self.post.attention.raise(MESSAGE);
    }

    /// Calls the hook, on a fiber of the loop's.
    #[cold]
    pub(crate) fn warn_now(&self) {
        if let Some(what) = self.put_aside.take_warning() {
            report::warn(&self.shared().hooks, &what);
        }
    }

    /// Drops what is to be dropped late, on a fiber of the loop's. Or when the worker is gone.
    #[cold]
    pub(crate) fn drop_late(&self) {
        while let Some(side) = self.put_aside.next_late() {
            reclaim::free_side(side);
        }
    }

    /// The next that the loop is to end.
    pub(super) fn next_put_aside(&self) -> Option<Next> {
        if self.put_aside.warns() {
            return Some(Next::Warn);
        }
        if self.put_aside.has_late() {
            return Some(Next::Late);
        }
        self.put_aside.next().map(Next::End)
    }

    /// Ends what was put aside, on a fiber of the loop's. Its destructors and callbacks are user code: they may wait, and the fiber then
    /// stands among the ready ones by the urgency of the request that it ends.
    ///
    /// # Safety
    ///
    /// As [`unstarted::end_all`]; nothing is on top of the fiber, which is this worker's.
    #[inline(always)]
    pub(crate) unsafe fn end_put_aside(&self, fiber: &Fiber, header: NonNull<Header>) {
        // SAFETY: by contract it is there.
        let key = unsafe { header.as_ref() }.urgency();
        fiber.urgency.store(key, Ordering::Relaxed);
        self.set_running(key);
        // SAFETY: by contract.
        unsafe { unstarted::end_put_aside_on(fiber, header) };
    }

    /// A request was spawned here, stands in the private queue, and the worker has something to attend to.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend_spawn(&self, header: NonNull<Header>) {
        #[cfg(all(test, not(any(loom, shuttle))))]
        tests::after_the_insertion();
        let bits = self.post.attention.get();
        if bits & RAIDED != 0 {
            self.settle_raid();
        }
        if bits & MESSAGE != 0 {
            cancel::attend_messages(self);
        }
        // SAFETY: the maker's handle.
        let h = unsafe { header.as_ref() };
        // SAFETY: the maker's handle.
        if unsafe { cancel::refuse_spawned(self, header, None) } {
            return;
        }
        if bits & (MARKS | MESSAGE) != 0 && cancel::is_orphaned_by_cancel(h) {
            // SAFETY: the maker's handle.
            if unsafe { cancel::cancel_spawned(self, header, cancel::reason_of_ancestor(h), None) } {
                return;
            }
            if bits & DRIVEN == 0 {
                return;
            }
        }
        if self.post.attention.get() & HUNGRY != 0 {
            self.feed();
        }
        if bits & DRIVEN != 0 {
            // SAFETY: the maker's handle.
            unsafe { self.queued_here(header) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
