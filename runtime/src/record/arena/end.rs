//! The end of a header: the functions behind *The end of a header* in the head of [`super`].
//!
//! | function | called by | owns |
//! |---|---|---|
//! | [`end()`] | the thread that brought both counts to 0 | the header alone (W4) |
//! | [`end_child`] | the owner of the arena that the header was made and ran on | the arena (M1), and hence the parent's count of children (H1) |
//! | `end_up` | `end_child`, for a parent whose last child has gone | the link of the children |
//! | [`end_on`] | the owner of `here`, or the holder of the lock of the closed arenas | the header alone |
//! | `travel` | any other thread | the header alone, until it is pushed |
//! | [`take_place`] | the worker that is about to start a request whose parent is over | the header (W8); the parent has nothing but this child's link |
//!
//! # Order
//!
//! 1. The side block is dropped on the thread that brought the counts to 0: it holds values of the user's, which may be large, or hold a lock. Side blocks of
//!    ancestors are collected in a [`Late`], and dropped when nothing is half done: not under the lock of the closed arenas, and not while the thread has the
//!    rest of a list of returns in hand. What returns to a worker, and all but one of several, is left to the loop of the worker. So the destructor of one may
//!    wait for that of another. A foreign thread that takes returns in while it waits drops none itself: others do (`foreign::drop_late_elsewhere`).
//! 2. The header leaves its parent's list of children, and its cell goes back to the arena.
//! 3. The parent's count falls. The last child gives the parent's link back. If that was the parent's last count, step 1 begins for the parent: a loop.
//!
//! # The race
//!
//! *A push to an arena against its close.* Both are exchanges of `returns`. Either the closer takes the header with the list, or the pusher finds the mark,
//! takes the lock, and is the owner of all closed arenas. After a push the header's new owner may end it, its arena and the runtime's record. So `travel`
//! touches nothing after a push; and on the other way it has a count of the record before it takes the lock, which lies in the record.
//!
//! *A push to an arena against the sleep of its worker.* A worker takes its returns in when it looks for work, and sleeps with returns in its list: memory
//! can wait. An error cannot. So if an ancestor that the header keeps holds a failure, the pusher wakes the worker after the push. The wake leaves a
//! token, so a worker that is about to sleep looks again.
//!
//! *The same against the wait of a foreign thread.* The thread that waits is listed (`shared/parked.rs`), and takes its returns in before it blocks. The pusher
//! looks into that list after the push, and nudges the thread if it is there. Both take the lock of the list in between: so either the thread finds the
//! header, or the pusher finds the thread.
//!
//! *The same against the exit of a foreign thread.* Its arena is spare then, and has no owner that looks. A pusher takes it out of the spare ones, is its
//! owner, and takes the returns in. A thread that leaves its arena looks for returns once more under the same lock ([`Depot::leave`](super::Depot::leave)).

use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::shim::atomic::Ordering;

use super::cells::CLASSES;
use super::{Arena, closed_mark, drop_side};
use crate::record::above::above;
use crate::record::children;
use crate::record::fiber;
use crate::record::header::{Header, HeaderPlace};
use crate::record::reclaim;
use crate::record::runtime::KeptRuntime;
use crate::record::side::Side;

/// The end of a header whose counts are both 0, by the thread that brought them there.
///
/// # Safety
///
/// W4: no other thread knows the header.
pub(crate) unsafe fn end(header: NonNull<Header>) {
    // SAFETY: by contract.
    let arena = unsafe { header.as_ref() }.arena.get();
    if arena.is_null() {
        // SAFETY: a ready value has neither parent nor children.
        unsafe {
            drop_side(header);
            std::alloc::dealloc(header.as_ptr().cast(), header.as_ref().vtable.layout);
        }
        return;
    }
    // Now, not when the header returns: no thread can read it any more, and an error may hold much memory, or a lock.
    // SAFETY: by contract.
    unsafe { drop_side(header) };
    // SAFETY: arenas live as long as their headers (M3), here and below.
    unsafe {
        if arena == fiber::current_arena() || is_own_of_foreign(arena) {
            end_any_child(&*arena, header);
        } else {
            travel(arena, header, &Late::default());
        }
    }
}

