//! What is ready on one worker: suspended strands that may go on, most urgent first; and those that yielded.
//!
//! Most wake-ups come in order (the waiters of one request stand in order of their coming), so the queue is made of sorted
//! runs, with a heap of their first entries: what comes in order is added to the last run, and anything else begins a new
//! one. Those that arrive together in no order are sorted first. Entries carry a copy of what decides between siblings, so that a mass wake-up compares without touching cold
//! headers. Where nothing else is ready, as when two hand something back and forth, or one comes back each time before a crowd of others,
//! the entry stands alone, outside of it all.
//!
//! In a mass wake-up every stack is cold. So a few are taken out of the runs ahead of their turn, in whatever order they stand in memory, and
//! fetched meanwhile; what is pushed later and goes before them is not held up by that (see `docs/decisions/0023`).
//!
//! Those that yielded stand apart, first in, first out: a yield goes behind everything that is ready at that moment, and
//! never by lineage, or an old request that polls would starve the younger one it polls for. Each carries after how many
//! picks it is *due*, and whether something unstarted has to be started first: several that poll by turns must not keep
//! each other from the root that all of them poll for. From then on it competes like the rest, with two bounds:
//!
//! * After [`TURNS`] yields with something unstarted at hand and no start none is due until there is a start. A round of those that
//!   yield is thus cut into pieces, and how long something unstarted waits does not grow with how many poll. Up to that many the round
//!   is whole: what yields a few times and ends goes before what would begin beside it (decision 0026).
//! * After [`TURNS`] picks more than it owes it is due without a start. What was to be started may have been taken elsewhere.

use forebear_context::context::Context;
use forebear_context::shim::atomic::Ordering;
use std::cmp::Ordering as Order;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;
use std::ptr::NonNull;

use forebear_context::lineage::{Lineage, NO_KEY};

use crate::carrier::Carrier;
use crate::header::Header;
use crate::shared::ORDERED;
use crate::strand::{BEHIND_CONTEXT, Strand};

/// A strand that may go on, with what decides its place.
#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    parent: *const Lineage,
    rank: u32,
    strand: NonNull<Strand>,
}

impl Entry {
    fn new(strand: NonNull<Strand>) -> Entry {
        // SAFETY: a ready strand is left, so its worker, who calls this, may look at it.
        let s = unsafe { strand.as_ref() };
        let (parent, rank) = s.place.get();
        Entry { key: s.urgency.load(Ordering::Relaxed), parent, rank, strand }
    }

    fn lineage(&self) -> Option<&Lineage> {
        // SAFETY: as above; the request on top is alive.
        unsafe { self.strand.as_ref() }.request().map(|request| &request.lineage)
    }

    fn compare(&self, other: &Entry) -> Order {
        self.key.cmp(&other.key).then_with(|| {
            if self.parent == other.parent {
                return self.rank.cmp(&other.rank);
            }
            match (self.lineage(), other.lineage()) {
                (Some(a), Some(b)) => a.compare(b),
                _ => Order::Equal,
            }
        })
    }
}

/// The first of a run, and which run. The heap gives the largest, so the order is reversed.
struct Head {
    entry: Entry,
    run: u32,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.entry.compare(&other.entry) == Order::Equal
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
        other.entry.compare(&self.entry)
    }
}

/// See the module head. Belongs to one worker.
#[derive(Default)]
pub(crate) struct Ready {
    /// One that goes before all in `soon` and in the runs.
    first: Option<Entry>,
    /// Taken out of the runs ahead of their turn, in order, so that what they need from memory is fetched meanwhile.
    soon: VecDeque<Entry>,
    /// The first of each run that has any.
    heads: BinaryHeap<Head>,
    /// The rest of each run.
    runs: Vec<VecDeque<Entry>>,
    /// Runs that are used up.
    spare: Vec<u32>,
    /// The run that was added to last, with its last entry.
    last: Option<(u32, Entry)>,
    woken: usize,
    yielded: Yielded,
    /// Room to sort in.
    arrived: Vec<Entry>,
    /// How often something woken was taken, and how often something unstarted. A yielder's turn counts for neither, or
    /// several would make each other due and pass over the rest for ever.
    picks: u64,
    starts: u64,
    /// How often a strand has yielded with something unstarted at hand since the last start, or since nothing was.
    passed: u32,
}

/// See the module head.
const TURNS: u32 = 64;

