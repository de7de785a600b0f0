//! A semaphore: a fixed number of permits.
//!
//! # The word
//!
//! ```text
//!  permits that are free | QUEUED
//! ```
//!
//! `QUEUED`: the queue has waiters. Without the bit, callers take and return permits by exchanges of the word. With it, they do so only under
//! the lock of the queue, and only the first waiter in the queue takes any. So a large request gets its permits in the end, and small ones
//! that would fit do not starve it.
//!
//! # The races
//!
//! *A release against a newcomer.* The newcomer sets `QUEUED` under the lock of the queue, in an exchange on a word with too few
//! permits. The permits of an earlier release are in that word. A later release finds the bit, and takes the lock.
//!
//! *A release against a waiter that leaves.* The release hands permits over when it chooses a waiter. A waiter that has left its wait cannot
//! be chosen. The first waiter may have asked for more permits than are free, so when it leaves it hands these on to the next.
//!
//! # Invariants
//!
//! * **S1** Whenever the lock of the queue is free, `QUEUED` is set if and only if the queue has waiters.
//! * **S2** While it is set, the rest of the word is changed under that lock only.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::{Label, Reason};
use forebear_context::error::{Cancelled, TimeoutError};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::mutant;

use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{ChosenList, LockQueue, Place};
use crate::queued_wait::{Answer, Limit, QueuedWaiter, WaitTerms, wait_in_queue};
use crate::raw_lock::Refused;

mod permits;

pub use self::permits::{OwnedSemaphorePermit, SemaphorePermit};

const QUEUED: usize = 1;
const ONE: usize = 2;

/// A number of permits: to limit how many requests and threads do something at a time. As tokio's.
///
/// A permit is returned when it is dropped, on any thread: it may move to other requests and threads. There is no
/// `close`: to end the waits, cancel the waiters.
///
/// # Fairness
///
/// The most urgent waiter is first, among equals the earliest. No newcomer overtakes the first waiter, unless it is more urgent than all that
/// wait. So a waiter for 100 permits gets the next 100 that are released, however many waiters want a single one. Permits are handed over: a
/// woken waiter has them.
///
/// A wait for permits raises nobody: a request that holds a permit keeps its own priority, however urgent the waiter is, since any request or thread may return the permit. Locks do raise
/// their holder.
///
/// ```
/// use forebear::sync::Semaphore;
///
/// static DOWNLOADS: Semaphore = Semaphore::new(4);
/// let permit = DOWNLOADS.acquire()?;
/// assert_eq!(DOWNLOADS.available(), 3);
/// drop(permit);
/// assert_eq!(DOWNLOADS.available(), 4);
/// # Ok::<(), forebear::Cancelled>(())
/// ```
pub struct Semaphore {
    word: AtomicUsize,
    label: Label,
    queue: Guarded<LockQueue<usize>>,
}

impl Semaphore {
    /// The most permits that there may be.
    pub const MAX_PERMITS: usize = usize::MAX >> 3;

