//! Roots in their order, under the lock of their shared queue.
//!
//! | entries | stand in | cost of a put |
//! |---|---|---|
//! | of one priority, that came in the order of their keys | a segment: a ring buffer | a look at the last |
//! | that came behind one with a larger key | the heap of late comers | O(log n) |
//! | that have a hint | [`Hinted`] | O(log n) |
//!
//! The best of the three is the best. Entries are pointers with a link (E1): what is taken out is the caller's. An entry whose request was claimed elsewhere
//! stays until it is popped, or is taken out as stale.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ptr::NonNull;

use forebear_context::lineage::NO_KEY;

use super::QueueEntry;
use super::hinted::Hinted;

/// The key's upper bits: priority, and whether there is a deadline.
fn segment_of(key: u64) -> u16 {
    (key >> 55) as u16
}

/// Entries of one priority that came in order.
type Segment<E> = VecDeque<(u64, NonNull<E>)>;

/// Which of them is the best.
enum BestPlace {
    Timely,
    Late,
    Hinted,
}

/// Roots in their order: a segment for each priority, those that came out of order, and those that have a hint.
pub(super) struct Ordered<E> {
    /// Oldest first. Few, and never taken out, so that a look at the first is short.
    segments: Vec<(u16, Segment<E>)>,
    late: BinaryHeap<Reverse<(u64, u64, NonNull<E>)>>,
    late_count: u64,
    hinted: Hinted<E>,
    /// About how many entries were claimed elsewhere and stand here still.
    pub stale: u64,
    /// E4.
    pub ended: bool,
}

impl<E> Default for Ordered<E> {
    fn default() -> Self {
        Ordered {
            segments: Vec::new(),
            late: BinaryHeap::new(),
            late_count: 0,
            hinted: Hinted::default(),
            stale: 0,
            ended: false,
        }
    }
}

impl<E: QueueEntry> Ordered<E> {
    pub fn put(&mut self, key: u64, entry: NonNull<E>) {
        // SAFETY: E1.
        if let Some(hint) = unsafe { entry.as_ref() }.hint().filter(|hint| !hint.is_member()) {
            return self.hinted.put(key, entry, hint);
        }
        let of = segment_of(key);
        // Mostly there is one.
        let at = match &self.segments[..] {
            [only] if only.0 == of => 0,
            _ => self.place_of(of),
        };
        let segment = &mut self.segments[at].1;
        if segment.back().is_none_or(|last| last.0 <= key) {
            segment.push_back((key, entry));
        } else {
            self.late_count += 1;
            self.late.push(Reverse((key, self.late_count, entry)));
        }
    }

    /// Which segment is that of a priority, made if there is none yet.
    fn place_of(&mut self, of: u16) -> usize {
        let at = self.segments.partition_point(|segment| segment.0 < of);
        if self.segments.get(at).is_none_or(|segment| segment.0 != of) {
            self.segments.insert(at, (of, VecDeque::new()));
        }
        at
    }

    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.1.len()).sum::<usize>()
            + self.late.len()
            + self.hinted.len()
    }

    /// What has a hint.
    pub fn hinted(&mut self) -> &mut Hinted<E> {
        &mut self.hinted
    }

    /// The key of the best, or [`NO_KEY`].
    pub fn key(&self) -> u64 {
        self.best().0
    }

    fn best(&self) -> (u64, BestPlace) {
        let timely =
            self.segments.iter().find_map(|segment| segment.1.front()).map_or(NO_KEY, |first| first.0);
        let best = match self.late.peek() {
            Some(&Reverse((late, ..))) if late < timely => (late, BestPlace::Late),
            _ => (timely, BestPlace::Timely),
        };
        let hinted = self.hinted.key();
        if hinted < best.0 { (hinted, BestPlace::Hinted) } else { best }
    }

    /// Takes the best, if its key is at most `limit` and it is `wanted`.
    pub fn take(&mut self, limit: u64, wanted: impl FnOnce(&E) -> bool) -> Option<NonNull<E>> {
        let (key, best) = self.best();
        if key == NO_KEY || key > limit {
            return None;
        }
        // SAFETY: E1.
        let wanted = |entry: NonNull<E>| wanted(unsafe { entry.as_ref() });
        match best {
            BestPlace::Timely => {}
            BestPlace::Late => {
                let best = self.late.peek_mut()?;
                return wanted(best.0.2).then(|| PeekMut::pop(best).0.2);
            }
            BestPlace::Hinted => return self.hinted.take(wanted),
        }
        let (_, segment) = self.segments.iter_mut().find(|segment| !segment.1.is_empty())?;
        let best = segment.front()?.1;
        if !wanted(best) {
            return None;
        }
        segment.pop_front();
        Some(best)
    }

    /// Takes an entry of this key that is `wanted`. Looks at all of that key.
    pub fn take_of(&mut self, key: u64, wanted: impl Fn(&E) -> bool) -> Option<NonNull<E>> {
        // SAFETY: E1.
        let wanted = |entry: NonNull<E>| wanted(unsafe { entry.as_ref() });
        let of = segment_of(key);
        if let Some((_, segment)) = self.segments.iter_mut().find(|segment| segment.0 == of) {
            let first = segment.partition_point(|listed| listed.0 < key);
            let listed = segment.range(first..).take_while(|listed| listed.0 == key);
            if let Some(at) = listed.into_iter().position(|listed| wanted(listed.1)) {
                return segment.remove(first + at).map(|(_, entry)| entry);
            }
        }
        let mut found = None;
        self.late.retain(|&Reverse((late, _, entry))| {
            if found.is_none() && late == key && wanted(entry) {
                found = Some(entry);
                return false;
            }
            true
        });
        found.or_else(|| self.hinted.take_of(key, wanted))
    }

    /// All there are, those first that came in order.
    pub fn entries(&self) -> impl Iterator<Item = &E> {
        let timely = self.segments.iter().flat_map(|segment| &segment.1).map(|listed| listed.1);
        let late = self.late.iter().map(|Reverse((_, _, entry))| *entry);
        // SAFETY: E1.
        timely.chain(late).chain(self.hinted.entries()).map(|entry| unsafe { entry.as_ref() })
    }

    /// Takes out what is `wanted` and stands before all that is not.
    pub fn take_first(&mut self, wanted: impl Fn(&E) -> bool, taken: &mut Vec<NonNull<E>>) {
        // SAFETY: E1.
        let wanted = |entry: NonNull<E>| wanted(unsafe { entry.as_ref() });
        for (_, segment) in &mut self.segments {
            while let Some(&(_, first)) = segment.front()
                && wanted(first)
            {
                segment.pop_front();
                taken.push(first);
            }
        }
        while let Some(first) = self.late.peek_mut().filter(|first| wanted(first.0.2)) {
            taken.push(PeekMut::pop(first).0.2);
        }
    }

    /// Takes out all that are `wanted`.
    pub fn take_all(&mut self, wanted: impl Fn(&E) -> bool) -> Vec<NonNull<E>> {
        let mut taken = Vec::new();
        let mut keep = |entry: NonNull<E>| {
            // SAFETY: E1.
            let wanted = wanted(unsafe { entry.as_ref() });
            if wanted {
                taken.push(entry);
            }
            !wanted
        };
        for (_, segment) in &mut self.segments {
            segment.retain(|listed| keep(listed.1));
        }
        self.late.retain(|Reverse((_, _, entry))| keep(*entry));
        self.hinted.retain(keep);
        taken
    }
}
