//! The life of a request from new to claimed.
//!
//! A claim is an exchange that moves life to `CLAIMED`. The thread that wins it runs the request, or ends it unrun. Where the claimer has
//! every count of the request, a plain store claims it (W8). So a request that its maker takes by value, or of which only a private queue
//! has a reference, is run without an exchange. The claimer reads the *whole* word before each of these stores.
//!
//! A queue entry owns a link. The claim of an entry makes that link the runner's. An entry whose request a waiter or a canceller has claimed is a
//! *stale entry*: the thread that finds it releases its link.
//!
//! A request that a pool holds back has no queue entry. Only the pool, or a canceller, claims it. A waiter asks the pool for it, and enters
//! the request's list of waiters. The pool admits the request, or releases it, and then it may be new again.

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

impl Word {
    /// New to queued, with the link of the queue entry that the caller pushes next. `marks`: [`SUBMITTED`] unless a wait submits the
    /// request, [`PRIVATE`] if the caller pushes the entry to the maker's private queue. False: the request was submitted before, or a pool
    /// holds it back; the word then tells the pool that it was submitted.
    #[inline]
    pub fn submit(&self, marks: u64) -> bool {
        let updated = self.update(|b| match b.life() {
            NEW => Some(Bits((b.with_life(QUEUED).0 | marks) + LINK)),
            #[cfg(not(mutant = "held_submit_forgotten"))]
            HELD if !b.has(SUBMITTED) && marks & SUBMITTED != 0 => Some(Bits(b.0 | SUBMITTED)),
            _ => None,
        });
        updated.is_ok_and(|(before, _)| before.life() == NEW)
    }

    /// New to held back by a pool, with the pool's link. `note` writes under the lock which pool it is (W15). False: the request was
    /// submitted before, or another pool holds it back.
    pub fn hold(&self, note: impl FnOnce()) -> bool {
        if self.lock_unless(|b| (b.life() != NEW).then_some(())).is_err() {
            return false;
        }
        note();
        let mut held = false;
        self.unlock(|b| {
            let claimed = mutant!("hold_after_claim", false, b.life() != NEW);
            held = !claimed;
            if held { Bits(b.with_life(HELD).0 + LINK) } else { b }
        });
        held
    }

