//! The two keepers of time: the timer thread, and each worker for its own entries. The head of [`super`] says which does what, and when.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebear_context::context::for_another;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::thread::{Builder, JoinHandle};

use crate::record::report;
use crate::shared::Shared;
use crate::shared::deadlines::{Deadlines, DeadlinesRecord};
use crate::shared::driven::Driven;

/// How many entries are fired under one hold of a lock, so that those who arm and disarm are not kept waiting.
pub(super) const BATCH: usize = 128;
/// How many of its own a worker fires at a time: what it can have in its cache when it continues with them.
pub(super) const OWN_BATCH: usize = 16;
/// How long a worker has for what is due on it, before the timer thread does it instead.
pub(super) const GRACE: Duration = Duration::from_micros(500);

impl Deadlines {
    /// Whether workers keep the time, since there is no timer thread.
    pub(crate) fn is_unattended(&self) -> bool {
        self.0.unattended.load(Ordering::Relaxed)
    }

    /// A worker, which has something armed if it says so, is about to sleep: fires what is due on it, and answers how long it may.
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
        let shards = &self.0.shards;
        if !shards.has_some(worker) {
            return None;
        }
        let now = self.now();
        self.0.fire_own(worker, now);
        shards.left(worker, now)
    }

    /// Whether anything of this worker's may be due now.
    #[inline]
    pub(crate) fn is_own_due(&self, worker: usize) -> bool {
        let shards = &self.0.shards;
        shards.has_some(worker) && shards.may_be_due(worker, self.now())
    }

    /// Fires a batch of what is due on this worker, on its thread. Answers whether anything of its is still armed.
    pub(crate) fn fire_own(&self, worker: usize) -> bool {
        let shards = &self.0.shards;
        if !shards.has_some(worker) {
            return false;
        }
        self.0.fire_own(worker, self.now());
        shards.has_some(worker)
    }

    #[cold]
    fn keep_instead(&self) -> Option<Duration> {
        let now = self.now();
        self.fire_due(now);
        self.next().map(|at| at.saturating_duration_since(now))
    }
}

/// Moves the virtual clock of a runtime to its next deadline; false if there is no such clock, or no deadline.
pub(crate) fn pass_time(shared: &Shared) -> bool {
    let clock = shared.driven.as_ref().and_then(Driven::virtual_clock);
    let (Some(clock), Some(at)) = (clock, shared.deadlines.next()) else { return false };
    clock.set(at);
    true
}

impl DeadlinesRecord {
    /// Sees to it that there is a timer thread, and that it does not sleep longer than until `at`.
    #[cold]
    pub(super) fn limit_timer_sleep(self: &Arc<Self>, shard: usize, at: Instant) {
        let mut thread = self.lock_thread();
        if thread.handle.is_none() && !self.shards.is_closed() {
            match self.start() {
                Ok(handle) => thread.handle = Some(handle),
                Err(_) => return self.unattended.store(true, Ordering::Relaxed),
            }
            self.unattended.store(false, Ordering::Relaxed);
        }
        drop(thread);
        self.shards.tell(shard, at);
    }

    fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        #[cfg(test)]
        if self.refuse_thread.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let inner = self.clone();
        Builder::new().name(self.name.clone()).spawn(move || {
            // A user's clock may drop the last handle of a runtime, whose end waits for those that this thread wakes.
            if catch_unwind(AssertUnwindSafe(|| for_another(|| inner.keep()))).is_err() {
                report::die(&"its timer has panicked");
            }
        })
    }

    /// The timer thread.
    fn keep(&self) {
        wake_exactly();
        loop {
            // A user's clock is not asked under a lock.
            let before = self.clock.is_some().then(|| self.now());
            if !self.shards.rest(|| before.unwrap_or_else(|| self.at_least())) {
                return;
            }
            let now = self.now();
            for shard in 0..self.shards.count() {
                while self.shards.is_neglected(shard, now) && self.fire_some(shard, now, BATCH) {}
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
