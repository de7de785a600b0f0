//! What a context holds together with others: read locks.
//!
//! The word of a lock names its exclusive holder ([`OwnerWait`](super::OwnerWait)). There may be any number of readers,
//! so the lock only counts them, and each context keeps a list of the locks that it reads. A context that waits until
//! all readers have left waits for every context whose list has the lock. A cycle through one of them is found like one
//! through a job of a scope.
//!
//! The list is short, and like a lock's holder it is a hint. A read lock for which it has no room is missing, and so is
//! a guard that was carried to another stack of its thread. It has too few entries rather than too many: an entry whose
//! guard was leaked, or dropped on another stack, is removed when the stack begins a new request.
//!
//! Written by the context's own stack, or by the thread that it is on while nothing runs there; read by others while its wait is held.

use std::cell::Cell;
use std::ptr::NonNull;

/// So many have room.
const ROOM: usize = 4;

/// The locks that a context reads.
#[derive(Debug, Default)]
pub struct Shares {
    held: [Cell<Option<NonNull<()>>>; ROOM],
    len: Cell<usize>,
}

impl Shares {
    /// None.
    pub(super) fn new() -> Shares {
        Shares::default()
    }

    /// The context holds a share of what has this address.
    #[inline(always)]
    pub fn took(&self, whole: NonNull<()>) {
        let len = self.len.get();
        if let Some(place) = self.held.get(len) {
            place.set(Some(whole));
            self.len.set(len + 1);
        }
    }

    /// It has given one back. Answers whether that stood here.
    #[inline(always)]
    pub fn gave(&self, whole: NonNull<()>) -> bool {
        let len = self.len.get();
        // The last is nearly always the first to go.
        let Some(at) = (0..len).rev().find(|&at| self.held[at].get() == Some(whole)) else { return false };
        self.held[at].set(self.held[len - 1].get());
        self.len.set(len - 1);
        true
    }

    /// Whether there are any.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    /// What it holds shares of.
    pub fn iter(&self) -> impl Iterator<Item = NonNull<()>> {
        self.held[..self.len.get()].iter().filter_map(Cell::get)
    }

    /// Whether it holds a share of what has this address.
    pub fn have(&self, whole: NonNull<()>) -> bool {
        self.iter().any(|held| held == whole)
    }

    /// Nothing that ran here before runs any more.
    #[inline(always)]
    pub fn clear(&self) {
        self.len.set(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(address: usize) -> NonNull<()> {
        NonNull::new(std::ptr::without_provenance_mut(address)).unwrap()
    }

    #[test]
    fn what_was_taken_is_there_until_it_is_given_back() {
        let shares = Shares::new();
        assert!(shares.is_empty());
        for lock in [8, 16, 8] {
            shares.took(at(lock));
        }
        shares.gave(at(8));
        assert!(shares.have(at(8)) && shares.have(at(16)), "it was taken twice");
        shares.gave(at(8));
        assert!(!shares.have(at(8)));
        assert!(!shares.gave(at(24)), "it was not taken");
        assert_eq!(shares.iter().collect::<Vec<_>>(), [at(16)]);
        shares.clear();
        assert!(shares.is_empty());
    }

    #[test]
    fn what_finds_no_room_is_not_known_and_does_no_harm() {
        let shares = Shares::new();
        for lock in 1..=ROOM + 1 {
            shares.took(at(lock * 8));
        }
        assert!(!shares.have(at((ROOM + 1) * 8)));
        for lock in (1..=ROOM + 1).rev() {
            shares.gave(at(lock * 8));
        }
        assert!(shares.is_empty());
    }
}
