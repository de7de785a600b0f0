//! The private queue: unstarted requests that only their maker's worker knows of, in the order of their lineages.
//!
//! # Vocabulary
//!
//! * **entry**: a request that stands here. It has a parent: roots stand in the injector.
//! * **piece**: siblings that stand one directly behind the other. Mostly the listed children of a request are one piece.
//! * **scattered**: a request whose listed children may stand in several pieces, with descendants of others of its children between them. The bit
//!   [`SCATTERED`](crate::record::header::SCATTERED) of its state says so, and is never taken down.
//! * **anchor**: an entry that the index names.
//! * **maker**: the parent of the child that was inserted last while the list had other entries, unless descendants of that parent stand behind its last
//!   listed child. A child that goes to its place by way 4 below does not count. An address that is only compared: the maker may be gone, and another
//!   request stand there.
//!
//! # How a place is found
//!
//! The common ways compare nothing, or ranks only:
//!
//! 1. The parent is the maker, and the new entry is younger than its last listed child: the new entry stands directly behind that child. So do
//!    children spawned one after the other.
//! 2. The parent has no listed child, and the last entry of the list is an elder sibling of the parent or of a near
//!    ancestor. Then the new entry is the last. This is so if a waiter took the parent from the end of the list.
//! 3. The same, and the first entry is a younger sibling of the parent or of a near ancestor, or of a younger root: the new entry is the first. A
//!    request that the loop took from the front spawns so.
//! 4. The new entry is elder than its parent's last listed child: a walk from that child compares ranks, over at most [`SHORT`] siblings. Dependents
//!    that become ready in another order than they were made in stand so.
//!
//! All others compare lineages: with the neighbours behind the last sibling, with the last entry, with the first, and then by a search.
//!
//! # The index
//!
//! The search has a sorted array of anchors, some [`STEP`] entries apart. It finds the stretch between two anchors by halving, follows its links, and finds
//! the place in it by halving. Where it has walked through a stretch of more than two steps, it makes anchors. Insertions tell the index
//! nothing: they make stretches longer. A removal drops the anchor that is taken out, and asks for it only while there are anchors.
//!
//! So a search compares O(log n) times. It walks through an entry for the first time once, and otherwise through two steps of entries; each anchor that was
//! dropped since adds two steps. Making anchors and dropping one move later anchors in the array, as shared queues do with entries.
//!
//! # Who may touch what
//!
//! *The worker* is the one whose queue it is. *Others* are raiders ([`crate::state::raid`]) and [`PrivateQueue::count_from_outside`].
//!
//! | field | written | read |
//! |---|---|---|
//! | `front` | by the worker, as a release | by the worker and by others |
//! | `back`, `maker`, the index | by the worker | by the worker |
//! | an entry's `next` | by the worker, as a release | by the worker and by others |
//! | an entry's `prev` | by the worker | by the worker |
//! | an entry's `place` | by the worker (table below) | by the worker; by others, as an acquire |
//! | an entry's word | by any thread with an exchange; by the worker also with a plain store, while it touches the entry (W8, RD1) | by any thread |
//! | an entry's lineage | by the worker, before a start (LN2) | by the worker |
//! | a parent's `last_child` and `state` | by the worker (H1) | by the worker |
//!
//! For others an insertion in the middle of the list is like one at the front: the entry is complete before a released link leads to it. A raider that
//! has passed that place leaves the entry to the next raid. A raider directly in front of it ends its walk, since the link has changed (RD2).
//!
//! The index holds addresses of entries without a link. Each is listed (P5), so it has the list's link. The lineage of
//! an entry may be compared while another worker runs it after a raid. It changes only before a start, and only while
//! no other thread can know of the request (LN2).
//!
//! # Invariants
//!
//! * **P1** All of it is changed by the worker alone. Others read `front`, and the `next` and `place` of entries: raiders ([`crate::state::raid`]), and
//!   [`PrivateQueue::count_from_outside`]. So an entry is whole before a link leads to it, and is touched (RD1) before it is taken out. Every store of a
//!   link that leads on from the list is a release, a removal's too: a raider may reach an entry by that store alone.
//! * **P2** The list owns one link of each entry, from its insertion until it is taken out. So for the worker each header to which `front`, `back` or a link
//!   of the list leads is alive. A request is an entry iff its `place` is `Private`, or the worker touches it (RD1). Others have no such promise: an
//!   entry may end while they read it. They rely on its memory staying a header's meanwhile ([`crate::record::reclaim`]).
//! * **P3** A parent's `last_child` is one of its children that stand here, or null. Unless the parent is scattered, its listed children are one
//!   piece, which ends with that child.
//! * **P4** Each entry has a parent, and goes by its lineage before all that stand behind it.
//! * **P5** The anchors are entries, in the order of the list; `is_indexed` says whether there are any.
//! * **P6** If `maker` is the address of a request with listed children, no descendant of it stands behind its `last_child`. An insertion into an empty list
//!   may leave `maker` as it is, for nothing stands behind the new entry. So may way 4: it puts
//!   an entry directly before a sibling, so if the entry were such a descendant, the sibling would have been one. Every other insertion sets `maker`.
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
//! | `Nowhere` | `Private` | a touch after which the request was found published | `schedule/wait/lend.rs`, `run_local` |
//! | `Nowhere` | `Private` | a cancel that has not ended the entry | `schedule/worker/raids.rs`, `cancel_listed` |
//! | `Nowhere` | `Child` | a publication, a start, a stale entry that was popped | `record/children.rs`, `link` |
//! | `Child` | `Nowhere` | an end | `record/children.rs`, `unlink` |

