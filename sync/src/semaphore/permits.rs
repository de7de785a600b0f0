//! The guard of permits that a caller has taken.

use std::fmt;
use std::mem;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use forebear_context::error::{Cancelled, TimeoutError};

use super::Semaphore;
use crate::queued_wait::{Answer, Limit};

/// Permits of a [`Semaphore`]. Dropping it returns them.
///
/// ```
/// use forebear::sync::{Semaphore, SemaphorePermit};
///
/// static DOWNLOADS: Semaphore = Semaphore::new(1);
///
/// fn slot() -> Option<SemaphorePermit<'static>> {
///     DOWNLOADS.try_acquire()
/// }
/// let permit = slot();
/// assert!(permit.is_some() && slot().is_none());
/// drop(permit);
/// assert!(slot().is_some());
/// ```
#[must_use = "the permits are given back as soon as this is dropped"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// Permits of a [`Semaphore`] behind an [`Arc`]. Dropping it returns them.
///
/// ```
/// use std::sync::Arc;
/// use forebear::sync::{OwnedSemaphorePermit, Semaphore};
///
/// let downloads = Arc::new(Semaphore::new(1));
/// let permit: OwnedSemaphorePermit = downloads.clone().acquire_owned()?;
/// // It may outlive the frame that acquired it.
/// std::thread::spawn(move || drop(permit)).join().unwrap();
/// assert_eq!(downloads.available(), 1);
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[must_use = "the permits are given back as soon as this is dropped"]
pub struct OwnedSemaphorePermit {
    semaphore: Arc<Semaphore>,
    permits: usize,
}

impl Semaphore {
    /// As [`acquire`](Self::acquire), for a permit that borrows nothing.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::spawn;
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Arc::new(Semaphore::new(1));
    /// let permit = downloads.clone().acquire_owned()?;
    /// let left = spawn(move || permit.semaphore().available()); // returned at the end of the request
    /// assert_eq!(left.take().unwrap(), 0);
    /// assert_eq!(downloads.available(), 1);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, Cancelled> {
        self.acquire_many_owned(1)
    }

    /// As [`acquire_many`](Self::acquire_many), for permits that borrow nothing.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Arc::new(Semaphore::new(100));
    /// let permit = memory.clone().acquire_many_owned(60)?;
    /// assert_eq!((permit.permits(), memory.available()), (60, 40));
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many_owned(self: Arc<Self>, n: usize) -> Result<OwnedSemaphorePermit, Cancelled> {
        self.within(n, Limit::Never, Location::caller()).untimed()?;
        Ok(OwnedSemaphorePermit { semaphore: self, permits: n })
    }

    /// As [`acquire_many_timeout`](Self::acquire_many_timeout), for permits that borrow nothing. A timeout of zero checks once.
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
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Arc::new(Semaphore::new(100));
    /// let late = memory.clone().acquire_many_owned_timeout(101, Duration::from_millis(1));
    /// assert!(matches!(late, Err(TimeoutError::TimedOut)));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many_owned_timeout(
        self: Arc<Self>,
        n: usize,
        timeout: Duration,
    ) -> Result<OwnedSemaphorePermit, TimeoutError> {
        self.within(n, Limit::After(timeout), Location::caller()).timed()?;
        Ok(OwnedSemaphorePermit { semaphore: self, permits: n })
    }

    /// As [`try_acquire_many`](Self::try_acquire_many), for permits that borrow nothing.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Arc::new(Semaphore::new(100));
    /// let permit = memory.clone().try_acquire_many_owned(60);
    /// assert!(permit.is_some() && memory.try_acquire_many_owned(60).is_none());
    /// ```
    pub fn try_acquire_many_owned(self: Arc<Self>, n: usize) -> Option<OwnedSemaphorePermit> {
        self.take(n).then(|| OwnedSemaphorePermit { semaphore: self, permits: n })
    }
}

