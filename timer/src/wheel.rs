//! The timing wheel.
//!
//! # Vocabulary
//!
//! * **moment**: an instant as a number ([`crate::moment`]), whose last bit is a nanosecond.
//! * **cursor**: the moment up to which all entries have been taken out. It never goes back.
//! * **digit**: six bits of a moment; digit 0 is the lowest.
//! * **level, slot**: there is a level for each digit, with a slot for each of the digit's 64 values.
//! * **place** of a moment: its level is the highest digit in which it differs from the cursor (0 if in none); its slot there is the value of
//!   that digit.
//! * **node**: where a value lies, in a table that grows and never shrinks; a list links the free ones. A node counts its
//!   **generations**; node and generation are an entry's [`Key`].
//! * **item**: what a slot stores of an entry: its moment and its key. A slot's items are contiguous.
//! * **dead**: an item whose entry was removed. The item stays until the slot is next read.
//!
//! # How it works
//!
//! After G. Varghese and T. Lauck, *Hashed and Hierarchical Timing Wheels* (SOSP 1987; IEEE/ACM Transactions on Networking 5(6), 1997),
//! scheme 7. An entry is placed by the highest digit that differs, and each level has a word of bits that says which slots are not
//! empty. Tokio has these two as well, with six levels of a millisecond and up. Here a tick is a nanosecond and the levels reach as far
//! as an `Instant` does. So a slot of level 0 is *one* instant, nothing is rounded and nothing overflows; decision 0014 has the reasons.
//!
//! The earliest entry is in the first slot of the lowest level that has any. A moment that differs from the cursor only
//! in lower digits is earlier than one that differs in a higher digit (W2). Within a level a smaller digit is earlier.
//! Two searches for a lowest set bit find that slot. The slot remembers which of its items is the earliest. If that
//! item is dead, the next query searches the slot once.
//!
//! When the cursor moves to `t`, and no entry is earlier, all entries whose place changes are in one slot, that of `t`: it is *unrolled*.
//! (An entry of a higher level still differs from the cursor first in the same digit. So does one of the same level and another digit. Lower
//! levels are empty, since their entries would be earlier than `t`.) Each unrolled entry moves down at least one level: fifteen times at most,
//! and five times for a time-out of a second. An entry that is alone in its slot moves to level 0 at once.
//!
//! # Why items lie apart from values
//!
//! A list that is linked through its entries costs a cache miss for each entry and level, and each miss waits for the one before.
//! Items are read and written in sequence, and a value is touched twice in its life: at its insertion and at its removal.
//! A caller that removes an entry touches its node alone. Dead items are dropped when their slot is unrolled or searched,
//! and all of them when they outnumber the living, so each costs a constant on average.
//!
//! # The order
//!
//! Entries of one moment are always in one slot, since a place depends only on moment and cursor, and lie there in order of
//! insertion. Unrolling reads a slot from its first item on, into slots of lower levels, which are empty by then. So entries come out in that
//! order. (A wheel that lets an entry stay at its level while others of the same instant are put below loses this order; Linux
//! has given up any promise of it.) An entry for a moment before the cursor counts as one for the cursor's moment.
//! # Invariants
//!
//! * **W1** An item, dead or not, is in the place of its moment for the current cursor.
//! * **W2** No item's moment is before the cursor.
//! * **W3** The bit of a slot is set if and only if it has items; that of a level, if one of its slots has.
//! * **W4** `earliest` of a slot that has items is the first of those with the least moment, or was until it died, or is unknown. Items that were
//!   added after it are not earlier. At level 0 all have one moment.
//! * **W5** A node is in the table's free list, or has a value and one item, or is worn out. When it loses its value its
//!   generation rises. A node that has used all its generations is never used again. So no two entries ever have the same key, and no
//!   dead item becomes live.
//! * **W6** There are at most twice as many items as entries, plus [`SLACK`].

use std::fmt;
use std::iter;
use std::mem;
use std::num::NonZeroU64;
use std::time::Instant;

use crate::moment::{BITS, Moment, instant, moment};

#[cfg(test)]
mod tests;

const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
const LEVELS: usize = BITS.div_ceil(DIGIT) as usize;

/// The bits of the levels whose digits lie in the lower half of a moment.
const NEAR: u32 = u64::BITS / DIGIT * DIGIT;