use std::cell::{Cell, RefCell};
use std::cmp::Ordering as Order;
use std::collections::{HashSet, VecDeque};
use std::ptr::{self, NonNull};

use forebear_context::lineage::{Lineage, NO_KEY};
use forebear_context::shim::atomic::{AtomicPtr, Ordering};

use crate::record::header::{Header, HeaderPlace};
use crate::state::word::{LOCAL, PRIVATE};

/// See the module head.
pub(crate) struct PrivateQueue {
    /// Read by others too (P1).
    front: AtomicPtr<Header>,
    back: Cell<*const Header>,
    /// P6.
    maker: Cell<*const Header>,
    is_indexed: Cell<bool>,
    index: RefCell<Index>,
}

/// An elder sibling goes to its place without a search if so many stand between that and the youngest at most.
const SHORT: usize = 64;
/// So many entries stand from one anchor to the next, or up to twice as many.
const STEP: usize = 32;
/// No more room is kept for anchors when there are none, and for the entries that a search walks through.
const ROOM: usize = 1024;

/// See the module head.
#[derive(Default)]
struct Index {
    /// P5.
    anchors: VecDeque<NonNull<Header>>,
    /// The same.
    named: HashSet<NonNull<Header>>,
    /// What the search has walked through. Empty between searches.
    stretch: Vec<NonNull<Header>>,
}

impl PrivateQueue {
    /// An empty list.
    pub(crate) fn new() -> PrivateQueue {
        PrivateQueue {
            front: AtomicPtr::new(ptr::null_mut()),
            back: Cell::new(ptr::null()),
            maker: Cell::new(ptr::null()),
            is_indexed: Cell::new(false),
            index: RefCell::default(),
        }
    }

