//! The queue of waiters for a lock.
//!
//! It has two heaps, as in the request framework that forebear comes from (its `RequestLockQueue`). Places are popped from one heap by
//! urgency. A waiter that was woken and finds the lock taken puts itself back onto *the other* heap. When the first is empty, the
//! two are swapped. So an urgent waiter that puts itself back again and again does not starve the others: each of them is
//! popped once before it is popped again. A newcomer enters the heap that is popped from. If a waiter that has put itself back is as
//! urgent, the newcomer enters the other heap, behind that waiter. So newcomers do not starve those that have lost, either.
//!
//! # No waiter is passed over without end
//!
//! By urgency alone, old contexts that return again and again would keep younger ones out for ever. So of the newcomers since the
//! heaps were swapped only the first [`NEWCOMERS`] may enter the heap that is popped from. Then that heap is *closed*: all others
//! enter the other heap, and the waiters of the closed one are chosen in turn. A more urgent waiter on the other heap is chosen
//! first, but at least each second choice is from the closed heap. So a closed heap of n places is empty after 2n choices at most, and the most
//! urgent waiter waits for one more choice at most.
//!
//! # Choosing and waking
//!
//! A thread that pops a place *chooses* its context ([`Context::choose`]), under the lock of the queue. From then on only this
//! wake-up ends that wait, and the place stays until [`Chosen::wake`]. A context that has left its wait otherwise refuses; its place
//! is then already popped, and the next is tried. So no wake-up is lost on a waiter that leaves. A leaver takes the lock, and removes
//! its place if it is still in the queue.
//!
//! # Invariants
//!
//! * **L1** A queue, and each place in it, is touched under the lock to which the queue belongs.
//! * **L2** A place in a queue lies in the frame of its waiter, which does not leave the frame before the place is out.
//! * **L3** A place that was popped and chosen stays until its waiter is woken: the waiter does not continue before.
//! * **L4** The context of a place is the one on whose stack the place's frame lies, so it lives as long as the place.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::Context;
use forebear_context::shim::mutant;

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
    /// No waiter that is more urgent.
    Others,
    /// Possibly a more urgent waiter, which is chosen next.
    First,
    /// The same, but the last choice was from there.
    Second,
}

