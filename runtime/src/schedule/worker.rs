//! The record of a worker: one thread's queues, and the counters and caches of its scheduler.
//!
//! How a worker chooses its next step is in `choose.rs`, how it publishes requests in `publish.rs`, and how it robs other workers in `steal.rs`. When
//! it leaves requests unstarted is in [`hold`], and how its fibers suspend in `suspend.rs`.
//!
//! # Vocabulary
//!
//! * **ready**: suspended fibers of this worker that may continue ([`crate::stack::ready`]).
//! * **private**: unstarted requests that this worker made and no other thread sees ([`crate::record::private_queue`]).
//! * **shared queue**: unstarted requests that this worker has published; any worker may take them ([`crate::state::shared_queue`]).
//! * **roots**: the runtime's injector, for requests that are made outside any request.
//! * **record**: what the layers below know of a worker ([`WorkerRecord`]); a [`Worker`] begins with it, and adds what the scheduler alone knows.
//! * **post**: the part of the record that other threads touch: attention word, mailbox, shared queue, and two keys. One key is that of the
//!   request that the worker runs, the other the best of its private queue.
//!
//! # Invariants
//!
//! * **V1** Only the worker's own thread touches the fields. The exceptions are fields of the record, and its head names them.
//! * **V2** A worker claims what it has taken from a queue before it runs it. An entry that another thread has claimed is stale: the worker
//!   releases its link.
//! * **V3** A thread that makes work visible to others notifies afterwards. A worker reads the queues once more between announcing that it
//!   sleeps and sleeping (`pool/src/signals/README.md`).

use std::cell::{Cell, UnsafeCell};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::{AtomicPtr, Ordering};

mod alarm;
mod choose;
mod coroutines;
mod driven;
mod exit;
mod hold;
mod idle;
mod marks;
mod own_jobs;
mod patience;
mod publish;
mod quiet;
mod raids;
mod steal;
mod suspend;
mod unwinding;
mod view;

pub(crate) use self::driven::{Driver, settle_stuck};
use self::hold::Hold;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use self::hold::tests::after_the_claim;
use self::idle::Idle;
use self::patience::Patience;
use self::quiet::Quiet;
pub(crate) use self::view::{HasWorkers, OnWorker};

use crate::record::counter::Counter;
use crate::record::fiber::{self, Fiber, WorkerPtr};
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;
use crate::shared::exit_calls::LeavingCalls;
use crate::shared::worker::WorkerRecord;
use crate::shared::workers::Workers;
use crate::shared::{ScanTurns, Shared};
use crate::stack::coroutine::Coroutine;
use crate::stack::slab::StackSlot;
use crate::time::coarse;
use crate::time::deadlines::wake_exactly;

/// The memory of a larger hand is freed.
const LARGEST_HAND: usize = 256;

/// What a worker does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Run this request. It is claimed, and the runner's link belongs to the caller.
    Start(NonNull<Header>),
    /// Resume this fiber, which has left the ready queue.
    Resume(NonNull<Fiber>),
    /// End this request, which was put aside; it belongs to the caller.
    End(NonNull<Header>),
    /// Fail this request, since there is no stack for it. It is claimed, and the runner's link belongs to the caller. Only drivers return this.
    Fail(NonNull<Header>),
    /// Call the hook for warnings. The code that found the reason to warn could not call it.
    Warn,
    /// Drop values that could not be dropped where they were released: inside a wait, or while the worker changed its own state.
    Late,
}

// SAFETY: a step is taken and carried out on one worker's thread; it passes through the engine's types only.
unsafe impl Send for Next {}

