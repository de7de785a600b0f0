//! The wheel.
//!
//! # Vocabulary
//!
//! * **moment**: an instant as a number ([`crate::moment`]), whose last bit is a nanosecond.
//! * **cursor**: the moment up to which all has been taken out. It never goes back.
//! * **digit**: six bits of a moment; digit 0 is the lowest.
//! * **level, slot**: there is a level for each digit, with a slot for each of the digit's 64 values. A slot is a list of entries.
//! * **place** of a moment: the level of the highest digit in which it differs from the cursor (0 if in none), and there the slot of
//!   that digit.
//! * **node**: where an entry lies, in a table that grows and never shrinks; free ones are in a list. It counts its
//!   **generations**: node and generation are an entry's [`Key`].
//!
//! # How it works
//!
//! After G. Varghese and T. Lauck, *Hashed and Hierarchical Timing Wheels* (SOSP 1987; IEEE/ACM Transactions on Networking 5(6), 1997),
//! scheme 7, with the placement by the highest digit that differs, and with a word of bits per level that says which slots are not
//! empty. Tokio has these two as well, with six levels of a millisecond and up. Here a tick is a nanosecond and the levels reach as far
//! as an `Instant` does, so a slot of level 0 is *one* instant, nothing is rounded and nothing overflows; decision 0014 has the reasons.
//!
//! The earliest is in the first slot of the lowest level that has any: what differs from the cursor only in lower digits is earlier than
//! what differs in a higher one (W2), and within a level a smaller digit is earlier. Two looks for a lowest bit find that slot. Which of
//! its entries it is the slot knows, unless that very one has been taken back: then the next who asks looks through the slot, once.
//!
//! When the cursor moves to `t`, no entry being earlier, those whose place changes are all in one slot, that of `t`: it is *unrolled*.
//! (An entry of a higher level still differs from the cursor first where it did. One of the same level and another digit as well. Of lower
//! levels there are none: they would be earlier than `t`.) Each entry so unrolled goes down by a level at least: fifteen times at most,
//! and for a time-out of a second five.
//!
//! # The order
//!
//! Entries of one moment are always in one slot, since a place depends on moment and cursor only, and are listed there in order of
//! insertion: a slot's list is unrolled from its head into slots of lower levels, which are empty by then. So they come out in that
//! order. (A wheel that lets an entry stay at its level while others of the same instant are put below loses this order; Linux
//! has given up any promise of it.) What is put in for a moment that the cursor has passed counts as for the cursor's.
//!
//! # Invariants
//!
//! * **W1** An entry is listed in the place of its moment, seen from the cursor as it is now.
//! * **W2** No entry's moment is before the cursor.
//! * **W3** The bit of a slot is set if its list is not empty, that of a level if one of its slots' is.
//! * **W4** `earliest` of a slot that is not empty is the first in its list of the entries with the least moment, or unknown. At level 0 it is
//!   the head.
//! * **W5** A node is in the table's free list, or has a value and is in one slot's list, or is worn out. When it loses its value its
//!   generation goes up; one whose generations are used up is not used again, so no two entries ever have the same key.

use std::fmt;
use std::iter;
use std::num::NonZeroU64;
use std::time::Instant;

use crate::moment::{BITS, Moment, instant, moment};

#[cfg(test)]
mod tests;

const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
const LEVELS: usize = BITS.div_ceil(DIGIT) as usize;

/// No node.
const NONE: u32 = u32::MAX;

/// Values, each for an instant, of which the earliest can be seen and taken out. See the module head for how.
///
/// [`insert`](Self::insert) and [`remove`](Self::remove) take the same time however much is in it, and allocate nothing unless there are
/// more entries than there ever were. Nothing comes out early; what comes out comes in order of time, and for one
/// instant in order of insertion.
///
/// ```
/// use forebear_timer::Wheel;
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// let mut wheel = Wheel::new(now);
/// let tea = wheel.insert(now + Duration::from_secs(180), "tea");
/// wheel.insert(now + Duration::from_secs(600), "pasta");
/// assert_eq!(wheel.earliest(), Some(now + Duration::from_secs(180)));
/// assert_eq!(wheel.remove(tea), Some("tea"));
/// assert_eq!(wheel.pop_due(now + Duration::from_secs(599)), None);
/// assert_eq!(wheel.pop_due(now + Duration::from_secs(600)), Some("pasta"));
/// ```
pub struct Wheel<T> {
    origin: Instant,
    cursor: Moment,
    /// Which levels are not empty (W3).
    occupied: u32,
    levels: Box<[Level; LEVELS]>,
    nodes: Vec<Node<T>>,
    /// The first free node.
    free: u32,
    len: usize,
}

