//! Entries that have a hint where to stand among their like.
//!
//! # Vocabulary
//!
//! * **group**: entries that hints may change places among: children of one request, or roots of one priority and deadline.
//! * **place**: what the age of an entry is worth in the shared queue: its key, and when it came. A place belongs to a group.
//! * **member**: an entry of a group, by its hint and when it came.
//!
//! A group has as many places as members. The shared queue goes by places, so a hint neither brings a group forward nor holds it back. The worker that takes
//! the group's best place takes its first member, whichever entry the place came with. So to change a hint is to move a member among members, and no
//! place moves.
//!
//! # Invariants
//!
//! * **HI1** All of this is read and changed under the shared queue's lock, each [`Hint`] too.
//! * **HI2** `number` of a hint is that of its member while the entry stands here, and [`GONE`] from when it was taken. No request has two members.

use std::collections::BTreeMap;
use std::mem;
use std::ptr::NonNull;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicI64, AtomicU64, Ordering};
use forebear_context::shim::mutant;

use super::QueueEntry;

/// It has not come to the shared queue yet.
const COMES: u64 = 0;
/// It has been taken.
const GONE: u64 = u64::MAX;

/// Where an entry stands among its like: the smaller hint goes first, and of equal ones the earlier. HI1; the group is constant.
#[derive(Debug)]
pub struct Hint {
    group: HintGroup,
    value: AtomicI64,
    number: AtomicU64,
}

impl Hint {
    /// A hint of what has not come to the shared queue yet.
    pub fn new(value: i64, group: HintGroup) -> Hint {
        Hint { group, value: AtomicI64::new(value), number: AtomicU64::new(COMES) }
    }

    /// Whether its request stands here by an entry. Another entry of that request, by a raise of urgency, then stands among those without a hint. HI1.
    pub(super) fn is_member(&self) -> bool {
        !matches!(self.number.load(Ordering::Relaxed), COMES | GONE)
    }

    fn member(&self) -> Member {
        (self.group, self.value.load(Ordering::Relaxed), self.number.load(Ordering::Relaxed))
    }
}

/// Whose places hints change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HintGroup {
    /// Children of the request at this address. One that a waiter has started may stay as a stale entry when its parent has gone.
    Siblings(usize),
    /// Roots whose keys are the same but for their numbers.
    Roots(u64),
}

/// A member: its group, its hint, and when it came.
type Member = (HintGroup, i64, u64);

/// See the module head. The members of all groups are in one map: a map for each group would be a map of maps, and the code of each kind of map is in every
/// program.
pub(super) struct Hinted<E> {
    places: BTreeMap<(u64, u64), HintGroup>,
    members: BTreeMap<Member, NonNull<E>>,
    count: u64,
}

impl<E> Default for Hinted<E> {
    fn default() -> Self {
        Hinted { places: BTreeMap::new(), members: BTreeMap::new(), count: COMES }
    }
}

