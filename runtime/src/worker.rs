//! A worker: one thread's queues, and how it chooses what to do next.
//!
//! # Vocabulary
//!
//! * **ready**: suspended strands of this worker that may go on ([`crate::ready`]).
//! * **private**: unstarted requests that were made here and nobody else can see ([`crate::list`]).
//! * **shelf**: unstarted requests that this worker has published; anybody may take them ([`crate::shelf`]).
//! * **roots**: the runtime's shelf for what comes from outside.
//! * **post**: the part that others touch: attention word, mailbox, shelf, and two keys: of what the worker runs, and of
//!   the best that it keeps private.
//!
//! # Choosing
//!
//! [`pick`](Worker::pick) compares root keys, one word each, and takes the smallest: ready, then private, then own shelf,
//! then roots, then other workers' shelves, in this order when equal. Within one root that leaves unstarted work to idle
//! workers while there is resumed work here. If an older root's work is private elsewhere, its owner is told to publish.
//!
//! # Publication
//!
//! Work that its maker will probably run itself stays private. When somebody is hungry the worker, at its next fork or
//! pick, publishes its oldest arm and a batch of its oldest children; batches double while hunger lasts. A hungry bit is
//! taken down only by a publication: while there is nothing to publish it stays up, so that the first fork is enough.
//! What a strand has made as arms is published when the strand suspends, since its arms may be what it waits for.
//!
//! # A thief's patience
//!
//! Stealing is only worth it when the loot lasts longer than the way. A thief that has used up its loot in under 4 µs
//! orders nothing for a while, which doubles up to 0.4 ms; it sleeps with a tick meanwhile, so no wake-up depends on its
//! order. It alone reads the clock.
//!
//! # Invariants
//!
//! * **V1** All fields but `post` are touched by the worker's own thread.
//! * **V2** What is taken from a list or shelf is claimed before it runs; what was claimed elsewhere is a shell whose link
//!   is released.
//! * **V3** Whoever makes work visible to others notifies afterwards, and whoever sleeps looks once more after it has
//!   said so (`pool/src/signals/README.md`).

use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use forebear_pool::Mailbox;

use crate::attention::{Attention, HUNGRY, OLDER};
use crate::carrier::Carrier;
use crate::header::Header;
use crate::home::{self, Home};
use crate::list::PrivateList;
use crate::ready::Ready;
use crate::scope::ScopeCore;
use crate::shared::{ORDERED, Shared};
use crate::shelf::Shelf;
use crate::stack::{self, Class};
use crate::strand::{self, Strand};

/// What a worker does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Run this request: it is claimed, and the runner's link is the taker's.
    Start(NonNull<Header>),
    /// Go on with this strand, which is no longer ready.
    Resume(NonNull<Strand>),
}

// SAFETY: a step is taken and carried out on one worker's thread; it passes through the engine's types only.
unsafe impl Send for Next {}

/// What others touch of a worker.
#[repr(align(128))]
pub(crate) struct Post {
    pub attention: Attention,
    /// The root key of what it runs; [`NO_KEY`] when it looks for work.
    pub running: AtomicU64,
    /// The root key of the best it keeps private. May be older than the truth by one look.
    pub private: AtomicU64,
    pub mailbox: Mailbox<Carrier>,
    pub shelf: Shelf<Header>,
}

/// See the module head.
pub(crate) struct Worker {
    pub index: usize,
    /// What a request is guaranteed unless it asks otherwise, in pages: the runtime's, close at hand.
    pub need_pages: u16,
    shared: *const Shared,
    home: Cell<*const Home>,
    pub list: PrivateList,
    ready: UnsafeCell<Ready>,
    idle: UnsafeCell<Vec<(Class, NonNull<Carrier>)>>,
    /// The engine's side of this worker; set when its thread begins.
    engine: AtomicPtr<forebear_pool::Worker<Shared>>,
    /// Carriers of this worker that are in use: all but the idle ones.
    busy_carriers: Cell<usize>,
    batch: Cell<u32>,
    /// What `post.running` holds.
    running: Cell<u64>,
    /// What `post.private` holds.
    private: Cell<u64>,
    /// Requests that ran on a waiter's stack.
    pub direct: Counter,
    /// Requests that the loop started.
    pub started: Counter,
    patience: Patience,
    /// Jobs of one scope that are over and not taken off its count yet.
    jobs: Cell<(*const ScopeCore, i64)>,
    pub post: Post,
}

// SAFETY: V1: others touch `post` only, which is made for it.
unsafe impl Sync for Worker {}
// SAFETY: the record moves once, before its thread begins.
unsafe impl Send for Worker {}

