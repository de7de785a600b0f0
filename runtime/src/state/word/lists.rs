//! The lock bit, and what it guards: waiters, callbacks, the reason of a cancel.
//!
//! One bit locks all three. It is held for a few loads and stores, by anybody, and never over user code or an allocation. It
//! cannot be taken any more once the request is terminal: then the waiters are the finisher's, the callbacks have been
//! called, and the reason is constant (W3, W12).
//!
//! The unlocking thread sets the flags in that exchange, by the fresh word and not by the one it locked (W9). Claims,
//! counts, the shield and the private bit may change while the lock is held. The parts that need the lock cannot
//! change: the lists with their two flags, the veto, the mark (W10), and life from `COMPLETING` on.

use forebear_context::shim::{hint, mutant};

use super::bits::*;
use super::{Cancel, Demand, Word};

impl Word {
    /// Takes the lock bit; `Err` if the request is terminal, when the lists are the finisher's (W3).
    #[inline]
    pub fn lock(&self) -> Result<Bits, Bits> {
        self.lock_unless(|bits| mutant!("lock_after_terminal", None, bits.is_terminal().then_some(bits)))
    }

    /// Takes the lock bit unless `refused` has an answer to the bits that it would be taken in. That must cover terminal.
    #[inline]
    pub(super) fn lock_unless<R>(&self, refused: impl Fn(Bits) -> Option<R>) -> Result<Bits, R> {
        let mut seen = self.load();
        loop {
            if let Some(answer) = refused(seen) {
                return Err(answer);
            }
            if seen.has(LOCK) {
                hint::spin_loop();
                seen = self.load();
                continue;
            }
            match self.swap_if(seen, Bits(seen.0 | LOCK)) {
                Ok(()) => return Ok(Bits(seen.0 | LOCK)),
                Err(now) => seen = now,
            }
        }
    }

    /// Whether anybody waits, by a read-modify-write: of this and a waiter that comes, one is first, and the other knows all that
    /// it knew. See [`forebear_context::context::edge`].
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        let seen = self.load();
        if seen.has(WAITERS) {
            return true;
        }
        mutant!("waiters_by_load", return false);
        if seen.0 >> 16 == LINK >> 16 {
            // No other thread knows of it, and none can learn of it but from this one.
            return false;
        }
        Bits(self.0.fetch_or(0, forebear_context::shim::atomic::Ordering::AcqRel)).has(WAITERS)
    }

    /// Clears the lock bit, together with what `decide` makes of the fresh word (W9).
    #[inline]
    pub fn unlock(&self, mut decide: impl FnMut(Bits) -> Bits) -> Bits {
        mutant!("unlock_remembered", {
            let b = self.load();
            forebear_context::shim::thread::yield_now();
            let next = Bits(decide(b).0 & !LOCK);
            self.0.store(next.0, forebear_context::shim::atomic::Ordering::Release);
            return next;
        });
        mutant!("unlock_relaxed", {
            use forebear_context::shim::atomic::Ordering;
            let mut next = |bits| decide(Bits(bits)).0 & !LOCK;
            let seen = self.0.fetch_update(Ordering::Relaxed, Ordering::Acquire, |bits| Some(next(bits)));
            return Bits(next(seen.unwrap_or_default()));
        });
        match self.update(|b| Some(Bits(decide(b).0 & !LOCK))) {
            Ok((_, next)) => next,
            Err(seen) => seen,
        }
    }

    /// A waiter that stands in the list goes: its time is up or, if it `asks`, it is cancelled itself.
    ///
    /// `unlink` takes its node out, under the lock, and says what is left in the list. Called with true it looks who counts, and
    /// may note the reason (W12): somebody has asked for a cancel. Called with false, anything but [`Demand::Nobody`] stands
    /// for a list that is not empty.
    ///
    /// If that was the last demand and a cancel is remembered, or the leaver asks, the target is cancelled in the unlock;
    /// see [`Cancel`] for what is left to do. `Err`: the target is terminal and its finisher has the node in hand, so the
    /// leaver waits to be let go of.
    pub fn leave(&self, asks: bool, unlink: impl FnOnce(bool) -> Demand) -> Result<Cancel, Bits> {
        let locked = self.lock()?;
        let asked = (asks || locked.has(VETOED)) && Cancel::refusal(locked).is_none();
        let left = unlink(asked);
        let off = if left == Demand::Nobody { WAITERS } else { 0 };
        #[cfg(mutant = "leaver_does_not_ask")]
        let asks = false;
        Ok(self.unlock_asking(off, asks, left))
    }

    /// Appends a callback, which `push` does under the lock. `Err`: the request is terminal; it is called on the spot, if
    /// the outcome fits.
    ///
    /// The one that calls it before the end is the finisher, also for one that comes while others are being called.
    pub fn subscribe(&self, push: impl FnOnce()) -> Result<(), Bits> {
        self.lock()?;
        push();
        self.unlock(|bits| Bits(bits.0 | CALLBACKS));
        Ok(())
    }
}
