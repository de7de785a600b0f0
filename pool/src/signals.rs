//! The sleep protocol: which workers sleep, which search for work, and which one a new piece of work wakes.
//!
//! `signals/README.md` has the protocol in full, with the race and the argument. In short:
//!
//! One word counts the workers that **search** (low half) and those that **sleep** (high half). A list under a lock
//! names the sleepers. Each worker has a *parker*: a place to block, with a token.
//!
//! Invariants:
//!
//! 1. Under the lock of the list, the high half equals the list's length; both change together, by its holder.
//! 2. A thread decides to wake no worker only by a value that a read-modify-write of the word has read. All of these are in one order, and
//!    each sees what was made visible before the earlier ones.
//! 3. A worker in the list checks all sources of work *after* the step that counted it there, before it blocks.
//! 4. A worker that stops searching because it found work, or leaves for good, passes the search on if it was the
//!    last to search ([`Signals::pass_on`]); otherwise it may. A worker that found none enters the list by the same step. If its last
//!    check does find work, it notifies in the end, since others relied on it until that step.
//! 5. A thread that takes another worker off the list makes it a searcher in the same step, and leaves it a token.
//!
//! Only [`Worker::idle`](crate::Worker::idle) moves through the states. Any thread may call `notify_any`, `wake` and `stop`.

mod parker;

use std::sync::PoisonError;
use std::time::Duration;

use forebear_context::shim::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use forebear_context::shim::{Mutex, MutexGuard, mutant};

use self::parker::Parker;

/// One more in the low half: a worker that searches.
const SEARCHER: u64 = 1;
/// One more in the high half: a worker that sleeps.
const SLEEPER: u64 = 1 << 32;

/// A searcher that has found work wakes two in its place, if there are fewer searchers than one for so many sleepers. Otherwise it wakes one,
/// if no worker searches. Up to eight workers that is one.
const SLEEPERS_A_SEARCHER: usize = 4;
/// At most so many search: with tiny tasks each searcher delays the others.
const SEARCHERS: usize = 8;

/// The two counts of one reading of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts(u64);

impl Counts {
    fn searching(self) -> usize {
        (self.0 & (SLEEPER - 1)) as usize
    }

