//! The list in which those stand who wait for a lock.
//!
//! Two heaps, as in the request framework that forebear comes from (its `RequestLockQueue`): places are popped from one of them by
//! urgency; a waiter that was woken and finds the lock taken puts itself back onto *the other*; when the first is empty the
//! two are swapped. So an urgent waiter that cannot go on yet, and puts itself back, does not starve the others: each of them is
//! popped once before it comes again. A newcomer stands with those that are popped from now, unless somebody has put itself back who is as
//! urgent: then it stands behind that one, on the other heap. So newcomers do not starve those who have lost, either.
//!
//! # Nobody is passed over without end
//!
//! By urgency alone, old contexts that come back again and again would keep the younger ones out for ever. So of the newcomers since the
//! heaps were swapped only the first [`NEWCOMERS`] may stand with those that are popped from. Then that heap is *closed*: all others
//! stand on the other heap, and those of the closed one come in turn. If somebody more urgent stands on the other heap, it is chosen
//! first, but only each second choice is one of that heap. So a closed heap of n places is empty after 2n choices at most, and the most
//! urgent waiter waits for one more choice at most.
//!
//! # Who wakes whom
//!
//! A thread that pops a place *chooses* its context ([`Context::choose`]), under the lock of the queue: from then on that wait ends by this
//! wake-up and no other, and the place stays until [`Chosen::wake`]. A context that has left its wait otherwise refuses; then its place
//! is out of the queue already, and the next is tried, so no wake-up is lost on somebody who leaves. A leaver takes the lock, and takes
//! its place out if it still stands there.
//!
//! # Invariants
//!
//! * **L1** A queue, and each place that stands in it, is touched under the lock that it belongs to.
//! * **L2** A place that stands in a queue lies in the frame of its waiter, which does not leave it before the place is out.
//! * **L3** A place that was popped and chosen stays until it was woken: its waiter does not go on before.
//! * **L4** The context of a place is the one on whose stack the place's frame lies, so it is there as long as the place.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::Context;

use crate::heap::Heap;

mod chosen;
mod place;

pub use self::chosen::{Chosen, ChosenList};
pub use self::place::Place;

/// See the module head.
const NEWCOMERS: u64 = 32;

/// Which waiters stand on the other heap while the one that is popped from is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Nobody who would be more urgent.
    Others,
    /// Maybe somebody more urgent, who is chosen next.
    First,
    /// The same, but one from there was chosen last.
    Second,
}

/// A queue of waiters, of which the most urgent is first. See the module head.
///
/// It is a data structure for authors of primitives. It has `unsafe` methods, since its places are borrowed from their waiters' frames.
/// Everything that is called on it and on the places in it is called under one lock, which is the author's.
///
/// ```
/// use std::ptr;
/// use forebear_context::context::{Cause, Reason, with_foreign};
/// use forebear_sync::primitive::{Chosen, ChosenList};
/// use forebear_sync::primitive::LockQueue;
/// use forebear_sync::primitive::Place;
///
/// with_foreign(|context| {
///     let queue = LockQueue::new(); // here no other thread knows it, so no lock is needed
///     // A waiter begins its wait, and enters the queue.
///     // SAFETY: the context's own stack; the wait is parked below.
///     let ticket = unsafe { context.begin(Reason::Event, ptr::null_mut()) };
///     // SAFETY: the context outlives the place.
///     let place = unsafe { Place::new(context, ticket, "a key") };
///     // SAFETY: the place stays in this frame until it is out of the queue.
///     unsafe { queue.enter(&place) };
///     assert!(place.is_listed() && queue.len() == 1);
///
///     // What another thread does that has a key: it chooses under the lock, and wakes afterwards.
///     let mut chosen = ChosenList::new();
///     // SAFETY: the waiters are woken below.
///     let choose = || -> Option<Chosen<&str>> { unsafe { queue.choose_if(|wants| *wants == "a key") } };
///     while let Some(waiter) = choose() {
///         assert_eq!(waiter.place().value, "a key");
///         chosen.push(waiter);
///     }
///     assert!(!chosen.is_empty() && queue.is_empty());
///     assert_eq!(chosen.wake(), 1);
///
///     // SAFETY: the context's own stack, after `begin`.
///     assert_eq!(unsafe { context.park_until(ticket, None) }, Cause::Woken);
/// });
/// ```
pub struct LockQueue<T = ()> {
    heaps: [Heap<Place<T>>; 2],
    /// Which of them is popped from; the other is pushed back onto.
    popping: Cell<bool>,
    behind: Cell<Behind>,
    /// How many have come so far; among equals the older goes first.
    came: Cell<u64>,
    /// When so many have come, the heap that is popped from is closed.
    closes_at: Cell<u64>,
    len: Cell<usize>,
    /// Where all those wait that stand here: the number of one thread; 0 if there are several.
    place: Cell<usize>,
}

