//! A mutex.

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
/// Waiters stand in a [`LockQueue`](crate::primitive::LockQueue): the most urgent is woken first, among equals the earliest. At most 32
/// newcomers overtake the waiters that stand there. From then on at least each second choice is one of those waiters, whatever its age.
///
/// A release leaves the lock free for any running code, so a woken waiter may find it taken. A waiter that has lost four times reserves
/// the lock for 50 µs, in which no other takes it. So does a waiter that loses half a millisecond or more after its first loss. There is
/// no reservation against a holder of the same worker, which could not continue meanwhile. If the reservation does not help, the next
/// choice hands the lock over. So a waiter is woken at most five times.
///
/// While a woken waiter has not run yet, up to 32 releases in a row wake no other, unless a more urgent waiter has arrived since. No code
/// overtakes a woken waiter of its own worker that is as urgent. If all waiters belong to the worker that releases the lock, the lock is
/// handed over instead.
///
/// A request that takes or loses one contended lock 64 times, and waits for nothing else meanwhile, lets others of its worker run first, as
/// [`yield_now`](https://docs.rs/forebear/latest/forebear/fn.yield_now.html) does. That does not help a request that polls under an
/// *uncontended* lock: it never waits, so it keeps its worker, and what it polls for may have to run there. Such a loop has to call
/// `yield_now`, or better wait for a [`Condvar`](crate::Condvar).
///
/// # Deadlocks
///
/// The holder of a contended lock becomes as urgent as the most urgent waiter, and so does what the holder waits for. The wait that closes a
/// cycle of untimed waits through locks and requests finds the cycle and names it.
///
/// A thread that no runtime knows keeps the list of its locks to itself. Its wait for itself gets the error; longer cycles through it are
/// not found.
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

/// Access to a [`Mutex`]'s value. Dropping it unlocks the mutex.
///
/// It stays on the thread where it was taken, and may be held across waits.
///
/// ```
/// use forebear::sync::{Mutex, MutexGuard};
///
/// fn push(mut list: MutexGuard<'_, Vec<u32>>) {
///     list.push(7);
/// } // unlocked here
///
/// let list = Mutex::new(Vec::new());
/// push(list.lock());
/// assert_eq!(*list.lock(), [7]);
/// ```
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

    /// Unwraps the value.
    ///
    /// ```
    /// use forebear::sync::Mutex;
    ///
    /// let total = Mutex::new(0);
    /// *total.lock() += 1;
    /// assert_eq!(total.into_inner(), 1);
    /// ```
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex; waits until it is free.
    ///
    /// Suspends. Not a cancellation point: the holder releases the lock, so a cancelled request gets it, too. See
    /// [`lock_or_cancelled`](Self::lock_or_cancelled).
    ///
    /// # Panics
    ///
    /// If the wait would close a cycle of locks and requests, which the message names; and in a `no_suspend` region, if it would have to wait.
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
    /// use forebear::sync::Mutex;
    /// use forebear::{CancelReason, Request, WaitError, try_spawn};
    ///
    /// static TOTAL: Mutex<u32> = Mutex::new(0);
    /// let request = try_spawn(|| {
    ///     *TOTAL.lock_or_cancelled()? += 1;
    ///     Request::current().unwrap().abort(CancelReason::Asked);
    ///     *TOTAL.lock_or_cancelled()? += 1; // returns here
    ///     Ok(())
    /// });
    /// assert!(matches!(request.wait(), Err(WaitError::TargetCancelled(_))));
    /// assert_eq!(*TOTAL.lock(), 1);
    /// ```
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

    /// As [`lock`](Self::lock), for `timeout` at most, on the clock of the runtime.
    ///
    /// Suspends. A cancellation point. A timeout of zero checks once.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and the wait has left no trace; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::Mutex;
    ///
    /// let total = Mutex::new(0);
    /// *total.lock_timeout(Duration::from_millis(1))? += 1;
    /// let guard = total.lock();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let late = total.lock_timeout(Duration::from_millis(1));
    ///         assert!(matches!(late, Err(TimeoutError::TimedOut)));
    ///     });
    /// });
    /// assert_eq!(*guard, 1);
    /// # Ok::<(), TimeoutError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard<'_, T>, TimeoutError> {
        let caller = Location::caller();
        let waited = with_context!(|context| {
            let is_zero = timeout.is_zero();
            let deadline = if is_zero { None } else { context.deadline(timeout) };
            let terms = LockTerms { reason: Reason::LockOrCancelled, deadline, caller, of: &MUTEX };
            let mut waiting = self.raw.waiting(context, terms);
            if is_zero { waiting.try_once() } else { waiting.wait() }
        });
        match waited {
            Ok(()) => Ok(self.guard()),
            Err(Refused::Cancelled) => Err(TimeoutError::Cancelled),
            Err(Refused::TimedOut) => Err(TimeoutError::TimedOut),
            Err(refused) => refuse(refused),
        }
    }

    /// Locks the mutex if it is free. Never waits, and may overtake the waiters.
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

    /// Whether the mutex is locked at this moment: for dumps and assertions.
    ///
    /// ```
    /// use forebear::sync::Mutex;
    ///
    /// let total = Mutex::new(0);
    /// let guard = total.lock();
    /// assert!(total.is_locked() && total.try_lock().is_none());
    /// drop(guard);
    /// assert!(!total.is_locked());
    /// ```
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// The value, by the only reference.
    ///
    /// ```
    /// use forebear::sync::Mutex;
    ///
    /// let mut total = Mutex::new(0);
    /// *total.get_mut() += 1; // the compiler knows that no guard exists
    /// assert_eq!(*total.lock(), 1);
    /// ```
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

    /// The lock below, to be released and taken again while the guard is lent.
    #[inline(always)]
    pub(crate) fn raw(&self) -> &'a RawLock {
        &self.mutex().raw
    }

    /// The lock could not be taken again: the guard is good for nothing from now on.
    pub(crate) fn lose(&mut self) {
        self.mutex = None;
    }
}

/// The guard was used after code caught the panic of a wait for a condition, which reports that its mutex
/// is part of a deadlock.
#[cold]
#[inline(never)]
fn lost() -> ! {
    panic!("forebear: this guard no longer holds its mutex: its wait for a Condvar ended in a deadlock")
}

/// A wait was refused otherwise than by its limit or a cancel.
#[cold]
#[track_caller]
pub(crate) fn refuse(refused: Refused) -> ! {
    match refused {
        Refused::Circular(cycle) => deadlock(&cycle),
        Refused::MustNotSuspend(why) => panic!("{why}"),
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
