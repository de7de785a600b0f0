//! A value that is made at its first use.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::once::LAZY_LOCK;
use crate::once_lock::OnceLock;

/// A value that its first user makes: as [`std::sync::LazyLock`], for requests and threads. The other users wait until it is there;
/// see [`OnceLock`].
///
/// The closure can be called once only. So if it panics, every access panics. So it is if it unwinds otherwise: where the request that makes the value is cancelled, a wait
/// in the closure answers `Cancelled`, and to unwind with that ([`or_unwind`](https://docs.rs/forebear/latest/forebear/trait.OrUnwind.html)) spoils the value for all.
/// Let a closure that waits do so in [`shield`](https://docs.rs/forebear/latest/forebear/fn.shield.html), or take an [`OnceLock`], whose next user tries again.
///
/// ```
/// use forebear::sync::LazyLock;
///
/// static SQUARES: LazyLock<Vec<u32>> = LazyLock::new(|| (0..10).map(|n| n * n).collect());
/// assert_eq!(SQUARES[7], 49);
/// ```
pub struct LazyLock<T, F = fn() -> T> {
    value: OnceLock<T>,
    /// Taken by the caller that makes the value.
    make: Cell<Option<F>>,
}

// SAFETY: `make` is touched by the caller that makes the value, one at a time, and may have come from another thread.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}

/// A panic leaves no value, or the whole of it.
impl<T: UnwindSafe, F: UnwindSafe> UnwindSafe for LazyLock<T, F> {}
impl<T: RefUnwindSafe + UnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// A value that `make` makes at the first access.
    #[cfg(not(loom))]
    pub const fn new(make: F) -> LazyLock<T, F> {
        LazyLock { value: OnceLock::new(), make: Cell::new(Some(make)) }
    }

    /// A value that `make` will make.
    #[cfg(loom)]
    pub fn new(make: F) -> LazyLock<T, F> {
        LazyLock { value: OnceLock::new(), make: Cell::new(Some(make)) }
    }

    /// The value; if there is none, makes it. The same as to dereference it.
    ///
    /// Suspends. Not a cancellation point.
    ///
    /// # Panics
    ///
    /// If making it panics, or has panicked or unwound before. If the closure accesses this value, itself or through what it waits for: the message names that
    /// cycle. (On a thread that begins a wait while the process has no runtime, a cycle that passes through that wait is not found.) And in a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use forebear::sync::LazyLock;
    ///
    /// static SQUARES: LazyLock<Vec<u32>> = LazyLock::new(|| (0..10).map(|n| n * n).collect());
    /// assert_eq!(LazyLock::force(&SQUARES).len(), 10);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn force(this: &LazyLock<T, F>) -> &T {
        match this.value.made_by(&LAZY_LOCK, || this.make.take().map(|make| make()).ok_or(())) {
            Ok(value) => value,
            Err(()) => spoilt(),
        }
    }

    /// The value, by the only reference; if there is none, makes it. Never waits.
    ///
    /// # Panics
    ///
    /// If making it panics, or has panicked or unwound before.
    ///
    /// ```
    /// use forebear::sync::LazyLock;
    ///
    /// let mut list = LazyLock::new(|| vec![1]);
    /// LazyLock::force_mut(&mut list).push(2);
    /// assert_eq!(*list, [1, 2]);
    /// ```
    #[track_caller]
    pub fn force_mut(this: &mut LazyLock<T, F>) -> &mut T {
        LazyLock::force(this);
        this.value.get_mut().expect("it has been made")
    }

    /// The value, if it has been made. Never waits.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::LazyLock;
    ///
    /// let seven = LazyLock::new(|| 7);
    /// assert_eq!(LazyLock::get(&seven), None);
    /// assert_eq!(*seven, 7);
    /// assert_eq!(LazyLock::get(&seven), Some(&7));
    /// ```
    pub fn get(this: &LazyLock<T, F>) -> Option<&T> {
        this.value.get()
    }
}

#[cold]
#[track_caller]
fn spoilt() -> ! {
    panic!(
        "forebear: the value of this LazyLock could not be made: making it has panicked before, or was unwound as its request was cancelled; make it in `shield`, or in a OnceLock, whose next user tries again"
    )
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    #[inline(always)]
    #[track_caller]
    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T, F: FnOnce() -> T> DerefMut for LazyLock<T, F> {
    #[track_caller]
    fn deref_mut(&mut self) -> &mut T {
        LazyLock::force_mut(self)
    }
}

impl<T: Default> Default for LazyLock<T> {
    fn default() -> Self {
        LazyLock::new(T::default)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple("LazyLock");
        match self.value.get() {
            Some(value) => shown.field(value),
            None => shown.field(&format_args!("<not made>")),
        };
        shown.finish()
    }
}
