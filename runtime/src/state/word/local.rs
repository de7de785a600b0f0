//! Local requests: requests whose state is not in their word.
//!
//! An exchange decides between two threads that act at once. But most requests are made, submitted, waited for and dropped by one
//! worker, and no other thread acts on them. A `&Request` may be on another thread without a count, so the owner cannot exclude that by a plain
//! load. It can by a load with an asymmetric fence, for which the other side pays: see [`crate::state::asymmetric`].
//!
//! # Vocabulary
//!
//! * **owner**: the worker that made the request; the owner of its arena.
//! * **local request**: a request whose word says [`NEW_LOCAL`] from birth on. Its state is in a byte beside the word, which only
//!   the owner writes: listed, started, done.
//! * **to advance**: to write the next state to the byte, and then to read whether the word is still [`NEW_LOCAL`]. If so, the step holds.
//! * **to publish**: to write the state of the byte to the word. From then on all steps are exchanges on the word, for good.
//! * **to ask**: to have the state published by a thread that is not the owner. That is the *revoking thread*.
//!
//! # The race
//!
//! The owner writes the byte and reads the word. The revoking thread writes the word (`REVOKING`) and reads the byte. With the fence between, one of
//! them sees the other. An owner that sees no revocation continues, and the revoking thread sees the step. If both see each other, the revoking thread
//! decides: it marks the byte as it has read it, by an exchange, and then publishes that. The owner waits for
//! the word meanwhile. If it then finds its own step marked, the step holds. If not, the step does not hold, and the owner takes the slow way.
//!
//! The same holds for an owner that has given up local requests ([`LocalOwner`]), since each advance also reads whether it has. A thread that makes it give
//! up, and then fences once, has asked for all its local requests. Then the owner publishes by itself where it would advance.
//!
//! # Which thread need not ask
//!
//! The owner, and the thread that has the only handle *by value*. No code can borrow that handle, so no step is being taken, and the steps that were
//! taken are visible to the thread that has got the handle. (A local request has no other count: the thread that makes one publishes first.)
//!
//! # Invariants
//!
//! * **SE1** While the word has `LOCAL` it is `NEW_LOCAL`, with or without `REVOKING`. So there are one handle, no link, no mark, no
//!   list, and the lock is free.
//! * **SE2** The owner writes the byte, while the word is a local request's. The thread that has set `REVOKING` marks the byte, and it alone writes the
//!   word next.
//! * **SE3** A listed request is in the owner's private queue without a link; the link is added when the state is published. A done request has no
//!   children.

use forebear_context::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use forebear_context::shim::{hint, mutant, thread};

use super::Word;
use super::bits::*;
use crate::state::asymmetric;

/// The bits of the byte.
const LISTED: u8 = 1;
const STARTED: u8 = 2;
const DONE: u8 = 4;
/// The revoking thread has read this state.
const SEEN_SO: u8 = 8;

/// The owner reads a word under revocation so often before it gives up its time slice: a fence of all threads takes some 10 µs.
const LOOKS: u32 = 256;

/// A step that an owner may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// The request is submitted, and in the private queue.
    Listed = LISTED as isize,
    /// The request runs, on the stack of a waiter.
    Started = STARTED as isize,
    /// The request is over, with a value, and has no children.
    Done = DONE as isize,
}

/// The byte beside the word. Its meaning ends when the word is published.
#[derive(Debug)]
pub struct LocalState(AtomicU8);

/// The state that the owner has read, by which it decides about the next step.
#[derive(Clone, Copy, Debug)]
pub struct LocalStage(u8);

impl LocalStage {
    /// The request is new.
    #[inline(always)]
    pub fn is_new(self) -> bool {
        self.0 == 0
    }

    /// The request is listed, and has not started.
    #[inline(always)]
    pub fn is_listed(self) -> bool {
        self.0 == LISTED
    }
}

impl LocalState {
    /// The state of a new request.
    #[inline(always)]
    pub fn new() -> LocalState {
        LocalState(AtomicU8::new(0))
    }

