//! A request's own deadline, in its side block: what becomes of its entry with the runtime's [`Deadlines`](crate::time::deadlines).
//!
//! # Vocabulary
//!
//! * **due**: the instant at which the request is to be aborted, and what is known of its entry.
//! * **to come**: what a deadline does when its time is there.
//! * **kept**: the request is over and has left children, for which its deadline counts like for itself. So its entry stays where
//!   it is until the last of them has gone. If it *comes* then, it asks them, as a cancel of the request would have.
//!
//! # The race
//!
//! *The deadline against the end.* The entry owns a link. The finisher takes the entry back, and gets the link if it was
//! there; otherwise the firing thread has it. What is left to abort the request's word decides: from *completing* on there is nothing,
//! but for a family.
//!
//! *The deadline against the children of one that is over.* A walk to cancelled ancestors passes a request once it is
//! over ([`crate::state::ancestor_walk`]), and that may not change any more. So the finisher stores *before* the
//! terminal exchange that a deadline is kept. A thread that finds the request over finds that, too.
//!
//! # Invariants
//!
//! * **DU1** The maker writes the number of the entry before any other thread knows the request. The finisher writes it
//!   again if it arms anew what it has disarmed too early. The entry may fire before. Then it is out of the container
//!   already, and a removal by an old number, or by none, is refused.
//! * **DU2** A deadline is kept by the request's owner, before the terminal exchange; the firing thread writes that it came.
//!   Neither is taken back.

use std::time::Instant;

use forebear_context::shim::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use forebear_context::shim::mutant;

use crate::state::word::{CALLBACKS, Cancel, MARKED, Word};

/// See the module head.
#[derive(Debug)]
pub struct Due {
    at: Instant,
    /// The entry's number; 0 before there is one.
    alarm: AtomicU64,
    /// Which wheel the entry is in, as [`Deadlines`](crate::time::deadlines) counts them.
    wheel: AtomicU32,
    stage: AtomicU8,
}

/// It concerns the request, or nobody any more.
const OWN: u8 = 0;
/// The request is over, or about to be, and has a family.
const KEPT: u8 = 1;
/// It came when the request was as good as over.
const CAME_LATE: u8 = 2;

impl Due {
    /// A deadline without an entry.
    pub fn new(at: Instant) -> Due {
        Due { at, alarm: AtomicU64::new(0), wheel: AtomicU32::new(0), stage: AtomicU8::new(OWN) }
    }

    /// When it comes.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// The entry has this number. By the maker (DU1).
    pub fn armed(&self, alarm: u64) {
        self.alarm.store(alarm, Ordering::Relaxed);
    }

    /// Which wheel the entry is in. As [`armed`](Self::armed), before it.
    pub fn set_wheel(&self, wheel: u32) {
        self.wheel.store(wheel, Ordering::Relaxed);
    }

    /// Which wheel the entry is in.
    #[inline]
    pub fn wheel(&self) -> u32 {
        self.wheel.load(Ordering::Relaxed)
    }

    /// The entry's number; 0 if there is none.
    #[inline]
    pub fn alarm(&self) -> u64 {
        self.alarm.load(Ordering::Relaxed)
    }

    /// The end of a request that has no children, on the thread that keeps the entry. It removes the entry by
    /// `take_back`. Then `finish` makes the word terminal by an exchange that gives up one link: the entry's, or the
    /// runner's in its place if there is a `runner_link`. If the exchange is refused, since there are callbacks or a
    /// mark now, `arm` arms the entry anew. Answers whether the request is over; if not, all is as before.
    #[inline(always)]
    pub fn ends_in_time(
        word: &Word,
        runner_link: bool,
        take_back: impl FnOnce() -> bool,
        finish: impl FnOnce() -> bool,
        arm: impl FnOnce(),
    ) -> bool {
        let bits = word.load();
        if bits.has(CALLBACKS) || bits.has(MARKED) || !take_back() {
            return false;
        }
        if runner_link {
            mutant!("limited_ends_with_both_links", (), word.release_link());
        }
        let ended = finish();
        if !ended {
            if runner_link {
                mutant!("limited_is_armed_anew_without_a_link", (), word.add_link());
            }
            arm();
        }
        ended
    }

    /// The request is about to go terminal, with or without a family that this is to be kept for. By its owner.
    pub fn ends(&self, has_family: bool) {
        #[cfg(not(mutant = "due_kept_after_the_end"))]
        if has_family {
            self.keep();
        }
        let _ = has_family;
    }

    /// It has gone terminal: takes the entry back by `take_back`, unless it is kept. Whether the entry's link is the caller's.
    pub fn ended(&self, has_family: bool, take_back: impl FnOnce(u64) -> bool) -> bool {
        #[cfg(mutant = "due_kept_after_the_end")]
        if has_family {
            self.keep();
        }
        !has_family && self.take_back(take_back)
    }

    /// The last of the family that it was kept for has gone. Whether the entry's link is the caller's.
    pub fn family_ends(&self, take_back: impl FnOnce(u64) -> bool) -> bool {
        self.take_back(take_back)
    }

    fn keep(&self) {
        // It may have come meanwhile.
        let _ = self.stage.compare_exchange(OWN, KEPT, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn take_back(&self, take_back: impl FnOnce(u64) -> bool) -> bool {
        mutant!("due_link_taken_unasked", {
            take_back(self.alarm.load(Ordering::Relaxed));
            return true;
        });
        take_back(self.alarm.load(Ordering::Relaxed))
    }

    /// Its time is there: aborts the request whose word this is. `note` writes the reason, as for [`Word::abort`]. If that is too
    /// late, the thread that ends the request's family finds that it came. By the owner of the entry's link.
    pub fn fire(&self, word: &Word, note: impl FnOnce()) -> Cancel {
        let answer = word.abort(note);
        if answer == Cancel::TooLate {
            self.stage.store(CAME_LATE, Ordering::Release);
        }
        answer
    }

    /// Of one that is over: whether a question for its cancelled ancestors has to ask here, now and for ever.
    pub fn is_kept(&self) -> bool {
        self.stage.load(Ordering::Acquire) != OWN
    }

    /// Whether it came when the request was as good as over.
    pub fn came_late(&self) -> bool {
        self.stage.load(Ordering::Acquire) == CAME_LATE
    }
}
