//! The three guards of an `RwLock`, and the conversions between them.
//!
//! | guard | stands for | becomes | released by |
//! |---|---|---|---|
//! | [`RwLockReadGuard`] | one of the count of readers | | `unlock_read` |
//! | [`RwLockWriteGuard`] | the writers' lock, shut and drained (W3) | a reader, an upgradable reader | `unlock_write` |
//! | [`RwLockUpgradableReadGuard`] | the writers' lock, open | the writer, a reader | `unlock_upgradable` |
//!
//! A guard is made by a caller that has just taken the lock in the guard's mode. It releases the lock once: when it is
//! dropped, or when another guard is made of it, which forgets it first. A failed upgrade returns the same guard. While
//! a guard lives, the value may be read through it. Through a write guard, borrowed mutably, it may be written.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::error::{Cancelled, TimeoutError};

use super::{RwLock, plainly, within};
use crate::mutex::refuse;
use crate::queued_wait::{Answer, Limit};
use crate::raw_rw_lock::{RawRwLock, Reader};

/// Read access to an [`RwLock`]'s value, shared with other readers. Dropping it releases the lock. It stays on its thread.
///
/// ```
/// use forebear::sync::{RwLock, RwLockReadGuard};
///
/// static SETTINGS: RwLock<[&str; 1]> = RwLock::new(["fast"]);
///
/// fn settings() -> RwLockReadGuard<'static, [&'static str; 1]> {
///     SETTINGS.read()
/// }
/// assert_eq!(settings()[0], "fast");
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    pub(super) raw: &'a RawRwLock,
    pub(super) reader: Reader,
    /// A pointer, so that it is covariant, as `&T`.
    pub(super) value: NonNull<T>,
    _lends: PhantomData<(&'a T, *const ())>,
}

/// Exclusive access to an [`RwLock`]'s value. Dropping it releases the lock. It stays on its thread.
///
/// ```
/// use forebear::sync::{RwLock, RwLockWriteGuard};
///
/// fn push(mut list: RwLockWriteGuard<'_, Vec<u32>>) {
///     list.push(7);
/// } // released here
///
/// let list = RwLock::new(Vec::new());
/// push(list.write());
/// assert_eq!(*list.read(), [7]);
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    pub(super) lock: &'a RwLock<T>,
    /// `!Send`: the holder's name stands in the lock.
    _stays: PhantomData<*const ()>,
}

/// Read access to an [`RwLock`]'s value, shared with plain readers, that can become write access. Dropping it releases the lock. It
/// stays on its thread.
///
/// ```
/// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
///
/// let list = RwLock::new(vec![1]);
/// let reading: RwLockUpgradableReadGuard<'_, Vec<u32>> = list.upgradable_read();
/// let missing = !reading.contains(&2);
/// if missing {
///     RwLockUpgradableReadGuard::upgrade(reading).push(2);
/// }
/// assert_eq!(*list.read(), [1, 2]);
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct RwLockUpgradableReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    /// As above.
    _stays: PhantomData<*const ()>,
}

// SAFETY: it lends `&T`, and nothing else, to other threads.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockUpgradableReadGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// For a caller that has just been admitted as a reader.
    #[inline(always)]
    pub(super) fn new(lock: &'a RwLock<T>) -> Self {
        // SAFETY: a cell's address is never null.
        let value = unsafe { NonNull::new_unchecked(lock.value.get()) };
        RwLockReadGuard { raw: &lock.raw, reader: lock.raw.is_read_here(), value, _lends: PhantomData }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// For a caller that has just acquired it for writing.
    #[inline(always)]
    pub(super) fn new(lock: &'a RwLock<T>) -> Self {
        RwLockWriteGuard { lock, _stays: PhantomData }
    }

    /// From writing to reading. No other writer gets the lock in between, and others may read from now on. Never waits.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let mut writing = lock.write();
    /// *writing += 1;
    /// let reading = RwLockWriteGuard::downgrade(writing);
    /// assert_eq!((*reading, *lock.read()), (2, 2));
    /// ```
    pub fn downgrade(this: Self) -> RwLockReadGuard<'a, T> {
        let lock = ManuallyDrop::new(this).lock;
        // SAFETY: the guard wrote, and was forgotten.
        unsafe { lock.raw.write_to_read() };
        RwLockReadGuard::new(lock)
    }

    /// From writing to upgradable reading. Never waits.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let mut writing = lock.write();
    /// *writing += 1;
    /// let reading = RwLockWriteGuard::downgrade_to_upgradable(writing);
    /// assert_eq!((*reading, *lock.read()), (2, 2));
    /// assert!(lock.try_write().is_none() && lock.try_upgradable_read().is_none());
    /// ```
    pub fn downgrade_to_upgradable(this: Self) -> RwLockUpgradableReadGuard<'a, T> {
        let lock = ManuallyDrop::new(this).lock;
        // SAFETY: the guard wrote, and was forgotten.
        unsafe { lock.raw.write_to_upgradable() };
        RwLockUpgradableReadGuard::new(lock)
    }
}