/// Whether the arena belongs to this thread, which is no worker. Such a thread has an arena for each runtime that it uses, and its fiber names none
/// of them while no request runs on it.
#[inline]
fn is_own_of_foreign(arena: *const Arena) -> bool {
    // SAFETY: M3: the caller's header.
    let foreign = unsafe { &*arena }.is_foreign() && fiber::get().is_some_and(|fiber| !fiber.has_worker());
    foreign && (above().owns)(arena)
}

/// Releases a link, and ends the header if it was the last count.
///
/// # Safety
///
/// The link is the caller's.
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: by contract: the link, which is the caller's, keeps the header until it is released.
    if unsafe { header.as_ref() }.word().release_link() {
        // SAFETY: W4: the link was the last count, so only the caller knows the header.
        unsafe { end(header) };
    }
}

/// The end of a header that was made and run on `here`, by its owner.
///
/// # Safety
///
/// M1; W4.
#[inline(always)]
pub(crate) unsafe fn end_child(here: &Arena, header: NonNull<Header>) {
    // SAFETY: M1 and W4 by contract, for whichever call ends it; the first does nothing if it answers false.
    unsafe {
        if !end_plain_child(here, header) {
            end_other_child(here, header);
        }
    }
}

/// The same for the common case: the parent is not over, the header is in no list, has no side block, and its cell is from a free list. It calls
/// nothing, so the caller need not save registers. False: it is another case, and nothing was done.
///
/// # Safety
///
/// As [`end_child`].
#[inline(always)]
pub(crate) unsafe fn end_plain_child(here: &Arena, header: NonNull<Header>) -> bool {
    // SAFETY: by contract; H1 for the parent.
    unsafe {
        let h = header.as_ref();
        let Some(parent) = h.parent() else { return false };
        let class = h.memory_class.get();
        if h.place.get() == HeaderPlace::Child
            || h.side().is_some()
            || usize::from(class) >= CLASSES
            || parent.has_family()
        {
            return false;
        }
        here.put_back(class, header);
        parent.count_gone();
        true
    }
}

/// The rest of [`end_child`].
///
/// # Safety
///
/// As [`end_child`].
#[cold]
#[inline(never)]
unsafe fn end_other_child(here: &Arena, header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe { end_any_child(here, header) }
}

/// As [`end_child`], for callers to which a root, or a header with a side block, is as common as any other.
///
/// # Safety
///
/// As [`end_child`].
#[inline(always)]
pub(crate) unsafe fn end_any_child(here: &Arena, header: NonNull<Header>) {
    // SAFETY: by contract; H1 for the parent.
    unsafe {
        let h = header.as_ref();
        let parent = h.parent();
        if h.place.get() == HeaderPlace::Child {
            children::unlink(h);
        }
        here.free(header);
        if let Some(parent) = parent {
            parent.count_gone();
            if parent.has_family() && !parent.has_children() {
                parent.set_family(false);
                end_up(here, NonNull::from(parent));
            }
        }
    }
}

/// The last child of a parent that is over has ended: releases the children's link, and so on up the ancestors.
///
/// # Safety
///
/// On the thread of `here` (M1), which has just taken the last child of `parent` off its count, and has the
/// link of the children.
#[cold]
#[inline(never)]
unsafe fn end_up(here: &Arena, parent: NonNull<Header>) {
    // SAFETY: by the caller: the children's link, and nobody else if it was the last.
    unsafe {
        family_ends(parent.as_ref());
        if parent.as_ref().word().release_link() {
            let late = Late::default();
            late.take_side(parent);
            end_on(here, parent, false, &late);
        }
    }
}

/// The children's link of a request that is over is about to be released: disarms a deadline that was kept for the children.
fn family_ends(h: &Header) {
    // SAFETY: M3.
    if let (Some(due), Some(arena)) = (h.due(), unsafe { h.arena.get().as_ref() })
        && due.family_ends(|_| (above().disarm_due)(arena, NonNull::from(h), due))
    {
        // Not the last: the family's.
        h.word().release_link();
    }
}