/// See the module head.
#[repr(C)]
pub(crate) struct Worker {
    /// What the layers below know of this worker (WR1).
    record: WorkerRecord,
    idle: UnsafeCell<Idle>,
    /// The engine's side of this worker; set when its thread starts.
    engine: AtomicPtr<forebear_pool::Worker<Shared>>,
    /// How many coroutines of this worker are in use: all but the idle ones.
    busy_coroutines: Cell<usize>,
    /// The first coroutine's stack. Taken before any thread runs, so that no worker starts without one.
    first: Cell<Option<StackSlot>>,
    batch: Cell<u32>,
    /// The requests of a batch on their way to a shared queue. The memory is used again.
    hand: Cell<Vec<(u64, NonNull<Header>)>>,
    scan_turns: ScanTurns,
    /// A copy of `post.private`.
    private: Cell<u64>,
    /// Requests that ran on a waiter's stack.
    direct: Counter,
    /// Requests that the loop started.
    started: Counter,
    /// Requests and arms that were put in the shared queue.
    published: Counter,
    /// How often it took from another worker's shared queue.
    steals: Counter,
    /// How often it found nothing to do and was about to sleep.
    sleeps: Counter,
    patience: Patience,
    quiet: Quiet,
    /// Since when this worker has slept with a tick and watched for private work of others (`schedule/worker/raids.rs`).
    watches_since: Cell<Option<Instant>>,
    hold: Hold,
    /// How often a wait has checked whether there are deadlines.
    limit_looks: Cell<u32>,
    /// A scope, and how many of its jobs have ended and are not yet subtracted from its count.
    jobs: Cell<(*const ScopeCore, i64)>,
    /// How many arbitrary choices this worker has made; the number varies the next one.
    turns: Cell<u64>,
    /// When this worker last read the clock, for waits that begin on it ([`crate::time::coarse`]).
    tick: Cell<u64>,
    /// Of a worker with a thread of its own: what is called as that exits (`schedule/worker/exit.rs`).
    leaving_calls: LeavingCalls,
    /// The driver of a worker that has no thread of its own.
    driver: Option<Box<Driver>>,
}

// SAFETY: V1: other threads touch only those parts of the record that are made for it, and read the counters, which are atomic.
unsafe impl Sync for Worker {}
// SAFETY: the record moves once, before its thread begins.
unsafe impl Send for Worker {}

impl Deref for Worker {
    type Target = WorkerRecord;

    #[inline(always)]
    fn deref(&self) -> &WorkerRecord {
        &self.record
    }
}

/// What a worker has counted.
pub(crate) struct WorkerTotals {
    /// Requests that ran on a waiter's stack.
    pub direct: u64,
    /// Requests that the loop started.
    pub started: u64,
    /// Requests and arms that were put in the shared queue.
    pub published: u64,
    /// How often it took from another worker's shared queue.
    pub steals: u64,
    /// How often it found nothing to do and was about to sleep.
    pub sleeps: u64,
}

/// What other modules touch of the fields.
impl Worker {
    /// Counts a request that runs on a waiter's stack.
    #[inline(always)]
    pub(crate) fn count_direct(&self) {
        self.direct.count();
    }

    /// What it has counted, as any thread sees it.
    pub(crate) fn totals(&self) -> WorkerTotals {
        WorkerTotals {
            direct: self.direct.get(),
            started: self.started.get(),
            published: self.published.get(),
            steals: self.steals.get(),
            sleeps: self.sleeps.get(),
        }
    }

    /// The number of the next arbitrary choice.
    pub(crate) fn next_turn(&self) -> u64 {
        self.turns.replace(self.turns.get() + 1)
    }

    /// The driver of a worker that has no thread of its own.
    #[inline(always)]
    pub(crate) fn driven_by(&self) -> Option<&Driver> {
        self.driver.as_deref()
    }
}

impl Worker {
    /// Makes the `many` workers of a runtime. Not inlined, as [`Shared::new`].
    #[inline(never)]
    pub(crate) fn all_of(shared: &Arc<Shared>, many: usize) {
        let workers = (0..many).map(|index| Worker::new(index, many, shared)).collect();
        // SAFETY: WR1: a worker begins with its record.
        shared.set_workers(unsafe { Workers::new::<Worker>(workers) });
    }

    /// Makes worker number `index` of a runtime that has `of` workers.
    fn new(index: usize, of: usize, shared: &Arc<Shared>) -> Worker {
        Worker {
            // SAFETY: WR1: here.
            record: unsafe { WorkerRecord::new(index, shared) },
            idle: UnsafeCell::default(),
            engine: AtomicPtr::new(ptr::null_mut()),
            busy_coroutines: Cell::new(0),
            first: Cell::new(None),
            batch: Cell::new(1),
            hand: Cell::default(),
            scan_turns: ScanTurns::default(),
            private: Cell::new(NO_KEY),
            direct: Counter::default(),
            started: Counter::default(),
            published: Counter::default(),
            steals: Counter::default(),
            sleeps: Counter::default(),
            patience: Patience::default(),
            quiet: Quiet::default(),
            watches_since: Cell::new(None),
            hold: Hold::new(of > 1 && shared.driven.is_none()),
            limit_looks: Cell::new(0),
            jobs: Cell::new((ptr::null(), 0)),
            turns: Cell::new(0),
            tick: Cell::new(0),
            leaving_calls: LeavingCalls::default(),
            driver: shared.driven.as_ref().map(|driven| Box::new(Driver::new(driven))),
        }
    }

