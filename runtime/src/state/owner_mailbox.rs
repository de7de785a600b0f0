//! The mailbox: where messages for the owner of one arena lie, and which thread reads them.
//!
//! # The race, and the argument
//!
//! The owner reads the flag without the lock, and must see the message of a thread that has notified it. So a sender
//! first stores the message, then raises the flag, then notifies the owner. It notifies a worker by a bit of its
//! attention word, which the worker clears before it reads. It nudges a foreign thread, which reads before it blocks
//! again. The owner lowers the flag under the lock, when it takes the messages. If it lowered the flag later, a message
//! sent meanwhile would stay unseen.
//!
//! A foreign thread that runs nothing of an arena does not read the mailbox, nor does a worker that has left. Both stop
//! under the lock, and read what is there. So a message is either in time and is read, or its sender learns that no
//! owner will read it.

use std::mem;
use std::ptr::NonNull;
use std::sync::PoisonError;

use forebear_context::context::{Context, ForeignContext};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, MutexGuard, mutant};

use crate::state::attention::{Attention, MESSAGE};

/// See the module head.
pub struct OwnerMailbox<N> {
    list: Mutex<Contents<N>>,
    /// Whether there are any: a look without the lock.
    any: AtomicBool,
    /// Whether its worker has gone. Set under the lock, and never taken back.
    abandoned: AtomicBool,
}

struct Contents<N> {
    messages: Vec<N>,
    runs: Option<NonNull<Context>>,
}

// SAFETY: the context is nudged only, under the lock (O2).
unsafe impl<N: Send> Send for Contents<N> {}

impl<N> Default for OwnerMailbox<N> {
    fn default() -> Self {
        OwnerMailbox {
            list: Mutex::new(Contents { messages: Vec::new(), runs: None }),
            any: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }
}

impl<N> OwnerMailbox<N> {
    fn lock(&self) -> MutexGuard<'_, Contents<N>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing to read. By the owner.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The same by a worker, whose bit goes down.
    pub fn is_cleared(&self, attention: &Attention) -> bool {
        mutant!("message_cleared_late", {
            let empty = self.is_empty();
            attention.clear(MESSAGE);
            return empty;
        });
        attention.clear(MESSAGE);
        self.is_empty()
    }

    /// Takes all messages; their links are the caller's (O1). By the owner.
    pub fn take(&self) -> Vec<N> {
        let mut contents = self.lock();
        mutant!("mailbox_emptied_after_unlock", (), self.any.store(false, Ordering::Relaxed));
        let taken = mem::take(&mut contents.messages);
        mutant!("mailbox_emptied_after_unlock", {
            drop(contents);
            self.any.store(false, Ordering::Relaxed);
        });
        taken
    }

    /// Sends a message, and nudges the foreign thread that runs something here. The caller notifies a worker afterwards.
    /// Gives it back if nobody will read it: the arena `is_foreign`, and what ran there is over, or its worker has gone.
    pub fn send(&self, message: N, is_foreign: bool) -> Result<(), N> {
        let mut contents = self.lock();
        #[cfg(not(mutant = "left_for_nobody"))]
        if (is_foreign && contents.runs.is_none()) || self.is_abandoned() {
            return Err(message);
        }
        let _ = is_foreign;
        mutant!("nudged_before_it_is_sent", {
            let runs = contents.runs;
            drop(contents);
            if let Some(context) = runs {
                // SAFETY: O2.
                unsafe { ForeignContext::nudge(context) };
            }
            contents = self.lock();
        });
        contents.messages.push(message);
        self.any.store(true, Ordering::Relaxed);
        #[cfg(not(mutant = "nudged_before_it_is_sent"))]
        if let Some(context) = contents.runs {
            // SAFETY: O2.
            unsafe { ForeignContext::nudge(context) };
        }
        Ok(())
    }

    /// Whether this is a worker's, and it has gone.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// A worker goes for good. False: there are messages to read first. By the owner (O3).
    pub fn abandon(&self) -> bool {
        let contents = self.lock();
        #[cfg(not(mutant = "goes_without_a_look"))]
        if !contents.messages.is_empty() {
            return false;
        }
        self.abandoned.store(true, Ordering::Relaxed);
        drop(contents);
        true
    }

    /// The worker's thread has gone: takes what is left, and nothing comes any more (O3). The links are the caller's.
    pub fn close(&self) -> Vec<N> {
        let mut contents = self.lock();
        self.abandoned.store(true, Ordering::Relaxed);
        mem::take(&mut contents.messages)
    }

    /// A foreign thread begins to run a request here: from now on a message nudges it. Answers whom it nudged before.
    ///
    /// # Safety
    ///
    /// O2: `context` is a `ForeignContext`'s, and the caller takes this back, by another call, before it goes.
    pub unsafe fn begin_run(&self, context: Option<NonNull<Context>>) -> Option<NonNull<Context>> {
        mem::replace(&mut self.lock().runs, context)
    }

    /// Raises the flag without a message, so that the owner reads everything at its next check. Nudges an owner that is a foreign thread and runs a request.
    pub fn stir(&self) {
        let contents = self.lock();
        self.any.store(true, Ordering::Relaxed);
        if let Some(context) = contents.runs {
            // SAFETY: O2.
            unsafe { ForeignContext::nudge(context) };
        }
    }

    /// Calls `with` with the context of the foreign thread that runs a request here, if one does. That thread does not stop
    /// running requests here before `with` has returned.
    pub fn with_running(&self, with: impl FnOnce(NonNull<Context>)) {
        let contents = self.lock();
        if let Some(context) = contents.runs {
            with(context);
        }
    }

    /// The foreign thread has run its request. From now on a message nudges `before`, the context that it nudged before that run. False: there are
    /// messages to read first.
    ///
    /// # Safety
    ///
    /// As [`begin_run`](Self::begin_run).
    pub unsafe fn end_run(&self, before: Option<NonNull<Context>>) -> bool {
        let mut contents = self.lock();
        #[cfg(not(mutant = "rests_without_a_look"))]
        if !contents.messages.is_empty() {
            return false;
        }
        contents.runs = before;
        true
    }
}

impl<N> std::fmt::Debug for OwnerMailbox<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnerMailbox").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}
