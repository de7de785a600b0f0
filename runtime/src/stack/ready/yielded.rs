//! The fibers that have yielded: first in, first out, apart from those that were woken.
//!
//! A yield goes behind every fiber that is ready at that moment, and never by lineage. Otherwise an old request that polls would starve the
//! younger one that it polls for. So each entry says after how many picks of the [ready queue](super) it is *due*, and whether an unstarted
//! request has to start first. Several fibers that poll by turns must not keep the root from starting that all of them poll for. From then
//! on the entry competes like the rest, with two bounds:
//!
//! * After [`TURNS`] yields without a start, while an unstarted request is at hand, no entry is due until one starts. So a round of
//!   yields is cut into pieces, and the wait of an unstarted request does not grow with the number of fibers that poll. Up to that
//!   many the round is whole: a request that yields a few times and ends runs before a new one starts beside it (decision 0026).
//! * After [`TURNS`] picks more than it owes, an entry is due without a start: another worker may have taken the unstarted
//!   request.
//!
//! The list is intrusive, so a yield costs a few stores. A fiber in the list does not move, and its fields `due` and `next_ready` are
//! the list's.

use std::ptr::NonNull;

use forebear_context::shim::atomic::Ordering;

use crate::record::fiber::Fiber;

/// See the module head.
const TURNS: u32 = 64;

/// See the module head. Belongs to one worker.
#[derive(Default)]
pub(super) struct Yielded {
    first: Option<NonNull<Fiber>>,
    last: Option<NonNull<Fiber>>,
    len: usize,
    /// How often something woken was picked, and how often something unstarted was started. A yielder's own turn counts for neither,
    /// or several would make each other due and pass over the rest for ever.
    picks: u64,
    starts: u64,
    /// How often a fiber has yielded with something unstarted at hand since the last start, or since nothing was.
    passed: u32,
}

impl Yielded {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many that were woken have been picked.
    pub(super) fn picks(&self) -> u64 {
        self.picks
    }

    /// Something woken is picked.
    #[inline(always)]
    pub(super) fn count_pick(&mut self) {
        self.picks += 1;
    }

    /// Something unstarted was started.
    #[inline(always)]
    pub(super) fn count_start(&mut self) {
        self.starts += 1;
        self.passed = 0;
    }

    /// A fiber yields, and owes as many picks as are `woken`, and a start if something unstarted is at hand.
    #[inline(always)]
    pub(super) fn push(&mut self, fiber: NonNull<Fiber>, woken: usize, unstarted: bool) {
        self.passed = if unstarted { self.passed + 1 } else { 0 };
        let due = (self.picks + woken as u64, self.starts + u64::from(unstarted));
        // SAFETY: fibers stay where they are while they are ready, and this is their worker.
        let entry = unsafe { fiber.as_ref() };
        entry.due.set(due);
        entry.next_ready.set(std::ptr::null());
        match self.last {
            // SAFETY: as above.
            Some(last) => unsafe { last.as_ref() }.next_ready.set(fiber.as_ptr()),
            None => self.first = Some(fiber),
        }
        self.last = Some(fiber);
        self.len += 1;
    }

    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<NonNull<Fiber>> {
        let first = self.first?;
        // SAFETY: as above.
        self.first = NonNull::new(unsafe { first.as_ref() }.next_ready.get().cast_mut());
        if self.first.is_none() {
            self.last = None;
        }
        self.len -= 1;
        Some(first)
    }

    #[inline(always)]
    pub(super) fn first(&self) -> Option<NonNull<Fiber>> {
        self.first
    }

    /// Takes the first, if there is one, and puts `fiber`, which owes nothing more, behind the last, which may be the same.
    #[inline(always)]
    pub(super) fn rotate(&mut self, fiber: NonNull<Fiber>) -> Option<NonNull<Fiber>> {
        let due = (self.picks, self.starts);
        let (first, last) = (self.first?, self.last?);
        // SAFETY: as above.
        let entry = unsafe { fiber.as_ref() };
        entry.due.set(due);
        entry.next_ready.set(std::ptr::null());
        // SAFETY: as above.
        unsafe { last.as_ref() }.next_ready.set(fiber.as_ptr());
        // The next is read last: if there is only one, it is `fiber`.
        // SAFETY: as above.
        let second = unsafe { first.as_ref() }.next_ready.get();
        self.first = NonNull::new(second.cast_mut());
        self.last = Some(fiber);
        Some(first)
    }

    /// Takes `fiber` out; false if it does not stand here.
    #[cold]
    pub(super) fn remove(&mut self, fiber: NonNull<Fiber>) -> bool {
        let (mut before, mut at) = (None::<NonNull<Fiber>>, self.first);
        while let Some(here) = at {
            // SAFETY: as above.
            let next = NonNull::new(unsafe { here.as_ref() }.next_ready.get().cast_mut());
            if here != fiber {
                (before, at) = (Some(here), next);
                continue;
            }
            match before {
                // SAFETY: as above.
                Some(before) => unsafe { before.as_ref() }
                    .next_ready
                    .set(next.map_or(std::ptr::null(), |next| next.as_ptr().cast_const())),
                None => self.first = next,
            }
            if next.is_none() {
                self.last = before;
            }
            self.len -= 1;
            return true;
        }
        false
    }

    /// The key of the first, if it is due.
    #[inline(always)]
    pub(super) fn due(&self) -> Option<u64> {
        // SAFETY: as above.
        let first = unsafe { self.first?.as_ref() };
        let (after_picks, after_starts) = first.due.get();
        let due = after_picks <= self.picks && after_starts <= self.starts && self.passed < TURNS
            || after_picks + u64::from(TURNS) <= self.picks;
        due.then(|| first.urgency.load(Ordering::Relaxed))
    }
}