impl<T> LockQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> LockQueue<T> {
        LockQueue {
            heaps: [Heap::new(), Heap::new()],
            popping: Cell::new(false),
            behind: Cell::new(Behind::Others),
            came: Cell::new(0),
            closes_at: Cell::new(0),
            len: Cell::new(0),
            place: Cell::new(0),
        }
    }

    /// Whether nobody stands here.
    pub fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    /// How many stand here.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether all who stand here, or stood here when the queue was last empty and since, wait on this one worker.
    pub fn is_all_of(&self, place: usize) -> bool {
        place != 0 && self.place.get() == place
    }

    /// Puts a newcomer where it is popped from now, by its key; or onto the other heap, if that one is closed, or somebody stands there who
    /// has put itself back and is as urgent.
    ///
    /// # Safety
    ///
    /// L1, L2; it stands nowhere.
    pub unsafe fn enter(&self, place: &Place<T>) {
        let came = self.came.get();
        self.came.set(came + 1);
        place.links.key.set((place.links.key.get().0, came + 1));
        let popped = self.popping.get();
        // SAFETY: by contract.
        unsafe {
            if self.is_empty() {
                self.closes_at.set(came + NEWCOMERS);
                self.put_first(place, popped);
            } else if self.is_closed_at(came) {
                if !self.heap(popped).is_last(place.key()) {
                    self.came_behind();
                }
                self.put_beside(place, !popped);
            } else {
                self.put_beside(place, popped ^ self.has_lost_as_urgent(place.key()));
            }
        }
    }

    /// Whether somebody stands on the other heap who is as urgent as `key`, or more.
    ///
    /// # Safety
    ///
    /// L1.
    #[inline]
    unsafe fn has_lost_as_urgent(&self, key: u64) -> bool {
        // SAFETY: by contract; L2.
        unsafe {
            let loser = self.heap(!self.popping.get()).first();
            loser.is_some_and(|loser| loser.as_ref().key() <= key)
        }
    }

    /// Puts one back that was popped: it is popped again when all those have been that stand here now.
    ///
    /// # Safety
    ///
    /// L1, L2; it stands nowhere.
    ///
    /// ```
    /// use std::ptr;
    /// use forebear_context::context::{Cause, Reason, with_foreign};
    /// use forebear_sync::primitive::LockQueue;
    /// use forebear_sync::primitive::Place;
    ///
    /// with_foreign(|context| {
    ///     let queue = LockQueue::new();
    ///     // SAFETY: the context's own stack; each wait is parked below.
    ///     let ticket = unsafe { context.begin(Reason::Event, ptr::null_mut()) };
    ///     // SAFETY: the context outlives the place, which stays in this frame.
    ///     let place = unsafe { Place::new(context, ticket, ()) };
    ///     // SAFETY: no other thread knows the queue; the waiter is woken at once.
    ///     unsafe {
    ///         queue.enter(&place);
    ///         queue.choose().unwrap().wake();
    ///         assert_eq!(context.park_until(ticket, None), Cause::Woken);
    ///     }
    ///     // The woken waiter finds the lock taken, and waits once more.
    ///     // SAFETY: as above.
    ///     unsafe {
    ///         let ticket = context.begin(Reason::Event, ptr::null_mut());
    ///         place.renew(ticket);
    ///         queue.push(&place);
    ///         queue.choose().unwrap().wake();
    ///         assert_eq!(context.park_until(ticket, None), Cause::Woken);
    ///     }
    /// });
    /// ```
    pub unsafe fn push(&self, place: &Place<T>) {
        let stands = !self.popping.get();
        // SAFETY: by contract.
        unsafe {
            if self.is_empty() { self.put_first(place, stands) } else { self.put_beside(place, stands) }
        }
    }

    /// # Safety
    ///
    /// L1, L2; it stands nowhere, and nobody stands here.
    #[inline]
    unsafe fn put_first(&self, place: &Place<T>, stands: bool) {
        self.place.set(place.on());
        // SAFETY: by contract.
        unsafe { self.put(place, stands) };
    }

    /// # Safety
    ///
    /// L1, L2; it stands nowhere, and others stand here.
    #[inline]
    unsafe fn put_beside(&self, place: &Place<T>, stands: bool) {
        if self.place.get() != place.on() {
            self.place.set(0);
        }
        // SAFETY: by contract.
        unsafe { self.put(place, stands) };
    }

    /// # Safety
    ///
    /// L1, L2; it stands nowhere.
    #[inline]
    unsafe fn put(&self, place: &Place<T>, stands: bool) {
        place.stands.set(Some(stands));
        self.len.set(self.len.get() + 1);
        // SAFETY: by contract.
        unsafe { self.heap(stands).push(place) };
    }

    #[inline]
    fn is_closed_at(&self, came: u64) -> bool {
        came >= self.closes_at.get()
    }

    /// Whether so many newcomers have passed those who stand here that no other may.
    pub(crate) fn is_closed(&self) -> bool {
        !self.is_empty() && self.is_closed_at(self.came.get())
    }

    /// A newcomer has what it wants without a place here, before all that stand here.
    pub(crate) fn count_passing(&self) {
        self.came.set(self.came.get() + 1);
    }

    #[inline(always)]
    fn heap(&self, of: bool) -> &Heap<Place<T>> {
        &self.heaps[usize::from(of)]
    }

    /// The heap that is popped from.
    #[inline]
    fn pops(&self) -> &Heap<Place<T>> {
        let popped = self.popping.get();
        let heap = self.heap(popped);
        if heap.is_empty() { self.swap(popped) } else { heap }
    }

    /// The heap that was popped from is empty.
    #[inline(never)]
    fn swap(&self, popped: bool) -> &Heap<Place<T>> {
        self.popping.set(!popped);
        self.closes_at.set(self.came.get() + NEWCOMERS);
        self.behind.set(Behind::Others);
        self.heap(!popped)
    }

    /// Somebody who may be more urgent than others of the heap that is popped from has come onto the other heap.
    fn came_behind(&self) {
        if self.behind.get() == Behind::Others {
            self.behind.set(Behind::First);
        }
    }

    /// The one who would be chosen, if it does not refuse: the most urgent of those that are popped from now, or of all (see the module head).
    ///
    /// # Safety
    ///
    /// L1. The reference is used no longer than the lock is held.
    pub unsafe fn first(&self) -> Option<&Place<T>> {
        // SAFETY: L1; L2.
        unsafe { self.next().map(|place| place.as_ref()) }
    }

    /// # Safety
    ///
    /// L1.
    #[inline]
    unsafe fn next(&self) -> Option<NonNull<Place<T>>> {
        // SAFETY: L1.
        let first = unsafe { self.pops().first() }?;
        if self.behind.get() == Behind::First {
            // SAFETY: L1.
            return unsafe { self.of_both(first) };
        }
        Some(first)
    }

    /// The most urgent, if the heap is closed whose first this is.
    ///
    /// # Safety
    ///
    /// L1; `first` stands here.
    #[cold]
    #[inline(never)]
    unsafe fn of_both(&self, first: NonNull<Place<T>>) -> Option<NonNull<Place<T>>> {
        // SAFETY: L1.
        let behind = unsafe { self.heap(!self.popping.get()).first() };
        // SAFETY: L2.
        let is_passed = |behind: &NonNull<Place<T>>| unsafe { behind.as_ref().key() < first.as_ref().key() };
        Some(behind.filter(|behind| self.is_closed() && is_passed(behind)).unwrap_or(first))
    }

    /// Pops the [first](Self::first) and makes sure of it. A waiter that refuses has left its wait otherwise, and is out.
    ///
    /// # Safety
    ///
    /// L1. The answer is woken, after the lock has been let go of or before.
    pub unsafe fn choose(&self) -> Option<Chosen<T>> {
        // SAFETY: by contract.
        unsafe { self.choose_if(|_| true) }
    }

    /// The same, but only if `fits` says so of what that one wants. Nobody passes it: the next is looked at only if the
    /// first has left its wait.
    ///
    /// # Safety
    ///
    /// As [`choose`](Self::choose).
    pub unsafe fn choose_if(&self, mut fits: impl FnMut(&T) -> bool) -> Option<Chosen<T>> {
        loop {
            // SAFETY: L1.
            let place = unsafe { self.next() }?;
            // SAFETY: L2: its waiter must take the lock before it leaves.
            let this = unsafe { place.as_ref() };
            if !fits(&this.value) {
                return None;
            }
            let stands = this.stands.take()?;
            if self.behind.get() != Behind::Others {
                self.behind.set(if stands == self.popping.get() { Behind::First } else { Behind::Second });
            }
            self.len.set(self.len.get() - 1);
            // SAFETY: L1: it stands there.
            unsafe { self.heap(stands).remove(this) };
            // SAFETY: as above.
            let sure = unsafe { this.context.as_ref() }.choose(this.ticket.get());
            #[cfg(mutant = "refused_is_woken")]
            let sure = sure || true;
            if sure {
                return Some(Chosen::new(place));
            }
            #[cfg(mutant = "refused_ends_the_choice")]
            return None;
        }
    }

    /// Whether somebody stands here who is not of this context, which may stand here several times.
    ///
    /// # Safety
    ///
    /// L1.
    pub(crate) unsafe fn has_others(&self, than: &Context) -> bool {
        let mut own: Option<NonNull<Place<T>>> = None;
        let others = loop {
            // SAFETY: L1.
            let Some(first) = (unsafe { self.pops().first() }) else { break false };
            // SAFETY: L2.
            let place = unsafe { first.as_ref() };
            if !std::ptr::eq(place.context.as_ptr(), than) {
                break true;
            }
            // SAFETY: L1: it is put back below.
            unsafe { self.pops().pop() };
            place.links.next().set(own);
            own = Some(first);
        };
        while let Some(place) = own {
            // SAFETY: L2; it keeps its key and its number, and so its turn.
            unsafe {
                own = place.as_ref().links.next().get();
                place.as_ref().stands.set(Some(self.popping.get()));
                self.heap(self.popping.get()).push(place.as_ref());
            }
        }
        others
    }

    /// Takes a place out whose waiter leaves; false if it stands nowhere any more.
    ///
    /// # Safety
    ///
    /// L1; it stands here or nowhere.
    ///
    /// ```
    /// use std::ptr;
    /// use forebear_context::context::{Reason, with_foreign};
    /// use forebear_sync::primitive::LockQueue;
    /// use forebear_sync::primitive::Place;
    ///
    /// with_foreign(|context| {
    ///     let queue = LockQueue::new();
    ///     // SAFETY: the context's own stack; the wait is taken back below.
    ///     let ticket = unsafe { context.begin(Reason::Event, ptr::null_mut()) };
    ///     // SAFETY: the context outlives the place.
    ///     let place = unsafe { Place::new(context, ticket, ()) };
    ///     // SAFETY: no other thread knows the queue; the place is removed below.
    ///     unsafe {
    ///         queue.enter(&place);
    ///         queue.promote(&place, 1); // it has become more urgent
    ///         assert_eq!(queue.first().map(Place::key), Some(1));
    ///         assert_eq!(queue.is_all_of(context.place().get()), context.place().get() != 0);
    ///         assert!(queue.remove(&place) && !queue.remove(&place));
    ///     }
    ///     assert!(context.withdraw(ticket));
    /// });
    /// ```
    pub unsafe fn remove(&self, place: &Place<T>) -> bool {
        let Some(stands) = place.stands.take() else { return false };
        self.len.set(self.len.get() - 1);
        // SAFETY: by contract.
        unsafe { self.heap(stands).remove(place) };
        true
    }

    /// Gives a place the order that goes with a smaller key.
    ///
    /// # Safety
    ///
    /// L1; it stands here or nowhere.
    pub unsafe fn promote(&self, place: &Place<T>, key: u64) {
        let (before, number) = place.links.key.get();
        if key >= before {
            return;
        }
        let Some(stands) = place.stands.get() else {
            place.links.key.set((key, number));
            return;
        };
        if stands != self.popping.get() {
            self.came_behind();
        }
        let heap = self.heap(stands);
        // SAFETY: by contract.
        unsafe {
            heap.remove(place);
            place.links.key.set((key, number));
            heap.push(place);
        }
    }
}

impl<T> Default for LockQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for LockQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