/// The name of an entry, which no other entry of the wheel ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(NonZeroU64);

struct Level {
    /// Which slots are not empty (W3).
    occupied: u64,
    slots: [Slot; SLOTS],
}

/// A list of nodes.
#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    /// W4; `NONE`: unknown.
    earliest: u32,
}

struct Node<T> {
    moment: Moment,
    previous: u32,
    /// Also in the list of free nodes.
    next: u32,
    /// Never 0.
    generation: u32,
    value: Option<T>,
}

impl Slot {
    const EMPTY: Slot = Slot { head: NONE, tail: NONE, earliest: NONE };
}

impl Key {
    fn new(generation: u32, index: u32) -> Key {
        let number = NonZeroU64::new(u64::from(generation) << 32 | u64::from(index));
        Key(number.expect("a generation is never zero"))
    }

    /// The key as a number, which is not zero.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The key of that number; none has the number zero.
    pub fn from_number(number: u64) -> Option<Key> {
        NonZeroU64::new(number).map(Key)
    }

    fn generation(self) -> u32 {
        (self.number() >> 32) as u32
    }

    fn index(self) -> u32 {
        self.number() as u32
    }
}

impl<T> Wheel<T> {
    /// An empty wheel, all of whose time is to come. Any instant will do as the origin, also one that is later than others.
    pub fn new(origin: Instant) -> Wheel<T> {
        Wheel {
            origin,
            cursor: 0,
            occupied: 0,
            levels: Box::new([const { Level { occupied: 0, slots: [Slot::EMPTY; SLOTS] } }; LEVELS]),
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }

    /// How many values are in.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a value in for `at`. If the wheel has [passed](Self::advance) that, it is put in for as far as it has come: behind what
    /// is due there already.
    ///
    /// # Panics
    ///
    /// If four billion are in.
    pub fn insert(&mut self, at: Instant, value: T) -> Key {
        let moment = moment(self.origin, at).max(self.cursor);
        let index = self.free;
        let index = if let Some(node) = self.nodes.get_mut(index as usize) {
            self.free = node.next;
            node.moment = moment;
            node.value = Some(value);
            index
        } else {
            let index = u32::try_from(self.nodes.len()).ok().filter(|index| *index != NONE);
            let index = index.expect("four billion entries in a timing wheel");
            self.nodes.push(Node { moment, previous: NONE, next: NONE, generation: 1, value: Some(value) });
            index
        };
        self.len += 1;
        self.list(index);
        Key::new(self.nodes[index as usize].generation, index)
    }

    /// Takes a value back; `None` if it has come out already.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let node = self.nodes.get(key.index() as usize)?;
        if node.generation != key.generation() || node.value.is_none() {
            return None;
        }
        self.take(key.index())
    }

    /// The earliest instant that something is in for: exactly that, and not earlier.
    pub fn earliest(&mut self) -> Option<Instant> {
        let index = self.first()?;
        Some(instant(self.origin, self.nodes[index as usize].moment))
    }