    fn sleeping(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// Wakes workers: any one of them, or a named one.
///
/// Made before the threads, for a fixed number of workers, and shared by all that make work for them. Dropping it wakes no worker.
///
/// ```
/// let signals = forebear::pool::engine::Signals::new(4);
/// assert_eq!(signals.workers(), 4);
/// assert!(!signals.notify_any(), "no worker sleeps yet");
/// ```
#[derive(Debug)]
pub struct Signals {
    word: Word,
    stopping: AtomicBool,
    sleepers: Mutex<Vec<usize>>,
    parkers: Box<[Parker]>,
    sleepers_a_searcher: usize,
}

/// The word on a cache line of its own: every notifier writes it.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU64);

impl Signals {
    /// Signals for `workers` workers, numbered from 0; all of them awake.
    #[must_use]
    pub fn new(workers: usize) -> Signals {
        Signals::with_sleepers_a_searcher(workers, SLEEPERS_A_SEARCHER)
    }

    /// The same with another share of searchers, for models, which have few workers.
    #[doc(hidden)]
    #[must_use]
    pub fn with_sleepers_a_searcher(workers: usize, sleepers_a_searcher: usize) -> Signals {
        Signals {
            word: Word(AtomicU64::new(0)),
            stopping: AtomicBool::new(false),
            sleepers: Mutex::new(Vec::with_capacity(workers)),
            parkers: (0..workers).map(|_| Parker::new()).collect(),
            sleepers_a_searcher,
        }
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.parkers.len()
    }

    /// Announces work that any worker may take. Call it *after* the work is visible to the workers.
    ///
    /// Wakes at most one sleeper, and none while a worker searches: that worker will see the work, or pass the search on.
    /// Returns whether it woke one. Never blocks for longer than another call of this kind takes.
    pub fn notify_any(&self) -> bool {
        let taken = self.take_sleeper(Counts::wants_wake);
        self.wake_taken(taken);
        taken.is_some()
    }

    /// Takes a sleeper off the list, if the counts are as `wanted`. The sleeper counts as a searcher from now on; the caller wakes it.
    fn take_sleeper(&self, wanted: impl Fn(Counts) -> bool) -> Option<usize> {
        if !wanted(self.counts()) {
            return None;
        }
        let mut sleepers = self.lock_sleepers();
        loop {
            let counts = self.counts();
            if !wanted(counts) {
                return None;
            }
            let next = mutant!(
                "heir_not_counted",
                counts.0 - SLEEPER + if counts.searching() == 0 { SEARCHER } else { 0 },
                counts.0 - SLEEPER + SEARCHER
            );
            if self.word.0.compare_exchange(counts.0, next, AcqRel, Acquire).is_ok() {
                // Invariant 1: the count was above zero, and we hold the lock.
                let taken = sleepers.pop();
                debug_assert!(taken.is_some(), "the count of sleepers and their list differ");
                return taken;
            }
        }
    }

    /// Announces work that other workers refuse to the latest sleeper that is `wanted`. Call it *after* the work is visible.
    ///
    /// Unlike [`notify_any`](Signals::notify_any) it relies on no searcher, since a searcher may refuse the work, too. `wanted` is called under a
    /// lock that each sleeper has held after it last changed its own state. Returns whether it woke one.
    pub fn notify_one_of(&self, wanted: impl Fn(usize) -> bool) -> bool {
        if self.counts().sleeping() == 0 {
            return false;
        }
        let mut sleepers = self.lock_sleepers();
        let taken = sleepers.iter().rposition(|&sleeper| wanted(sleeper)).map(|place| {
            // Invariants 1 and 5. No other thread changes the count of sleepers meanwhile, so it is above zero.
            self.word.0.fetch_sub(mutant!("chosen_not_counted", SLEEPER, SLEEPER - SEARCHER), AcqRel);
            sleepers.remove(place)
        });
        drop(sleepers);
        self.wake_taken(taken);
        taken.is_some()
    }

    fn wake_taken(&self, taken: Option<usize>) {
        if let Some(worker) = taken {
            self.wake(worker);
        }
    }

    /// Announces work for the worker of this number, such as an item in its mailbox. Call it *after* the work is visible.
    ///
    /// Wakes the worker if it sleeps. Otherwise leaves a token, so that its next attempt to sleep returns at once. Costs one swap if
    /// the worker is awake.
    ///
    /// # Panics
    ///
    /// If there is no worker of this number.
    ///
    /// ```
    /// use forebear::pool::engine::Signals;
    ///
    /// let signals = Signals::new(2);
    /// signals.wake(1); // its next attempt to sleep returns at once
    /// assert_eq!((signals.sleeping(), signals.searching()), (0, 0));
    /// assert!(!signals.notify_one_of(|worker| worker == 0)); // it is awake
    /// ```
    pub fn wake(&self, worker: usize) {
        self.parkers[worker].wake();
    }

    /// About how many workers sleep. A snapshot that may be out of date; for metrics and hints, never for a decision
    /// that must not be wrong.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        Counts(self.word.0.load(Relaxed)).sleeping()
    }

    /// About how many workers search for work, including those that were woken and have not begun to.
    #[must_use]
    pub fn searching(&self) -> usize {
        Counts(self.word.0.load(Relaxed)).searching()
    }

    /// Stops all workers, and wakes them for it. Idempotent.
    ///
    /// A worker stops when it has found nothing and its [`Supply::may_stop`](crate::Supply::may_stop) agrees.
    ///
    /// ```
    /// use forebear::pool::engine::Signals;
    ///
    /// let signals = Signals::new(2);
    /// assert!(!signals.is_stopping());
    /// signals.stop();
    /// assert!(signals.is_stopping());
    /// ```
    pub fn stop(&self) {
        mutant!("stop_wakes_first", (), self.stopping.swap(true, AcqRel));
        for parker in &self.parkers {
            parker.wake();
        }
        mutant!("stop_wakes_first", self.stopping.swap(true, AcqRel));
    }

    /// Whether [`stop`](Signals::stop) has been called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }
}

impl Counts {
    /// No worker searches and at least one sleeps: a new piece of work has to wake one.
    fn wants_wake(self) -> bool {
        self.searching() == 0 && self.sleeping() > 0
    }

