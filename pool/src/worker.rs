//! A worker: one thread of an engine, and the steps of its loop.
//!
//! The worker has no loop of its own. The owner of the engine writes the loop, on the thread's own stack or inside
//! coroutines. It has two steps: get a task, from the supply directly or by [`Worker::idle`] when there is none, and
//! run it.
//!
//! ```text
//!            found                          found
//!   look ───────────▶ Some(task)   search ──────────▶ Some(task), pass the search on
//!    │ nothing             ▲          │ nothing in 28 µs, or others search
//!    └─────────────────────┼──────────┘ and it has stood by in vain
//!                          │          ▼
//!         woken: look again└──── announce, look, block ────▶ None, if stopping and allowed
//! ```
//!
//! `signals/README.md` says which step may skip a wake-up, and why none is lost.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use forebear_context::retries::Retries;
use forebear_context::shim::{Arc, hint, mutant, time};

use crate::state::States;
use crate::{Supply, WorkerState};

/// How often a searcher reads the clock: every so many rounds of about 16 pauses, 0.4 µs each.
const ROUNDS_PER_CLOCK: u32 = 4;
/// Pauses between two looks of a searcher.
const PAUSES_PER_ROUND: u32 = 16;
/// Pauses between two looks for a token, which only its waker writes.
const PAUSES_PER_TOKEN: u32 = 4;

/// One of an engine's threads, from inside. Lives on that thread and never leaves it.
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// fn check<S: forebear::pool::engine::Supply>() { send::<forebear::pool::engine::Worker<S>>() }
/// ```
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use forebear::pool::WorkerState;
/// use forebear::pool::engine::{Signals, Supply, Worker};
///
/// struct Countdown { signals: Signals, left: AtomicU32 }
/// impl Supply for Countdown {
///     type Task = u32;
///     fn signals(&self) -> &Signals { &self.signals }
///     fn take(&self, _: usize) -> Option<u32> {
///         let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
///         left.ok()
///     }
///     fn steal(&self, _: usize) -> Option<u32> { None }
///     fn best(&self, _: usize) -> u64 { 0 }
/// }
///
/// // This thread is the only worker.
/// let supply = Arc::new(Countdown { signals: Signals::new(1), left: AtomicU32::new(2) });
/// let worker = Worker::attach(supply, 0);
/// assert_eq!((worker.index(), worker.idle(), worker.idle()), (0, Some(2), Some(1)));
/// worker.set_state(WorkerState::Running);
/// worker.supply().signals.wake(0);
/// assert!(worker.wait_for_wake(|| None, || Some(())) == ());
/// worker.supply().signals.stop();
/// assert_eq!(worker.idle(), None);
/// ```
pub struct Worker<S: Supply> {
    supply: Arc<S>,
    states: Arc<States>,
    index: usize,
    /// How long to search before sleeping; zero: one more look; `None`: not at all.
    search: Option<Duration>,
    /// Whether it still pays to stand by.
    retries: Cell<Retries>,
    /// Not `Send`: signals know this thread as the one that sleeps in this place.
    thread: PhantomData<*const ()>,
}

/// How a worker that stood by goes on.
enum StandBy {
    /// It was woken: it looks for what that was for.
    Woken,
    /// The other search has ended: it searches.
    Searches,
    /// Neither: it sleeps.
    InVain,
}

impl<S: Supply> Worker<S> {
    pub(crate) fn new(
        supply: Arc<S>,
        states: Arc<States>,
        index: usize,
        search: Option<Duration>,
    ) -> Worker<S> {
        supply.signals().enter(index);
        Worker { supply, states, index, search, retries: Cell::new(Retries::new()), thread: PhantomData }
    }

