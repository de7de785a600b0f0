//! The desk: where notices for the owner of one home lie, and who is told of them.
//!
//! # The race, and the argument
//!
//! The owner looks without the lock, and must see what was left by one who has told it to look. So a notice is left
//! first, then the flag goes up, then the owner is told: a worker by a bit of its attention word, which it takes down
//! before it looks; a foreign thread by a nudge, after which it looks before it blocks again. The flag goes down under the
//! lock, with the notices, and never after it: one that was left meanwhile would lie there unseen.
//!
//! A foreign thread that runs nothing at a home reads nothing there, nor does a worker that has gone. That it has done is decided under the lock, with a look
//! at what is left: so a notice either was left in time and is read, or its maker is told that nobody will.

use std::mem;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::context::{Context, ForeignContext};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::state::attention::{Attention, NOTICE};

/// See the module head.
pub struct Desk<N> {
    list: Mutex<Left<N>>,
    /// Whether there are any: a look without the lock.
    any: AtomicBool,
    /// Whether its worker has gone. Set under the lock, and never taken back.
    left: AtomicBool,
}

struct Left<N> {
    notices: Vec<N>,
    runs: Option<NonNull<Context>>,
}

// SAFETY: the context is nudged only, under the lock (O2).
unsafe impl<N: Send> Send for Left<N> {}

impl<N> Default for Desk<N> {
    fn default() -> Self {
        Desk {
            list: Mutex::new(Left { notices: Vec::new(), runs: None }),
            any: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }
}

impl<N> Desk<N> {
    fn lock(&self) -> MutexGuard<'_, Left<N>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing to read. By the owner.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The same by a worker, whose bit goes down.
    pub fn is_cleared(&self, attention: &Attention) -> bool {
        #[cfg(mutant = "notice_cleared_late")]
        {
            let empty = self.is_empty();
            attention.clear(NOTICE);
            return empty;
        }
        #[cfg(not(mutant = "notice_cleared_late"))]
        {
            attention.clear(NOTICE);
            self.is_empty()
        }
    }

    /// Takes all notices; their links are the caller's (O1). By the owner.
    pub fn take(&self) -> Vec<N> {
        let mut left = self.lock();
        #[cfg(not(mutant = "desk_emptied_after_unlock"))]
        self.any.store(false, Ordering::Relaxed);
        let taken = mem::take(&mut left.notices);
        #[cfg(mutant = "desk_emptied_after_unlock")]
        {
            drop(left);
            self.any.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Leaves a notice, and nudges the foreign thread that runs something here. A worker is told by the caller, afterwards.
    /// Gives it back if nobody will read it: the home `is_foreign`, and what ran there is over, or its worker has gone.
    pub fn leave(&self, notice: N, is_foreign: bool) -> Result<(), N> {
        let mut left = self.lock();
        #[cfg(not(mutant = "left_for_nobody"))]
        if (is_foreign && left.runs.is_none()) || self.is_left() {
            return Err(notice);
        }
        let _ = is_foreign;
        #[cfg(mutant = "nudged_before_it_is_left")]
        {
            let runs = left.runs;
            drop(left);
            if let Some(context) = runs {
                // SAFETY: O2.
                unsafe { ForeignContext::nudge(context) };
            }
            left = self.lock();
        }
        left.notices.push(notice);
        self.any.store(true, Ordering::Relaxed);
        #[cfg(not(mutant = "nudged_before_it_is_left"))]
        if let Some(context) = left.runs {
            // SAFETY: O2.
            unsafe { ForeignContext::nudge(context) };
        }
        Ok(())
    }

    /// Whether this is a worker's, and it has gone.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// A worker goes for good. False: there are notices to read first. By the owner (O3).
    pub fn go(&self) -> bool {
        let left = self.lock();
        #[cfg(not(mutant = "goes_without_a_look"))]
        if !left.notices.is_empty() {
            return false;
        }
        self.left.store(true, Ordering::Relaxed);
        drop(left);
        true
    }

    /// The worker's thread has gone: takes what is left, and nothing comes any more (O3). The links are the caller's.
    pub fn close(&self) -> Vec<N> {
        let mut left = self.lock();
        self.left.store(true, Ordering::Relaxed);
        mem::take(&mut left.notices)
    }

    /// A foreign thread begins to run a request here: from now on a notice nudges it. Answers whom it nudged before.
    ///
    /// # Safety
    ///
    /// O2: `context` is a `ForeignContext`'s, and the caller takes this back, by another call, before it goes.
    pub unsafe fn runs(&self, context: Option<NonNull<Context>>) -> Option<NonNull<Context>> {
        mem::replace(&mut self.lock().runs, context)
    }

    /// Has the owner look at everything, as soon as it looks at all; nudges it if it is a foreign thread that runs a request.
    pub fn stir(&self) {
        let left = self.lock();
        self.any.store(true, Ordering::Relaxed);
        if let Some(context) = left.runs {
            // SAFETY: O2.
            unsafe { ForeignContext::nudge(context) };
        }
    }

    /// Calls `with` with the context of the foreign thread that runs a request here, if one does. It does not stop running
    /// requests here before `with` has returned.
    pub fn look(&self, with: impl FnOnce(NonNull<Context>)) {
        let left = self.lock();
        if let Some(context) = left.runs {
            with(context);
        }
    }

    /// It has done: from now on a notice nudges whom it did before. False: there are notices to read first.
    ///
    /// # Safety
    ///
    /// As [`runs`](Self::runs).
    pub unsafe fn rests(&self, before: Option<NonNull<Context>>) -> bool {
        let mut left = self.lock();
        #[cfg(not(mutant = "rests_without_a_look"))]
        if !left.notices.is_empty() {
            return false;
        }
        left.runs = before;
        true
    }
}

impl<N> std::fmt::Debug for Desk<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
