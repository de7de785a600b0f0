//! A worker: one thread's queues, and how it chooses what to do next.
//!
//! # Vocabulary
//!
//! * **ready**: suspended fibers of this worker that may go on ([`crate::stack::ready`]).
//! * **private**: unstarted requests that were made here and nobody else can see ([`crate::record::private_queue`]).
//! * **shared queue**: unstarted requests that this worker has published; anybody may take them ([`crate::state::shared_queue`]).
//! * **roots**: the runtime's shared queue for what comes from outside.
//! * **record**: what the layers below know of a worker ([`WorkerRecord`]); a [`Worker`] begins with it, and adds what the scheduler alone knows.
//! * **post**: the part of the record that others touch: attention word, mailbox, shared queue, and two keys: of what the worker runs, and of
//!   the best that it keeps private.
//!
//! # Choosing
//!
//! [`pick`](Worker::pick) compares root keys, one word each, and takes the smallest: ready, then private, then own shared queue,
//! then roots, then other workers' shared queues, in this order when equal. Within one root that leaves unstarted work to idle
//! workers while there is resumed work here. If an older root's work is private elsewhere, the worker asks its owner to publish.
//! Where there are many workers, [`shared::looks`](crate::shared) says with whom a pick compares, and what it may miss.
//!
//! Two short ways take what is at hand if nothing anywhere is older: the loop takes the front of the private queue
//! (`pop_private`), and a fiber that leaves gives way to a ready one (`schedule/worker/suspend.rs`).
//!
//! # Publication
//!
//! Work that its maker will probably run itself stays private. When somebody is hungry the worker, at its next fork or
//! pick, or before it runs a target on the stack of its waiter, publishes its oldest arm and a batch of its oldest children; batches double while hunger lasts. A hungry bit is
//! taken down only by a publication: while there is nothing to publish it stays up, so that the first fork is enough; and
//! it is raised again if more workers sleep than were shown something. A single private request that a pick is about to take is not
//! shown, to be raced for: so a chain of waits, each of which needs a stack of its own, stays on its worker.
//! What a fiber has made as arms is published when the fiber suspends, since its arms may be what it waits for. How often
//! a thief says that it is hungry is a matter of its [`patience`]. What a worker keeps private while it comes to no scheduling point is published by
//! another one that sleeps beside it (`schedule/worker/raids.rs`).
//!
//! # Holds
//!
//! What would only wait for what another worker runs is left unstarted for a while: [`hold`].
//!
//! # Invariants
//!
//! * **V1** All fields are touched by the worker's own thread alone, but for those of the record of which its head says otherwise.
//! * **V2** What is taken from a queue is claimed before it runs; what was claimed elsewhere is stale whose link
//!   is released.
//! * **V3** A thread that makes work visible to others notifies afterwards, and a worker looks once more between saying that it sleeps
//!   and sleeping (`pool/src/signals/README.md`).

use std::cell::{Cell, UnsafeCell};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::time::Instant;

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::{AtomicPtr, Ordering, fence};
use forebear_pool::WorkerState;

mod alarm;
mod coroutines;
mod driven;
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

use crate::deadlock::urgency;
use crate::record::arena;
use crate::record::children;
use crate::record::counter::Counter;
use crate::record::fiber::{self, Fiber, WorkerPtr};
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;
use crate::schedule::admission;
use crate::shared::worker::WorkerRecord;
use crate::shared::workers::Workers;
use crate::shared::{Best, Looks, Shared};
use crate::stack::coroutine::Coroutine;
use crate::stack::slab::StackSlot;
use crate::state::attention::{HOLDS, HUNGRY};
use crate::time::coarse;
use crate::time::deadlines::wake_exactly;

/// More than this is not worth keeping.
const LARGEST_HAND: usize = 256;

