//! Many who read, or one who writes.

use std::cell::UnsafeCell; // not modelled: what is in it; the models put a checked cell there
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::{Label, Reason};
use forebear_context::error::{Cancelled, TimeoutError};

use crate::mutex::refuse;
use crate::queued_wait::Limit;
use crate::raw_lock::Refused;
use crate::raw_rw_lock::{How, RawRwLock};

mod guards;
mod mapped;

pub use self::guards::{RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
pub use self::mapped::{MappedRwLockReadGuard, MappedRwLockWriteGuard};

/// A value that many read together, or one writes: as [`std::sync::RwLock`], but a request that waits for it is suspended, and guards may
/// be held across any wait. There is no poisoning.
///
/// A third way to have it is [`upgradable_read`](Self::upgradable_read): one at a time, together with plain readers, and with the right to
/// become the writer without letting another in between.
///
/// # Fairness
///
/// Neither kind starves the other. A writer that is at its turn lets nobody in any more, and has it when the last who reads has gone; when it
/// goes, all who have come to read meanwhile come in together. So a reader waits for one writer at most, and a writer at its turn for
/// those who read then. Writers, and upgradable readers, stand in one queue: the most urgent first, among equals the one that came
/// first, with the patience that [`Mutex`](crate::Mutex#fairness) tells of.
///
/// # Deadlocks
///
/// Who writes, and who reads upgradably, is known: it becomes as urgent as the most urgent waiter. A cycle of untimed waits through
/// it is found and named, and so is one through a plain reader (of the four locks that one request or thread began to read first, if it reads
/// more at a time, and while the guard is on the stack that took it): at once if the reader's wait closes it, else when a worker is idle. In
/// particular, do not [`write`](Self::write) while you read, and do not [`read`](Self::read) twice: a writer may stand in between. Plain
/// readers do not become more urgent. Of a thread that no runtime knows only a wait for itself is found: to write while it reads or writes, or to read while it
/// writes.
///
/// ```
/// use forebear::sync::RwLock;
///
/// static SETTINGS: RwLock<Vec<&str>> = RwLock::new(Vec::new());
/// SETTINGS.write().push("fast");
/// let (one, another) = (SETTINGS.read(), SETTINGS.read());
/// assert_eq!(one[0], another[0]);
/// ```
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the only reference, or through guards.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: readers share it, and a writer lends `&mut T` to its thread.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

/// How to wait without a limit.
#[track_caller]
fn plainly() -> How {
    How { reason: Reason::Lock, limit: Limit::Never, caller: Location::caller() }
}

/// How to wait as a cancellation point.
#[track_caller]
fn within(limit: Limit) -> How {
    How { reason: Reason::LockOrCancelled, limit, caller: Location::caller() }
}

impl<T> RwLock<T> {
    /// A lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { raw: RawRwLock::new(Label::NONE), value: UnsafeCell::new(value) }
    }

    /// A lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> RwLock<T> {
        RwLock { raw: RawRwLock::new(Label::NONE), value: UnsafeCell::new(value) }
    }

    /// The same, with a name, which messages about deadlocks, dumps and `Debug` show.
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// static CACHE: RwLock<Vec<u32>> = RwLock::named("cache", Vec::new());
    /// assert_eq!(CACHE.name(), Some("cache"));
    /// ```
    #[cfg(not(loom))]
    pub const fn named(name: &'static str, value: T) -> RwLock<T> {
        RwLock { raw: RawRwLock::new(Label::new(name)), value: UnsafeCell::new(value) }
    }

    /// The value, out of the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes, nor is about to, and shares the value with others who read.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// If it would wait for itself, round a cycle of locks and requests, which is named; in a `no_suspend` region, if it would have to
    /// wait; and if an absurd number of guards was leaked.
    #[inline(always)]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if !self.raw.try_read()
            && let Err(refused) = self.raw.read(plainly())
        {
            refuse(refused);
        }
        RwLockReadGuard::new(self)
    }

    /// The same, unless the calling request is cancelled before it has it.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline(always)]
    #[track_caller]
    pub fn read_or_cancelled(&self) -> Result<RwLockReadGuard<'_, T>, Cancelled> {
        self.raw.read(within(Limit::Never)).map_err(Refused::untimed)?;
        Ok(RwLockReadGuard::new(self))
    }

    /// The same, for `timeout` at most, on the clock of the runtime. A timeout of zero looks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the lock knows nothing of the wait any more; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline(always)]
    #[track_caller]
    pub fn read_timeout(&self, timeout: Duration) -> Result<RwLockReadGuard<'_, T>, TimeoutError> {
        self.raw.read(within(Limit::After(timeout))).map_err(Refused::timed)?;
        Ok(RwLockReadGuard::new(self))
    }

    /// The value to read, if nobody writes, nor is about to. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.try_read().then(|| RwLockReadGuard::new(self))
    }

    /// Waits until nobody has the value, and has it alone.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// If it would wait for itself, round a cycle of locks and requests, which is named; and in a `no_suspend` region, if it would
    /// have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if let Err(refused) = self.raw.write(plainly()) {
            refuse(refused);
        }
        RwLockWriteGuard::new(self)
    }

    /// The same, unless the calling request is cancelled before it has it.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    #[inline(always)]
    #[track_caller]
    pub fn write_or_cancelled(&self) -> Result<RwLockWriteGuard<'_, T>, Cancelled> {
        self.raw.write(within(Limit::Never)).map_err(Refused::untimed)?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// The same, for `timeout` at most, on the clock of the runtime. A timeout of zero looks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the lock knows nothing of the wait any more; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    #[inline(always)]
    #[track_caller]
    pub fn write_timeout(&self, timeout: Duration) -> Result<RwLockWriteGuard<'_, T>, TimeoutError> {
        self.raw.write(within(Limit::After(timeout))).map_err(Refused::timed)?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// The value to write, if nobody has it. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.try_write().then(|| RwLockWriteGuard::new(self))
    }

    /// Waits until nobody writes or reads upgradably, and shares the value with plain readers; one at a time has it so, and may
    /// [become the writer](RwLockUpgradableReadGuard::upgrade).
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
    ///
    /// let names = RwLock::new(vec!["a"]);
    /// let known = names.upgradable_read();
    /// if !known.contains(&"b") {
    ///     // Nobody else has written since the look.
    ///     RwLockUpgradableReadGuard::upgrade(known).push("b");
    /// }
    /// assert_eq!(*names.read(), ["a", "b"]);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn upgradable_read(&self) -> RwLockUpgradableReadGuard<'_, T> {
        if let Err(refused) = self.raw.read_upgradably(plainly()) {
            refuse(refused);
        }
        RwLockUpgradableReadGuard::new(self)
    }

    /// The same, unless the calling request is cancelled before it has it.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    #[inline(always)]
    #[track_caller]
    pub fn upgradable_read_or_cancelled(&self) -> Result<RwLockUpgradableReadGuard<'_, T>, Cancelled> {
        self.raw.read_upgradably(within(Limit::Never)).map_err(Refused::untimed)?;
        Ok(RwLockUpgradableReadGuard::new(self))
    }

    /// The same, for `timeout` at most, on the clock of the runtime. A timeout of zero looks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// As [`write_timeout`](Self::write_timeout).
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    #[inline(always)]
    #[track_caller]
    pub fn upgradable_read_timeout(
        &self,
        timeout: Duration,
    ) -> Result<RwLockUpgradableReadGuard<'_, T>, TimeoutError> {
        self.raw.read_upgradably(within(Limit::After(timeout))).map_err(Refused::timed)?;
        Ok(RwLockUpgradableReadGuard::new(self))
    }

    /// The value to read upgradably, if nobody writes or has it so. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline]
    pub fn try_upgradable_read(&self) -> Option<RwLockUpgradableReadGuard<'_, T>> {
        self.raw.try_read_upgradably().then(|| RwLockUpgradableReadGuard::new(self))
    }

    /// Whether anybody has it in any way at this moment, or is just getting it: for dumps and assertions.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.raw.label().name()
    }

    /// The value, by the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RwLock");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        match self.try_read() {
            Some(guard) => shown.field("value", &&*guard),
            None => shown.field("value", &format_args!("<locked>")),
        };
        shown.finish_non_exhaustive()
    }
}
