//! Cancelling: marks, vetoes, demand, shields.
//!
//! # Vocabulary
//!
//! * **mark**: the bit that says *cancelled*. It is set once; see W10.
//! * **demand**: who still waits for the request and is not marked itself, or is shielded ([`Bits::is_demand`]): nodes in
//!   the list of waiters, and the *lender* on whose stack it runs, which stands in no list and is known by the lent bit.
//!   Watchers, and waiters that descend from the target, stand in the list and do not count.
//! * **veto**: a cancel that met demand. It is remembered, and fires when the last demand goes.
//! * **to ask**: to want a request cancelled if there is no demand. `cancel` asks; so does a waiter that leaves because it
//!   is marked itself, and a lender that is marked. An *abort* does not ask.
//! * **to deliver**: to act on a mark: wake the stack if it is suspended, and spread to children and target.
//! * **shield**: a region of the request's own in which a mark is not delivered.
//!
//! # Who sets the mark
//!
//! | who | when | how |
//! |---|---|---|
//! | a cancel that finds neither waiters nor lender, asked for or inherited | nobody holds the lock | one exchange |
//! | a cancel that finds some | the scan under the lock found no demand | in the unlock |
//! | an abort | always, if not refused | in the unlock, after the reason |
//! | the last waiter to leave, the lender | a cancel is remembered, or they ask | in the unlock |
//! | the last handle of a new one | nobody holds the lock | one exchange ([`super::counts`]) |
//!
//! Each of them is an exchange that also sees life, shield and claim: an unstarted request is claimed by the one who marks
//! it (else it would run *and* be ended); one that is completing is left alone; and who marks within a shielded region
//! knows that the region's end delivers, and nobody else does. [`Cancel`] says to the canceller what is left to do.
//!
//! # Why no remembered cancel is lost
//!
//! The veto is written under the lock, by a thread that has seen live demand under the same lock. That demand is a node, whose owner
//! leaves through [`Word::leave`], or a lender, which goes through [`Word::lender_cancelled`]: both take the lock later,
//! hence see the veto, and look in their turn. Or it stays to the end, and then there was nothing to lose.
//!
//! A scan may read a waiter's word a moment before that waiter is marked, and veto. Then the waiter has still to leave, and
//! who marked it has still to ask the target on its behalf; either comes after this unlock, hence sees the veto, and sees
//! every mark that was set before an earlier holder of the lock asked. So a relaxed load will do.
//!
//! # What a scan may not do
//!
//! It runs under the lock bit: no user code, no allocation, nothing that takes the lock of another request. The same holds for
//! what notes the reason: the place for it is made before.

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

/// What stands in a list of waiters, as a scan under the lock finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It is empty.
    Nobody,
    /// Some, none of whom counts: they are marked themselves, only watch, or descend from the target.
    Idle,
    /// Somebody who counts.
    Live,
}

/// What became of a wish to cancel, and what it leaves its maker to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Cancel {
    /// It had not started. The caller has claimed it, marked, and holds the runner's link: drop the callable, call the
    /// callbacks, go terminal with that link. Its queue entry is stale.
    Ended,
    /// It runs, and is marked now: deliver.
    Marked,
    /// It is marked, within a shielded region, whose end delivers: nothing.
    MarkedShielded,
    /// There is demand. It is remembered: nothing.
    Vetoed,
    /// It was marked before: nothing.
    AlreadyMarked,
    /// It is completing or over: nothing.
    TooLate,
    /// Nobody has asked: nothing.
    Unasked,
}

impl Cancel {
    /// Why bits like these cannot be marked, if so.
    pub(super) fn refusal(bits: Bits) -> Option<Cancel> {
        let late = mutant!("marked_while_completing", FINISHED, COMPLETING);
        if bits.life() >= late {
            Some(Cancel::TooLate)
        } else if bits.has(MARKED) {
            Some(Cancel::AlreadyMarked)
        } else {
            None
        }
    }

    /// The bits with the mark on, and what that leaves to do. W10.
    fn mark(bits: Bits) -> (Bits, Cancel) {
        let marked = Bits(bits.0 & !VETOED | MARKED);
        if bits.is_unstarted() {
            (Bits((marked.with_life(CLAIMED).0 & !PRIVATE) + LINK), Cancel::Ended)
        } else if bits.has(SHIELDED) {
            (marked, Cancel::MarkedShielded)
        } else {
            (marked, Cancel::Marked)
        }
    }

    /// The same unless there is demand: by the list, or a lender.
    fn ask(bits: Bits, demand: Demand) -> (Bits, Cancel) {
        let bits = mutant!("lender_is_no_demand", Bits(bits.0 & !LENT), bits);
        if demand == Demand::Live || bits.has(LENT) {
            (Bits(bits.0 | VETOED), Cancel::Vetoed)
        } else {
            Cancel::mark(bits)
        }
    }
}

