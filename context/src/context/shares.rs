//! What a context holds together with others: read locks.
//!
//! The word of a lock names its exclusive holder ([`OwnerWait`](super::OwnerWait)). There may be any number of readers,
//! so the lock only counts them, and each context keeps a list of the locks that it reads. A context that waits until
//! all readers have left waits for every context whose list has the lock. A cycle through one of them is found like one
//! through a job of a scope.
//!
//! The list is short, and like a lock's holder it is a hint. It may have too few entries: a read lock for which it has no room is missing. It must
//! not have an entry of a lock that the stack no longer reads, since that would make a cycle of a wait that ends. Three rules see to that:
//!
//! * A guard knows the context that has its entry. Dropped on another stack of its thread, it removes the entry from that context's list ([`Shares::lost`]).
//! * An entry names its lock by a [`ShareKey`], not by the address. The entry of a guard that was forgotten stays, its lock may be moved or freed,
//!   and another lock may lie at that address.
//! * A stack that begins a new request clears its list.
//!
//! While a guard that was carried to another stack lives, the entry names the stack that took it.
//!
//! # Who writes
//!
//! The context's own stack, or the thread that it is on while nothing runs there, adds entries and removes them. Any thread may read, and may turn an entry into a hole by
//! [`Shares::lost`]; it never changes the length. Such a thread and the owner can meet only at an entry whose request is over.

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicUsize}; // not modelled: they order nothing, and models hold few read locks

/// So many have room.
const ROOM: usize = 4;

/// What stands for a lock in the lists of those that read it, unlike the key of any other lock, earlier ones included.
#[derive(Debug, Default)]
pub struct ShareKey(AtomicUsize);

/// Set in every key, and in no address of user space: a key is never the address of a scope.
const KEY: usize = 1 << (usize::BITS - 1);
/// The distance of two keys: the lower bits are free, as those of an address.
const APART: usize = 64;

impl ShareKey {
    /// Not drawn yet.
    #[must_use]
    pub const fn new() -> ShareKey {
        ShareKey(AtomicUsize::new(0))
    }

    /// The key, drawn now if it has not been. It is compared, and never followed.
    #[inline(always)]
    pub fn get(&self) -> NonNull<()> {
        let key = self.0.load(Relaxed);
        let key = if key == 0 { self.draw() } else { key };
        NonNull::new(ptr::without_provenance_mut(key)).expect("a key has its bit set")
    }

    #[cold]
    fn draw(&self) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(KEY);
        let drawn = NEXT.fetch_add(APART, Relaxed) | KEY;
        // Threads may ask for it for the first time at once.
        match self.0.compare_exchange(0, drawn, Relaxed, Relaxed) {
            Ok(_) => drawn,
            Err(other) => other,
        }
    }
}

/// The locks that a context reads.
#[derive(Debug, Default)]
pub struct Shares {
    /// Null: a hole.
    held: [AtomicPtr<()>; ROOM],
    len: AtomicUsize,
}

impl Shares {
    /// None.
    pub(super) fn new() -> Shares {
        Shares::default()
    }

    /// The context holds a share of what has this key.
    #[inline(always)]
    pub fn took(&self, whole: NonNull<()>) {
        let len = self.len.load(Relaxed);
        if let Some(place) = self.held.get(len) {
            place.store(whole.as_ptr(), Relaxed);
            self.len.store(len + 1, Relaxed);
        } else {
            self.fill_a_hole(whole);
        }
    }

    #[cold]
    fn fill_a_hole(&self, whole: NonNull<()>) {
        if let Some(hole) = self.held.iter().find(|place| place.load(Relaxed).is_null()) {
            hole.store(whole.as_ptr(), Relaxed);
        }
    }

    /// It has given one back.
    #[inline(always)]
    pub fn gave(&self, whole: NonNull<()>) {
        let len = self.len.load(Relaxed);
        // The last is nearly always the first to go.
        if let Some(at) = (0..len).rev().find(|&at| self.held[at].load(Relaxed) == whole.as_ptr()) {
            self.held[at].store(self.held[len - 1].load(Relaxed), Relaxed);
            self.len.store(len - 1, Relaxed);
        }
    }

    /// The guard of a share that was taken here was dropped on another stack. By any thread.
    pub fn lost(&self, whole: NonNull<()>) {
        let makes_hole = |place: &AtomicPtr<()>| {
            place.compare_exchange(whole.as_ptr(), ptr::null_mut(), Relaxed, Relaxed).is_ok()
        };
        let _found = self.held.iter().any(makes_hole);
    }

    /// Whether there are any, or were since the last that this stack gave back.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// The keys of what it holds shares of.
    pub fn iter(&self) -> impl Iterator<Item = NonNull<()>> {
        let len = self.len.load(Relaxed).min(ROOM);
        self.held[..len].iter().filter_map(|place| NonNull::new(place.load(Relaxed)))
    }

    /// Whether it holds a share of what has this key.
    pub fn have(&self, whole: NonNull<()>) -> bool {
        self.iter().any(|held| held == whole)
    }

    /// Nothing that ran here before runs any more.
    #[inline(always)]
    pub fn clear(&self) {
        self.len.store(0, Relaxed);
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
        shares.gave(at(24)); // it was not taken
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

    #[test]
    fn what_is_lost_elsewhere_leaves_a_place_that_is_used_again() {
        let shares = Shares::new();
        for lock in 1..=ROOM {
            shares.took(at(lock * 8));
        }
        shares.lost(at(16));
        shares.lost(at(64)); // it was not taken
        assert!(!shares.have(at(16)));
        assert_eq!(shares.iter().count(), ROOM - 1);
        shares.took(at(48));
        assert!(shares.have(at(48)) && shares.have(at(8 * ROOM)));
        for lock in [48, 8, 24, 32] {
            shares.gave(at(lock));
        }
        assert!(shares.is_empty());
    }

    #[test]
    fn a_hole_that_is_left_takes_no_other_entry_along() {
        let shares = Shares::new();
        for lock in [8, 16, 24] {
            shares.took(at(lock));
        }
        shares.lost(at(24));
        shares.gave(at(8));
        assert_eq!(shares.iter().collect::<Vec<_>>(), [at(16)]);
        shares.gave(at(16));
        assert_eq!(shares.iter().count(), 0);
    }

    #[test]
    fn a_key_stays_and_is_no_other_locks() {
        let (one, other) = (ShareKey::new(), ShareKey::new());
        let key = one.get();
        assert_ne!(key, other.get());
        let moved = one;
        assert_eq!(moved.get(), key);
        assert!(key.addr().get() & KEY != 0 && key.addr().get().is_multiple_of(APART));
    }
}
