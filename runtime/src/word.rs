//! The request word: one 64-bit atomic that says what became of a request and who still knows of it.
//!
//! # Layout
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–2 | life | `NEW` 0, `HELD` 1 (by a pool), `QUEUED` 2, `CLAIMED` 3, `COMPLETING` 4, `FINISHED` 5, `FAILED` 6, `CANCELLED` 7. They ascend: unstarted is ≤ 2, terminal is ≥ 5 |
//! | 3 | marked | cancelled; set only while life < completing, never cleared |
//! | 4 | vetoed | a cancel was refused by demand and is remembered |
//! | 5 | shielded | the outermost shielded region is open |
//! | 6 | submitted | by other than a wait |
//! | 7 | waiters | the list of waiters is not empty; the terminal exchange clears it |
//! | 8 | lock | guards the lists of waiters and callbacks and the reason of a cancel; held for a few loads and stores |
//! | 9 | callbacks | the list of callbacks is not empty |
//! | 10 | seen | somebody looked at the failure |
//! | 11 | linked | stands in its worker's list of suspended or departed children |
//! | 12 | private | stands in the private list of the worker that made it |
//! | 13 | lent | runs on a waiter's stack: that waiter is demand, though in no list |
//! | 14–15 | | spare |
//! | 16–39 | handles | they reach the value; never rise from 0 |
//! | 40–63 | links | they reach the header only: queue entry, runner, untyped handle |
//!
//! # States
//!
//! ```text
//!            submit            claim              callbacks         last callback
//!   NEW ───────────▶ QUEUED ─────────▶ CLAIMED ──────────▶ COMPLETING ─────────▶ terminal
//!    │   (or HELD ──▶ by admission)       │  ▲                                     ▲
//!    │                                    └──┼───── no callbacks: one step ────────┘
//!    └── wait: claimed on the waiter's stack ┘
//!    └── last handle gone: claimed by the dropper, ends CANCELLED
//! ```
//!
//! # Invariants (cited as *W1* … *W9* by everything that touches a header)
//!
//! * **W1** Whoever moves life to `CLAIMED` is the only one who may touch the callable, and the only one who may write
//!   the value. Every such move is one compare-exchange (or a plain store where W8 holds), so there is one claimer.
//! * **W2** While life is terminal the value is read through handles; it is moved out or dropped by the holder of the
//!   last handle, or by the finisher *before* the terminal exchange if there was no handle.
//! * **W3** The list of waiters belongs to the holder of the lock bit while life < 5, and to the finisher alone from
//!   the terminal exchange on. The lock cannot be taken once life is terminal, and the terminal exchange expects the
//!   lock bit clear.
//! * **W4** The header lives while handles + links + children > 0. The finisher folds the runner's link into the
//!   terminal exchange, and after waking the last waiter touches the header only if both counts became 0 there.
//! * **W5** Handles never rise from 0. Who starts from a link gets an untyped handle.
//! * **W6** The last handle of a terminal request turns into a link in the exchange that takes it, so the header
//!   outlives the drop of the value.
//! * **W7** Every count that goes down is a release, and the one that reaches 0 is also an acquire.
//! * **W8** A plain store may stand for an exchange only if every count is in the storer's own hand: the sole handle *by
//!   value* and the list's link, or no handle at all and the list's link, each with the private bit set. A `&Request`
//!   can be shared without a count, hence never by reference.
//! * **W9** The word is never stored from a remembered value: who holds the lock recomputes from the fresh word, since
//!   counts, life and marks may have moved meanwhile.
//!
//! # Orders
//!
//! The terminal exchange is both acquire and release (with release alone, an unchanged word hides a waiter that came
//! between); lock acquire, unlock release; counts by W7; both looks of the consuming take and the count check of `take`
//! acquire; clone relaxed, as in `Arc`. No fence, no sequential consistency.
//!
//! The shortcuts that fail are listed, with the model that catches each, in `loom-tests/tests/word.rs`.

#![allow(unreachable_pub, reason = "the loom models see this module")]

use forebear_context::shim::atomic::{AtomicU64, Ordering};
use forebear_context::shim::hint;

const LIFE: u64 = 0b111;

