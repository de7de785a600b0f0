//! A condition variable: waiting for a condition on the value of a mutex.
//!
//! # How it goes
//!
//! A waiter enters the queue while it still has the mutex, and releases that afterwards. So a thread that changes the value under the mutex and
//! then notifies finds it in the list. The waiter is woken, and not moved to the mutex's queue, which needs a place of another type. It
//! takes the mutex again like any newcomer, whatever ended its wait.
//!
//! # The races
//!
//! *Notification against a leaver.* The notifier chooses under the lock of the list: a waiter that has left its wait refuses, and the next is
//! chosen. The chosen waiter answers `Ok`, even if it was cancelled since. So each notification reaches a waiter that answers `Ok`, if there
//! is one.
//!
//! *Notification against a newcomer.* A notification that finds nobody is the usual one, so it reads a flag and takes no lock. A waiter sets the flag
//! before it releases the mutex. So a thread that has had the mutex after that, or knows of the wait otherwise, reads the flag set; to any other the wait may
//! come after its notification.
//!
//! # Invariants
//!
//! * **V1** While a waiter is listed, `mutex` is the lock that all listed waiters will take again.
//! * **V2** `wait` returns with the mutex locked, or unwinds. If it unwinds without the mutex, the guard knows
//!   that, and releases nothing.
//! * **V3** Whenever the lock of the list is free, `is_waited_for` says whether the list has waiters.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::time::Duration;

use forebear_context::context::{Context, Label, Lock, Reason, with_foreign};
use forebear_context::error::{Cancelled, TimeoutError};
use forebear_context::shim::atomic::{AtomicBool, Ordering};

use crate::guarded::Guarded;
use crate::here::with_context;
use crate::lock_queue::{ChosenList, LockQueue, Place};
use crate::mutex::{MutexGuard, refuse};
use crate::queued_wait::{Answer, Limit, QueuedWaiter, WaitTerms, wait_in_queue};
use crate::raw_lock::{LockTerms, RawLock, Refused, called};

static MUTEX: Lock = called("Mutex");

/// Waiting for a condition on what a [`Mutex`](crate::Mutex) guards: as [`std::sync::Condvar`], but a request that waits is suspended,
/// and the guard is lent, not given away. Any number of requests and threads may wait.
///
/// Each wait releases the mutex and locks it again before it returns, however it ends: also when it was cancelled or timed out. There are no
/// spurious wake-ups. But another holder may have changed the value before the waiter has the mutex, so check the condition again,
/// or call [`wait_while`](Self::wait_while).
///
/// A notification without a waiter is lost. One that meets a waiter which leaves at that moment goes to the next.
///
/// # Fairness
///
/// The most urgent waiter is notified first, among equals the earliest. It then locks the mutex as any other:
/// see [`Mutex`](crate::Mutex#fairness).
///
/// # Deadlocks
///
/// A wait for a notification has no known owner, so a cycle that leads through it is not found. A cycle through the mutex that the waiter
/// locks again is found, and panics. The guard has lost the mutex then, and can only be dropped.
///
/// ```
/// use forebear::sync::{Condvar, Mutex};
///
/// static READY: Mutex<bool> = Mutex::new(false);
/// static CHANGED: Condvar = Condvar::new();
///
/// let thread = std::thread::spawn(|| {
///     *READY.lock() = true;
///     CHANGED.notify_one();
/// });
/// let mut ready = READY.lock();
/// while !*ready {
///     CHANGED.wait(&mut ready)?;
/// }
/// drop(ready);
/// thread.join().unwrap();
/// # Ok::<(), forebear::Cancelled>(())
/// ```
pub struct Condvar {
    label: Label,
    /// V3.
    is_waited_for: AtomicBool,
    waiters: Guarded<Waiters>,
}

struct Waiters {
    queue: LockQueue,
    /// V1.
    mutex: Cell<*const RawLock>,
}

/// One wait.
struct Waiter<'a> {
    condvar: &'a Condvar,
    mutex: &'a RawLock,
    /// The waiter has released the mutex.
    left: Cell<bool>,
}