impl<E: QueueEntry> Hinted<E> {
    pub fn put(&mut self, key: u64, entry: NonNull<E>, hint: &Hint) {
        self.count += 1;
        hint.number.store(self.count, Ordering::Relaxed);
        self.places.insert((key, self.count), hint.group);
        self.members.insert(hint.member(), entry);
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The key of the best place.
    pub fn key(&self) -> u64 {
        self.places.first_key_value().map_or(NO_KEY, |((key, _), _)| *key)
    }

    /// The member that has the best place.
    fn first(&self) -> Option<NonNull<E>> {
        let (_, &group) = self.places.first_key_value()?;
        self.of(group).next().map(|(_, entry)| entry)
    }

    /// The members of a group, in the order in which they are taken.
    fn of(&self, group: HintGroup) -> impl Iterator<Item = (Member, NonNull<E>)> {
        self.members
            .range((group, i64::MIN, COMES)..=(group, i64::MAX, GONE))
            .map(|(&member, &entry)| (member, entry))
    }

    /// Takes the member that has the best place, if it is `wanted`.
    pub fn take(&mut self, wanted: impl FnOnce(NonNull<E>) -> bool) -> Option<NonNull<E>> {
        let entry = self.first().filter(|&entry| wanted(entry))?;
        self.places.pop_first();
        self.leave(entry);
        Some(entry)
    }

    /// Takes a member that has a place of this key and is `wanted`. Looks at all of that key.
    pub fn take_of(&mut self, key: u64, wanted: impl Fn(NonNull<E>) -> bool) -> Option<NonNull<E>> {
        let (place, entry) = self.places.range((key, 0)..=(key, GONE)).find_map(|(&place, &group)| {
            let (_, entry) = self.of(group).find(|&(_, entry)| wanted(entry))?;
            Some((place, entry))
        })?;
        self.places.remove(&place);
        self.leave(entry);
        Some(entry)
    }

    /// A member is taken, and its place has been.
    fn leave(&mut self, entry: NonNull<E>) {
        // SAFETY: E1.
        if let Some(hint) = unsafe { entry.as_ref() }.hint() {
            self.members.remove(&hint.member());
            mutant!("hint_of_what_is_taken_counts", (), hint.number.store(GONE, Ordering::Relaxed));
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = NonNull<E>> {
        self.members.values().copied()
    }

    /// Takes out all members but what is to be kept, and for each the last place of its group: those that stay go no later for it.
    pub fn retain(&mut self, mut keep: impl FnMut(NonNull<E>) -> bool) {
        let taken: Vec<_> = self.entries().filter(|&entry| !keep(entry)).collect();
        if taken.is_empty() {
            return;
        }
        taken.into_iter().for_each(|entry| self.leave(entry));
        // The best places stay, one for each member.
        let mut places = mem::take(&mut self.places);
        let mut stay = BTreeMap::new();
        while let Some((place, group)) = places.pop_first() {
            let member = self.of(group).next();
            if let Some((member, entry)) = member {
                self.members.remove(&member);
                stay.insert(member, entry);
                self.places.insert(place, group);
            }
        }
        self.members = stay;
    }

    /// Takes the entry with this hint out of its group, if it is a member. Its place stays: [`set`](Self::set) puts it back under the same lock.
    pub fn lift(&mut self, hint: &Hint) -> Option<NonNull<E>> {
        self.members.remove(&hint.member())
    }

    /// Gives an entry that was `lifted` another hint. False: it has been taken.
    pub fn set(&mut self, hint: &Hint, lifted: Option<NonNull<E>>, value: i64) -> bool {
        let number = hint.number.load(Ordering::Relaxed);
        if number == GONE {
            return false;
        }
        mutant!("hint_of_the_inbox_stays", {
            if number == COMES {
                return true;
            }
        });
        hint.value.store(value, Ordering::Relaxed);
        if let Some(entry) = lifted {
            self.members.insert(hint.member(), entry);
        }
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ptr;

    use forebear_context::shim::atomic::AtomicPtr;

    use super::super::{Injector, Pushed};
    use super::*;

    struct Item {
        link: AtomicPtr<Item>,
        key: u64,
        hint: Hint,
    }

    // SAFETY: the link is the shared queue's, and the key constant.
    unsafe impl QueueEntry for Item {
        fn link(&self) -> &AtomicPtr<Item> {
            &self.link
        }

        fn key(&self) -> u64 {
            self.key
        }

        fn hint(&self) -> Option<&Hint> {
            Some(&self.hint)
        }
    }

    fn item(key: u64, group: usize, hint: i64) -> Item {
        let hint = Hint::new(hint, HintGroup::Siblings(group));
        Item { link: AtomicPtr::new(ptr::null_mut()), key, hint }
    }

    fn keys_taken(roots: &Injector<Item>) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| {
            let place = roots.key();
            // SAFETY: the items of these tests outlive their shared queues.
            roots.pop(place).map(|entry| (place, unsafe { entry.as_ref() }.key))
        })
        .collect()
    }

    #[test]
    fn members_change_places_within_their_group_only() {
        let items =
            [item(1, 1, 30), item(2, 2, 9), item(3, 1, 10), item(4, 1, 20), item(5, 2, 8), item(6, 3, -1)];
        let roots = Injector::new();
        for item in &items {
            assert_ne!(roots.push(NonNull::from(item)), Pushed::Closed);
        }
        // The places are taken in their order, by the first of each group.
        assert_eq!(keys_taken(&roots), [(1, 3), (2, 5), (3, 4), (4, 1), (5, 2), (6, 6)]);
    }

    #[test]
    fn a_hint_is_changed_until_its_entry_is_taken() {
        let items = [item(1, 1, 1), item(2, 1, 2), item(3, 1, 3)];
        let roots = Injector::new();
        assert!(roots.set_hint(&items[2], -3), "it comes later");
        items.iter().for_each(|item| _ = roots.push(NonNull::from(item)));
        assert!(roots.set_hint(&items[1], -5), "it is in the inbox");
        assert_eq!(roots.pop(NO_KEY), Some(NonNull::from(&items[1])));
        assert!(!roots.set_hint(&items[1], 7));
        assert!(roots.set_hint(&items[0], -4));
        assert_eq!(keys_taken(&roots), [(2, 1), (3, 3)]);
    }

    #[test]
    fn what_stands_here_twice_is_taken_twice_and_stands_in_nobodys_way() {
        let items = [item(1, 1, 1), item(2, 1, 2)];
        let roots = Injector::new();
        for _ in 0..2 {
            assert_ne!(roots.push_past_inbox(NonNull::from(&items[0]), || true), Pushed::Closed);
        }
        assert_eq!(keys_taken(&roots), [(1, 1), (1, 1)]);
        roots.push(NonNull::from(&items[1]));
        assert_eq!(keys_taken(&roots), [(2, 2)]);
    }

    #[test]
    fn what_is_taken_out_leaves_the_best_places_to_the_others() {
        let items = [item(1, 1, 1), item(2, 1, 2), item(3, 2, 3), item(4, 1, 4)];
        let roots = Injector::new();
        items.iter().for_each(|item| _ = roots.push(NonNull::from(item)));
        assert_eq!(roots.take_of(2, |item| item.key == 4), Some(NonNull::from(&items[3])));
        assert!(roots.any(|item| item.key == 2) && !roots.any(|item| item.key == 4));
        let closed = roots.close(|item| item.key != 1);
        assert_eq!(closed, [NonNull::from(&items[0])]);
        assert_eq!(keys_taken(&roots), [(1, 2), (3, 3)]);
    }
}