/// Created, not submitted.
pub const NEW: u64 = 0;
/// Held back by a pool until it is admitted.
pub const HELD: u64 = 1;
/// Submitted, not started.
pub const QUEUED: u64 = 2;
/// Somebody runs it, or ends it.
pub const CLAIMED: u64 = 3;
/// The callable has returned, callbacks run. No transition leads here before there are callbacks.
#[allow(dead_code, reason = "the life field has this value; callbacks come with the rest of `Request`")]
pub const COMPLETING: u64 = 4;
/// Terminal: there is, or was, a value.
pub const FINISHED: u64 = 5;
/// Terminal: there is a failure.
pub const FAILED: u64 = 6;
/// Terminal: cancelled.
pub const CANCELLED: u64 = 7;

/// A cancel took hold.
pub const MARKED: u64 = 1 << 3;
/// A cancel was refused by demand and is remembered.
pub const VETOED: u64 = 1 << 4;
/// The outermost shielded region is open.
pub const SHIELDED: u64 = 1 << 5;
/// Submitted by other than a wait.
pub const SUBMITTED: u64 = 1 << 6;
/// The list of waiters is not empty.
pub const WAITERS: u64 = 1 << 7;
/// Guards the lists.
pub const LOCK: u64 = 1 << 8;
/// The list of callbacks is not empty.
pub const CALLBACKS: u64 = 1 << 9;
/// Somebody looked at the failure.
pub const SEEN: u64 = 1 << 10;
/// In its worker's list of suspended or departed children.
pub const LINKED: u64 = 1 << 11;
/// In the private list of the worker that made it.
pub const PRIVATE: u64 = 1 << 12;
/// Runs on a waiter's stack.
pub const LENT: u64 = 1 << 13;

/// One handle.
pub const HANDLE: u64 = 1 << 16;
/// One link.
pub const LINK: u64 = 1 << 40;
const COUNT: u64 = (1 << 24) - 1;
/// A count this high aborts the process, as `Arc` does: leaked clones must not wrap into a use after free.
const COUNT_LIMIT: u64 = 1 << 23;

/// Just spawned: in its maker's private list, known by its one handle and the list.
pub const SPAWNED: u64 = QUEUED | PRIVATE | SUBMITTED | HANDLE | LINK;
/// The same after its handle was dropped.
pub const SPAWNED_DETACHED: u64 = QUEUED | PRIVATE | SUBMITTED | LINK;
/// Taken by value by its sole holder, who runs it; nobody else knows of it.
pub const TAKEN_SOLE: u64 = CLAIMED | SUBMITTED | LENT | HANDLE;
/// Popped from the private list with no handle left; nobody else knows of it.
pub const POPPED_SOLE: u64 = CLAIMED | SUBMITTED | LINK;

/// A reading of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bits(pub u64);

impl Bits {
    /// The life field.
    #[inline(always)]
    pub fn life(self) -> u64 {
        self.0 & LIFE
    }

    /// Whether `flag` is set.
    #[inline(always)]
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// Not claimed by anybody yet.
    #[inline(always)]
    pub fn is_unstarted(self) -> bool {
        self.life() <= QUEUED
    }

    /// Over for good.
    #[inline(always)]
    pub fn is_terminal(self) -> bool {
        self.life() >= FINISHED
    }

    /// How many handles there are.
    #[inline(always)]
    pub fn handles(self) -> u64 {
        self.0 >> 16 & COUNT
    }

    /// How many links there are.
    #[inline(always)]
    pub fn links(self) -> u64 {
        self.0 >> 40
    }

    /// One handle, and nothing else.
    #[inline(always)]
    pub fn is_sole_handle(self) -> bool {
        self.0 >> 16 == 1
    }

    /// No handle and no link.
    #[inline(always)]
    pub fn is_forgotten(self) -> bool {
        self.0 >> 16 == 0
    }

