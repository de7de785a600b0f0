//! What is ready on one worker: suspended strands that may go on, most urgent first; and those that yielded.
//!
//! Most wake-ups come in order (the waiters of one request stand in order of their coming), so the queue is made of sorted
//! runs, with a heap of their first entries: what comes in order is added to the last run, and anything else begins a new
//! one. Those that arrive together in no order are sorted first. Entries carry a copy of what decides between siblings, so that a mass wake-up compares without touching cold
//! headers. Where nothing else is ready, as when two hand something back and forth, the entry stands alone, outside of it all.
//!
//! Those that yielded stand apart, first in, first out: a yield goes behind everything that is ready at that moment, and
//! never by lineage, or an old request that polls would starve the younger one it polls for. Each carries after how many
//! picks it is *due*, and whether something unstarted has to be started first: several that poll by turns must not keep
//! each other from the root that all of them poll for. From then on it competes like the rest.

use forebear_context::context::Context;
use forebear_context::shim::atomic::Ordering;
use std::cmp::Ordering as Order;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ptr::NonNull;

use forebear_context::lineage::{Lineage, NO_KEY};

use crate::carrier::Carrier;
use crate::shared::ORDERED;
use crate::strand::Strand;

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
    /// The only one that was woken, if there are no runs.
    alone: Option<Entry>,
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
}

/// For how many that arrive together there is room at any time.
const KEPT: usize = 1024;

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

    /// Whether the first is due, and its key.
    #[inline(always)]
    fn due(&self, picks: u64, starts: u64) -> Option<u64> {
        // SAFETY: as above.
        let first = unsafe { self.first?.as_ref() };
        let (after_picks, after_starts) = first.due.get();
        (after_picks <= picks && after_starts <= starts).then(|| first.urgency.load(Ordering::Relaxed))
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
            self.alone = Some(entry);
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
        let mut arrived = std::mem::take(&mut self.arrived);
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
        if let Some(alone) = self.alone.take() {
            self.push_to_runs(alone);
        }
        self.push_to_runs(entry);
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
        let due = (self.picks + self.woken as u64, self.starts + u64::from(unstarted));
        self.yielded.push(strand, due);
    }

    /// The most urgent one's key, and whether it is a yielder that is due.
    #[inline]
    fn best(&self) -> (u64, bool) {
        let woken = match &self.alone {
            Some(alone) => alone.key,
            None => self.heads.peek().map_or(NO_KEY, |head| head.entry.key),
        };
        match self.yielded.due(self.picks, self.starts) {
            Some(key) if key <= woken => (key, true),
            _ => (woken, false),
        }
    }

    /// The key of the most urgent; yielders count once they are due.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        self.best().0
    }

    /// Counts a start of something unstarted, which moves the yielders forward.
    #[inline(always)]
    pub(crate) fn count_start(&mut self) {
        self.starts += 1;
    }

    /// Takes the most urgent; a yielder that is not due only if `yielded_too`.
    #[inline]
    pub(crate) fn pop(&mut self, yielded_too: bool) -> Option<NonNull<Strand>> {
        let (key, due) = self.best();
        if due || (key == NO_KEY && yielded_too) {
            return self.yielded.pop();
        }
        if let Some(alone) = self.alone.take() {
            self.picks += 1;
            self.woken -= 1;
            return Some(alone.strand);
        }
        self.pop_from_runs()
    }

    #[inline(never)]
    fn pop_from_runs(&mut self) -> Option<NonNull<Strand>> {
        let mut head = self.heads.peek_mut()?;
        let (strand, run) = (head.entry.strand, head.run);
        let rest = &mut self.runs[run as usize];
        match rest.pop_front() {
            Some(next) => {
                // A mass wake-up finds every stack cold: fetch those that come soon while this one runs.
                if let Some(soon) = rest.get(3) {
                    prefetch(soon.strand);
                }
                if let Some(later) = rest.get(7) {
                    prefetch_top(later.strand);
                }
                head.entry = next;
                drop(head);
            }
            None => {
                PeekMut::pop(head);
                self.spare.push(run);
                if self.last.is_some_and(|(last, _)| last == run) {
                    self.last = None;
                }
            }
        }
        if self.heads.len() > 1
            && let Some(next) = self.heads.peek()
        {
            prefetch(next.entry.strand);
        }
        self.picks += 1;
        self.woken -= 1;
        Some(strand)
    }

    /// Takes the yielder at the head, and puts `strand` at the tail: the fast way of a yield, if nothing else may go on. Answers
    /// nobody, and does nothing, if nobody else has yielded.
    #[inline(always)]
    pub(crate) fn rotate_yielded(&mut self, strand: NonNull<Strand>) -> Option<NonNull<Strand>> {
        let due = (self.picks, self.starts);
        self.yielded.rotate(strand, due)
    }
}

/// Fetches the strand, what it was left with on its stack, and the request on top.
#[inline(always)]
fn prefetch(strand: NonNull<Strand>) {
    // SAFETY: a ready strand's memory is mapped, and its first line was fetched a few picks ago.
    let request = unsafe { strand.as_ref() }.request.get().cast::<u8>();
    let at = strand.as_ptr().cast::<u8>();
    for line in 0..PARKED_LINES {
        fetch(at.wrapping_sub(line * 64));
    }
    for line in 0..3 {
        fetch(request.wrapping_add(line * 64));
    }
}

/// Fetches a strand that is about to be made ready and entered soon after, with what it was left with on its stack.
#[inline(always)]
pub(crate) fn prefetch_left(strand: *const Strand) {
    // From the strand's end down: its context lies below it.
    let at = strand.wrapping_add(1).cast::<u8>();
    for line in 0..size_of::<Strand>().div_ceil(64) + PARKED_LINES {
        fetch(at.wrapping_sub(line * 64));
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

#[inline(always)]
fn prefetch_top(strand: NonNull<Strand>) {
    fetch(strand.as_ptr().cast());
}

/// How many lines below its control block a parked carrier has in use.
const PARKED_LINES: usize = 12;

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