    /// The oldest.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Header> {
        // SAFETY: P2: listed headers are alive.
        unsafe { self.front.load(Ordering::Relaxed).as_ref() }
    }

    /// The youngest.
    fn back(&self) -> Option<&Header> {
        // SAFETY: P2: listed headers are alive.
        unsafe { self.back.get().as_ref() }
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
    /// The walk may leave the list: an entry may be taken out, and its memory used again, while the walk is at it. The
    /// walk then continues along another list of headers. So it counts only headers whose words say private or local,
    /// and ends after `most`.
    ///
    /// # Safety
    ///
    /// Inside [`reclaim::read_section`](crate::record::reclaim::read_section): then the memory of every header stays that is in a list after the
    /// section has begun. Each header that the walk reaches was in a list then: the front was, and so was the header that `next` of such a header
    /// names.
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
        self.insert_as(header, |last| last.lineage.rank() < header.lineage.rank());
    }

    /// The same with the youngest child that its parent has made.
    #[inline(always)]
    pub(crate) fn insert_youngest(&self, header: &Header) {
        self.insert_as(header, |_| true);
    }

    /// `goes_behind`: whether it is younger than this sibling, its parent's last listed child.
    #[inline(always)]
    fn insert_as(&self, header: &Header, goes_behind: impl Fn(&Header) -> bool) {
        let parent = parent_of(header);
        let last = parent.last_child.get();
        // SAFETY: P2, P3.
        let before: *const Header = match unsafe { last.as_ref() } {
            Some(last) if ptr::eq(parent, self.maker.get()) && goes_behind(last) => {
                parent.last_child.set(header);
                last
            }
            Some(last) if goes_behind(last) => self.place_by_lineage(header, Some(last), true),
            Some(last) => match place_among_siblings(header, last) {
                Some(before) => before,
                None => self.place_by_lineage(header, Some(last), false),
            },
            None => {
                parent.last_child.set(header);
                // SAFETY: P2.
                match unsafe { self.back.get().as_ref() } {
                    None => ptr::null(),
                    Some(back) => {
                        self.maker.set(parent);
                        if is_near(back, parent, Order::Less) {
                            back
                        } else if self.front().is_some_and(|front| is_behind_children(front, parent)) {
                            ptr::null()
                        } else {
                            self.place_by_lineage(header, None, true)
                        }
                    }
                }
            }
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

    /// The entry that `header` is to stand directly behind, or null; and says what follows from that of its parent's children and of those that
    /// it comes between. The list is not empty. `last` is the parent's last child.
    #[cold]
    #[inline(never)]
    fn place_by_lineage(&self, header: &Header, last: Option<&Header>, is_younger: bool) -> *const Header {
        let own = &header.lineage;
        let parent = parent_of(header);
        // SAFETY: P2, here and below.
        let next = |entry: &Header| unsafe { entry.next.load(Ordering::Relaxed).as_ref() };
        let stands_behind =
            |entry: &Header| is_behind_children(entry, parent) || goes_first(own, &entry.lineage);
        let before = match last {
            Some(last) if is_younger && next(last).is_none_or(&stands_behind) => ptr::from_ref(last),
            _ if self.back().is_some_and(|back| goes_first(&back.lineage, own)) => self.back.get(),
            _ if self.front().is_some_and(stands_behind) => ptr::null(),
            _ => self.last_of_those(|lineage| goes_first(lineage, own)),
        };
        // SAFETY: P2.
        let before_ref = unsafe { before.as_ref() };
        let after = before_ref.map_or_else(|| self.front(), next);
        let sibling = |entry: &&Header| ptr::eq(entry.lineage.parent(), own.parent());
        let (elder, younger) = (before_ref.filter(sibling), after.filter(sibling));

        if let (Some(before), Some(after)) = (before_ref, after)
            && elder.is_none()
            && ptr::eq(before.lineage.parent(), after.lineage.parent())
        {
            parent_of(before).scatter();
        }
        if last.is_some() && elder.is_none() && younger.is_none() {
            parent.scatter();
        }
        if last.is_none() || younger.is_none() && (elder.is_some() || is_younger) {
            parent.last_child.set(header);
        }
        let is_maker = ptr::eq(parent.last_child.get(), header)
            && !after.is_some_and(|after| descends(&after.lineage, &parent.lineage));
        self.maker.set(if is_maker { parent } else { ptr::null() });
        before
    }

    /// The last entry of the list's beginning for which `belongs` holds, or null. It holds for all entries up to one, and for none behind it.
    #[cold]
    fn last_of_those(&self, belongs: impl Fn(&Lineage) -> bool) -> *const Header {
        // SAFETY: P2, P5: anchors are listed.
        let belongs = |entry: &NonNull<Header>| belongs(unsafe { &entry.as_ref().lineage });
        let mut index = self.index.borrow_mut();
        let Index { anchors, named, stretch } = &mut *index;
        let at = anchors.partition_point(belongs);
        let end = anchors.get(at).copied();
        let mut next = match at.checked_sub(1) {
            Some(start) => anchors.get(start).copied(),
            None => NonNull::new(self.front.load(Ordering::Relaxed)),
        };
        while let Some(entry) = next.filter(|&entry| Some(entry) != end) {
            stretch.push(entry);
            // SAFETY: P2.
            next = NonNull::new(unsafe { entry.as_ref() }.next.load(Ordering::Relaxed));
        }
        if stretch.len() > 2 * STEP {
            let behind = anchors.split_off(at);
            let fresh = stretch[..stretch.len() - STEP].iter().copied().step_by(STEP).skip(1);
            anchors.extend(fresh.clone().chain(behind));
            named.extend(fresh);
            self.is_indexed.set(true);
        }
        #[cfg(all(test, not(any(loom, shuttle))))]
        tests::walked(stretch.len());
        // The stretch may begin with an anchor, for which it holds.
        let from = usize::from(at > 0);
        let count = from + stretch[from..].partition_point(belongs);
        let found = count.checked_sub(1).map_or(ptr::null(), |last| stretch[last].as_ptr().cast_const());
        stretch.clear();
        stretch.shrink_to(ROOM);
        found
    }

    /// Where a walk from entry to the one before it begins that is to meet all listed children of `parent`; null: nowhere. It ends at the first entry that
    /// is none of them, or, if the parent is scattered, at the first that does not [descend](PrivateQueue::is_among) from the parent.
    pub(crate) fn last_below(&self, parent: &Header) -> *const Header {
        if !parent.is_scattered() {
            return parent.last_child.get();
        }
        let own = &parent.lineage;
        // Its own entry may be among them, a stale one.
        self.last_of_those(|lineage| !goes_first(own, lineage) || descends(lineage, own))
    }

    /// Whether the walk of [`last_below`](PrivateQueue::last_below) passes this entry, which is no child of the parent's.
    pub(crate) fn is_among(entry: &Header, parent: &Header) -> bool {
        parent.is_scattered() && descends(&entry.lineage, &parent.lineage)
    }

    /// An entry was taken out, and its memory is still a header: it is no anchor any more.
    #[cold]
    #[inline(never)]
    fn drop_anchor(&self, header: &Header) {
        let mut index = self.index.borrow_mut();
        let Index { anchors, named, .. } = &mut *index;
        let anchor = NonNull::from(header);
        if !named.remove(&anchor) {
            return;
        }
        // SAFETY: P5.
        let at =
            anchors.partition_point(|other| goes_first(unsafe { &other.as_ref().lineage }, &header.lineage));
        if anchors.get(at) == Some(&anchor) {
            anchors.remove(at);
        } else {
            debug_assert!(false, "P5");
            anchors.retain(|other| *other != anchor);
        }
        if anchors.is_empty() {
            self.is_indexed.set(false);
            anchors.shrink_to(ROOM);
            named.shrink_to(ROOM);
        }
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
        let parent = parent_of(header);
        if ptr::eq(parent.last_child.get(), header) {
            // SAFETY: P2, P3.
            let sibling = unsafe { prev.as_ref() }
                .is_some_and(|prev| ptr::eq(prev.lineage.parent(), header.lineage.parent()));
            parent.last_child.set(if sibling { prev } else { ptr::null() });
        }
        if self.is_indexed.get() {
            self.drop_anchor(header);
        }
    }
}

/// The parent of an entry, or of what is about to be one.
#[inline(always)]
fn parent_of(header: &Header) -> &Header {
    debug_assert!(header.parent().is_some(), "P4");
    // SAFETY: P4.
    unsafe { header.parent().unwrap_unchecked() }
}

/// Has `link` lead to `header`, and that to what `link` led to, which is answered. The link is a release (P1).
#[inline(always)]
fn put_behind(link: &AtomicPtr<Header>, header: &Header) -> *const Header {
    let after = link.load(Ordering::Relaxed);
    header.next.store(after, Ordering::Relaxed);
    link.store(ptr::from_ref(header).cast_mut(), Ordering::Release);
    after
}

/// The sibling that `header` is to stand directly behind, or null for none, if a short walk from their parent's last listed child, which is younger, tells.
#[inline(never)]
fn place_among_siblings(header: &Header, last: &Header) -> Option<*const Header> {
    let (parent, rank) = (header.lineage.parent(), header.lineage.rank());
    let mut at = last;
    for _ in 0..SHORT {
        // SAFETY: P2.
        let Some(before) = (unsafe { at.prev.get().as_ref() }) else { return Some(ptr::null()) };
        if !ptr::eq(before.lineage.parent(), parent) {
            return None;
        }
        if before.lineage.rank() < rank {
            return Some(before);
        }
        at = before;
    }
    None
}

/// Whether the children of `parent` go before `entry`, as far as a short look can tell.
#[inline(always)]
fn is_behind_children(entry: &Header, parent: &Header) -> bool {
    is_near(entry, parent, Order::Greater) || entry.lineage.key() > parent.lineage.key()
}

/// Whether an entry is a sibling of the parent, or of a near ancestor, and goes before it or behind it, as `order` says. It then stands so to the children of
/// the parent.
#[inline(always)]
fn is_near(entry: &Header, parent: &Header, order: Order) -> bool {
    /// Those who take what they have just made are this close.
    const NEAR: usize = 16;
    let mut ancestor = parent;
    for _ in 0..NEAR {
        if ptr::eq(ancestor.lineage.parent(), entry.lineage.parent()) {
            return entry.lineage.rank().cmp(&ancestor.lineage.rank()) == order
                && entry.lineage.key() == parent.lineage.key();
        }
        match ancestor.parent() {
            Some(next) => ancestor = next,
            None => return false,
        }
    }
    false
}

/// Whether `one` goes before `other`.
fn goes_first(one: &Lineage, other: &Lineage) -> bool {
    #[cfg(all(test, not(any(loom, shuttle))))]
    tests::compared();
    one.compare(other) == Order::Less
}

/// Whether `one` descends from `other`, and stands among those that do.
fn descends(one: &Lineage, other: &Lineage) -> bool {
    #[cfg(all(test, not(any(loom, shuttle))))]
    tests::compared();
    one.key() == other.key() && (ptr::eq(one.parent(), other) || one.descends_from(other))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