    fn with_life(self, life: u64) -> Bits {
        Bits(self.0 & !LIFE | life)
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const LIVES: [&str; 8] =
            ["new", "held", "queued", "claimed", "completing", "finished", "failed", "cancelled"];
        const FLAGS: [(u64, &str); 11] = [
            (MARKED, "marked"),
            (VETOED, "vetoed"),
            (SHIELDED, "shielded"),
            (SUBMITTED, "submitted"),
            (WAITERS, "waiters"),
            (LOCK, "lock"),
            (CALLBACKS, "callbacks"),
            (SEEN, "seen"),
            (LINKED, "linked"),
            (PRIVATE, "private"),
            (LENT, "lent"),
        ];
        write!(f, "{}", LIVES[self.life() as usize])?;
        for (flag, name) in FLAGS {
            if self.has(flag) {
                write!(f, " {name}")?;
            }
        }
        write!(f, " handles={} links={}", self.handles(), self.links())
    }
}

/// What the drop of a handle leaves its holder to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleDrop {
    /// Others remain: nothing.
    NotLast,
    /// It was never submitted. The dropper has claimed it, marked; its handle is now the runner's link: drop the
    /// callable, go terminal, release.
    Unstarted,
    /// It runs or will: its runner drops the value.
    Running,
    /// It is over. The handle is now a link (W6): drop the value, then release the link.
    Terminal,
    /// It is over and there was nobody else: drop the value, then the header is the dropper's alone.
    TerminalAlone,
}

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
        #[cfg(mutant = "load_relaxed")]
        return Bits(self.0.load(Ordering::Relaxed));
        #[cfg(not(mutant = "load_relaxed"))]
        Bits(self.0.load(Ordering::Acquire))
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

    // ---- life ------------------------------------------------------------------------------------------------------

    /// New to queued, with the link of the queue entry that the caller pushes next, and `marks`: [`SUBMITTED`] unless a
    /// wait submits, [`PRIVATE`] if the entry goes to the maker's private list. False: it was submitted before.
    #[inline]
    pub fn submit(&self, marks: u64) -> bool {
        self.update(|b| (b.life() == NEW).then(|| Bits((b.with_life(QUEUED).0 | marks) + LINK))).is_ok()
    }

    /// Claim by the holder of a queue entry; its link becomes the runner's. False: a shell, whose link the caller
    /// releases.
    #[inline]
    pub fn claim_by_queue(&self) -> bool {
        #[cfg(mutant = "claim_by_store")]
        {
            // Both claimers see it queued, and both win.
            let b = self.load();
            if b.is_unstarted() {
                self.0.store(b.with_life(CLAIMED).0 & !PRIVATE, Ordering::Release);
                return true;
            }
            return false;
        }
        #[cfg(not(mutant = "claim_by_store"))]
        self.update(|b| b.is_unstarted().then(|| Bits(b.with_life(CLAIMED).0 & !PRIVATE))).is_ok()
    }

    /// Claim by a waiter that lends its stack; it needs no link, since it borrows a handle. With `fold` the waiter is
    /// also the owner of the private list that holds the entry, and takes the entry's link off in the same exchange.
    ///
    /// Answers the bits before, or `Err` with the bits that forbade it.
    #[inline]
    pub fn claim_by_waiter(&self, fold: bool) -> Result<Bits, Bits> {
        self.update(|b| {
            // Folding was decided by a look at the private bit; the look must still hold in the exchange.
            let still = !fold || b.has(PRIVATE);
            (b.is_unstarted() && b.life() != HELD && still).then(|| {
                let claimed = b.with_life(CLAIMED).0 & !PRIVATE | LENT;
                Bits(if fold { claimed - LINK } else { claimed })
            })
        })
        .map(|(before, _)| before)
    }

    /// Claims an entry that the caller has just taken out of its own private list. False: a shell.
    #[inline(always)]
    pub fn claim_popped(&self) -> bool {
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
        self.claim_by_queue()
    }

    /// Claims without an exchange for the holder, by value, of the sole handle, if the entry stands in the caller's own
    /// private list and nobody else knows of the request. The list's link is folded in.
    #[inline(always)]
    pub fn claim_sole(&self) -> bool {
        // Acquire: an untyped handle that is gone by now did its last reads before this.
        let bits = self.load().0;
        #[cfg(mutant = "sole_ignores_links")]
        let bits = bits & (LINK - 1) | LINK;
        if bits != SPAWNED {
            return false;
        }
        // W8.
        self.0.store(TAKEN_SOLE, Ordering::Relaxed);
        true
    }

    /// Gives back, without an exchange, the sole handle of a request that stands in the caller's own private list and
    /// that nobody else knows of. False: nothing was done.
    #[inline(always)]
    pub fn drop_sole(&self) -> bool {
        let bits = self.load().0;
        #[cfg(mutant = "sole_drop_ignores_links")]
        let bits = bits & (LINK - 1) | LINK;
        if bits != SPAWNED {
            return false;
        }
        // W8: by value, and the list's link is in the caller's own list.
        self.0.store(SPAWNED_DETACHED, Ordering::Relaxed);
        true
    }

    /// After the run of a request claimed by [`claim_popped`](Self::claim_popped): whether nobody else knows of it, so
    /// that it need not go terminal at all.
    #[inline(always)]
    pub fn is_popped_sole(&self) -> bool {
        #[cfg(mutant = "popped_sole_by_handles")]
        return self.load().handles() == 0;
        #[cfg(not(mutant = "popped_sole_by_handles"))]
        return self.load().0 == POPPED_SOLE;
    }

    /// After the run of a request claimed by [`claim_sole`](Self::claim_sole): whether still nobody else knows of it.
    #[inline(always)]
    pub fn is_still_sole(&self) -> bool {
        #[cfg(mutant = "no_closing_compare")]
        return true;
        #[cfg(not(mutant = "no_closing_compare"))]
        return self.load().0 == TAKEN_SOLE;
    }

    /// Takes the private bit off before the entry is pushed to a shelf.
    #[inline]
    pub fn publish(&self) {
        #[cfg(mutant = "publish_by_store")]
        {
            let b = self.load();
            self.0.store(b.0 & !PRIVATE, Ordering::Release);
            return;
        }
        // Nothing would tell the shelf from the private list.
        #[cfg(not(any(mutant = "publish_by_store", mutant = "publish_keeps_private")))]
        self.0.fetch_and(!PRIVATE, Ordering::AcqRel);
    }

    /// Goes terminal with `life`, folding in the runner's link if it holds one.
    ///
    /// Before each attempt `before` is called with what is about to be exchanged: it drops the value if nobody can reach
    /// it any more (handles are 0, or the request is marked), and says as which life the request ends. It may be called
    /// several times. Answers the bits before and after; the caller then owns the list of waiters if `WAITERS` was set.
    #[inline]
    pub fn finish(&self, runner_link: bool, mut before: impl FnMut(Bits) -> u64) -> (Bits, Bits) {
        let mut seen = self.load();
        loop {
            if seen.has(LOCK) {
                #[cfg(not(mutant = "finish_ignores_lock"))]
                {
                    hint::spin_loop();
                    seen = self.load();
                    continue;
                }
            }
            let life = before(seen);
            let ended = seen.with_life(life).0 & !(WAITERS | LENT | VETOED | PRIVATE);
            let next = Bits(if runner_link { ended - LINK } else { ended });
            #[cfg(not(mutant = "terminal_release_only"))]
            let swapped = self.swap_if(seen, next);
            #[cfg(mutant = "terminal_release_only")]
            let swapped = self
                .0
                .compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Acquire)
                .map(drop)
                .map_err(Bits);
            match swapped {
                Ok(()) => return (seen, next),
                Err(now) => seen = now,
            }
        }
    }

    // ---- the lock --------------------------------------------------------------------------------------------------

    /// Takes the lock bit; `Err` if the request is terminal, when the lists are the finisher's (W3).
    #[inline]
    pub fn lock(&self) -> Result<Bits, Bits> {
        let mut seen = self.load();
        loop {
            #[cfg(not(mutant = "lock_after_terminal"))]
            if seen.is_terminal() {
                return Err(seen);
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

    /// Clears the lock bit, together with what `decide` makes of the fresh word (W9).
    #[inline]
    pub fn unlock(&self, mut decide: impl FnMut(Bits) -> Bits) -> Bits {
        #[cfg(mutant = "unlock_remembered")]
        {
            let b = self.load();
            forebear_context::shim::thread::yield_now();
            let next = Bits(decide(b).0 & !LOCK);
            self.0.store(next.0, Ordering::Release);
            return next;
        }
        #[cfg(not(mutant = "unlock_remembered"))]
        match self.update(|b| Some(Bits(decide(b).0 & !LOCK))) {
            Ok((_, next)) => next,
            Err(seen) => seen,
        }
    }

    // ---- counts ----------------------------------------------------------------------------------------------------

    /// One more handle, from a handle (W5).
    #[inline]
    pub fn add_handle(&self) {
        let before = Bits(self.0.fetch_add(HANDLE, Ordering::Relaxed));
        if before.handles() >= COUNT_LIMIT {
            too_many();
        }
    }

    /// One more link, from a handle or a link.
    #[inline]
    pub fn add_link(&self) {
        let before = Bits(self.0.fetch_add(LINK, Ordering::Relaxed));
        if before.links() >= COUNT_LIMIT {
            too_many();
        }
    }

    /// One more link, from one who only knows that the header is there. False: it is about to end, or has only its
    /// children left.
    pub fn try_add_link(&self) -> bool {
        self.update(|b| (!b.is_forgotten()).then(|| Bits(b.0 + LINK))).is_ok()
    }

    /// Gives a handle back; see [`HandleDrop`].
    #[inline]
    pub fn drop_handle(&self) -> HandleDrop {
        #[cfg(mutant = "last_handle_by_sub")]
        {
            let before = Bits(self.0.fetch_sub(HANDLE, Ordering::AcqRel));
            return match (before.handles(), before.life(), before.links()) {
                (2.., ..) => HandleDrop::NotLast,
                (_, FINISHED.., 0) => HandleDrop::TerminalAlone,
                (_, FINISHED.., _) => HandleDrop::Terminal,
                _ => HandleDrop::Running,
            };
        }
        #[cfg(not(mutant = "last_handle_by_sub"))]
        {
            let mut seen = self.peek();
            loop {
                let less = seen.0 - HANDLE;
                let (next, answer) = if seen.handles() > 1 {
                    (less, HandleDrop::NotLast)
                } else if seen.life() == NEW {
                    if seen.has(LOCK) {
                        hint::spin_loop();
                        seen = self.peek();
                        continue;
                    }
                    (Bits(less).with_life(CLAIMED).0 | MARKED, HandleDrop::Unstarted)
                } else if !seen.is_terminal() {
                    (less, HandleDrop::Running)
                } else if seen.links() == 0 {
                    // Exchanged all the same: a child of this one may be asking for its parent at this moment, and must
                    // find nobody to add a link to.
                    (less, HandleDrop::TerminalAlone)
                } else {
                    (less, HandleDrop::Terminal)
                };
                let next = match answer {
                    HandleDrop::Unstarted | HandleDrop::Terminal => next + LINK,
                    _ => next,
                };
                #[cfg(not(mutant = "handle_down_relaxed"))]
                let swapped = self.swap_if(seen, Bits(next));
                #[cfg(mutant = "handle_down_relaxed")]
                let swapped = self
                    .0
                    .compare_exchange(seen.0, next, Ordering::Relaxed, Ordering::Relaxed)
                    .map(drop)
                    .map_err(Bits);
                match swapped {
                    Ok(()) => return answer,
                    Err(now) => seen = now,
                }
            }
        }
    }

    /// Gives a link back. True: it was the last of both kinds, and the header is the caller's to end (W4, W7).
    #[inline]
    pub fn release_link(&self) -> bool {
        #[cfg(not(mutant = "link_down_relaxed"))]
        let order = Ordering::AcqRel;
        #[cfg(mutant = "link_down_relaxed")]
        let order = Ordering::Relaxed;
        Bits(self.0.fetch_sub(LINK, order).wrapping_sub(LINK)).is_forgotten()
    }

    /// Remembers that somebody looked at the failure.
    #[inline]
    pub fn mark_seen(&self) {
        self.0.fetch_or(SEEN, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.peek().fmt(f)
    }
}

#[cold]
fn too_many() -> ! {
    // Unwinding would drop handles and could bring the count back into range while clones are still being leaked.
    std::process::abort()
}
