//! A latch: waiters continue when a count reaches zero. The count never rises.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::Reason;
use forebear_context::error::{Cancelled, TimeoutError};
use forebear_context::shim::atomic::{AtomicUsize, Ordering};

use crate::queued_wait::{Answer, Limit};
use crate::wait_set::WaitSet;

/// A count that goes down to zero once; requests and threads wait until it is there. Unlike at a [`Barrier`](crate::Barrier), a call that
/// counts down does not wait, and one caller may count several times.
///
/// A waiter that returns sees everything that was done before each [`count_down`](Self::count_down).
///
/// # Fairness
///
/// All waiters continue at once, the most urgent first.
///
/// ```
/// use forebear::sync::Latch;
///
/// static STARTED: Latch = Latch::new(2);
/// let threads = [(); 2].map(|()| std::thread::spawn(|| STARTED.count_down()));
/// STARTED.wait()?;
/// assert_eq!(STARTED.count(), 0);
/// threads.map(|thread| thread.join().unwrap());
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[doc(alias = "WaitGroup")]
#[doc(alias = "CountDownLatch")]
pub struct Latch {
    count: AtomicUsize,
    wait_set: WaitSet,
}

impl Latch {
    /// A latch that opens after `count` calls of [`count_down`](Self::count_down). A latch of zero is open.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(count: usize) -> Latch {
        Latch { count: AtomicUsize::new(count), wait_set: WaitSet::new() }
    }

    /// A latch that opens when it has been counted down so many times. One of zero is open.
    #[cfg(loom)]
    pub fn new(count: usize) -> Latch {
        Latch { count: AtomicUsize::new(count), wait_set: WaitSet::new() }
    }

    /// Counts one down; at zero all waiters continue, and the count stays there. Never waits.
    pub fn count_down(&self) {
        let mut count = self.count.load(Ordering::Relaxed);
        while count > 0 {
            match self.count.compare_exchange_weak(count, count - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(1) => return self.wait_set.let_go(),
                Ok(_) => return,
                Err(seen) => count = seen,
            }
        }
    }

    /// How many calls are missing.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until the count is zero.
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
    pub fn wait(&self) -> Result<(), Cancelled> {
        self.wait_set
            .wait(Reason::Event, "Latch", Limit::Never, Location::caller(), || self.count() == 0)
            .untimed()
    }

    /// As [`wait`](Self::wait), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Latch;
    ///
    /// let started = Latch::new(1);
    /// assert_eq!(started.wait_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut));
    /// started.count_down();
    /// assert_eq!(started.wait_timeout(Duration::from_millis(1)), Ok(()));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.wait_set
            .wait(Reason::Event, "Latch", Limit::After(timeout), Location::caller(), || self.count() == 0)
            .timed()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("count", &self.count()).finish_non_exhaustive()
    }
}