/// For how many that arrive together, or stand ready, there is room at any time.
const KEPT: usize = 1024;
/// How many are taken out of the runs ahead of their turn, each with a first access to its page. More were worse: what was fetched
/// for them was gone again.
const SOON: usize = 5;
/// Which of these is fetched whole.
const NEAR: usize = 1;

/// Those that yielded, linked through themselves: a yield is to cost a few stores.
#[derive(Default)]
struct Yielded {
    first: Option<NonNull<Strand>>,
    last: Option<NonNull<Strand>>,
    len: usize,
}

impl Yielded {
    #[inline(always)]
    fn push(&mut self, strand: NonNull<Strand>, due: (u64, u64)) {
        // SAFETY: strands stay where they are while they are ready, and this is their worker.
        unsafe {
            strand.as_ref().due.set(due);
            strand.as_ref().next_yielded.set(std::ptr::null());
            match self.last {
                Some(last) => last.as_ref().next_yielded.set(strand.as_ptr()),
                None => self.first = Some(strand),
            }
        }
        self.last = Some(strand);
        self.len += 1;
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<NonNull<Strand>> {
        let first = self.first?;
        // SAFETY: as above.
        self.first = NonNull::new(unsafe { first.as_ref() }.next_yielded.get().cast_mut());
        if self.first.is_none() {
            self.last = None;
        }
        self.len -= 1;
        Some(first)
    }

    /// Takes the first, if there is one, and puts `strand` behind the last, which may be the same.
    #[inline(always)]
    fn rotate(&mut self, strand: NonNull<Strand>, due: (u64, u64)) -> Option<NonNull<Strand>> {
        let (first, last) = (self.first?, self.last?);
        // SAFETY: as above. The next is read last: if there is only one, it is `strand`.
        unsafe {
            strand.as_ref().due.set(due);
            strand.as_ref().next_yielded.set(std::ptr::null());
            last.as_ref().next_yielded.set(strand.as_ptr());
            self.first = NonNull::new(first.as_ref().next_yielded.get().cast_mut());
        }
        self.last = Some(strand);
        Some(first)
    }

    /// The key of the first, if it is due by the number of `picks`, and of `starts` if there may be a turn without another.
    #[inline(always)]
    fn due(&self, picks: u64, starts: u64, turn: bool) -> Option<u64> {
        // SAFETY: as above.
        let first = unsafe { self.first?.as_ref() };
        let (after_picks, after_starts) = first.due.get();
        let due =
            after_picks <= picks && after_starts <= starts && turn || after_picks + u64::from(TURNS) <= picks;
        due.then(|| first.urgency.load(Ordering::Relaxed))
    }
}

impl Ready {
    /// How many may go on, those that yielded included.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.woken + self.yielded.len
    }

    /// Whether nothing but yielders could go on.
    #[inline(always)]
    pub(crate) fn only_yielded(&self) -> bool {
        self.woken == 0
    }

    /// A strand was woken.
    #[inline]
    pub(crate) fn push(&mut self, strand: NonNull<Strand>) {
        let entry = Entry::new(strand);
        self.woken += 1;
        if self.woken == 1 {
            self.first = Some(entry);
        } else {
            self.push_beside(entry);
        }
    }

    /// Strands were woken by other threads, and arrive together: the latest, and those before it, the latest of them first.
    #[inline]
    pub(crate) fn push_arrived(
        &mut self,
        latest: NonNull<Strand>,
        mut before: impl Iterator<Item = NonNull<Strand>>,
    ) {
        match before.next() {
            None => self.push(latest),
            Some(next) => self.push_sorted([latest, next].into_iter().chain(before)),
        }
    }

    /// A mass wake-up in no order would begin a run with nearly every strand: a heap of them all, and none to fetch ahead.
    #[inline(never)]
    fn push_sorted(&mut self, latest_first: impl Iterator<Item = NonNull<Strand>>) {
        let mut arrived = mem::take(&mut self.arrived);
        arrived.extend(latest_first.map(Entry::new));
        arrived.reverse();
        if ORDERED {
            // Stable: equals stay in order of arrival.
            arrived.sort_by(Entry::compare);
        }
        self.woken += arrived.len();
        arrived.drain(..).for_each(|entry| self.push_beside(entry));
        self.arrived = arrived;
        // A million once is no reason to keep room for them.
        self.arrived.shrink_to(KEPT);
    }