/// How many items may be dead however few are not.
const SLACK: usize = 64;
/// How many items a slot may have room for while it is empty.
const KEPT: usize = 64;

/// How many bits of a key say which node.
const INDEX: u32 = 28;
/// How many nodes there can be.
const MOST: u32 = 1 << INDEX;

/// No node, no item.
const NONE: u32 = u32::MAX;

/// Values, each for an instant, of which the earliest can be seen and taken out. See the module head for how.
///
/// [`insert`](Self::insert) and [`remove`](Self::remove) take the same time on average however much is in it. No value is taken out
/// early. Values are taken out in order of time, and for one instant in order of insertion.
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
    /// Made when first needed.
    levels: [Option<Box<Level>>; LEVELS],
    nodes: Vec<Node<T>>,
    /// The first free node.
    free: u32,
    len: usize,
    dead: usize,
    /// Room for items, of a slot that needs it no more.
    spare: Vec<Item>,
}

/// The name of an entry, which no other entry of the wheel ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(NonZeroU64);

struct Level {
    /// Which slots are not empty (W3).
    occupied: u64,
    slots: [Slot; SLOTS],
}

struct Slot {
    items: Vec<Item>,
    /// How many of them have been taken out; 0 except at level 0.
    out: u32,
    /// W4; `NONE`: unknown.
    earliest: u32,
}

/// A moment in two parts, so that no room is lost, and a key in its two.
#[derive(Clone, Copy)]
struct Item {
    low: u64,
    high: u32,
    index: u32,
    generation: u32,
}

struct Node<T> {
    /// In the list of free nodes.
    next: u32,
    /// Never 0.
    generation: u32,
    value: Option<T>,
}

impl Slot {
    const EMPTY: Slot = Slot { items: Vec::new(), out: 0, earliest: NONE };
}

impl Item {
    #[inline]
    fn new(moment: Moment, index: u32, generation: u32) -> Item {
        Item { low: moment as u64, high: (moment >> 64) as u32, index, generation }
    }

    #[inline]
    fn moment(&self) -> Moment {
        Moment::from(self.high) << 64 | Moment::from(self.low)
    }

    /// Whether its entry is in. By the table alone, so that slots can be borrowed meanwhile.
    #[inline]
    fn lives<T>(&self, nodes: &[Node<T>]) -> bool {
        let node = &nodes[self.index as usize];
        node.generation == self.generation && node.value.is_some()
    }
}

impl Key {
    fn new(generation: u32, index: u32) -> Key {
        let number = NonZeroU64::new(u64::from(generation) << INDEX | u64::from(index));
        Key(number.expect("a generation is never zero"))
    }

    /// The key as a number, which is not zero and below 2^60.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The key of that number; none has the number zero.
    pub fn from_number(number: u64) -> Option<Key> {
        NonZeroU64::new(number).map(Key)
    }

    fn generation(self) -> u32 {
        (self.number() >> INDEX) as u32
    }

    fn index(self) -> u32 {
        self.number() as u32 & (MOST - 1)
    }
}

impl<T> Wheel<T> {
    /// An empty wheel, all of whose time is to come. Any instant will do as the origin, also one that is later than others.
    #[must_use]
    pub fn new(origin: Instant) -> Wheel<T> {
        Wheel {
            origin,
            cursor: 0,
            occupied: 0,
            levels: [const { None }; LEVELS],
            nodes: Vec::new(),
            free: NONE,
            len: 0,
            dead: 0,
            spare: Vec::new(),
        }
    }

    /// How many values are in.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a value in for `at`. If the wheel has [passed](Self::advance) that instant, it is inserted at the cursor: behind what
    /// is due there already.
    ///
    /// # Panics
    ///
    /// If a quarter of a billion are in.
    #[inline]
    pub fn insert(&mut self, at: Instant, value: T) -> Key {
        let moment = moment(self.origin, at).max(self.cursor);
        let index = self.free;
        let (index, generation) = if let Some(node) = self.nodes.get_mut(index as usize) {
            self.free = node.next;
            node.value = Some(value);
            (index, node.generation)
        } else {
            let index = u32::try_from(self.nodes.len()).ok().filter(|index| *index < MOST);
            let index = index.expect("a quarter of a billion entries in a timing wheel");
            self.nodes.push(Node { next: NONE, generation: 1, value: Some(value) });
            (index, 1)
        };
        self.len += 1;
        self.put(Item::new(moment, index, generation));
        Key::new(generation, index)
    }