/// A queue of waiters, of which the most urgent is first. See the module head.
///
/// It is a data structure for authors of primitives. It has `unsafe` methods, since its places are borrowed from their waiters' frames.
/// The author provides one lock, under which all methods of the queue and of the places in it are called.
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
    /// The index of the heap that is popped from. Waiters put themselves back onto the other.
    popping: Cell<bool>,
    behind: Cell<Behind>,
    /// How many waiters have entered so far; of equal keys the older goes first.
    arrivals: Cell<u64>,
    /// The number of arrivals at which the heap that is popped from is closed.
    closes_at: Cell<u64>,
    len: Cell<usize>,
    /// The number of the one thread on which all waiters of the queue wait; 0 if there are several.
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
            arrivals: Cell::new(0),
            closes_at: Cell::new(0),
            len: Cell::new(0),
            place: Cell::new(0),
        }
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    /// How many waiters are in the queue.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether all waiters that have entered since the queue was last empty wait on this one worker.
    pub fn is_all_of(&self, place: usize) -> bool {
        place != 0 && self.place.get() == place
    }

    /// Enters a newcomer into the heap that is popped from. It enters the other heap if the first is closed, or if a waiter that has put itself
    /// back and is as urgent is there.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue.
    pub unsafe fn enter(&self, place: &Place<T>) {
        let arrivals = self.arrivals.get();
        self.arrivals.set(arrivals + 1);
        place.links.key.set((place.links.key.get().0, arrivals + 1));
        let popped = self.popping.get();
        // SAFETY: L1 by contract, for all that is read; L2 and a place in no queue, for what puts it in.
        unsafe {
            if self.is_empty() {
                self.closes_at.set(arrivals + NEWCOMERS);
                self.put_first(place, popped);
            } else if self.is_closed_at(arrivals) {
                if !self.heap(popped).is_last(place.key()) {
                    self.came_behind();
                }
                self.put_beside(place, !popped);
            } else {
                self.put_beside(place, popped ^ self.has_lost_as_urgent(place.key()));
            }
        }
    }

    /// Whether the other heap has a waiter that is as urgent as `key`, or more.
    ///
    /// # Safety
    ///
    /// L1.
    #[inline]
    unsafe fn has_lost_as_urgent(&self, key: u64) -> bool {
        // SAFETY: L1 by contract; L2: a place in the heap is alive.
        unsafe {
            let loser = self.heap(!self.popping.get()).first();
            loser.is_some_and(|loser| loser.as_ref().key() <= key)
        }
    }

    /// Puts a popped place back: it is popped again after all places that are in the queue now.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue.
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
        // SAFETY: L1, L2 and a place in no queue, by contract; which of the two is called, `is_empty` decides.
        unsafe {
            if self.is_empty() { self.put_first(place, stands) } else { self.put_beside(place, stands) }
        }
    }

    /// Inserts a place into the empty queue.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue, and this one is empty.
    #[inline]
    unsafe fn put_first(&self, place: &Place<T>, stands: bool) {
        self.place.set(place.on());
        // SAFETY: by contract.
        unsafe { self.put(place, stands) };
    }

    /// Inserts a place into a queue that has others.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue, and this one is not empty.
    #[inline]
    unsafe fn put_beside(&self, place: &Place<T>, stands: bool) {
        if self.place.get() != place.on() {
            self.place.set(0);
        }
        // SAFETY: by contract.
        unsafe { self.put(place, stands) };
    }

    /// Inserts a place into one of the two heaps.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue.
    #[inline]
    unsafe fn put(&self, place: &Place<T>, stands: bool) {
        place.stands.set(Some(stands));
        self.len.set(self.len.get() + 1);
        // SAFETY: by contract.
        unsafe { self.heap(stands).push(place) };
    }

    #[inline]
    fn is_closed_at(&self, arrivals: u64) -> bool {
        arrivals >= self.closes_at.get()
    }

    /// Whether the heap that is popped from is closed: no more newcomers may enter it.
    pub(crate) fn is_closed(&self) -> bool {
        !self.is_empty() && self.is_closed_at(self.arrivals.get())
    }

    /// Counts a newcomer that is served without a place here, before all waiters in the queue.
    pub(crate) fn count_passing(&self) {
        self.arrivals.set(self.arrivals.get() + 1);
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

    /// Swaps the heaps: the one that was popped from is empty.
    #[inline(never)]
    fn swap(&self, popped: bool) -> &Heap<Place<T>> {
        self.popping.set(!popped);
        self.closes_at.set(self.arrivals.get() + NEWCOMERS);
        self.behind.set(Behind::Others);
        self.heap(!popped)
    }

    /// Notes that a waiter that may be more urgent than those of the heap that is popped from has entered the other heap.
    fn came_behind(&self) {
        if self.behind.get() == Behind::Others {
            self.behind.set(Behind::First);
        }
    }

    /// The waiter that [`choose`](Self::choose) tries first: the most urgent of the heap that is popped from, or of both (see the module head).
    ///
    /// # Safety
    ///
    /// L1. The reference is used no longer than the lock is held.
    pub unsafe fn first(&self) -> Option<&Place<T>> {
        // SAFETY: L1 by contract; L2: a place in the queue is alive, and the reference is used under the lock only.
        unsafe { self.next().map(|place| place.as_ref()) }
    }

    /// The place that is chosen next.
    ///
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

    /// The next choice while the heap is closed whose first place is `first`.
    ///
    /// # Safety
    ///
    /// L1; `first` is in this queue.
    #[cold]
    #[inline(never)]
    unsafe fn of_both(&self, first: NonNull<Place<T>>) -> Option<NonNull<Place<T>>> {
        // SAFETY: L1.
        let behind = unsafe { self.heap(!self.popping.get()).first() };
        // SAFETY: L2: both places are in the queue, so they are alive.
        let is_passed = |behind: &NonNull<Place<T>>| unsafe { behind.as_ref().key() < first.as_ref().key() };
        Some(behind.filter(|behind| self.is_closed() && is_passed(behind)).unwrap_or(first))
    }

    /// Pops the [first](Self::first) place and chooses its waiter. If the waiter refuses, since it has left its wait otherwise, tries the next.
    ///
    /// # Safety
    ///
    /// L1. The caller wakes the chosen waiter, after it releases the lock or before.
    pub unsafe fn choose(&self) -> Option<Chosen<T>> {
        // SAFETY: by contract.
        unsafe { self.choose_if(|_| true) }
    }

    /// The same, but only if `fits` returns true for the value of that place. No other waiter passes it: the next is tried only if the
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
            // SAFETY: L1: the place is in that heap.
            unsafe { self.heap(stands).remove(this) };
            // SAFETY: as above.
            let sure = unsafe { this.context.as_ref() }.choose(this.ticket.get());
            let sure = mutant!("refused_is_woken", true, sure);
            if sure {
                return Some(Chosen::new(place));
            }
            mutant!("refused_ends_the_choice", return None);
        }
    }

    /// The same if the queue has one place, whose waiter chooses without delay. It calls nothing. `None`: nothing has changed, and [`choose`](Self::choose)
    /// decides.
    ///
    /// # Safety
    ///
    /// As [`choose`](Self::choose).
    #[inline(always)]
    pub(crate) unsafe fn choose_only(&self) -> Option<Chosen<T>> {
        let heap = self.heap(self.popping.get());
        // SAFETY: L1.
        let place = unsafe { heap.head() }?;
        let is_only = mutant!("first_taken_for_the_only_one", true, self.len.get() == 1);
        if !is_only || self.behind.get() != Behind::Others {
            return None;
        }
        // SAFETY: L2: its waiter must take the lock before it leaves.
        let this = unsafe { place.as_ref() };
        // SAFETY: as above.
        let sure = unsafe { this.context.as_ref() }.choose_unheld(this.ticket.get());
        if !mutant!("only_waiter_is_not_asked", true, sure) {
            return None;
        }
        this.stands.set(None);
        self.len.set(0);
        // SAFETY: L1: the only place is in that heap.
        unsafe { heap.take_only() };
        Some(Chosen::new(place))
    }

    /// [`enter`](Self::enter) for a newcomer that finds the queue empty. It calls nothing.
    ///
    /// # Safety
    ///
    /// L1, L2; the place is in no queue, and this one is empty. `on` is the place's thread.
    #[inline(always)]
    pub(crate) unsafe fn enter_empty(&self, place: &Place<T>, on: usize) {
        let (arrivals, popped) = (self.arrivals.get(), self.popping.get());
        self.arrivals.set(arrivals + 1);
        self.closes_at.set(arrivals + NEWCOMERS);
        self.place.set(on);
        self.len.set(1);
        place.links.key.set((place.links.key.get().0, arrivals + 1));
        place.stands.set(Some(popped));
        // SAFETY: by contract.
        unsafe { self.heap(popped).push_only(place) };
    }

    /// Whether another context than this one waits here. One context may have several places in the queue.
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

    /// Removes the place of a waiter that leaves; false if the place is in no queue any more.
    ///
    /// # Safety
    ///
    /// L1; the place is in this queue or in none.
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

    /// Moves a place forward, to the position of a smaller key.
    ///
    /// # Safety
    ///
    /// L1; the place is in this queue or in none.
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
        // SAFETY: L1 by contract; the place stands in this heap, and between the two calls in none.
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
