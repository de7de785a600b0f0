//! Guards of a part of an `RwLock`'s value.
//!
//! A mapped guard has the lock in the mode of the guard that it was made of, and a pointer to the part in place of the whole. The part comes from a
//! closure that is lent the whole for a lifetime of which it knows nothing. So the reference that it returns points into the value, or is static.
//! The pointer lets the read guard be covariant, as `&T` is; the write guard's marker keeps it invariant, as `&mut T` is.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{RwLockReadGuard, RwLockWriteGuard};
use crate::raw_rw_lock::{RawRwLock, Reader};

/// Read access to a part of an [`RwLock`](crate::RwLock)'s value, which [`RwLockReadGuard::map`] has chosen. It stays on its thread.
///
/// ```
/// use forebear::sync::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
///
/// fn first(list: &RwLock<Vec<u32>>) -> MappedRwLockReadGuard<'_, u32> {
///     RwLockReadGuard::map(list.read(), |list| &list[0])
/// }
/// assert_eq!(*first(&RwLock::new(vec![7])), 7);
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct MappedRwLockReadGuard<'a, T: ?Sized> {
    raw: &'a RawRwLock,
    reader: Reader,
    part: NonNull<T>,
    _lends: PhantomData<(&'a T, *const ())>,
}

/// Exclusive access to a part of an [`RwLock`](crate::RwLock)'s value, which [`RwLockWriteGuard::map`] has chosen. It stays on its thread.
///
/// It cannot be downgraded: others would read the whole, while this guard may still refer to more of it than it names.
///
/// ```
/// use forebear::sync::{MappedRwLockWriteGuard, RwLock, RwLockWriteGuard};
///
/// fn first(list: &RwLock<Vec<u32>>) -> MappedRwLockWriteGuard<'_, u32> {
///     RwLockWriteGuard::map(list.write(), |list| &mut list[0])
/// }
/// let list = RwLock::new(vec![7]);
/// *first(&list) += 1;
/// assert_eq!(*list.read(), [8]);
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct MappedRwLockWriteGuard<'a, T: ?Sized> {
    raw: &'a RawRwLock,
    part: NonNull<T>,
    /// Invariant in `T`, as `&mut T`.
    _lends: PhantomData<(&'a mut T, *const ())>,
}

// SAFETY: it lends `&T`, and nothing else, to other threads.
unsafe impl<T: ?Sized + Sync> Sync for MappedRwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for MappedRwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// Gives up the whole for a part of it. An associated function, so that it hides no method of the value.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockReadGuard};
    ///
    /// let pair = RwLock::new((1, "one"));
    /// let name = RwLockReadGuard::map(pair.read(), |pair| &pair.1);
    /// assert_eq!(*name, "one");
    /// ```
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> MappedRwLockReadGuard<'a, U> {
        let part = NonNull::from(part(&this));
        let this = ManuallyDrop::new(this);
        MappedRwLockReadGuard { raw: this.raw, reader: this.reader, part, _lends: PhantomData }
    }

    /// As [`map`](Self::map), if there is such a part.
    ///
    /// # Errors
    ///
    /// The guard, if `part` returns `None`.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockReadGuard};
    ///
    /// let list = RwLock::new(vec![7]);
    /// assert!(RwLockReadGuard::try_map(list.read(), |list| list.first()).is_ok());
    /// let Err(whole) = RwLockReadGuard::try_map(list.read(), |list| list.get(9)) else { panic!() };
    /// assert_eq!(whole.len(), 1);
    /// ```
    pub fn try_map<U: ?Sized>(
        this: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<MappedRwLockReadGuard<'a, U>, Self> {
        match part(&this).map(NonNull::from) {
            Some(part) => {
                let this = ManuallyDrop::new(this);
                Ok(MappedRwLockReadGuard { raw: this.raw, reader: this.reader, part, _lends: PhantomData })
            }
            None => Err(this),
        }
    }
}

impl<'a, T: ?Sized> MappedRwLockReadGuard<'a, T> {
    /// Gives up the part for a part of that.
    ///
    /// ```
    /// use forebear::sync::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
    ///
    /// let pairs = RwLock::new([(1, "one"), (2, "two")]);
    /// let second = RwLockReadGuard::map(pairs.read(), |pairs| &pairs[1]);
    /// let name = MappedRwLockReadGuard::map(second, |pair| &pair.1);
    /// assert_eq!(*name, "two");
    /// ```
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> MappedRwLockReadGuard<'a, U> {
        let part = NonNull::from(part(&this));
        let this = ManuallyDrop::new(this);
        MappedRwLockReadGuard { raw: this.raw, reader: this.reader, part, _lends: PhantomData }
    }
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Gives up the whole for a part of it. An associated function, so that it hides no method of the value.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let pair = RwLock::new((1, "one"));
    /// *RwLockWriteGuard::map(pair.write(), |pair| &mut pair.0) += 1;
    /// assert_eq!(pair.read().0, 2);
    /// ```
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedRwLockWriteGuard<'a, U> {
        let part = NonNull::from(part(&mut this));
        MappedRwLockWriteGuard { raw: &ManuallyDrop::new(this).lock.raw, part, _lends: PhantomData }
    }

    /// As [`map`](Self::map), if there is such a part.
    ///
    /// # Errors
    ///
    /// The guard, if `part` returns `None`.
    ///
    /// ```
    /// use forebear::sync::{RwLock, RwLockWriteGuard};
    ///
    /// let list = RwLock::new(vec![7]);
    /// if let Ok(mut first) = RwLockWriteGuard::try_map(list.write(), |list| list.first_mut()) {
    ///     *first += 1;
    /// }
    /// assert_eq!(*list.read(), [8]);
    /// ```
    pub fn try_map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<MappedRwLockWriteGuard<'a, U>, Self> {
        match part(&mut this).map(NonNull::from) {
            Some(part) => {
                let raw = &ManuallyDrop::new(this).lock.raw;
                Ok(MappedRwLockWriteGuard { raw, part, _lends: PhantomData })
            }
            None => Err(this),
        }
    }
}

impl<'a, T: ?Sized> MappedRwLockWriteGuard<'a, T> {
    /// Gives up the part for a part of that.
    ///
    /// ```
    /// use forebear::sync::{MappedRwLockWriteGuard, RwLock, RwLockWriteGuard};
    ///
    /// let pairs = RwLock::new([(1, "one"), (2, "two")]);
    /// let second = RwLockWriteGuard::map(pairs.write(), |pairs| &mut pairs[1]);
    /// *MappedRwLockWriteGuard::map(second, |pair| &mut pair.0) += 1;
    /// assert_eq!(pairs.read()[1].0, 3);
    /// ```
    pub fn map<U: ?Sized>(
        mut this: Self,
        part: impl FnOnce(&mut T) -> &mut U,
    ) -> MappedRwLockWriteGuard<'a, U> {
        let part = NonNull::from(part(&mut this));
        MappedRwLockWriteGuard { raw: ManuallyDrop::new(this).raw, part, _lends: PhantomData }
    }
}

impl<T: ?Sized> Drop for MappedRwLockReadGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it took the place of a guard that was forgotten.
        unsafe { self.raw.unlock_read(self.reader) }
    }
}

impl<T: ?Sized> Drop for MappedRwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { self.raw.unlock_write() }
    }
}

impl<T: ?Sized> Deref for MappedRwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody writes as long as the guard is there.
        unsafe { self.part.as_ref() }
    }
}

impl<T: ?Sized> Deref for MappedRwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has it as long as the guard is there.
        unsafe { self.part.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for MappedRwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { self.part.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MappedRwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MappedRwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
