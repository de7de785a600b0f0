//! The jobs of a scope that the scope's owner runs itself, when its body is over.
//!
//! A scope that ends waits for jobs that mostly nobody has begun: they stand in the private queue of this worker. If the owner left its stack to
//! wait, the loop would take another stack, run them there, and come back. So the owner runs them on its own stack, as a wait does with
//! its target (`schedule/wait/lend.rs`), and then waits for those that began elsewhere or are suspended.
//!
//! # Which jobs
//!
//! The oldest private request, as long as it is a job of the scope, fits on the stack, and the loop would take it next.
//! That is so if nothing on this worker is ready, nothing anywhere is older, and no bit but the hungry one is set in
//! the attention word. So the order of work is that of the loop. When one of these does not hold, the owner leaves its
//! stack, and the loop runs what is left.
//!
//! In a destructor that an unwind runs, the owner runs all jobs on this worker that fit, whatever is older, and whoever drives the worker: jobs that the
//! loop ran would be other work (`schedule/worker/unwinding.rs`).
//!
//! # What lies below
//!
//! A job that suspends takes the owner's stack with it. The owner could not go on before the job is over in any case. A job that waits for the
//! owner, or for a request that waits below it, closes a cycle. The walk finds it by the request below (`Header::lender`), as in a lent
//! run.

use std::ptr::{self, NonNull};

use forebear_context::shim::atomic::Ordering;

use super::Worker;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, OWN_STACK};
use crate::record::scope_core::ScopeCore;
use crate::schedule::run;
use crate::schedule::wait::nothing_forbids;
use crate::state::attention::{HUNGRY, LIMITS};

impl Worker {
    /// Runs unstarted jobs of `scope` on the stack of `fiber`, its owner, and takes them off the scope's count; see the module head.
    #[inline(never)]
    pub(crate) fn run_own_jobs(&self, fiber: &Fiber, scope: *const ScopeCore) {
        if fiber.context().no_suspend().get() != 0 {
            return;
        }
        let (arena, entered) = (fiber.arena.replace(self.arena()), fiber.entered.replace(ptr::null()));
        while let Some(header) = self.claim_own_job(fiber, scope) {
            self.direct.count();
            let before = fiber.urgency.load(Ordering::Relaxed);
            // SAFETY: claimed, with the list's link.
            unsafe { run::start(fiber, header) };
            if fiber.urgency.load(Ordering::Relaxed) != before {
                // What lies below may have become more urgent meanwhile.
                let below = fiber.request().map_or(before, Header::urgency);
                fiber.urgency.store(before.min(below), Ordering::Relaxed);
            }
        }
        fiber.arena.set(arena);
        fiber.entered.set(entered);
        self.settle_jobs();
    }

    /// The same in a destructor that an unwind runs, of which `fiber` is the stack.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_jobs_in_unwind(&self, fiber: &Fiber, scope: *const ScopeCore) {
        if fiber.context().no_suspend().get() != 0 {
            return;
        }
        while let Some(header) = self.claim_job(fiber, scope) {
            self.direct.count();
            // SAFETY: claimed, with the runner's link.
            self.on_fiber(fiber, || unsafe { self.run_here(fiber, header) });
        }
        self.settle_jobs();
    }

    /// Claims an unstarted job of `scope` that stands on this worker and may run on top of `fiber`.
    fn claim_job(&self, fiber: &Fiber, scope: *const ScopeCore) -> Option<NonNull<Header>> {
        let wanted = |header: &Header| {
            ptr::eq(header.scope.get(), scope)
                && !header.is(OWN_STACK)
                && fiber.room() >= header.need()
                && header.word().load().is_unstarted()
        };
        self.claim_of(
            || self.private_job(wanted),
            || self.post.shared_queue.take_where(wanted).or_else(|| self.take_drawable(wanted)),
        )
    }

    /// The oldest request in the private queue that is `wanted`.
    fn private_job(&self, wanted: impl Fn(&Header) -> bool) -> Option<&Header> {
        let mut at = self.list.front();
        while let Some(listed) = at {
            if wanted(listed) {
                return Some(listed);
            }
            // SAFETY: P2.
            at = unsafe { listed.next_listed().as_ref() };
        }
        None
    }

    /// Takes the front of the private queue if it is a job of `scope` that may run on top of `fiber`.
    #[inline(always)]
    fn claim_own_job(&self, fiber: &Fiber, scope: *const ScopeCore) -> Option<NonNull<Header>> {
        loop {
            let front = self.list.front()?;
            let key = front.lineage.key();
            debug_assert!(!front.is(OWN_STACK), "those stand in the shared queue");
            if !ptr::eq(front.scope.get(), scope)
                || fiber.room() < front.need()
                || !self.post.mailbox.is_empty()
                || self.ready().len() != 0
                || self.running() != key
                || self.shared().best_published(self.index, &self.scan_turns, key) < key
            {
                return None;
            }
            let attention = self.post.attention.get();
            if attention != 0 && (attention & !(HUNGRY | LIMITS) != 0 || !nothing_forbids(fiber, front)) {
                return None;
            }
            // A raid that has come meanwhile may have shown the entry: the loop settles it.
            if !self.begins_to_touch(front) {
                return None;
            }
            self.list.unlink(front);
            let header = NonNull::from(front);
            if self.claim_private(header) {
                return Some(header);
            }
        }
    }
}