/// What a worker does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Run this request: it is claimed, and the runner's link is the taker's.
    Start(NonNull<Header>),
    /// Go on with this fiber, which is no longer ready.
    Resume(NonNull<Fiber>),
    /// End this one, which was put aside and is the taker's.
    End(NonNull<Header>),
    /// Fail this one for want of a stack: it is claimed, and the runner's link is the taker's. Of a driver only.
    Fail(NonNull<Header>),
    /// Call the hook for warnings, which cannot be called where there was something to warn of.
    Warn,
    /// Drop what could not be dropped where it came from: in the middle of a wait, or of a change of the worker's.
    Late,
}

// SAFETY: a step is taken and carried out on one worker's thread; it passes through the engine's types only.
unsafe impl Send for Next {}

/// See the module head.
#[repr(C)]
pub(crate) struct Worker {
    /// What the layers below know of it (WR1).
    record: WorkerRecord,
    idle: UnsafeCell<Idle>,
    /// The engine's side of this worker; set when its thread begins.
    engine: AtomicPtr<forebear_pool::Worker<Shared>>,
    /// Coroutines of this worker that are in use: all but the idle ones.
    busy_coroutines: Cell<usize>,
    /// The first coroutine's stack, taken before any thread runs, so that none can be without.
    first: Cell<Option<StackSlot>>,
    batch: Cell<u32>,
    /// What is on its way to a shared queue: memory that is used again.
    hand: Cell<Vec<(u64, NonNull<Header>)>>,
    looks: Looks,
    /// What `post.private` holds.
    private: Cell<u64>,
    /// Requests that ran on a waiter's stack.
    pub direct: Counter,
    /// Requests that the loop started.
    pub started: Counter,
    /// Requests and arms that were put in the shared queue.
    pub published: Counter,
    /// Times that it took from another worker's shared queue.
    pub steals: Counter,
    /// Times that it found nothing to do and was about to sleep.
    pub sleeps: Counter,
    patience: Patience,
    quiet: Quiet,
    /// Since when it sleeps with a tick, and watches (`schedule/worker/raids.rs`).
    watches_since: Cell<Option<Instant>>,
    hold: Hold,
    /// How often a wait has asked whether there are deadlines.
    limit_looks: Cell<u32>,
    /// Jobs of one scope that are over and not taken off its count yet.
    jobs: Cell<(*const ScopeCore, i64)>,
    /// How many choices that should not always fall out the same were made here.
    pub turns: Cell<u64>,
    /// When it read the clock last, for waits that begin here ([`crate::time::coarse`]).
    tick: Cell<u64>,
    /// Who drives it, if it has no thread of its own.
    pub driver: Option<Box<Driver>>,
}

// SAFETY: V1: others touch parts of the record only, which are made for it, and read the counters.
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

impl Worker {
    /// Makes the workers of a runtime, so many.
    pub(crate) fn all_of(shared: &Arc<Shared>, many: usize) {
        let workers = (0..many).map(|index| Worker::new(index, many, shared)).collect();
        // SAFETY: WR1: a worker begins with its record.
        shared.set_workers(unsafe { Workers::new::<Worker>(workers) });
    }

