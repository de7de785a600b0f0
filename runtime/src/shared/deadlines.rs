//! The record of a runtime's deadlines. It lies in the runtime's own record ([`super::Shared`]), so it stands in this layer. All fields are private:
//! the code in [`crate::time::deadlines`], which has the races and the invariants T1 to T5, works on them through the methods below.
//!
//! | fields | written | read |
//! |---|---|---|
//! | `clock`, `first_read`, `jumps`, `by_workers`, `estimates`, `name` | when the record is made | by any thread |
//! | `latest` | by a thread that has read the user's clock, or hears of a jump | by any thread |
//! | `shards` | under the lock of each shard, or by the worker that owns it | the same |
//! | `thread` | under its own lock | the same |
//! | `requests` | under the lock of the shard whose entry it counts, and at the end | by any thread |
//! | `limits` | see [`Limits`] | see [`Limits`] |
//! | `unattended` | under the lock of `thread` | by any thread |

use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, Subscription, deadline_after};
use forebear_context::context::{Context, Ticket};
use forebear_context::error::internal::drop_contained;
use forebear_context::shim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use forebear_context::shim::thread::JoinHandle;
use forebear_context::shim::{Arc, Mutex, MutexGuard};

use crate::record::header::Header;
use crate::state::alarms::{Shards, Standing};

/// A worker whose requests other threads often disarm arms them in the shard for all: after so many visits,
const VISITS: u32 = 32;
/// and while there is more than one visit for so many deadlines.
const ARMS_A_VISIT: u32 = 1024;

/// The deadlines of a runtime. See the module head.
pub(crate) struct Deadlines(Arc<DeadlinesRecord>);

/// What the deadlines of a runtime share with its timer thread and its clock.
pub(crate) struct DeadlinesRecord {
    /// A clock of the user's; `None` for the system's.
    clock: Option<Arc<dyn Clock>>,
    /// The latest time that the user's clock has reported, in nanoseconds from `first_read`.
    latest: AtomicU64,
    first_read: Instant,
    /// Whether the clock stands still between jumps, and calls the subscriber at each.
    jumps: bool,
    /// Whether workers fire the entries of their shards.
    by_workers: bool,
    /// Whether workers may estimate the time.
    estimates: bool,
    /// The name of the timer thread.
    name: String,
    shards: Shards<FiredEntry>,
    thread: Mutex<TimerThread>,
    /// How many requests are armed in the shard of all others, and how many [`Limits`] are counted.
    requests: AtomicUsize,
    /// One for each worker that keeps the time.
    limits: Box<[Limits]>,
    /// The timer thread could not be started: workers keep the time.
    unattended: AtomicBool,
    #[cfg(test)]
    refuse_thread: AtomicBool,
}

/// As the hooks of a runtime ([`crate::record::hooks`]), the clock's destructor may run any code of the user's.
impl Drop for DeadlinesRecord {
    fn drop(&mut self) {
        drop_contained(self.clock.take());
    }
}

/// What a worker has for the deadlines of the requests that it makes, beside a shard.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Limits {
    /// An entry may be armed in the worker's shard, and `requests` counts the worker. Written under the lock of the shard; the worker reads it.
    counted: AtomicBool,
    /// How often another thread has disarmed an entry of this worker's, which takes a fence of all threads.
    visits: AtomicU32,
    /// How many deadlines the worker has armed, in its shard or in the shard for all. Written by the worker alone.
    arms: AtomicU32,
}

/// What the timer owns, and gives up at the end.
#[derive(Default)]
pub(crate) struct TimerThread {
    pub(crate) handle: Option<JoinHandle<()>>,
    pub(crate) subscription: Option<Subscription>,
}

/// What is due at an instant. The head of `time/deadlines/firing.rs` says what becomes of each.
pub(crate) enum FiredEntry {
    Wait(NonNull<Context>, Ticket),
    /// The wait of a coroutine, whose memory stays.
    Coroutine(NonNull<Context>, Ticket),
    /// The same in the shard of its own worker, with the instant at which it is due. It stays there when it is disarmed.
    Own(NonNull<Context>, Ticket, Instant),
    /// A disarmed `Own`.
    Rests,
    /// With a link (T4).
    Request(NonNull<Header>),
    /// The same, armed by a worker in a shard of its own, and the field that says where it stands there. The request has the instant, so this variant
    /// is no larger than the others.
    Limit(NonNull<Header>, NonNull<Standing>),
    /// An expiration timer of a request that runs ([`crate::api::expiry`]). With a link (T4).
    Expiry(NonNull<Header>),
}

// SAFETY: a ticket may be used by other threads, on a context that is valid by T2; a link may be given up by any
// thread (T4).
unsafe impl Send for FiredEntry {}

/// As large as what a wait needs.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<FiredEntry>() == 32);

impl Deadlines {
    /// Around a record that was made by [`DeadlinesRecord::new`].
    pub(crate) fn of(record: Arc<DeadlinesRecord>) -> Deadlines {
        Deadlines(record)
    }

    #[inline(always)]
    pub(crate) fn record(&self) -> &Arc<DeadlinesRecord> {
        &self.0
    }

    /// Whether the workers may estimate the time ([`crate::state::estimated_clock`]).
    pub(crate) fn estimates(&self) -> bool {
        self.0.estimates
    }

