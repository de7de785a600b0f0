//! Counts and flags of a runtime that several threads change, each by its own methods.

use forebear_context::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Which workers have left, and whether none will poll again (`schedule/supply.rs`).
#[derive(Debug)]
pub(crate) struct Departure {
    /// Workers whose loop has not ended.
    alive: AtomicUsize,
    over: AtomicBool,
}

impl Departure {
    /// Of a runtime with so many workers that have threads.
    pub(crate) fn new(workers: usize) -> Departure {
        Departure { alive: AtomicUsize::new(workers), over: AtomicBool::new(false) }
    }

    /// The calling worker leaves, unless it is the last. Answers whether it has left.
    pub(crate) fn leave_unless_last(&self) -> bool {
        let mut alive = self.alive.load(Ordering::Acquire);
        while alive > 1 {
            match self.alive.compare_exchange(alive, alive - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => alive = now,
            }
        }
        false
    }

    /// The calling worker had left by [`leave_unless_last`](Self::leave_unless_last), and stays.
    pub(crate) fn stay(&self) {
        self.alive.fetch_add(1, Ordering::AcqRel);
    }

    /// No worker will poll again.
    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Whether no worker will poll again. Acquires what the last worker did.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// Workers that sleep with a tick, and then poll what other workers keep private (`schedule/worker/raids.rs`).
#[derive(Debug, Default)]
pub(crate) struct Watchers(AtomicUsize);

impl Watchers {
    /// The calling worker begins to watch.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The calling worker watches no longer.
    pub(crate) fn end(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether no worker watches.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// Waits in destructors that a panic runs (`schedule/worker/unwinding.rs`).
#[derive(Debug, Default)]
pub(crate) struct UnwindWaits {
    /// Workers that block in one.
    blocked: AtomicUsize,
    /// Whether the hook for warnings was called for one.
    warned: AtomicBool,
}

impl UnwindWaits {
    /// The calling worker is about to block.
    pub(crate) fn begin_block(&self) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
    }

    /// The calling worker blocks no longer.
    pub(crate) fn end_block(&self) {
        self.blocked.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many workers block.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether the caller is the first to warn.
    pub(crate) fn is_first_warning(&self) -> bool {
        !self.warned.swap(true, Ordering::Relaxed)
    }
}

/// What [`Runtime::metrics`](crate::Runtime::metrics) reports of the runtime as a whole.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    over_bound: AtomicU64,
    shut_down: AtomicUsize,
    left_behind: AtomicUsize,
}

impl Totals {
    /// A pool admits an included request over its bound.
    pub(crate) fn count_over_bound(&self) {
        self.over_bound.fetch_add(1, Ordering::Relaxed);
    }

    /// Included requests that pools have admitted over their bounds.
    pub(crate) fn over_bound(&self) -> u64 {
        self.over_bound.load(Ordering::Relaxed)
    }

    /// At a shutdown so many requests had started and not ended.
    pub(crate) fn note_shut_down(&self, unfinished: usize) {
        self.shut_down.fetch_max(unfinished, Ordering::Relaxed);
    }

    /// Requests that had started and not ended at a shutdown.
    pub(crate) fn shut_down(&self) -> usize {
        self.shut_down.load(Ordering::Relaxed)
    }

    /// So many stacks are abandoned. Answers whether they are the first.
    pub(crate) fn count_left_behind(&self, stacks: usize) -> bool {
        self.left_behind.fetch_add(stacks, Ordering::Relaxed) == 0
    }

    /// Stacks that were abandoned.
    pub(crate) fn left_behind(&self) -> usize {
        self.left_behind.load(Ordering::Relaxed)
    }
}
