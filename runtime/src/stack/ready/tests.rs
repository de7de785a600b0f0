//! The ready queue against a sorted map, and the room it keeps.

use std::collections::BTreeMap;
use std::ptr;

use forebear_context::lineage::Priority;

use super::*;
use crate::{Request, Runtime, spawn};

/// Fibers that nobody is on, known by key and rank.
struct Model {
    ready: Ready,
    there: BTreeMap<(u64, u32), NonNull<Fiber>>,
    #[allow(clippy::vec_box, reason = "they must stay where they are")]
    fibers: Vec<Box<Fiber>>,
    random: u64,
}

impl Model {
    fn new() -> Model {
        Model { ready: Ready::default(), there: BTreeMap::new(), fibers: Vec::new(), random: 1 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % n
    }

    fn fiber(&mut self, key: u64, rank: u32) -> NonNull<Fiber> {
        let fiber = Box::new(Fiber::new(ptr::null(), ptr::null(), 0));
        fiber.urgency.store(key, Ordering::Relaxed);
        fiber.descent.set(Descent { rank, ..Descent::default() });
        let at = NonNull::from(&*fiber);
        self.fibers.push(fiber);
        at
    }

    fn push(&mut self, key: u64, rank: u32) {
        if !self.there.contains_key(&(key, rank)) {
            let fiber = self.fiber(key, rank);
            self.there.insert((key, rank), fiber);
            self.ready.push(fiber);
        }
    }

    fn push_arrived(&mut self, some: &[(u64, u32)]) {
        let mut latest = Vec::new();
        for &(key, rank) in some.iter().filter(|one| !self.there.contains_key(one)).collect::<Vec<_>>() {
            let fiber = self.fiber(key, rank);
            if let Some(twice) = self.there.insert((key, rank), fiber) {
                self.there.insert((key, rank), twice);
                continue;
            }
            latest.insert(0, fiber);
        }
        if let Some((first, rest)) = latest.split_first() {
            self.ready.push_arrived(*first, rest.iter().copied());
        }
    }

    /// One of those that are there becomes more urgent.
    fn raise(&mut self) {
        let place = self.below(self.there.len().max(1) as u64) as usize;
        let Some((&(key, rank), &fiber)) = self.there.iter().nth(place) else { return };
        if key > 1 && !self.there.contains_key(&(key - 1, rank)) {
            self.there.remove(&(key, rank));
            self.there.insert((key - 1, rank), fiber);
            // SAFETY: it is one of `fibers`.
            unsafe { fiber.as_ref() }.urgency.store(key - 1, Ordering::Relaxed);
            self.ready.raise(fiber);
        }
    }

    #[track_caller]
    fn pop(&mut self) {
        let least = self.there.pop_first();
        assert_eq!(self.ready.key(), least.map_or(NO_KEY, |((key, _), _)| key));
        assert_eq!(self.ready.pop(true), least.map(|(_, fiber)| fiber));
        assert_eq!(self.ready.len(), self.there.len());
    }
}

#[test]
fn what_is_taken_is_always_the_first_of_all_that_are_ready() {
    let mut model = Model::new();
    for _ in 0..400 {
        let (key, rank) = (1 + model.below(4), model.below(1_000) as u32);
        let n = model.below(if model.there.len() > 200 { 4 } else { 60 }) as u32;
        match model.below(7) {
            0 => (0..n).for_each(|i| model.push(key, rank + i)),
            1 => (0..n).for_each(|i| model.push(key, 2_000 - rank - i)),
            2 => {
                let some: Vec<_> = (0..n).map(|_| (1 + model.below(4), model.below(2_000) as u32)).collect();
                model.push_arrived(&some);
            }
            // Some that stand there already become more urgent.
            4 => (0..n).for_each(|_| model.raise()),
            // The first comes back again and again.
            3 => (0..n).for_each(|i| {
                model.push(0, i % 3);
                model.pop();
                model.pop();
            }),
            _ => (0..n).for_each(|_| model.pop()),
        }
    }
    while !model.there.is_empty() {
        model.pop();
    }
    model.pop();
}

#[test]
fn fibers_in_order_need_no_room_and_what_others_needed_is_given_back() {
    let room = |ready: &Ready| ready.heads.capacity() + ready.soon.capacity();
    for falling in [false, true] {
        let mut model = Model::new();
        (0..5_000).for_each(|i| model.push(1, if falling { 5_000 - i } else { i }));
        model.ready.trim();
        assert_eq!(room(&model.ready) > KEPT, falling, "{}", room(&model.ready));
        while !model.there.is_empty() {
            model.pop();
        }
        model.ready.trim();
        assert!(room(&model.ready) <= KEPT, "{}", room(&model.ready));
        model.push(1, 1);
        model.pop();
    }
}

#[test]
fn a_yielder_that_is_raised_goes_on_before_those_that_were_woken() {
    let mut model = Model::new();
    let yielders: Vec<_> = (0..3).map(|rank| model.fiber(3, rank)).collect();
    for &yielder in &yielders {
        model.ready.push_yielded(yielder, false);
    }
    (0..20).for_each(|rank| model.push(2, rank));
    // SAFETY: it is one of `fibers`.
    unsafe { yielders[1].as_ref() }.urgency.store(1, Ordering::Relaxed);
    model.ready.raise(yielders[1]);
    assert_eq!(model.ready.len(), 23);
    assert_eq!(model.ready.pop(true), Some(yielders[1]));
    let rest: Vec<_> = std::iter::from_fn(|| model.ready.pop(true)).collect();
    assert_eq!(rest.len(), 22);
    let places = [0, 2].map(|n| rest.iter().position(|&fiber| fiber == yielders[n]).unwrap());
    assert!(places[0] < places[1]);
    // One that does not stand here stays away.
    model.ready.raise(yielders[1]);
    assert_eq!(model.ready.len(), 0);
}

/// Sorting by an order that comes to a cycle panics, and a heap loses its order.
#[test]
fn who_goes_first_is_one_order_for_roots_relatives_own_roots_and_stacks_without_a_request() {
    const KEY: u64 = 5;
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (give, given) = std::sync::mpsc::channel();
    let tree = |give: std::sync::mpsc::Sender<_>| {
        move || {
            let (one, two) = (Request::new(|| ()), Request::new(|| ()));
            // A root for the order, and a child for all else.
            let urgent = Request::builder().priority(Priority::URGENT).build(|| ());
            let nested = give.clone();
            let parent = spawn(move || {
                nested.send(Request::new(|| ())).unwrap();
                let urgent = Request::builder().priority(Priority::URGENT).build(|| ());
                nested.send(urgent).unwrap();
            });
            parent.wait().unwrap();
            [one, two, urgent, parent].into_iter().for_each(|each| give.send(each).unwrap());
        }
    };
    let roots: Vec<_> = [Priority::NORMAL, Priority::URGENT, Priority::BACKGROUND]
        .into_iter()
        .map(|priority| runtime.enter(|| Request::builder().priority(priority).build(tree(give.clone()))))
        .collect();
    roots.iter().for_each(|root| *root.wait().unwrap());
    drop(give);
    let requests: Vec<_> = roots.into_iter().chain(given.try_iter()).collect();
    let mut model = Model::new();
    // What ran on a stack before says nothing of it when no request runs there.
    let mut entries: Vec<_> = (0..3).map(|_| ReadyEntry::new(model.fiber(KEY, 0))).collect();
    for request in &requests {
        let at = model.fiber(KEY, 0);
        // SAFETY: one of `fibers`; the request stays until the end.
        unsafe {
            at.as_ref().request.set(request.header_ptr().as_ptr());
            at.as_ref().descent.set(Descent::of_top(at.as_ref().request()));
        }
        entries.push(ReadyEntry::new(at));
    }
    assert!(entries.len() > 15, "{}", entries.len());
    for a in &entries {
        for b in &entries {
            assert_eq!(a.compare(b), b.compare(a).reverse());
            for c in &entries {
                let (ab, bc, ac) = (a.compare(b), b.compare(c), a.compare(c));
                assert!(
                    ab == Order::Greater || bc == Order::Greater || ac == ab.min(bc),
                    "{ab:?} {bc:?} {ac:?}"
                );
            }
        }
    }
}

/// A fiber that yields does not store what runs on it, and what it stored before is of a request that may be gone.
#[test]
fn a_yielder_that_is_raised_stands_by_what_runs_on_it() {
    let request = Runtime::builder().workers(1).build().unwrap().enter(|| Request::new(|| ()));
    let mut model = Model::new();
    let yielder = model.fiber(3, 77);
    // SAFETY: one of `fibers`; the request stays until the end.
    let s = unsafe { yielder.as_ref() };
    s.request.set(request.header_ptr().as_ptr());
    model.ready.push_yielded(yielder, false);
    model.ready.raise(yielder);
    assert_eq!(s.descent.get().rank, s.request().unwrap().lineage.rank());
}
