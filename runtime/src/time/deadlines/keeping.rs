//! The two kinds of threads that fire entries: the timer thread, and each worker for its own. The head of [`super`] says which does what, and when.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebear_context::context::for_another;
use forebear_context::shim::thread::{Builder, JoinHandle};
use forebear_context::shim::{Arc, ThreadBody};

use crate::record::report;
use crate::shared::Shared;
use crate::shared::deadlines::{Deadlines, DeadlinesRecord};
use crate::shared::driven::Driven;

/// How many entries are fired under one hold of a lock. It bounds the wait of threads that arm and disarm.
pub(super) const BATCH: usize = 128;
/// How many of its own entries a worker fires at a time: as many as its cache holds when it continues with them.
pub(super) const OWN_BATCH: usize = 16;
/// How long a worker has for its due entries, before the timer thread fires them instead.
pub(super) const GRACE: Duration = Duration::from_micros(500);

impl Deadlines {
    /// A worker is about to sleep; `armed` says whether it has an armed entry. Fires the worker's due entries, and answers how long it may sleep.
    #[inline]
    pub(crate) fn before_sleep(&self, worker: usize, armed: bool) -> Option<Duration> {
        self.settle_limits(worker);
        // An entry for a coroutine of this worker was armed on this very thread; a thread that arms one for a request wakes a worker.
        if self.is_unattended() {
            self.keep_instead()
        } else if armed {
            self.keep_own(worker)
        } else {
            None
        }
    }

    #[cold]
    fn keep_own(&self, worker: usize) -> Option<Duration> {
        let shards = &self.record().shards();
        if !shards.has_some(worker) {
            return None;
        }
        let now = self.now();
        self.record().fire_own(worker, now);
        shards.left(worker, now)
    }

    /// Whether an entry of this worker's may be due now.
    #[inline]
    pub(crate) fn is_own_due(&self, worker: usize) -> bool {
        let shards = &self.record().shards();
        shards.has_some(worker) && shards.may_be_due(worker, self.now())
    }

    /// Fires a batch of this worker's due entries, on its thread. Answers whether an entry of it is still armed.
    pub(crate) fn fire_own(&self, worker: usize) -> bool {
        let shards = &self.record().shards();
        if !shards.has_some(worker) {
            return false;
        }
        self.record().fire_own(worker, self.now());
        shards.has_some(worker)
    }

    #[cold]
    fn keep_instead(&self) -> Option<Duration> {
        let now = self.now();
        self.fire_due(now);
        self.next().map(|at| at.saturating_duration_since(now))
    }
}

/// Moves the virtual clock of a runtime to its next deadline; false if there is no such clock, or no deadline, or that is later than `until`.
pub(crate) fn pass_time(shared: &Shared, until: Option<Instant>) -> bool {
    let clock = shared.driven.as_ref().and_then(Driven::virtual_clock);
    let (Some(clock), Some(at)) = (clock, shared.deadlines.next()) else { return false };
    if until.is_some_and(|until| at > until) {
        return false;
    }
    clock.set(at);
    true
}

impl DeadlinesRecord {
    /// Starts the timer thread if there is none, and limits its sleep to `at`.
    #[cold]
    pub(super) fn limit_timer_sleep(self: &Arc<Self>, shard: usize, at: Instant) {
        let mut thread = self.lock_thread();
        if thread.handle.is_none() && !self.shards().is_closed() {
            match self.start() {
                Ok(handle) => thread.handle = Some(handle),
                Err(_) => return self.set_unattended(&thread, true),
            }
            self.set_unattended(&thread, false);
        }
        drop(thread);
        self.shards().tell(shard, at);
    }

    fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        #[cfg(test)]
        if self.refuses_thread() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let inner = self.clone();
        let keep: ThreadBody = Box::new(move || {
            // A user's clock may drop the last handle of a runtime, whose end waits for those that this thread wakes.
            if catch_unwind(AssertUnwindSafe(|| for_another(|| inner.keep()))).is_err() {
                report::die(&"its timer has panicked");
            }
        });
        Builder::new().name(self.name().to_owned()).spawn(keep)
    }

    /// The timer thread.
    fn keep(&self) {
        wake_exactly();
        loop {
            // A user's clock is not asked under a lock.
            let before = self.clock().is_some().then(|| self.now());
            if !self.shards().rest(|| before.unwrap_or_else(|| self.at_least())) {
                return;
            }
            let now = self.now();
            for shard in 0..self.shards().count() {
                while self.shards().is_neglected(shard, now) && self.fire_some(shard, now, BATCH) {}
            }
        }
    }
}

/// The system may wake a thread some 50 µs late, so that it can wake several at once. This thread asks to be woken in
/// time.
pub(crate) fn wake_exactly() {
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    // SAFETY: it changes how this thread sleeps, and nothing else. A system that refuses it wakes the thread later.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}
