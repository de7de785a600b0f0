//! The queue beside a sorted map, and what insertions cost.

use std::alloc::dealloc;
use std::collections::BTreeMap;

use super::*;
use crate::record::cell;
use crate::state::word::{FINISHED, HANDLE};

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
    static WALKED: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn compared() {
    COMPARED.set(COMPARED.get() + 1);
}

pub(super) fn walked(entries: usize) {
    WALKED.set(WALKED.get() + entries);
}

/// How often `f` compares, and how many entries its searches walk through.
fn costs(f: impl FnOnce()) -> (usize, usize) {
    let before = (COMPARED.get(), WALKED.get());
    f();
    (COMPARED.get() - before.0, WALKED.get() - before.1)
}

/// Requests that nobody runs, by number, and a queue.
struct Family {
    made: Vec<NonNull<Header>>,
    ranks: Vec<u32>,
    queue: PrivateQueue,
}

impl Family {
    fn new() -> Family {
        Family { made: Vec::new(), ranks: Vec::new(), queue: PrivateQueue::new() }
    }

    fn get(&self, n: usize) -> &Header {
        // SAFETY: they live as long as the family.
        unsafe { self.made[n].as_ref() }
    }

    fn add(&mut self, lineage: Lineage) -> usize {
        self.made.push(cell::make_ready(FINISHED | HANDLE, lineage, ()));
        self.ranks.push(0);
        self.made.len() - 1
    }

    fn root(&mut self, key: u64) -> usize {
        let number = self.made.len() as u64;
        self.add(Lineage::root(key, number))
    }

    /// A child that stands nowhere yet.
    fn child(&mut self, parent: usize) -> usize {
        let rank = self.ranks[parent];
        self.ranks[parent] += 1;
        // SAFETY: LN1: the family's requests live as long as it does.
        let lineage = unsafe { Lineage::child(&self.get(parent).lineage, rank) };
        self.add(lineage)
    }

    fn insert(&self, n: usize) {
        self.get(n).place.set(HeaderPlace::Private);
        self.queue.insert(self.get(n));
    }

    /// The youngest child of `parent`, listed.
    fn spawn(&mut self, parent: usize) -> usize {
        let child = self.child(parent);
        self.get(child).place.set(HeaderPlace::Private);
        self.queue.insert_youngest(self.get(child));
        child
    }

    fn take_out(&self, n: usize) {
        self.get(n).place.set(HeaderPlace::Nowhere);
        self.queue.unlink(self.get(n));
    }

    /// The lineage as a path, and the number.
    fn path(&self, n: usize) -> (u64, Vec<u32>) {
        let mut ranks = Vec::new();
        let mut at = Some(self.get(n));
        while let Some(header) = at {
            ranks.push(header.lineage.rank());
            at = header.parent();
        }
        ranks.reverse();
        (self.get(n).lineage.key(), ranks)
    }

    /// Checks all that the invariants say against the entries that stand there.
    fn check(&self, model: &BTreeMap<(u64, Vec<u32>), usize>) {
        let mut found = Vec::new();
        let mut before: *const Header = ptr::null();
        self.queue.each(|entry| {
            assert_eq!(entry.prev.get(), before);
            before = entry;
            found.push(NonNull::from(entry));
        });
        assert_eq!(self.queue.back.get(), before);
        let listed: Vec<_> = model.values().map(|&n| self.made[n]).collect();
        assert!(found == listed, "P4: the list is not in the order of lineages");
        for &parent in &self.made {
            // SAFETY: they live as long as the family.
            let parent = unsafe { parent.as_ref() };
            let is_child = |entry: &Header| ptr::eq(entry.lineage.parent(), &parent.lineage);
            // SAFETY: as above.
            let mut children: Vec<_> =
                listed.iter().copied().filter(|entry| is_child(unsafe { entry.as_ref() })).collect();
            let last = parent.last_child.get();
            assert!(last.is_null() || children.iter().any(|child| ptr::eq(child.as_ptr(), last)), "P3");
            let mut at = self.queue.last_below(parent);
            // SAFETY: as above.
            while let Some(entry) = unsafe { at.as_ref() } {
                at = entry.prev.get();
                if is_child(entry) {
                    assert_eq!(children.pop(), Some(NonNull::from(entry)), "P3");
                } else if !PrivateQueue::is_among(entry, parent) {
                    break;
                }
            }
            assert_eq!(children, [], "P3: a cancel would miss these");
        }
        // SAFETY: the maker is of the family.
        if let Some(maker) = unsafe { self.queue.maker.get().as_ref() }
            // SAFETY: as above; listed.
            && let Some(last) = unsafe { maker.last_child.get().as_ref() }
        {
            // SAFETY: listed.
            let behind = unsafe { last.next.load(Ordering::Relaxed).as_ref() };
            assert!(behind.is_none_or(|behind| !descends(&behind.lineage, &maker.lineage)), "P6");
        }
        let index = self.queue.index.borrow();
        let mut rest = found.iter();
        assert!(index.anchors.iter().all(|anchor| rest.any(|entry| entry == anchor)), "P5");
        assert_eq!(index.anchors.len(), index.named.len(), "P5");
        assert_eq!(self.queue.is_indexed.get(), !index.anchors.is_empty(), "P5");
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for &header in &self.made {
            // SAFETY: made by `make_ready`, by the allocator; nobody else knows of them.
            unsafe { dealloc(header.as_ptr().cast(), header.as_ref().vtable.layout) };
        }
    }
}