/// How many idle carriers a worker keeps; above, the coldest go back to the slab.
const KEPT_CARRIERS: usize = 1024;
const RETIRED_AT_ONCE: usize = 256;
const LARGEST_BATCH: u32 = 64;

impl Worker {
    /// The record of worker number `index`.
    pub(crate) fn new(index: usize, shared: &Arc<Shared>) -> Worker {
        Worker {
            index,
            need_pages: shared.default_need,
            shared: Arc::as_ptr(shared),
            home: Cell::new(shared.depot.open_for(shared, index as u32).as_ptr()),
            list: PrivateList::new(),
            ready: UnsafeCell::default(),
            idle: UnsafeCell::default(),
            engine: AtomicPtr::new(ptr::null_mut()),
            busy_carriers: Cell::new(0),
            batch: Cell::new(1),
            running: Cell::new(NO_KEY),
            private: Cell::new(NO_KEY),
            direct: Counter::default(),
            started: Counter::default(),
            patience: Patience::default(),
            jobs: Cell::new((ptr::null(), 0)),
            post: Post {
                attention: Attention::new(),
                running: AtomicU64::new(NO_KEY),
                private: AtomicU64::new(NO_KEY),
                mailbox: Mailbox::new(),
                shelf: Shelf::new(),
            },
        }
    }

