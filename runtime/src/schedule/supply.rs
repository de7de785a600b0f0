//! What a runtime's workers do for the engine that drives their threads, and how the last of them leaves the runtime.
//!
//! # Who may leave, and when
//!
//! The engine asks [`Supply::may_stop`] of a worker that has been told to stop and has found nothing to do. Only workers that have nothing pinned to them leave.
//!
//! | the worker | leaves if | and from then on |
//! |---|---|---|
//! | is not the last | its mailbox of messages is abandoned while it is empty | a sender finds it abandoned, and does the work itself under a lock |
//! | is the last | no foreign thread runs a request of the runtime, no dependent is after a completion, the injector is closed while it is empty, and then its mailbox is abandoned while it is empty | a push of a root is refused, and its pusher ends the root; a sender ends what it would have left to a worker |
//!
//! # The races
//!
//! *A message to the last worker.* A thread that shuts the runtime down ends what had not begun. A destructor there may wait for another of those
//! requests, so the thread leaves the end of that one to a worker by a message. The worker may have found nothing to do just before. If it left without a look
//! at its mailbox, nobody would read the message before the shutdown returns, which waits for it. So the mailbox is abandoned under its lock: the message was sent before
//! and the worker stays, or its sender learns that nobody will read it.
//!
//! *Two workers that leave at once.* `Departure::leave_unless_last` lowers the count of workers by an exchange before the mailbox is abandoned. A worker that cannot abandon its mailbox raises it again and
//! stays. In between another worker may take itself for the last, close the injector, and leave. Then the worker that stays does what its
//! messages ask for, and leaves as the last.

use std::ptr;
use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_pool::{Signals, Supply};

use crate::cancel;
use crate::deadlock::{foreign_stacks, urgency};
use crate::record::arena;
use crate::schedule::worker::{HasWorkers, Next};
use crate::shared::Shared;

impl Shared {
    /// Closes everything that threads leave behind. By the thread that has joined them, with a count of the record.
    ///
    /// # Safety
    ///
    /// The workers' threads are gone.
    pub(crate) unsafe fn close(&self) {
        self.visits.await_none();
        self.departure.set_over();
        // What was submitted as the last worker left.
        cancel::abort_dependents(self);
        self.deadlines.close();
        // First: an error that goes below may wait for one of those.
        cancel::close_owner_mailboxes(self.workers().iter().map(|worker| worker.arena()));
        for worker in self.workers() {
            // What was left for a worker that had gone: all its requests are over.
            urgency::follow_raises(worker);
            for shared_queue in [&worker.post.shared_queue, &worker.post.held] {
                while let Some(entry) = shared_queue.pop(NO_KEY) {
                    // SAFETY: E1: the entry's link.
                    unsafe { arena::release(entry) };
                }
            }
            worker.drop_late();
            worker.give_back_first_stack();
            // SAFETY: by contract there is no other owner; arenas are open until closed here.
            unsafe { self.depot.close(ptr::NonNull::from(worker.arena())) };
        }
        self.depot.close_spare();
        foreign_stacks::unregister_runtime(self);
        // SAFETY: by contract no worker is left, and stacks are theirs.
        unsafe { self.slab.unmap() };
    }
}

impl Supply for Shared {
    type Task = Next;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, worker: usize) -> Option<Next> {
        let next = self.workers()[worker].pick();
        if next.is_some() {
            self.workers()[worker].found();
            self.workers()[worker].hands_watch_on();
        }
        next
    }

    fn steal(&self, worker: usize) -> Option<Next> {
        let next = self.workers()[worker].steal();
        if next.is_some() {
            self.workers()[worker].hands_watch_on();
        }
        next
    }

    fn best(&self, worker: usize) -> u64 {
        self.workers()[worker].best()
    }

    fn more(&self, worker: usize) -> bool {
        self.injector.key() != NO_KEY
            || self.workers()[worker].post.shared_queue.key() != NO_KEY
            || self.other_records(worker).any(|other| other.post.shared_queue.key() != NO_KEY)
            || self.worker_records().iter().any(|worker| worker.post.held.key() != NO_KEY)
            || self.workers()[worker].wants_a_watch()
    }

    fn before_sleep(&self, worker: usize) -> Option<Duration> {
        let worker = &self.workers()[worker];
        worker.note_time();
        worker.keep_time(worker.before_sleep())
    }

    fn after_sleep(&self, worker: usize) {
        let worker = &self.workers()[worker];
        worker.note_time();
        worker.ends_watch();
        // Another thread may have woken it for one of these.
        worker.arena().drain_returns();
    }

    fn may_stop(&self, worker: usize) -> bool {
        if !self.workers()[worker].is_drained() {
            return false;
        }
        // A worker that is not the last may leave: whatever was pinned to it has ended. The last one closes the injector.
        if self.departure.leave_unless_last() {
            // Other threads reach what is left of this worker by its messages only.
            if self.workers()[worker].arena().owner_mailbox.abandon() {
                return true;
            }
            // If the last worker has left meanwhile, all requests are over, and the messages concern none of them.
            self.departure.stay();
            return false;
        }
        // A request that a foreign thread runs may make more, and a cancel of it sends messages to the workers that are left. A completion makes its dependents
        // ready.
        if self.ending.has_foreign() {
            return false;
        }
        #[cfg(all(test, not(any(loom, shuttle))))]
        tests::about_to_leave();
        if !self.injector.close_if_empty() {
            return false;
        }
        #[cfg(not(mutant = "last_goes_without_a_look"))]
        if !self.workers()[worker].arena().owner_mailbox.abandon() {
            return false;
        }
        self.departure.set_over();
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
