//! Permits in somebody's hand.

use std::fmt;
use std::mem;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use forebear_context::error::{Cancelled, TimeoutError};

use super::Semaphore;
use crate::queued_wait::Limit;
use crate::raw_lock::Refused;

/// Permits of a [`Semaphore`], given back when this is dropped.
#[must_use = "the permits are given back as soon as this is dropped"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// Permits of a [`Semaphore`] behind an [`Arc`], given back when this is dropped.
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
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many_owned(self: Arc<Self>, n: usize) -> Result<OwnedSemaphorePermit, Cancelled> {
        self.within(n, Limit::Never, Location::caller()).map_err(Refused::untimed)?;
        Ok(OwnedSemaphorePermit { semaphore: self, permits: n })
    }

    /// As [`acquire_many_timeout`](Self::acquire_many_timeout), for permits that borrow nothing.
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
    #[inline(always)]
    #[track_caller]
    pub fn acquire_many_owned_timeout(
        self: Arc<Self>,
        n: usize,
        timeout: Duration,
    ) -> Result<OwnedSemaphorePermit, TimeoutError> {
        self.within(n, Limit::After(timeout), Location::caller()).map_err(Refused::timed)?;
        Ok(OwnedSemaphorePermit { semaphore: self, permits: n })
    }

    /// As [`try_acquire_many`](Self::try_acquire_many), for permits that borrow nothing.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    pub fn try_acquire_many_owned(self: Arc<Self>, n: usize) -> Option<OwnedSemaphorePermit> {
        self.take(n).then(|| OwnedSemaphorePermit { semaphore: self, permits: n })
    }
}

impl<'a> SemaphorePermit<'a> {
    #[inline(always)]
    pub(super) fn new(semaphore: &'a Semaphore, permits: usize) -> SemaphorePermit<'a> {
        SemaphorePermit { semaphore, permits }
    }

    /// How many they are.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Never gives them back: there are so many fewer from now on.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Takes so many of them out, if there are so many.
    pub fn split(&mut self, n: usize) -> Option<SemaphorePermit<'a>> {
        self.permits = self.permits.checked_sub(n)?;
        Some(SemaphorePermit { semaphore: self.semaphore, permits: n })
    }

    /// Puts others to them.
    ///
    /// # Panics
    ///
    /// If they are of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: SemaphorePermit<'a>) {
        assert!(std::ptr::eq(self.semaphore, other.semaphore), "forebear: permits of two semaphores");
        self.permits += mem::take(&mut other.permits);
    }
}

impl OwnedSemaphorePermit {
    /// How many they are.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// The semaphore that they are of.
    #[must_use]
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }

    /// Never gives them back: there are so many fewer from now on.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Takes so many of them out, if there are so many.
    pub fn split(&mut self, n: usize) -> Option<OwnedSemaphorePermit> {
        self.permits = self.permits.checked_sub(n)?;
        Some(OwnedSemaphorePermit { semaphore: self.semaphore.clone(), permits: n })
    }

    /// Puts others to them.
    ///
    /// # Panics
    ///
    /// If they are of another semaphore.
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
