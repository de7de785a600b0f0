//! Cancelling: marks, vetoes, demand, shields.
//!
//! # Vocabulary
//!
//! * **mark**: the bit that says *cancelled*. It is set once; see W10.
//! * **demand**: a waiter that is not marked itself, or is shielded ([`Bits::is_demand`]). Waiters are nodes in the list of waiters; the
//!   *lender*, on whose stack the request runs, is in no list, and the lent bit says that there is one. Watchers, and waiters that descend
//!   from the target, are in the list and are no demand.
//! * **veto**: a cancel that met demand. The word remembers it, and it takes effect when the last demand leaves.
//! * **to ask**: to cancel a request unless there is demand. `cancel` asks. So does a waiter that leaves because it is marked itself, and
//!   a lender that is marked. An *abort* does not ask.
//! * **to deliver**: to act on a mark: wake the stack if it is suspended, and cancel children and target.
//! * **shield**: a region of the request's own in which a mark is not delivered.
//!
//! # Which thread sets the mark
//!
//! | thread | when | how |
//! |---|---|---|
//! | the canceller, for itself or for a parent | there are neither waiters nor a lender, and the lock is free | one exchange |
//! | the canceller | its scan under the lock found no demand | in the unlock |
//! | the thread that aborts | always, unless the abort is refused | in the unlock, after the reason |
//! | the last waiter that leaves, or the lender | a veto is remembered, or this waiter asks | in the unlock |
//! | the one that drops the last handle of a new request | the lock is free | one exchange ([`super::counts`]) |
//!
//! Each of these exchanges also reads life, shield and claim:
//!
//! * The thread that marks an unstarted request claims it in the same exchange. Otherwise the request could be run *and* be ended.
//! * A request that is completing is not marked.
//! * A mark that is set within a shielded region is delivered by the region's end, and by no other thread.
//!
//! [`Cancel`] says to the canceller what is left to do.
//!
//! # Why no veto is lost
//!
//! A canceller writes the veto under the lock, after it has seen demand under the same lock. The demand is a waiter, which leaves
//! through [`Word::leave`], or a lender, which calls [`Word::lender_cancelled`]. Both take the lock later, so they see the veto and look for
//! demand in their turn. Demand that never leaves needs no veto: the request ends first.
//!
//! A scan may read a waiter's word just before that waiter is marked, and decide on a veto. That waiter has yet to leave, or the thread that
//! marked it has yet to ask the target on its behalf. Either takes the lock after this unlock. So it sees the veto, and every mark that was
//! set before an earlier holder of the lock asked. Therefore the scan reads words with relaxed loads.
//!
//! # What a scan may not do
//!
//! It runs under the lock bit. It runs no user code, does not allocate, and takes the lock of no other request. The same holds for the
//! closure that notes the reason, so the place for the reason is made before.

use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

/// What a scan under the lock finds in a list of waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It is empty.
    Nobody,
    /// There are waiters, and none is demand: they are marked themselves, only watch, or descend from the target.
    Idle,
    /// At least one is demand.
    Live,
}

/// The answer to a cancel, and what is left for the canceller to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Cancel {
    /// The request had not started. The caller has marked and claimed it, and has the runner's link. It drops the callable, calls the
    /// callbacks, and makes the request terminal with that link. The request's queue entry is stale.
    Ended,
    /// The request runs, and is marked now. The caller delivers the mark.
    Marked,
    /// The request is marked within a shielded region, whose end delivers the mark. The caller tells the arms of joins that the region does not shelter.
    MarkedShielded,
    /// There is demand, and the word remembers the veto. Nothing is left to do.
    Vetoed,
    /// The request was marked before. Nothing is left to do.
    AlreadyMarked,
    /// The request is completing or over. Nothing is left to do.
    TooLate,
    /// No thread has asked for a cancel. Nothing is left to do.
    Unasked,
}

