//! Entries of requests: their own deadlines, and their expiration timers. The head of [`super`] says which shard an entry is in, and has the races.
//!
//! The deadlines of the requests that a worker makes are in a second shard of that worker; the decision is
//! `docs/decisions/0104`. [`Limits`](crate::shared::deadlines::Limits) is what a worker has beside that shard.

use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::shim::Arc;

use super::firing::refuse;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::shared::deadlines::{Deadlines, DeadlinesRecord, FiredEntry};
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::shared::{OfRuntime, Shared};
use crate::state::attention::LIMITS;
use crate::state::due::Due;

impl Deadlines {
    /// Arms the request's deadline: it fires at `at`, or before this returns if that is past. See [`limit_comes`](crate::cancel::limit_comes).
    /// Answers the entry's number. If it is the first request that is armed, `first` is called before this returns and before
    /// another is armed; it takes no locks.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_request(
        &self,
        at: Instant,
        header: NonNull<Header>,
        first: impl FnOnce(),
    ) -> u64 {
        self.record().arm(at, FiredEntry::Request(header), first).number
    }

    /// The same for the deadline that the request has in its side block, which gets the entry's number. Called by the
    /// maker before any other thread knows the request, or by its finisher. Answers whether a worker of this runtime
    /// keeps the entry, in a shard of its own.
    ///
    /// # Safety
    ///
    /// As [`arm_request`](Self::arm_request).
    #[inline]
    pub(crate) unsafe fn arm_due(&self, header: NonNull<Header>, due: &Due, first: impl Fn() + Copy) -> bool {
        match self.record().arming_worker() {
            Some(worker) => {
                due.set_wheel(worker.index as u32 + 1);
                due.armed(self.record().arm_limit(worker, due.at(), header, first));
                !self.is_unattended()
            }
            None => {
                due.set_wheel(0);
                // SAFETY: by contract.
                due.armed(unsafe { self.arm_request(due.at(), header, first) });
                false
            }
        }
    }

    /// Takes back what [`arm_due`](Self::arm_due) has armed. True: it had not fired, and the link is the caller's again.
    pub(crate) fn disarm_due(&self, header: NonNull<Header>, due: &Due) -> bool {
        match due.wheel() {
            _ if due.alarm() == 0 => false,
            0 => self.disarm_request(due.alarm()),
            worker => self.record().disarm_limit(worker as usize - 1, due.alarm(), header),
        }
    }

    /// The same if the worker that calls keeps it; else false.
    #[inline]
    pub(crate) fn disarm_due_here(&self, header: NonNull<Header>, due: &Due) -> bool {
        match due.wheel() {
            0 => false,
            _ if due.alarm() == 0 => false,
            worker => self.record().disarm_limit_here(worker as usize - 1, due.alarm(), header),
        }
    }

    /// A worker is about to sleep, or its attention bit for deadlines has been set for long. If none of its own entries is armed, it is not counted any more.
    #[inline]
    pub(crate) fn settle_limits(&self, worker: usize) {
        self.record().settle_own_limits(worker);
    }

    /// Arms an expiration timer of a started request: the request is aborted with [`Expired`](forebear_context::error::CancelReason::Expired) at `at`, or before this returns if that
    /// is past.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_expiry(&self, at: Instant, header: NonNull<Header>) -> u64 {
        self.record().arm(at, FiredEntry::Expiry(header), || ()).number
    }

    /// Takes a request's entry back by its number. True: it had not fired, and the link is the caller's again.
    pub(crate) fn disarm_request(&self, number: u64) -> bool {
        self.record().disarm(number)
    }
}

impl DeadlinesRecord {
    /// The shard for the deadlines of a worker's requests.
    #[inline]
    fn limit_shard(&self, worker: usize) -> usize {
        self.owners() + worker
    }

