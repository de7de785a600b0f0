//! What the deadlines of a runtime share with its timer thread and its clock: the shards, the time as it was last told, and how an
//! entry gets in and out. The head of [`super`] has the races and the invariants.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, Subscription, deadline_after};
use forebear_context::context::{Alarm, Context, Ticket};
use forebear_context::shim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::thread::JoinHandle;
use forebear_context::shim::{Arc, Mutex, MutexGuard, time};

use super::firing::{FiredEntry, fire, refuse};
use crate::record::callback;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::report;
use crate::shared::OfRuntime;
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::stack::coroutine;
use crate::state::alarms::Shards;

pub(super) struct Inner {
    /// A clock of the user's; the system's otherwise.
    pub(super) clock: Option<Arc<dyn Clock>>,
    /// The latest time that the user's clock has told: in nanoseconds from the first.
    pub(super) told: AtomicU64,
    pub(super) first_told: Instant,
    /// Whether the clock stands still between jumps, and calls [`Inner::fire_due`] at each.
    pub(super) jumps: bool,
    /// Workers fire what is in their shards.
    pub(super) by_workers: bool,
    /// Workers may estimate what time it is.
    pub(super) estimates: bool,
    /// The name of the timer thread.
    pub(super) name: String,
    pub(super) shards: Shards<FiredEntry>,
    pub(super) thread: Mutex<Thread>,
    /// How many requests are armed in the shard of all others, and how many [`Limits`] are counted. Raised under the lock of their shard.
    pub(super) requests: AtomicUsize,
    /// Of each worker that keeps the time.
    pub(super) limits: Box<[Limits]>,
    /// The timer thread could not be started: workers keep the time.
    pub(super) unattended: AtomicBool,
    #[cfg(test)]
    pub(super) refuse_thread: AtomicBool,
}

/// What a worker has for the deadlines of the requests that it makes, beside a shard.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Limits {
    /// Something may be armed there, and is counted. Touched under the lock of the shard, and looked at by the worker.
    pub(super) counted: AtomicBool,
    /// How often another thread had to take back what is the worker's, for which it pays a fence of all threads.
    pub(super) visits: AtomicU32,
    /// How many deadlines the worker has armed, here or in the shard for all.
    pub(super) arms: AtomicU32,
}

/// More visits than these, and one for so many deadlines, say that the requests of a worker often end elsewhere: it arms in the shard for all then.
const VISITS: u32 = 32;
const ARMS_A_VISIT: u32 = 1024;

/// What is to be given up at the end.
#[derive(Default)]
pub(super) struct Thread {
    pub(super) handle: Option<JoinHandle<()>>,
    pub(super) subscription: Option<Subscription>,
}

