//! Holds: a worker does not start one consumer after the other of an input that another worker computes.
//!
//! A started request stays on its worker. Suppose that a worker starts sixty consumers of one input, each of which waits for it at once.
//! It would run all of them when the input is over, one after the other, and hold a stack for each until then. So a worker *holds back*
//! the rest of a callable when it has started a few requests of it that all began by a wait for the same running target. It leaves the
//! rest unstarted, where other workers can take them.
//!
//! # Rules
//!
//! * A hold begins when [`FEW`] requests of one callable, started here one after the other, have waited for the same target before this
//!   worker started anything else. The target runs on another worker of this runtime, or was claimed a moment ago, and is not suspended.
//! * While it lasts, each unstarted request of that callable that the worker comes to is put into `post.held`. Another worker takes it from
//!   there when it finds nothing else, unless it holds the callable back itself.
//! * A hold is a delay, never a condition: the target may need a held request. Every *tick* the worker starts one of them; ticks begin at
//!   200 µs and double up to 5 ms. A request started so that does anything but wait for the target lifts the hold.
//! * The target may need all that are held, however many they are: a program may spin until a hundred thousand have begun. So from the 32nd tick on, some
//!   140 ms after the hold began, a tick starts twice as many as the one before it.
//! * The hold is lifted when the worker finds that the target is over or suspended: it looks at each pick. The end of the target wakes the
//!   requests that wait for it here, and so the worker.
//! * Lifting puts what is held on the worker's shared queue.
//!
//! A runtime with one worker or without worker threads holds nothing back.
//!
//! # Who is woken
//!
//! Work in `post.held` is work for anyone, but for those who hold the same callable back: they *refuse* it. The sleep protocol
//! (`pool/src/signals/README.md`) may wake such a worker for it, or rely on one that searches. So:
//!
//! 1. The first entry notifies any worker, and so does the taker of an entry that leaves others.
//! 2. A worker that has found something passes its search on while anything is held, also by itself.
//! 3. A worker that looks for work and refuses what it finds wakes a sleeper that holds nothing back ([`Worker::take_held`]).
//!
//! Each worker looks at what is held between saying that it sleeps and sleeping, after its own hold was lifted if its target is over. So, while
//! something is held, no worker that holds nothing back sleeps, unless a worker that is awake comes to one of the three steps.
//!
//! The worker that holds sleeps no longer than to its next tick. When the target ends, its waiters here are woken by name. This worker then
//! picks, lifts the hold, and puts what is held where everybody takes it; again one notification serves for all of them. A worker that has not yet lifted
//! its own hold does so at its first look, before it can refuse anything. A lift and a thief exclude each other by the lock of `post.held`: each entry goes one
//! of the two ways.
//!
//! # Invariants
//!
//! * **HO1** All of [`Hold`] is touched by the worker's own thread. While it holds, it has a link of its target.
//! * **HO2** An entry of `post.held` owns a link of its request, as one of a shared queue does (E1).
//! * **HO3** The attention bit [`HOLDS`] is up exactly while the worker holds, so the short ways that take unstarted requests are closed.
//! * **HO4** A worker raises and clears the bit before it enters the list of sleepers. So who reads the bit of a sleeper under the lock of that list knows
//!   whether it refuses anything. A sleeper that holds another callable back is not woken; it looks again when its own target is over, or at its tick.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::mutant;
use forebear_context::shim::time;

use super::{Next, Worker};
use crate::record::arena::{self, Arena};
use crate::record::children;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, VTable};
use crate::shared::OfRuntime;
use crate::state::attention::HOLDS;
use crate::state::word::CLAIMED;

/// So many that wait for the same target are enough.
const FEW: u32 = 3;
const SHORTEST_TICK: Duration = Duration::from_micros(200);
const LONGEST_TICK: Duration = Duration::from_millis(5);
/// After so many ticks each starts twice as many as the one before it.
const TICKS_OF_ONE: u32 = 32;
/// So many requests that lend their stack to the next are looked through for the one that the loop started.
const DEEP: usize = 64;

/// What one worker knows of the waits that its requests begin with, and of its hold.
#[derive(Default)]
pub(super) struct Hold {
    /// There is another worker that could take what is held. Without one nothing is noted.
    watches: bool,
    /// How many requests the loop had started at the last first wait.
    started: Cell<u64>,
    /// What the last first waits were of: whose callable, for which target, and how many. Only compared.
    callable: Cell<Option<&'static VTable>>,
    target: Cell<*const Header>,
    count: Cell<u32>,
    /// The callable that is held back, if there is a hold.
    held: Cell<Option<&'static VTable>>,
    /// A held request was started, and has not waited for the target yet.
    tries: Cell<bool>,
    tick: Cell<Duration>,
    due: Cell<Option<Instant>>,
    /// The ticks of this hold that are over, and how many requests the last one may still start.
    ticks: Cell<u32>,
    left: Cell<u64>,
}

