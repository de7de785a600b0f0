//! A lock that has an owner, whom it costs nothing as long as nobody else comes.
//!
//! # Vocabulary
//!
//! * **owner**: a thread, or what counts as one, that goes in all the time.
//! * **visitor**: any other thread. Visits are rare.
//! * **inside**: what the owner says while it is in on the short way, which is two stores and a look.
//! * **visited**: what a visitor says while it is in, or waits until the owner is out. Then the owner goes the long way: by the lock that
//!   visitors have among themselves.
//!
//! # The race
//!
//! The owner stores that it is inside, and reads whether there is a visitor. A visitor stores that it is there, and
//! reads whether the owner is inside. At least one sees the other, since both sides have a fence in between, and the
//! visitor executes both ([`crate::state::asymmetric`]). An owner that sees a visitor takes its store back, and waits
//! at the lock. A visitor that sees the owner inside waits until it has left. That is soon: nothing that waits is
//! called inside.
//!
//! Each sees what the other has written. The owner's last store is a release, which the visitor reads. The visitor's
//! last store is a release, too, which the owner reads, or the owner goes by the lock. (The owner cannot read an older
//! store of the same value. It would be from before the visitor's first store, and the fences exclude that for an owner
//! that the visitor has not seen.)
//!
//! Where there is no such fence, or no owner, all go by the lock.
//!
//! If the kernel refuses the fence later (AS2, [`crate::state::asymmetric`]), the visitor that finds out *stays*: it never takes back that the
//! owner is visited. From then on the owner finds itself visited and goes by the lock, and later visitors need no fence.
//!
//! # Invariants
//!
//! * **BI1** The owner accesses the value while it is inside and has found no visitor. Or the holder of the lock
//!   accesses it; a visitor has found the owner outside after it has stored that it is there.
//! * **BI2** Once a visitor has stayed, `visited` is true for ever, and a fence on the owner has been paid since it became true. So the
//!   owner never goes in again, though it may say so for a moment.

use std::fmt;
use std::sync::PoisonError;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, UnsafeCell, hint, mutant, thread};

use crate::state::asymmetric;

/// See the module head.
pub struct Biased<T> {
    inside: AtomicBool,
    visited: AtomicBool,
    /// There is an owner, and a fence.
    owned: bool,
    /// Whether a visitor has stayed.
    lock: Mutex<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: BI1: one at a time.
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
            lock: Mutex::new(false),
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
                // SAFETY: BI1.
                return self.value.with_mut(|value| f(unsafe { &mut *value }));
            }
            self.inside.store(false, Ordering::Release);
        }
        self.behind_the_lock(f)
    }

    /// The same as a visitor. Not while the caller is in as the owner.
    #[cold]
    pub fn visit<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.visit_where(asymmetric::is_available, f)
    }

    /// The same; `is_available` says, after the fence, whether another one can be had.
    #[cold]
    pub fn visit_where<R>(&self, is_available: impl FnOnce() -> bool, f: impl FnOnce(&mut T) -> R) -> R {
        if !self.owned {
            return self.behind_the_lock(f);
        }
        let mut stayed = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if *stayed {
            // SAFETY: BI1, BI2: the lock is held, and the owner goes by it.
            return self.value.with_mut(|value| f(unsafe { &mut *value }));
        }
        self.visited.store(true, Ordering::Relaxed);
        // Before the lock is given up.
        let out = Out(&self.visited);
        asymmetric::heavy();
        if !is_available() {
            *stayed = true;
            mutant!("visitor_stays_and_leaves", (), std::mem::forget(out));
        }
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) && !cfg!(mutant = "visitor_goes_in_unlooked") {
            looks += 1;
            if looks % LOOKS == 0 {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
        }
        // SAFETY: BI1.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }

    #[inline(never)]
    fn behind_the_lock<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // Nothing that it is held for can be left half-done.
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: BI1: no visitor is in, and the owner is, or there is none.
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
        mutant!(
            "out_relaxed",
            self.0.store(false, Ordering::Relaxed),
            self.0.store(false, Ordering::Release)
        );
    }
}
