//! The ready queue of one worker: woken fibers, most urgent first, and those that yielded.
//!
//! Most wake-ups arrive in order: the waiters of one request are in the order of their arrival. So the queue is a set of sorted runs, with a
//! heap of their first entries. An entry that arrives in order is appended to the last run; any other begins a new run. Entries that arrive
//! together in no order are sorted first. A run is linked through its fibers, so a mass wake-up allocates nothing. Entries carry a
//! copy of what decides between close relatives, so a comparison reads no cold headers. A single ready entry is kept outside of the
//! runs. That is the case of two fibers that exchange messages, and of one fiber that is woken again and again before many others.
//!
//! In a mass wake-up every stack is cold. So the worker takes a few entries out of the runs ahead of their turn, in whatever order they are in memory,
//! and prefetches their stacks. With each it prefetches the first lines of the entry behind. An entry that is pushed later, and goes before them,
//! is not delayed by this (see `docs/decisions/0023`).
//!
//! Fibers that yielded are in a list of their own ([`yielded`]).
//!
//! # The order
//!
//! By key: the root's, or that of a more urgent waiter. Among equal keys, by the path of ranks from the root down
//! ([`Lineage::compare_paths`]). The keys of the fibers' own roots, which differ where a fiber was raised, are not compared after that. Siblings are
//! compared by rank alone, so a comparison of others by another rule would not be transitive. A fiber without a request goes before all that
//! have its key: the worker's loop runs a destructor on it, which waits.
//!
//! # Raises
//!
//! A ready fiber that becomes more urgent is taken out and put in again by its new key ([`Ready::raise`]), wherever it is in the queue. So a
//! run is linked both ways, and a fiber knows whether it is among the woken. A raise also wakes a fiber that yielded, since
//! a waiter waits for what it holds.

use std::cell::Cell;
use std::cmp::Ordering as Order;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;
use std::ptr::{self, NonNull};

use forebear_context::lineage::{Lineage, NO_KEY};
use forebear_context::shim::atomic::Ordering;

use crate::record::fiber::{Descent, Fiber};
use crate::stack::prefetch;
use crate::state::ORDERED;

#[cfg(all(test, not(any(forebear_unordered, shuttle))))]
mod tests;
mod yielded;

use self::yielded::Yielded;

/// A ready fiber, with what decides its place.
#[derive(Clone, Copy)]
struct ReadyEntry {
    key: u64,
    parent: *const Lineage,
    rank: u32,
    depth: u32,
    fiber: NonNull<Fiber>,
}

impl ReadyEntry {
    fn new(fiber: NonNull<Fiber>) -> ReadyEntry {
        // SAFETY: a ready fiber is left, so its worker, who calls this, may look at it.
        let s = unsafe { fiber.as_ref() };
        let Descent { parent, rank, depth } = s.descent.get();
        ReadyEntry { key: s.urgency.load(Ordering::Relaxed), parent, rank, depth, fiber }
    }

    fn lineage(&self) -> Option<&Lineage> {
        // SAFETY: as above; the request on top is alive.
        unsafe { self.fiber.as_ref() }.request().map(|request| &request.lineage)
    }

    /// The fiber before it in its run.
    fn link_back(&self) -> &Cell<*const Fiber> {
        // SAFETY: as above.
        &unsafe { self.fiber.as_ref() }.before_ready
    }

    /// Whether it stands among the woken.
    fn is_woken(&self) -> &Cell<bool> {
        // SAFETY: as above.
        &unsafe { self.fiber.as_ref() }.is_woken
    }

    /// The fiber behind it in its run.
    fn link(&self) -> &Cell<*const Fiber> {
        // SAFETY: as above: the link is the queue's.
        &unsafe { self.fiber.as_ref() }.next_ready
    }

    /// Whether `other` is the request above this one, by looking at no more than where that one is.
    fn is_child_of(&self, other: &ReadyEntry) -> bool {
        self.depth.checked_sub(1) == Some(other.depth)
            && other.lineage().is_some_and(|lineage| ptr::eq(self.parent, lineage))
    }

    #[inline]
    fn compare(&self, other: &ReadyEntry) -> Order {
        match self.key.cmp(&other.key) {
            Order::Equal if self.parent == other.parent => self.rank.cmp(&other.rank),
            Order::Equal => self.compare_relatives(other),
            different => different,
        }
    }

