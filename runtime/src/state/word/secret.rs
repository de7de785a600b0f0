//! Secrets: what becomes of a request without its word saying so.
//!
//! An exchange is there to decide between two who come at once. But what a request makes, submits, waits for and drops is mostly its own
//! affair, and nobody else ever comes. A `&Request` may be on another thread without a count, so no plain look can exclude it. What can is a
//! look on whose other side somebody pays: see [`crate::state::asymmetric`].
//!
//! # Vocabulary
//!
//! * **keeper**: the worker that made the request; the owner of its home.
//! * **secret**: the word says [`UNTOLD`] from birth on, and what has become of the request stands in a byte beside it, written by
//!   the keeper alone: listed, started, done.
//! * **to confide**: to write there what is about to be, and look whether the word still is a secret's. If so, it is so.
//! * **to reveal**: to make the word say what the byte says. From then on it goes by exchanges, for good.
//! * **to ask**: to have it revealed by one who is not the keeper.
//!
//! # The race
//!
//! The keeper writes the byte and looks at the word; who asks writes the word (`ASKED`) and looks at the byte. With the fence between, one of them
//! sees the other: a keeper that sees nothing goes on, and what it has confided is seen. If both see each other, who asks
//! decides: it marks the byte as it has seen it, by an exchange, and then reveals that. The keeper, which waits for
//! the word meanwhile, finds its byte marked, and then it is so; or not, and then it is not, and it goes the long way.
//!
//! The same holds for a keeper that has given up ([`Keeper`]): it looks whether its births are secrets, too, so who makes it give
//! them up, and then fences once, has asked for all its secrets. Then the keeper reveals by itself what it would confide.
//!
//! # Who need not ask
//!
//! The keeper; and who has the sole handle *by value*: nobody can be borrowing it, so nothing is being confided, and what
//! was confided came with the handle. (A secret has no other count: who makes one, reveals.)
//!
//! # Invariants
//!
//! * **SE1** While the word has `SECRET` it is `UNTOLD`, but for `ASKED`. So there are one handle, no link, no mark, no
//!   list, and nobody holds the lock.
//! * **SE2** The byte is written by the keeper, while the word is a secret's; and marked by who has set `ASKED`, who alone writes the word next.
//! * **SE3** What is listed stands in the keeper's private list without a link; that comes when it is revealed. What is done has no children.

use forebear_context::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use forebear_context::shim::{hint, thread};

use super::Word;
use super::bits::*;
use crate::state::asymmetric;

/// What stands in the byte, by bits.
const LISTED: u8 = 1;
const STARTED: u8 = 2;
const DONE: u8 = 4;
/// Who asked has seen it so.
const SEEN_SO: u8 = 8;

/// So many looks at a word that is asked for, before the time slice is given up: a fence of all threads takes some 10 µs.
const LOOKS: u32 = 256;

/// What a keeper may confide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confided {
    /// It stands in the private list, submitted.
    Listed = LISTED as isize,
    /// It runs, on the stack of a waiter.
    Started = STARTED as isize,
    /// It is over, with a value, and has no children.
    Done = DONE as isize,
}

/// The byte beside the word. Its meaning ends when the word is revealed.
#[derive(Debug)]
pub struct Secret(AtomicU8);

impl Secret {
    /// Nothing has become of it.
    #[inline(always)]
    pub fn new() -> Secret {
        Secret(AtomicU8::new(0))
    }

    /// Whether this was confided. By who may read it: see the module head.
    #[inline(always)]
    pub fn is(&self, step: Confided) -> bool {
        self.0.load(Ordering::Relaxed) & step as u8 != 0
    }

    /// Whether nothing was confided. As [`is`](Self::is).
    #[inline(always)]
    pub fn is_new(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !SEEN_SO == 0
    }
}

impl Default for Secret {
    fn default() -> Secret {
        Secret::new()
    }
}

/// The word that says what the byte says.
fn revealed(byte: u8) -> Bits {
    let submitted = if byte & LISTED != 0 { SUBMITTED } else { 0 };
    Bits(match byte {
        _ if byte & DONE != 0 => FINISHED | submitted | HANDLE,
        _ if byte & STARTED != 0 => CLAIMED | LENT | submitted | HANDLE,
        _ if byte & LISTED != 0 => SPAWNED,
        _ => NEW | HANDLE,
    })
}

/// What a home knows of its owner as a keeper: whether its births are secrets.
///
/// To be asked costs the one who asks dear, so a keeper whose secrets are asked for gives them up, for good.
#[derive(Debug)]
pub struct Keeper {
    /// The word of a birth: [`UNTOLD`], or new.
    births: AtomicU64,
    /// It has given them up, and everybody has fenced since.
    gave_up: AtomicBool,
    asked: AtomicU32,
    patience: u32,
}

impl Keeper {
    /// One that keeps secrets until so many have been asked for.
    pub fn new(patience: u32) -> Keeper {
        let births = if patience > 0 && asymmetric::is_available() { UNTOLD } else { NEW | HANDLE };
        Keeper {
            births: AtomicU64::new(births),
            gave_up: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            patience,
        }
    }

    /// The word of a request that it makes now, and does not submit.
    #[inline(always)]
    pub fn birth(&self) -> u64 {
        self.births.load(Ordering::Relaxed)
    }

    /// As [`fence`](Self::fence), by one whose asking says nothing of the keeper's habits.
    fn fence_uncounted(&self) {
        if !self.gave_up.load(Ordering::Acquire) {
            asymmetric::heavy();
        }
    }

