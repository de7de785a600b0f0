//! A readers-writer lock.

use std::cell::UnsafeCell; // not modelled: what is in it; the models put a checked cell there
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::{Label, Reason};
use forebear_context::error::{Cancelled, TimeoutError};

use crate::mutex::refuse;
use crate::queued_wait::{Answer, Limit};
use crate::raw_rw_lock::{How, RawRwLock};

mod guards;
mod mapped;

pub use self::guards::{RwLockReadGuard, RwLockUpgradableReadGuard, RwLockWriteGuard};
pub use self::mapped::{MappedRwLockReadGuard, MappedRwLockWriteGuard};

/// A value with many readers at a time, or one writer: as [`std::sync::RwLock`], but a request that waits for it is suspended, and guards may
/// be held across any wait. There is no poisoning.
///
/// [`upgradable_read`](Self::upgradable_read) is a third way: one upgradable reader at a time, together with plain readers. It may
/// become the writer, and no other writer comes in between.
///
/// # Fairness
///
/// Neither kind starves the other. A writer at its turn admits no new reader, and gets the lock when the last reader has released it. When
/// the writer releases it, all readers that wait come in together. So a reader waits for one writer at most, and a writer at its turn for the
/// readers of that moment. Writers and upgradable readers stand in one queue: the most urgent first, among equals the earliest, with the
/// limits that [`Mutex`](crate::Mutex#fairness) describes.
///
/// # Deadlocks
///
/// The writer and the upgradable reader are known: each becomes as urgent as the most urgent waiter. A cycle of untimed waits through one of
/// them is found and named.
///
/// So is a cycle through a plain reader: at once if the reader's wait closes it, else when a worker is idle. Of a request or thread that
/// reads several locks, the first four count, and only while the guard is on the stack that took it. Plain readers do not become more urgent.
///
/// In particular, do not [`write`](Self::write) while you read, and do not [`read`](Self::read) twice: a writer may stand in between.
/// Of a thread that no runtime knows only a wait for itself is found: to write while it reads or writes, or to read while it writes.
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

    /// Unwraps the value.
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let mut settings = RwLock::new(vec!["fast"]);
    /// settings.get_mut().push("quiet");
    /// assert_eq!(settings.into_inner(), ["fast", "quiet"]);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks it for reading; waits while there is a writer, or one at its turn.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// If the wait would close a cycle of locks and requests, which the message names. In a `no_suspend` region, if it
    /// would have to wait. If so many guards were leaked that the count of readers is full.
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

    /// As [`read`](Self::read), unless the calling request is cancelled before it has the lock.
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
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// assert_eq!(settings.read_or_cancelled()?[0], "fast");
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn read_or_cancelled(&self) -> Result<RwLockReadGuard<'_, T>, Cancelled> {
        self.raw.read(within(Limit::Never)).untimed()?;
        Ok(RwLockReadGuard::new(self))
    }

    /// As [`read`](Self::read), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let writing = settings.write();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let late = settings.read_timeout(Duration::from_millis(1));
    ///         assert!(matches!(late, Err(TimeoutError::TimedOut)));
    ///     });
    /// });
    /// # drop(writing);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn read_timeout(&self, timeout: Duration) -> Result<RwLockReadGuard<'_, T>, TimeoutError> {
        self.raw.read(within(Limit::After(timeout))).timed()?;
        Ok(RwLockReadGuard::new(self))
    }

    /// Locks it for reading, unless there is a writer, or one at its turn. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.read();
    /// assert!(settings.try_read().is_some());
    /// assert!(settings.try_write().is_none());
    /// # drop(reading);
    /// ```
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.try_read().then(|| RwLockReadGuard::new(self))
    }

    /// Locks it for writing; waits until there is no other reader or writer.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// If the wait would close a cycle of locks and requests, which the message names; and in a `no_suspend` region, if it would
    /// have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if let Err(refused) = self.raw.write(plainly()) {
            refuse(refused);
        }
        RwLockWriteGuard::new(self)
    }

    /// As [`write`](Self::write), unless the calling request is cancelled before it has the lock.
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
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(vec!["fast"]);
    /// settings.write_or_cancelled()?.push("quiet");
    /// assert_eq!(settings.read().len(), 2);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn write_or_cancelled(&self) -> Result<RwLockWriteGuard<'_, T>, Cancelled> {
        self.raw.write(within(Limit::Never)).untimed()?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// As [`write`](Self::write), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`write`](Self::write).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.read();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let late = settings.write_timeout(Duration::from_millis(1));
    ///         assert!(matches!(late, Err(TimeoutError::TimedOut)));
    ///     });
    /// });
    /// # drop(reading);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn write_timeout(&self, timeout: Duration) -> Result<RwLockWriteGuard<'_, T>, TimeoutError> {
        self.raw.write(within(Limit::After(timeout))).timed()?;
        Ok(RwLockWriteGuard::new(self))
    }

    /// Locks it for writing, if there is no reader and no writer. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(vec!["fast"]);
    /// if let Some(mut settings) = settings.try_write() {
    ///     settings.push("quiet");
    /// }
    /// assert_eq!(settings.read().len(), 2);
    /// ```
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.try_write().then(|| RwLockWriteGuard::new(self))
    }

    /// Locks it for upgradable reading, together with plain readers; waits while there is a writer or another upgradable reader. The guard may
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

    /// As [`upgradable_read`](Self::upgradable_read), unless the calling request is cancelled before it has the lock.
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
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.upgradable_read_or_cancelled()?;
    /// assert_eq!(reading[0], settings.read()[0]); // plain readers read, too
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn upgradable_read_or_cancelled(&self) -> Result<RwLockUpgradableReadGuard<'_, T>, Cancelled> {
        self.raw.read_upgradably(within(Limit::Never)).untimed()?;
        Ok(RwLockUpgradableReadGuard::new(self))
    }

    /// As [`upgradable_read`](Self::upgradable_read), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
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
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.upgradable_read();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let late = settings.upgradable_read_timeout(Duration::from_millis(1));
    ///         assert!(matches!(late, Err(TimeoutError::TimedOut)));
    ///     });
    /// });
    /// # drop(reading);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn upgradable_read_timeout(
        &self,
        timeout: Duration,
    ) -> Result<RwLockUpgradableReadGuard<'_, T>, TimeoutError> {
        self.raw.read_upgradably(within(Limit::After(timeout))).timed()?;
        Ok(RwLockUpgradableReadGuard::new(self))
    }

    /// Locks it for upgradable reading, unless there is a writer or another upgradable reader. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.try_upgradable_read().unwrap();
    /// assert!(settings.try_upgradable_read().is_none()); // one at a time
    /// # drop(reading);
    /// ```
    #[inline]
    pub fn try_upgradable_read(&self) -> Option<RwLockUpgradableReadGuard<'_, T>> {
        self.raw.try_read_upgradably().then(|| RwLockUpgradableReadGuard::new(self))
    }

    /// Whether there is a reader or a writer at this moment, or one that is just getting the lock: for dumps and assertions.
    ///
    /// ```
    /// use forebear::sync::RwLock;
    ///
    /// let settings = RwLock::new(["fast"]);
    /// let reading = settings.read();
    /// assert!(settings.is_locked());
    /// drop(reading);
    /// assert!(!settings.is_locked());
    /// ```
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
