//! A wheel in which an entry may stay that is taken back. The lock that it lies behind is its shard's ([`super`]).
//!
//! # Vocabulary
//!
//! * **stay**: an owner's entry that is taken back may stay where it is filed. It **rests** there until the same waiter arms again, and is due
//!   when *that* wait is.
//! * **standing**: where a waiter's entry that stays is, and for when it is filed.
//!
//! # What stays
//!
//! Nearly every time-out is disarmed, and the next of the same waiter is nearly always later. So to disarm an entry is
//! to write that it rests. To arm it again is to write when it is due, if its place in the wheel is no later than that.
//! When the wheel reaches the entry, it inserts it anew for the instant at which it is due, or drops it if it rests. A
//! waiter has one entry that stays; other entries of it are inserted and removed as usual. A waiter that ends
//! [unregisters](super::Shards::dismiss) its own.
//!
//! # Invariants
//!
//! * **B4** What stands is filed for no later than it is due. A standing that names what is no longer in the wheel names nothing: no
//!   two entries ever have the same number.
//! * **B5** A standing is touched by its waiter's owner, and by the holder of the shard's lock while the entry is armed. What several share is touched
//!   under the lock only.

use forebear_context::shim::mutant;
use std::cell::Cell;
use std::ptr::NonNull;
use std::time::Instant;

use forebear_timer::{Key, Wheel};

/// The name of an entry, which is its key's; never 0.
pub type Number = u64;

/// The name of what stands, by which key ever: it gets another when it is filed anew. No key has this number.
const STANDS: Number = Number::MAX;

/// What is armed.
///
/// # Safety
///
/// See [`standing`](Self::standing).
pub unsafe trait TimerEntry {
    /// When it is due, if it is one that stays.
    #[inline]
    fn when(&self) -> DueWhen {
        DueWhen::AsFiled
    }

    /// Whether it is not armed.
    #[inline]
    fn rests(&self) -> bool {
        self.when() == DueWhen::Rests
    }

    /// It rests from now on.
    fn rest(&mut self) {}

    /// Where it says where it stands, if it is one that stays. Under the lock of its shard.
    ///
    /// What is answered stays as long as the entry is in, and is the entry's and its owner's.
    fn standing(&self) -> Option<NonNull<Standing>> {
        None
    }
}

/// When an entry is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueWhen {
    /// At the instant for which it is in the wheel.
    AsFiled,
    /// Then, which is not before that.
    At(Instant),
    /// It is not armed.
    Rests,
}

/// Where the entry of one who arms again and again stands (B4, B5). Several may share one: the entry that is armed first stands there.
#[derive(Debug, Default)]
pub struct Standing {
    at: Cell<Option<(Key, Instant)>>,
    /// What stands there may be armed; if not, it rests or there is none.
    armed: Cell<bool>,
}

impl Standing {
    /// Whether anything may stand there. To its owner.
    #[inline]
    pub fn is_some(&self) -> bool {
        self.at.get().is_some()
    }

    /// By which key it stands there, and for when it is filed. To its owner.
    #[inline(always)]
    pub(super) fn filed(&self) -> Option<(Key, Instant)> {
        self.at.get()
    }

    /// Whether it may be armed. To its owner.
    #[inline(always)]
    pub(super) fn may_be_armed(&self) -> bool {
        self.armed.get()
    }
}

/// See the module head.
pub(super) struct Filed<E> {
    wheel: Wheel<E>,
    /// How many of these rest.
    resting: usize,
}

impl<E: TimerEntry> Filed<E> {
    pub(super) fn new(origin: Instant) -> Filed<E> {
        Filed { wheel: Wheel::new(origin), resting: 0 }
    }

    /// How many are armed.
    pub(super) fn armed(&self) -> usize {
        self.wheel.len() - self.resting
    }

    #[cfg(test)]
    pub(super) fn resting(&self) -> usize {
        self.resting
    }

    /// What is filed for the earliest instant: exactly. It may rest.
    pub(super) fn earliest(&mut self) -> Option<Instant> {
        self.wheel.earliest()
    }