/// A request is about to start whose parent is over, has no count of its own, and has no other children: the request takes the parent's place. So a
/// chain of requests, each of which makes the next and ends, needs no memory for those that have ended.
///
/// Only if the parent was made on the arena it ran on, else its own parent would be counted elsewhere (H1).
///
/// # Safety
///
/// M1 for the header's arena, W8: no other thread can be reading its lineage; its parent is over and has only its children's
/// link.
#[cold]
pub(crate) unsafe fn take_place(header: NonNull<Header>) {
    // SAFETY: by contract; H1 for the parent.
    unsafe {
        let h = header.as_ref();
        let arena = h.arena.get();
        if let Some(parent) = h.parent()
            && parent.children() == 1
            && parent.bare.load().is_family_only()
            && ptr::eq(parent.arena.get(), arena)
        {
            // The grandparent loses one child and gains another, also in its list of children.
            if h.place.get() == HeaderPlace::Child {
                children::unlink(h);
            }
            let was_listed = parent.place.get() == HeaderPlace::Child;
            if was_listed {
                children::unlink(parent);
            }
            let parent = NonNull::from(parent);
            h.lineage.take_place();
            if was_listed {
                children::link(h);
            }
            (*arena).free(parent);
        }
    }
}

/// What is done when nothing is half done: see *Order* in the module head.
#[derive(Default)]
pub(super) struct Late {
    /// Side blocks of ancestors in which users own something, to be dropped.
    #[allow(clippy::vec_box, reason = "a side block is found where it is, in its box")]
    sides: RefCell<Vec<Box<Side>>>,
    /// To these arenas a header was returned that keeps an error; each with a count of its record.
    returned: RefCell<Vec<(NonNull<Arena>, KeptRuntime)>>,
}

impl Late {
    /// Takes the side block of a header, if it has one.
    ///
    /// # Safety
    ///
    /// As [`drop_side`].
    unsafe fn take_side(&self, header: NonNull<Header>) {
        // SAFETY: by contract, the caller alone has the header.
        let h = unsafe { header.as_ref() };
        // SAFETY: by contract.
        if let Some(mut side) = unsafe { h.side.take() } {
            if side.owns() {
                self.sides.borrow_mut().push(side);
            } else {
                reclaim::free_side(side);
            }
        }
    }

    /// Leaves all to the loop of the worker.
    pub(super) fn leave(self) {
        self.attend();
        self.sides.take().into_iter().for_each(reclaim::leave_side);
    }

    /// Has what was returned taken in.
    fn attend(&self) {
        for (arena, _runtime) in self.returned.take() {
            // SAFETY: M3: the count of the record, which has the arena.
            (above().attend_returns)(unsafe { arena.as_ref() });
        }
    }
}

impl Drop for Late {
    #[inline]
    fn drop(&mut self) {
        if !self.returned.get_mut().is_empty() || !self.sides.get_mut().is_empty() {
            self.settle();
        }
    }
}

impl Late {
    #[cold]
    #[inline(never)]
    fn settle(&mut self) {
        self.attend();
        // What one of them waits for as it goes may be another, so this thread has one in hand at a time.
        let mut sides = self.sides.take();
        let last = sides.pop();
        sides.into_iter().for_each(reclaim::leave_side);
        last.into_iter().for_each(reclaim::free_side);
    }
}

