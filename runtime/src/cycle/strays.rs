//! Strays: what a walk may read that its own runtime does not keep for it (Y2 of [`super`]).
//!
//! Contexts of foreign threads, and the stacks of other runtimes, may go at any time. Those that are there are enrolled, and whoever is
//! about to free one dismisses it before, under the lock that a reader has for as long as it reads.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::context::Context;
use forebear_context::context::edge::Guide;
use forebear_context::shim::{Mutex, MutexGuard};

use crate::carrier::Carrier;
use crate::shared::Shared;
use crate::worker::Worker;

/// The lock of the strays (Y2), and those that no edge may lead to: threads that run requests, and runtimes.
static STRAYS: Mutex<Strays> = Mutex::new(Strays { threads: Vec::new(), runtimes: Vec::new() });

pub(super) struct Strays {
    pub(super) threads: Vec<NonNull<Context>>,
    pub(super) runtimes: Vec<NonNull<Shared>>,
}

// SAFETY: addresses of what is made to be read by other threads, Y2.
unsafe impl Send for Strays {}

pub(super) fn lock_strays() -> MutexGuard<'static, Strays> {
    STRAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread has a context now.
pub(crate) fn enrol_thread(context: &Context) {
    lock_strays().threads.push(NonNull::from(context));
}

/// It is about to free it. Returns when nobody reads it any more.
pub(crate) fn dismiss_thread(context: &Context) {
    lock_strays().threads.retain(|thread| !ptr::eq(thread.as_ptr(), context));
}

/// A runtime is about to start.
pub(crate) fn enrol_runtime(shared: &Shared) {
    lock_strays().runtimes.push(NonNull::from(shared));
}

/// It is about to unmap its stacks. Returns when nobody reads them any more.
pub(crate) fn dismiss_runtime(shared: &Shared) {
    lock_strays().runtimes.retain(|runtime| !ptr::eq(runtime.as_ptr(), shared));
}

/// In a forked child: nothing is left of all threads but of the one that forks, whose context `own` is, and of all runtimes.
pub(super) fn forget(strays: &mut Strays, own: Option<NonNull<Context>>) {
    strays.threads.retain(|&thread| own == Some(thread));
    strays.runtimes.clear();
}

/// What a walk may read: its own runtime's stacks, and strays from when their lock is needed on.
pub(super) struct Kept<'a> {
    own: Option<&'a Shared>,
    strays: Option<MutexGuard<'static, Strays>>,
    /// A carrier of its own runtime that was looked up before.
    known: Option<NonNull<Context>>,
}

impl<'a> Kept<'a> {
    pub(super) fn by(worker: Option<&'a Worker>) -> Kept<'a> {
        Kept { own: worker.map(Worker::shared), strays: None, known: None }
    }

    pub(super) fn with_holder(&mut self, holder: NonNull<Context>, with: impl FnOnce(&Context)) {
        if self.admits(holder) || self.keep() && self.admits(holder) {
            // SAFETY: Y1, or Y2.
            with(unsafe { holder.as_ref() });
        }
    }

    /// Whether they were not kept before.
    pub(super) fn keep(&mut self) -> bool {
        let is_new = self.strays.is_none();
        self.strays.get_or_insert_with(lock_strays);
        is_new
    }
}

impl Guide for Kept<'_> {
    fn keep_strays(&mut self) -> bool {
        self.keep()
    }

    fn admits(&mut self, holder: NonNull<Context>) -> bool {
        if self.known == Some(holder) {
            return true;
        }
        if self.own.is_some_and(|own| is_carrier_of(own, holder)) {
            self.known = Some(holder);
            return true;
        }
        self.strays.as_ref().is_some_and(|strays| strays.have(holder))
    }
}

impl Strays {
    /// Whether this is the context of a thread or of a carrier that is there.
    fn have(&self, context: NonNull<Context>) -> bool {
        self.threads.contains(&context)
            // SAFETY: Y2: a runtime leaves this list before its record goes.
            || self.runtimes.iter().any(|runtime| is_carrier_of(unsafe { runtime.as_ref() }, context))
    }
}

/// Whether this is where a carrier of this runtime has its context.
#[inline]
fn is_carrier_of(shared: &Shared, context: NonNull<Context>) -> bool {
    shared.slab.top_around(context.addr().get()).is_some_and(|top| Carrier::context_in(top) == context)
}

/// Calls `with` if the context, which a lock has named for its holder, is there; it stays there until `with` has returned. `here` is
/// the worker whose thread this is. If the context is no carrier's of its runtime, `with` is called under the lock of the strays.
pub(crate) fn with_holder(here: Option<&Worker>, holder: NonNull<Context>, with: impl FnOnce(&Context)) {
    Kept::by(here).with_holder(holder, with);
}