fn random(state: &mut u64) -> impl FnMut(usize) -> usize {
    move |below| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 16) as usize % below
    }
}

/// `near`: of a hundred steps so many concern what was started last, or stands at an end. `grow`: so many insert.
fn follow_the_model(seed: u64, steps: usize, every: usize, near: usize, grow: usize) {
    let mut state = seed;
    let mut random = random(&mut state);
    let mut family = Family::new();
    let mut model = BTreeMap::new();
    let mut started: Vec<usize> = [5, 5, 5, 9, 3].map(|key| family.root(key)).into();
    let mut unsubmitted = Vec::new();
    for step in 0..steps {
        let is_near = random(100) < near;
        if random(100) < grow || model.is_empty() {
            let from = if is_near { started.len().saturating_sub(3) } else { 0 };
            let parent = started[from + random(started.len() - from)];
            let child = match random(8) {
                0 => {
                    let child = family.child(parent);
                    unsubmitted.push(child);
                    continue;
                }
                1 if !unsubmitted.is_empty() => {
                    let child = unsubmitted.swap_remove(random(unsubmitted.len()));
                    family.insert(child);
                    child
                }
                _ => family.spawn(parent),
            };
            model.insert(family.path(child), child);
        } else {
            let at = match random(2) {
                _ if !is_near => random(model.len()),
                0 => 0,
                _ => model.len() - 1,
            };
            let (path, &entry) = model.iter().nth(at).unwrap();
            let path = path.clone();
            // One that was raided runs, and its entry stands there for a while.
            if random(16) > 0 {
                family.take_out(entry);
                model.remove(&path);
            }
            if !started.contains(&entry) {
                started.push(entry);
            }
        }
        if step % every == 0 {
            family.check(&model);
        }
    }
    family.check(&model);
    while let Some((_, entry)) = model.pop_first() {
        family.take_out(entry);
    }
    family.check(&model);
    assert!(family.queue.front().is_none() && !family.queue.is_indexed.get());
}

#[test]
fn each_entry_stands_where_its_lineage_says_whatever_was_inserted_and_taken_out_before() {
    for seed in 1..=40 {
        for near in [0, 50, 90, 100] {
            follow_the_model(seed * 0x9e37_79b9, 120, 1, near, 65);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn a_long_list_with_an_index_stands_in_order_as_well() {
    for (seed, near, grow) in [(1, 0, 90), (2, 30, 75), (3, 80, 90), (4, 10, 60)] {
        follow_the_model(seed * 0x9e37_79b9, 4_000, 400, near, grow);
    }
}

#[test]
fn what_the_loop_or_a_waiter_takes_spawns_without_a_comparison() {
    for by_loop in [true, false] {
        let mut family = Family::new();
        let root = family.root(1);
        let mut running = root;
        for _ in 0..50 {
            let cost = costs(|| {
                (0..10).for_each(|_| _ = family.spawn(running));
            });
            assert_eq!(cost, (0, 0), "by the loop: {by_loop}");
            let end = if by_loop {
                family.queue.front().unwrap()
            } else {
                // SAFETY: listed.
                unsafe { &*family.queue.back.get() }
            };
            let next = NonNull::from(end);
            running = family.made.iter().position(|&header| header == next).unwrap();
            family.take_out(running);
        }
    }
}

#[test]
fn an_elder_sibling_near_the_youngest_is_inserted_without_a_comparison() {
    let mut state = 7;
    let mut random = random(&mut state);
    let mut family = Family::new();
    let root = family.root(1);
    // As a layer of dependents becomes ready.
    let mut late: Vec<_> = (0..SHORT).map(|_| family.child(root)).collect();
    let first = family.spawn(root);
    let mut model = BTreeMap::from([(family.path(first), first)]);
    while !late.is_empty() {
        let child = late.swap_remove(random(late.len()));
        assert_eq!(costs(|| family.insert(child)), (0, 0));
        model.insert(family.path(child), child);
        family.check(&model);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn an_insertion_away_from_its_siblings_compares_o_of_log_n_times() {
    for n in [1_000_usize, 10_000, 100_000] {
        let mut state = n as u64;
        let mut random = random(&mut state);
        let mut family = Family::new();
        let root = family.root(1);
        let mut parents: Vec<_> = (0..2 * n).map(|_| family.child(root)).collect();
        parents.iter().step_by(2).for_each(|&parent| _ = family.spawn(parent));
        let mut late: Vec<_> = parents.drain(..).skip(1).step_by(2).collect();
        let (mut most, mut walked) = (0, 0);
        while !late.is_empty() {
            let parent = late.swap_remove(random(late.len()));
            let cost = costs(|| _ = family.spawn(parent));
            most = most.max(cost.0);
            walked += cost.1;
        }
        let log = (2 * n).ilog2() as usize + 1;
        assert!(most <= log + 6, "{n}: {most} comparisons");
        assert!(walked <= n * 3 * STEP, "{n}: {walked} entries");
    }
}
