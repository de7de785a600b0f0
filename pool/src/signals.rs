//! The sleep protocol: who is asleep, who looks for work, and which of them a new piece of work wakes.
//!
//! `signals/README.md` has the protocol in full, with the race and the argument. In short:
//!
//! One word counts the workers that **search** (low half) and those that **sleep** (high half). A list under a lock
//! names the sleepers. Each worker has a *parker*: a place to block, with a token.
//!
//! Invariants:
//!
//! 1. Under the lock of the list, the high half equals the list's length; both change together, by its holder.
//! 2. Every decision not to wake anybody rests on a value read by a read-modify-write of the word. All of these stand
//!    in one order, and each sees what was made visible before the earlier ones.
//! 3. A worker in the list looks at everything *after* the step that counted it there, before it blocks.
//! 4. A worker that stops searching because it found something, or leaves for good, passes the search on if it was the
//!    last to search ([`Signals::pass_on`]); if it was not, it may. One that found nothing goes into the list by the same step; if its last
//!    look then does find something, it notifies in the end: it was relied on until that step.
//! 5. A thread that takes another worker off the list makes it a searcher in the same step, and leaves it a token.
//!
//! Only [`Worker::idle`](crate::Worker::idle) walks through the states; everybody else may call `notify_any`, `wake`
//! and `stop`.

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

/// A searcher that has found something wakes two in its place, if fewer search than one for so many sleepers; else one, if nobody
/// does. Up to eight workers that is one.
const SLEEPERS_A_SEARCHER: usize = 4;
/// And not more than so many search: where tasks are tiny, each is in the way of the others.
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
/// Made before the threads, for a fixed number of workers, and shared by all who make work for them. Dropping it wakes
/// nobody.
///
/// ```
/// let signals = forebear::pool::engine::Signals::new(4);
/// assert_eq!(signals.workers(), 4);
/// assert!(!signals.notify_any(), "nobody is asleep yet");
/// ```
#[derive(Debug)]
pub struct Signals {
    word: Word,
    stopping: AtomicBool,
    sleepers: Mutex<Vec<usize>>,
    parkers: Box<[Parker]>,
    sleepers_a_searcher: usize,
}

/// The word on a line of its own: every notifier touches it.
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

    /// Says that there is work for anyone. Call it *after* the work is visible to those who take and steal.
    ///
    /// Wakes at most one sleeper, and none while somebody searches: that one will see the work, or pass the search on.
    /// Returns whether it woke one. Never blocks for longer than another call of this kind takes.
    pub fn notify_any(&self) -> bool {
        let taken = self.take_sleeper(Counts::wants_wake);
        self.wake_taken(taken);
        taken.is_some()
    }

    /// Takes a sleeper off the list, which searches from now on, if the counts are as `wanted`. It is to be woken.
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

    /// Says to one sleeper that is `wanted` that there is work which others refuse: to the latest such. Call it *after* the work is visible.
    ///
    /// Unlike [`notify_any`](Signals::notify_any) it relies on no searcher, since that one may refuse the work, too. `wanted` is called under a
    /// lock that each sleeper has held since it last changed anything of its own. Returns whether it woke one.
    pub fn notify_one_of(&self, wanted: impl Fn(usize) -> bool) -> bool {
        if self.counts().sleeping() == 0 {
            return false;
        }
        let mut sleepers = self.lock_sleepers();
        let taken = sleepers.iter().rposition(|&sleeper| wanted(sleeper)).map(|place| {
            // Invariants 1 and 5. Nobody else changes the count of sleepers meanwhile, so it is above zero.
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

    /// Says that there is something for the worker of this number: its mailbox, an order to look again. Call it *after*
    /// that is visible.
    ///
    /// Wakes it if it sleeps; else leaves a token, so that its next attempt to sleep returns at once. Costs one swap if
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

    /// About how many workers search for work, those included that have been woken and not yet looked.
    #[must_use]
    pub fn searching(&self) -> usize {
        Counts(self.word.0.load(Relaxed)).searching()
    }

    /// Tells all workers to stop, and wakes them. Idempotent.
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
    /// Nobody searches and somebody sleeps: a new piece of work has to wake one.
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

    /// Consumes the worker's token; everything must be looked at afterwards.
    pub(crate) fn clear(&self, worker: usize) {
        self.parkers[worker].clear();
    }

    /// Makes the calling worker the searcher, unless there is one.
    pub(crate) fn try_search(&self) -> bool {
        let mut seen = Counts(self.word.0.load(Relaxed));
        // A stale value is harmless: who is refused goes on to sleep, and looks at everything after it has said so.
        while seen.searching() == 0 {
            match self.word.0.compare_exchange(seen.0, seen.0 + SEARCHER, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(other) => seen = Counts(other),
            }
        }
        false
    }

    /// The calling searcher has found something, or goes for good. If it was the last to search and `more` says that there may be
    /// work for others, another is woken to search (invariant 4); with `widely`, also if few search, and two.
    pub(crate) fn pass_on(&self, widely: bool, more: impl FnOnce() -> bool) {
        let before = Counts(self.word.0.fetch_sub(SEARCHER, AcqRel));
        debug_assert!(before.searching() > 0, "a searcher that was not counted");
        mutant!("search_not_passed_on", return);
        let wanted = |counts: Counts| match widely {
            true => counts.wants_heir(self.sleepers_a_searcher),
            false => counts.wants_wake(),
        };
        // `more` is asked after the step: who was refused before it made its work visible before it.
        if (before.searching() == 1 || wanted(Counts(before.0 - SEARCHER))) && more() {
            let first = self.take_sleeper(wanted);
            let second = first.and_then(|_| self.take_sleeper(wanted));
            self.wake_taken(first);
            self.wake_taken(second);
        }
    }

    /// The worker goes into the list. From here on it can be woken for anyone; it must look at everything once more
    /// (invariant 3) before it parks, and then [`withdraw`](Signals::withdraw).
    pub(crate) fn announce(&self, worker: usize, searching: bool) {
        let mut sleepers = self.lock_sleepers();
        sleepers.push(worker);
        if searching && !cfg!(mutant = "sleep_still_searching") {
            self.word.0.fetch_add(SLEEPER - SEARCHER, AcqRel);
        } else {
            self.word.0.fetch_add(SLEEPER, AcqRel);
        }
    }

    /// The worker leaves the list. True if somebody took it off before: then it is a searcher (invariant 5), and its
    /// token is there or on the way.
    #[must_use = "who was taken off the list is counted as a searcher"]
    pub(crate) fn withdraw(&self, worker: usize) -> bool {
        let mut sleepers = self.lock_sleepers();
        // The latest are at the end; a worker that found something at once is nearly always the last.
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