    /// Whether this step was taken. Called by a thread that may read the byte: see the module head.
    #[inline(always)]
    pub fn is(&self, step: LocalStep) -> bool {
        self.0.load(Ordering::Relaxed) & step as u8 != 0
    }

    /// The state. Called by the owner.
    #[inline(always)]
    pub fn stage(&self) -> LocalStage {
        let byte = self.0.load(Ordering::Relaxed);
        // The revoking thread may have just marked the state before this step.
        LocalStage(mutant!("mark_taken_for_ones_own", byte, byte & !SEEN_SO))
    }
}

impl Default for LocalState {
    fn default() -> LocalState {
        LocalState::new()
    }
}

/// The word with the state of the byte.
fn published(byte: u8) -> Bits {
    let submitted = if byte & LISTED != 0 { SUBMITTED } else { 0 };
    Bits(match byte {
        _ if byte & DONE != 0 => FINISHED | submitted | HANDLE,
        _ if byte & STARTED != 0 => CLAIMED | LENT | submitted | HANDLE,
        _ if byte & LISTED != 0 => SPAWNED,
        _ => NEW | HANDLE,
    })
}

/// Whether the owner of an arena makes local requests.
///
/// A revocation is expensive for the revoking thread. So an owner whose local requests are often asked for makes no more of them, for good.
#[derive(Debug)]
pub struct LocalOwner {
    /// The word of the next request: [`NEW_LOCAL`], or new.
    births: AtomicU64,
    /// The owner has given up local requests, and all threads have passed a fence since.
    gave_up: AtomicBool,
    revocations: AtomicU32,
    patience: u32,
}

impl LocalOwner {
    /// An owner that makes local requests until so many have been asked for.
    pub fn new(patience: u32) -> LocalOwner {
        let births = if patience > 0 && asymmetric::is_available() { NEW_LOCAL } else { NEW | HANDLE };
        LocalOwner {
            births: AtomicU64::new(births),
            gave_up: AtomicBool::new(false),
            revocations: AtomicU32::new(0),
            patience,
        }
    }

    /// The word of a request that the owner makes now, and does not submit.
    #[inline(always)]
    pub fn birth(&self) -> u64 {
        self.births.load(Ordering::Relaxed)
    }

    /// As [`fence`](Self::fence), but not counted, since the caller did not need this request in particular.
    fn fence_uncounted(&self) {
        if !self.gave_up.load(Ordering::Acquire) {
            asymmetric::heavy();
        }
    }

    /// From here on the caller sees the steps of an owner that has not seen the caller's write.
    fn fence(&self) {
        if self.gave_up.load(Ordering::Acquire) {
            return;
        }
        let last = self.revocations.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == self.patience;
        // AS2: where the heavy fence is not available any more, one more is made. Several threads may be the last then, and each makes one.
        let last = last || !asymmetric::is_available();
        if last {
            self.births.store(NEW | HANDLE, Ordering::Relaxed);
        }
        #[cfg(mutant = "gives_up_before_the_fence")]
        if last {
            self.gave_up.store(true, Ordering::Release);
            thread::yield_now();
        }
        asymmetric::heavy();
        #[cfg(not(mutant = "gives_up_before_the_fence"))]
        if last {
            self.gave_up.store(true, Ordering::Release);
        }
    }
}

impl Word {
    /// Takes the next step of a request whose state the owner has read. Called by the owner, which has found the word to be [`NEW_LOCAL`] and may take
    /// this step. True: the step holds for all threads, whether or not the request is still local. False: it does not hold, and the word is
    /// published.
    #[inline(always)]
    pub fn advance_local(
        &self,
        local: &LocalState,
        local_owner: &LocalOwner,
        from: LocalStage,
        step: LocalStep,
    ) -> bool {
        let byte = from.0 | step as u8;
        // Release: the thread that publishes the step sees what was done before it.
        local.0.store(byte, mutant!("local_step_relaxed", Ordering::Relaxed, Ordering::Release));
        asymmetric::light();
        mutant!("local_step_unchecked", return true);
        #[cfg(mutant = "local_step_after_giving_up")]
        if self.load().0 == NEW_LOCAL {
            return true;
        }
        #[cfg(mutant = "new_taken_for_local")]
        if self.load().0 == local_owner.birth() {
            return true;
        }
        if self.load().0 == NEW_LOCAL && local_owner.birth() == NEW_LOCAL {
            return true;
        }
        self.revoked_meanwhile(local, byte)
    }

