//! What a worker keeps about cancelled requests: how many that have started here are not over, and those that it has
//! claimed in spreading and that its loop is to end.
//!
//! While the count is not 0 the attention word says so by `MARKS`, and every fork and wait on this worker looks whether it
//! is its own request that is cancelled. While there are requests to end, `NOTICE` is up, so that the loop does not take its
//! fast way past them.

use std::ptr::NonNull;

use super::{Next, Worker};
use crate::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, NOTICE, SHUT};
use crate::cancel;
use crate::cell;
use crate::header::Header;
use crate::word::{Cancel, Demand};

impl Worker {
    /// So many more cancelled requests run here.
    pub(crate) fn count_marked(&self, more: isize) {
        let marked = self.marked.get().wrapping_add_signed(more);
        self.marked.set(marked);
        if marked == 0 {
            self.post.attention.clear(MARKS);
        } else if more > 0 {
            self.post.attention.raise(MARKS);
        }
    }

    /// Whether any request of the runtime has a deadline that is yet to come.
    #[inline]
    pub(crate) fn is_among_limits(&self) -> bool {
        self.post.attention.get() & LIMITS != 0 && self.still_among_limits()
    }

    #[cold]
    fn still_among_limits(&self) -> bool {
        let deadlines = &self.shared().deadlines;
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

    /// The loop is to end these: each claimed, with the runner's link.
    pub(crate) fn put_aside(&self, requests: Vec<NonNull<Header>>) {
        if requests.is_empty() {
            return;
        }
        // SAFETY: V1.
        unsafe { &mut *self.aside.get() }.extend(requests);
        self.post.attention.raise(NOTICE);
    }

    /// The worker aborts what is on it, now; false if it has done so. From now on it refuses new work.
    pub(crate) fn begins_sweep(&self) -> bool {
        self.post.attention.raise(SHUT);
        !self.swept.replace(true)
    }

    /// Whether it has done so.
    pub(crate) fn has_swept(&self) -> bool {
        self.swept.get()
    }

    /// Whether the loop has requests to end.
    pub(crate) fn has_put_aside(&self) -> bool {
        // SAFETY: V1.
        !unsafe { &*self.aside.get() }.is_empty()
    }

    /// The next that the loop is to end.
    pub(super) fn next_put_aside(&self) -> Option<Next> {
        // SAFETY: V1.
        unsafe { &mut *self.aside.get() }.pop().map(Next::End)
    }

    /// A request was spawned here, stands in the private list, and the worker has something to attend to.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend_spawn(&self, header: NonNull<Header>) {
        let bits = self.post.attention.get();
        if bits & NOTICE != 0 {
            self.attend_notices();
        }
        // SAFETY: the maker's handle.
        let h = unsafe { header.as_ref() };
        if self.refuse_spawned(h) {
            return;
        }
        if bits & (MARKS | NOTICE) != 0 && cancel::is_orphaned_by_cancel(h) {
            let (side, reason) = (h.side_or_new(), cancel::reason_of_ancestor(h));
            let came = h.word().cancel_private(|| {
                side.reason.set(Some(reason));
                Demand::Nobody
            });
            if came == Cancel::Ended {
                self.list.remove(h);
                // SAFETY: claimed by us, with the entry's link for the runner's.
                unsafe { cell::end_claimed(header) };
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