impl Hold {
    /// For a worker that has others beside it, or has none.
    pub(super) fn new(watches: bool) -> Hold {
        Hold { watches, ..Hold::default() }
    }
}

impl Worker {
    /// A request on `fiber` is about to be suspended, waiting for `target`.
    #[inline(always)]
    pub(crate) fn note_wait(&self, fiber: &Fiber, target: &Header) {
        if self.hold.watches && self.started.get() != self.hold.started.get() {
            self.note_first_wait(fiber, target);
        }
    }

    #[inline(never)]
    fn note_first_wait(&self, fiber: &Fiber, target: &Header) {
        let hold = &self.hold;
        let alone = self.started.get() == hold.started.replace(self.started.get()) + 1;
        let same = ptr::eq(target, hold.target.get());
        if same && alone || self.has_hold() {
            if same {
                self.note_same(fiber, target);
            }
            return;
        }
        hold.target.set(target);
        hold.callable.set(None);
        hold.count.set(1);
    }

    /// One more request begins with a wait for the same target.
    #[cold]
    #[inline(never)]
    fn note_same(&self, fiber: &Fiber, target: &Header) {
        let hold = &self.hold;
        let Some(bottom) = bottom_of(fiber) else { return };
        if self.has_hold() {
            if self.delays(bottom) {
                hold.tries.set(false);
            }
            return;
        }
        // Of the first for a target only the target is known.
        let before = hold.callable.replace(Some(bottom.vtable));
        let same = before.is_none_or(|before| before.is_of_callable_of(bottom.vtable));
        hold.count.set(if same { hold.count.get() + 1 } else { 1 });
        if hold.count.get() >= FEW && self.may_hold_for(target) {
            // HO1.
            target.word().add_link();
            hold.held.set(Some(bottom.vtable));
            hold.tries.set(false);
            hold.ticks.set(0);
            hold.left.set(0);
            self.set_tick(SHORTEST_TICK);
            self.post.attention.raise(HOLDS);
        }
    }

    fn has_hold(&self) -> bool {
        self.hold.held.get().is_some()
    }

    /// Whether this worker may leave consumers of `target` unstarted: another worker of this runtime runs it, and this one is wanted for
    /// other things than to end.
    fn may_hold_for(&self, target: &Header) -> bool {
        let shared = self.shared();
        self.hold.watches
            && !shared.ending.is_shut()
            && !shared.signals.is_stopping()
            && self.runs_elsewhere(target)
    }

    /// Whether another worker of this runtime runs it, and it is not suspended: a snapshot. A request that was claimed
    /// a moment ago counts as running, although its header does not say yet where. The claimer may be descheduled at
    /// that point, and this worker would start all consumers that wait for it.
    fn runs_elsewhere(&self, target: &Header) -> bool {
        let bits = target.word().load();
        if bits.is_terminal() || bits.is_unstarted() {
            return false;
        }
        // SAFETY: M3: an arena that a request ran on stays while the request does.
        let Some(arena) = (unsafe { target.ran_on.load(Ordering::Acquire).as_ref() }) else {
            // SAFETY: M3.
            let is_ours = unsafe { target.arena.get().as_ref() }.is_some_and(|made_on| self.is_of(made_on));
            // This worker runs what it claims before anything else waits here.
            return bits.life() == CLAIMED && is_ours;
        };
        let fiber = target.fiber.load(Ordering::Acquire);
        if arena.is_foreign() || ptr::eq(arena, self.arena()) || !self.is_of(arena) {
            return false;
        }
        // SAFETY: K3: a coroutine's fiber stays while a worker of its runtime, which this is, runs.
        unsafe { fiber.as_ref() }.is_none_or(|fiber| !fiber.context().is_waiting())
    }

    fn is_of(&self, arena: &Arena) -> bool {
        ptr::eq(arena.shared(), self.shared())
    }

    /// Whether the worker leaves requests of this callable unstarted.
    #[inline(always)]
    pub(super) fn delays(&self, h: &Header) -> bool {
        self.hold.held.get().is_some_and(|held| held.is_of_callable_of(h.vtable))
    }

    /// Holds back what was taken from a shared queue, if it is to be. The entry's link goes with it.
    #[inline(always)]
    pub(super) fn is_delayed(&self, header: NonNull<Header>) -> bool {
        // SAFETY: E1: the entry's link.
        let h = unsafe { header.as_ref() };
        // The thread that claims a stale entry in vain takes it away.
        let held = self.delays(h) && h.word().load().is_unstarted();
        if held {
            self.delay(header);
        }
        held
    }

    /// What the loop does about its hold before it picks: lifts it, or starts one of the held when a tick is over.
    #[cold]
    #[inline(never)]
    pub(super) fn attend_hold(&self) -> Option<Next> {
        if !self.has_hold() {
            return None;
        }
        // SAFETY: HO1.
        let target = unsafe { &*self.hold.target.get() };
        if self.hold.tries.get() || !self.may_hold_for(target) {
            self.lift_hold();
            return None;
        }
        if self.post.held.key() == NO_KEY || self.hold_left().is_none_or(|left| !left.is_zero()) {
            return None;
        }
        self.use_tick();
        mutant!("held_without_a_tick", return None);
        while let Some(header) = self.post.held.pop(NO_KEY) {
            // SAFETY: HO2.
            if self.claim(header, false) {
                self.hold.tries.set(true);
                return Some(self.begin(header));
            }
        }
        None
    }