impl Cancel {
    /// Whether the answer leaves something to do.
    pub fn leaves_work(self) -> bool {
        matches!(self, Cancel::Ended | Cancel::Marked | Cancel::MarkedShielded)
    }

    /// The answer if bits like these cannot be marked.
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

    /// The bits with the mark, and what is left to do. W10.
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

    /// The same, or a veto if there is demand: in the list, or a lender.
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
    /// Asks for a cancel. The caller has a handle or a link.
    ///
    /// `demand` scans the list of waiters. It is called under the lock, and only if there are waiters or a lender. This function
    /// notes no reason.
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

    /// Asks for a cancel on behalf of the parent, which was cancelled. The mark itself says so (W12), so there is no reason to note.
    /// `None`: there are waiters or a lender, or the lock is held, and nothing has been done.
    #[inline]
    pub fn cancel_inherited(&self) -> Option<Cancel> {
        self.inherit(0)
    }

    /// The same for a request in the caller's own private queue, with the answers of
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

    /// Asks as [`cancel`](Self::cancel) does, but always under the lock, so that `demand` may also note the reason (W12). It notes the reason
    /// whatever it answers: a remembered veto takes effect for the reason that was noted last.
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

    /// The same by a caller that knows whether the lender is demand: a lender that is marked is none, even before its mark is delivered.
    /// `lender_wants` is called under the lock, if there is a lender.
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

    /// Asks for a cancel of a request in the caller's own private queue, on behalf of its maker (W14).
    ///
    /// [`Cancel::Ended`]: the entry's link has become the runner's, so the caller takes the entry out of its queue. With any
    /// other answer the entry keeps its link: it is still queued, or stale.
    ///
    /// `demand` is as in [`cancel_locked`](Self::cancel_locked). It is not called if no thread could ask for the reason.
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

    /// Whether the private queue has the only reference to the request.
    #[inline]
    fn is_alone(&self) -> bool {
        mutant!(
            "private_cancelled_by_store",
            self.load().0 & !(COUNT << 16) == SPAWNED_DETACHED,
            self.load().0 == SPAWNED_DETACHED
        )
    }

    /// Cancels the request even if there is demand. `note` writes the reason under the lock; it is not called if the abort is refused.
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

    /// The lender, on whose stack this request runs, is marked, so it is no demand any more. If it `asks`, or a veto is remembered, this
    /// request is cancelled unless there is other demand. Called on the thread of that stack, while this request is on it. `demand` scans,
    /// and may note the reason; it is not called if the cancel is refused.
    pub fn lender_cancelled(&self, asks: bool, demand: impl FnOnce() -> Demand) -> Cancel {
        mutant!("lent_off_without_lock", {
            let before = Bits(self.0.fetch_and(!LENT, Ordering::AcqRel));
            return if before.has(WAITERS) { Cancel::Vetoed } else { self.cancel(demand) };
        });
        let Ok(locked) = self.lock() else { return Cancel::TooLate };
        // What refuses a mark now refuses it until the unlock, so there is no reason to note.
        let demand = if Cancel::refusal(locked).is_some() { Demand::Nobody } else { demand() };
        self.unlock_asking(LENT, asks, demand)
    }

    /// Opens the outermost shielded region. Called by the request itself. Returns whether the request was marked before, for
    /// [`unshield`](Self::unshield).
    pub fn shield(&self) -> bool {
        Bits(self.0.fetch_or(SHIELDED, Ordering::AcqRel)).has(MARKED)
    }

    /// Closes the region. True: the request was marked within it, so the caller delivers the mark.
    pub fn unshield(&self, marked_before: bool) -> bool {
        let marked = Bits(self.0.fetch_and(!SHIELDED, Ordering::AcqRel)).has(MARKED);
        let marked_before = mutant!("unshield_delivers_again", marked_before && !marked, marked_before);
        marked && !marked_before
    }

    /// Unlocks, and clears the flags `off`. If the caller asks for a cancel, or a veto is remembered, and there is no demand, the same exchange
    /// sets the mark.
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
