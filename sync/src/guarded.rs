//! The lock of a list of waiters: a spin lock held for a few instructions. Its holder never waits, and accesses no word of another
//! object that it could have to wait for. (The holder of a channel's lock may take the one of its batch, whose holder takes none.)
//!
//! A thread that finds it locked backs off, longer each time. A read of the word takes its cache line from the core that holds the lock, and
//! with the line what the lock guards. Left alone, that core makes its next visits at once; two cores that poll all the time pay
//! for one line or more at each visit (decision 0031).

use std::panic::{RefUnwindSafe, UnwindSafe};

use forebear_context::shim::UnsafeCell;
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::hint;

/// So many pauses at most from one look to the next; the first are two, then twice as many each time.
#[cfg(not(any(loom, shuttle)))]
const APART: u32 = 8;
/// So many pauses before the thread gives up its time slice: the holder has been preempted.
#[cfg(not(any(loom, shuttle)))]
const PAUSES: u32 = 128;

/// A value behind a spin lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Guarded<Q> {
    locked: AtomicBool,
    value: UnsafeCell<Q>,
}

// SAFETY: the value is touched under the lock only.
unsafe impl<Q> Sync for Guarded<Q> {}
// SAFETY: as above; what is listed there is listed by reference, and those who list themselves may be on any thread.
unsafe impl<Q> Send for Guarded<Q> {}

/// Nothing panics under the lock, so what it guards is never seen half done.
impl<Q> RefUnwindSafe for Guarded<Q> {}
impl<Q> UnwindSafe for Guarded<Q> {}

/// The lock of a [`Guarded`], which this thread has. Only the call that consumes it releases the lock.
#[must_use = "nothing else releases the lock"]
pub(crate) struct Hold<'a, Q>(&'a Guarded<Q>);

impl<'a, Q> Hold<'a, Q> {
    /// Calls `f` with the value, and releases the lock. For `f` see [`Guarded::with`].
    #[inline(always)]
    pub(crate) fn with_mut<R>(self, f: impl FnOnce(&mut Q) -> R) -> R {
        // SAFETY: the lock.
        let result = self.0.value.with_mut(|value| f(unsafe { &mut *value }));
        self.0.locked.store(false, Ordering::Release);
        result
    }

    /// The same, but keeps the lock if `f` answers `None`.
    #[inline(always)]
    pub(crate) fn try_with_mut<R>(self, f: impl FnOnce(&mut Q) -> Option<R>) -> Result<R, Hold<'a, Q>> {
        // SAFETY: the lock.
        match self.0.value.with_mut(|value| f(unsafe { &mut *value })) {
            Some(result) => {
                self.0.locked.store(false, Ordering::Release);
                Ok(result)
            }
            None => Err(self),
        }
    }
}

impl<Q> Guarded<Q> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: Q) -> Guarded<Q> {
        Guarded { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[cfg(loom)]
    pub(crate) fn new(value: Q) -> Guarded<Q> {
        Guarded { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value, under the lock. `f` does not panic, and calls nothing that waits.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Q) -> R) -> R {
        self.with_mut(|value| f(value))
    }

    /// The same for a value that is not made of cells.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(&mut Q) -> R) -> R {
        self.hold().with_mut(f)
    }

    /// Takes the lock, for one call with the value. Until then the caller calls nothing that waits or unwinds.
    #[inline(always)]
    pub(crate) fn hold(&self) -> Hold<'_, Q> {
        if !self.try_lock() {
            self.lock_slowly();
        }
        Hold(self)
    }

    /// The same if the lock is free. It calls nothing.
    #[inline(always)]
    pub(crate) fn try_hold(&self) -> Option<Hold<'_, Q>> {
        self.try_lock().then_some(Hold(self))
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) {
        #[cfg(not(any(loom, shuttle)))]
        let (mut apart, mut paused) = (1, 0);
        while !self.try_lock() {
            #[cfg(any(loom, shuttle))]
            hint::spin_loop();
            #[cfg(not(any(loom, shuttle)))]
            {
                apart = APART.min(apart * 2);
                paused += apart;
                (0..apart).for_each(|_| hint::spin_loop());
                if paused >= PAUSES {
                    paused = 0;
                    std::thread::yield_now();
                }
            }
        }
    }
}
