//! Mutual exclusion.

use std::cell::UnsafeCell; // not modelled: what is in it; the models put a checked cell there
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

use forebear_context::context::{Label, Lock, Reason};
use forebear_context::error::{Cancelled, Cycle, TimeoutError};

use crate::here::with_context;
use crate::raw_lock::{LockTerms, RawLock, Refused, called};

mod mapped;

pub use self::mapped::MappedMutexGuard;

static MUTEX: Lock = called("Mutex");

/// Mutual exclusion for requests and threads: as [`std::sync::Mutex`], but a request that waits for it is suspended, and a guard may
/// be held across any wait. There is no poisoning.
///
/// # Fairness
///
/// Waiters stand in a [`LockQueue`](crate::primitive::LockQueue): the most urgent is woken first, among equals the earliest.
/// Of newcomers 32 at most go before those that stand there; from then on at least each second choice is one of the latter, whatever its age.
///
/// A release leaves the lock free for any running code, so a woken waiter may find it taken. One that has lost four times, or again half a
/// millisecond or more after its first loss, reserves the lock for 50 µs, while nobody else gets it; but not if the holder is of its own worker, and
/// could not go on meanwhile. If it has no luck then either, the lock is handed over to it when it is chosen next. So a waiter is woken five times at
/// most. While a waiter that was woken is on its way, up to 32 releases in a row wake no other, unless somebody more urgent
/// has come since. Nobody barges past one of its own worker that has been woken and is as urgent. If all who wait are of the
/// worker on which it is released, the lock is handed over instead.
///
/// A request that takes or loses one contended lock 64 times, and waits for nothing else meanwhile, lets others of its worker go first, as
/// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html) does. But a request that polls for something under a lock that *nobody else wants* never waits, so nothing takes its worker
/// from it: what it polls for may have to run on that very worker, in particular on the only one. Such a loop has to call `yield_now`, or better
/// wait for a [`Condvar`](crate::Condvar).
///
/// # Deadlocks
///
/// The context that holds a contended lock is known: it becomes as urgent as the most urgent waiter, and so does what it waits for. A
/// cycle of untimed waits through locks and requests is found by the wait that closes it, and named. Of what a thread has taken that never had to do
/// with a runtime, only the thread itself knows: its wait for itself gets the error, and longer cycles through it are not found.
///
/// ```
/// use forebear::sync::Mutex;
///
/// static LIST: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// LIST.lock().push(7);
/// assert_eq!(*LIST.lock(), [7]);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one guard at a time, or by the only reference.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above; a guard lends `&mut T` to other threads in turn, hence `Send`.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// The right to a [`Mutex`]'s value; given back when this is dropped.
///
/// It stays on the thread where it was taken, and may be held across waits.
#[must_use = "the mutex is unlocked as soon as the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    /// None: a [`Condvar`](crate::Condvar) could not give the lock back to it.
    mutex: Option<&'a Mutex<T>>,
    /// `!Send`: the holder's name stands in the lock.
    _stays: PhantomData<*const ()>,
}