    /// Those of one key that are not siblings. A parent that waits for its many children one by one is compared with one of them each time,
    /// which is cold.
    #[inline(never)]
    fn compare_relatives(&self, other: &ReadyEntry) -> Order {
        if self.is_child_of(other) {
            return Order::Greater;
        }
        if other.is_child_of(self) {
            return Order::Less;
        }
        match (self.lineage(), other.lineage()) {
            (Some(a), Some(b)) => a.compare_paths(b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        }
    }
}

/// The first of a run. The heap gives the largest, so the order is reversed.
struct Head(ReadyEntry);

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.0.compare(&other.0) == Order::Equal
    }
}
impl Eq for Head {}
impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for Head {
    fn cmp(&self, other: &Self) -> Order {
        other.0.compare(&self.0)
    }
}

/// See the module head. Belongs to one worker.
#[derive(Default)]
pub(crate) struct Ready {
    /// One that goes before all in `soon` and in the runs.
    first: Option<ReadyEntry>,
    /// Taken out of the runs ahead of their turn, in order, so that what they need from memory is fetched meanwhile.
    soon: VecDeque<ReadyEntry>,
    /// The first of each run. The rest of it is linked behind it.
    heads: BinaryHeap<Head>,
    /// The last of the run that was added to last, while it stands there.
    last: Option<ReadyEntry>,
    woken: usize,
    yielded: Yielded,
    /// Room to sort in.
    arrived: Vec<ReadyEntry>,
}

/// For how many that arrive together, or stand ready, there is room at any time.
const KEPT: usize = 1024;
/// How many are taken out of the runs ahead of their turn, each with a first access to its page. More were worse: what was fetched
/// for them was gone again.
const SOON: usize = 5;
/// Which of these is fetched whole.
const NEAR: usize = 1;

