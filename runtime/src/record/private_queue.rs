//! The private queue: unstarted requests that only their maker's worker knows of.
//!
//! Oldest lineage in front, mostly without comparing: a child goes behind its parent's last listed child. A first child goes
//! to the front, if its parent was the smallest when it was picked by the loop; or to the back, if its parent was taken
//! out of the list's end by its waiter, which a look at the last entry tells. The list is the depth-first frontier of what
//! this worker has begun. Lineages are not compared beyond that look, and roots only when the front belongs to another
//! one; so within one root a resumed request's children may stand before what is older.
//!
//! # Invariants
//!
//! * **P1** All of it is changed by the worker alone. Others read `front`, and the `next` and `place` of entries: raiders ([`crate::state::raid`]), and
//!   [`PrivateQueue::count_from_outside`]. So an entry is whole before a link leads to it, and is touched (RD1) before it is taken out. Every store of a
//!   link that leads on from the list is a release, a removal's too: a raider may come to an entry by that store alone.
//! * **P2** A request stands here iff its `place` is `Private`, or it is touched (RD1); the list holds one of its links.
//! * **P3** A parent's `last_child` is its last child that stands here, or null. Taking that child out sets it to its
//!   predecessor if that is a sibling.
//!
//! # Who writes an entry's place
//!
//! Always the owner of the header's arena (H3). A place goes back to `Private` only where no code between the two stores can take the entry
//! out: no message is attended and no user code runs there. Code that handles messages first reads the place again.
//!
//! | from | to | who | where |
//! |---|---|---|---|
//! | – | `Private` | a spawn, at birth | `api/request/spawn.rs` |
//! | `Nowhere` | `Private` | a submission | `schedule/submit.rs`, `list_privately` |
//! | `Private` | `Nowhere` | a touch | `state/raid.rs`, `Placed::touch` |
//! | `Nowhere` | `Private` | a touch that was refused | the same |
//! | `Nowhere` | `Private` | the drop of a listed handle, after its store | `api/request/counts.rs` |
//! | `Nowhere` | `Private` | a cancel that has not ended the entry | `schedule/worker/raids.rs`, `cancel_listed` |
//! | `Nowhere` | `Child` | a publication, a start, a stale entry that was popped | `record/children.rs`, `link` |
//! | `Child` | `Nowhere` | an end | `record/children.rs`, `unlink` |

use std::cell::Cell;
use std::ptr;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicPtr, Ordering};

use crate::record::header::{Header, HeaderPlace};
use crate::state::word::{LOCAL, PRIVATE};

/// See the module head.
pub(crate) struct PrivateQueue {
    /// Read by others too (P1).
    front: AtomicPtr<Header>,
    back: Cell<*const Header>,
}

impl PrivateQueue {
    /// An empty list.
    pub(crate) fn new() -> PrivateQueue {
        PrivateQueue { front: AtomicPtr::new(ptr::null_mut()), back: Cell::new(ptr::null()) }
    }

    /// The oldest.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Header> {
        // SAFETY: P2: listed headers are alive.
        unsafe { self.front.load(Ordering::Relaxed).as_ref() }
    }

    /// The oldest, `target` aside.
    pub(crate) fn front_but(&self, target: *const Header) -> Option<&Header> {
        let front = self.front()?;
        if !ptr::eq(front, target) {
            return Some(front);
        }
        // SAFETY: P2.
        unsafe { front.next.load(Ordering::Relaxed).as_ref() }
    }

    /// Whether exactly one stands here.
    #[inline(always)]
    pub(crate) fn is_single(&self) -> bool {
        let front = self.front.load(Ordering::Relaxed);
        !front.is_null() && ptr::eq(front, self.back.get())
    }

    /// The oldest one's root key.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.front().map_or(NO_KEY, |header| header.lineage.key())
    }

    /// Calls `with` for each entry, the oldest first.
    pub(crate) fn each(&self, mut with: impl FnMut(&Header)) {
        let mut at = self.front();
        while let Some(entry) = at {
            with(entry);
            // SAFETY: P2.
            at = unsafe { entry.next.load(Ordering::Relaxed).as_ref() };
        }
    }

    /// About how many requests stand here, by another thread than the worker's, which may change the list meanwhile. Exact if it
    /// does not.
    ///
    /// The walk may leave the list, if an entry is taken out and its memory used again while the walk stands there; it then goes on along
    /// another list of headers. So it counts only what says that it is private, and ends after `most`.
    ///
    /// # Safety
    ///
    /// Inside [`reclaim::read_section`](crate::record::reclaim::read_section): then the memory of every header that is in a list after the look has begun stays.
    /// Each header that the walk comes to was in a list then: the front was, and what `next` of such a header leads to was.
    pub(crate) unsafe fn count_from_outside(&self, most: usize) -> usize {
        let (mut count, mut at) = (0, self.front.load(Ordering::Relaxed));
        for _ in 0..most {
            // SAFETY: by contract.
            let Some(entry) = (unsafe { at.as_ref() }) else { break };
            let bits = entry.bare.load();
            count += usize::from(bits.has(LOCAL) || bits.has(PRIVATE) && bits.is_unstarted());
            at = entry.next.load(Ordering::Relaxed);
        }
        count
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
            Some(before) => put_behind(&before.next, header),
            None => put_behind(&self.front, header),
        };
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

    /// The link that leads to the oldest, for raiders.
    pub(crate) fn first(&self) -> &AtomicPtr<Header> {
        &self.front
    }

    /// Takes a request out that stands here and is touched (RD1).
    #[inline(always)]
    pub(crate) fn unlink(&self, header: &Header) {
        let (prev, next) = (header.prev.get(), header.next.load(Ordering::Relaxed).cast_const());
        // SAFETY: P2.
        unsafe {
            match prev.as_ref() {
                Some(prev) => prev.next.store(next.cast_mut(), Ordering::Release),
                None => self.front.store(next.cast_mut(), Ordering::Release),
            }
            match next.as_ref() {
                Some(next) => next.prev.set(prev),
                None => self.back.set(prev),
            }
        }
        debug_assert_eq!(header.place.get(), HeaderPlace::Nowhere, "RD1");
        if let Some(parent) = header.parent()
            && ptr::eq(parent.last_child.get(), header)
        {
            // SAFETY: P2, P3.
            let sibling = unsafe { prev.as_ref() }
                .is_some_and(|prev| ptr::eq(prev.lineage.parent(), header.lineage.parent()));
            parent.last_child.set(if sibling { prev } else { ptr::null() });
        }
    }
}

/// Has `link` lead to `header`, and that to what `link` led to, which is answered. The link is a release (P1).
#[inline(always)]
fn put_behind(link: &AtomicPtr<Header>, header: &Header) -> *const Header {
    let after = link.load(Ordering::Relaxed);
    header.next.store(after, Ordering::Relaxed);
    link.store(ptr::from_ref(header).cast_mut(), Ordering::Release);
    after
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
