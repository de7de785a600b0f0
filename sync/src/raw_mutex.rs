//! A mutex without a value, which any thread may unlock.

use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::{Label, Lock, Reason, ThreadNumber};
use forebear_context::error::{Cancelled, TimeoutError};

use crate::here::with_context;
use crate::mutex::refuse;
use crate::raw_lock::{LockTerms, RawLock, Refused, called};

static RAW_MUTEX: Lock = called("RawMutex");

/// A lock without a value, which any request or thread may release: also another one than that which took it.
///
/// For hand-overs between requests or threads, and for code that locks and releases in different functions. Where a guard will do, use
/// [`Mutex`](crate::Mutex).
///
/// # Fairness
///
/// That of [`Mutex`](crate::Mutex#fairness), with the same numbers.
///
/// # Deadlocks
///
/// The lock has no holder, since any code may release it. So urgency does not reach the code that took it, and a cycle of waits through it
/// is not found.
///
/// ```
/// use forebear::sync::{RawMutex, UnlockError};
///
/// static TURN: RawMutex = RawMutex::new();
/// TURN.lock();
/// std::thread::spawn(|| TURN.unlock()).join().unwrap().unwrap();
/// assert_eq!(TURN.unlock(), Err(UnlockError::NotLocked));
/// ```
#[derive(Default)]
pub struct RawMutex {
    raw: RawLock,
    /// The number of the thread that took the lock last: a hint. Another may have released it since, and taken it.
    taken_on: ThreadNumber,
}

/// Why a lock was not released.
///
/// ```
/// use forebear::sync::{RawMutex, UnlockError};
///
/// assert_eq!(RawMutex::new().unlock(), Err(UnlockError::NotLocked));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnlockError {
    /// It was not locked.
    NotLocked,
}

impl fmt::Display for UnlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnlockError::NotLocked => f.pad("the lock was not locked"),
        }
    }
}

impl Error for UnlockError {}

impl RawMutex {
    /// A lock that is free.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> RawMutex {
        RawMutex { raw: RawLock::new(Label::NONE), taken_on: ThreadNumber::none() }
    }

    /// A lock that is free.
    #[cfg(loom)]
    pub fn new() -> RawMutex {
        RawMutex { raw: RawLock::new(Label::NONE), taken_on: ThreadNumber::none() }
    }

    /// The same, with a name, which dumps and `Debug` show.
    ///
    /// ```
    /// use forebear::sync::RawMutex;
    ///
    /// static TURN: RawMutex = RawMutex::named("turn");
    /// assert_eq!(TURN.name(), Some("turn"));
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub const fn named(name: &'static str) -> RawMutex {
        RawMutex { raw: RawLock::new(Label::new(name)), taken_on: ThreadNumber::none() }
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.raw.label().name()
    }

    /// Locks it; waits until it is free.
    ///
    /// Suspends. Not a cancellation point; see [`lock_or_cancelled`](Self::lock_or_cancelled).
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) {
        if !self.raw.try_lock_unnamed(&self.taken_on) {
            let caller = Location::caller();
            let terms = LockTerms { reason: Reason::Lock, deadline: None, caller, of: &RAW_MUTEX };
            let waited =
                with_context!(|context| self.raw.waiting_unnamed(context, &self.taken_on, terms).wait());
            if let Err(refused) = waited {
                refuse(refused);
            }
        }
    }

    /// As [`lock`](Self::lock), unless the calling request is cancelled before it has the lock.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    ///
    /// ```
    /// use forebear::sync::RawMutex;
    ///
    /// let turn = RawMutex::new();
    /// turn.lock_or_cancelled()?;
    /// assert!(turn.is_locked());
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn lock_or_cancelled(&self) -> Result<(), Cancelled> {
        let caller = Location::caller();
        let terms = LockTerms { reason: Reason::LockOrCancelled, deadline: None, caller, of: &RAW_MUTEX };
        match with_context!(|context| self.raw.waiting_unnamed(context, &self.taken_on, terms).wait()) {
            Ok(()) => Ok(()),
            Err(Refused::Cancelled) => Err(Cancelled::new()),
            Err(refused) => refuse(refused),
        }
    }

    /// As [`lock`](Self::lock), for `timeout` at most, on the clock of the runtime.
    ///
    /// Suspends. A cancellation point. A timeout of zero checks once.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::RawMutex;
    ///
    /// let turn = RawMutex::new();
    /// assert_eq!(turn.lock_timeout(Duration::from_millis(1)), Ok(()));
    /// assert_eq!(turn.lock_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<(), TimeoutError> {
        let caller = Location::caller();
        let waited = with_context!(|context| {
            let is_zero = timeout.is_zero();
            let deadline = if is_zero { None } else { context.deadline(timeout) };
            let terms = LockTerms { reason: Reason::LockOrCancelled, deadline, caller, of: &RAW_MUTEX };
            let mut waiting = self.raw.waiting_unnamed(context, &self.taken_on, terms);
            if is_zero { waiting.try_once() } else { waiting.wait() }
        });
        match waited {
            Ok(()) => Ok(()),
            Err(Refused::Cancelled) => Err(TimeoutError::Cancelled),
            Err(Refused::TimedOut) => Err(TimeoutError::TimedOut),
            Err(refused) => refuse(refused),
        }
    }

    /// Takes the lock if it is free, and returns whether it did. Never waits, and may overtake the waiters.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::RawMutex;
    ///
    /// let turn = RawMutex::new();
    /// assert!(turn.try_lock());
    /// assert!(!turn.try_lock());
    /// ```
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.raw.try_lock_unnamed(&self.taken_on)
    }

    /// Releases the lock, from any request or thread. Never waits.
    ///
    /// # Errors
    ///
    /// [`UnlockError::NotLocked`] if it was not locked; then nothing has changed.
    ///
    /// ```
    /// use forebear::sync::RawMutex;
    ///
    /// let turn = RawMutex::new();
    /// turn.lock();
    /// turn.unlock()?;
    /// assert!(!turn.is_locked());
    /// # Ok::<(), forebear::sync::UnlockError>(())
    /// ```
    #[inline]
    pub fn unlock(&self) -> Result<(), UnlockError> {
        if self.raw.unlock_unnamed() { Ok(()) } else { Err(UnlockError::NotLocked) }
    }

    /// Whether the lock is taken at this moment: for dumps and assertions.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }
}

impl fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RawMutex");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("is_locked", &self.is_locked()).finish_non_exhaustive()
    }
}