    /// Held to queued. `marks`: [`PRIVATE`] if the caller pushes the entry to its own private queue, else 0. The pool's link becomes that
    /// entry's. The holder of the lock may be about to read memory that the claimer frees ([`crate::state::open`]), so this function waits
    /// until the lock is released. False: the request was cancelled while it was held back; the caller releases the link.
    pub fn admit(&self, marks: u64) -> bool {
        mutant!("admit_by_store", {
            let b = self.load();
            if b.life() == HELD {
                self.0.store(b.with_life(QUEUED).0 | marks, Ordering::Release);
            }
            return b.life() == HELD;
        });
        let mut seen = self.load();
        while seen.life() == HELD {
            #[cfg(not(mutant = "admitted_past_the_lock"))]
            if seen.has(LOCK) {
                hint::spin_loop();
                seen = self.load();
                continue;
            }
            match self.swap_if(seen, Bits(seen.with_life(QUEUED).0 | marks)) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The pool releases a request that it has held back and will not run. The request is new again, and the pool's link is released, which is
    /// not the last count. False: the request has waiters or was submitted, so the pool has to admit it; or it was cancelled.
    pub fn let_go(&self) -> bool {
        let mut seen = self.load();
        loop {
            let wanted = mutant!("let_go_of_the_wanted", SUBMITTED, SUBMITTED | WAITERS);
            if seen.life() != HELD || seen.0 & wanted != 0 {
                return false;
            }
            // The holder of the lock may be entering the list of waiters, and then relies on the pool to admit the request.
            #[cfg(not(mutant = "let_go_past_the_lock"))]
            if seen.has(LOCK) {
                forebear_context::shim::hint::spin_loop();
                seen = self.load();
                continue;
            }
            match self.swap_if(seen, Bits(seen.with_life(NEW).0 - LINK)) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Claim by the holder of a queue entry, whose link becomes the runner's. False: the entry is stale, and the caller releases its
    /// link.
    #[inline]
    pub fn claim_by_queue(&self) -> bool {
        mutant!("claim_by_store", {
            // Both claimers see it queued, and both win.
            let b = self.load();
            if b.is_unstarted() {
                self.0.store(b.with_life(CLAIMED).0 & !PRIVATE, Ordering::Release);
                return true;
            }
            return false;
        });
        self.update(|b| b.is_unstarted().then(|| Bits(b.with_life(CLAIMED).0 & !PRIVATE))).is_ok()
    }

    /// Claim by the completer of a request without code, which is held back until then. The completer's link becomes the runner's. There is
    /// nothing to run, so the request is completing at once, and a later cancel is too late. False: the request was cancelled.
    pub fn claim_by_completer(&self) -> bool {
        mutant!("completed_by_store", {
            let b = self.load();
            if b.life() == HELD {
                self.0.store(b.with_life(COMPLETING).0, Ordering::Release);
            }
            return b.life() == HELD;
        });
        let life = mutant!("completed_as_claimed", CLAIMED, COMPLETING);
        self.update(|b| (b.life() == HELD).then(|| b.with_life(life))).is_ok()
    }

    /// Claim by a waiter that lends its stack. The waiter needs no link, since it borrows a handle. With `fold` the waiter is also the owner
    /// of the private queue that has the entry, and the same exchange releases the entry's link.
    ///
    /// Returns the bits before, or `Err` with the bits that forbade the claim.
    #[inline]
    pub fn claim_by_waiter(&self, fold: bool) -> Result<Bits, Bits> {
        self.update(|b| {
            // The caller chose `fold` by the private bit, which must still be set in the exchange.
            let still = !fold || b.has(PRIVATE);
            let held = mutant!("waiter_claims_held", false, b.life() == HELD);
            (b.is_unstarted() && !held && still).then(|| {
                let claimed = b.with_life(CLAIMED).0 & !PRIVATE | LENT;
                Bits(if fold { claimed - LINK } else { claimed })
            })
        })
        .map(|(before, _)| before)
    }

    /// The same for a new request, which is in no queue. False: it is not new.
    #[inline]
    pub fn claim_new(&self) -> bool {
        mutant!("new_claimed_by_store", {
            let b = self.load();
            if b.life() == NEW {
                self.0.store(b.with_life(CLAIMED).0 | LENT, Ordering::Release);
            }
            return b.life() == NEW;
        });
        self.update(|b| (b.life() == NEW).then(|| Bits(b.with_life(CLAIMED).0 | LENT))).is_ok()
    }

    /// Claims, without an exchange, an entry that the caller has just taken out of its own private queue, if the request has no handle. False:
    /// nothing was done, and the caller claims the entry by an exchange.
    #[inline(always)]
    pub fn claim_detached(&self) -> bool {
        #[cfg(mutant = "plain_pop_with_handle")]
        if self.load().0 & !(COUNT << 16) == SPAWNED_DETACHED {
            // Another thread may have the handle, and claim the request in a wait.
            self.0.store(POPPED_SOLE, Ordering::Relaxed);
            return true;
        }
        if self.load().0 == SPAWNED_DETACHED {
            // W8: no handle is left, and the one link is the queue's, so no thread can make another.
            self.0.store(POPPED_SOLE, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Claims without an exchange for the caller, which has the only handle by value, if the entry is in the caller's own private queue and
    /// there is no other reference. Releases the queue's link in the same store. `touch` is called in between, and touches the entry
    /// ([`crate::state::raid`]).
    #[inline(always)]
    pub fn claim_sole(&self, touch: impl FnOnce() -> bool) -> bool {
        // Acquire: an untyped handle that is gone by now did its last reads before this.
        let bits = self.load().0;
        let bits = mutant!("sole_ignores_links", bits & (LINK - 1) | LINK, bits);
        if bits != SPAWNED || !touch() {
            return false;
        }
        // W8, RD1: the bits are still these.
        self.0.store(TAKEN_SOLE, Ordering::Relaxed);
        true
    }

    /// Drops, without an exchange, the only handle of a request in the caller's own private queue, if `seen` shows no other reference. `touch`
    /// touches the entry ([`crate::state::raid`]). False: nothing was done.
    #[inline(always)]
    pub fn drop_sole(&self, seen: Bits, touch: impl FnOnce() -> bool) -> bool {
        let bits = seen.0;
        let bits = mutant!("sole_drop_ignores_links", bits & (LINK - 1) | LINK, bits);
        if bits != SPAWNED || !touch() {
            return false;
        }
        // W8, RD1: by value, and the list's link is in the caller's own list.
        self.0.store(SPAWNED_DETACHED, Ordering::Relaxed);
        true
    }

    /// After the run of a request that [`claim_detached`](Self::claim_detached) has claimed: whether there is no other reference, so
    /// that the request need not become terminal.
    #[inline(always)]
    pub fn is_popped_sole(&self) -> bool {
        mutant!("popped_sole_by_handles", self.load().handles() == 0, self.load().0 == POPPED_SOLE)
    }

    /// After the run of a request that [`claim_sole`](Self::claim_sole) has claimed: whether there is still no other reference.
    #[inline(always)]
    pub fn is_still_sole(&self) -> bool {
        mutant!("no_closing_compare", true, self.load().0 == TAKEN_SOLE)
    }

    /// Clears the private bit, and adds the link of a second entry, which the caller pushes to a shared queue. The entry in the private queue
    /// stays there. Called by a raider ([`crate::state::raid`]). False: the request has started, or another raider has published it.
    pub fn raid(&self) -> bool {
        self.update(|b| (b.life() == QUEUED && b.has(PRIVATE)).then(|| Bits((b.0 & !PRIVATE) + LINK))).is_ok()
    }

    /// Clears the private bit before the caller pushes the entry to a shared queue.
    #[inline]
    pub fn publish(&self) {
        mutant!("publish_by_store", {
            let b = self.load();
            self.0.store(b.0 & !PRIVATE, Ordering::Release);
            return;
        });
        // Without this no bit would say which of the two queues has the entry.
        mutant!("publish_keeps_private", (), self.0.fetch_and(!PRIVATE, Ordering::AcqRel));
    }
}