    /// The same for a searcher that wakes another in its place: also true if few workers search and many sleep.
    fn wants_heir(self, sleepers_a_searcher: usize) -> bool {
        let few = self.sleeping() > 0
            && self.searching() < SEARCHERS
            && (self.searching() + 1) * sleepers_a_searcher <= self.sleeping();
        few || self.wants_wake() && !cfg!(mutant = "heirs_by_share_only")
    }
}

/// The worker's half of the protocol.
impl Signals {
    /// The calling thread is the worker of this number from now on.
    pub(crate) fn enter(&self, worker: usize) {
        self.parkers[worker].enter();
    }

    /// Whether there is a token for the worker.
    pub(crate) fn has_token(&self, worker: usize) -> bool {
        self.parkers[worker].has_token()
    }

    /// Consumes the worker's token. The worker has to check all sources of work afterwards.
    pub(crate) fn clear(&self, worker: usize) {
        self.parkers[worker].clear();
    }

    /// Makes the calling worker the searcher, unless there is one.
    pub(crate) fn try_search(&self) -> bool {
        let mut seen = Counts(self.word.0.load(Relaxed));
        // A stale value is harmless: a worker that is refused enters the list, and then checks all sources of work.
        while seen.searching() == 0 {
            match self.word.0.compare_exchange(seen.0, seen.0 + SEARCHER, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(other) => seen = Counts(other),
            }
        }
        false
    }

    /// The calling searcher has found work, or leaves for good. If it was the last to search, and `more` says that there may be work for
    /// others, it wakes another to search (invariant 4). With `widely` it wakes two, and also if few search.
    pub(crate) fn pass_on(&self, widely: bool, more: impl FnOnce() -> bool) {
        let before = Counts(self.word.0.fetch_sub(SEARCHER, AcqRel));
        debug_assert!(before.searching() > 0, "a searcher that was not counted");
        mutant!("search_not_passed_on", return);
        let wanted = |counts: Counts| match widely {
            true => counts.wants_heir(self.sleepers_a_searcher),
            false => counts.wants_wake(),
        };
        // `more` is called after the step: a thread that woke no worker because of this searcher made its work visible before the step.
        if (before.searching() == 1 || wanted(Counts(before.0 - SEARCHER))) && more() {
            let first = self.take_sleeper(wanted);
            let second = first.and_then(|_| self.take_sleeper(wanted));
            self.wake_taken(first);
            self.wake_taken(second);
        }
    }

    /// The worker enters the list. From here on any notifier can wake it. It has to check all sources of work once more (invariant 3) before
    /// it parks, and then call [`withdraw`](Signals::withdraw).
    pub(crate) fn announce(&self, worker: usize, searching: bool) {
        let mut sleepers = self.lock_sleepers();
        sleepers.push(worker);
        if searching && !cfg!(mutant = "sleep_still_searching") {
            self.word.0.fetch_add(SLEEPER - SEARCHER, AcqRel);
        } else {
            self.word.0.fetch_add(SLEEPER, AcqRel);
        }
    }

    /// The worker leaves the list. True if a notifier took it off before: then it is a searcher (invariant 5), and its
    /// token is there or about to be.
    #[must_use = "who was taken off the list is counted as a searcher"]
    pub(crate) fn withdraw(&self, worker: usize) -> bool {
        let mut sleepers = self.lock_sleepers();
        // The latest are at the end; a worker that found work at once is nearly always the last.
        match sleepers.iter().rposition(|&sleeper| sleeper == worker) {
            Some(place) => {
                sleepers.remove(place);
                self.word.0.fetch_sub(SLEEPER, AcqRel);
                false
            }
            None => true,
        }
    }

    /// Blocks the calling worker until it is woken, `tick` has passed, or for no reason.
    pub(crate) fn park(&self, worker: usize, tick: Option<Duration>) {
        self.parkers[worker].park(tick);
    }

    /// The counts, read by a step that stands in the order of all steps on the word (invariant 2).
    fn counts(&self) -> Counts {
        let word = mutant!("notify_plain_load", self.word.0.load(Acquire), self.word.0.fetch_add(0, AcqRel));
        Counts(word)
    }

    fn lock_sleepers(&self) -> MutexGuard<'_, Vec<usize>> {
        // Nothing under this lock can panic half-way; a poisoned lock is a whole list.
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