    /// Another is ready.
    #[inline(never)]
    fn push_beside(&mut self, entry: Entry) {
        let goes_before = |other: &Entry| ORDERED && other.compare(&entry) == Order::Greater;
        let later = match &mut self.first {
            Some(first) if goes_before(first) => mem::replace(first, entry),
            Some(_) => entry,
            // Who waits for one after the other of a crowd comes back each time before all that are left.
            None if self.soon.front().is_none_or(goes_before)
                && self.heads.peek().is_none_or(|head| goes_before(&head.entry)) =>
            {
                self.first = Some(entry);
                return;
            }
            None => entry,
        };
        self.push_to_runs(later);
    }

    fn push_to_runs(&mut self, entry: Entry) {
        if let Some((run, last)) = &mut self.last
            && (!ORDERED || last.compare(&entry) != Order::Greater)
        {
            *last = entry;
            self.runs[*run as usize].push_back(entry);
            return;
        }
        let run = self.spare.pop().unwrap_or_else(|| {
            self.runs.push(VecDeque::new());
            self.runs.len() as u32 - 1
        });
        self.last = Some((run, entry));
        self.heads.push(Head { entry, run });
    }

    /// A strand yields: it is due when what is ready now has gone first, and one unstarted request if there are any.
    #[inline(always)]
    pub(crate) fn push_yielded(&mut self, strand: NonNull<Strand>, unstarted: bool) {
        self.passed = if unstarted { self.passed + 1 } else { 0 };
        let due = (self.picks + self.woken as u64, self.starts + u64::from(unstarted));
        self.yielded.push(strand, due);
    }

    /// The most urgent one's key, and whether it is a yielder that is due.
    #[inline]
    fn best(&self) -> (u64, bool) {
        let woken = match &self.first {
            Some(first) => first.key,
            None => {
                let soon = self.soon.front().map_or(NO_KEY, |entry| entry.key);
                soon.min(self.heads.peek().map_or(NO_KEY, |head| head.entry.key))
            }
        };
        match self.yielded.due(self.picks, self.starts, self.passed < TURNS) {
            Some(key) if key <= woken => (key, true),
            _ => (woken, false),
        }
    }

    /// The key of the most urgent; yielders count once they are due.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        self.best().0
    }

    /// How many that were woken have been taken.
    pub(crate) fn picks(&self) -> u64 {
        self.picks
    }

    /// Counts a start of something unstarted, which moves the yielders forward.
    #[inline(always)]
    pub(crate) fn count_start(&mut self) {
        self.starts += 1;
        self.passed = 0;
    }

    /// Takes the most urgent; a yielder that is not due only if `yielded_too`.
    #[inline]
    pub(crate) fn pop(&mut self, yielded_too: bool) -> Option<NonNull<Strand>> {
        let (key, due) = self.best();
        if due || (key == NO_KEY && yielded_too) {
            return self.yielded.pop();
        }
        if let Some(first) = self.first.take() {
            self.picks += 1;
            self.woken -= 1;
            return Some(first.strand);
        }
        self.pop_from_runs()
    }

    #[inline(never)]
    fn pop_from_runs(&mut self) -> Option<NonNull<Strand>> {
        if self.woken > SOON {
            self.look_ahead();
        }
        let from_soon = match (self.soon.front(), self.heads.peek()) {
            (Some(soon), Some(head)) => !ORDERED || soon.compare(&head.entry) != Order::Greater,
            (soon, _) => soon.is_some(),
        };
        let entry = if from_soon { self.soon.pop_front() } else { self.pop_head() }?;
        if let Some(next) = self.soon.get(NEAR) {
            prefetch(next.strand);
        }
        self.picks += 1;
        self.woken -= 1;
        Some(entry.strand)
    }

    /// A mass wake-up finds every stack cold: takes those that come soon out of the runs, and begins to fetch them.
    fn look_ahead(&mut self) {
        while self.soon.len() < SOON {
            let Some(head) = self.heads.peek() else { break };
            if ORDERED && self.soon.back().is_some_and(|last| last.compare(&head.entry) == Order::Greater) {
                // It came later, and goes before some of these.
                break;
            }
            prefetch_top(head.entry.strand.as_ptr());
            let next = self.pop_head();
            self.soon.extend(next);
        }
    }

    /// Takes the first of what stands in the runs.
    fn pop_head(&mut self) -> Option<Entry> {
        let mut head = self.heads.peek_mut()?;
        let (entry, run) = (head.entry, head.run);
        let rest = &mut self.runs[run as usize];
        if let Some(next) = rest.front() {
            // Whole, as it was put there. Taken out by value it is read in other pieces than it was written in, and that waits until the stores before
            // it are done, which go to cold stacks.
            head.entry = *next;
            rest.pop_front();
        } else {
            PeekMut::pop(head);
            self.spare.push(run);
            if self.last.is_some_and(|(last, _)| last == run) {
                self.last = None;
            }
        }
        Some(entry)
    }

    /// Gives back the room that a crowd has needed. For a worker that has nothing to do.
    pub(crate) fn trim(&mut self) {
        let room = self.runs.iter().map(|run| run.capacity()).sum::<usize>() + self.runs.capacity();
        if self.woken == 0 && room > KEPT {
            (self.heads, self.runs, self.spare) = Default::default();
        }
    }

    /// Takes the yielder at the head, and puts `strand` at the tail: the fast way of a yield, if nothing else may go on. Answers
    /// nobody, and does nothing, if nobody else has yielded.
    #[inline(always)]
    pub(crate) fn rotate_yielded(&mut self, strand: NonNull<Strand>) -> Option<NonNull<Strand>> {
        let due = (self.picks, self.starts);
        self.yielded.rotate(strand, due)
    }
}

