//! Raids: how another worker publishes what stands in a private queue, while its owner runs code without a scheduling point.
//!
//! # Vocabulary
//!
//! * **owner**: the worker whose private queue it is ([`crate::record::private_queue`]).
//! * **raider**: a worker that has nothing to do, and finds that the owner does not answer its hunger.
//! * **to raid** an entry: to take the private bit off its word and push it on the owner's shared queue, with a link of its own. The entry stays
//!   in the private queue, which the raider never changes. The first to reach it claims it; the other entry is stale.
//! * **to touch** an entry: what the owner does before it stores plainly into the word of an entry (W8), or takes the entry out.
//! * **raided**: a bit of the owner's attention word. A raider raises it; the owner alone takes it down, when it *settles*.
//!
//! # The race
//!
//! The owner has no exchange and no fence. It announces which entry it touches by the store to the entry's place, which
//! the removal needs anyway. Then it loads its attention word, which it also does anyway. The raider raises `RAIDED`,
//! makes every running thread execute a fence ([`crate::state::asymmetric`]), and then reads the places of entries. So
//! of a touch and a raid, one sees the other:
//!
//! * the raider sees that the place is not `Private`: it leaves this entry and ends its walk. The owner is at a scheduling point anyway.
//! * the owner sees `RAIDED`: it undoes the touch and settles. It waits for the raider's lock, takes the bit down, and begins again with a look
//!   at the word.
//!
//! Only the owner clears the bit. So if a load of the word before a touch finds no bit, there has been no raid since.
//! When the owner restores a place after a touch (a dropped handle), that store is a release, and the raider's load of
//! the place acquires. So the raider sees what the owner has stored into the word.
//!
//! The owner may insert entries meanwhile: it writes the new entry first, then the link that leads to it, which is a release.
//!
//! # What the raider follows
//!
//! It goes from link to link: reads the link, then the entry's place, then the link again. The same link after a place that is `Private` says that
//! the entry stands in the list, and is not touched until the owner has settled. A touched entry may have ended by the first look; its memory is still that
//! of a header, since no memory of headers is given back while anybody looks ([`crate::record::reclaim`]).
//!
//! # Invariants
//!
//! * **RD1** While `RAIDED` is up, the owner neither stores plainly into the word of an entry whose place was `Private` when the bit was raised,
//!   nor takes that entry out.
//! * **RD2** Under the lock, and while `RAIDED` is up, `last` is null or an entry that stands in the list.
//!
//! Without `membarrier` nobody raids: what is private stays so until its owner's next scheduling point (decision 0039).

use std::ptr;
use std::sync::TryLockError;

use forebear_context::shim::atomic::{AtomicPtr, AtomicU8, Ordering};
use forebear_context::shim::mutant;
use forebear_context::shim::{Mutex, MutexGuard, hint, thread};

use crate::state::asymmetric;
use crate::state::attention::{Attention, RAIDED};

/// Which list a header stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderPlace {
    /// None that it is linked into; or its owner touches it.
    Nowhere,
    /// The private queue of the worker whose arena is the header's.
    Private,
    /// The list of its parent's children that others may know of (`record/children.rs`).
    Child,
}

/// A header's place. Written by the owner of its list; read by raiders.
#[derive(Debug)]
#[repr(transparent)]
pub struct Placed(AtomicU8);

impl Placed {
    /// One that begins as `place`.
    pub fn new(place: HeaderPlace) -> Placed {
        Placed(AtomicU8::new(place as u8))
    }

    /// Where it stands. By the owner.
    #[inline(always)]
    pub fn get(&self) -> HeaderPlace {
        match self.0.load(Ordering::Relaxed) {
            0 => HeaderPlace::Nowhere,
            1 => HeaderPlace::Private,
            _ => HeaderPlace::Child,
        }
    }

    /// By the owner. A raider that reads this sees what the owner did before.
    #[inline(always)]
    pub fn set(&self, place: HeaderPlace) {
        self.0.store(place as u8, Ordering::Release);
    }

    /// By a raider.
    fn is_private(&self) -> bool {
        self.0.load(Ordering::Acquire) == HeaderPlace::Private as u8
    }

    /// The owner is about to touch the entry, which stands in its private queue. True: no raid concerns it, and the touch lasts until the place
    /// is set again. False: nothing was done; the owner settles.
    ///
    /// `may` looks at the owner's attention word: it is false if `RAIDED` is up, and may be false for other reasons.
    #[inline(always)]
    pub fn touch(&self, may: impl FnOnce() -> bool) -> bool {
        debug_assert_eq!(self.get(), HeaderPlace::Private, "P2");
        mutant!("touched_untold", (), self.set(HeaderPlace::Nowhere));
        asymmetric::light();
        if may() {
            return true;
        }
        self.restore();
        false
    }

    /// The entry stands as before the [touch](Self::touch). The owner has found that it may not, or cannot, take the entry out.
    #[inline(always)]
    pub fn restore(&self) {
        self.set(HeaderPlace::Private);
    }
}

