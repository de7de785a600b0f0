//! A mutex that its owner may lock again.
//!
//! # What the owner is
//!
//! A request together with its thread; outside any request, the thread. The stack alone would be wrong. A child that
//! runs on its waiter's stack would own what its waiter has locked, and a child that runs elsewhere would not. The
//! request alone would be wrong. An arm of a join belongs to the request that called, and another thread may steal it,
//! but only one thread at a time may access the value. The thread alone would let two requests of one worker hold the
//! lock together. The lock is sound because only the owner's thread reaches the value. That the owner is also one
//! request is a service to users. The address of a request may be reused while a leaked guard still lends the value;
//! then both are on the same thread.
//!
//! # Invariants
//!
//! * **E1** `thread` is the number of the thread whose guards are there, or zero; it is written by that thread, with the lock in hand. So
//!   a thread that reads its own number there has the lock, and reads nothing old.
//! * **E2** Only that thread accesses `request` and `depth`, or the caller that has just taken the lock.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::Location;
use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::context::{Label, Lock, Reason, current, this_thread, with_foreign};
use forebear_context::error::{Cancelled, TimeoutError};
use forebear_context::shim::atomic::{AtomicU64, Ordering};

use crate::mutex::refuse;
use crate::queued_wait::{Answer, Limit};
use crate::raw_lock::{LockTerms, RawLock, Refused, called};

static REENTRANT_MUTEX: Lock = called("ReentrantMutex");

/// A mutex that its holder may lock again: as parking_lot's, for requests and threads. Since two guards may exist it lends
/// `&T` only: put a [`Cell`] or a [`RefCell`](std::cell::RefCell) into it to write.
///
/// # The owner
///
/// Inside a request the owner is the request, with whatever is called there, also across waits; outside any request it is the thread. Callbacks
/// of the request, and a [`timeout`](https://docs.rs/forebear/latest/forebear/time/fn.timeout.html) region that it calls, are part of it. So
/// is an arm of a join that it calls, unless another worker runs that arm.
///
/// Every other request is another owner, also a child that runs directly, on the stack of its waiter. If that waiter holds the lock, the
/// child's wait for the lock closes a cycle, and panics.
///
/// A guard that is [forgotten](std::mem::forget) keeps the lock for good. When its request is over, a later request of the same thread may count as the owner: requests are told apart
/// by where they lie in memory.
///
/// # Fairness and deadlocks
///
/// Those of [`Mutex`](crate::Mutex#fairness).
///
/// ```
/// use std::cell::Cell;
/// use forebear::sync::ReentrantMutex;
///
/// static COUNT: ReentrantMutex<Cell<u32>> = ReentrantMutex::new(Cell::new(0));
///
/// fn add() {
///     let count = COUNT.lock();
///     count.set(count.get() + 1);
/// }
///
/// let count = COUNT.lock();
/// add();
/// assert_eq!(count.get(), 1);
/// ```
#[derive(Default)]
pub struct ReentrantMutex<T: ?Sized> {
    raw: RawLock,
    thread: AtomicU64,
    owner: Owner,
    value: T,
}

/// E2.
struct Owner {
    /// Its address, which is compared and never followed; 0: the thread.
    request: Cell<usize>,
    depth: Cell<usize>,
}

// SAFETY: the value is reached on one thread at a time, or by the only reference.
unsafe impl<T: ?Sized + Send> Send for ReentrantMutex<T> {}
// SAFETY: as above; E1, E2.
unsafe impl<T: ?Sized + Send> Sync for ReentrantMutex<T> {}

/// Access to a [`ReentrantMutex`]'s value. Dropping the last one unlocks the mutex. It stays on its thread.
///
/// ```
/// use forebear::sync::{ReentrantMutex, ReentrantMutexGuard};
///
/// let text = ReentrantMutex::new(String::from("twice"));
/// let (one, again): (ReentrantMutexGuard<'_, String>, _) = (text.lock(), text.lock());
/// assert_eq!((one.len(), again.len()), (5, 5));
/// drop(one);
/// assert!(text.is_owned()); // `again` still holds it
/// ```
#[must_use = "the mutex is unlocked as soon as the guard is dropped"]
pub struct ReentrantMutexGuard<'a, T: ?Sized> {
    mutex: &'a ReentrantMutex<T>,
    /// `!Send`: E1.
    _stays: PhantomData<*const ()>,
}

// SAFETY: it lends `&T`, and nothing else, to other threads.
unsafe impl<T: ?Sized + Sync> Sync for ReentrantMutexGuard<'_, T> {}

/// Access to a part of a [`ReentrantMutex`]'s value, which [`ReentrantMutexGuard::map`] has chosen. It stays on its thread.
///
/// ```
/// use forebear::sync::{MappedReentrantMutexGuard, ReentrantMutex, ReentrantMutexGuard};
///
/// fn first(list: &ReentrantMutex<Vec<u32>>) -> MappedReentrantMutexGuard<'_, u32> {
///     ReentrantMutexGuard::map(list.lock(), |list| &list[0])
/// }
///
/// assert_eq!(*first(&ReentrantMutex::new(vec![7])), 7);
/// ```
#[must_use = "the mutex is unlocked as soon as the guard is dropped"]
pub struct MappedReentrantMutexGuard<'a, T: ?Sized> {
    lock: Hold<'a>,
    part: NonNull<T>,
    _lends: PhantomData<(&'a T, *const ())>,
}

// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for MappedReentrantMutexGuard<'_, T> {}

/// What it takes to give one back.
#[derive(Clone, Copy)]
struct Hold<'a> {
    raw: &'a RawLock,
    thread: &'a AtomicU64,
    owner: &'a Owner,
}

impl Default for Owner {
    fn default() -> Self {
        Owner { request: Cell::new(0), depth: Cell::new(0) }
    }
}

/// The request that this is called in, as an owner; 0 outside any.
#[inline]
fn here() -> usize {
    current().map_or(0, |here| {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        let here = unsafe { here.as_ref() };
        // SAFETY: this is the stack of the context, as the table asks.
        unsafe { (here.table().requester)(here) }
    })
}

impl<T> ReentrantMutex<T> {
    /// A mutex around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> ReentrantMutex<T> {
        let owner = Owner { request: Cell::new(0), depth: Cell::new(0) };
        ReentrantMutex { raw: RawLock::new(Label::NONE), thread: AtomicU64::new(0), owner, value }
    }

    /// A mutex around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> ReentrantMutex<T> {
        let owner = Owner::default();
        ReentrantMutex { raw: RawLock::new(Label::NONE), thread: AtomicU64::new(0), owner, value }
    }

    /// The same, with a name, which messages about deadlocks, dumps and `Debug` show.
    ///
    /// ```
    /// use forebear::sync::ReentrantMutex;
    ///
    /// static CACHE: ReentrantMutex<Vec<u32>> = ReentrantMutex::named("cache", Vec::new());
    /// assert_eq!(CACHE.name(), Some("cache"));
    /// ```
    #[cfg(not(loom))]
    pub const fn named(name: &'static str, value: T) -> ReentrantMutex<T> {
        let raw = RawLock::new(Label::new(name));
        let owner = Owner { request: Cell::new(0), depth: Cell::new(0) };
        ReentrantMutex { raw, thread: AtomicU64::new(0), owner, value }
    }

    /// Unwraps the value.
    ///
    /// ```
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let mut count = ReentrantMutex::new(1);
    /// *count.get_mut() += 1;
    /// assert_eq!(count.into_inner(), 2);
    /// ```
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: ?Sized> ReentrantMutex<T> {
    /// Locks it; waits while another owner holds it. If the caller holds it already, it gets one guard more.
    ///
    /// Suspends. Not a cancellation point; see [`lock_or_cancelled`](Self::lock_or_cancelled).
    ///
    /// # Panics
    ///
    /// If the wait would close a cycle of locks and requests, which the message names; and in a `no_suspend` region, if it
    /// would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        if self.again() {
            return self.guard();
        }
        if !self.raw.try_fast() {
            let caller = Location::caller();
            let terms = LockTerms { reason: Reason::Lock, deadline: None, caller, of: &REENTRANT_MUTEX };
            if let Err(refused) = with_foreign(|context| self.raw.waiting(context, terms).wait()) {
                refuse(refused);
            }
        }
        self.first()
    }

    /// As [`lock`](Self::lock), unless the calling request is cancelled before it has the lock.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    ///
    /// ```
    /// use std::cell::Cell;
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let count = ReentrantMutex::new(Cell::new(0));
    /// count.lock_or_cancelled()?.set(1);
    /// assert_eq!(count.lock().get(), 1);
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn lock_or_cancelled(&self) -> Result<ReentrantMutexGuard<'_, T>, Cancelled> {
        let caller = Location::caller();
        self.cancellably(caller, Limit::Never).untimed()
    }

    /// As [`lock`](Self::lock), for `timeout` at most, on the clock of the runtime. A timeout of zero checks once.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let count = ReentrantMutex::new(Cell::new(0));
    /// let guard = count.lock();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let late = count.lock_timeout(Duration::from_millis(1));
    ///         assert!(matches!(late, Err(TimeoutError::TimedOut)));
    ///     });
    /// });
    /// # drop(guard);
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<ReentrantMutexGuard<'_, T>, TimeoutError> {
        let caller = Location::caller();
        self.cancellably(caller, Limit::After(timeout)).timed()
    }

    /// Locks it, unless another owner holds it. Never waits, and may overtake the waiters.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    ///
    /// ```
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let seven = ReentrantMutex::new(7);
    /// let guard = seven.lock();
    /// assert!(seven.try_lock().is_some()); // the caller holds it
    /// let elsewhere = std::thread::scope(|s| s.spawn(|| seven.try_lock().is_none()).join().unwrap());
    /// assert!(elsewhere);
    /// # drop(guard);
    /// ```
    #[inline]
    pub fn try_lock(&self) -> Option<ReentrantMutexGuard<'_, T>> {
        if self.again() {
            return Some(self.guard());
        }
        self.raw.try_lock().then(|| self.first())
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.raw.label().name()
    }

    /// Whether it is locked at this moment: for dumps and assertions.
    ///
    /// ```
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let seven = ReentrantMutex::new(7);
    /// let guard = seven.lock();
    /// assert!(seven.is_locked());
    /// drop(guard);
    /// assert!(!seven.is_locked());
    /// ```
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// Whether the caller holds it.
    ///
    /// ```
    /// use forebear::sync::ReentrantMutex;
    ///
    /// let seven = ReentrantMutex::new(7);
    /// let guard = seven.lock();
    /// assert!(seven.is_owned());
    /// assert!(std::thread::scope(|s| s.spawn(|| !seven.is_owned()).join().unwrap()));
    /// # drop(guard);
    /// ```
    pub fn is_owned(&self) -> bool {
        // E1, E2.
        self.thread.load(Ordering::Relaxed) == this_thread().get() && self.owner.request.get() == here()
    }

    /// The value, by the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    #[inline(always)]
    fn cancellably(
        &self,
        caller: &'static Location<'static>,
        limit: Limit,
    ) -> Result<ReentrantMutexGuard<'_, T>, Refused> {
        let had = with_foreign(|context| {
            if context.is_cancelled() {
                return Err(Refused::Cancelled);
            }
            if self.again() {
                return Ok(true);
            }
            let (reason, deadline) = (Reason::LockOrCancelled, limit.deadline(context));
            let mut waiting =
                self.raw.waiting(context, LockTerms { reason, deadline, caller, of: &REENTRANT_MUTEX });
            if limit.is_zero() {
                waiting.try_once()?
            } else {
                waiting.wait()?
            }
            Ok(false)
        })?;
        Ok(if had { self.guard() } else { self.first() })
    }

    /// Counts one more, if the caller has it.
    #[inline]
    fn again(&self) -> bool {
        let owned = self.is_owned();
        if owned {
            self.owner.depth.set(self.owner.depth.get() + 1);
        }
        owned
    }

    /// The first guard of a caller that has just taken the lock.
    #[inline]
    fn first(&self) -> ReentrantMutexGuard<'_, T> {
        self.owner.request.set(here());
        self.owner.depth.set(1);
        self.thread.store(this_thread().get(), Ordering::Relaxed);
        self.guard()
    }

    #[inline(always)]
    fn guard(&self) -> ReentrantMutexGuard<'_, T> {
        ReentrantMutexGuard { mutex: self, _stays: PhantomData }
    }

    fn hold(&self) -> Hold<'_> {
        Hold { raw: &self.raw, thread: &self.thread, owner: &self.owner }
    }
}

