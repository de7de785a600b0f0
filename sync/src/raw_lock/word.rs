//! The word of a lock: its bits, the holder's address beside them, and the orderings of its exchanges. The head of [`super`] says what they mean.

use forebear_context::context::Context;
use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_context::shim::mutant;

pub(super) const LOCKED: usize = 1;
pub(super) const PARKED: usize = 2;
pub(super) const RESERVED: usize = 4;
pub(super) const COMING: usize = 8;
pub(super) const BITS: usize = LOCKED | PARKED | RESERVED | COMING;

pub(super) const RELEASE: Ordering = mutant!("unlock_lock_relaxed", Ordering::Relaxed, Ordering::Release);
pub(super) const ACQUIRE: Ordering = mutant!("barge_relaxed", Ordering::Relaxed, Ordering::Acquire);
/// How an acquirer stores its identity in the lock.
pub(super) const NAMING: Ordering =
    mutant!("holder_not_released", ACQUIRE, mutant!("barge_relaxed", ACQUIRE, Ordering::AcqRel));

#[inline(always)]
pub(super) fn with_bits(holder: *mut Context, bits: usize) -> *mut Context {
    holder.map_addr(|at| at | bits)
}

#[inline(always)]
pub(super) fn bits(word: *mut Context) -> usize {
    word.addr() & BITS
}

#[inline(always)]
pub(super) fn holder(word: *mut Context) -> *mut Context {
    word.map_addr(|at| at & !BITS)
}

const _: () = assert!(align_of::<Context>() > BITS);

/// Changes a word that has a holder's address and bits, by exchanges until one succeeds. Returns the old word.
pub(crate) fn change(word: &AtomicPtr<Context>, with: impl Fn(*mut Context) -> *mut Context) -> *mut Context {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        match word.compare_exchange_weak(seen, with(seen), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(was) => return was,
            Err(now) => seen = now,
        }
    }
}