    /// A semaphore with `permits` permits.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(permits: usize) -> Semaphore {
        assert!(permits <= Self::MAX_PERMITS, "forebear: too many permits");
        let word = AtomicUsize::new(permits * ONE);
        Semaphore { word, label: Label::NONE, queue: Guarded::new(LockQueue::new()) }
    }

    /// The same, with a name, which dumps and `Debug` show.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// static DOWNLOADS: Semaphore = Semaphore::named("downloads", 4);
    /// assert_eq!(DOWNLOADS.name(), Some("downloads"));
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub const fn named(name: &'static str, permits: usize) -> Semaphore {
        Semaphore { label: Label::new(name), ..Semaphore::new(permits) }
    }

    /// A semaphore with so many permits.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    #[cfg(loom)]
    pub fn new(permits: usize) -> Semaphore {
        assert!(permits <= Self::MAX_PERMITS, "forebear: too many permits");
        let word = AtomicUsize::new(permits * ONE);
        Semaphore { word, label: Label::NONE, queue: Guarded::new(LockQueue::new()) }
    }

    /// Waits for a permit.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn acquire(&self) -> Result<SemaphorePermit<'_>, Cancelled> {
        self.acquire_many(1)
    }

    /// Waits for `n` permits at once. For `n` of 0 there is no wait.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// If `n` is more than [`MAX_PERMITS`](Self::MAX_PERMITS); and as [`acquire`](Self::acquire).
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Semaphore::new(100);
    /// let permit = memory.acquire_many(60)?;
    /// assert_eq!((permit.permits(), memory.available()), (60, 40));
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many(&self, n: usize) -> Result<SemaphorePermit<'_>, Cancelled> {
        self.within(n, Limit::Never, Location::caller()).untimed()?;
        Ok(SemaphorePermit::new(self, n))
    }

    /// Waits for a permit, for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Semaphore::new(1);
    /// let permit = downloads.acquire_timeout(Duration::from_millis(1))?;
    /// let late = downloads.acquire_timeout(Duration::from_millis(1));
    /// assert!(matches!(late, Err(TimeoutError::TimedOut)));
    /// # drop(permit);
    /// # Ok::<(), TimeoutError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<SemaphorePermit<'_>, TimeoutError> {
        self.acquire_many_timeout(1, timeout)
    }

    /// Waits for `n` permits at once, for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Semaphore::new(100);
    /// let late = memory.acquire_many_timeout(101, Duration::from_millis(1));
    /// assert!(matches!(late, Err(TimeoutError::TimedOut)));
    /// assert_eq!(memory.available(), 100);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many_timeout(
        &self,
        n: usize,
        timeout: Duration,
    ) -> Result<SemaphorePermit<'_>, TimeoutError> {
        self.within(n, Limit::After(timeout), Location::caller()).timed()?;
        Ok(SemaphorePermit::new(self, n))
    }

    /// A permit, if one is free and there is no waiter. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Semaphore::new(1);
    /// let permit = downloads.try_acquire();
    /// assert!(permit.is_some() && downloads.try_acquire().is_none());
    /// ```
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.try_acquire_many(1)
    }

    /// `n` permits, if they are free and there is no waiter; for `n` of 0, always. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Semaphore::new(100);
    /// assert!(memory.try_acquire_many(101).is_none());
    /// assert_eq!(memory.try_acquire_many(100).map(|permit| permit.permits()), Some(100));
    /// ```
    #[inline]
    pub fn try_acquire_many(&self, n: usize) -> Option<SemaphorePermit<'_>> {
        self.take(n).then(|| SemaphorePermit::new(self, n))
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.label.name()
    }

    /// How many permits are free at this moment. They may be too few for the first waiter, which then waits for more.
    pub fn available(&self) -> usize {
        self.word.load(Ordering::Relaxed) / ONE
    }

    /// Adds `n` permits. Never waits.
    ///
    /// # Panics
    ///
    /// If there would be more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Semaphore::new(0);
    /// downloads.add_permits(4);
    /// assert_eq!(downloads.available(), 4);
    /// ```
    pub fn add_permits(&self, n: usize) {
        assert!(self.release(n), "forebear: too many permits");
    }

    #[inline(always)]
    #[track_caller]
    fn within(&self, n: usize, limit: Limit, caller: &'static Location<'static>) -> Result<(), Refused> {
        assert!(n <= Self::MAX_PERMITS, "forebear: more permits were asked for than the semaphore can have");
        let terms = WaitTerms { reason: Reason::Permits, what: "Semaphore", limit, caller };
        with_context!(|context| wait_in_queue(self, context, n, terms))
    }

    /// Takes so many permits by an exchange, if they are free and the queue is empty.
    #[inline]
    fn take(&self, n: usize) -> bool {
        if n == 0 {
            return true;
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & QUEUED != 0 || word / ONE < n {
                return false;
            }
            match self.word.compare_exchange_weak(word, word - n * ONE, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Gives so many back; false if there would be too many.
    #[inline]
    fn release(&self, n: usize) -> bool {
        if n == 0 {
            return true;
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if n > Self::MAX_PERMITS - word / ONE {
                return false;
            }
            if word & QUEUED != 0 {
                return self.release_slowly(n);
            }
            match self.word.compare_exchange_weak(word, word + n * ONE, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn release_slowly(&self, n: usize) -> bool {
        let chosen = self.queue.with(|queue| {
            let fits = |word: usize| n <= Self::MAX_PERMITS - word / ONE;
            // The queue may be empty by now, and others take and return permits by exchanges.
            self.change(|word| if fits(word) { word + n * ONE } else { word }, fits)
                .then(|| self.hand_on(queue))
        });
        chosen.map(ChosenList::wake).is_some()
    }

    /// Gives free permits to the first waiters, as far as they suffice, under the lock of the queue. The caller wakes
    /// them.
    fn hand_on(&self, queue: &LockQueue<usize>) -> ChosenList<usize> {
        let mut chosen = ChosenList::new();
        // S2: an empty queue has no waiter to choose.
        let mut free = self.word.load(Ordering::Acquire) / ONE;
        // SAFETY: L1; the caller wakes them.
        while let Some(one) = unsafe { queue.choose_if(|&wants| wants <= free) } {
            let wants = one.place().value;
            free -= wants;
            self.word.fetch_sub(wants * ONE, Ordering::AcqRel);
            chosen.push(one);
        }
        if queue.is_empty() {
            self.word.fetch_and(!QUEUED, Ordering::AcqRel);
        }
        chosen
    }

    /// Exchanges the word. Answers whether what it was is as it should be.
    fn change(&self, with: impl Fn(usize) -> usize, was: impl Fn(usize) -> bool) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            match self.word.compare_exchange_weak(word, with(word), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(word) => return was(word),
                Err(seen) => word = seen,
            }
        }
    }
}

impl QueuedWaiter<usize> for Semaphore {
    fn label(&self) -> &Label {
        &self.label
    }

    fn at_once(&self, &n: &usize) -> bool {
        self.take(n)
    }

    fn try_unqueued(&self, place: &Place<usize>) -> bool {
        let n = place.value;
        self.queue.with(|queue| {
            // SAFETY: L1.
            let is_first = unsafe { queue.first() }.is_none_or(|first| place.key() < first.key());
            let takes = |word: usize| is_first && word / ONE >= n;
            self.change(|word| if takes(word) { word - n * ONE } else { word }, takes)
        })
    }

    fn enter(&self, place: &Place<usize>) -> bool {
        let n = place.value;
        self.queue.with(|queue| {
            // SAFETY: L1.
            let first = unsafe { queue.first() };
            // Nor do too many pass the others.
            let is_first = first.is_none_or(|first| place.key() < first.key() && !queue.is_closed());
            let takes = |word: usize| is_first && word / ONE >= n;
            let taken = mutant!(
                "permits_queued_by_look",
                {
                    let word = self.word.load(Ordering::Acquire);
                    let change = if takes(word) { n * ONE } else { 0 };
                    self.word.fetch_sub(change, Ordering::AcqRel);
                    self.word.fetch_or(QUEUED, Ordering::AcqRel);
                    takes(word)
                },
                self.change(|word| if takes(word) { word - n * ONE } else { word | QUEUED }, takes)
            );
            if taken {
                queue.count_passing();
            } else {
                // SAFETY: L1; L2: the place stays in its frame until it is out.
                unsafe { queue.enter(place) };
            }
            !taken
        })
    }

    fn leave(&self, place: &Place<usize>) -> bool {
        let chosen = self.queue.with(|queue| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            #[cfg(mutant = "leaver_keeps_permits_back")]
            if !queue.is_empty() {
                return ChosenList::new();
            }
            self.hand_on(queue)
        });
        chosen.wake();
        true
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.queue.with(LockQueue::len);
        let mut shown = f.debug_struct("Semaphore");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("available", &self.available()).field("waiting", &waiting).finish_non_exhaustive()
    }
}