impl Hold<'_> {
    /// Gives one back.
    ///
    /// # Safety
    ///
    /// A guard stood for it, which is gone.
    #[inline]
    unsafe fn give_back(self) {
        let left = self.owner.depth.get() - 1;
        self.owner.depth.set(left);
        if left == 0 {
            self.thread.store(0, Ordering::Relaxed);
            // SAFETY: by contract: this was the last.
            unsafe { self.raw.unlock() };
        }
    }
}

impl<'a, T: ?Sized> ReentrantMutexGuard<'a, T> {
    /// Gives up the whole for a part of it. An associated function, so that it hides no method of the value.
    ///
    /// ```
    /// use forebear::sync::{ReentrantMutex, ReentrantMutexGuard};
    ///
    /// let pair = ReentrantMutex::new((1, "one"));
    /// let name = ReentrantMutexGuard::map(pair.lock(), |pair| &pair.1);
    /// assert_eq!(*name, "one");
    /// ```
    pub fn map<U: ?Sized>(this: Self, part: impl FnOnce(&T) -> &U) -> MappedReentrantMutexGuard<'a, U> {
        let part = NonNull::from(part(&this));
        let lock = ManuallyDrop::new(this).mutex.hold();
        MappedReentrantMutexGuard { lock, part, _lends: PhantomData }
    }
}

impl<T: ?Sized> Drop for ReentrantMutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a guard is made when it was taken once more, and dropped once.
        unsafe { self.mutex.hold().give_back() }
    }
}

impl<T: ?Sized> Drop for MappedReentrantMutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it took the place of a guard that was forgotten.
        unsafe { self.lock.give_back() }
    }
}

impl<T: ?Sized> Deref for ReentrantMutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.mutex.value
    }
}

impl<T: ?Sized> Deref for MappedReentrantMutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a part of the value, and the lock is the guard's.
        unsafe { self.part.as_ref() }
    }
}

impl<T> From<T> for ReentrantMutex<T> {
    fn from(value: T) -> Self {
        ReentrantMutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ReentrantMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ReentrantMutex");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        match self.try_lock() {
            Some(guard) => shown.field("value", &&*guard),
            None => shown.field("value", &format_args!("<locked>")),
        };
        shown.finish_non_exhaustive()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ReentrantMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MappedReentrantMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for ReentrantMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}
