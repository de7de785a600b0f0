//! Local requests: what becomes of a request without its word saying so.
//!
//! An exchange is there to decide between two who come at once. But what a request makes, submits, waits for and drops is mostly its own
//! affair, and nobody else ever comes. A `&Request` may be on another thread without a count, so no plain look can exclude it. What can is a
//! look on whose other side somebody pays: see [`crate::state::asymmetric`].
//!
//! # Vocabulary
//!
//! * **owner**: the worker that made the request; the owner of its arena.
//! * **local request**: the word says [`NEW_LOCAL`] from birth on, and what has become of the request stands in a byte beside it, written by
//!   the owner alone: listed, started, done.
//! * **to advance**: to write there what is about to be, and look whether the word still is a local one's. If so, it is so.
//! * **to publish**: to make the word say what the byte says. From then on it goes by exchanges, for good.
//! * **to ask**: to have it published by one who is not the owner.
//!
//! # The race
//!
//! The owner writes the byte and looks at the word; the revoking thread writes the word (`REVOKING`) and looks at the byte. With the fence between, one of them
//! sees the other: an owner that sees nothing goes on, and what it has advanced is seen. If both see each other, the revoking thread
//! decides: it marks the byte as it has seen it, by an exchange, and then publishes that. The owner, which waits for
//! the word meanwhile, finds its byte marked, and then it is so; or not, and then it is not, and it goes the long way.
//!
//! The same holds for an owner that has given up ([`LocalOwner`]): it looks whether its births are local requests, too, so who makes it give
//! them up, and then fences once, has asked for all its local requests. Then the owner publishes by itself what it would advance.
//!
//! # Who need not ask
//!
//! The owner; and the thread that has the sole handle *by value*: nobody can be borrowing it, so nothing is being advanced, and what
//! was advanced came with the handle. (A local request has no other count: who makes one, publishes.)
//!
//! # Invariants
//!
//! * **SE1** While the word has `LOCAL` it is `NEW_LOCAL`, but for `REVOKING`. So there are one handle, no link, no mark, no
//!   list, and nobody holds the lock.
//! * **SE2** The byte is written by the owner, while the word is a local one's; and marked by the thread that has set `REVOKING`, which alone writes the word next.
//! * **SE3** What is listed stands in the owner's private queue without a link; that comes when it is published. What is done has no children.

use forebear_context::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use forebear_context::shim::{hint, mutant, thread};

use super::Word;
use super::bits::*;
use crate::state::asymmetric;

/// What stands in the byte, by bits.
const LISTED: u8 = 1;
const STARTED: u8 = 2;
const DONE: u8 = 4;
/// Who asked has seen it so.
const SEEN_SO: u8 = 8;

/// So many looks at a word that is asked for, before the time slice is given up: a fence of all threads takes some 10 µs.
const LOOKS: u32 = 256;

/// What an owner may advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalStep {
    /// It stands in the private queue, submitted.
    Listed = LISTED as isize,
    /// It runs, on the stack of a waiter.
    Started = STARTED as isize,
    /// It is over, with a value, and has no children.
    Done = DONE as isize,
}

/// The byte beside the word. Its meaning ends when the word is published.
#[derive(Debug)]
pub struct LocalState(AtomicU8);

/// What its owner has read there, to decide about the next step by.
#[derive(Clone, Copy, Debug)]
pub struct LocalStage(u8);

impl LocalStage {
    /// Nothing has become of it.
    #[inline(always)]
    pub fn is_new(self) -> bool {
        self.0 == 0
    }

    /// It is listed, and no more.
    #[inline(always)]
    pub fn is_listed(self) -> bool {
        self.0 == LISTED
    }
}

impl LocalState {
    /// Nothing has become of it.
    #[inline(always)]
    pub fn new() -> LocalState {
        LocalState(AtomicU8::new(0))
    }

    /// Whether this was advanced. By who may read it: see the module head.
    #[inline(always)]
    pub fn is(&self, step: LocalStep) -> bool {
        self.0.load(Ordering::Relaxed) & step as u8 != 0
    }

    /// What was advanced. By the owner.
    #[inline(always)]
    pub fn stage(&self) -> LocalStage {
        let byte = self.0.load(Ordering::Relaxed);
        // The revoking thread this moment may have marked what stood there before.
        LocalStage(mutant!("mark_taken_for_ones_own", byte, byte & !SEEN_SO))
    }
}

