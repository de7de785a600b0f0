//! The ready queue against a sorted map, and the room it keeps.

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
        strand.descent.set(Descent { rank, ..Descent::default() });
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
                let some: Vec<_> = (0..n).map(|_| (1 + crowd.below(4), crowd.below(2_000) as u32)).collect();
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
fn a_crowd_in_order_needs_no_room_and_what_one_in_none_needed_is_given_back() {
    let room = |ready: &Ready| ready.heads.capacity() + ready.soon.capacity();
    for falling in [false, true] {
        let mut crowd = Crowd::new();
        (0..5_000).for_each(|i| crowd.push(1, if falling { 5_000 - i } else { i }));
        crowd.ready.trim();
        assert_eq!(room(&crowd.ready) > KEPT, falling, "{}", room(&crowd.ready));
        while !crowd.there.is_empty() {
            crowd.pop();
        }
        crowd.ready.trim();
        assert!(room(&crowd.ready) <= KEPT, "{}", room(&crowd.ready));
        crowd.push(1, 1);
        crowd.pop();
    }
}