    /// Makes the calling thread worker `index` of `supply` without an engine: a thread that the caller owns and drives.
    /// Its searches are one look long.
    ///
    /// No two threads may be the same worker at a time: the second could sleep for ever.
    ///
    /// # Panics
    ///
    /// If the supply's signals know no worker of this number.
    #[must_use]
    pub fn attach(supply: Arc<S>, index: usize) -> Worker<S> {
        let workers = supply.signals().workers();
        assert!(index < workers, "worker {index} of {workers}");
        Worker::new(supply, Arc::new(States::new(workers)), index, Some(Duration::ZERO))
    }

    /// This worker's number, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Where the tasks come from.
    #[must_use]
    pub fn supply(&self) -> &S {
        &self.supply
    }

    /// How long it searches before it sleeps: about what a sleep costs. Zero: one more look; `None`: not at all, since there are more
    /// workers than cores.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use forebear::pool::engine::{Signals, Supply, Worker};
    ///
    /// struct Nothing(Signals);
    /// impl Supply for Nothing {
    ///     type Task = ();
    ///     fn signals(&self) -> &Signals { &self.0 }
    ///     fn take(&self, _: usize) -> Option<()> { None }
    ///     fn steal(&self, _: usize) -> Option<()> { None }
    ///     fn best(&self, _: usize) -> u64 { u64::MAX }
    /// }
    /// let worker = Worker::attach(Arc::new(Nothing(Signals::new(1))), 0);
    /// assert_eq!(worker.search_time(), Some(Duration::ZERO)); // one look
    /// ```
    #[must_use]
    pub fn search_time(&self) -> Option<Duration> {
        self.search
    }

    /// What [`Engine::states`](crate::Engine::states) shows for this worker from now on. Costs one plain store.
    pub fn set_state(&self, state: WorkerState) {
        self.states.set(self.index, state);
    }

    /// Gets a task: searches, then sleeps, until there is one. `None` when the engine stops, nothing was found and the
    /// supply's [`may_stop`](Supply::may_stop) allows it.
    ///
    /// Blocks the *thread*; to be called when it has nothing else to do. Needs little stack, holds nothing across a
    /// call of the supply. Sets the worker's state: searching, sleeping, running.
    #[must_use]
    pub fn idle(&self) -> Option<S::Task> {
        let signals = self.supply.signals();
        let mut searching = false;
        loop {
            self.set_state(WorkerState::Searching);
            signals.clear(self.index);
            if let Some(task) = self.look() {
                return Some(self.found(task, searching));
            }
            if let Some(limit) = self.search {
                searching = searching || signals.try_search();
                let stands_by = !searching && !limit.is_zero();
                if stands_by {
                    match self.stand_by() {
                        StandBy::Woken => continue,
                        StandBy::Searches => searching = true,
                        StandBy::InVain => {}
                    }
                }
                if searching && let Some(task) = self.search(limit) {
                    if stands_by {
                        self.stood_by_well();
                    }
                    return Some(self.found(task, true));
                }
            }
            if signals.is_stopping() {
                // What was made before the stop is visible now, and was perhaps not when we looked.
                let found = mutant!("stop_without_look", None, self.look());
                if let Some(task) = found {
                    return Some(self.found(task, searching));
                }
                if self.supply.may_stop(self.index) {
                    if searching {
                        // This worker leaves for good, so another one must search in its place.
                        signals.pass_on(false, || true);
                    }
                    return None;
                }
            }
            signals.announce(self.index, searching);
            let tick = self.supply.before_sleep(self.index);
            let found = mutant!("sleep_no_recheck", None, self.look());
            if found.is_none() {
                self.set_state(WorkerState::Sleeping);
                signals.park(self.index, tick);
            }
            let searched = searching && !cfg!(mutant = "last_look_not_passed_on");
            searching = signals.withdraw(self.index);
            self.supply.after_sleep(self.index);
            if let Some(task) = found {
                let searching = searching && !cfg!(mutant = "withdraw_keeps_wake");
                if searched && !searching && self.supply.more(self.index) {
                    // A thread that added work during this search woke no other worker, and this one has taken one
                    // item of it.
                    signals.notify_any();
                }
                return Some(self.found(task, searching));
            }
        }
    }

