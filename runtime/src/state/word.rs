//! The request word: one 64-bit atomic with the state of a request, and the counts of its references.
//!
//! | file | about |
//! |---|---|
//! | [`bits`] | the fields, and a reading of them |
//! | [`life`] | from new to claimed, with and without an exchange |
//! | [`end`] | from claimed to terminal, through the callbacks if there are any |
//! | [`lists`] | the lock bit, waiters that leave, subscribers |
//! | [`cancel`] | marks, vetoes, demand, shields |
//! | [`counts`] | handles and links |
//! | [`local`] | the state that its maker keeps elsewhere, without exchanges, until another thread asks for it |
//!
//! # Layout
//!
//! | bits | field | meaning | written by |
//! |---|---|---|---|
//! | 0–2 | life | `NEW` 0, `HELD` 1 (back by a pool, or until it is completed), `QUEUED` 2, `CLAIMED` 3, `COMPLETING` 4, `FINISHED` 5, `FAILED` 6, `CANCELLED` 7. They ascend, except that a pool may release a request that it held back: unstarted is ≤ 2, terminal is ≥ 5 | up to 2 the thread that wins, from 3 on the claimer |
//! | 3 | marked | cancelled | see W10 |
//! | 4 | vetoed | demand has refused a cancel, which is remembered | holder of the lock; cleared with the mark, and at terminal |
//! | 5 | shielded | the outermost shielded region is open | the request itself |
//! | 6 | submitted | by other than a wait | submitter, or at birth |
//! | 7 | waiters | the list of waiters is not empty | holder of the lock; off at terminal |
//! | 8 | lock | guards the lists of waiters and callbacks and the reason of a cancel; held for a few loads and stores, never over user code | any thread while life < 5 |
//! | 9 | callbacks | the list of callbacks is not empty; or, from birth, a deadline is to be taken back at the end | holder of the lock |
//! | 10 | seen | a handle has read the failure | a holder of a handle |
//! | 11 | inherited | the request is marked because its parent was cancelled | set with the mark, in the same exchange |
//! | 12 | private | the entry is in the private queue of the worker that made the request | that worker; cleared by every claim |
//! | 13 | lent | the request runs on a waiter's stack: that waiter is demand, though in no list | set by the claim; cleared by the holder of the lock, or at terminal |
//! | 14 | local request | the maker's worker writes the state elsewhere, see [`local`]; the other bits say `NEW` and one handle, whatever is true | at birth; cleared when the state is published |
//! | 15 | asked | another thread asks for the state of the local request | set by that thread; cleared with bit 14 |
//! | 16–39 | handles | they reach the value; never rise from 0 | |
//! | 40–63 | links | they reach the header only: queue entry, runner, untyped handle, timer, pool | |
//!
//! # States
//!
//! ```text
//!           submit            claim              callbacks          none left
//!   NEW ──────────▶ QUEUED ─────────▶ CLAIMED ─────────▶ COMPLETING ─────────▶ terminal
//!    │ hold    admit ▲ │                ▲ │                                       ▲
//!    ├──────▶ HELD ──┘ │                │ └──────── no callbacks: one step ───────┘
//!    │         │       │                │
//!    ├─────────│───────┴─ by a waiter, which lends its stack
//!    ├─────────┴───────┴─ by a canceller, with the mark
//!    └─────────────────── by the drop of the last handle, with the mark
//! ```
//!
//! Beside its life a request is *marked* or not. A mark that is set before *completing* makes the outcome `CANCELLED`,
//! unless the request fails on its own. A later one is refused. Demand may refuse a mark, too. Then the request is
//! *vetoed*, and it is marked when the last demand leaves.
//!
//! # Invariants (cited as *W1* … *W16* by all code that accesses a header)
//!
//! * **W1** Only the thread that moves life to `CLAIMED` may touch the callable, and only it may write
//!   the value. Every such move is one compare-exchange (or a plain store where W8 holds), so there is one claimer.
//! * **W2** While life is terminal the value is read through handles. The holder of the last handle moves it out or
//!   drops it. If there was no handle, or if the request is marked, the finisher drops it *before* the terminal
//!   exchange.
//! * **W3** The list of waiters belongs to the holder of the lock bit while life < 5, and to the finisher alone from
//!   the terminal exchange on. The lock cannot be taken once life is terminal, and the terminal exchange expects the
//!   lock bit clear. The list of callbacks belongs to the holder of the lock bit, and is empty at terminal.
//! * **W4** The header lives while handles + links + children > 0. The finisher folds the runner's link into the
//!   terminal exchange, and after waking the last waiter touches the header only if both counts became 0 there.
//! * **W5** Handles never rise from 0. From a link a thread gets an untyped handle.
//! * **W6** The last handle of a terminal request turns into a link in the exchange that takes it, so the header
//!   outlives the drop of the value.
//! * **W7** Every count that goes down is a release, and the one that reaches 0 is also an acquire.
//! * **W8** A plain store may replace an exchange only if the storer has every count. That is the only handle *by
//!   value* and the queue's link, or no handle at all and the queue's link, each with the private bit set. A `&Request`
//!   can be shared without a count, so a reference is not enough, except as [`local`] says.
//! * **W9** The word is never stored from a remembered value. The holder of the lock recomputes it from the fresh word, since
//!   counts, life and marks may have changed meanwhile.
//! * **W10** The mark is set once, while life < `COMPLETING`, and never cleared. It is set by the holder of the lock bit in
//!   its unlock, or while that bit is clear. The exchange that marks an unstarted request also claims it: a marked
//!   request is never unstarted.
//! * **W11** The outcome is computed from the bits that go into the exchange that fixes it: the terminal one, or the first
//!   that moves life to `COMPLETING`.
//! * **W12** The reason of a cancel is written by the holder of the lock bit while the request is not marked, and read by
//!   threads that have seen the mark. From the mark on it does not change. No reason means `Asked`. The next common reason is
//!   that the parent was cancelled. It is a bit that is set with the mark; if it is set, no other reason is read.
//! * **W13** Demand is found under the lock and decided in the unlock, which reads the lent bit again:
//!   a waiter may have claimed the target meanwhile. Another request's mark is read for that only through its node in the
//!   list, under the list's lock.
//! * **W14** Only a thread with a count cancels. A thread that cancels the children of a request has no counts of its private children,
//!   and their owner may write their words by plain stores (W8). So it sends that owner a message that names the *parent*.
//! * **W15** The holder of the lock bit writes which pool holds a request back, while the request is new. The holder of
//!   the lock bit reads it while the request is held.
//!
//! * **W16** While the word is a local request's, only [`local`] reads or writes it. Other code may read it for what no local request has: a mark, a
//!   shield, or a terminal life of a request with children. All other code has the state published first.
//!
//! # Orders
//!
//! The terminal exchange is both acquire and release: with release alone, an unchanged word could hide a waiter that
//! entered in between. Lock acquires, unlock releases. A mark is a release for the reason before it, and a thread that
//! acts on a mark acquires it. Counts are ordered by W7. Both loads of the consuming take, and the count check of
//! `take`, acquire. A clone is relaxed, as in `Arc`. A scan reads a waiter's own mark relaxed: the locks of the target
//! order what matters (see [`cancel`]). There is no fence and no sequential consistency but for [`local`], which says
//! why.
//!
//! The simplifications that fail are listed, with the mutant that plants each, in `loom-tests/tests/{word,cancel,demand,callbacks}.rs`.

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::mutant;