    /// Worker number `index`, one of so many.
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
            looks: Looks::default(),
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
            driver: shared.driven.as_ref().map(|driven| Box::new(Driver::new(driven))),
        }
    }

    /// Its address, which is its record's (WR1).
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> WorkerPtr {
        ptr::from_ref(self).cast()
    }

    /// The worker of this record.
    pub(crate) fn of(record: &WorkerRecord) -> &Worker {
        &record.shared().workers()[record.index]
    }

    /// Whether `fiber` is a stack of this worker.
    #[inline(always)]
    pub(crate) fn owns(&self, fiber: &Fiber) -> bool {
        fiber.worker == self.as_ptr()
    }

    /// Takes the stack that the worker begins on. Before its thread starts.
    pub(crate) fn take_first_stack(&self) -> Result<(), StackError> {
        self.first.set(Some(self.shared().slab.take(self.shared().default_class)?));
        Ok(())
    }

    /// Gives it back if the thread never began.
    pub(crate) fn give_back_first_stack(&self) {
        self.shared().slab.give_back(self.first.take());
    }

    /// The engine's side of this worker. On its thread.
    fn engine(&self) -> &forebear_pool::Worker<Shared> {
        // SAFETY: V1; set by `drive`, whose frame is below all that runs on this thread.
        unsafe { &*self.engine.load(Ordering::Relaxed) }
    }

    /// The body of the worker's thread: enters coroutines until one says that all is over.
    pub(crate) fn drive(&self, engine: &forebear_pool::Worker<Shared>) {
        self.engine.store(ptr::from_ref(engine).cast_mut(), Ordering::Relaxed);
        wake_exactly();
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
        // What was left before that; who leaves word later makes the survey itself.
        while self.shared().survey.make_now() {}
    }

    /// What to do next; sleeps while there is nothing. `None`: the runtime is over.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Next> {
        if let Some(header) = self.pop_private() {
            return Some(Next::Start(header));
        }
        self.next_of_all()
    }

    /// The fast way of the loop: nothing asks for attention, nothing is ready, and nobody has anything older than the
    /// front of the private queue.
    #[inline(always)]
    fn pop_private(&self) -> Option<NonNull<Header>> {
        let front = self.list.front()?;
        let key = front.lineage.key();
        let scope = front.scope.get();
        if !self.post.mailbox.is_empty()
            || self.ready().len() != 0
            || self.running() != key
            || self.shared().best_published(self.index, &self.looks, key) < key
            || !(self.jobs.get().0.is_null() || ptr::eq(self.jobs.get().0, scope))
            || !front.place.touch(|| self.post.attention.get() == 0)
        {
            return None;
        }
        self.list.unlink(front);
        let header = NonNull::from(front);
        // SAFETY: P2: the list's link.
        if unsafe { header.as_ref() }.claim_popped() {
            self.started.count();
            return Some(header);
        }
        self.claim(header, true);
        None
    }

    /// A job of `scope` is over; see the head of [`mod@crate::api::scope`].
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

    /// Takes what is pending off its scope's count.
    #[inline]
    fn settle_jobs(&self) {
        let (of, jobs) = self.jobs.replace((ptr::null(), 0));
        // SAFETY: a scope lasts until its count is down, and these jobs have not been taken off yet.
        if let Some(scope) = unsafe { of.as_ref() } {
            scope.jobs_done(jobs);
        }
    }

    #[inline(never)]
    fn next_of_all(&self) -> Option<Next> {
        if let Some(driver) = &self.driver {
            // The driver has chosen; if not, it is to come back.
            return driver.take_order();
        }
        self.settle_jobs();
        // Others return what they end; a worker that makes nothing itself would never come to fetch it.
        self.arena().drain_returns();
        if let Some(next) = self.pick() {
            return Some(next);
        }
        self.post.busy.store(self.busy_coroutines.get(), Ordering::Relaxed);
        self.note_private();
        fence(Ordering::Release);
        self.set_running(NO_KEY);
        admission::unstick();
        let engine = self.engine();
        let next = engine.idle();
        engine.set_state(WorkerState::Running);
        next
    }

    /// The best there is for this worker, claimed; see the module head.
    pub(crate) fn pick(&self) -> Option<Next> {
        loop {
            self.collect_mail();
            // A single request that this pick will take is not shown first, to be raced for.
            let spared = self.post.attention.get() & HUNGRY != 0 && self.list.is_single();
            if self.post.attention.get() != 0 {
                self.attend(!spared);
                if let Some(end) = self.next_put_aside() {
                    if spared {
                        self.feed();
                    }
                    return Some(end);
                }
                if self.post.attention.get() & HOLDS != 0
                    && let Some(held) = self.attend_hold()
                {
                    if spared {
                        self.feed();
                    }
                    return Some(held);
                }
            }
            let shared = self.shared();
            let (ready, private) = (self.ready().key(), self.list.key());
            let (shared_queue, roots) = (self.post.shared_queue.key(), shared.injector.key());
            let mine = ready.min(private).min(shared_queue);
            let mut best = Best { key: mine.min(roots), victim: None, next: NO_KEY };
            if self.driver.is_none() {
                // What a thread submits is run by that thread.
                shared.look(self.index, &self.looks, &mut best);
            }
            let Best { key: best, victim, next } = best;
            if best == NO_KEY {
                if self.fire_before_idling() {
                    continue;
                }
                let fiber = self.ready().pop(true)?;
                return Some(self.resume(fiber));
            }
            if spared && (victim.is_some() || ready == best || private != best) {
                // Something else goes first.
                self.feed();
                continue;
            }
            let from_shared_queue =
                victim.is_some() || ready != best && private != best && shared_queue == best;
            let taken = if let Some(victim) = victim {
                self.rob(victim, best)
            } else if ready == best {
                match self.ready().pop(false) {
                    Some(fiber) => return Some(self.resume(fiber)),
                    None => continue,
                }
            } else if private == best {
                if self.post.attention.get() & HOLDS != 0 && self.delay_listed() {
                    continue;
                }
                match self.pop_listed() {
                    // SAFETY: P2: the list's link.
                    Some(header) if unsafe { header.as_ref() }.claim_popped() => {
                        self.note_private();
                        return Some(self.begin(header));
                    }
                    popped => popped,
                }
            } else if shared_queue == best {
                self.post.shared_queue.pop(best)
            } else {
                // Others may have taken the one that was seen; the next will do if nothing that was seen goes before it. If each had
                // to look again, many workers would come one after the other to find out that one of them has it.
                shared.injector.pop(next.min(mine - 1).max(best))
            };
            if let Some(header) = taken.filter(|_| from_shared_queue)
                && urgency::is_outdated(header, best)
            {
                // SAFETY: E1: the entry's link, which goes with it.
                self.post.shared_queue.push(unsafe { header.as_ref() }.urgency(), header);
                continue;
            }
            if private != best
                && let Some(header) = taken
                && self.is_delayed(header)
            {
                continue;
            }
            if let Some(header) = taken
                && self.claim(header, private == best)
            {
                return Some(self.begin(header));
            }
        }
    }

    fn take_hand(&self) -> Vec<(u64, NonNull<Header>)> {
        self.hand.take()
    }

    /// Empty, for the next time.
    fn give_back_hand(&self, hand: Vec<(u64, NonNull<Header>)>) {
        debug_assert!(hand.is_empty(), "what is in it owns links");
        if hand.capacity() <= LARGEST_HAND {
            self.hand.set(hand);
        }
    }

    /// Claims what was taken out of the private queue.
    fn claim_private(&self, header: NonNull<Header>) -> bool {
        // SAFETY: P2: the list's link.
        unsafe { header.as_ref() }.claim_popped() || self.claim(header, true)
    }

    /// Claims what was taken from a shared queue (or, with `tried`, was found to be a stale entry already).
    fn claim(&self, header: NonNull<Header>, tried: bool) -> bool {
        // SAFETY: E1, P2: the entry's link is ours.
        let word = unsafe { header.as_ref().word() };
        if !tried && word.claim_by_queue() {
            return true;
        }
        // SAFETY: as above.
        let h = unsafe { header.as_ref() };
        if std::ptr::eq(h.arena.get(), self.arena()) {
            // Claimed elsewhere while it was private here: now it can stand among its parent's children.
            children::link(h);
        }
        if word.release_link() {
            // SAFETY: W4.
            unsafe { arena::end(header) };
        }
        false
    }

    #[inline(always)]
    fn begin(&self, header: NonNull<Header>) -> Next {
        // Its own: what was taken may be older than what was judged.
        // SAFETY: the taker's link.
        self.set_running(unsafe { header.as_ref() }.urgency());
        self.ready().count_start();
        self.started.count();
        Next::Start(header)
    }

    #[inline(always)]
    fn resume(&self, fiber: NonNull<Fiber>) -> Next {
        // SAFETY: K3.
        self.set_running(unsafe { fiber.as_ref() }.urgency.load(Ordering::Relaxed));
        Next::Resume(fiber)
    }

    /// Reads the clock, for waits that begin here.
    pub(crate) fn note_time(&self) {
        self.tick.set(coarse::now(self.shared()));
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}
