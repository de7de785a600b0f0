//! Notices: what is left for the owner of a home to do about requests that ran, or were made, there.
//!
//! Families belong to one thread (N1), so a cancel that comes from elsewhere is carried on by a notice to the thread that
//! has them. A worker is told by its attention word, and is woken if it sleeps. A foreign thread that runs a request looks
//! before it blocks, and is nudged if it blocks already: it looks, and blocks again if its wait goes on. It looks for the
//! last time when the request is over; whoever comes later finds nobody, and goes on from the request himself
//! ([`crate::kin`], N1). So it is with a worker that has gone because the runtime ends: others may still have requests
//! whose families are its.
//!
//! # Invariants
//!
//! * **O1** A notice has a link of its request.
//! * **O2** `runs` names the context of the thread that owns the home, while that runs a request there. Its owner takes it
//!   back under the lock.
//! * **O3** A worker goes with no notice left, and from then on none is taken; what came before the runtime was over and is
//!   found when it is closed is worked off by whoever closes it.

use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::context::{Context, ForeignContext};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::attention::NOTICE;
use crate::header::Header;
use crate::home::Home;

/// What the owner of a home is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// This request ran here and is cancelled, or is over and its parent is cancelled: the cancel goes on from it.
    Cancelled(NonNull<Header>),
    /// This request was made here, and was submitted or claimed elsewhere: it belongs into its parent's list.
    Kin(NonNull<Header>),
    /// A scope in this request, which runs here, was stopped.
    Scope(NonNull<Header>),
    /// This request was claimed unstarted, and the link is the runner's: it is to be ended, as cancelled. To a worker.
    End(NonNull<Header>),
}

impl Notice {
    /// The request it is about.
    pub(crate) fn header(self) -> NonNull<Header> {
        match self {
            Notice::Cancelled(header) | Notice::Kin(header) | Notice::Scope(header) | Notice::End(header) => {
                header
            }
        }
    }
}

/// One home's notices.
#[derive(Default)]
pub(crate) struct Desk {
    list: Mutex<Left>,
    /// Whether there are any: a look without the lock.
    any: AtomicBool,
    /// Whether its worker has gone. Set under the lock, and never taken back.
    left: AtomicBool,
}

#[derive(Default)]
struct Left {
    notices: Vec<Notice>,
    runs: Option<NonNull<Context>>,
}

// SAFETY: notices are links, which any thread may use; the context is nudged only, under the lock (O2).
unsafe impl Send for Left {}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Left> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be notices. By the owner.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Whether this is a worker's, and it has gone.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// A worker goes for good. False: there are notices to read first. By the owner (O3).
    pub(crate) fn go(&self) -> bool {
        let left = self.lock();
        let may = left.notices.is_empty();
        if may {
            self.left.store(true, Ordering::Relaxed);
        }
        may
    }

    /// The worker's thread has gone: takes what is left, and nothing comes any more (O3). The links are the caller's.
    pub(crate) fn close(&self) -> Vec<Notice> {
        let mut left = self.lock();
        self.left.store(true, Ordering::Relaxed);
        std::mem::take(&mut left.notices)
    }

    /// Takes all notices; their links are the caller's (O1). By the owner.
    pub(crate) fn take(&self) -> Vec<Notice> {
        let mut left = self.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut left.notices)
    }

    /// A foreign thread begins to run a request here: from now on a notice nudges it. Answers whom it nudged before.
    ///
    /// # Safety
    ///
    /// O2: `context` is a `ForeignContext`'s, and the caller takes this back, by another call, before it goes.
    pub(crate) unsafe fn runs(&self, context: Option<NonNull<Context>>) -> Option<NonNull<Context>> {
        std::mem::replace(&mut self.lock().runs, context)
    }

    /// It has done: from now on a notice nudges whom it did before. False: there are notices to read first.
    ///
    /// # Safety
    ///
    /// As [`runs`](Self::runs).
    pub(crate) unsafe fn rests(&self, before: Option<NonNull<Context>>) -> bool {
        let mut left = self.lock();
        if !left.notices.is_empty() {
            return false;
        }
        left.runs = before;
        true
    }
}

/// Leaves a notice with the owner of `home`. Answers whether somebody will read it: a foreign thread that runs nothing there
/// will not, nor will a worker that has gone, and then what ran there is over.
///
/// # Safety
///
/// O1: the notice's link is given away, or left with the caller if the answer is false. M3 for the home.
#[must_use]
pub(crate) unsafe fn leave(home: &Home, notice: Notice) -> bool {
    let shared = home.shared().arc();
    if shared.is_over() {
        // Everything is over; there is nothing to go on to.
        return false;
    }
    if shared
        .driven
        .as_ref()
        .is_some_and(|driven| !home.is_foreign() && !driven.is_taken(home.worker as usize))
    {
        // Nothing runs on a seat that nobody has.
        return false;
    }
    let mut left = home.desk.lock();
    if (home.is_foreign() && left.runs.is_none()) || home.desk.is_left() {
        return false;
    }
    left.notices.push(notice);
    home.desk.any.store(true, Ordering::Relaxed);
    // Afterwards: it looks without the lock.
    if let Some(context) = left.runs {
        // SAFETY: O2.
        unsafe { ForeignContext::nudge(context) };
    }
    drop(left);
    if let Some(worker) = shared.workers().get(home.worker as usize) {
        worker.post.attention.raise(NOTICE);
        shared.wake(worker.index);
    }
    true
}