    /// The word when the revocation is over. The revoking thread may have lost its core, so this thread gives up its time slice now and then.
    fn after_revocation(&self, mut seen: Bits) -> Bits {
        let mut looks = 0;
        while seen.has(LOCAL) && seen.has(REVOKING) {
            looks += 1;
            if looks < LOOKS {
                hint::spin_loop()
            } else {
                thread::yield_now()
            }
            seen = self.load();
        }
        seen
    }

    #[cold]
    #[inline(never)]
    fn revoked_meanwhile(&self, local: &LocalState, byte: u8) -> bool {
        let mut seen = self.load();
        loop {
            seen = self.after_revocation(seen);
            if !seen.has(LOCAL) {
                // The revoking thread marked the byte before it wrote the word, which this thread has acquired.
                mutant!("revoked_counts_always", return true);
                return local.0.load(Ordering::Relaxed) == byte | SEEN_SO;
            }
            // This owner has given up local requests.
            match self.swap_if(seen, published(byte)) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Publishes the state, and adds `more` to the word in the same exchange. False: it was published before, and nothing was added. Called by the
    /// owner, or by the thread that has the only handle by value.
    #[cold]
    #[inline(never)]
    pub fn publish_state(&self, local: &LocalState, more: u64) -> bool {
        let mut seen = self.load();
        loop {
            seen = self.after_revocation(seen);
            if !seen.has(LOCAL) {
                return false;
            }
            let next = Bits(published(local.0.load(Ordering::Acquire)).0 + more);
            mutant!("published_by_store", {
                self.0.store(next.0, Ordering::Release);
                return true;
            });
            match self.swap_if(seen, next) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Drops the handle of a listed request that has not started. Called by the owner, which has the handle by value, so every count is the owner's
    /// (W8). `touch` accesses the entry, unless a raider has asked for it ([`crate::state::raid`]). False: nothing was
    /// done.
    #[inline]
    pub fn drop_listed(&self, local: &LocalState, touch: impl FnOnce() -> bool) -> bool {
        if local.0.load(Ordering::Relaxed) != LISTED || !touch() {
            return false;
        }
        self.0.store(SPAWNED_DETACHED, Ordering::Relaxed);
        true
    }

    /// Has the state published. Called by any thread.
    #[cold]
    #[inline(never)]
    pub fn revoke(&self, local: &LocalState, local_owner: &LocalOwner) {
        self.revoke_after(local, || local_owner.fence());
    }

    /// The same by a raider, which did not need this request in particular, so it is not counted.
    #[cold]
    pub fn revoke_for_raid(&self, local: &LocalState, local_owner: &LocalOwner) {
        self.revoke_after(local, || local_owner.fence_uncounted());
    }

    fn revoke_after(&self, local: &LocalState, fence: impl FnOnce()) {
        let mut seen = self.load();
        loop {
            seen = self.after_revocation(seen);
            if !seen.has(LOCAL) {
                return;
            }
            match self.swap_if(seen, Bits(seen.0 | REVOKING)) {
                Ok(()) => break,
                Err(now) => seen = now,
            }
        }
        fence();
        let byte = mutant!(
            "revoked_by_load",
            local.0.load(Ordering::Acquire),
            local.0.fetch_or(SEEN_SO, Ordering::AcqRel)
        );
        // SE2: no other thread writes it during a revocation.
        self.0.store(published(byte).0, Ordering::Release);
    }
}