    /// Blocks the thread until `look` finds something: for a worker that can take up nothing but what is for it by name.
    ///
    /// `look` is called at once, and again after every [`wake`](crate::Signals::wake) for this worker, after every `tick`, and
    /// perhaps for no reason. `tick` is asked before each look; without one the worker sleeps until it is woken. Unlike in
    /// [`idle`](Self::idle) the worker does not count as asleep, so no [`notify_any`](crate::Signals::notify_any) chooses it:
    /// that wake-up would be lost to the others. Sets the worker's state: sleeping, running.
    ///
    /// No wake-up is lost: a token is consumed only in front of a look, so a thread that leaves one after the look keeps
    /// this one from blocking.
    pub fn wait_for_wake<T>(
        &self,
        mut tick: impl FnMut() -> Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        let signals = self.supply.signals();
        loop {
            signals.clear(self.index);
            let tick = tick();
            if let Some(found) = look() {
                self.set_state(WorkerState::Running);
                return found;
            }
            self.set_state(WorkerState::Sleeping);
            signals.park(self.index, tick);
        }
    }

    /// Checks all sources of work once.
    fn look(&self) -> Option<S::Task> {
        self.supply.take(self.index).or_else(|| self.supply.steal(self.index))
    }

    /// Another worker searches, so this one is about to sleep. First it waits for a wake-up by name, or for the end of that search, for about as long as a sleep
    /// costs, if that has paid off lately ([`Retries`]).
    ///
    /// Two requests of two workers may hand something to each other all the time, such as a permit. When one of them has just handed it over, both workers are idle for
    /// a moment. Without this the worker that came second would sleep each time.
    fn stand_by(&self) -> StandBy {
        let signals = self.supply.signals();
        let mut retries = self.retries.get();
        let mut tried = 0;
        let outcome = loop {
            if signals.has_token(self.index) {
                retries.found();
                break StandBy::Woken;
            }
            if signals.try_search() {
                break StandBy::Searches;
            }
            if !retries.again(tried) {
                break StandBy::InVain;
            }
            tried += 1;
            for _ in 0..ROUNDS_PER_CLOCK * PAUSES_PER_ROUND / PAUSES_PER_TOKEN {
                if signals.has_token(self.index) {
                    break;
                }
                (0..PAUSES_PER_TOKEN).for_each(|_| hint::spin_loop());
            }
        };
        self.retries.set(retries);
        outcome
    }

    /// It searched after it had stood by, and found something.
    fn stood_by_well(&self) {
        let mut retries = self.retries.get();
        retries.found();
        self.retries.set(retries);
    }

    /// Looks again and again for `limit`; once, if that is zero. By time and not by rounds: what a round costs differs
    /// too much.
    fn search(&self, limit: Duration) -> Option<S::Task> {
        let mut end = None;
        let mut rounds = 0_u32;
        loop {
            if self.supply.best(self.index) != u64::MAX
                && let Some(task) = self.supply.take(self.index)
            {
                return Some(task);
            }
            if let Some(task) = self.supply.steal(self.index) {
                return Some(task);
            }
            if limit.is_zero() {
                return None;
            }
            if rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
                let now = time::now();
                if now >= *end.get_or_insert(now + limit) {
                    return None;
                }
            }
            rounds = rounds.wrapping_add(1);
            for _ in 0..PAUSES_PER_ROUND {
                hint::spin_loop();
            }
        }
    }

    fn found(&self, task: S::Task, searching: bool) -> S::Task {
        if searching {
            // With more workers than cores, a woken worker takes a core from those that have work.
            self.supply.signals().pass_on(self.search.is_some(), || self.supply.more(self.index));
        }
        self.set_state(WorkerState::Running);
        task
    }
}

impl<S: Supply> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("index", &self.index)
            .field("search", &self.search)
            .finish_non_exhaustive()
    }
}