impl Inner {
    /// The time on the clock. Not in the middle of a wait, nor under a lock: it may be a user's.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        match &self.clock {
            None => time::now(),
            Some(clock) => {
                let now = ask(&**clock);
                self.hears(now);
                now
            }
        }
    }

    /// The user's clock has told this time.
    pub(super) fn hears(&self, now: Instant) {
        let after = now.saturating_duration_since(self.first_told).as_nanos();
        self.told.fetch_max(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What the time is at least: exact if the clock is the system's, or jumps. In the middle of a wait, and under a lock.
    #[inline]
    pub(super) fn at_least(&self) -> Instant {
        match &self.clock {
            None => time::now(),
            Some(_) => {
                // The clock's subscriber has told it before it has fired, which is before the caller's entry was in, or finds that.
                let after = Duration::from_nanos(self.told.load(Ordering::Relaxed));
                deadline_after(self.first_told, after).unwrap_or(self.first_told)
            }
        }
    }

    pub(super) fn lock_thread(&self) -> MutexGuard<'_, Thread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where all is armed that is no worker's own.
    #[inline]
    pub(super) fn others(&self) -> usize {
        self.shards.count() - 1
    }

    /// The worker that keeps the time of this context's waits, in a shard of its own.
    #[inline]
    pub(super) fn own<'a>(&self, context: &'a Context) -> Option<&'a WorkerRecord> {
        if !self.by_workers || !coroutine::is_coroutines(context) {
            return None;
        }
        // SAFETY: it is a coroutine's.
        let worker = unsafe { coroutine::fiber_of(context) }.worker_record()?;
        // It may wait by another runtime's clock.
        ptr::eq(Arc::as_ptr(&worker.shared().deadlines.0), self).then_some(worker)
    }

    pub(super) fn arm(
        self: &Arc<Self>,
        at: Instant,
        entry: FiredEntry,
        first_request: impl FnOnce(),
    ) -> Alarm {
        let gone = Alarm { number: 0, own: None };
        if self.clock.is_some() && at <= self.at_least() {
            fire(entry);
            return gone;
        }
        let now = || self.at_least();
        let is_request = matches!(entry, FiredEntry::Request(_));
        let count = || {
            if is_request && self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
                first_request();
            }
        };
        // SAFETY: this shard has no owner.
        let armed = match unsafe { self.shards.insert(self.others(), at, entry, now, count) } {
            Ok(armed) => armed,
            Err(refused) => {
                refuse(refused);
                return gone;
            }
        };
        if self.jumps {
            let now = self.at_least();
            if at <= now {
                self.fire_due(now);
            }
        } else if armed.first {
            self.limit_timer_sleep(self.others(), at);
        }
        Alarm { number: armed.number, own: None }
    }

    /// A wait of a coroutine of that worker, on the worker's thread.
    #[inline(never)]
    pub(super) fn arm_own(
        self: &Arc<Self>,
        worker: &WorkerRecord,
        at: Instant,
        context: NonNull<Context>,
        ticket: Ticket,
    ) -> Alarm {
        worker.note_alarm();
        let entry = FiredEntry::Own(context, ticket, at);
        // SAFETY: by contract the owner of the shard is the caller.
        match unsafe { self.shards.insert(worker.index, at, entry, || self.at_least(), || ()) } {
            Ok(armed) => {
                if armed.first {
                    self.limit_timer_sleep(worker.index, at);
                }
                Alarm { number: armed.number, own: None }
            }
            Err(refused) => {
                refuse(refused);
                Alarm { number: 0, own: None }
            }
        }
    }

    /// The shard for the deadlines of a worker's requests.
    #[inline]
    fn limit_shard(&self, worker: usize) -> usize {
        self.limits.len() + worker
    }

    /// The worker that calls, if it keeps the deadlines of the requests that it makes.
    #[inline]
    pub(super) fn arming_worker(self: &Arc<Self>) -> Option<&'static WorkerRecord> {
        let worker = self.owner()?;
        let limits = self.limits.get(worker.index)?;
        let arms = limits.arms.load(Ordering::Relaxed).wrapping_add(1);
        limits.arms.store(arms, Ordering::Relaxed);
        let visits = limits.visits.load(Ordering::Relaxed);
        (visits < VISITS || visits - VISITS < arms / ARMS_A_VISIT).then_some(worker)
    }

    /// The worker of this runtime that calls.
    #[inline]
    fn owner(&self) -> Option<&'static WorkerRecord> {
        let worker = fiber::get().and_then(Fiber::worker_record)?;
        ptr::eq(Arc::as_ptr(&worker.shared().deadlines.0), self).then_some(worker)
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
        let (shard, limits) = (self.limit_shard(worker.index), &self.limits[worker.index]);
        let entry = || FiredEntry::Limit(header, NonNull::from(&worker.limit_alarm));
        let count = || {
            if !limits.counted.load(Ordering::Relaxed) {
                limits.counted.store(true, Ordering::Relaxed);
                if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
                    first_request();
                }
            }
        };
        let again = || {
            count();
            entry()
        };
        // SAFETY: the shard is the caller's.
        if let Some(number) = unsafe { self.shards.arm_in_place(shard, &worker.limit_alarm, at, again) } {
            return number;
        }
        // SAFETY: as above.
        match unsafe { self.shards.insert(shard, at, entry(), || self.at_least(), count) } {
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
        unsafe { self.shards.take_back(shard, true, standing, number, |entry| entry.is_limit_of(header)) }
    }

    #[cold]
    fn disarm_limit_elsewhere(&self, worker: usize, number: u64, header: NonNull<Header>) -> bool {
        self.limits[worker].visits.fetch_add(1, Ordering::Relaxed);
        // SAFETY: M3: the caller's header keeps the runtime's record.
        let shared = unsafe { (*header.as_ref().arena.get()).shared() };
        let (shard, standing) = (self.limit_shard(worker), &shared.worker_records().at(worker).limit_alarm);
        // SAFETY: the caller is not in it: it does not own that shard.
        unsafe { self.shards.take_back(shard, false, standing, number, |entry| entry.is_limit_of(header)) }
    }

    /// The same on the worker that calls, and no other. False: it is another's, or has fired.
    #[inline]
    pub(super) fn disarm_limit_here(&self, worker: usize, number: u64, header: NonNull<Header>) -> bool {
        self.owner()
            .filter(|owner| owner.index == worker)
            .is_some_and(|owner| self.disarm_own_limit(owner, number, header))
    }

    /// Takes the worker that calls off the count if nothing of its requests is armed there any more.
    #[inline]
    pub(super) fn settle_own_limits(&self, worker: usize) {
        if self.limits.get(worker).is_some_and(|limits| limits.counted.load(Ordering::Relaxed)) {
            self.settle_limits(worker, true);
        }
    }

    /// The same for the worker of that shard, after something has fired there.
    #[cold]
    pub(super) fn settle_limits_of(&self, shard: usize) {
        self.settle_limits(shard - self.limits.len(), false);
    }

    #[cold]
    fn settle_limits(&self, worker: usize, owns: bool) {
        let counted = &self.limits[worker].counted;
        let settle = || {
            if counted.load(Ordering::Relaxed) {
                counted.store(false, Ordering::Relaxed);
                self.requests.fetch_sub(1, Ordering::Relaxed);
            }
        };
        // SAFETY: its owner calls, or a thread that is in no shard.
        unsafe { self.shards.when_none_is_armed(self.limit_shard(worker), owns, settle) };
    }

    /// Takes back what is nobody's own.
    pub(super) fn disarm(&self, number: u64) -> bool {
        // Not even a lock for what never was in a shard.
        // SAFETY: this shard has no owner.
        let entry = if number == 0 { None } else { unsafe { self.shards.remove(self.others(), number) } };
        if let Some(FiredEntry::Request(_)) = entry {
            self.requests.fetch_sub(1, Ordering::Relaxed);
        }
        entry.is_some()
    }
}

/// Asks a clock of the user's. There is nothing to go by if it panics.
#[cold]
pub(super) fn ask(clock: &dyn Clock) -> Instant {
    callback::call(callback::CLOCK, || clock.now()).unwrap_or_else(|payload| {
        report::die(&format_args!("the clock of its runtime has panicked: {}", report::message_of(&*payload)))
    })
}
