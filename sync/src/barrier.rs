//! A barrier: a fixed number of waiters wait for each other.
//!
//! # The race
//!
//! *The last one against a leaver.* The last arrival wakes all others, under the lock of the queue. One of them may
//! have been cancelled or timed out a moment ago, and has not taken the lock yet to leave the count. Then that waiter
//! is too late to leave: it has been counted, the generation is over, and its wait succeeds. So each generation has
//! exactly the right number of waiters.

use forebear_context::shim::mutant;
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::Reason;
use forebear_context::error::{Cancelled, TimeoutError};

use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{ChosenList, LockQueue, Place};
use crate::queued_wait::{Answer, Limit, QueuedWaiter, WaitTerms, wait_in_queue};
use crate::raw_lock::Refused;
use crate::wait_set::everybody;

/// A place where `parties` requests and threads wait for each other, again and again: as [`std::sync::Barrier`].
///
/// # Generations
///
/// When the last of a generation arrives, all its waiters continue, and the next arrival is the first of the next generation. A waiter that
/// leaves early, since it was cancelled or timed out, is taken out of the count again. If it leaves at the moment when the last one arrives,
/// it has been counted, and its wait returns `Ok`.
///
/// # Fairness
///
/// All waiters continue at once, the most urgent first.
///
/// ```
/// use forebear::sync::Barrier;
///
/// static BOTH: Barrier = Barrier::new(2);
/// let thread = std::thread::spawn(|| BOTH.wait());
/// let here = BOTH.wait()?;
/// let there = thread.join().unwrap()?;
/// assert!(here.is_leader() != there.is_leader());
/// # Ok::<(), forebear::Cancelled>(())
/// ```
pub struct Barrier {
    parties: usize,
    standing: Guarded<Standing>,
}

struct Standing {
    queue: LockQueue,
    /// How many of this generation have come.
    arrived: Cell<usize>,
}

/// What a wait at a [`Barrier`] returns.
///
/// ```
/// use forebear::sync::Barrier;
///
/// let alone = Barrier::new(1);
/// assert!(alone.wait()?.is_leader());
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[derive(Debug)]
pub struct BarrierWaitResult {
    is_leader: bool,
}

impl BarrierWaitResult {
    /// Whether this waiter arrived last: exactly one of each generation did.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.is_leader
    }
}

/// One wait.
struct Arrival<'a> {
    barrier: &'a Barrier,
    is_last: Cell<bool>,
}

impl Barrier {
    /// A barrier for `parties` waiters. With 0 or 1 no wait suspends.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(parties: usize) -> Barrier {
        let standing = Standing { queue: LockQueue::new(), arrived: Cell::new(0) };
        Barrier { parties, standing: Guarded::new(standing) }
    }

    /// A barrier for so many waiters. A wait at a barrier for zero or one returns at once.
    #[cfg(loom)]
    pub fn new(parties: usize) -> Barrier {
        let standing = Standing { queue: LockQueue::new(), arrived: Cell::new(0) };
        Barrier { parties, standing: Guarded::new(standing) }
    }

    /// Waits until all parties have arrived.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`]; the caller then does not count as arrived.
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self) -> Result<BarrierWaitResult, Cancelled> {
        self.within(Limit::Never, Location::caller()).untimed()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once: the caller arrives only if it is
    /// the last that is missing.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`] or [`TimeoutError::Cancelled`]; the caller then does not count as arrived.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Barrier;
    ///
    /// let both = Barrier::new(2);
    /// let alone = both.wait_timeout(Duration::from_millis(1));
    /// assert!(matches!(alone, Err(TimeoutError::TimedOut)));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<BarrierWaitResult, TimeoutError> {
        self.within(Limit::After(timeout), Location::caller()).timed()
    }

    /// How many waiters make a generation.
    ///
    /// ```
    /// use forebear::sync::Barrier;
    ///
    /// assert_eq!(Barrier::new(3).parties(), 3);
    /// ```
    pub fn parties(&self) -> usize {
        self.parties
    }

    #[inline(always)]
    #[track_caller]
    fn within(&self, limit: Limit, caller: &'static Location<'static>) -> Result<BarrierWaitResult, Refused> {
        let arrival = Arrival { barrier: self, is_last: Cell::new(false) };
        let terms = WaitTerms { reason: Reason::Barrier, what: "Barrier", limit, caller };
        with_context!(|context| wait_in_queue(&arrival, context, (), terms))?;
        Ok(BarrierWaitResult { is_leader: arrival.is_last.get() })
    }
}

impl Arrival<'_> {
    /// Comes: has all go on if it is the last, and else calls `stand`, under the lock. Answers whether it is the last.
    fn arrive(&self, stand: impl FnOnce(&Standing)) -> bool {
        let chosen = self.barrier.standing.with(|standing| {
            if standing.arrived.get() + 1 < self.barrier.parties {
                stand(standing);
                return None;
            }
            mutant!("barrier_goes_on_counting", (), standing.arrived.set(0));
            Some(everybody(&standing.queue))
        });
        self.is_last.set(chosen.is_some());
        chosen.map(ChosenList::wake).is_some()
    }
}

impl QueuedWaiter<()> for Arrival<'_> {
    fn at_once(&self, (): &()) -> bool {
        self.arrive(|_| ())
    }

    fn enter(&self, place: &Place) -> bool {
        // The last but one may have come since.
        let is_last = self.arrive(|standing| {
            standing.arrived.set(standing.arrived.get() + 1);
            // SAFETY: L1; L2: the place stays in its frame until it is out.
            unsafe { standing.queue.enter(place) };
        });
        !is_last
    }

    fn leave(&self, place: &Place) -> bool {
        self.barrier.standing.with(|standing| {
            // SAFETY: L1.
            let stood = unsafe { standing.queue.remove(place) };
            if stood {
                standing.arrived.set(standing.arrived.get() - 1);
            }
            mutant!("barrier_leaver_is_never_too_late", true, stood)
        })
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrived = self.standing.with(|standing| standing.arrived.get());
        f.debug_struct("Barrier")
            .field("parties", &self.parties)
            .field("came", &arrived)
            .finish_non_exhaustive()
    }
}
