//! An event: waiters continue when it is set.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::Reason;
use forebear_context::error::{Cancelled, TimeoutError};
use forebear_context::shim::atomic::{AtomicBool, Ordering};

use crate::lock_queue::Place;
use crate::queued_wait::{Answer, Limit};
use crate::wait_set::WaitSet;

/// A flag that requests and threads wait for. It can be [reset](Self::reset).
///
/// A call that finds the event set sees everything that was done before [`set`](Self::set).
///
/// # Fairness
///
/// All waiters continue at once, the most urgent first. A waiter that waits when the event is set continues, even if the event is
/// reset before the waiter runs.
///
/// ```
/// use forebear::sync::Event;
///
/// static LOADED: Event = Event::new();
/// let thread = std::thread::spawn(|| LOADED.set());
/// LOADED.wait()?;
/// assert!(LOADED.is_set());
/// thread.join().unwrap();
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[doc(alias = "Notify")]
pub struct Event {
    is_set: AtomicBool,
    wait_set: WaitSet,
}

impl Event {
    /// An event that is not set.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Event {
        Event { is_set: AtomicBool::new(false), wait_set: WaitSet::new() }
    }

    /// An event that has not happened.
    #[cfg(loom)]
    pub fn new() -> Event {
        Event { is_set: AtomicBool::new(false), wait_set: WaitSet::new() }
    }

    /// Sets the event: all waiters continue. Never waits.
    pub fn set(&self) {
        // A waiter asks and enters under one hold of the lock that `let_go` takes: it is woken, or finds the event set.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.wait_set.let_go();
        }
    }

    /// Takes the event back: later waits wait for the next [`set`](Self::set). Never waits itself.
    ///
    /// ```
    /// use forebear::sync::Event;
    ///
    /// let loaded = Event::new();
    /// loaded.set();
    /// loaded.reset();
    /// assert!(!loaded.is_set());
    /// ```
    pub fn reset(&self) {
        self.is_set.store(false, Ordering::Release);
    }

    /// Whether the event is set.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits until the event is set.
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
            .wait(Reason::Event, "Event", Limit::Never, Location::caller(), || self.is_set())
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
    /// use forebear::sync::Event;
    ///
    /// let loaded = Event::new();
    /// assert_eq!(loaded.wait_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut));
    /// loaded.set();
    /// assert_eq!(loaded.wait_timeout(Duration::from_millis(1)), Ok(()));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.wait_set
            .wait(Reason::Event, "Event", Limit::After(timeout), Location::caller(), || self.is_set())
            .timed()
    }
}

impl Event {
    /// For a wait of several: stands in the list, unless it has happened.
    ///
    /// # Safety
    ///
    /// L2: the place stays until it has left; it is of a wait that has been begun by the calling context.
    pub(crate) unsafe fn enter(&self, place: &Place) -> bool {
        // SAFETY: by contract.
        unsafe { self.wait_set.enter(place, || self.is_set()) }
    }

    /// Leaves it. False: it has happened meanwhile.
    ///
    /// # Safety
    ///
    /// It was listed here.
    pub(crate) unsafe fn leave(&self, place: &Place) -> bool {
        // SAFETY: by contract.
        unsafe { self.wait_set.leave(place) }
    }
}

impl Default for Event {
    fn default() -> Self {
        Event::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("is_set", &self.is_set()).finish_non_exhaustive()
    }
}
