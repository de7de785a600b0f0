//! How a scope is stopped: its jobs are aborted. *Stopping* in the head of [`mod@crate::api::scope`] says when.

use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::error::{CancelReason, Failure};
use forebear_context::shim::atomic::Ordering;

use super::Marked;
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;

impl ScopeCore {
    /// A job has failed; the link of `header` goes with it.
    #[cold]
    pub(crate) fn job_failed(&self, failure: Failure, header: NonNull<Header>) {
        self.failed.store(true, Ordering::Relaxed);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push((failure, header));
        if self.ended.load(Ordering::Acquire) {
            // The body has had its chance to look; the rest would be for nothing.
            self.stop_by(CancelReason::SiblingFailed, Marked::carry_out_later);
        }
    }

    /// Stops the scope: aborts its jobs. From anywhere, while the scope is there.
    #[cold]
    pub(crate) fn stop(&self, reason: CancelReason) {
        self.stop_by(reason, Marked::carry_out);
    }

    /// The same. `carry_out` is for the marks of jobs that are roots.
    fn stop_by(&self, reason: CancelReason, carry_out: fn(Marked)) {
        if !self.set_stopped(reason) {
            return;
        }
        self.jobs.stop_fast();
        match NonNull::new(self.owner.cast_mut()) {
            // SAFETY: the owner is not over while a scope is in it.
            Some(owner) => unsafe { super::stop_scopes(owner) },
            None => {
                // Not cloned: a link on the list would keep what a job has failed with until the scope is left.
                let jobs = std::mem::take(&mut *self.lock_roots());
                let mut marked = Marked::default();
                jobs.into_iter().for_each(|job| marked.abort(job, reason));
                carry_out(marked);
            }
        }
    }
}
