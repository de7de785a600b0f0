//! A guard of a part of a mutex's value.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::MutexGuard;
use crate::raw_lock::RawLock;

/// Access to a part of a [`Mutex`](crate::Mutex)'s value, which [`MutexGuard::map`] has chosen. Dropping it unlocks the mutex.
///
/// As a [`MutexGuard`] it stays on its thread, and may be held across waits. A [`Condvar`](crate::Condvar) does not take it: while it
/// waits, another holder might replace the part.
///
/// ```
/// use forebear::sync::{MappedMutexGuard, Mutex, MutexGuard};
///
/// fn first(list: &Mutex<Vec<u32>>) -> MappedMutexGuard<'_, u32> {
///     MutexGuard::map(list.lock(), |list| &mut list[0])
/// }
///
/// let list = Mutex::new(vec![1, 2]);
/// *first(&list) += 1;
/// assert_eq!(*list.lock(), [2, 2]);
/// ```
#[must_use = "the mutex is unlocked as soon as the guard is dropped"]
pub struct MappedMutexGuard<'a, T: ?Sized> {
    raw: &'a RawLock,
    part: NonNull<T>,
    /// Invariant in `T`, as `&mut T`; and `!Send`, since the holder's name stands in the lock.
    _lends: PhantomData<(&'a mut T, *const ())>,
}

// SAFETY: it lends `&T`, and nothing else, to other threads.
unsafe impl<T: ?Sized + Sync> Sync for MappedMutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Gives up the whole for a part of it. An associated function, so that it hides no method of the value.
    ///
    /// ```
    /// use forebear::sync::{Mutex, MutexGuard};
    ///
    /// let pair = Mutex::new((1, "one"));
    /// let mut number = MutexGuard::map(pair.lock(), |pair| &mut pair.0);
    /// *number += 1;
    /// drop(number);
    /// assert_eq!(pair.lock().0, 2);
    /// ```
    pub fn map<U: ?Sized>(mut this: Self, part: impl FnOnce(&mut T) -> &mut U) -> MappedMutexGuard<'a, U> {
        let part = NonNull::from(part(&mut this));
        MappedMutexGuard { raw: ManuallyDrop::new(this).raw(), part, _lends: PhantomData }
    }

    /// As [`map`](Self::map), if there is such a part.
    ///
    /// # Errors
    ///
    /// The guard, if `part` returns `None`.
    ///
    /// ```
    /// use forebear::sync::{Mutex, MutexGuard};
    ///
    /// let list = Mutex::new(vec![1, 2]);
    /// if let Ok(mut first) = MutexGuard::try_map(list.lock(), |list| list.first_mut()) {
    ///     *first += 1;
    /// }
    /// assert_eq!(*list.lock(), [2, 2]);
    /// let Err(whole) = MutexGuard::try_map(list.lock(), |list| list.get_mut(9)) else { panic!() };
    /// assert_eq!(whole.len(), 2);
    /// ```
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<MappedMutexGuard<'a, U>, Self> {
        match part(&mut this).map(NonNull::from) {
            Some(part) => {
                Ok(MappedMutexGuard { raw: ManuallyDrop::new(this).raw(), part, _lends: PhantomData })
            }
            None => Err(this),
        }
    }
}

impl<'a, T: ?Sized> MappedMutexGuard<'a, T> {
    /// Gives up the part for a part of it.
    ///
    /// ```
    /// use forebear::sync::{MappedMutexGuard, Mutex, MutexGuard};
    ///
    /// let pairs = Mutex::new([(1, "one"), (2, "two")]);
    /// let second = MutexGuard::map(pairs.lock(), |pairs| &mut pairs[1]);
    /// let name = MappedMutexGuard::map(second, |pair| &mut pair.1);
    /// assert_eq!(*name, "two");
    /// ```
    pub fn map<U: ?Sized>(mut this: Self, part: impl FnOnce(&mut T) -> &mut U) -> MappedMutexGuard<'a, U> {
        let part = NonNull::from(part(&mut this));
        MappedMutexGuard { raw: ManuallyDrop::new(this).raw, part, _lends: PhantomData }
    }

    /// As [`map`](Self::map), if there is such a part.
    ///
    /// # Errors
    ///
    /// The guard, if `part` returns `None`.
    ///
    /// ```
    /// use forebear::sync::{MappedMutexGuard, Mutex, MutexGuard};
    ///
    /// let rows = Mutex::new([vec![1], vec![]]);
    /// let row = MutexGuard::map(rows.lock(), |rows| &mut rows[1]);
    /// assert!(MappedMutexGuard::try_map(row, |row| row.first_mut()).is_err());
    /// ```
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<MappedMutexGuard<'a, U>, Self> {
        match part(&mut this).map(NonNull::from) {
            Some(part) => {
                Ok(MappedMutexGuard { raw: ManuallyDrop::new(this).raw, part, _lends: PhantomData })
            }
            None => Err(this),
        }
    }
}

impl<T: ?Sized> Drop for MappedMutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the lock came with the guard that this was made of, and that was forgotten.
        unsafe { self.raw.unlock() }
    }
}

impl<T: ?Sized> Deref for MappedMutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a part of the value, and the lock is the guard's.
        unsafe { self.part.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for MappedMutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { self.part.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MappedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MappedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}