/// Ends the header, and its ancestors as far as `here` owns them. `closed`: the lock of the closed arenas is held, so the caller owns all closed
/// arenas.
///
/// # Safety
///
/// M1 for `here`; only the caller knows the header.
pub(super) unsafe fn end_on(here: &Arena, header: NonNull<Header>, closed: bool, late: &Late) {
    let mut header = header;
    let mut here = here;
    loop {
        // SAFETY: by contract, and for parents by H1.
        let h = unsafe { header.as_ref() };
        let arena = h.arena.get();
        if !ptr::eq(arena, here) {
            // SAFETY: M3: the header keeps the arena until it is sent; a closed arena is the caller's while it holds the lock. After a send
            // nothing of either is touched.
            unsafe {
                if closed && (*arena).returns.list.load(Ordering::Relaxed) == closed_mark() {
                    here = &*arena;
                } else if closed {
                    // An open arena takes it. If the arena has just been closed, this thread already holds the lock.
                    if send(arena, header, late) {
                        return;
                    }
                    here = &*arena;
                } else {
                    travel(arena, header, late);
                    return;
                }
            }
        }
        if h.place.get() == HeaderPlace::Child {
            // SAFETY: M1: its parent's list of children belongs to this arena.
            unsafe { children::unlink(h) };
        }
        let parent = h.parent().map(NonNull::from);
        // SAFETY: M1.
        unsafe { here.free(header) };
        let last = parent.filter(|parent| {
            // SAFETY: H1: the parent ran here, where its children are made.
            let p = unsafe { parent.as_ref() };
            p.count_gone();
            // It may still be ending, and make more children in its callbacks: these get another link.
            !p.has_children() && p.set_family(false) && {
                family_ends(p);
                p.word().release_link()
            }
        });
        release_if_done(here, closed);
        let Some(parent) = last else { return };
        // SAFETY: the last count is gone, so no other thread has the header.
        unsafe { late.take_side(parent) };
        header = parent;
    }
}

/// How many ancestors a thread looks at that ends a header of another.
const LOOKED_AT: usize = 16;

/// Whether an ancestor that is over holds a failure: the header may be the last that keeps it, now or when its handles have gone.
///
/// # Safety
///
/// Only the caller knows the header.
unsafe fn keeps_a_failure(header: NonNull<Header>) -> bool {
    // SAFETY: by contract; H1: a header keeps its parent until it has returned. No ancestor gives up its place: the child that would take it is about
    // to start, and this one is over (`take_place`).
    let ancestors = std::iter::successors(unsafe { header.as_ref() }.parent(), |h| h.parent());
    let over = ancestors.take_while(|h| h.bare.load().is_terminal()).take(LOOKED_AT);
    // SAFETY: written before the end, which was just seen, and dropped by the last that keeps the ancestor.
    let fails = |side: &Side| unsafe { &*side.failure.get() }.is_some();
    over.filter_map(Header::side).any(fails)
}

/// Sends the header to `to`; false if that arena is closed. If the header keeps an error, `late` has it taken in.
///
/// # Safety
///
/// Only the caller knows the header, which keeps the arena (M3).
unsafe fn send(to: *const Arena, header: NonNull<Header>, late: &Late) -> bool {
    // SAFETY: by contract.
    let keeps = unsafe { keeps_a_failure(header) };
    // SAFETY: M3: the header keeps the arena.
    let runtime = unsafe { (*to).runtime };
    // So that the arena outlives the push.
    // SAFETY: M3: the header keeps the record.
    let kept = keeps.then(|| unsafe { KeptRuntime::new(runtime) });
    // SAFETY: M3; the header is not touched after this.
    let is_sent = unsafe { (*to).send(header) };
    if let (true, Some(kept), Some(to)) = (is_sent, kept, NonNull::new(to.cast_mut())) {
        late.returned.borrow_mut().push((to, kept));
    }
    is_sent
}

/// Sends the header to `to`, or ends it here if that arena is closed. If the header keeps an error, `late` has it taken in.
///
/// # Safety
///
/// As [`end_on`], for `to`.
unsafe fn travel(to: *const Arena, header: NonNull<Header>, late: &Late) {
    // SAFETY: M3: the header keeps its arenas' record alive, until it is pushed; after that it is not touched.
    unsafe {
        if send(to, header, late) {
            return;
        }
        // Closed: the lock makes this thread the owner of all closed arenas. The record must outlive the lock.
        let runtime = KeptRuntime::new((*to).runtime);
        // Before the lock, hence dropped after it, and before the record.
        let late = Late::default();
        let guard = runtime.get().depot.closed.lock().unwrap_or_else(PoisonError::into_inner);
        end_on(&*to, header, true, &late);
        drop(guard);
    }
}

pub(super) fn release_if_done(arena: &Arena, closed: bool) {
    if closed && arena.is_done() {
        // SAFETY: M3: the count taken in `Arena::new`, given back once: what a closed arena has in use only falls. The caller
        // holds a count of its own.
        unsafe { drop(KeptRuntime::from_raw(arena.runtime)) };
    }
}