/// What stands in a private queue. The runtime's are headers; a model has its own.
pub trait PrivateEntry: Sized {
    /// Where it stands.
    fn place(&self) -> &Placed;
    /// The next in the list.
    fn next(&self) -> &AtomicPtr<Self>;
}

/// Where a raider begins, and who keeps others out.
#[derive(Debug)]
pub struct RaidGuard<E>(Mutex<Walk<E>>);

#[derive(Debug)]
struct Walk<E> {
    /// The entry that was looked at last; null: none since the owner has settled.
    last: *const E,
    /// How many were raided since.
    raided: usize,
}

// SAFETY: RD2: the pointer is followed under the lock, and leads to an entry that stays meanwhile.
unsafe impl<E> Send for Walk<E> {}

/// One raider at its work. The owner cannot settle meanwhile.
#[derive(Debug)]
pub struct Raid<'a, E> {
    walk: MutexGuard<'a, Walk<E>>,
    front: &'a AtomicPtr<E>,
}

/// No raid takes more; each takes as many as those before it together, and at least [`FEWEST`].
const MOST: usize = 64;
const FEWEST: usize = 4;
/// Nor looks at more: some may have been claimed already.
const LOOKS: usize = 256;

impl<E> RaidGuard<E> {
    /// Nobody raids.
    pub fn new() -> RaidGuard<E> {
        RaidGuard(Mutex::new(Walk { last: ptr::null(), raided: 0 }))
    }
}

impl<E: PrivateEntry> RaidGuard<E> {
    /// Whether something stands in the list that no raid has looked at. A snapshot.
    pub fn has_more(&self, front: &AtomicPtr<E>) -> bool {
        let Ok(walk) = self.0.try_lock() else { return true };
        !Raid { walk, front }.link().load(Ordering::Relaxed).is_null()
    }

    /// Begins a raid of the list whose first entry is `front`, if there may be something to raid and nobody else is at it. Then the caller has every
    /// thread pass a fence, and [walks](Raid::walk).
    pub fn begin<'a>(&'a self, attention: &Attention, front: &'a AtomicPtr<E>) -> Option<Raid<'a, E>> {
        let walk = match self.0.try_lock() {
            Ok(walk) => walk,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let raid = Raid { walk, front };
        if raid.link().load(Ordering::Relaxed).is_null() {
            return None;
        }
        attention.raise(RAIDED);
        Some(raid)
    }

    /// The owner has found that it is raided: waits until the raider is done, and takes the bit down. The wait ends without the raider if it is
    /// `gone`.
    #[cold]
    pub fn settle(&self, attention: &Attention, gone: impl Fn() -> bool) {
        let mut looks = 0_u32;
        let walk = loop {
            if cfg!(mutant = "settled_beside_the_raider") {
                break None;
            }
            match self.0.try_lock() {
                Ok(walk) => break Some(walk),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if gone() => break None,
                Err(TryLockError::WouldBlock) => {
                    looks += 1;
                    if looks.is_multiple_of(64) || cfg!(loom) {
                        thread::yield_now()
                    } else {
                        hint::spin_loop()
                    }
                }
            }
        };
        attention.clear(RAIDED);
        if let Some(mut walk) = walk {
            *walk = Walk { last: ptr::null(), raided: 0 };
        }
    }
}

impl<E> Default for RaidGuard<E> {
    fn default() -> Self {
        RaidGuard::new()
    }
}

impl<E: PrivateEntry> Raid<'_, E> {
    /// The link that leads to the next entry.
    fn link(&self) -> &AtomicPtr<E> {
        // SAFETY: RD2.
        unsafe { self.walk.last.as_ref() }.map_or(self.front, PrivateEntry::next)
    }

    /// Calls `take` for the oldest entries that no raid has looked at, until it has answered true for a batch. Answers how often it has.
    ///
    /// # Safety
    ///
    /// Every thread has passed a fence since the raid was begun. What the links lead to is, or was, an entry, whose memory stays meanwhile.
    pub unsafe fn walk(&mut self, mut take: impl FnMut(&E) -> bool) -> usize {
        let most = self.walk.raided.clamp(FEWEST, MOST);
        let mut taken = 0;
        for _ in 0..LOOKS {
            let link = self.link();
            // Acquire: of what was inserted meanwhile all is seen.
            let at = link.load(Ordering::Acquire);
            // SAFETY: by contract.
            let Some(entry) = (unsafe { at.as_ref() }) else { break };
            let stands = entry.place().is_private() || cfg!(mutant = "raided_while_touched");
            if !stands || link.load(Ordering::Acquire) != at {
                // Its owner is at work.
                break;
            }
            self.walk.last = entry;
            taken += usize::from(take(entry));
            if taken == most {
                break;
            }
        }
        self.walk.raided += taken;
        taken
    }
}