    /// Takes one of the starts that the tick allows which is over. The next tick begins with the last of them.
    fn use_tick(&self) {
        let hold = &self.hold;
        if hold.left.get() == 0 {
            hold.left.set(1 << hold.ticks.get().saturating_sub(TICKS_OF_ONE).min(63));
            hold.ticks.set(hold.ticks.get() + 1);
        }
        hold.left.set(hold.left.get() - 1);
        if hold.left.get() == 0 {
            self.set_tick((hold.tick.get() * 2).min(LONGEST_TICK));
        }
    }

    fn set_tick(&self, tick: Duration) {
        self.hold.tick.set(tick);
        self.hold.due.set(Some(time::now() + tick));
    }

    /// How long the worker may sleep until it is to start one of the held.
    pub(super) fn hold_left(&self) -> Option<Duration> {
        if !self.has_hold() || self.post.held.key() == NO_KEY {
            return None;
        }
        self.hold.due.get().map(|due| due.saturating_duration_since(time::now()))
    }

    /// Whether a held request is to be started now.
    #[inline(always)]
    pub(super) fn is_hold_due(&self) -> bool {
        self.post.held.key() != NO_KEY && self.hold_left().is_some_and(|left| left.is_zero())
    }

    /// Puts a request that was taken from a shared queue where others can take it. The entry's link goes with it.
    #[cold]
    pub(super) fn delay(&self, header: NonNull<Header>) {
        let first = self.post.held.key() == NO_KEY;
        // SAFETY: HO2: the entry's link.
        self.post.held.push(unsafe { header.as_ref() }.urgency(), header);
        if first {
            self.shared().signals.notify_any();
        }
    }

    /// The same with those at the front of the private queue. False: none stands there.
    #[cold]
    #[inline(never)]
    pub(super) fn delay_listed(&self) -> bool {
        let mut any = false;
        while let Some(h) = self.list.front().filter(|h| self.delays(h)) {
            self.take_out(h);
            children::link(h);
            h.word().publish();
            self.published.count();
            self.delay(NonNull::from(h));
            any = true;
        }
        if any {
            self.note_private();
        }
        any
    }

    /// The hold is over: what was held is for this worker, too.
    pub(super) fn lift_hold(&self) {
        let hold = &self.hold;
        hold.held.set(None);
        hold.tries.set(false);
        hold.count.set(0);
        hold.due.set(None);
        self.post.attention.clear(HOLDS);
        let target = hold.target.replace(ptr::null());
        let held = std::iter::from_fn(|| self.post.held.pop(NO_KEY));
        #[cfg(mutant = "lift_forgets_the_held")]
        let held = held.take(0);
        // SAFETY: HO2.
        let held: Vec<_> = held.map(|entry| (unsafe { entry.as_ref() }.urgency(), entry)).collect();
        if !held.is_empty() {
            self.post.shared_queue.push_all(held);
            self.shared().signals.notify_any();
        }
        if let Some(target) = NonNull::new(target.cast_mut()) {
            // SAFETY: HO1.
            unsafe { arena::release(target) };
        }
    }

    /// Takes a request that another worker holds back, and this one does not. If this worker would hold back all that it finds, it wakes one that would not.
    #[cold]
    pub(super) fn take_held(&self) -> Option<Next> {
        let mut refuses = false;
        for other in self.shared().other_records(self.index) {
            while let Some(header) = other.post.held.pop_if(NO_KEY, |h| !self.delays(h)) {
                if other.post.held.key() != NO_KEY {
                    // One notification came for all of them.
                    self.shared().signals.notify_any();
                }
                self.steals.count();
                if self.claim(header, false) {
                    return Some(self.begin(header));
                }
            }
            refuses |= other.post.held.key() != NO_KEY;
        }
        if refuses || self.post.held.key() != NO_KEY {
            self.wake_a_taker();
        }
        None
    }

    /// Wakes a worker that sleeps and holds nothing back, if there is one (HO4).
    fn wake_a_taker(&self) {
        let shared = self.shared();
        let takes = |index: usize| shared.worker_records().at(index).post.attention.get() & HOLDS == 0;
        shared.signals.notify_one_of(takes);
    }
}

/// The request that the loop started on this fiber: those above it were run by their waiters.
fn bottom_of(fiber: &Fiber) -> Option<&Header> {
    let mut at = fiber.request()?;
    for _ in 0..DEEP {
        // SAFETY: what stands below a request on its stack is alive.
        match unsafe { at.lender.get().as_ref() } {
            Some(below) => at = below,
            None => return Some(at),
        }
    }
    None
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
