//! The private list: unstarted requests that only their maker's worker knows of.
//!
//! Oldest lineage in front, mostly without comparing: a child goes behind its parent's last listed child. A first child goes
//! to the front, if its parent was the smallest when it was picked by the loop; or to the back, if its parent was taken
//! out of the list's end by its waiter, which a look at the last entry tells. The list is the depth-first frontier of what
//! this worker has begun. Lineages are not compared beyond that look, and roots only when the front belongs to another
//! one; so within one root a resumed request's children may stand before what is older.
//!
//! # Invariants
//!
//! * **P1** All of it is touched by the worker alone.
//! * **P2** A request stands here iff its `place` is `Private`; the list holds one of its links.
//! * **P3** A parent's `last_child` is its last child that stands here, or null. Taking that child out sets it to its
//!   predecessor if that is a sibling.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;

use crate::header::{Header, Place};

/// See the module head.
pub(crate) struct PrivateList {
    front: Cell<*const Header>,
    back: Cell<*const Header>,
}

impl PrivateList {
    /// An empty list.
    pub(crate) fn new() -> PrivateList {
        PrivateList { front: Cell::new(ptr::null()), back: Cell::new(ptr::null()) }
    }

    /// The oldest.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Header> {
        // SAFETY: P2: listed headers are alive.
        unsafe { self.front.get().as_ref() }
    }

    /// Whether exactly one stands here.
    #[inline(always)]
    pub(crate) fn is_single(&self) -> bool {
        !self.front.get().is_null() && ptr::eq(self.front.get(), self.back.get())
    }

    /// The oldest one's root key.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.front().map_or(NO_KEY, |header| header.lineage.key())
    }

    /// Puts in a request whose lineage and place are set.
    #[inline(always)]
    pub(crate) fn insert(&self, header: &Header) {
        let parent = header.parent();
        // SAFETY: P2, P3, here and below.
        let before: *const Header = match parent {
            Some(parent) => {
                let last = parent.last_child.replace(header);
                // SAFETY: P2.
                match unsafe { self.back.get().as_ref() } {
                    _ if !last.is_null() => last,
                    None => ptr::null(),
                    Some(back) if goes_before(back, parent) => back,
                    Some(_) if self.key() >= header.lineage.key() => ptr::null(),
                    Some(_) => self.last_older(header),
                }
            }
            None => self.last_older(header),
        };
        header.prev.set(before);
        // SAFETY: P2.
        let after = match unsafe { before.as_ref() } {
            Some(before) => {
                let after = before.next.load(Ordering::Relaxed).cast_const();
                before.next.store(ptr::from_ref(header).cast_mut(), Ordering::Relaxed);
                after
            }
            None => self.front.replace(header),
        };
        header.next.store(after.cast_mut(), Ordering::Relaxed);
        // SAFETY: P2.
        match unsafe { after.as_ref() } {
            Some(after) => after.prev.set(header),
            None => self.back.set(header),
        }
    }

    /// The last entry that belongs to an older root than `header`'s.
    #[cold]
    fn last_older(&self, header: &Header) -> *const Header {
        let mut last = ptr::null();
        let mut at = self.front();
        while let Some(entry) = at {
            if entry.lineage.key() >= header.lineage.key() {
                break;
            }
            last = entry;
            // SAFETY: P2.
            at = unsafe { entry.next.load(Ordering::Relaxed).as_ref() };
        }
        last
    }

    /// Takes a request out that stands here.
    #[inline(always)]
    pub(crate) fn remove(&self, header: &Header) {
        let (prev, next) = (header.prev.get(), header.next.load(Ordering::Relaxed).cast_const());
        // SAFETY: P2.
        unsafe {
            match prev.as_ref() {
                Some(prev) => prev.next.store(next.cast_mut(), Ordering::Relaxed),
                None => self.front.set(next),
            }
            match next.as_ref() {
                Some(next) => next.prev.set(prev),
                None => self.back.set(prev),
            }
        }
        header.place.set(Place::Nowhere);
        if let Some(parent) = header.parent()
            && ptr::eq(parent.last_child.get(), header)
        {
            // SAFETY: P2, P3.
            let sibling = unsafe { prev.as_ref() }
                .is_some_and(|prev| ptr::eq(prev.lineage.parent(), header.lineage.parent()));
            parent.last_child.set(if sibling { prev } else { ptr::null() });
        }
    }

    /// Takes the oldest out.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<NonNull<Header>> {
        let front = self.front()?;
        self.remove(front);
        Some(NonNull::from(front))
    }
}

/// Whether an entry stands before the children of `parent`, as far as a short look can tell: an elder sibling of the
/// parent, or of a near ancestor.
#[inline(always)]
fn goes_before(entry: &Header, parent: &Header) -> bool {
    /// Those who take what they have just made are this close.
    const NEAR: usize = 4;
    let mut ancestor = parent;
    for _ in 0..NEAR {
        if ptr::eq(ancestor.lineage.parent(), entry.lineage.parent()) {
            return entry.lineage.rank() < ancestor.lineage.rank()
                && entry.lineage.key() == ancestor.lineage.key();
        }
        match ancestor.parent() {
            Some(next) => ancestor = next,
            None => return false,
        }
    }
    false
}
