//! A lock that has an owner, whom it costs nothing as long as nobody else comes.
//!
//! # Vocabulary
//!
//! * **owner**: a thread, or what counts as one, that goes in all the time.
//! * **visitor**: anybody else. Comes seldom.
//! * **inside**: what the owner says while it is in on the short way, which is two stores and a look.
//! * **visited**: what a visitor says while it is in, or waits until the owner is out. Then the owner goes the long way: by the lock that
//!   visitors have among themselves.
//!
//! # The race
//!
//! The owner says that it is inside and looks whether it is visited; a visitor says that the owner is visited and looks whether it is inside. At
//! least one sees the other, since there is a fence in between on both sides, all of which the visitor pays for
//! ([`crate::asymmetric`]). The owner that sees a visitor takes back what it has said, and waits at the lock; a visitor that sees the owner inside
//! waits until it is out, which is soon: nothing is called in there that waits.
//!
//! What one has written the other sees: the owner's last word is a release, which the visitor reads; and the visitor's last word is one, which the
//! owner reads, or it goes by the lock. (An older word that says the same it cannot read: it would have to be from before the visitor's first, and
//! the fences forbid that to an owner whom the visitor has not seen.)
//!
//! Where there is no such fence, or no owner, all go by the lock.
//!
//! # Invariants
//!
//! * **O1** The value is touched by the owner while it is inside and has found itself not visited, or by whoever has the lock; a visitor
//!   has found the owner not inside since it has said that it is there.

#![allow(unreachable_pub, reason = "the loom models see this module")]

use std::fmt;
use std::sync::PoisonError;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, UnsafeCell, hint, thread};

use crate::asymmetric;

/// See the module head.
pub struct Biased<T> {
    inside: AtomicBool,
    visited: AtomicBool,
    /// There is an owner, and a fence.
    owned: bool,
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: O1: one at a time.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: it is moved with its value, before it is shared.
unsafe impl<T: Send> Send for Biased<T> {}

/// After so many looks a visitor gives way to an owner that has lost its core.
const LOOKS: u32 = 64;

impl<T> Biased<T> {
    /// A lock around `value`, with an owner or without.
    pub fn new(value: T, owned: bool) -> Biased<T> {
        Biased {
            inside: AtomicBool::new(false),
            visited: AtomicBool::new(false),
            owned: owned && asymmetric::is_available(),
            lock: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `f` with the value, as its owner. Nobody else touches it meanwhile.
    ///
    /// # Safety
    ///
    /// The caller is the owner, if there is one.
    ///
    /// # Panics
    ///
    /// If it is in already.
    #[inline(always)]
    pub unsafe fn own<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        if self.owned {
            assert!(!self.inside.load(Ordering::Relaxed), "a lock is not taken twice");
            self.inside.store(true, Ordering::Relaxed);
            asymmetric::light();
            if !self.visited.load(Ordering::Acquire) || cfg!(mutant = "owner_goes_in_unlooked") {
                let _out = Out(&self.inside);
                // SAFETY: O1.
                return self.value.with_mut(|value| f(unsafe { &mut *value }));
            }
            self.inside.store(false, Ordering::Release);
        }
        self.behind_the_lock(f)
    }

    /// The same as a visitor. Not while the caller is in as the owner.
    #[cold]
    pub fn visit<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        if !self.owned {
            return self.behind_the_lock(f);
        }
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.visited.store(true, Ordering::Relaxed);
        // Before the lock is given up.
        let _out = Out(&self.visited);
        asymmetric::heavy();
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) && !cfg!(mutant = "visitor_goes_in_unlooked") {
            looks += 1;
            if looks % LOOKS == 0 {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
        }
        // SAFETY: O1.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }

    #[inline(never)]
    fn behind_the_lock<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Nothing that it is held for can be left half-done.
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: O1: no visitor is in, and the owner is, or there is none.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

impl<T> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Biased").field("owned", &self.owned).finish_non_exhaustive()
    }
}

/// Takes back what was said, also by way of an unwind.
struct Out<'a>(&'a AtomicBool);

impl Drop for Out<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(mutant = "out_relaxed"))]
        self.0.store(false, Ordering::Release);
        #[cfg(mutant = "out_relaxed")]
        self.0.store(false, Ordering::Relaxed);
    }
}