impl<'a> SemaphorePermit<'a> {
    #[inline(always)]
    pub(super) fn new(semaphore: &'a Semaphore, permits: usize) -> SemaphorePermit<'a> {
        SemaphorePermit { semaphore, permits }
    }

    /// How many permits it holds.
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// assert_eq!(Semaphore::new(9).acquire_many(4)?.permits(), 4);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[must_use]
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Drops it without returning its permits: the semaphore has that many fewer from now on.
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Semaphore::new(4);
    /// downloads.acquire()?.forget();
    /// assert_eq!(downloads.available(), 3);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Moves `n` permits into a permit of their own; `None`, and no change, if it holds fewer.
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Semaphore::new(100);
    /// let mut all = memory.acquire_many(100)?;
    /// let some = all.split(40).unwrap();
    /// assert_eq!((all.permits(), some.permits()), (60, 40));
    /// assert!(all.split(61).is_none());
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    pub fn split(&mut self, n: usize) -> Option<SemaphorePermit<'a>> {
        self.permits = self.permits.checked_sub(n)?;
        Some(SemaphorePermit { semaphore: self.semaphore, permits: n })
    }

    /// Adds the permits of `other`.
    ///
    /// # Panics
    ///
    /// If `other` is of another semaphore.
    ///
    /// ```
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Semaphore::new(100);
    /// let mut permit = memory.acquire_many(60)?;
    /// permit.merge(memory.acquire_many(40)?);
    /// assert_eq!(permit.permits(), 100);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[track_caller]
    pub fn merge(&mut self, mut other: SemaphorePermit<'a>) {
        assert!(std::ptr::eq(self.semaphore, other.semaphore), "forebear: permits of two semaphores");
        self.permits += mem::take(&mut other.permits);
    }
}

impl OwnedSemaphorePermit {
    /// How many permits it holds.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// The semaphore that issued the permits.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let memory = Arc::new(Semaphore::new(100));
    /// let permit = memory.clone().acquire_many_owned(60)?;
    /// assert_eq!(permit.semaphore().available(), 40);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[must_use]
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }

    /// Drops it without returning its permits: the semaphore has that many fewer from now on.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let downloads = Arc::new(Semaphore::new(4));
    /// downloads.clone().acquire_owned()?.forget();
    /// assert_eq!(downloads.available(), 3);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Moves `n` permits into a permit of their own; `None`, and no change, if it holds fewer.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let mut all = Arc::new(Semaphore::new(100)).acquire_many_owned(100)?;
    /// let some = all.split(40).unwrap();
    /// assert_eq!((all.permits(), some.permits()), (60, 40));
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    pub fn split(&mut self, n: usize) -> Option<OwnedSemaphorePermit> {
        self.permits = self.permits.checked_sub(n)?;
        Some(OwnedSemaphorePermit { semaphore: self.semaphore.clone(), permits: n })
    }

    /// Adds the permits of `other`.
    ///
    /// # Panics
    ///
    /// If `other` is of another semaphore.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use forebear::sync::Semaphore;
    ///
    /// let mut all = Arc::new(Semaphore::new(100)).acquire_many_owned(100)?;
    /// let some = all.split(40).unwrap();
    /// all.merge(some);
    /// assert_eq!(all.permits(), 100);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[track_caller]
    pub fn merge(&mut self, mut other: OwnedSemaphorePermit) {
        assert!(Arc::ptr_eq(&self.semaphore, &other.semaphore), "forebear: permits of two semaphores");
        self.permits += mem::take(&mut other.permits);
    }
}

/// What was taken from there has room there, unless others were put in its place; then there are as many as there can be, and these
/// are forgotten.
impl Drop for SemaphorePermit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

/// As for [`SemaphorePermit`].
impl Drop for OwnedSemaphorePermit {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.release(self.permits);
    }
}

impl fmt::Debug for SemaphorePermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit").field("permits", &self.permits).finish_non_exhaustive()
    }
}

impl fmt::Debug for OwnedSemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedSemaphorePermit").field("permits", &self.permits).finish_non_exhaustive()
    }
}
