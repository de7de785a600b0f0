//! How many of a dependent's edges are open: the word, and the steps that race on it.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–30 | open | edges whose dependency is not over, and *readers*, who keep the edges in place while they read them |
//! | 31 | setting up | the submitter still enters nodes into lists |
//!
//! 0 means that nothing is open: the edges have not been set up, or all of them have been closed.
//!
//! # Steps
//!
//! ```text
//!   submitter:   begin(n) ─▶ enter each node ─▶ set_up ──────────▶ last? admit
//!   finisher:    takes the list of a dependency ─▶ down, per node ─▶ last? admit
//!   reader:      try_hold, under the dependent's lock ─▶ down ─────▶ last? admit
//!   starter:     as a reader, and before `down` leaves each list, under the dependent's lock while it is held, down per node
//!   canceller:   has claimed the dependent ─▶ await_set_up ─▶ leave each list, down ─▶ await_none ─▶ frees the edges
//! ```
//!
//! *Admit* moves the dependent's life from held to queued, with the link that the edges own, while nobody has the dependent's lock. After a
//! cancel it fails, and the link is given back.
//!
//! # Invariants
//!
//! * **OE1** Each open edge, each reader and the bit *setting up* is taken back once, by one read-modify-write. The thread that brings the word to 0 by
//!   that owns the edges' link, and admits. So one thread does.
//! * **OE2** A finisher's or reader's last access to the edges is its decrement. The submitter's last access is [`Open::set_up`].
//! * **OE3** The edges are moved or freed by the claimer of the dependent: after an admission, hence when the word is 0; or after a cancel,
//!   when [`Open::await_none`] has returned.
//! * **OE4** The word leaves 0 only by [`Open::begin`], under the dependent's lock while it is new. So a reader that finds 0 finds nothing to
//!   read, for good.
//! * **OE5** A node is taken out of its list before its dependency is over by the claimer of the dependent, or by a *starter*, which closes the edges early
//!   ([`while_held`]). A starter has the dependent's lock and finds it held, so no thread has claimed it. A later claimer sees by
//!   [`WaitNode::is_listed`] which nodes are gone.
//!
//! # The argument
//!
//! *Not early*, unless by a starter. All edges are counted by `begin`, before the first node is entered. A dependency that ends meanwhile takes its own one off, and
//! the bit *setting up* stays.
//!
//! *Each edge is closed.* The submitter closes it if the dependency was over. Else the finisher that took the node with
//! the list does, or the canceller that took the node out. The list's lock decides which. It cannot be taken once the
//! dependency is terminal, and the finisher takes the list after that (W3).
//!
//! *Not freed under a reader.* A held dependent is claimed by a cancel, or after it was admitted, and both wait until its lock is free. A reader holds
//! that lock from when it has found the dependent held until `try_hold` has answered. So the count is there to be read; and either the reader sees
//! the claim, or the claimer sees the reader's count.

use forebear_context::context::{WaitNode, WaitQueue};
use forebear_context::shim::atomic::{AtomicU32, Ordering};
use forebear_context::shim::{hint, mutant};

use crate::state::word::{Bits, Cancel, Demand, HELD, WAITERS, Word};

const SETTING_UP: u32 = 1 << 31;

/// A dependent has no more edges than this.
pub const MOST: usize = 1 << 30;

/// See the module head.
#[derive(Debug)]
pub struct Open(AtomicU32);

impl Default for Open {
    fn default() -> Open {
        Open::new()
    }
}

impl Open {
    /// Nothing is open.
    pub fn new() -> Open {
        Open(AtomicU32::new(0))
    }

    /// The submitter begins to set up so many edges. Under the dependent's lock, while it is new.
    pub fn begin(&self, edges: u32) {
        let bits = mutant!("declared_is_not_set_up", edges, SETTING_UP | edges);
        self.0.store(bits, Ordering::Relaxed);
    }

    /// One edge or reader less. True: it was the last, and the caller admits the dependent.
    #[must_use]
    pub fn down(&self) -> bool {
        let order = mutant!("declared_down_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        self.0.fetch_sub(1, order) == 1
    }

    /// All nodes have been entered. The answer is as [`down`](Self::down)'s.
    #[must_use]
    pub fn set_up(&self) -> bool {
        mutant!("declared_is_not_set_up", false, self.0.fetch_sub(SETTING_UP, Ordering::AcqRel) == SETTING_UP)
    }

    /// Keeps the edges in place for a reader, who calls [`down`](Self::down) when it has read. Under the dependent's lock, while it is held.
    /// False: nothing is open, or not all is set up.
    pub fn try_hold(&self) -> bool {
        mutant!("declared_held_at_none", {
            self.0.fetch_add(1, Ordering::AcqRel);
            return true;
        });
        let mut seen = self.0.load(Ordering::Acquire);
        while seen != 0 && seen & SETTING_UP == 0 {
            match self.0.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Whether nothing is open.
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Waits until the submitter has entered all nodes. By the claimer of the dependent; the submitter runs no user code meanwhile.
    pub fn await_set_up(&self) {
        mutant!("declared_left_while_set_up", (), self.spin_while(|bits| bits & SETTING_UP != 0));
    }

    /// Waits until everybody has made the last access to the edges. By the claimer of the dependent, after it has left all lists; the others run
    /// no user code meanwhile.
    pub fn await_none(&self) {
        mutant!("declared_freed_while_open", (), self.spin_while(|bits| bits != 0));
    }

    fn spin_while(&self, goes_on: impl Fn(u32) -> bool) {
        while goes_on(self.0.load(Ordering::Acquire)) {
            hint::spin_loop();
            #[cfg(not(any(loom, shuttle)))]
            std::thread::yield_now();
        }
    }
}

/// The submitter enters a node into the list of a dependency, and answers what `look` makes of that under its lock. `None`: the dependency is over, and its
/// edge is closed.
///
/// # Safety
///
/// Q2, Q5: the node stands in no list, and stays until its edge is closed. The waiters are those of the word.
pub unsafe fn enter<R>(
    open: &Open,
    word: &Word,
    waiters: &WaitQueue,
    node: &WaitNode,
    look: impl FnOnce(Bits) -> R,
) -> Option<R> {
    let Ok(bits) = word.lock() else {
        let last = open.down();
        debug_assert!(!last || cfg!(mutant), "it is being set up");
        return None;
    };
    let seen = look(bits);
    // SAFETY: W3: the lock; by contract.
    unsafe { waiters.push(node) };
    node.set_listed();
    word.unlock(|bits| Bits(bits.0 | WAITERS));
    Some(seen)
}

/// Calls `leave` under the dependent's lock, if it is held: by a starter, for OE5.
pub fn while_held(word: &Word, leave: impl FnOnce()) {
    mutant!("declared_early_unlocked", return leave());
    if let Ok(bits) = word.lock() {
        if bits.life() == HELD {
            leave();
        }
        word.unlock(|bits| bits);
    }
}

/// The canceller, or a starter, takes a listed node out of the list of its dependency, unless a finisher has it in hand. Answers what [`Word::leave`] does, and
/// whether the edge was the last that was open.
///
/// # Safety
///
/// OE5: the caller has claimed the dependent, and `await_set_up` has returned; or it is a starter, in [`while_held`]. `unlink` takes the node out, and
/// notes that it is not listed any more.
pub unsafe fn leave(
    open: &Open,
    word: &Word,
    asks: bool,
    unlink: impl FnOnce(bool) -> Demand,
) -> Option<(Cancel, bool)> {
    let answer = word.leave(asks, unlink).ok()?;
    Some((answer, open.down()))
}
