//! The list in which those stand who wait for a lock.
//!
//! Two heaps, as in the request framework that forebear comes from (its `RequestLockQueue`): places are popped from one of them by
//! urgency; who has been woken and finds the lock taken all the same puts itself back onto *the other*; when the first is empty the
//! two are swapped. So an urgent waiter that cannot go on yet, and puts itself back, does not starve the others: each of them is
//! popped once before it comes again. A newcomer stands with those that are popped from now, unless somebody has put itself back who is as
//! urgent: then it stands behind that one, on the other heap. So newcomers do not starve those who have lost, either.
//!
//! # Who wakes whom
//!
//! Whoever pops a place *chooses* its context ([`Context::choose`]), under the lock of the queue: from then on that wait ends by this
//! wake-up and no other, and the place stays until [`Chosen::wake`]. A context that has left its wait otherwise refuses; then its place
//! is out of the queue already, and the next is tried, so no wake-up is lost on somebody who leaves. A leaver takes the lock, and takes
//! its place out if it still stands there.
//!
//! # Invariants
//!
//! * **L1** A queue is touched under the lock that it belongs to.
//! * **L2** A place that stands in a queue lies in the frame of its waiter, which does not leave it before the place is out.
//! * **L3** A place that was popped and chosen stays until it was woken: its waiter does not go on before.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use forebear_context::context::{Context, Ticket, ready};
use forebear_context::lineage::{NO_KEY, Priority, next_root, root_key};

use crate::heap::{Heap, Linked, Links};

/// Stands in no heap.
const NOWHERE: u8 = 2;

/// One waiter's place in a [`LockQueue`], with what the queue's owner wants to know of it.
pub struct Place<T = ()> {
    links: Links<Place<T>>,
    /// Which of the heaps it stands in, or [`NOWHERE`].
    stands: Cell<u8>,
    context: NonNull<Context>,
    ticket: Cell<Ticket>,
    /// What the waiter wants, and what it was given.
    pub value: T,
}

impl<T> Linked for Place<T> {
    fn links(&self) -> &Links<Place<T>> {
        &self.links
    }
}

impl<T> Place<T> {
    /// A place for a wait of `context` that it has begun under `ticket`. A context of no urgency, a thread's, draws the number that a
    /// root would have that was made now.
    pub fn new(context: &Context, ticket: Ticket, value: T) -> Place<T> {
        Place {
            links: Links::new(key_of(context)),
            stands: Cell::new(NOWHERE),
            context: NonNull::from(context),
            ticket: Cell::new(ticket),
            value,
        }
    }

    /// The next wait of the same context. While the place stands nowhere.
    pub fn renew(&self, ticket: Ticket) {
        self.ticket.set(ticket);
        let (key, number) = self.links.key.get();
        // SAFETY: it is the waiter's own.
        let now = unsafe { self.context.as_ref() }.urgency();
        self.links.key.set((key.min(now), number));
    }

    /// Whether it stands in a queue. Under the queue's lock (L1).
    pub fn is_listed(&self) -> bool {
        self.stands.get() != NOWHERE
    }

    /// On which thread its waiter is: [`Context::place`].
    pub(crate) fn on(&self) -> usize {
        // SAFETY: it is the waiter's own, or L2.
        unsafe { self.context.as_ref() }.place().get()
    }

    /// The root key it stands by; smaller goes first.
    pub fn key(&self) -> u64 {
        self.links.key.get().0
    }
}

fn key_of(context: &Context) -> u64 {
    match context.urgency() {
        NO_KEY => root_key(Priority::NORMAL, next_root()),
        key => key,
    }
}

