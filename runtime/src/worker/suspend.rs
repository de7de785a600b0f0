//! Suspending: whom a worker enters when a strand leaves, and how strands become ready.

use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;

use super::Worker;
use crate::attention::{OLDER, RAISED};
use crate::carrier::Carrier;
use crate::strand::Strand;

impl Worker {
    /// A strand of this worker may go on. On the worker's thread.
    pub(crate) fn make_ready(&self, strand: NonNull<Strand>) {
        self.ready().push(strand);
        // SAFETY: K3.
        let key = unsafe { strand.as_ref() }.urgency.load(Ordering::Relaxed);
        if key < self.running.get() {
            self.post.attention.raise(OLDER);
        }
    }

    pub(super) fn collect_mail(&self) {
        if !self.post.mailbox.is_empty() {
            self.collect_mail_now();
        }
    }

    #[cold]
    pub(super) fn collect_mail_now(&self) {
        for carrier in self.post.mailbox.take_all() {
            // SAFETY: K2, K3.
            self.ready().push(NonNull::from(unsafe { &carrier.as_ref().strand }));
        }
    }

    /// Whom to enter when the strand that calls leaves parked. `None`: itself, it is ready and first.
    #[inline(never)]
    pub(crate) fn leave_parked(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        self.settle_jobs();
        if let Some(request) = strand.request() {
            strand.place.set((request.lineage.parent(), request.lineage.rank()));
        }
        if !strand.arms.is_empty() {
            self.publish_arms(strand);
        }
        self.collect_mail();
        if self.post.attention.get() & RAISED != 0 {
            self.follow_raises();
        }
        let ready = self.ready().key();
        if ready != NO_KEY && ready <= self.list.key() && ready <= self.shared().roots.key() {
            let next = self.ready().pop(false);
            if let Some(next) = next {
                if ptr::eq(next.as_ptr(), strand) {
                    return None;
                }
                self.resume(next);
                // SAFETY: ready strands of a worker are carriers'.
                return Some(unsafe { Carrier::of_strand(next) });
            }
        }
        match self.carrier(self.shared().default_class) {
            Ok(carrier) => Some(carrier),
            Err(_) => self.wait_for_ready(strand),
        }
    }

    /// Makes sure that `strand` can leave, before it waits for something that unstarted requests may have to do: without a
    /// stack for the loop nobody would start them, so they are run right here, as by a waiter, until there is one.
    #[inline]
    pub(crate) fn make_room_to_leave(&self, strand: &Strand) {
        while self.reserve_carrier().is_err() && self.run_one_here(strand) {}
    }

    /// Runs the oldest private request on this strand. False: there is none that has room here.
    #[cold]
    fn run_one_here(&self, strand: &Strand) -> bool {
        let Some(front) = self.list.front().filter(|front| front.need() <= strand.room()) else {
            return false;
        };
        if !ptr::eq(strand.home.get(), self.home()) {
            // Another runtime is entered here.
            return false;
        }
        let header = NonNull::from(front);
        self.list.remove(front);
        if self.claim_private(header) {
            let urgency = strand.urgency.load(Ordering::Relaxed);
            // SAFETY: claimed, with the runner's link.
            unsafe { crate::run::start(strand, header) };
            strand.urgency.store(urgency, Ordering::Relaxed);
        }
        true
    }

    /// No stack for the loop: nothing new can begin, so the thread waits until something that has begun may go on.
    #[cold]
    pub(super) fn wait_for_ready(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        loop {
            self.collect_mail();
            if let Some(next) = self.ready().pop(true) {
                // SAFETY: as in `leave_parked`.
                return (!ptr::eq(next.as_ptr(), strand)).then(|| unsafe { Carrier::of_strand(next) });
            }
            std::thread::yield_now();
        }
    }

    /// Whom to enter when the strand that calls yields. `None`: nobody else wants to run.
    #[inline(never)]
    pub(crate) fn leave_yielding(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        self.settle_jobs();
        if !strand.arms.is_empty() {
            self.publish_arms(strand);
        }
        self.collect_mail();
        let unstarted = self.list.key() != NO_KEY
            || self.post.shelf.key() != NO_KEY
            || self.shared().roots.key() != NO_KEY;
        if !unstarted && self.ready().len() == 0 {
            return None;
        }
        if unstarted {
            let Ok(carrier) = self.carrier(self.shared().default_class) else {
                self.run_one_here(strand);
                return None;
            };
            self.ready().push_yielded(NonNull::from(strand), true);
            return Some(carrier);
        }
        self.ready().push_yielded(NonNull::from(strand), false);
        let next = self.ready().pop(true)?;
        if ptr::eq(next.as_ptr(), strand) {
            return None;
        }
        self.resume(next);
        // SAFETY: as in `leave_parked`.
        Some(unsafe { Carrier::of_strand(next) })
    }

    /// The fast way of a yield: nothing but yielders on this worker. `Err`: look properly.
    #[inline(always)]
    pub(crate) fn rotate(&self, strand: &Strand) -> Result<Option<NonNull<Carrier>>, ()> {
        let quiet = self.post.attention.get() == 0
            && self.post.mailbox.is_empty()
            && self.list.front().is_none()
            && self.ready().only_yielded()
            && self.post.shelf.key() == NO_KEY
            && self.shared().roots.key() == NO_KEY
            && strand.arms.is_empty()
            && self.jobs.get().0.is_null();
        if !quiet {
            return Err(());
        }
        Ok(self.ready().rotate_yielded(NonNull::from(strand)).map(|next| {
            self.resume(next);
            // SAFETY: as in `leave_parked`.
            unsafe { Carrier::of_strand(next) }
        }))
    }
}