impl Condvar {
    /// A condition that nobody waits for.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Condvar {
        let waiters = Waiters { queue: LockQueue::new(), mutex: Cell::new(ptr::null()) };
        Condvar { label: Label::NONE, is_waited_for: AtomicBool::new(false), waiters: Guarded::new(waiters) }
    }

    /// The same, with a name, which dumps and `Debug` show.
    ///
    /// ```
    /// use forebear::sync::Condvar;
    ///
    /// static CHANGED: Condvar = Condvar::named("changed");
    /// assert_eq!(CHANGED.name(), Some("changed"));
    /// ```
    #[cfg(not(loom))]
    #[must_use]
    pub const fn named(name: &'static str) -> Condvar {
        Condvar { label: Label::new(name), ..Condvar::new() }
    }

    /// A condition that nobody waits for.
    #[cfg(loom)]
    pub fn new() -> Condvar {
        let waiters = Waiters { queue: LockQueue::new(), mutex: Cell::new(ptr::null()) };
        Condvar { label: Label::NONE, is_waited_for: AtomicBool::new(false), waiters: Guarded::new(waiters) }
    }

    /// The name that was given to it.
    pub fn name(&self) -> Option<&'static str> {
        self.label.name()
    }

    /// Releases the mutex, waits for a notification, and locks the mutex again.
    ///
    /// Suspends. A cancellation point, which locks the mutex again, too.
    ///
    /// # Errors
    ///
    /// [`Cancelled`]; at once, and without releasing the mutex, if the request was cancelled before.
    ///
    /// # Panics
    ///
    /// If other waiters use another mutex at this moment. In a `no_suspend` region. If the mutex cannot be locked again
    /// because of a cycle of locks and requests, which the message names.
    #[inline(always)]
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) -> Result<(), Cancelled> {
        self.within(guard, Limit::Never, Location::caller()).untimed()
    }

    /// Waits while `condition` returns true of the value. Calls `condition` first; if that returns false there is no wait.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`]; at once, and without a call of `condition`, if the request was cancelled before.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait); and if `condition` does.
    ///
    /// ```
    /// use forebear::sync::{Condvar, Mutex};
    ///
    /// static QUEUE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    /// static PUSHED: Condvar = Condvar::new();
    ///
    /// let thread = std::thread::spawn(|| {
    ///     QUEUE.lock().push(7);
    ///     PUSHED.notify_one();
    /// });
    /// let mut queue = QUEUE.lock();
    /// PUSHED.wait_while(&mut queue, |queue| queue.is_empty())?;
    /// assert_eq!(queue.pop(), Some(7));
    /// # drop(queue);
    /// # thread.join().unwrap();
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Result<(), Cancelled> {
        let caller = Location::caller();
        if is_cancelled() {
            return Err(Cancelled::new());
        }
        while condition(guard) {
            self.within(guard, Limit::Never, caller).untimed()?;
        }
        Ok(())
    }

    /// As [`wait`](Self::wait), for `timeout` at most, on the clock of the runtime. To take the mutex again may take longer.
    ///
    /// With a timeout of zero it takes no notification and times out. It releases the mutex all the same, and takes it again.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`], and no notification was lost on this wait; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// let mut guard = ready.lock();
    /// let late = changed.wait_timeout(&mut guard, Duration::from_millis(1));
    /// assert_eq!(late, Err(TimeoutError::TimedOut));
    /// assert!(!*guard); // the mutex is locked again
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> Result<(), TimeoutError> {
        self.within(guard, Limit::After(timeout), Location::caller()).timed()
    }

    /// As [`wait_while`](Self::wait_while), for `timeout` at most, on the clock of the runtime. When time is up it calls `condition` once more; so it
    /// does with a timeout of zero, after it has released the mutex and taken it again.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`TimeoutError::TimedOut`] if time is up and `condition` still returns true; [`TimeoutError::Cancelled`].
    ///
    /// # Panics
    ///
    /// As [`wait_while`](Self::wait_while).
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::TimeoutError;
    /// use forebear::sync::{Condvar, Mutex};
    ///
    /// let (ready, changed) = (Mutex::new(false), Condvar::new());
    /// let mut guard = ready.lock();
    /// let late = changed.wait_timeout_while(&mut guard, Duration::from_millis(1), |ready| !*ready);
    /// assert_eq!(late, Err(TimeoutError::TimedOut));
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn wait_timeout_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Result<(), TimeoutError> {
        let caller = Location::caller();
        if is_cancelled() {
            return Err(TimeoutError::Cancelled);
        }
        if !condition(guard) {
            return Ok(());
        }
        let limit = match Limit::After(timeout) {
            zero if zero.is_zero() => zero,
            _ => Limit::At(with_foreign(|context| context.deadline(timeout))),
        };
        loop {
            let answer = self.within(guard, limit, caller).timed();
            match answer {
                Err(TimeoutError::Cancelled) => return answer,
                _ if !condition(guard) => return Ok(()),
                Err(TimeoutError::TimedOut) => return answer,
                Ok(()) => {}
            }
        }
    }

    /// One wait.
    #[inline(always)]
    #[track_caller]
    fn within<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Limit,
        caller: &'static Location<'static>,
    ) -> Result<(), Refused> {
        let mutex = guard.raw();
        let waiter = Waiter { condvar: self, mutex, left: Cell::new(false) };
        let terms = WaitTerms { reason: Reason::Condition, what: "Condvar", limit, caller };
        let again = LockTerms { reason: Reason::Lock, deadline: None, caller, of: &MUTEX };
        let (answer, locked) = with_context!(|context| {
            let answer = match limit.is_zero() {
                true => waiter.release_and_time_out(context),
                false => wait_in_queue(&waiter, context, (), terms),
            };
            let locked = match waiter.left.get() && !mutex.try_fast() {
                true => mutex.waiting(context, again).wait(),
                false => Ok(()),
            };
            (answer, locked)
        });
        if let Err(refused) = locked {
            // V2.
            guard.lose();
            refuse(refused);
        }
        if answer.is_ok() && !waiter.left.get() {
            two_mutexes();
        }
        answer
    }

    /// Wakes the most urgent waiter, and returns whether there was one. Never waits, and needs no mutex to be held.
    #[inline]
    pub fn notify_one(&self) -> bool {
        self.notify(1) == 1
    }

    /// Wakes at most `n` waiters, the most urgent first, and returns how many. Never waits.
    ///
    /// ```
    /// use forebear::sync::Condvar;
    ///
    /// let changed = Condvar::new();
    /// assert_eq!(changed.notify(2), 0); // there is no waiter
    /// ```
    #[inline]
    pub fn notify(&self, n: usize) -> usize {
        if self.is_waited_for.load(Ordering::Relaxed) { self.wake(n) } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, n: usize) -> usize {
        let mut chosen = ChosenList::new();
        self.change(|waiters| {
            for _ in 0..n {
                // SAFETY: L1; they are woken below.
                match unsafe { waiters.queue.choose() } {
                    Some(one) => chosen.push(one),
                    None => break,
                }
            }
        });
        chosen.wake()
    }

    /// Changes the list, under its lock.
    fn change<R>(&self, change: impl FnOnce(&Waiters) -> R) -> R {
        self.waiters.with(|waiters| {
            let answer = change(waiters);
            #[cfg(not(mutant = "condvar_is_waited_for_late"))]
            self.is_waited_for.store(!waiters.queue.is_empty(), Ordering::Relaxed);
            answer
        })
    }

    /// Wakes all waiters, and returns how many there were. Never waits.
    ///
    /// ```
    /// use forebear::sync::{Condvar, Mutex};
    ///
    /// static READY: Mutex<bool> = Mutex::new(false);
    /// static CHANGED: Condvar = Condvar::new();
    ///
    /// let waiters = [(); 2].map(|()| {
    ///     std::thread::spawn(|| CHANGED.wait_while(&mut READY.lock(), |ready| !*ready).is_ok())
    /// });
    /// *READY.lock() = true;
    /// assert!(CHANGED.notify_all() <= 2);
    /// assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
    /// ```
    #[inline]
    pub fn notify_all(&self) -> usize {
        self.notify(usize::MAX)
    }
}