    /// Whether workers keep the time, since there is no timer thread.
    pub(crate) fn is_unattended(&self) -> bool {
        self.0.unattended.load(Ordering::Relaxed)
    }

    /// Whether any request is armed.
    pub(crate) fn has_requests(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) != 0
    }
}

impl DeadlinesRecord {
    /// `owners` is how many workers keep the time in shards of their own; none if the timer thread or a jump fires all entries. A `subscription`
    /// means that the clock jumps.
    pub(crate) fn new(
        clock: Option<Arc<dyn Clock>>,
        first_read: Instant,
        subscription: Option<Subscription>,
        estimates: bool,
        name: String,
        shards: Shards<FiredEntry>,
        owners: usize,
    ) -> DeadlinesRecord {
        DeadlinesRecord {
            clock,
            latest: AtomicU64::new(0),
            first_read,
            jumps: subscription.is_some(),
            by_workers: owners != 0,
            estimates,
            name,
            shards,
            thread: Mutex::new(TimerThread { handle: None, subscription }),
            requests: AtomicUsize::new(0),
            limits: (0..owners).map(|_| Limits::default()).collect(),
            unattended: AtomicBool::new(false),
            #[cfg(test)]
            refuse_thread: AtomicBool::new(false),
        }
    }

    /// The user's clock; `None` for the system's.
    #[inline]
    pub(crate) fn clock(&self) -> Option<&dyn Clock> {
        self.clock.as_deref()
    }

    /// Whether the clock stands still between jumps.
    #[inline]
    pub(crate) fn jumps(&self) -> bool {
        self.jumps
    }

    /// Whether workers fire the entries of their shards.
    #[inline(always)]
    pub(crate) fn is_kept_by_workers(&self) -> bool {
        self.by_workers
    }

    /// The name of the timer thread.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    #[inline(always)]
    pub(crate) fn shards(&self) -> &Shards<FiredEntry> {
        &self.shards
    }

    pub(crate) fn lock_thread(&self) -> MutexGuard<'_, TimerThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether workers have to keep the time, under the lock of the thread.
    pub(crate) fn set_unattended(&self, _: &MutexGuard<'_, TimerThread>, unattended: bool) {
        self.unattended.store(unattended, Ordering::Relaxed);
    }

    /// Notes a time that the user's clock has reported.
    pub(crate) fn note_reading(&self, now: Instant) {
        let after = now.saturating_duration_since(self.first_read).as_nanos();
        self.latest.fetch_max(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The latest time that the user's clock has reported.
    #[inline]
    pub(crate) fn latest_reading(&self) -> Instant {
        let after = Duration::from_nanos(self.latest.load(Ordering::Relaxed));
        deadline_after(self.first_read, after).unwrap_or(self.first_read)
    }

    /// Counts a request that is armed in the shard of all others, or a worker with armed requests; under the lock of that shard. Answers whether it
    /// is the first.
    #[inline]
    pub(crate) fn count_requests(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Takes back one [`count_requests`](Self::count_requests), under the same lock.
    #[inline]
    pub(crate) fn uncount_requests(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// The end: no request is armed any more.
    pub(crate) fn forget_requests(&self) {
        self.requests.store(0, Ordering::Relaxed);
    }

    /// How many workers have shards of their own for the requests that they make.
    #[inline]
    pub(crate) fn owners(&self) -> usize {
        self.limits.len()
    }

    /// Called by this worker when it arms a deadline of a request. Answers whether it arms in its own shard.
    #[inline]
    pub(crate) fn arms_in_own_shard(&self, worker: usize) -> bool {
        let Some(limits) = self.limits.get(worker) else { return false };
        let arms = limits.arms.load(Ordering::Relaxed).wrapping_add(1);
        limits.arms.store(arms, Ordering::Relaxed);
        let visits = limits.visits.load(Ordering::Relaxed);
        visits < VISITS || visits - VISITS < arms / ARMS_A_VISIT
    }

    /// Another thread disarms an entry of this worker's.
    pub(crate) fn note_visit(&self, worker: usize) {
        self.limits[worker].visits.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the worker is counted: an entry may be armed in its shard.
    #[inline]
    pub(crate) fn is_counted(&self, worker: usize) -> bool {
        self.limits.get(worker).is_some_and(|limits| limits.counted.load(Ordering::Relaxed))
    }

    /// Counts the worker if it is not counted, under the lock of its shard. Answers whether it is the first of all counted.
    #[inline]
    pub(crate) fn count_worker(&self, worker: usize) -> bool {
        let counted = &self.limits[worker].counted;
        if counted.load(Ordering::Relaxed) {
            return false;
        }
        counted.store(true, Ordering::Relaxed);
        self.count_requests()
    }

    /// Takes the worker off the count, under the lock of its shard, which has no armed entry.
    pub(crate) fn uncount_worker(&self, worker: usize) {
        let counted = &self.limits[worker].counted;
        if counted.load(Ordering::Relaxed) {
            counted.store(false, Ordering::Relaxed);
            self.uncount_requests();
        }
    }

    #[cfg(test)]
    pub(crate) fn refuse_thread(&self, refuse: bool) {
        self.refuse_thread.store(refuse, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn refuses_thread(&self) -> bool {
        self.refuse_thread.load(Ordering::Relaxed)
    }
}
