//! Children: the children of a request that more than their maker's private queue must know of.
//!
//! A cancel continues to the children of the cancelled request. Most children never suspend and never leave their
//! worker, and should cost nothing for it. So the list of children has only some of them. These are children that were
//! published, submitted as roots or claimed elsewhere. They are also children that suspended, with all below them on
//! the same stack, and children that ended before their own children. The worker finds the others: in one piece of its
//! private queue, or on the stack that runs.
//!
//! The list begins in the parent's header ([`crate::state::slot`]) and goes through the children's `next` and `prev`, which are free
//! once they have left the private queue. A child leaves it when its header ends.
//!
//! # Invariants
//!
//! * **N1** The list belongs to the owner of the parent's `ran_on`, which is the children's `arena` (H1). If that is a foreign
//!   thread's, which comes and goes, the list has a lock besides, and its holder may walk. So has a worker's from the
//!   moment that it has gone for good.
//! * **N2** A header stands in it iff its `place` is `Child`.
//! * **N3** A request whose state says `SETTLED` is in its parent's list, or a message that will enter it has been
//!   sent. The same holds for all requests below it on its stack.

use std::ptr;

use forebear_context::lineage::Lineage;
use forebear_context::shim::atomic::Ordering;

use crate::record::arena::Arena;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, HeaderPlace, SETTLED};

/// The lineage of the next child of `maker`, which runs on this fiber; it is counted.
#[inline(always)]
pub(crate) fn child_of(maker: &Header) -> Lineage {
    // SAFETY: LN1: a child's header keeps its parent's.
    unsafe { Lineage::child(&maker.lineage, count_child(maker)) }
}

/// Counts one more child of `maker`, and answers its rank.
#[inline(always)]
pub(crate) fn count_child(maker: &Header) -> u32 {
    let rank = maker.next_rank.get();
    maker.next_rank.set(rank.wrapping_add(1));
    rank
}

/// Puts a request into its parent's list, if it has a parent and stands in no list. By the owner of its arena.
pub(crate) fn link(h: &Header) {
    if h.place.get() != HeaderPlace::Nowhere {
        return;
    }
    let Some(parent) = h.parent() else { return };
    // SAFETY: M3.
    let _lock = unsafe { h.arena.get().as_ref() }.and_then(Arena::lock_families);
    // SAFETY: N1.
    let first = unsafe { parent.side.first_child() };
    // SAFETY: N1.
    unsafe { parent.side.set_first_child(h) };
    h.prev.set(ptr::null());
    h.next.store(first.cast_mut(), Ordering::Relaxed);
    // SAFETY: N2: listed headers are alive.
    if let Some(first) = unsafe { first.as_ref() } {
        first.prev.set(h);
    }
    h.place.set(HeaderPlace::Child);
}

/// Takes a request out of its parent's list, where it stands.
///
/// # Safety
///
/// N1, N2.
#[cold]
pub(crate) unsafe fn unlink(h: &Header) {
    // SAFETY: M3.
    let _lock = unsafe { h.arena.get().as_ref() }.and_then(Arena::lock_families);
    let (prev, next) = (h.prev.get(), h.next.load(Ordering::Relaxed));
    // SAFETY: N2: it stands in its parent's list, so its neighbours do, and listed headers are alive.
    match unsafe { prev.as_ref() } {
        Some(prev) => prev.next.store(next, Ordering::Relaxed),
        None => {
            if let Some(parent) = h.parent() {
                // SAFETY: H1, N2: the parent is alive, and its list is the caller's.
                unsafe { parent.side.set_first_child(next) };
            }
        }
    }
    // SAFETY: N2: as for `prev`.
    if let Some(next) = unsafe { next.as_ref() } {
        next.prev.set(prev);
    }
    h.place.set(HeaderPlace::Nowhere);
}

/// Calls `with` for each child that stands in the list of `parent`. It leaves the list as it is.
///
/// # Safety
///
/// N1: the caller is the owner, or holds the lock.
pub(crate) unsafe fn each(parent: &Header, mut with: impl FnMut(&Header)) {
    // SAFETY: N1.
    let mut at = unsafe { parent.side.first_child() };
    // SAFETY: N1, N2.
    while let Some(child) = unsafe { at.as_ref() } {
        at = child.next.load(Ordering::Relaxed);
        with(child);
    }
}

/// Sees to it that all that runs on `fiber` can be found from its parents. By the fiber's own thread; `arena` is where its
/// requests' children are made.
#[inline(always)]
pub(crate) fn settle(fiber: &Fiber, arena: *const Arena) {
    if let Some(top) = fiber.request()
        && !is_settled(top)
    {
        settle_from(top, arena);
    }
}

/// Whether [`settle`] has nothing to do on a fiber with this request on top.
#[inline(always)]
pub(crate) fn is_settled(top: &Header) -> bool {
    top.state.get() & SETTLED != 0
}

#[cold]
#[inline(never)]
fn settle_from(top: &Header, arena: *const Arena) {
    let mut at = Some(top);
    while let Some(h) = at.filter(|h| h.state.get() & SETTLED == 0) {
        h.state.set(h.state.get() | SETTLED);
        if ptr::eq(h.arena.get(), arena) {
            link(h);
        }
        // SAFETY: the request below is not over while this one is on top of it.
        at = unsafe { h.lender.get().as_ref() };
    }
}