mod bits;
mod cancel;
mod counts;
mod end;
mod life;
mod lists;
mod local;

pub use self::bits::*;
pub use self::cancel::{Cancel, Demand};
pub use self::counts::HandleDrop;
pub use self::end::outcome;
pub use self::local::{LocalOwner, LocalStage, LocalState, LocalStep};

/// The word itself. See the module head.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// A word that begins as `bits`.
    #[inline(always)]
    pub fn new(bits: u64) -> Word {
        Word(AtomicU64::new(bits))
    }

    /// The word for those who only look at its marks.
    pub fn as_atomic(&self) -> &AtomicU64 {
        &self.0
    }

    /// The word as it stands, acquired.
    #[inline(always)]
    pub fn load(&self) -> Bits {
        Bits(self.0.load(mutant!("load_relaxed", Ordering::Relaxed, Ordering::Acquire)))
    }

    /// Whether it is a local one's.
    #[inline(always)]
    pub fn is_local(&self) -> bool {
        self.peek().has(LOCAL)
    }

    #[inline(always)]
    fn peek(&self) -> Bits {
        Bits(self.0.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn swap_if(&self, from: Bits, to: Bits) -> Result<(), Bits> {
        // The weak form would do in a loop; the strong one keeps loom's executions few and is the same instruction on
        // x86-64.
        match self.0.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(seen) => Err(Bits(seen)),
        }
    }

    /// Repeats `step` until its exchange wins or it declines with `None`. Answers the bits before and after.
    #[inline(always)]
    fn update(&self, mut step: impl FnMut(Bits) -> Option<Bits>) -> Result<(Bits, Bits), Bits> {
        let mut seen = self.load();
        loop {
            let Some(next) = step(seen) else { return Err(seen) };
            match self.swap_if(seen, next) {
                Ok(()) => return Ok((seen, next)),
                Err(now) => seen = now,
            }
        }
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.peek().fmt(f)
    }
}