impl Word {
    /// Asks for a cancel, by a holder of a handle or a link.
    ///
    /// `demand` scans the list of waiters; it is called under the lock, and only if there are waiters or a lender. No reason
    /// is noted.
    pub fn cancel(&self, demand: impl FnOnce() -> Demand) -> Cancel {
        let mut seen = self.load();
        loop {
            if let Some(answer) = Cancel::refusal(seen) {
                return answer;
            }
            let some = mutant!("lender_is_no_demand", WAITERS, WAITERS | LENT);
            if seen.has(some) {
                mutant!("veto_without_lock", {
                    self.0.fetch_or(VETOED, Ordering::AcqRel);
                    return Cancel::Vetoed;
                });
                return self.cancel_locked(demand);
            }
            // The holder of the lock may be writing the reason (W12).
            #[cfg(not(mutant = "marked_past_the_lock"))]
            if seen.has(LOCK) {
                hint::spin_loop();
                seen = self.load();
                continue;
            }
            mutant!("mark_then_claim", {
                let before = Bits(self.0.fetch_or(MARKED, Ordering::AcqRel));
                if seen.is_unstarted() {
                    self.0.fetch_add(LINK, Ordering::Relaxed);
                    return Cancel::Ended;
                }
                return Cancel::mark(before).1;
            });
            let (next, answer) = Cancel::mark(seen);
            match self.swap_if(seen, next) {
                Ok(()) => return answer,
                Err(now) => seen = now,
            }
        }
    }

    /// Asks for a cancel because its parent was cancelled, which the mark says itself (W12), if there is nobody who could
    /// want the request. `None`: there are waiters or a lender, or somebody holds the lock, and nothing has been done.
    #[inline]
    pub fn cancel_inherited(&self) -> Option<Cancel> {
        self.inherit(0)
    }

    /// The same of a request that stands in the caller's own private queue, with the answers of
    /// [`cancel_private`](Self::cancel_private).
    #[inline(always)]
    pub fn cancel_private_inherited(&self) -> Option<Cancel> {
        if self.is_alone() {
            // W8.
            self.0.store(POPPED_SOLE | MARKED | INHERITED, Ordering::Relaxed);
            return Some(Cancel::Ended);
        }
        self.inherit_entry()
    }

    #[cold]
    #[inline(never)]
    fn inherit_entry(&self) -> Option<Cancel> {
        self.inherit(LINK)
    }

    /// `entry` is taken off with the claim of one that had not started.
    #[inline]
    fn inherit(&self, entry: u64) -> Option<Cancel> {
        let mut seen = self.load();
        loop {
            if let Some(answer) = Cancel::refusal(seen) {
                return Some(answer);
            }
            let some = WAITERS | LENT | LOCK;
            #[cfg(mutant = "inherited_past_demand")]
            let some = LOCK;
            #[cfg(mutant = "inherited_past_the_lock")]
            let some = WAITERS | LENT;
            if seen.has(some) {
                return None;
            }
            let (next, answer) = Cancel::mark(seen);
            #[cfg(not(mutant = "inherited_is_not_said"))]
            let next = Bits(next.0 | INHERITED);
            #[cfg(not(mutant = "inherited_keeps_the_entry"))]
            let next = if answer == Cancel::Ended { Bits(next.0 - entry) } else { next };
            match self.swap_if(seen, next) {
                Ok(()) => return Some(answer),
                Err(now) => seen = now,
            }
        }
    }

    /// Asks as [`cancel`](Self::cancel) does, always under the lock, so that `demand` may also note the reason (W12), whatever it then answers: a veto
    /// that is remembered fires for the reason noted last.
    pub fn cancel_locked(&self, demand: impl FnOnce() -> Demand) -> Cancel {
        let _locked = match self.lock_unless(Cancel::refusal) {
            Ok(locked) => locked,
            Err(answer) => return answer,
        };
        let demand = demand();
        #[cfg(mutant = "demand_decided_at_lock")]
        if Cancel::ask(_locked, demand).1 != Cancel::Vetoed {
            let mut answer = Cancel::Unasked;
            self.unlock(|bits| {
                let next;
                (next, answer) = Cancel::mark(bits);
                next
            });
            return answer;
        }
        self.unlock_asking(0, true, demand)
    }

    /// The same by one who can tell whether a lender still wants the request: a lender that is marked does not, though its mark has
    /// not been delivered yet. `lender_wants` is called under the lock, if there is a lender.
    pub fn cancel_lent(
        &self,
        lender_wants: impl FnOnce() -> bool,
        demand: impl FnOnce() -> Demand,
    ) -> Cancel {
        let locked = match self.lock_unless(Cancel::refusal) {
            Ok(locked) => locked,
            Err(answer) => return answer,
        };
        let wanted = mutant!("marked_lender_wants", true, !locked.has(LENT) || lender_wants());
        let off = if wanted { 0 } else { LENT };
        let demand = demand();
        self.unlock_asking(off, true, demand)
    }