    /// The runtime's record.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the record holds its workers.
        unsafe { &*self.shared }
    }

    /// Where this worker's requests are made.
    #[inline(always)]
    pub(crate) fn home(&self) -> &Home {
        // SAFETY: M3; homes stay until the record goes.
        unsafe { &*self.home.get() }
    }

    #[allow(clippy::mut_from_ref, reason = "V1, and no caller keeps it over another call")]
    #[inline(always)]
    fn ready(&self) -> &mut Ready {
        // SAFETY: V1; every use ends before the next begins.
        unsafe { &mut *self.ready.get() }
    }

    // ---- the loop --------------------------------------------------------------------------------------------------

    /// The body of the worker's thread: enters carriers until one says that all is over.
    pub(crate) fn drive(&self, engine: &forebear_pool::Worker<Shared>) {
        self.engine.store(ptr::from_ref(engine).cast_mut(), Ordering::Relaxed);
        let mut next = match self.carrier(self.shared().default_class) {
            Ok(carrier) => Some(carrier),
            Err(error) => crate::hooks::die(&error),
        };
        while let Some(carrier) = next {
            // SAFETY: K1, K2: it is current from here on; K3.
            unsafe {
                strand::enter(&carrier.as_ref().strand);
                let left_for = carrier.as_ref().context().as_ref().fiber().resume();
                next = left_for.map(|context| Carrier::of(context));
            }
        }
        // SAFETY: no strand is always valid.
        unsafe { strand::enter(ptr::null()) };
        self.set_running(NO_KEY);
        self.retire(usize::MAX);
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
    /// front of the private list.
    #[inline(always)]
    fn pop_private(&self) -> Option<NonNull<Header>> {
        let front = self.list.front()?;
        let key = front.lineage.key();
        let scope = front.scope.get();
        if self.post.attention.get() != 0
            || !self.post.mailbox.is_empty()
            || self.ready().len() != 0
            || self.running.get() != key
            || self.shared().best_published(self.index) < key
            || !(self.jobs.get().0.is_null() || ptr::eq(self.jobs.get().0, scope))
        {
            return None;
        }
        let header = self.list.pop()?;
        // SAFETY: P2: the list's link.
        if unsafe { header.as_ref() }.word.claim_popped() {
            self.started.count();
            return Some(header);
        }
        self.claim(header, true);
        None
    }

    /// A job of `scope` is over; see the head of [`crate::scope`].
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
        self.settle_jobs();
        if let Some(next) = self.pick() {
            return Some(next);
        }
        self.set_running(NO_KEY);
        // SAFETY: set by `drive`, whose frame is below this one.
        unsafe { &*self.engine.load(Ordering::Relaxed) }.idle()
    }

    /// The best there is for this worker, claimed; see the module head.
    pub(crate) fn pick(&self) -> Option<Next> {
        loop {
            self.collect_mail();
            if self.post.attention.get() != 0 {
                self.attend();
            }
            let shared = self.shared();
            let (ready, private) = (self.ready().key(), self.list.key());
            let (shelf, roots) = (self.post.shelf.key(), shared.roots.key());
            let mut best = ready.min(private).min(shelf).min(roots);
            let mut victim = None;
            for other in shared.others(self.index).filter(|_| ORDERED) {
                let theirs = other.post.shelf.key();
                if theirs < best {
                    best = theirs;
                    victim = Some(other);
                }
                if other.post.private.load(Ordering::Relaxed) < best {
                    other.post.attention.raise(HUNGRY);
                }
            }
            if best == NO_KEY {
                let strand = self.ready().pop(true)?;
                return Some(self.resume(strand));
            }
            let taken = if let Some(victim) = victim {
                self.rob(victim)
            } else if ready == best {
                match self.ready().pop(false) {
                    Some(strand) => return Some(self.resume(strand)),
                    None => continue,
                }
            } else if private == best {
                match self.list.pop() {
                    // SAFETY: P2: the list's link.
                    Some(header) if unsafe { header.as_ref() }.word.claim_popped() => {
                        self.note_private();
                        return Some(self.begin(header, best));
                    }
                    popped => popped,
                }
            } else if shelf == best {
                self.post.shelf.pop()
            } else {
                shared.roots.pop()
            };
            if let Some(header) = taken
                && self.claim(header, private == best)
            {
                return Some(self.begin(header, best));
            }
        }
    }

    /// Claims what was taken from a shelf (or, with `tried`, was found to be a shell already).
    fn claim(&self, header: NonNull<Header>, tried: bool) -> bool {
        // SAFETY: E1, P2: the entry's link is ours.
        let word = unsafe { &header.as_ref().word };
        if !tried && word.claim_by_queue() {
            return true;
        }
        if word.release_link() {
            // SAFETY: W4.
            unsafe { home::end(header) };
        }
        false
    }

    #[inline(always)]
    fn begin(&self, header: NonNull<Header>, key: u64) -> Next {
        self.set_running(key);
        self.ready().count_start();
        self.started.count();
        Next::Start(header)
    }

    #[inline(always)]
    fn resume(&self, strand: NonNull<Strand>) -> Next {
        // SAFETY: K3.
        self.set_running(unsafe { strand.as_ref() }.urgency.load(Ordering::Relaxed));
        Next::Resume(strand)
    }

    #[inline(always)]
    fn set_running(&self, key: u64) {
        if self.running.get() != key {
            self.running.set(key);
            self.post.running.store(key, Ordering::Relaxed);
        }
    }

    // ---- suspending ------------------------------------------------------------------------------------------------

    /// A strand of this worker may go on. On the worker's thread.
    pub(crate) fn make_ready(&self, strand: NonNull<Strand>) {
        self.ready().push(strand);
        // SAFETY: K3.
        let key = unsafe { strand.as_ref() }.urgency.load(Ordering::Relaxed);
        if key < self.running.get() {
            self.post.attention.raise(OLDER);
        }
    }

    fn collect_mail(&self) {
        if !self.post.mailbox.is_empty() {
            self.collect_mail_now();
        }
    }

    #[cold]
    fn collect_mail_now(&self) {
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

    /// No stack for the loop: nothing new can begin, so the thread waits until something that has begun may go on.
    #[cold]
    fn wait_for_ready(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
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
            let carrier = self.carrier(self.shared().default_class).ok()?;
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

    // ---- carriers --------------------------------------------------------------------------------------------------

    /// An idle carrier of `class`, or a new one.
    pub(crate) fn carrier(&self, class: Class) -> Result<NonNull<Carrier>, StackError> {
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        if let Some(at) = idle.iter().rposition(|entry| entry.0 == class) {
            self.busy_carriers.set(self.busy_carriers.get() + 1);
            return Ok(idle.swap_remove(at).1);
        }
        let slot = self.shared().slab.take(class)?;
        self.busy_carriers.set(self.busy_carriers.get() + 1);
        Ok(Carrier::build(slot, self))
    }

    /// Makes sure that the next suspension finds a carrier to go on with.
    pub(crate) fn reserve_carrier(&self) -> Result<(), StackError> {
        // SAFETY: V1.
        let idle = unsafe { &*self.idle.get() };
        let class = self.shared().default_class;
        if idle.iter().rev().any(|entry| entry.0 == class) {
            return Ok(());
        }
        let carrier = self.carrier(class)?;
        self.put_idle(carrier);
        Ok(())
    }

    /// Runs `header` here, or answers the carrier that has the stack for it; the request is left there as pending.
    ///
    /// # Safety
    ///
    /// The request is claimed, and the runner's link is the caller's.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, header: NonNull<Header>, here: &Carrier) -> Option<NonNull<Carrier>> {
        // SAFETY: by contract.
        unsafe {
            if here.strand.room() < header.as_ref().need() {
                return self.start_on_larger(header, here);
            }
            crate::run::start(&here.strand, header);
        }
        None
    }

    #[cold]
    unsafe fn start_on_larger(&self, header: NonNull<Header>, here: &Carrier) -> Option<NonNull<Carrier>> {
        // SAFETY: by contract.
        let need = unsafe { header.as_ref() }.need();
        let class = stack::class_for(need).unwrap_or(stack::SLOTS.len() as Class - 1);
        match self.carrier(class) {
            Ok(larger) => {
                // SAFETY: K3.
                unsafe { larger.as_ref() }.pending.set(header.as_ptr());
                Some(larger)
            }
            Err(error) => {
                // SAFETY: claimed by us.
                unsafe { crate::run::fail_unstarted(&here.strand, header, error) };
                None
            }
        }
    }

    /// A carrier has nothing on top.
    pub(crate) fn put_idle(&self, carrier: NonNull<Carrier>) {
        self.busy_carriers.set(self.busy_carriers.get() - 1);
        // SAFETY: K3.
        let class = match unsafe { carrier.as_ref() }.slot.take() {
            Some(slot) => {
                let class = slot.class();
                // SAFETY: as above.
                unsafe { carrier.as_ref() }.slot.set(Some(slot));
                class
            }
            None => 0,
        };
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        if idle.len() >= KEPT_CARRIERS {
            self.retire(RETIRED_AT_ONCE);
        }
        // SAFETY: V1.
        unsafe { &mut *self.idle.get() }.push((class, carrier));
    }

    /// Gives the coldest idle carriers back to the slab.
    fn retire(&self, count: usize) {
        // SAFETY: V1.
        let idle = unsafe { &mut *self.idle.get() };
        let count = count.min(idle.len());
        // SAFETY: K3: idle carriers hold nothing but loop frames; the one that runs is not among them.
        let slots = idle.drain(..count).filter_map(|(_, carrier)| unsafe { Carrier::dismantle(carrier) });
        self.shared().slab.give_back(slots);
    }

    // ---- publication -----------------------------------------------------------------------------------------------

    /// A request of this worker's was put into the private list.
    #[inline(always)]
    pub(crate) fn note_inserted(&self, key: u64) {
        if key < self.private.get() {
            self.private.set(key);
            self.post.private.store(key, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn note_private(&self) {
        let key = self.list.key();
        if self.private.get() != key {
            self.private.set(key);
            self.post.private.store(key, Ordering::Relaxed);
        }
    }

    /// Does what the attention word asks for.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend(&self) {
        let bits = self.post.attention.get();
        if bits & HUNGRY != 0 {
            self.feed();
        }
        if bits & OLDER != 0 {
            self.post.attention.clear(OLDER);
        }
    }

    /// Whether something older than what runs is ready here or may be taken. Takes the bit down if not.
    #[cold]
    pub(crate) fn older_is_ready(&self) -> bool {
        self.post.attention.clear(OLDER);
        self.collect_mail();
        let mine = self.running.get();
        let older = self.ready().key() < mine || self.shared().roots.key() < mine;
        if older {
            self.post.attention.raise(OLDER);
        }
        older
    }

    /// Publishes for whoever is hungry.
    #[cold]
    #[inline(never)]
    pub(crate) fn feed(&self) {
        let arms = strand::get()
            .filter(|strand| ptr::eq(strand.worker, self))
            .and_then(|strand| self.publish_arm(strand));
        let batch = self.batch.get();
        let mut published = usize::from(arms.is_some());
        for _ in 0..batch {
            let Some(header) = self.list.pop() else { break };
            // SAFETY: P2.
            let h = unsafe { header.as_ref() };
            let key = h.lineage.key();
            h.word.publish();
            self.post.shelf.push(key, header);
            published += 1;
        }
        if published == 0 {
            // The bit stays up: the first fork will find it.
            self.batch.set(1);
            return;
        }
        self.post.attention.clear(HUNGRY);
        self.batch.set((batch * 2).min(LARGEST_BATCH));
        self.note_private();
        self.shared().signals.notify_any();
    }

    /// Publishes the strand's outermost arm.
    fn publish_arm(&self, strand: &Strand) -> Option<()> {
        let (key, node) = crate::arms::publish_oldest(strand)?;
        self.post.shelf.push(key, node);
        Some(())
    }

    #[cold]
    fn publish_arms(&self, strand: &Strand) {
        while self.publish_arm(strand).is_some() {}
        self.shared().signals.notify_any();
    }

    // ---- stealing --------------------------------------------------------------------------------------------------

    /// Takes half of what `victim` has published; the first is the answer, the rest goes to the own shelf.
    fn rob(&self, victim: &Worker) -> Option<NonNull<Header>> {
        let mut first = None;
        let mut rest = Vec::new();
        let (taken, left) = victim.post.shelf.pop_half(|key, header| match first {
            None => first = Some(header),
            Some(_) => rest.push((key, header)),
        });
        for (key, header) in rest {
            self.post.shelf.push(key, header);
        }
        if taken > 0 && !left {
            // The next batch is ordered now, so that it is there when this one is used up.
            victim.post.attention.raise(HUNGRY);
        }
        first
    }

    /// Looks at the other workers' shelves; says that one is hungry if there is nothing, patience permitting.
    pub(crate) fn steal(&self) -> Option<Next> {
        self.patience.loot_used_up();
        let mut best: Option<&Worker> = None;
        for other in self.shared().others(self.index) {
            if other.post.shelf.key() < best.map_or(NO_KEY, |b| b.post.shelf.key()) {
                best = Some(other);
            }
        }
        if let Some(victim) = best {
            let key = victim.post.shelf.key();
            if let Some(header) = self.rob(victim) {
                self.patience.loot_taken();
                if self.claim(header, false) {
                    return Some(self.begin(header, key));
                }
            }
            return None;
        }
        if self.patience.is_over() {
            self.say_hungry();
        }
        None
    }

    fn say_hungry(&self) -> bool {
        let mut busy = false;
        for other in self.shared().others(self.index) {
            other.post.attention.raise(HUNGRY);
            busy |= other.post.running.load(Ordering::Relaxed) != NO_KEY;
        }
        busy
    }

    /// Leaves word with the others; answers the tick to sleep with while any of them works.
    pub(crate) fn before_sleep(&self) -> Option<Duration> {
        self.note_private();
        self.shared().slab.trim();
        if let Some(left) = self.patience.left() {
            return Some(left);
        }
        self.say_hungry().then(|| self.patience.tick())
    }

    /// Something was found: ticks begin short again.
    pub(crate) fn found(&self) {
        self.patience.ticks.set(0);
    }

    /// Whether nothing on this worker can go on or be resumed by itself any more.
    pub(crate) fn is_drained(&self) -> bool {
        // The loop that asks is on a carrier of its own.
        self.busy_carriers.get() <= 1 && self.ready().len() == 0 && self.list.front().is_none()
    }

    /// The best this worker may take, for the engine's search.
    pub(crate) fn best(&self) -> u64 {
        let mail = if self.post.mailbox.is_empty() { NO_KEY } else { 0 };
        let yielded = if self.ready().len() == 0 { NO_KEY } else { 0 };
        mail.min(yielded).min(self.list.key()).min(self.post.shelf.key()).min(self.shared().roots.key())
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}

/// A count that one thread keeps and others read.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more. By the thread that keeps it.
    #[inline(always)]
    pub(crate) fn count(&self) {
        // Two plain instructions: there is one writer.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How many.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See *A thief's patience* in the module head.
#[derive(Default)]
struct Patience {
    loot: Cell<Option<Instant>>,
    pause: Cell<Duration>,
    until: Cell<Option<Instant>>,
    ticks: Cell<u32>,
}

const WORTH_IT: Duration = Duration::from_micros(4);
const SHORTEST_PAUSE: Duration = Duration::from_micros(25);
const LONGEST_PAUSE: Duration = Duration::from_micros(400);
const TICK: Duration = Duration::from_micros(200);
/// Ticks double up to this: hunger was left behind, so a fork is enough; the tick is for what nobody told.
const LONGEST_TICK: Duration = Duration::from_millis(5);

impl Patience {
    fn loot_taken(&self) {
        self.loot.set(Some(Instant::now()));
        self.ticks.set(0);
    }

    fn loot_used_up(&self) {
        let Some(since) = self.loot.take() else { return };
        let now = Instant::now();
        if now - since >= WORTH_IT {
            self.pause.set(Duration::ZERO);
            self.until.set(None);
            return;
        }
        let pause = (self.pause.get() * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.pause.set(pause);
        self.until.set(Some(now + pause));
    }

    fn left(&self) -> Option<Duration> {
        let left = self.until.get()?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.until.set(None);
            return None;
        }
        Some(left)
    }

    fn is_over(&self) -> bool {
        self.left().is_none()
    }

    fn tick(&self) -> Duration {
        let ticks = self.ticks.get();
        self.ticks.set(ticks.saturating_add(1));
        (TICK * (1 << ticks.min(8))).min(LONGEST_TICK)
    }
}