    /// It is so late, and nothing is due: what is filed from now on lies as low as can be.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) {
        self.wheel.advance(now);
    }

    /// Files an entry for `at`. If it is one that stays, it takes the place of what rests where it is to stand. (If another is armed there,
    /// it stands nowhere.)
    #[inline]
    pub(super) fn file(&mut self, at: Instant, entry: E) -> Number {
        let Some(standing) = entry.standing() else { return self.wheel.insert(at, entry).number() };
        // SAFETY: an entry stands beside whom it is for, who stays while it is in.
        let standing = unsafe { standing.as_ref() };
        if let Some((there, _)) = standing.at.get() {
            match self.wheel.get_mut(there).map(|entry| entry.rests()) {
                Some(true) => _ = self.take_out(there),
                Some(_) => return self.wheel.insert(at, entry).number(),
                None => {}
            }
        }
        let key = self.wheel.insert(at, entry);
        standing.at.set(Some((key, at)));
        standing.armed.set(true);
        STANDS
    }

    /// Arms what stands there, by that key, and rests. To the owner of both, which has seen that it is filed for no later (B4).
    #[inline(always)]
    pub(super) fn arm_again(
        &mut self,
        key: Key,
        standing: &Standing,
        entry: impl FnOnce() -> E,
    ) -> Option<Number> {
        let resting = self.wheel.get_mut(key)?;
        if !resting.rests() {
            return None;
        }
        *resting = entry();
        self.resting -= 1;
        standing.armed.set(true);
        Some(STANDS)
    }

    #[inline]
    pub(super) fn remove(&mut self, number: Number) -> Option<E> {
        self.take_out(Key::from_number(number)?)
    }

    /// Takes back what has that number; what stands there stays, and rests. Answers whether it was in. To the owner of both.
    #[inline(always)]
    pub(super) fn put_to_rest(&mut self, standing: &Standing, number: Number) -> bool {
        if number != STANDS {
            return self.remove(number).is_some();
        }
        let key = standing.at.get().map(|(key, _)| key);
        let Some(entry) = key.and_then(|key| self.wheel.get_mut(key)) else { return false };
        entry.rest();
        self.resting += 1;
        standing.armed.set(false);
        true
    }

    /// The same where several share a place to stand, if it is the entry that `is_it` is true of. To the holder of the shard's lock.
    #[inline(always)]
    pub(super) fn take_back(
        &mut self,
        standing: &Standing,
        number: Number,
        is_it: impl FnOnce(&E) -> bool,
    ) -> bool {
        if number != STANDS {
            return self.remove(number).is_some();
        }
        let key = standing.at.get().map(|(key, _)| key);
        let Some(entry) = key.and_then(|key| self.wheel.get_mut(key)) else { return false };
        // What had that number may have fired, and another may stand there by now.
        mutant!("another_is_taken_back", (), {
            if !is_it(entry) {
                return false;
            }
        });
        entry.rest();
        self.resting += 1;
        standing.armed.set(false);
        true
    }

    /// Takes out what stands there. To its owner.
    #[inline]
    pub(super) fn dismiss(&mut self, standing: &Standing) {
        if let Some((key, _)) = standing.at.take() {
            self.take_out(key);
        }
    }

    /// Takes out the first that is filed for `now` or earlier.
    #[inline(always)]
    pub(super) fn pop(&mut self, now: Instant) -> Option<E> {
        self.wheel.pop_due(now)
    }

    /// What has come out, if it is due at `now`. If it is due later, by what was written since it was filed, it is filed anew, and if it
    /// rests it is dropped.
    #[inline(always)]
    pub(super) fn due(&mut self, entry: E, now: Instant) -> Option<E> {
        match entry.when() {
            DueWhen::Rests => self.resting -= 1,
            DueWhen::At(at) if at > now && !cfg!(mutant = "what_stays_fires_as_filed") => {
                mutant!("filed_anew_elsewhere", {
                    self.wheel.insert(at, entry);
                    return None;
                });
                self.file(at, entry);
            }
            _ => return Some(entry),
        }
        None
    }

    /// Takes all out, and answers those that were armed.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = E> + use<E> {
        self.resting = 0;
        self.wheel.take_all().into_iter().filter(|entry| !entry.rests())
    }

    #[inline]
    fn take_out(&mut self, key: Key) -> Option<E> {
        let entry = self.wheel.remove(key)?;
        if entry.rests() {
            self.resting -= 1;
        }
        Some(entry)
    }
}