    /// Asks for a cancel of a request that stands in the caller's own private queue, on behalf of its maker (W14).
    ///
    /// [`Cancel::Ended`]: the entry's link has become the runner's, so the caller takes the entry out of its list. With any
    /// other answer entry and link stay as they are: still queued, or a stale entry.
    ///
    /// `demand` is as in [`cancel_locked`](Self::cancel_locked), and not called if nobody could ask for the reason.
    pub fn cancel_private(&self, demand: impl FnOnce() -> Demand) -> Cancel {
        if self.is_alone() {
            // W8.
            self.0.store(POPPED_SOLE | MARKED, Ordering::Relaxed);
            return Cancel::Ended;
        }
        if let Err(answer) = self.lock_unless(Cancel::refusal) {
            return answer;
        }
        let demand = demand();
        let mut answer = Cancel::Unasked;
        self.unlock(|bits| {
            let next;
            (next, answer) = Cancel::ask(bits, demand);
            if answer == Cancel::Ended { Bits(next.0 - LINK) } else { next }
        });
        answer
    }

    /// Whether nobody knows of it but the private queue that it stands in.
    #[inline]
    fn is_alone(&self) -> bool {
        mutant!(
            "private_cancelled_by_store",
            self.load().0 & !(COUNT << 16) == SPAWNED_DETACHED,
            self.load().0 == SPAWNED_DETACHED
        )
    }

    /// Cancels it, even if others wait. `note` writes the reason, under the lock; it is not called if the abort is refused.
    pub fn abort(&self, note: impl FnOnce()) -> Cancel {
        #[cfg(mutant = "shield_seen_before_mark")]
        let shielded = self.load().0 & SHIELDED;
        if let Err(answer) = self.lock_unless(Cancel::refusal) {
            return answer;
        }
        #[cfg(not(mutant = "reason_after_mark"))]
        note();
        let mut answer = Cancel::Unasked;
        self.unlock(|bits| {
            #[cfg(mutant = "shield_seen_before_mark")]
            let (bits, shield) = (Bits(bits.0 & !SHIELDED | shielded), bits.0 & SHIELDED);
            let next;
            (next, answer) = Cancel::mark(bits);
            #[cfg(mutant = "shield_seen_before_mark")]
            let next = Bits(next.0 & !SHIELDED | shield);
            next
        });
        #[cfg(mutant = "reason_after_mark")]
        note();
        answer
    }

    /// The request on whose stack this one runs is marked: it is no demand any more, and if it `asks`, or a cancel is
    /// remembered, this one is cancelled unless there is other demand. On the thread of that stack, while this one is there.
    /// `demand` scans and may note the reason, unless the cancel is refused.
    pub fn lender_cancelled(&self, asks: bool, demand: impl FnOnce() -> Demand) -> Cancel {
        mutant!("lent_off_without_lock", {
            let before = Bits(self.0.fetch_and(!LENT, Ordering::AcqRel));
            return if before.has(WAITERS) { Cancel::Vetoed } else { self.cancel(demand) };
        });
        let Ok(locked) = self.lock() else { return Cancel::TooLate };
        // What refuses now refuses to the end of the lock, and then there is no reason to note.
        let demand = if Cancel::refusal(locked).is_some() { Demand::Nobody } else { demand() };
        self.unlock_asking(LENT, asks, demand)
    }

    /// Opens the outermost shielded region. By the request itself. Answers whether it was marked before, for
    /// [`unshield`](Self::unshield).
    pub fn shield(&self) -> bool {
        Bits(self.0.fetch_or(SHIELDED, Ordering::AcqRel)).has(MARKED)
    }

    /// Closes it. True: it was marked within the region, so this delivers.
    pub fn unshield(&self, marked_before: bool) -> bool {
        let marked = Bits(self.0.fetch_and(!SHIELDED, Ordering::AcqRel)).has(MARKED);
        let marked_before = mutant!("unshield_delivers_again", marked_before && !marked, marked_before);
        marked && !marked_before
    }

    /// Unlocks, with the flags `off` taken off, and cancels in the same exchange if somebody asks, or has asked before, and
    /// there is no demand.
    pub(super) fn unlock_asking(&self, off: u64, asks: bool, demand: Demand) -> Cancel {
        let mut answer = Cancel::Unasked;
        self.unlock(|bits| {
            let bits = Bits(bits.0 & !off);
            let asked = mutant!("leaver_ignores_veto", asks, asks || bits.has(VETOED));
            let next;
            (next, answer) = match Cancel::refusal(bits) {
                _ if !asked => (bits, Cancel::Unasked),
                Some(refusal) => (bits, refusal),
                None => Cancel::ask(bits, demand),
            };
            next
        });
        answer
    }
}