impl Default for LocalState {
    fn default() -> LocalState {
        LocalState::new()
    }
}

/// The word that says what the byte says.
fn published(byte: u8) -> Bits {
    let submitted = if byte & LISTED != 0 { SUBMITTED } else { 0 };
    Bits(match byte {
        _ if byte & DONE != 0 => FINISHED | submitted | HANDLE,
        _ if byte & STARTED != 0 => CLAIMED | LENT | submitted | HANDLE,
        _ if byte & LISTED != 0 => SPAWNED,
        _ => NEW | HANDLE,
    })
}

/// What an arena knows of its owner as an owner: whether its births are local requests.
///
/// To be asked costs the one the revoking thread dear, so an owner whose local requests are asked for gives them up, for good.
#[derive(Debug)]
pub struct LocalOwner {
    /// The word of a birth: [`NEW_LOCAL`], or new.
    births: AtomicU64,
    /// It has given them up, and everybody has fenced since.
    gave_up: AtomicBool,
    revocations: AtomicU32,
    patience: u32,
}

impl LocalOwner {
    /// One that keeps local requests until so many have been asked for.
    pub fn new(patience: u32) -> LocalOwner {
        let births = if patience > 0 && asymmetric::is_available() { NEW_LOCAL } else { NEW | HANDLE };
        LocalOwner {
            births: AtomicU64::new(births),
            gave_up: AtomicBool::new(false),
            revocations: AtomicU32::new(0),
            patience,
        }
    }

    /// The word of a request that it makes now, and does not submit.
    #[inline(always)]
    pub fn birth(&self) -> u64 {
        self.births.load(Ordering::Relaxed)
    }

    /// As [`fence`](Self::fence), by one whose asking says nothing of the owner's habits.
    fn fence_uncounted(&self) {
        if !self.gave_up.load(Ordering::Acquire) {
            asymmetric::heavy();
        }
    }

    /// From here on the caller sees what was advanced by an owner that has not seen what the caller has written.
    fn fence(&self) {
        if self.gave_up.load(Ordering::Acquire) {
            return;
        }
        let last = self.revocations.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == self.patience;
        // AS2: where the fence has become dear it is paid once more. Several may be the last then, and each pays.
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
    /// Advances the next step of a request, of which the owner has read that it stands so far. By its owner, which has found the word to be
    /// [`NEW_LOCAL`] and may take this step by what is known to it. True: it is so, for everybody, whether the word is a local one's still or not. False: it is not, and the word is published.
    #[inline(always)]
    pub fn advance_local(
        &self,
        local: &LocalState,
        local_owner: &LocalOwner,
        from: LocalStage,
        step: LocalStep,
    ) -> bool {
        let byte = from.0 | step as u8;
        // Release: what was done before is seen by who publishes it.
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

    /// The word when nobody asks for it any more. The revoking thread may have lost its core in the middle, which is then given to it.
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
                // Who asked marked the byte before it wrote the word, which was acquired.
                mutant!("revoked_counts_always", return true);
                return local.0.load(Ordering::Relaxed) == byte | SEEN_SO;
            }
            // It is the owner that has given up.
            match self.swap_if(seen, published(byte)) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Publishes it, and adds `more` to the word in the same exchange, unless it was published before: then this answers false, and nothing was added. By the
    /// owner, or the thread that has the sole handle by value.
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

    /// Gives back the handle of what is listed and no more, by the owner, which has it by value: so every count is the owner's (W8). `touch`
    /// touches the entry, or a raider asks for it ([`crate::state::raid`]). False: nothing was done.
    #[inline]
    pub fn drop_listed(&self, local: &LocalState, touch: impl FnOnce() -> bool) -> bool {
        if local.0.load(Ordering::Relaxed) != LISTED || !touch() {
            return false;
        }
        self.0.store(SPAWNED_DETACHED, Ordering::Relaxed);
        true
    }

    /// Has it published, by anybody.
    #[cold]
    #[inline(never)]
    pub fn revoke(&self, local: &LocalState, local_owner: &LocalOwner) {
        self.revoke_after(local, || local_owner.fence());
    }

    /// The same by a raider: nobody wanted this request in particular, so it is not counted.
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
        // SE2: nobody else writes it while it is asked for.
        self.0.store(published(byte).0, Ordering::Release);
    }
}