/// Fetches a carrier that is entered soon, what it was left with on its stack, and the request on top.
#[inline(always)]
pub(crate) fn prefetch(strand: NonNull<Strand>) {
    // SAFETY: a ready strand's memory is mapped, and its first line was fetched a few picks ago.
    let strand = unsafe { strand.as_ref() };
    prefetch_parked(strand);
    prefetch_header(strand.request.get());
}

/// Fetches a strand whose first line is there, with what it was left with on its stack.
#[inline(always)]
pub(crate) fn prefetch_parked(strand: &Strand) {
    let last = last_byte(strand);
    let lines = (last.addr().wrapping_sub(strand.low.get()) / 64 + BELOW).min(MOST_LINES);
    for line in 0..lines {
        fetch(last.wrapping_sub(line * 64));
    }
}

/// The same of one of which nothing is there yet, so not even how much that is.
#[inline(always)]
pub(crate) fn prefetch_left(strand: *const Strand) {
    let last = last_byte(strand);
    for line in 0..size_of::<Carrier>().div_ceil(64) + PARKED_LINES {
        fetch(last.wrapping_sub(line * 64));
    }
}

/// The last byte of a carrier's control block, from which its stack goes down.
#[inline(always)]
fn last_byte(strand: *const Strand) -> *const u8 {
    strand.cast::<u8>().wrapping_add(size_of::<Carrier>() - mem::offset_of!(Carrier, strand) - 1)
}

/// Fetches a header.
#[inline(always)]
pub(crate) fn prefetch_header(header: *const Header) {
    for line in 0..size_of::<Header>().div_ceil(64) {
        fetch(header.cast::<u8>().wrapping_add(line * 64));
    }
}

/// Fetches what is needed to end the wait of a strand whose worker does it: from its context up to what decides its place.
#[inline(always)]
pub(crate) fn prefetch_waiting(strand: NonNull<Strand>) {
    let context = Strand::context_at(strand).as_ptr().cast::<u8>();
    for line in 0..(BEHIND_CONTEXT + mem::offset_of!(Strand, next_yielded)).div_ceil(64) {
        fetch(context.wrapping_add(line * 64));
    }
}

/// Fetches what is needed to end a carrier's wait and to bring it to its worker.
#[inline(always)]
pub(crate) fn prefetch_control(context: NonNull<Context>) {
    let at = context.as_ptr().cast::<u8>();
    for line in 0..size_of::<Carrier>().div_ceil(64) {
        fetch(at.wrapping_add(line * 64));
    }
}

/// Has the address of a carrier's page fetched, by its first line.
#[inline(always)]
pub(crate) fn prefetch_page(context: NonNull<Context>) {
    fetch(context.as_ptr().cast());
}

/// Fetches the first line of a strand, and with it what tells where its page is.
#[inline(always)]
pub(crate) fn prefetch_top(strand: *const Strand) {
    fetch(strand.cast());
}

/// How many lines below its control block a parked carrier has in use, at least: more at once were worse, where it had fewer.
const PARKED_LINES: usize = 12;
/// So many lines below where a strand was left it needs at once for its first calls.
const BELOW: usize = 3;
/// No more lines of one strand are fetched.
const MOST_LINES: usize = 32;