    /// The worker's address, which is also that of its record (WR1).
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> WorkerPtr {
        ptr::from_ref(self).cast()
    }

    /// The worker that begins with `record`.
    pub(crate) fn of(record: &WorkerRecord) -> &Worker {
        &record.shared().workers()[record.index]
    }

    /// Whether `fiber` is a stack of this worker.
    #[inline(always)]
    pub(crate) fn owns(&self, fiber: &Fiber) -> bool {
        fiber.worker == self.as_ptr()
    }

    /// Takes the worker's first stack. Called before its thread starts.
    pub(crate) fn take_first_stack(&self) -> Result<(), StackError> {
        self.first.set(Some(self.shared().slab.take(self.shared().default_class)?));
        Ok(())
    }

    /// Returns that stack to the slab if the thread never started.
    pub(crate) fn give_back_first_stack(&self) {
        self.shared().slab.give_back(self.first.take());
    }

    /// The engine's side of this worker. Called on the worker's thread.
    fn engine(&self) -> &forebear_pool::Worker<Shared> {
        // SAFETY: V1; set by `drive`, whose frame is below all that runs on this thread.
        unsafe { &*self.engine.load(Ordering::Relaxed) }
    }

    /// The body of the worker's thread: enters coroutines until one reports that the runtime has ended.
    pub(crate) fn drive(&self, engine: &forebear_pool::Worker<Shared>) {
        self.engine.store(ptr::from_ref(engine).cast_mut(), Ordering::Relaxed);
        wake_exactly();
        self.leaving_calls.begin();
        self.note_time();
        self.post.show_current(Some(fiber::current_slot()));
        let Some(first) = self.first.take() else { unreachable!("taken when the runtime was built") };
        self.busy_coroutines.set(1);
        let mut next = Some(Coroutine::build(first, self));
        while let Some(coroutine) = next {
            // SAFETY: K1, K2: it is current from here on; K3.
            unsafe {
                fiber::enter(&coroutine.as_ref().fiber);
                let left_for = coroutine.as_ref().context().as_ref().switch().resume();
                next = left_for.map(|context| Coroutine::of(context));
            }
        }
        // SAFETY: no fiber is always valid.
        unsafe { fiber::enter(ptr::null()) };
        self.post.show_current(None);
        self.set_running(NO_KEY);
        self.retire(usize::MAX);
        self.shared().ending.worker_goes(self.index);
        // A survey that was requested before that. A thread that requests one later runs it itself.
        while self.shared().survey.make_now() {}
    }

    /// Counts a job of `scope` that has ended. The head of [`mod@crate::api::scope`] says why the worker collects these counts.
    #[inline(always)]
    pub(crate) fn job_done(&self, scope: *const ScopeCore) {
        let (of, jobs) = self.jobs.get();
        if ptr::eq(of, scope) {
            self.jobs.set((scope, jobs + 1));
        } else {
            self.settle_jobs();
            self.jobs.set((scope, 1));
        }
    }

    /// Subtracts the collected jobs from their scope's count.
    #[inline]
    fn settle_jobs(&self) {
        let (of, jobs) = self.jobs.replace((ptr::null(), 0));
        // SAFETY: a scope lasts until its count is down, and these jobs have not been taken off yet.
        if let Some(scope) = unsafe { of.as_ref() } {
            scope.jobs_done(jobs);
        }
    }

    fn take_hand(&self) -> Vec<(u64, NonNull<Header>)> {
        self.hand.take()
    }

    /// Keeps the memory of an empty hand for the next batch.
    fn give_back_hand(&self, hand: Vec<(u64, NonNull<Header>)>) {
        debug_assert!(hand.is_empty(), "what is in it owns links");
        if hand.capacity() <= LARGEST_HAND {
            self.hand.set(hand);
        }
    }

    /// Reads the clock, for waits that begin on this worker.
    pub(crate) fn note_time(&self) {
        self.tick.set(coarse::now(self.shared()));
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}