impl<'a, T: ?Sized> RwLockUpgradableReadGuard<'a, T> {
    /// For a caller that has just acquired it as an upgradable reader.
    #[inline(always)]
    pub(super) fn new(lock: &'a RwLock<T>) -> Self {
        RwLockUpgradableReadGuard { lock, _stays: PhantomData }
    }

    /// From reading to writing: waits until all other readers have released the lock. No other writer comes in between.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait; the lock is released then.
    #[inline(always)]
    #[track_caller]
    pub fn upgrade(this: Self) -> RwLockWriteGuard<'a, T> {
        // SAFETY: the guard stands for the gate.
        if let Err(refused) = unsafe { this.lock.raw.upgrade(plainly()) } {
            refuse(refused);
        }
        this.upgraded()
    }

    /// As [`upgrade`](Self::upgrade), unless the calling request is cancelled before.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// The guard, and [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`upgrade`](Self::upgrade).
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
    ///
    /// let lock = RwLock::new(1);
    /// match RwLockUpgradableReadGuard::upgrade_or_cancelled(lock.upgradable_read()) {
    ///     Ok(mut writing) => *writing += 1,
    ///     Err((_still_reading, _cancelled)) => unreachable!("this is no request"),
    /// }
    /// assert_eq!(*lock.read(), 2);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn upgrade_or_cancelled(this: Self) -> Result<RwLockWriteGuard<'a, T>, (Self, Cancelled)> {
        // SAFETY: as above.
        match unsafe { this.lock.raw.upgrade(within(Limit::Never)) }.untimed() {
            Ok(()) => Ok(this.upgraded()),
            Err(cancelled) => Err((this, cancelled)),
        }
    }

    /// As [`upgrade`](Self::upgrade), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// The guard, and [`TimeoutError::TimedOut`] or [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`upgrade`](Self::upgrade).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let reader = lock.read();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let reading = lock.upgradable_read();
    ///         let late = RwLockUpgradableReadGuard::upgrade_timeout(reading, Duration::from_millis(1));
    ///         assert!(matches!(late, Err((_, TimeoutError::TimedOut))));
    ///     });
    /// });
    /// # drop(reader);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn upgrade_timeout(
        this: Self,
        timeout: Duration,
    ) -> Result<RwLockWriteGuard<'a, T>, (Self, TimeoutError)> {
        // SAFETY: as above.
        match unsafe { this.lock.raw.upgrade(within(Limit::After(timeout))) }.timed() {
            Ok(()) => Ok(this.upgraded()),
            Err(error) => Err((this, error)),
        }
    }

    /// From reading to writing, if there is no other reader. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// # Errors
    ///
    /// The guard.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let reader = lock.read();
    /// let Err(reading) = RwLockUpgradableReadGuard::try_upgrade(lock.upgradable_read()) else { panic!() };
    /// drop(reader);
    /// *RwLockUpgradableReadGuard::try_upgrade(reading).unwrap() += 1;
    /// assert_eq!(*lock.read(), 2);
    /// ```
    pub fn try_upgrade(this: Self) -> Result<RwLockWriteGuard<'a, T>, Self> {
        // SAFETY: as above.
        if unsafe { this.lock.raw.try_upgrade() } { Ok(this.upgraded()) } else { Err(this) }
    }

    /// From upgradable to plain reading. Never waits.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockUpgradableReadGuard};
    ///
    /// let lock = RwLock::new(1);
    /// let reading = RwLockUpgradableReadGuard::downgrade(lock.upgradable_read());
    /// assert!(lock.try_upgradable_read().is_some());
    /// # drop(reading);
    /// ```
    pub fn downgrade(this: Self) -> RwLockReadGuard<'a, T> {
        let lock = ManuallyDrop::new(this).lock;
        // SAFETY: the guard had the gate, and was forgotten.
        unsafe { lock.raw.upgradable_to_read() };
        RwLockReadGuard::new(lock)
    }

    fn upgraded(self) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard::new(ManuallyDrop::new(self).lock)
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a guard is made when its holder has acquired the lock, and dropped once.
        unsafe { self.raw.unlock_read(self.reader) }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { self.lock.raw.unlock_write() }
    }
}

impl<T: ?Sized> Drop for RwLockUpgradableReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { self.lock.raw.unlock_upgradable() }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody writes as long as the guard is there.
        unsafe { self.value.as_ref() }
    }
}

impl<T: ?Sized> Deref for RwLockUpgradableReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: as above.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has it as long as the guard is there.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockUpgradableReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockUpgradableReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}