/// Whether the calling request was cancelled.
fn is_cancelled() -> bool {
    with_foreign(|context| context.is_cancelled())
}

#[cold]
#[track_caller]
fn two_mutexes() -> ! {
    panic!("forebear: a Condvar was waited on with two mutexes at once")
}

impl Waiter<'_> {
    /// A wait with a time-out of zero: releases the mutex, and enters no queue.
    #[cold]
    fn release_and_time_out(&self, context: &Context) -> Result<(), Refused> {
        if context.is_cancelled() {
            return Err(Refused::Cancelled);
        }
        self.left.set(true);
        // SAFETY: as in `enter`: the guard that was lent stands for nothing until the lock is taken again (V2).
        unsafe { self.mutex.unlock() };
        Err(Refused::TimedOut)
    }
}

impl QueuedWaiter<()> for Waiter<'_> {
    fn label(&self) -> &Label {
        &self.condvar.label
    }

    fn at_once(&self, (): &()) -> bool {
        false
    }

    fn enter(&self, place: &Place) -> bool {
        let mine = ptr::from_ref(self.mutex);
        #[cfg(mutant = "condvar_unlocks_before_it_lists")]
        // SAFETY: none; it is planted.
        unsafe {
            self.mutex.unlock();
        }
        let entered = self.condvar.change(|waiters| {
            if !waiters.queue.is_empty() && waiters.mutex.get() != mine {
                return false;
            }
            waiters.mutex.set(mine);
            // SAFETY: L1; L2: the place stays in its frame until it is out.
            unsafe { waiters.queue.enter(place) };
            true
        });
        if entered {
            self.left.set(true);
            #[cfg(not(mutant = "condvar_unlocks_before_it_lists"))]
            // SAFETY: the guard that was lent stands for the lock, and for nothing until the lock is taken again (V2).
            unsafe {
                self.mutex.unlock()
            };
            #[cfg(mutant = "condvar_is_waited_for_late")]
            self.condvar.is_waited_for.store(true, Ordering::Relaxed);
        }
        entered
    }

    fn leave(&self, place: &Place) -> bool {
        // SAFETY: L1.
        self.condvar.change(|waiters| unsafe { waiters.queue.remove(place) });
        true
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiters.with(|waiters| waiters.queue.len());
        let mut shown = f.debug_struct("Condvar");
        if let Some(name) = self.name() {
            shown.field("name", &name);
        }
        shown.field("waiting", &waiting).finish_non_exhaustive()
    }
}