#[inline(always)]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; any address will do.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(all(test, not(any(forebear_unordered, shuttle))))]
mod tests {
    use std::collections::BTreeMap;
    use std::ptr;

    use super::*;

    /// Strands that nobody is on, known by key and rank.
    struct Crowd {
        ready: Ready,
        there: BTreeMap<(u64, u32), NonNull<Strand>>,
        #[allow(clippy::vec_box, reason = "they must stay where they are")]
        strands: Vec<Box<Strand>>,
        random: u64,
    }

    impl Crowd {
        fn new() -> Crowd {
            Crowd { ready: Ready::default(), there: BTreeMap::new(), strands: Vec::new(), random: 1 }
        }

        fn below(&mut self, n: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 16) % n
        }

        fn strand(&mut self, key: u64, rank: u32) -> NonNull<Strand> {
            let strand = Box::new(Strand::new(ptr::null(), ptr::null(), 0));
            strand.urgency.store(key, Ordering::Relaxed);
            strand.place.set((ptr::null(), rank));
            let at = NonNull::from(&*strand);
            self.strands.push(strand);
            at
        }

        fn push(&mut self, key: u64, rank: u32) {
            if !self.there.contains_key(&(key, rank)) {
                let strand = self.strand(key, rank);
                self.there.insert((key, rank), strand);
                self.ready.push(strand);
            }
        }

        fn push_arrived(&mut self, some: &[(u64, u32)]) {
            let mut latest = Vec::new();
            for &(key, rank) in some.iter().filter(|one| !self.there.contains_key(one)).collect::<Vec<_>>() {
                let strand = self.strand(key, rank);
                if let Some(twice) = self.there.insert((key, rank), strand) {
                    self.there.insert((key, rank), twice);
                    continue;
                }
                latest.insert(0, strand);
            }
            if let Some((first, rest)) = latest.split_first() {
                self.ready.push_arrived(*first, rest.iter().copied());
            }
        }

        #[track_caller]
        fn pop(&mut self) {
            let least = self.there.pop_first();
            assert_eq!(self.ready.key(), least.map_or(NO_KEY, |((key, _), _)| key));
            assert_eq!(self.ready.pop(true), least.map(|(_, strand)| strand));
            assert_eq!(self.ready.len(), self.there.len());
        }
    }

    #[test]
    fn what_is_taken_is_always_the_first_of_all_that_are_ready() {
        let mut crowd = Crowd::new();
        for _ in 0..400 {
            let (key, rank) = (1 + crowd.below(4), crowd.below(1_000) as u32);
            let n = crowd.below(if crowd.there.len() > 200 { 4 } else { 60 }) as u32;
            match crowd.below(6) {
                0 => (0..n).for_each(|i| crowd.push(key, rank + i)),
                1 => (0..n).for_each(|i| crowd.push(key, 2_000 - rank - i)),
                2 => {
                    let some: Vec<_> =
                        (0..n).map(|_| (1 + crowd.below(4), crowd.below(2_000) as u32)).collect();
                    crowd.push_arrived(&some);
                }
                // The first comes back again and again.
                3 => (0..n).for_each(|i| {
                    crowd.push(0, i % 3);
                    crowd.pop();
                    crowd.pop();
                }),
                _ => (0..n).for_each(|_| crowd.pop()),
            }
        }
        while !crowd.there.is_empty() {
            crowd.pop();
        }
        crowd.pop();
    }

    #[test]
    fn the_room_that_a_crowd_needed_is_given_back() {
        let room = |ready: &Ready| {
            let runs = ready.runs.iter().map(VecDeque::capacity).sum::<usize>();
            runs + ready.runs.capacity() + ready.heads.capacity() + ready.spare.capacity()
        };
        for falling in [false, true] {
            let mut crowd = Crowd::new();
            (0..5_000).for_each(|i| crowd.push(1, if falling { 5_000 - i } else { i }));
            crowd.ready.trim();
            assert!(room(&crowd.ready) >= 5_000 - SOON, "they are there still");
            while !crowd.there.is_empty() {
                crowd.pop();
            }
            crowd.ready.trim();
            assert!(room(&crowd.ready) <= KEPT, "{}", room(&crowd.ready));
            crowd.push(1, 1);
            crowd.pop();
        }
    }
}
