//! What a worker keeps about cancelled requests: how many that have started here are not over, and those that it has
//! claimed in spreading and that its loop is to end.
//!
//! While the count is not 0 the attention word says so by `MARKS`, and every fork and wait on this worker looks whether it
//! is its own request that is cancelled. While there are requests to end, `MESSAGE` is up, so that the loop does not take its
//! fast way past them.
//!
//! It keeps, too, what has lost its last owner where nothing of the user's may run: in the middle of a wait of the stack that
//! the worker is on, or while the worker attends to messages or publishes. The loop drops that.

use std::ptr::NonNull;

use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::Ordering;

use super::{Next, Worker};
use crate::cancel;
use crate::cancel::unstarted;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::hooks;
use crate::record::reclaim;
use crate::record::side::Side;
use crate::state::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, MESSAGE, RAIDED, SHUT};
use crate::state::word::{Cancel, Demand};

/// After so many waits a worker looks whether any deadline of its own requests is left: code that makes one mostly makes another.
const LIMIT_LOOKS: u32 = 16;

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

    /// The loop is to end these: each claimed, with the runner's link.
    pub(crate) fn put_aside(&self, requests: Vec<NonNull<Header>>) {
        if requests.is_empty() {
            return;
        }
        // SAFETY: V1.
        unsafe { &mut *self.aside.get() }.extend(requests);
        self.post.attention.raise(MESSAGE);
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

    /// The loop is to call the hook for warnings. Here it cannot be called: it is code of the user's, and a wait has begun.
    pub(super) fn warn_later(&self, what: String) {
        self.warning.set(Some(what));
        self.warns.set(true);
        self.post.attention.raise(MESSAGE);
    }

    /// Calls the hook, on a fiber of the loop's.
    #[cold]
    pub(crate) fn warn_now(&self) {
        self.warns.set(false);
        if let Some(what) = self.warning.take() {
            hooks::warn(&self.shared().hooks, &what);
        }
    }

    /// Calls `f`, in which nothing of the user's is dropped.
    pub(crate) fn hold_back<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.holds.replace(true);
        let result = f();
        self.holds.set(before);
        result
    }

    /// Whether nothing of the user's may be dropped on `fiber`, which is this worker's and current.
    pub(crate) fn holds_back(&self, fiber: &Fiber) -> bool {
        self.holds.get() || fiber.context().is_waiting()
    }

    /// The loop is to drop this.
    #[cold]
    pub(crate) fn drop_later(&self, side: Box<Side>) {
        // SAFETY: V1.
        unsafe { &mut *self.late.get() }.push(side);
        self.post.attention.raise(MESSAGE);
    }

    /// Drops it, on a fiber of the loop's. Or when the worker is gone.
    #[cold]
    pub(crate) fn drop_late(&self) {
        loop {
            // SAFETY: V1.
            let Some(side) = unsafe { &mut *self.late.get() }.pop() else { return };
            reclaim::free_side(side);
        }
    }

    /// Whether the loop has anything to drop.
    pub(super) fn has_late(&self) -> bool {
        // SAFETY: V1.
        !unsafe { &*self.late.get() }.is_empty()
    }

    /// A stack of this worker has put something off ([`DropQueues`](crate::record::drop_queue::DropQueues)). If it waits before it gets there, the loop does it.
    pub(crate) fn has_put_off(&self) {
        self.post.attention.raise(MESSAGE);
    }

    /// Takes all that the loop is to end, since the worker's stacks are left behind.
    pub(super) fn take_put_aside(&self) -> Vec<NonNull<Header>> {
        // SAFETY: V1.
        let mut aside = std::mem::take(unsafe { &mut *self.aside.get() });
        aside.extend(std::iter::from_fn(|| self.put_off.take()));
        self.put_off.forget();
        aside
    }

    /// Whether the loop has requests to end, something to drop or something to warn of.
    pub(crate) fn has_put_aside(&self) -> bool {
        // SAFETY: V1.
        self.warns.get()
            || self.has_late()
            || !unsafe { &*self.aside.get() }.is_empty()
            || !self.put_off.is_empty()
    }

    /// Calls `with` for each request that the loop is to end. On the worker's thread.
    pub(crate) fn each_put_aside(&self, with: impl FnMut(&Header)) {
        // SAFETY: V1.
        let aside = unsafe { &*self.aside.get() };
        // SAFETY: claimed, with the runner's link, until the loop takes them.
        aside.iter().map(|header| unsafe { header.as_ref() }).for_each(with);
    }

    /// The next that the loop is to end.
    pub(super) fn next_put_aside(&self) -> Option<Next> {
        if self.warns.get() {
            return Some(Next::Warn);
        }
        if self.has_late() {
            return Some(Next::Late);
        }
        // SAFETY: V1.
        unsafe { &mut *self.aside.get() }.pop().or_else(|| self.put_off.take()).map(Next::End)
    }

    /// Ends what was put aside, on a fiber of the loop's. Its destructors and callbacks are user code: they may wait, and the fiber then
    /// stands among the ready ones by the urgency of the request that it ends.
    ///
    /// # Safety
    ///
    /// As [`unstarted::end_all`]; nothing is on top of the fiber, which is this worker's.
    #[cold]
    pub(crate) unsafe fn end_put_aside(&self, fiber: &Fiber, header: NonNull<Header>) {
        // SAFETY: by contract it is there.
        let key = unsafe { header.as_ref() }.urgency();
        fiber.urgency.store(key, Ordering::Relaxed);
        self.set_running(key);
        // SAFETY: by contract.
        unsafe { unstarted::end_put_aside_on(fiber, header) };
    }

    /// Cancels a request that was spawned or submitted here, for `reason`. Nobody waits for it yet. Answers whether it has been ended.
    ///
    /// The messages that were attended since it was put into the private queue may have ended it already. A raider may have shown it to
    /// another worker, which runs it: then the mark is delivered there, as any other.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request.
    #[cold]
    pub(crate) unsafe fn cancel_spawned(&self, header: NonNull<Header>, reason: CancelReason) -> bool {
        // SAFETY: by contract.
        let h = unsafe { header.as_ref() };
        let side = h.side_or_new();
        let ask = || {
            h.word().cancel_private(|| {
                side.reason.set(Some(reason));
                Demand::Nobody
            })
        };
        match self.cancel_listed(h, ask) {
            Cancel::Ended => {
                // SAFETY: claimed by us, with the entry's link for the runner's.
                unsafe { unstarted::end_claimed(header) };
                true
            }
            Cancel::Marked => {
                // SAFETY: by contract.
                unsafe { cancel::deliver(header) };
                false
            }
            _ => false,
        }
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
            self.attend_messages();
        }
        // SAFETY: the maker's handle.
        let h = unsafe { header.as_ref() };
        // SAFETY: the maker's handle.
        if unsafe { self.refuse_spawned(header) } {
            return;
        }
        if bits & (MARKS | MESSAGE) != 0 && cancel::is_orphaned_by_cancel(h) {
            // SAFETY: the maker's handle.
            if unsafe { self.cancel_spawned(header, cancel::reason_of_ancestor(h)) } {
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
