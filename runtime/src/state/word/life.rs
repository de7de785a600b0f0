//! From new to claimed.
//!
//! A claim is an exchange that moves life to `CLAIMED`; who wins it runs the request, or ends it unrun. Where every count is
//! in the claimer's own hand a plain store does (W8), so that a request which its maker takes by value, or which nobody
//! knows of any more, is run without a single exchange. Each of these stores is allowed by a look at the *whole* word.
//!
//! A queue entry owns a link. Its claim makes that link the runner's; an entry whose request was claimed elsewhere, by a
//! waiter or by who cancelled it, is a *stale entry*, whose link the finder releases.
//!
//! A request held back by a pool has no entry: it is the pool's, and nobody but a canceller claims it. A waiter for it asks
//! the pool, and stands in its list; the pool admits it, or lets go of it, when it may be new again.

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

impl Word {
    /// New to queued, with the link of the queue entry that the caller pushes next, and `marks`: [`SUBMITTED`] unless a
    /// wait submits, [`PRIVATE`] if the entry goes to the maker's private queue. False: it was submitted before, or a pool
    /// holds it back, which learns that it was submitted.
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

    /// New to held back by a pool, with the pool's link. `note` says under the lock whose it is (W15). False: it was
    /// submitted before, or is another's.
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

    /// Held to queued, and `marks`: [`PRIVATE`] if the entry that is pushed next goes to the admitting worker's own list,
    /// else 0. The pool's link is that entry's. The holder of the lock may be about to read what is freed when the request is claimed
    /// ([`crate::state::open`]), so this waits until the lock is released. False: a stale entry, cancelled while it was held; the caller releases the link.
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

    /// The pool lets go of a request that it has held back and will not run: it is new again, and the pool's link is gone,
    /// which is not the last count. False: somebody waits for it or has submitted it, so it is to be admitted; or it is a
    /// stale entry.
    pub fn let_go(&self) -> bool {
        let mut seen = self.load();
        loop {
            let wanted = mutant!("let_go_of_the_wanted", SUBMITTED, SUBMITTED | WAITERS);
            if seen.life() != HELD || seen.0 & wanted != 0 {
                return false;
            }
            // The holder of the lock may be putting itself into the list, in the belief that a pool will see to it.
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

    /// Claim by the holder of a queue entry; its link becomes the runner's. False: a stale entry, whose link the caller
    /// releases.
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

    /// Claim by the completer of a request that has no code, and is held back until then; its link becomes the runner's. There is nothing to
    /// run, so it is completing at once, and a cancel comes too late from here on. False: it was cancelled.
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

    /// Claim by a waiter that lends its stack; it needs no link, since it borrows a handle. With `fold` the waiter is
    /// also the owner of the private queue that holds the entry, and takes the entry's link off in the same exchange.
    ///
    /// Answers the bits before, or `Err` with the bits that forbade it.
    #[inline]
    pub fn claim_by_waiter(&self, fold: bool) -> Result<Bits, Bits> {
        self.update(|b| {
            // Folding was decided by a look at the private bit; the look must still hold in the exchange.
            let still = !fold || b.has(PRIVATE);
            let held = mutant!("waiter_claims_held", false, b.life() == HELD);
            (b.is_unstarted() && !held && still).then(|| {
                let claimed = b.with_life(CLAIMED).0 & !PRIVATE | LENT;
                Bits(if fold { claimed - LINK } else { claimed })
            })
        })
        .map(|(before, _)| before)
    }

    /// The same, of one that stands nowhere yet: it is new. False: it is not.
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

    /// Claims an entry that the caller has just taken out of its own private queue, if nobody has a handle, without an exchange. False:
    /// nothing was done, and it is to be claimed as any entry.
    #[inline(always)]
    pub fn claim_detached(&self) -> bool {
        #[cfg(mutant = "plain_pop_with_handle")]
        if self.load().0 & !(COUNT << 16) == SPAWNED_DETACHED {
            // The handle lives elsewhere, and its owner claims by waiting.
            self.0.store(POPPED_SOLE, Ordering::Relaxed);
            return true;
        }
        if self.load().0 == SPAWNED_DETACHED {
            // W8: no handle is left, the one link is the list's, and nobody can make another out of nothing.
            self.0.store(POPPED_SOLE, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Claims without an exchange for the holder, by value, of the sole handle, if the entry stands in the caller's own
    /// private queue and nobody else knows of the request. The list's link is folded in. `touch` is called in between, and touches the entry
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

    /// Gives back, without an exchange, the sole handle of a request that stands in the caller's own private queue and
    /// that nobody else knows of, by a look at the word. `touch` touches the entry ([`crate::state::raid`]). False: nothing was done.
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

    /// After the run of a request claimed by [`claim_detached`](Self::claim_detached): whether nobody else knows of it, so
    /// that it need not go terminal at all.
    #[inline(always)]
    pub fn is_popped_sole(&self) -> bool {
        mutant!("popped_sole_by_handles", self.load().handles() == 0, self.load().0 == POPPED_SOLE)
    }

    /// After the run of a request claimed by [`claim_sole`](Self::claim_sole): whether still nobody else knows of it.
    #[inline(always)]
    pub fn is_still_sole(&self) -> bool {
        mutant!("no_closing_compare", true, self.load().0 == TAKEN_SOLE)
    }

    /// Takes the private bit off, and adds the link of a second entry, which the caller pushes to a shared queue: the entry that stands in the
    /// private queue stays there. By a raider ([`crate::state::raid`]). False: it has started, or others have shown it.
    pub fn raid(&self) -> bool {
        self.update(|b| (b.life() == QUEUED && b.has(PRIVATE)).then(|| Bits((b.0 & !PRIVATE) + LINK))).is_ok()
    }

    /// Takes the private bit off before the entry is pushed to a shared queue.
    #[inline]
    pub fn publish(&self) {
        mutant!("publish_by_store", {
            let b = self.load();
            self.0.store(b.0 & !PRIVATE, Ordering::Release);
            return;
        });
        // Nothing would tell the shared queue from the private queue.
        mutant!("publish_keeps_private", (), self.0.fetch_and(!PRIVATE, Ordering::AcqRel));
    }
}