    /// Removes a value; `None` if it was taken out already.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let node = self.nodes.get(key.index() as usize)?;
        if node.generation != key.generation() || node.value.is_none() {
            return None;
        }
        let value = self.free(key.index());
        self.dead += 1;
        if self.dead > self.len + SLACK {
            self.drop_dead();
        }
        value
    }

    /// The value with that key; `None` if it was taken out or removed. Its instant cannot be changed.
    ///
    /// ```
    /// use forebear_timer::Wheel;
    /// use std::time::Instant;
    ///
    /// let now = Instant::now();
    /// let mut wheel = Wheel::new(now);
    /// let tea = wheel.insert(now, "tea");
    /// *wheel.get_mut(tea).unwrap() = "pasta";
    /// assert_eq!(wheel.pop_due(now), Some("pasta"));
    /// assert_eq!(wheel.get_mut(tea), None);
    /// ```
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let node = self.nodes.get_mut(key.index() as usize)?;
        if node.generation == key.generation() { node.value.as_mut() } else { None }
    }

    /// The earliest instant that something is in for: exactly that, and not earlier.
    pub fn earliest(&mut self) -> Option<Instant> {
        let moment = self.first()?;
        Some(instant(self.origin, moment))
    }

    /// Takes out the earliest value, if it is due at `now`; otherwise [advances](Self::advance) to `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let now = moment(self.origin, now);
        match self.first() {
            Some(moment) if moment <= now => {
                self.turn(moment);
                self.pop()
            }
            _ => {
                self.turn(now);
                None
            }
        }
    }

    /// Sets the wheel's time, so that an entry for a near instant is inserted among the near ones. It goes no further
    /// than to what is to come out next, and never back.
    pub fn advance(&mut self, now: Instant) {
        let now = moment(self.origin, now);
        let to = self.first().map_or(now, |first| now.min(first));
        self.turn(to);
    }

    /// Takes everything out, in order.
    pub fn take_all(&mut self) -> Vec<T> {
        let cursor = self.cursor;
        let mut all = Vec::with_capacity(self.len);
        while let Some(moment) = self.first() {
            self.turn(moment);
            all.extend(self.pop());
        }
        // Time has not passed. No item is left whose place depends on the cursor (W1, W2).
        self.cursor = cursor;
        all
    }

    /// The level and the slot of a moment that is not before the cursor.
    #[inline]
    fn place(&self, moment: Moment) -> (usize, usize) {
        // The lowest bit is set so that level 0 comes out where nothing differs; it changes no level.
        let differs = (moment ^ self.cursor) | 1;
        // Nearly always: it is less than thirty years off, and what numbers of 64 bits can do takes half as long.
        if differs >> NEAR == 0 {
            let level = (differs as u64).ilog2() / DIGIT;
            (level as usize, (moment as u64 >> (level * DIGIT)) as usize % SLOTS)
        } else {
            let level = differs.ilog2() / DIGIT;
            (level as usize, (moment >> (level * DIGIT)) as usize % SLOTS)
        }
    }

    /// Puts an item behind the others in its place.
    #[inline]
    fn put(&mut self, item: Item) {
        let moment = item.moment();
        let (at, digit) = self.place(moment);
        let level = self.levels[at].get_or_insert_with(Level::new);
        let slot = &mut level.slots[digit];
        if slot.items.is_empty() {
            slot.earliest = 0;
            level.occupied |= 1 << digit;
            self.occupied |= 1 << at;
        } else if at > 0 && slot.earliest != NONE && moment < slot.items[slot.earliest as usize].moment() {
            slot.earliest = slot.items.len() as u32;
        }
        slot.items.push(item);
    }

    /// Takes the value out of a node, and frees it.
    #[inline]
    fn free(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        let value = node.value.take();
        if let Some(generation) = node.generation.checked_add(1) {
            node.generation = generation;
            node.next = self.free;
            self.free = index;
        }
        self.len -= 1;
        value
    }

    /// The moment of the earliest entry. No item before it is left when this returns.
    #[inline]
    fn first(&mut self) -> Option<Moment> {
        loop {
            if self.occupied == 0 {
                return None;
            }
            let at = self.occupied.trailing_zeros() as usize;
            let level = self.levels[at].as_mut()?;
            let digit = level.occupied.trailing_zeros() as usize;
            let slot = &mut level.slots[digit];
            let earliest = if at == 0 { slot.out } else { slot.earliest };
            if let Some(item) = slot.items.get(earliest as usize)
                && item.lives(&self.nodes)
            {
                return Some(item.moment());
            }
            self.look_through(at, digit);
        }
    }

    /// Drops the dead of a slot, and finds its earliest.
    #[cold]
    fn look_through(&mut self, at: usize, digit: usize) {
        let Some(level) = &mut self.levels[at] else { return };
        let slot = &mut level.slots[digit];
        if at == 0 {
            // All are of one moment.
            let left = slot.items[slot.out as usize..].iter();
            let dead = left.take_while(|item| !item.lives(&self.nodes)).count();
            slot.out += dead as u32;
            self.dead -= dead;
        } else {
            let before = slot.items.len();
            slot.items.retain(|item| item.lives(&self.nodes));
            self.dead -= before - slot.items.len();
            // Of equals the first, as `min_by_key` promises.
            let least = (0..).zip(&slot.items).min_by_key(|(_, item)| item.moment());
            slot.earliest = least.map_or(NONE, |(at, _)| at);
        }
        if slot.out as usize == slot.items.len() {
            self.empty(at, digit);
        }
    }

    /// Drops all the dead.
    #[cold]
    #[inline(never)]
    fn drop_dead(&mut self) {
        for at in ones(self.occupied.into()) {
            for digit in ones(self.levels[at].as_ref().map_or(0, |level| level.occupied)) {
                let Some(level) = &mut self.levels[at] else { continue };
                let slot = &mut level.slots[digit];
                slot.items.drain(..mem::take(&mut slot.out) as usize);
                slot.items.retain(|item| item.lives(&self.nodes));
                slot.earliest = NONE;
                if slot.items.is_empty() {
                    self.empty(at, digit);
                }
            }
        }
        self.dead = 0;
    }

    /// Nothing is left in a slot.
    fn empty(&mut self, at: usize, digit: usize) {
        let Some(level) = &mut self.levels[at] else { return };
        let slot = &mut level.slots[digit];
        (slot.out, slot.earliest) = (0, NONE);
        slot.items.clear();
        if slot.items.capacity() > KEPT {
            let room = mem::take(&mut slot.items);
            if room.capacity() > self.spare.capacity() {
                self.spare = room;
            }
        }
        level.occupied &= !(1 << digit);
        if level.occupied == 0 {
            self.occupied &= !(1 << at);
        }
    }

    /// Takes the first of the cursor's own moment out, which is alive.
    #[inline]
    fn pop(&mut self) -> Option<T> {
        let digit = self.cursor as usize % SLOTS;
        let slot = &mut self.levels[0].as_mut()?.slots[digit];
        let item = *slot.items.get(slot.out as usize)?;
        slot.out += 1;
        if slot.out as usize == slot.items.len() {
            self.empty(0, digit);
        }
        self.free(item.index)
    }

    /// Moves the cursor, if that is forward. No item of another slot may be earlier.
    #[inline]
    fn turn(&mut self, to: Moment) {
        if to > self.cursor {
            let (at, digit) = self.place(to);
            self.cursor = to;
            // At level 0 a place stays what it was.
            if at > 0 && self.levels[at].as_ref().is_some_and(|level| level.occupied & 1 << digit != 0) {
                self.unroll(at, digit);
            }
        }
    }

    fn unroll(&mut self, at: usize, digit: usize) {
        let Some(level) = &mut self.levels[at] else { return };
        let mut items = mem::replace(&mut level.slots[digit].items, mem::take(&mut self.spare));
        #[cfg(canary)]
        items.reverse(); // planted: the fuzzer must find that the order is lost
        for item in items.drain(..) {
            // The dead need not be looked for if there are none.
            if self.dead == 0 || item.lives(&self.nodes) {
                self.put(item);
            } else {
                self.dead -= 1;
            }
        }
        if let Some(level) = &mut self.levels[at] {
            self.spare = mem::replace(&mut level.slots[digit].items, items);
        }
        self.empty(at, digit);
    }
}

impl Level {
    fn new() -> Box<Level> {
        Box::new(Level { occupied: 0, slots: [Slot::EMPTY; SLOTS] })
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