// SAFETY: it lends `&T`, and nothing else, to other threads.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// A mutex around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { raw: RawLock::new(Label::NONE), value: UnsafeCell::new(value) }
    }

    /// A mutex around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Mutex<T> {
        Mutex { raw: RawLock::new(Label::NONE), value: UnsafeCell::new(value) }
    }

    /// The same, with a name, which messages about deadlocks, dumps and `Debug` show.
    ///
    /// ```
    /// use forebear::sync::Mutex;
    ///
    /// static CACHE: Mutex<Vec<u32>> = Mutex::named("cache", Vec::new());
    /// assert_eq!(CACHE.name(), Some("cache"));
    /// ```
    #[cfg(not(loom))]
    pub const fn named(name: &'static str, value: T) -> Mutex<T> {
        Mutex { raw: RawLock::new(Label::new(name)), value: UnsafeCell::new(value) }
    }

    /// The value, out of the mutex.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the value is the caller's alone.
    ///
    /// Suspends. Not a cancellation point: the holder releases the lock, so a cancelled request gets it, too. See
    /// [`lock_or_cancelled`](Self::lock_or_cancelled).
    ///
    /// # Panics
    ///
    /// If it would wait for itself, round a cycle of locks and requests, which is named; and in a `no_suspend` region, if it
    /// would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if !self.raw.try_fast() {
            let terms =
                LockTerms { reason: Reason::Lock, deadline: None, caller: Location::caller(), of: &MUTEX };
            if let Err(refused) = with_context!(|context| self.raw.waiting(context, terms).wait()) {
                refuse(refused);
            }
        }
        self.guard()
    }

    /// The same, unless the calling request is cancelled before it has the lock.
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
    #[inline(always)]
    #[track_caller]
    pub fn lock_or_cancelled(&self) -> Result<MutexGuard<'_, T>, Cancelled> {
        let caller = Location::caller();
        let terms = LockTerms { reason: Reason::LockOrCancelled, deadline: None, caller, of: &MUTEX };
        match with_context!(|context| self.raw.waiting(context, terms).wait()) {
            Ok(()) => Ok(self.guard()),
            Err(Refused::Cancelled) => Err(Cancelled::new()),
            Err(refused) => refuse(refused),
        }
    }

    /// The same, for `timeout` at most, on the clock of the runtime.
    ///
    /// Suspends. A cancellation point. A timeout of zero looks once.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the mutex knows nothing of the wait any more; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard<'_, T>, TimeoutError> {
        let caller = Location::caller();
        let waited = with_context!(|context| {
            let looks = timeout.is_zero();
            let deadline = if looks { None } else { context.deadline(timeout) };
            let terms = LockTerms { reason: Reason::LockOrCancelled, deadline, caller, of: &MUTEX };
            let mut waiting = self.raw.waiting(context, terms);
            if looks { waiting.look() } else { waiting.wait() }
        });
        match waited {
            Ok(()) => Ok(self.guard()),
            Err(Refused::Cancelled) => Err(TimeoutError::Cancelled),
            Err(Refused::TimedOut) => Err(TimeoutError::TimedOut),
            Err(refused) => refuse(refused),
        }
    }

    /// The value, if nobody has it. Never waits, and may go before those who do.
    ///
    /// A poll neither suspends nor gives the worker away, so a loop of polls in a request has to call
    /// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html).
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock().then(|| self.guard())
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.raw.label().name()
    }

    /// Whether somebody has it at this moment: for dumps and assertions.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// The value, by the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The guard of the lock that the caller has just taken.
    #[inline(always)]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: Some(self), _stays: PhantomData }
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The mutex itself.
    #[inline(always)]
    fn mutex(&self) -> &'a Mutex<T> {
        match self.mutex {
            Some(mutex) => mutex,
            None => lost(),
        }
    }

    /// The lock below, to be let go of and taken again while the guard is lent.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &'a RawLock {
        &self.mutex().raw
    }

    /// The lock could not be taken again: the guard is good for nothing from now on.
    pub(crate) fn lose(&mut self) {
        self.mutex = None;
    }
}

/// Somebody has caught the panic by which a wait for a condition said that its mutex is part of a deadlock.
#[cold]
#[inline(never)]
fn lost() -> ! {
    panic!("forebear: this guard no longer holds its mutex: its wait for a Condvar ended in a deadlock")
}

/// A wait without limit was refused.
#[cold]
#[track_caller]
pub(crate) fn refuse(refused: Refused) -> ! {
    match refused {
        Refused::Circular(cycle) => deadlock(&cycle),
        Refused::TimedOut | Refused::Cancelled => unreachable!("the wait had no limit"),
    }
}

/// A cycle that only a wait for a lock can be told of.
#[cold]
#[track_caller]
pub(crate) fn deadlock(cycle: &Cycle) -> ! {
    panic!("forebear: deadlock: {cycle}")
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(mutex) = self.mutex {
            // SAFETY: a guard is made when the lock was taken, and dropped once.
            unsafe { mutex.raw.unlock() }
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is the guard's.
        unsafe { &*self.mutex().value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { &mut *self.mutex().value.get() }
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
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

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}
