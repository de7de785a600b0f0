//! A value that is made once: a [`Once`], and a cell beside it.
//!
//! | the once | the cell | who touches the cell |
//! |---|---|---|
//! | not begun, or failed | `None` | nobody |
//! | runs | `None`, then `Some` | the caller that runs it, alone (O1) |
//! | done, for good | `Some` | anybody reads it; the exchange that says *done* releases the value (O2) |
//!
//! Only the sole reference (`&mut`, or by value) takes the value out again, and makes the once anew.

use std::cell::UnsafeCell; // not modelled: what is in it; the models put a checked cell there
use std::convert::Infallible;
use std::fmt;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use forebear_context::context::Lock;
use forebear_context::error::{Cancelled, TimeoutError};

use crate::once::{ONCE_LOCK, Once};
use crate::queued_wait::{Answer, Limit};

/// A value that its first user makes, once: as [`std::sync::OnceLock`], for requests and threads. The other users wait until it is
/// there.
///
/// If making it fails or panics, there is none, and the next caller tries. The maker becomes as urgent as the most urgent waiter. See
/// [`Once`].
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
#[doc(alias = "OnceCell")]
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

    /// The value, by the only reference; `None` if there is none.
    ///
    /// ```
    /// use forebear::sync::OnceLock;
    ///
    /// let mut count = OnceLock::from(1);
    /// *count.get_mut().unwrap() += 1;
    /// assert_eq!(count.get(), Some(&2));
    /// ```
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Puts the value in, if there is none. While another caller makes one, waits for that.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Errors
    ///
    /// `value`, if there was one.
    ///
    /// # Panics
    ///
    /// If the maker of the value calls this, itself or through what it waits for; and in a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("it is made once"));
        value.map_or(Ok(()), Err)
    }

    /// The value; if there is none, `make` makes it. While another caller makes one, waits for that.
    ///
    /// Suspends. Not a cancellation point: the maker ends.
    ///
    /// # Panics
    ///
    /// If `make` does: then there is still no value. If `make` calls this again, itself or through what it waits for: the message names that
    /// cycle. (On a thread that begins a wait while the process has no runtime, a cycle that passes through that wait is not found.) And in a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.made_by(&ONCE_LOCK, || Ok::<T, Infallible>(make()));
        value
    }

    /// As [`get_or_init`](Self::get_or_init), for a `make` that may fail.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Errors
    ///
    /// That of `make`; there is no value then, and the next caller tries.
    ///
    /// # Panics
    ///
    /// As [`get_or_init`](Self::get_or_init).
    ///
    /// ```
    /// use forebear::sync::OnceLock;
    ///
    /// let number = OnceLock::new();
    /// assert!(number.get_or_try_init(|| "x".parse::<u32>()).is_err());
    /// assert_eq!(number.get_or_try_init(|| "7".parse())?, &7);
    /// # Ok::<(), std::num::ParseIntError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.made_by(&ONCE_LOCK, make)
    }

    /// The same, for what is called `of` by its user.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn made_by<E>(&self, of: &'static Lock, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.once.try_call(of, || {
            let value = make()?;
            // SAFETY: it is not done, and it is being done here alone: nobody else reads or writes.
            unsafe { *self.value.get() = Some(value) };
            Ok(())
        })?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// Waits until there is a value.
    ///
    /// Suspends. A cancellation point, since there may never be one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::sync::OnceLock;
    ///
    /// static NAME: OnceLock<&str> = OnceLock::new();
    /// let thread = std::thread::spawn(|| NAME.set("first"));
    /// assert_eq!(NAME.wait()?, &"first");
    /// # thread.join().unwrap().unwrap();
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self) -> Result<&T, Cancelled> {
        self.once.done_within(&ONCE_LOCK, Limit::Never, Location::caller()).untimed()?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// As [`wait`](Self::wait), for `timeout` at most, on the clock of the runtime. A timeout of zero looks once.
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
    /// use forebear::sync::OnceLock;
    ///
    /// let name = OnceLock::<&str>::new();
    /// assert_eq!(name.wait_timeout(Duration::from_millis(1)), Err(TimeoutError::TimedOut));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> Result<&T, TimeoutError> {
        self.once.done_within(&ONCE_LOCK, Limit::After(timeout), Location::caller()).timed()?;
        // SAFETY: it is done.
        Ok(unsafe { (*self.value.get()).as_ref() }.expect("it is made before it is done"))
    }

    /// The value, taken out; `None` if there is none.
    ///
    /// ```
    /// use forebear::sync::OnceLock;
    ///
    /// assert_eq!(OnceLock::from(7).into_inner(), Some(7));
    /// ```
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out by the only reference. There is none afterwards, and the next caller may make it.
    ///
    /// ```
    /// use forebear::sync::OnceLock;
    ///
    /// let mut number = OnceLock::from(7);
    /// assert_eq!(number.take(), Some(7));
    /// assert_eq!(number.get_or_init(|| 8), &8);
    /// ```
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
        let Ok(()) = made.once.try_call(&ONCE_LOCK, || {
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
