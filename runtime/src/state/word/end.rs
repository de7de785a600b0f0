//! From claimed to terminal.
//!
//! Without callbacks the end is one exchange: it fixes the outcome, takes the list of waiters for the finisher, folds the
//! runner's link in. It expects lock and callbacks off, which is one test.
//!
//! With callbacks the request is *completing* in between:
//!
//! ```text
//!   loop: try_finish ──▶ Ok: terminal, wake the waiters
//!              └──────▶ Err: complete, which takes a batch under the lock; call it without the lock; again
//! ```
//!
//! The first `complete` fixes the outcome: a cancel from then on is too late (W10, W11), so that every callback and every
//! waiter gets the same. A subscriber that comes before the terminal exchange is in some batch, since that exchange expects no
//! callbacks; who comes later finds the request terminal and calls by itself. Both are decided by one word, so there is no
//! moment between "no callback left" and "terminal" in which one could be lost.

use forebear_context::shim::{hint, mutant};

use super::Word;
use super::bits::*;

/// As what a request ends whose callable came to `life`, by these bits. One that is marked is cancelled if it has a value, or an
/// error that means a cancellation (`of_cancel`).
#[inline(always)]
pub fn outcome(life: u64, of_cancel: bool, bits: Bits) -> u64 {
    let of_cancel = mutant!("mark_is_not_looked_at", of_cancel && life != FAILED, of_cancel);
    match life {
        FINISHED | FAILED if bits.has(MARKED) && (of_cancel || life == FINISHED) => CANCELLED,
        life => life,
    }
}

impl Word {
    /// Goes terminal, folding in the runner's link if the finisher holds one. `Err`: there are callbacks; the caller calls
    /// them, having taken them by [`complete`](Self::complete), and tries again. Or `before` declined.
    ///
    /// Before each attempt `before` is called with the bits that are about to be exchanged. It drops the value if no
    /// thread can reach it any more: handles are 0, or the request is marked, and neither is ever undone. It returns
    /// with which life the request ends, *by these bits* (W11), or `None` if by these it does not end here. It may be
    /// called several times. Answers the bits before and after. The caller then owns the list of waiters if `WAITERS`
    /// was set.
    #[inline(always)]
    pub fn try_finish(
        &self,
        runner_link: bool,
        mut before: impl FnMut(Bits) -> Option<u64>,
    ) -> Result<(Bits, Bits), Bits> {
        let mut seen = self.load();
        #[cfg(mutant = "outcome_before_exchange")]
        let Some(first) = before(seen) else { return Err(seen) };
        loop {
            let busy = seen.0 & (LOCK | CALLBACKS);
            let busy = mutant!("finish_ignores_lock", busy & !LOCK, busy);
            let busy = mutant!("finish_ignores_callbacks", busy & !CALLBACKS, busy);
            // Looks for callbacks once, and not again after it has called some.
            let busy = mutant!(
                "completing_looks_once",
                busy & if seen.life() == COMPLETING { LOCK } else { !0 },
                busy
            );
            if busy != 0 {
                if busy & CALLBACKS != 0 {
                    return Err(seen);
                }
                hint::spin_loop();
                seen = self.load();
                continue;
            }
            let Some(life) = before(seen) else { return Err(seen) };
            #[cfg(mutant = "outcome_before_exchange")]
            let life = if life == first { life } else { first };
            let ended = seen.with_life(life).0 & !(WAITERS | LENT | VETOED | PRIVATE);
            let next = Bits(if runner_link { ended - LINK } else { ended });
            let swapped = mutant!(
                "terminal_release_only",
                {
                    use forebear_context::shim::atomic::Ordering;
                    self.0
                        .compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Acquire)
                        .map(drop)
                        .map_err(Bits)
                },
                self.swap_if(seen, next)
            );
            match swapped {
                Ok(()) => return Ok((seen, next)),
                Err(now) => seen = now,
            }
        }
    }

    /// [`try_finish`](Self::try_finish) of a request that nobody can subscribe to.
    #[inline]
    pub fn finish(&self, runner_link: bool, mut before: impl FnMut(Bits) -> u64) -> (Bits, Bits) {
        match self.try_finish(runner_link, |bits| Some(before(bits))) {
            Ok(ended) => ended,
            Err(bits) => subscribed(bits),
        }
    }

    /// Takes a batch of callbacks: `take` moves the list out, under the lock. By the claimer, whose callable has returned or
    /// has been dropped. From here on the request is completing; whether it is marked, by the bits that this answers, is
    /// its outcome for good.
    pub fn complete(&self, take: impl FnOnce()) -> Bits {
        let mut seen = self.load();
        loop {
            if seen.has(LOCK) {
                hint::spin_loop();
                seen = self.load();
                continue;
            }
            let next = Bits(seen.with_life(COMPLETING).0 & !CALLBACKS | LOCK);
            match self.swap_if(seen, next) {
                Ok(()) => break,
                Err(now) => seen = now,
            }
        }
        #[cfg(not(mutant = "batch_taken_after_unlock"))]
        take();
        let bits = self.unlock(|bits| bits);
        #[cfg(mutant = "batch_taken_after_unlock")]
        take();
        bits
    }
}

#[cold]
fn subscribed(bits: Bits) -> ! {
    unreachable!("somebody has subscribed to a request that has no subscribers: {bits:?}")
}
