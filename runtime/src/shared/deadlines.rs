//! The record of a runtime's deadlines, which lies in the runtime's own ([`super::Shared`]). What is done with it, the races, and invariants T1 to T5,
//! are in [`crate::time::deadlines`], which alone touches its fields.

use std::ptr::NonNull;
use std::time::Instant;

use forebear_context::clock::{Clock, Subscription};
use forebear_context::context::{Context, Ticket};
use forebear_context::error::internal::drop_contained;
use forebear_context::shim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use forebear_context::shim::thread::JoinHandle;
use forebear_context::shim::{Arc, Mutex};

use crate::record::header::Header;
use crate::state::alarms::{Shards, Standing};

/// The deadlines of a runtime. See the module head.
pub(crate) struct Deadlines(pub(crate) Arc<DeadlinesRecord>);

/// What the deadlines of a runtime share with its timer thread and its clock.
pub(crate) struct DeadlinesRecord {
    /// A clock of the user's; the system's otherwise.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// The latest time that the user's clock has told: in nanoseconds from the first.
    pub(crate) latest: AtomicU64,
    pub(crate) first_read: Instant,
    /// Whether the clock stands still between jumps, and calls `fire_due` at each.
    pub(crate) jumps: bool,
    /// Workers fire what is in their shards.
    pub(crate) by_workers: bool,
    /// Workers may estimate what time it is.
    pub(crate) estimates: bool,
    /// The name of the timer thread.
    pub(crate) name: String,
    pub(crate) shards: Shards<FiredEntry>,
    pub(crate) thread: Mutex<TimerThread>,
    /// How many requests are armed in the shard of all others, and how many [`Limits`] are counted. Raised under the lock of their shard.
    pub(crate) requests: AtomicUsize,
    /// Of each worker that keeps the time.
    pub(crate) limits: Box<[Limits]>,
    /// The timer thread could not be started: workers keep the time.
    pub(crate) unattended: AtomicBool,
    #[cfg(test)]
    pub(crate) refuse_thread: AtomicBool,
}

/// As the hooks of a runtime ([`crate::record::hooks`]), the clock may go anywhere.
impl Drop for DeadlinesRecord {
    fn drop(&mut self) {
        drop_contained(self.clock.take());
    }
}

/// What a worker has for the deadlines of the requests that it makes, beside a shard.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Limits {
    /// Something may be armed there, and is counted. Touched under the lock of the shard, and looked at by the worker.
    pub(crate) counted: AtomicBool,
    /// How often another thread had to take back what is the worker's, for which it pays a fence of all threads.
    pub(crate) visits: AtomicU32,
    /// How many deadlines the worker has armed, here or in the shard for all.
    pub(crate) arms: AtomicU32,
}

/// What the timer holds, to be given up at the end.
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
    /// The same at its own worker, where it stays when it is taken back; and when it is due.
    Own(NonNull<Context>, Ticket, Instant),
    /// What stays of that.
    Rests,
    /// With a link (T4).
    Request(NonNull<Header>),
    /// The same, armed by a worker in a shard of its own, and where it stands there. When it is due the request says: so this is no larger than others.
    Limit(NonNull<Header>, NonNull<Standing>),
    /// An expiration timer of a request that runs ([`crate::api::expiry`]). With a link (T4).
    Expiry(NonNull<Header>),
}

// SAFETY: a ticket is there to be used by other threads, on a context that is valid by T2; a link may be given up by any
// thread (T4).
unsafe impl Send for FiredEntry {}

/// As large as what a wait needs.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<FiredEntry>() == 32);

impl Deadlines {
    /// Whether its workers may estimate what time it is ([`crate::state::estimated_clock`]).
    pub(crate) fn estimates(&self) -> bool {
        self.0.estimates
    }
}