    /// From here on the caller sees what was confided by a keeper that has not seen what the caller has written.
    fn fence(&self) {
        if self.gave_up.load(Ordering::Acquire) {
            return;
        }
        let last = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1) == self.patience;
        // AS2: where the fence has become dear it is paid once more. Several may be the last then, and each pays.
        let last = last || !asymmetric::is_available();
        if last {
            self.births.store(NEW | HANDLE, Ordering::Relaxed);
        }
        #[cfg(mutant = "gives_up_before_the_fence")]
        if last {
            self.gave_up.store(true, Ordering::Release);
            thread::yield_now();
        }
        asymmetric::heavy();
        #[cfg(not(mutant = "gives_up_before_the_fence"))]
        if last {
            self.gave_up.store(true, Ordering::Release);
        }
    }
}

impl Word {
    /// Confides the next step of a request. By its keeper, which has found the word to be [`UNTOLD`] and may take this step by what is
    /// known to it. True: it is so, for everybody, whether the word is a secret's still or not. False: it is not, and the word is revealed.
    #[inline(always)]
    pub fn confide(&self, secret: &Secret, keeper: &Keeper, step: Confided) -> bool {
        // Who asks this moment may have marked what stood there before.
        #[cfg(not(mutant = "mark_taken_for_ones_own"))]
        let byte = secret.0.load(Ordering::Relaxed) & !SEEN_SO | step as u8;
        #[cfg(mutant = "mark_taken_for_ones_own")]
        let byte = secret.0.load(Ordering::Relaxed) | step as u8;
        // Release: what was done before is seen by who reveals it.
        #[cfg(not(mutant = "confided_relaxed"))]
        secret.0.store(byte, Ordering::Release);
        #[cfg(mutant = "confided_relaxed")]
        secret.0.store(byte, Ordering::Relaxed);
        asymmetric::light();
        #[cfg(mutant = "confided_unlooked")]
        return true;
        #[cfg(mutant = "confided_to_one_who_gave_up")]
        if self.load().0 == UNTOLD {
            return true;
        }
        #[cfg(mutant = "new_taken_for_untold")]
        if self.load().0 == keeper.birth() {
            return true;
        }
        #[cfg(not(mutant = "confided_unlooked"))]
        if self.load().0 == UNTOLD && keeper.birth() == UNTOLD {
            return true;
        }
        #[cfg(not(mutant = "confided_unlooked"))]
        self.asked_meanwhile(secret, byte)
    }

    /// The word when nobody asks for it any more. Who asks may have lost its core in the middle, which is then given to it.
    fn answered(&self, mut seen: Bits) -> Bits {
        let mut looks = 0;
        while seen.has(SECRET) && seen.has(ASKED) {
            looks += 1;
            if looks < LOOKS {
                hint::spin_loop()
            } else {
                thread::yield_now()
            }
            seen = self.load();
        }
        seen
    }

    #[cold]
    #[inline(never)]
    fn asked_meanwhile(&self, secret: &Secret, byte: u8) -> bool {
        let mut seen = self.load();
        loop {
            seen = self.answered(seen);
            if !seen.has(SECRET) {
                // Who asked marked the byte before it wrote the word, which was acquired.
                #[cfg(mutant = "asked_counts_always")]
                return true;
                #[cfg(not(mutant = "asked_counts_always"))]
                return secret.0.load(Ordering::Relaxed) == byte | SEEN_SO;
            }
            // It is the keeper that has given up.
            match self.swap_if(seen, revealed(byte)) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Reveals it, and adds `more` to the word in the same exchange, unless it was revealed before: then this answers false, and nothing was added. By the
    /// keeper, or who has the sole handle by value.
    #[cold]
    #[inline(never)]
    pub fn reveal(&self, secret: &Secret, more: u64) -> bool {
        let mut seen = self.load();
        loop {
            seen = self.answered(seen);
            if !seen.has(SECRET) {
                return false;
            }
            let next = Bits(revealed(secret.0.load(Ordering::Acquire)).0 + more);
            #[cfg(mutant = "revealed_by_store")]
            {
                self.0.store(next.0, Ordering::Release);
                return true;
            }
            #[cfg(not(mutant = "revealed_by_store"))]
            match self.swap_if(seen, next) {
                Ok(()) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back the handle of what is listed and no more, by the keeper, who has it by value: so every count is in its hand (W8). `touch`
    /// touches the entry, or a raider asks for it ([`crate::state::raid`]). False: nothing was done.
    #[inline]
    pub fn drop_listed(&self, secret: &Secret, touch: impl FnOnce() -> bool) -> bool {
        if secret.0.load(Ordering::Relaxed) != LISTED || !touch() {
            return false;
        }
        self.0.store(SPAWNED_DETACHED, Ordering::Relaxed);
        true
    }

    /// Has it revealed, by anybody.
    #[cold]
    #[inline(never)]
    pub fn ask_for(&self, secret: &Secret, keeper: &Keeper) {
        self.ask(secret, || keeper.fence());
    }

    /// The same by a raider: nobody wanted this request in particular, so it is not counted.
    #[cold]
    pub fn ask_for_raid(&self, secret: &Secret, keeper: &Keeper) {
        self.ask(secret, || keeper.fence_uncounted());
    }

    fn ask(&self, secret: &Secret, fence: impl FnOnce()) {
        let mut seen = self.load();
        loop {
            seen = self.answered(seen);
            if !seen.has(SECRET) {
                return;
            }
            match self.swap_if(seen, Bits(seen.0 | ASKED)) {
                Ok(()) => break,
                Err(now) => seen = now,
            }
        }
        fence();
        #[cfg(mutant = "asked_by_look")]
        let byte = secret.0.load(Ordering::Acquire);
        #[cfg(not(mutant = "asked_by_look"))]
        let byte = secret.0.fetch_or(SEEN_SO, Ordering::AcqRel);
        // SE2: nobody else writes it while it is asked for.
        self.0.store(revealed(byte).0, Ordering::Release);
    }
}