    /// Takes out the earliest value, if it is due at `now`; otherwise [advances](Self::advance) to `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let now = moment(self.origin, now);
        match self.first().map(|index| (index, self.nodes[index as usize].moment)) {
            Some((index, moment)) if moment <= now => {
                self.turn(moment);
                self.take(index)
            }
            _ => {
                self.turn(now);
                None
            }
        }
    }

    /// Tells the wheel what time it is, so that what is put in next for a near instant is put with what is near. It goes no further than to
    /// what is to come out next, and never back.
    pub fn advance(&mut self, now: Instant) {
        let now = moment(self.origin, now);
        let to = self.first().map_or(now, |index| now.min(self.nodes[index as usize].moment));
        self.turn(to);
    }

    /// Takes everything out, in order.
    pub fn take_all(&mut self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len);
        for level in self.levels.iter() {
            for slot in ones(level.occupied) {
                all.extend(self.listed(&level.slots[slot]));
            }
        }
        // Stable, and those of one instant are in one list.
        all.sort_by_key(|index| self.nodes[*index as usize].moment);
        all.into_iter().filter_map(|index| self.take(index)).collect()
    }

    /// The level and the slot of a moment that is not before the cursor.
    #[inline]
    fn place(&self, moment: Moment) -> (usize, usize) {
        // The lowest bit is set so that level 0 comes out where nothing differs; it changes no level.
        let differs = (moment ^ self.cursor) | 1;
        let level = differs.ilog2() / DIGIT;
        (level as usize, (moment >> (level * DIGIT)) as usize % SLOTS)
    }

    /// The nodes of a slot, in order.
    fn listed(&self, slot: &Slot) -> impl Iterator<Item = u32> {
        let listed = |index: u32| (index != NONE).then_some(index);
        iter::successors(listed(slot.head), move |index| listed(self.nodes[*index as usize].next))
    }

    /// Puts a node at the end of the list in its place.
    #[inline]
    fn list(&mut self, index: u32) {
        let moment = self.nodes[index as usize].moment;
        let (at, digit) = self.place(moment);
        let level = &mut self.levels[at];
        let slot = &mut level.slots[digit];
        let previous = slot.tail;
        slot.tail = index;
        if previous == NONE {
            (slot.head, slot.earliest) = (index, index);
            level.occupied |= 1 << digit;
            self.occupied |= 1 << at;
        } else {
            if slot.earliest != NONE && moment < self.nodes[slot.earliest as usize].moment {
                slot.earliest = index;
            }
            self.nodes[previous as usize].next = index;
        }
        let node = &mut self.nodes[index as usize];
        (node.previous, node.next) = (previous, NONE);
    }

    /// Takes a listed node out of its list, and its value out of it, and frees it.
    #[inline]
    fn take(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        let (moment, previous, next, value) = (node.moment, node.previous, node.next, node.value.take());
        if let Some(generation) = node.generation.checked_add(1) {
            node.generation = generation;
            node.next = self.free;
            self.free = index;
        }
        self.len -= 1;
        let (at, digit) = self.place(moment);
        let level = &mut self.levels[at];
        let slot = &mut level.slots[digit];
        match self.nodes.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => slot.head = next,
        }
        match self.nodes.get_mut(next as usize) {
            Some(next) => next.previous = previous,
            None => slot.tail = previous,
        }
        if slot.head == NONE {
            *slot = Slot::EMPTY;
            level.occupied &= !(1 << digit);
            if level.occupied == 0 {
                self.occupied &= !(1 << at);
            }
        } else if slot.earliest == index {
            slot.earliest = if at == 0 { slot.head } else { NONE };
        }
        value
    }

    /// The node of the earliest, and of several the first that was put in.
    #[inline]
    fn first(&mut self) -> Option<u32> {
        if self.occupied == 0 {
            return None;
        }
        let at = self.occupied.trailing_zeros() as usize;
        let digit = self.levels[at].occupied.trailing_zeros() as usize;
        match self.levels[at].slots[digit].earliest {
            NONE => Some(self.look_through(at, digit)),
            known => Some(known),
        }
    }

    #[cold]
    fn look_through(&mut self, at: usize, digit: usize) -> u32 {
        let slot = self.levels[at].slots[digit];
        // Of equals the first, as `min_by_key` promises.
        let least = self.listed(&slot).min_by_key(|index| self.nodes[*index as usize].moment).unwrap_or(NONE);
        self.levels[at].slots[digit].earliest = least;
        least
    }

    /// Moves the cursor, if that is forward. No entry may be earlier.
    #[inline]
    fn turn(&mut self, to: Moment) {
        if to > self.cursor {
            let (at, digit) = self.place(to);
            self.cursor = to;
            // At level 0 a place stays what it was.
            if at > 0 && self.levels[at].occupied & 1 << digit != 0 {
                self.unroll(at, digit);
            }
        }
    }

    fn unroll(&mut self, at: usize, digit: usize) {
        let level = &mut self.levels[at];
        let mut index = level.slots[digit].head;
        level.slots[digit] = Slot::EMPTY;
        level.occupied &= !(1 << digit);
        if level.occupied == 0 {
            self.occupied &= !(1 << at);
        }
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.list(index);
            index = next;
        }
    }
}

/// The numbers of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(lowest)
    })
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("len", &self.len)
            .field("room", &self.nodes.len())
            .finish_non_exhaustive()
    }
}