    /// The worker that calls, if it keeps the deadlines of the requests that it makes.
    #[inline]
    pub(super) fn arming_worker(self: &Arc<Self>) -> Option<&'static WorkerRecord> {
        let worker = self.owner()?;
        self.arms_in_own_shard(worker.index).then_some(worker)
    }

    /// The worker of this runtime that calls.
    #[inline]
    fn owner(&self) -> Option<&'static WorkerRecord> {
        let worker = fiber::get().and_then(Fiber::worker_record)?;
        ptr::eq(Arc::as_ptr(worker.shared().deadlines.record()), self).then_some(worker)
    }

    /// Arms a request's deadline in the shard of the worker that calls, of this runtime; as [`arm`](Self::arm).
    #[inline]
    pub(super) fn arm_limit(
        self: &Arc<Self>,
        worker: &WorkerRecord,
        at: Instant,
        header: NonNull<Header>,
        first_request: impl Fn() + Copy,
    ) -> u64 {
        let shard = self.limit_shard(worker.index);
        let entry = || FiredEntry::Limit(header, NonNull::from(&worker.limit_alarm));
        let count = || {
            if self.count_worker(worker.index) {
                first_request();
            }
        };
        let again = || {
            count();
            entry()
        };
        // SAFETY: the shard is the caller's.
        if let Some(number) = unsafe { self.shards().arm_in_place(shard, &worker.limit_alarm, at, again) } {
            return number;
        }
        // SAFETY: as above.
        match unsafe { self.shards().insert(shard, at, entry(), || self.at_least(), count) } {
            Ok(armed) => {
                if armed.first {
                    self.limit_timer_sleep(shard, at);
                }
                armed.number
            }
            Err(refused) => {
                refuse(refused);
                0
            }
        }
    }

    /// Takes back what [`arm_limit`](Self::arm_limit) has armed on that worker. True: it had not fired.
    pub(super) fn disarm_limit(&self, worker: usize, number: u64, header: NonNull<Header>) -> bool {
        match self.owner().filter(|owner| owner.index == worker) {
            Some(owner) => self.disarm_own_limit(owner, number, header),
            None => self.disarm_limit_elsewhere(worker, number, header),
        }
    }

    #[inline]
    fn disarm_own_limit(&self, worker: &WorkerRecord, number: u64, header: NonNull<Header>) -> bool {
        let (shard, standing) = (self.limit_shard(worker.index), &worker.limit_alarm);
        // SAFETY: the shard is the caller's.
        unsafe { self.shards().take_back(shard, true, standing, number, |entry| entry.is_limit_of(header)) }
    }

    #[cold]
    fn disarm_limit_elsewhere(&self, worker: usize, number: u64, header: NonNull<Header>) -> bool {
        self.note_visit(worker);
        // SAFETY: M3: the caller's header keeps the runtime's record.
        let arena = unsafe { header.as_ref() }.arena.get();
        // SAFETY: as above.
        let shared = unsafe { &*arena }.shared();
        let (shard, standing) = (self.limit_shard(worker), &shared.worker_records().at(worker).limit_alarm);
        // SAFETY: the caller is not in it: it does not own that shard.
        unsafe { self.shards().take_back(shard, false, standing, number, |entry| entry.is_limit_of(header)) }
    }

    /// The same on the worker that calls, and no other. False: it is another's, or has fired.
    #[inline]
    pub(super) fn disarm_limit_here(&self, worker: usize, number: u64, header: NonNull<Header>) -> bool {
        self.owner()
            .filter(|owner| owner.index == worker)
            .is_some_and(|owner| self.disarm_own_limit(owner, number, header))
    }

    /// Takes the calling worker off the count if no deadline of its requests is armed in its shard any more.
    #[inline]
    pub(super) fn settle_own_limits(&self, worker: usize) {
        if self.is_counted(worker) {
            self.settle_limits(worker, true);
        }
    }

    /// The same for the worker of that shard, after something has fired there.
    #[cold]
    pub(super) fn settle_limits_of(&self, shard: usize) {
        self.settle_limits(shard - self.owners(), false);
    }

    #[cold]
    fn settle_limits(&self, worker: usize, owns: bool) {
        let settle = || self.uncount_worker(worker);
        // SAFETY: its owner calls, or a thread that is in no shard.
        unsafe { self.shards().when_none_is_armed(self.limit_shard(worker), owns, settle) };
    }
}

impl Shared {
    /// Arms the deadline of a request. Called by its maker before any other thread has the request, or by its finisher. Only the threads of a runtime
    /// with threads fire entries of a worker's shard, so for such an entry the timekeeper need not be notified.
    ///
    /// # Safety
    ///
    /// The caller has a count of the request, and a link which it gives away (T4).
    #[inline]
    pub(crate) unsafe fn arm_due(&self, header: NonNull<Header>, due: &Due) {
        let all = || self.worker_records().iter().for_each(|worker| worker.post.attention.insist(LIMITS));
        // SAFETY: by contract.
        if !unsafe { self.deadlines.arm_due(header, due, all) } {
            self.deadline_came();
        }
    }

    /// A request has been armed, perhaps by a thread that does not keep the time. Makes the timekeeper compute anew how long it may sleep.
    pub(crate) fn deadline_came(&self) {
        match &self.driven {
            Some(driven) => driven.deadline_came(),
            None if self.deadlines.is_unattended() => _ = self.signals.notify_any(),
            None => {}
        }
    }
}
