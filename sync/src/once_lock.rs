//! A value that is made once.

use std::cell::UnsafeCell; // not modelled: what is in it; the models put a checked cell there
use std::convert::Infallible;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use forebear_context::error::{Cancelled, TimeoutError};

use crate::once::Once;

/// A value that is made once, by its first user: as [`std::sync::OnceLock`], for requests and threads. The others wait until it is
/// there.
///
/// If making it fails or panics, there is none, and the next caller tries. The maker becomes as urgent as the most urgent that
/// waits. See [`Once`].
///
/// ```
/// use forebear::sync::OnceLock;
///
/// static NAME: OnceLock<String> = OnceLock::new();
/// assert_eq!(NAME.get(), None);
/// assert_eq!(NAME.get_or_init(|| "first".to_owned()), "first");
/// assert_eq!(NAME.get_or_init(|| "second".to_owned()), "first");
/// assert_eq!(NAME.set("third".to_owned()), Err("third".to_owned()));
/// ```
pub struct OnceLock<T> {
    once: Once,
    /// `Some` if the once is done. Written by the caller that runs it.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: references to the value are given out when it is done, after which it is not written; it may have been made on another
// thread than the one that asks, hence `Send`.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
// SAFETY: the only reference.
unsafe impl<T: Send> Send for OnceLock<T> {}

/// A panic leaves no value, or the whole of it.
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}
impl<T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// No value yet.
    #[cfg(not(loom))]
    pub const fn new() -> OnceLock<T> {
        OnceLock { once: Once::new(), value: UnsafeCell::new(None) }
    }

    /// No value yet.
    #[cfg(loom)]
    pub fn new() -> OnceLock<T> {
        OnceLock { once: Once::new(), value: UnsafeCell::new(None) }
    }

    /// The value, if it is there. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline(always)]
    pub fn get(&self) -> Option<&T> {
        if !self.once.is_completed() {
            return None;
        }
        // SAFETY: it is done: nobody writes any more.
        unsafe { (*self.value.get()).as_ref() }
    }

    /// The value, by the only reference.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Puts the value in, if there is none. If somebody is making one at this moment, waits for that.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Errors
    ///
    /// `value`, if there was one.
    ///
    /// # Panics
    ///
    /// If the maker of the value comes here, itself or by what it waits for; and in a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("it is made once"));
        value.map_or(Ok(()), Err)
    }

    /// The value; made by `make`, if there is none. If somebody else is making it, waits for that.
    ///
    /// Suspends. Not a cancellation point: the maker ends.
    ///
    /// # Panics
    ///
    /// If `make` does, and then there is none; if `make` comes back here, itself or by what it waits for: that cycle is named; and in
    /// a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.get_or_try_init(|| Ok::<T, Infallible>(make()));
        value
    }

    /// The same, if `make` can make one.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Errors
    ///
    /// That of `make`; then there is none, and the next one tries.
    ///
    /// # Panics
    ///
    /// As [`get_or_init`](Self::get_or_init).
    #[inline(always)]
    #[track_caller]
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.once.try_call(|| {
            let value = make()?;
            // SAFETY: it is not done, and it is being done here alone: nobody else reads or writes.
            unsafe { *self.value.get() = Some(value) };
            Ok(())
        })?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// Waits until somebody has put a value in.
    ///
    /// Suspends. A cancellation point, since nobody may ever do it.
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
    pub fn wait(&self) -> Result<&T, Cancelled> {
        self.once.wait()?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// The same, for `timeout` at most, on the clock of the runtime. A timeout of zero looks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and nothing is known of the wait any more; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<&T, TimeoutError> {
        self.once.wait_timeout(timeout)?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// The value, out of it.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// The value, taken out by the only reference: there is none now, and the next one may make it.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        OnceLock::new()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        self.get().cloned().map_or_else(OnceLock::new, OnceLock::from)
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let made = OnceLock::new();
        let Ok(()) = made.once.try_call(|| {
            // SAFETY: nobody else knows of it.
            unsafe { *made.value.get() = Some(value) };
            Ok::<(), Infallible>(())
        });
        made
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("OnceLock");
        match self.get() {
            Some(value) => shown.field(value),
            None => shown.field(&format_args!("<none>")),
        };
        shown.finish()
    }
}