/// See the module head.
///
/// Of use to whoever writes a primitive of their own; it is an ordinary data structure with `unsafe` to it, since its places are
/// borrowed from their waiters' frames.
pub struct LockQueue<T = ()> {
    heaps: [Heap<Place<T>>; 2],
    /// Which of them is popped from; the other is pushed back onto.
    popping: Cell<u8>,
    /// How many have come so far; among equals the older goes first.
    came: Cell<u64>,
    len: Cell<usize>,
    /// Where all those wait that stand here: the number of one thread; 0 if there are several.
    place: Cell<usize>,
}

impl<T> LockQueue<T> {
    /// An empty queue.
    pub const fn new() -> LockQueue<T> {
        LockQueue {
            heaps: [Heap::new(), Heap::new()],
            popping: Cell::new(0),
            came: Cell::new(0),
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

    /// Puts a newcomer where it is popped from now, by its key, or behind who has put itself back and is as urgent.
    ///
    /// # Safety
    ///
    /// L1, L2; it stands nowhere.
    pub unsafe fn enter(&self, place: &Place<T>) {
        self.came.set(self.came.get() + 1);
        place.links.key.set((place.links.key.get().0, self.came.get()));
        let popped = self.popping.get();
        // SAFETY: by contract.
        unsafe {
            let behind_a_loser = !self.is_empty() && self.has_lost_as_urgent(place.key());
            self.put(place, if behind_a_loser { 1 - popped } else { popped });
        }
    }

    /// Whether somebody has put itself back who is as urgent as `key`, or more.
    ///
    /// # Safety
    ///
    /// L1.
    unsafe fn has_lost_as_urgent(&self, key: u64) -> bool {
        // SAFETY: by contract; L2.
        unsafe {
            let loser = self.heaps[usize::from(1 - self.popping.get())].first();
            loser.is_some_and(|loser| loser.as_ref().key() <= key)
        }
    }

    /// Puts one back that was popped: it is popped again when all those have been that stand here now.
    ///
    /// # Safety
    ///
    /// L1, L2; it stands nowhere.
    pub unsafe fn push(&self, place: &Place<T>) {
        // SAFETY: by contract.
        unsafe { self.put(place, 1 - self.popping.get()) };
    }

    unsafe fn put(&self, place: &Place<T>, stands: u8) {
        // SAFETY: L2: it is the caller's own place, and its context.
        let on = unsafe { place.context.as_ref() }.place().get();
        if self.is_empty() {
            self.place.set(on);
        } else if self.place.get() != on {
            self.place.set(0);
        }
        place.stands.set(stands);
        self.len.set(self.len.get() + 1);
        // SAFETY: by contract.
        unsafe { self.heaps[usize::from(stands)].push(place) };
    }

    fn pops(&self) -> &Heap<Place<T>> {
        if self.heaps[usize::from(self.popping.get())].is_empty() {
            self.popping.set(1 - self.popping.get());
        }
        &self.heaps[usize::from(self.popping.get())]
    }

    /// The one who would be popped.
    ///
    /// # Safety
    ///
    /// L1. The reference is used no longer than the lock is held.
    pub unsafe fn first(&self) -> Option<&Place<T>> {
        // SAFETY: L2.
        unsafe { self.pops().first().map(|place| place.as_ref()) }
    }

    /// Pops the most urgent and makes sure of it. Whoever refuses has left its wait otherwise, and is out.
    ///
    /// # Safety
    ///
    /// L1. The answer is woken, after the lock has been let go of or before.
    pub unsafe fn choose(&self) -> Option<Chosen<T>> {
        // SAFETY: by contract.
        unsafe { self.choose_if(|_| true) }
    }

    /// The same, but only if `fits` says so of what the most urgent one wants. Nobody passes it: the next is looked at only if the
    /// first has left its wait.
    ///
    /// # Safety
    ///
    /// As [`choose`](Self::choose).
    pub unsafe fn choose_if(&self, mut fits: impl FnMut(&T) -> bool) -> Option<Chosen<T>> {
        loop {
            let pops = self.pops();
            // SAFETY: L1, L2.
            if !fits(unsafe { &pops.first()?.as_ref().value }) {
                return None;
            }
            // SAFETY: L1.
            let place = unsafe { pops.pop() }?;
            self.len.set(self.len.get() - 1);
            // SAFETY: L2: its waiter must take the lock before it leaves.
            let this = unsafe { place.as_ref() };
            this.stands.set(NOWHERE);
            // SAFETY: as above.
            let sure = unsafe { this.context.as_ref() }.choose(this.ticket.get());
            #[cfg(mutant = "refused_is_woken")]
            let sure = sure || true;
            if sure {
                return Some(Chosen { place });
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
            self.len.set(self.len.get() - 1);
            place.links.next().set(own);
            own = Some(first);
        };
        while let Some(place) = own {
            // SAFETY: L2; it keeps its key and its number, and so its turn.
            unsafe {
                own = place.as_ref().links.next().get();
                self.put(place.as_ref(), self.popping.get());
            }
        }
        others
    }

    /// Takes a place out whose waiter leaves; false if it stands nowhere any more.
    ///
    /// # Safety
    ///
    /// L1; it stands here or nowhere.
    pub unsafe fn remove(&self, place: &Place<T>) -> bool {
        let Some(heap) = self.heaps.get(usize::from(place.stands.replace(NOWHERE))) else { return false };
        // SAFETY: by contract.
        unsafe { heap.remove(place) };
        self.len.set(self.len.get() - 1);
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
        let Some(heap) = self.heaps.get(usize::from(place.stands.get())) else {
            place.links.key.set((key, number));
            return;
        };
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
        f.debug_struct("LockQueue").field("len", &self.len.get()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("key", &self.key()).finish_non_exhaustive()
    }
}

/// A waiter that has been made sure of, to be woken once.
#[must_use = "it waits until it is woken"]
pub struct Chosen<T = ()> {
    place: NonNull<Place<T>>,
}

impl<T> Chosen<T> {
    /// Its place, until it is woken (L3).
    pub fn place(&self) -> &Place<T> {
        // SAFETY: L3.
        unsafe { self.place.as_ref() }
    }

    /// Whose wait it is.
    pub fn context(&self) -> &Context {
        // SAFETY: L3: the waiter is there.
        unsafe { self.place().context.as_ref() }
    }

    /// Has it go on. What was done before is seen there.
    pub fn wake(self) {
        let (context, ticket) = (self.place().context, self.place().ticket.get());
        // SAFETY: chosen, and this takes `self`.
        unsafe { ready(context, ticket) };
    }
}

impl<T> fmt::Debug for Chosen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chosen").field(self.place()).finish()
    }
}

/// Several that have been made sure of, in order, to be woken when everything has been let go of. No allocation: they are linked by
/// their places.
#[must_use = "they wait until they are woken"]
pub struct ChosenList<T = ()> {
    first: Option<NonNull<Place<T>>>,
    last: Option<NonNull<Place<T>>>,
}

impl<T> ChosenList<T> {
    /// Nobody yet.
    pub const fn new() -> ChosenList<T> {
        ChosenList { first: None, last: None }
    }

    /// Puts one last.
    pub fn push(&mut self, chosen: Chosen<T>) {
        let this = Some(chosen.place);
        chosen.place().links.next().set(None);
        match self.last {
            // SAFETY: L3.
            Some(last) => unsafe { last.as_ref() }.links.next().set(this),
            None => self.first = this,
        }
        self.last = this;
    }

    /// Whether nobody was chosen.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Has all of them go on, in order. Answers how many.
    pub fn wake(mut self) -> usize {
        let mut woken = 0;
        while let Some(place) = self.first {
            // SAFETY: L3: read before it is woken.
            self.first = unsafe { place.as_ref() }.links.next().get();
            Chosen { place }.wake();
            woken += 1;
        }
        woken
    }
}

impl<T> Default for ChosenList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for ChosenList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenList").field("is_empty", &self.is_empty()).finish()
    }
}