impl Ready {
    /// How many may continue, those that yielded included.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.woken + self.yielded.len()
    }

    /// How many were woken and may continue.
    #[inline(always)]
    pub(crate) fn woken(&self) -> usize {
        self.woken
    }

    /// Whether nothing but yielders could continue.
    #[inline(always)]
    pub(crate) fn only_yielded(&self) -> bool {
        self.woken == 0
    }

    /// A fiber was woken.
    #[inline]
    pub(crate) fn push(&mut self, fiber: NonNull<Fiber>) {
        if !self.push_only(fiber) {
            self.push_another(fiber);
        }
    }

    /// A fiber was woken beside others.
    #[inline(always)]
    pub(crate) fn push_another(&mut self, fiber: NonNull<Fiber>) {
        let entry = ReadyEntry::new(fiber);
        entry.is_woken().set(true);
        self.woken += 1;
        self.push_beside(entry);
    }

    /// The same if no other woken fiber is there. It calls nothing. False: nothing was done.
    #[inline(always)]
    pub(crate) fn push_only(&mut self, fiber: NonNull<Fiber>) -> bool {
        let alone = self.woken == 0;
        if alone {
            let entry = ReadyEntry::new(fiber);
            entry.is_woken().set(true);
            self.woken = 1;
            self.first = Some(entry);
        }
        alone
    }

    /// Fibers were woken by other threads, and arrive together: the latest, and those before it, the latest of them first.
    #[inline]
    pub(crate) fn push_arrived(
        &mut self,
        latest: NonNull<Fiber>,
        mut before: impl Iterator<Item = NonNull<Fiber>>,
    ) {
        match before.next() {
            None => self.push(latest),
            Some(next) => self.push_sorted([latest, next].into_iter().chain(before)),
        }
    }

    /// A mass wake-up in no order would begin a run with nearly every fiber: a heap of them all, and none to fetch ahead.
    #[inline(never)]
    fn push_sorted(&mut self, latest_first: impl Iterator<Item = NonNull<Fiber>>) {
        let mut arrived = mem::take(&mut self.arrived);
        arrived.extend(latest_first.map(ReadyEntry::new));
        arrived.reverse();
        if ORDERED {
            // Stable: equals stay in order of arrival.
            arrived.sort_by(ReadyEntry::compare);
        }
        self.woken += arrived.len();
        for entry in arrived.drain(..) {
            entry.is_woken().set(true);
            self.push_beside(entry);
        }
        self.arrived = arrived;
        // A million once is no reason to keep room for them.
        self.arrived.shrink_to(KEPT);
    }

    /// Another is ready.
    #[inline(never)]
    fn push_beside(&mut self, entry: ReadyEntry) {
        let goes_before = |other: &ReadyEntry| ORDERED && other.compare(&entry) == Order::Greater;
        let later = match &mut self.first {
            Some(first) if goes_before(first) => mem::replace(first, entry),
            Some(_) => entry,
            // A parent that waits for its children one by one is ready again each time before the children that are left.
            None if self.soon.front().is_none_or(goes_before)
                && self.heads.peek().is_none_or(|head| goes_before(&head.0)) =>
            {
                self.first = Some(entry);
                return;
            }
            None => entry,
        };
        self.push_to_runs(later);
    }

    /// Appends an entry to the last run if it is in order there, else begins a run with it.
    fn push_to_runs(&mut self, entry: ReadyEntry) {
        entry.link().set(ptr::null());
        let before = self.last.replace(entry);
        match before.filter(|before| !ORDERED || before.compare(&entry) != Order::Greater) {
            Some(before) => {
                before.link().set(entry.fiber.as_ptr());
                entry.link_back().set(before.fiber.as_ptr());
            }
            None => {
                entry.link_back().set(ptr::null());
                self.heads.push(Head(entry));
            }
        }
    }

    /// A fiber yields. It is due after all that is ready now, and after one request that is `unstarted` if there is any.
    #[inline(always)]
    pub(crate) fn push_yielded(&mut self, fiber: NonNull<Fiber>, unstarted: bool) {
        self.yielded.push(fiber, self.woken, unstarted);
    }

    /// The most urgent one's key, and whether it is a yielder that is due.
    #[inline]
    fn best(&self) -> (u64, bool) {
        let woken = match &self.first {
            Some(first) => first.key,
            None => {
                let soon = self.soon.front().map_or(NO_KEY, |entry| entry.key);
                soon.min(self.heads.peek().map_or(NO_KEY, |head| head.0.key))
            }
        };
        match self.yielded.due() {
            Some(key) if key <= woken => (key, true),
            _ => (woken, false),
        }
    }

    /// The key of the most urgent; yielders count once they are due.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        self.best().0
    }

    /// The fiber that stands outside of the runs, with its key, if there is one and no fiber has yielded. It goes before all others then.
    #[inline(always)]
    pub(crate) fn outside(&self) -> Option<(u64, NonNull<Fiber>)> {
        self.first.as_ref().filter(|_| self.yielded.len() == 0).map(|first| (first.key, first.fiber))
    }

    /// Takes the fiber that [`outside`](Self::outside) has answered.
    #[inline(always)]
    pub(crate) fn take_outside(&mut self) -> Option<NonNull<Fiber>> {
        let first = self.first.take()?;
        first.is_woken().set(false);
        self.yielded.count_pick();
        self.woken -= 1;
        Some(first.fiber)
    }

    /// How many that were woken have been taken.
    pub(crate) fn picks(&self) -> u64 {
        self.yielded.picks()
    }

    /// Counts a start of something unstarted, which moves the yielders forward.
    #[inline(always)]
    pub(crate) fn count_start(&mut self) {
        self.yielded.count_start();
    }

    /// Takes the most urgent; a yielder that is not due only if `yielded_too`.
    #[inline]
    pub(crate) fn pop(&mut self, yielded_too: bool) -> Option<NonNull<Fiber>> {
        let (key, due) = self.best();
        if due || (key == NO_KEY && yielded_too) {
            return self.yielded.pop();
        }
        if let Some(first) = self.take_outside() {
            return Some(first);
        }
        self.pop_from_runs()
    }

    #[inline(never)]
    fn pop_from_runs(&mut self) -> Option<NonNull<Fiber>> {
        if self.woken > SOON {
            self.look_ahead();
        }
        let from_soon = match (self.soon.front(), self.heads.peek()) {
            (Some(soon), Some(head)) => !ORDERED || soon.compare(&head.0) != Order::Greater,
            (soon, _) => soon.is_some(),
        };
        let entry = if from_soon { self.soon.pop_front() } else { self.pop_head() }?;
        if let Some(next) = self.soon.get(NEAR) {
            prefetch::whole(next.fiber);
        }
        entry.is_woken().set(false);
        self.yielded.count_pick();
        self.woken -= 1;
        Some(entry.fiber)
    }

    /// A mass wake-up finds every stack cold: takes those that come soon out of the runs, and begins to fetch them.
    fn look_ahead(&mut self) {
        while self.soon.len() < SOON {
            let Some(head) = self.heads.peek() else { break };
            if ORDERED && self.soon.back().is_some_and(|last| last.compare(&head.0) == Order::Greater) {
                // It came later, and goes before some of these.
                break;
            }
            prefetch::top(head.0.fiber.as_ptr());
            let Some(next) = self.pop_head() else { break };
            self.soon.push_back(next);
        }
    }

    /// Takes the first of what stands in the runs.
    fn pop_head(&mut self) -> Option<ReadyEntry> {
        let mut head = self.heads.peek_mut()?;
        let entry = head.0;
        if let Some(next) = NonNull::new(entry.link().get().cast_mut()) {
            head.0 = ReadyEntry::new(next);
            head.0.link_back().set(ptr::null());
            // Its turn to be the first of the run comes with the next pick from it.
            prefetch::top(head.0.link().get());
        } else {
            PeekMut::pop(head);
            if self.last.is_some_and(|last| last.fiber == entry.fiber) {
                self.last = None;
            }
        }
        Some(entry)
    }

    /// The fiber has become more urgent: gives it the place that goes with its key, if it stands here.
    #[cold]
    pub(crate) fn raise(&mut self, fiber: NonNull<Fiber>) {
        // SAFETY: the caller is its worker, and the fiber is left.
        if unsafe { fiber.as_ref() }.is_woken.get() {
            self.take_out(fiber);
            self.woken -= 1;
        } else if !self.yielded.remove(fiber) {
            return;
        } else {
            // A fiber that yields is not queued by its descent, and has not stored it.
            // SAFETY: as above.
            let s = unsafe { fiber.as_ref() };
            s.descent.set(Descent::of_top(s.request()));
        }
        self.push(fiber);
    }

    /// Takes one of the woken out.
    fn take_out(&mut self, fiber: NonNull<Fiber>) {
        let is_it = |entry: &ReadyEntry| entry.fiber == fiber;
        if self.first.is_some_and(|first| is_it(&first)) {
            self.first = None;
            return;
        }
        if let Some(place) = self.soon.iter().position(is_it) {
            self.soon.remove(place);
            return;
        }
        // SAFETY: the fiber is in the queue, so it is a coroutine's, whose memory stays (K3); its links are the queue's.
        let entry = unsafe { fiber.as_ref() };
        let (before, next) = (entry.before_ready.get(), entry.next_ready.get());
        let next = NonNull::new(next.cast_mut()).map(ReadyEntry::new);
        if let Some(next) = &next {
            next.link_back().set(before);
        }
        let before = NonNull::new(before.cast_mut()).map(ReadyEntry::new);
        match (&before, next) {
            (Some(before), next) => before.link().set(next.map_or(ptr::null(), |next| next.fiber.as_ptr())),
            (None, next) => {
                self.heads.retain(|head| !is_it(&head.0));
                self.heads.extend(next.map(Head));
            }
        }
        if self.last.is_some_and(|last| is_it(&last)) {
            self.last = before;
        }
    }

    /// Gives back the room that a crowd has needed. For a worker that has nothing to do.
    pub(crate) fn trim(&mut self) {
        if self.woken == 0 && self.heads.capacity() > KEPT {
            self.heads = BinaryHeap::new();
        }
    }

    /// The yielder at the head.
    #[inline(always)]
    pub(crate) fn first_yielded(&self) -> Option<NonNull<Fiber>> {
        self.yielded.first()
    }

    /// Takes the yielder at the head, and puts `fiber` at the tail: the fast way of a yield, if nothing else may continue. Answers
    /// nobody, and does nothing, if nobody else has yielded.
    #[inline(always)]
    pub(crate) fn rotate_yielded(&mut self, fiber: NonNull<Fiber>) -> Option<NonNull<Fiber>> {
        self.yielded.rotate(fiber)
    }
}
