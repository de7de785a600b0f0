//! Shelves: unstarted requests that anybody may take.
//!
//! There is one per worker, for what it has published, and one per runtime, for roots. Entries are links: a request that
//! was claimed elsewhere meanwhile is a *shell*, whose link the taker releases. The roots' shelf drops its shells when
//! they may outnumber the live: a thread that submits and then runs what it waits for, beside busy workers, would fill it
//! with them.
//!
//! # The roots' shelf
//!
//! Roots come from anywhere through an inbox (one exchange, no lock), and are put into order by whoever looks next,
//! under the shelf's lock: a segment per priority, first in, first out, and a side heap for what is not in order
//! (a root submitted long after it was made, a deadline). They never go into a private list: there they could be hidden
//! behind a request that spins for them.
//!
//! # Keys
//!
//! Each shelf publishes the root key of its best in one word, so that looking costs a load. The word is written under
//! the lock. It may be late, never wrong in a way that loses work: a pusher to a shelf notifies after it has pushed, and
//! a taker looks under the lock. While the inbox is being sorted in the word says so, and a look waits: a worker that
//! looks for the last time before it sleeps must not see an inbox that is empty already and places that are empty still.
//!
//! Above eight workers, every eight shelves share one more word: a [`Group`].
//!
//! # Invariants
//!
//! * **E1** An entry owns a link of its request.
//! * **E2** The inbox holds either a list of entries or the mark that says *closed*; once closed it stays so, and who
//!   finds the mark keeps its entry.
//! * **E3** Whoever closes the inbox takes what is in it by the same exchange. So an entry is pushed before, and is among
//!   what the closer sorts in and takes out, or its pusher finds the mark.
//! * **E4** What goes past the inbox is put in, and the shelf is closed and ended, under the lock. A closed shelf still
//!   takes what its pusher answers for; one that has *ended* takes nothing: nobody looks any more.

#![allow(unreachable_pub, reason = "the loom models see this module")]

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard};

// It lies with the runtime's record, which a model does not have.
#[path = "shared/group.rs"]
mod group;

pub use self::group::Group;

/// What stands on a shelf. The runtime's are headers; a model has its own.
///
/// # Safety
///
/// `link` gives a pointer cell of the entry that is the shelf's while the entry is on its way through the inbox; `key`
/// does not change.
pub unsafe trait Entry: Sized {
    /// The cell by which the inbox links entries.
    fn link(&self) -> &AtomicPtr<Self>;
    /// The root's key.
    fn key(&self) -> u64;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        // Nothing that runs under a shelf's lock can panic half-way.
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// What one worker has published, oldest first.
pub struct Shelf<E> {
    entries: Mutex<VecDeque<(u64, NonNull<E>)>>,
    best: AtomicU64,
    group: Option<Arc<Group>>,
}

// SAFETY: entries are links (E1), which may be used from any thread; the list is under a lock.
unsafe impl<E> Send for Shelf<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for Shelf<E> {}

impl<E> Shelf<E> {
    /// An empty shelf.
    pub fn new() -> Shelf<E> {
        Shelf { entries: Mutex::new(VecDeque::new()), best: AtomicU64::new(NO_KEY), group: None }
    }

    /// An empty shelf that shares `group` with others.
    pub fn in_group(group: Arc<Group>) -> Shelf<E> {
        Shelf { group: Some(group), ..Shelf::new() }
    }

    /// The key of the best entry, or [`NO_KEY`].
    #[inline(always)]
    pub fn key(&self) -> u64 {
        self.best.load(Ordering::Relaxed)
    }

    /// How many entries there are, shells too.
    pub fn count(&self) -> usize {
        lock(&self.entries).len()
    }

    /// Puts an entry behind all that are not younger.
    pub fn push(&self, key: u64, entry: NonNull<E>) {
        self.push_all([(key, entry)]);
    }

    /// Puts entries with their keys behind all that are not younger, so that who looks meanwhile sees all of them or none.
    pub fn push_all(&self, pushed: impl IntoIterator<Item = (u64, NonNull<E>)>) {
        let mut entries = lock(&self.entries);
        for (key, entry) in pushed {
            let at = match entries.back() {
                Some(last) if last.0 > key => entries.partition_point(|listed| listed.0 <= key),
                _ => entries.len(),
            };
            entries.insert(at, (key, entry));
        }
        self.publish(&entries);
    }

    /// Takes the best entry, if its key is at most `limit`: what the taker saw may have been taken meanwhile, and what is
    /// left may not be the best that the taker could have elsewhere.
    #[inline]
    pub fn pop(&self, limit: u64) -> Option<NonNull<E>> {
        self.pop_if(limit, |_| true)
    }

    /// As [`pop`](Self::pop), if the best entry is `wanted`.
    pub fn pop_if(&self, limit: u64, wanted: impl FnOnce(&E) -> bool) -> Option<NonNull<E>> {
        if self.key() == NO_KEY {
            return None;
        }
        let mut entries = lock(&self.entries);
        let &(key, front) = entries.front()?;
        // SAFETY: E1.
        if key > limit || !wanted(unsafe { front.as_ref() }) {
            return None;
        }
        let entry = entries.pop_front();
        #[cfg(mutant = "shelf_key_after_unlock")]
        {
            // What was pushed in between is hidden by the key of an empty shelf.
            let key = entries.front().map_or(NO_KEY, |first| first.0);
            drop(entries);
            self.best.store(key, Ordering::Release);
        }
        #[cfg(not(mutant = "shelf_key_after_unlock"))]
        self.publish(&entries);
        entry.map(|(_, entry)| entry)
    }

    /// Takes half of the entries, at least one, the oldest first; nothing if the best one's key is above `limit`. The second
    /// answer says whether some are left.
    pub fn pop_half(&self, limit: u64, mut give: impl FnMut(u64, NonNull<E>)) -> (usize, bool) {
        if self.key() == NO_KEY {
            return (0, false);
        }
        let mut entries = lock(&self.entries);
        if entries.front().is_none_or(|first| first.0 > limit) {
            return (0, !entries.is_empty());
        }
        let half = entries.len().div_ceil(2);
        for (key, entry) in entries.drain(..half) {
            give(key, entry);
        }
        self.publish(&entries);
        (half, !entries.is_empty())
    }

    /// Takes the oldest entry that is `wanted`. Looks at all of them: for what is rare.
    pub fn take_where(&self, wanted: impl Fn(&E) -> bool) -> Option<NonNull<E>> {
        if self.key() == NO_KEY {
            return None;
        }
        let mut entries = lock(&self.entries);
        // SAFETY: E1.
        let at = entries.iter().position(|listed| wanted(unsafe { listed.1.as_ref() }))?;
        let (_, entry) = entries.remove(at)?;
        self.publish(&entries);
        Some(entry)
    }

    /// Whether one stands here that is `wanted`. Looks at all of them: for what is rare.
    pub fn any(&self, wanted: impl Fn(&E) -> bool) -> bool {
        // SAFETY: E1.
        self.key() != NO_KEY && lock(&self.entries).iter().any(|listed| wanted(unsafe { listed.1.as_ref() }))
    }

    fn publish(&self, entries: &VecDeque<(u64, NonNull<E>)>) {
        let key = entries.front().map_or(NO_KEY, |first| first.0);
        let before = self.best.load(Ordering::Relaxed);
        if before != key {
            self.best.store(key, Ordering::Release);
            if key < before
                && let Some(group) = &self.group
            {
                group.lower(key);
            }
        }
    }
}

impl<E> Default for Shelf<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> std::fmt::Debug for Shelf<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shelf").field("key", &self.key()).finish_non_exhaustive()
    }
}

/// Instead of a key: entries are on their way from the inbox to their places; look under the lock. No root has this key.
const SORTING: u64 = 0;

/// Fewer shells than this are not worth a look.
const SHELLS: u64 = 1024;

/// The key's upper bits: priority, and whether there is a deadline.
fn segment_of(key: u64) -> u16 {
    (key >> 55) as u16
}

/// Entries of one priority that came in order.
type Segment<E> = VecDeque<(u64, NonNull<E>)>;

struct Ordered<E> {
    /// Oldest first. Few, and never taken out, so that a look at the first is short.
    segments: Vec<(u16, Segment<E>)>,
    late: BinaryHeap<Reverse<(u64, u64, NonNull<E>)>>,
    late_count: u64,
    /// E4.
    ended: bool,
}

impl<E> Ordered<E> {
    fn put(&mut self, key: u64, entry: NonNull<E>) {
        let of = segment_of(key);
        let at = self.segments.partition_point(|segment| segment.0 < of);
        if self.segments.get(at).is_none_or(|segment| segment.0 != of) {
            self.segments.insert(at, (of, VecDeque::new()));
        }
        let segment = &mut self.segments[at].1;
        if segment.back().is_none_or(|last| last.0 <= key) {
            segment.push_back((key, entry));
        } else {
            self.late_count += 1;
            self.late.push(Reverse((key, self.late_count, entry)));
        }
    }

    fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.1.len()).sum::<usize>() + self.late.len()
    }

    fn best(&self) -> (u64, bool) {
        let timely =
            self.segments.iter().find_map(|segment| segment.1.front()).map_or(NO_KEY, |first| first.0);
        match self.late.peek() {
            Some(&Reverse((late, ..))) if late < timely => (late, true),
            _ => (timely, false),
        }
    }

    /// Takes the best, if its key is at most `limit` and it is `wanted`.
    fn take(&mut self, limit: u64, wanted: impl FnOnce(&E) -> bool) -> Option<NonNull<E>> {
        let (key, late) = self.best();
        if key == NO_KEY || key > limit {
            return None;
        }
        // SAFETY: E1.
        let wanted = |entry: NonNull<E>| wanted(unsafe { entry.as_ref() });
        if late {
            let best = self.late.peek_mut()?;
            return wanted(best.0.2).then(|| PeekMut::pop(best).0.2);
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
    fn take_of(&mut self, key: u64, wanted: impl Fn(&E) -> bool) -> Option<NonNull<E>> {
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
        found
    }
}

/// The roots of one runtime. See the module head.
pub struct Roots<E: Entry> {
    inbox: AtomicPtr<E>,
    best: AtomicU64,
    /// About how many entries were claimed elsewhere since the last purge.
    shells: AtomicU64,
    ordered: Mutex<Ordered<E>>,
}

// SAFETY: as for `Shelf`.
unsafe impl<E: Entry> Send for Roots<E> {}
// SAFETY: as for `Shelf`.
unsafe impl<E: Entry> Sync for Roots<E> {}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is the only one in the inbox: notify somebody.
    First,
    /// Others came before, and whoever pushed the first of them notifies.
    Behind,
    /// Nobody will look again: the entry is still the pusher's.
    Closed,
}

impl<E: Entry> Roots<E> {
    /// An empty shelf.
    pub fn new() -> Roots<E> {
        let ordered = Ordered { segments: Vec::new(), late: BinaryHeap::new(), late_count: 0, ended: false };
        Roots {
            inbox: AtomicPtr::new(ptr::null_mut()),
            best: AtomicU64::new(NO_KEY),
            shells: AtomicU64::new(0),
            ordered: Mutex::new(ordered),
        }
    }

    fn closed() -> *mut E {
        ptr::dangling_mut::<E>()
    }

    /// Pushes a root. From any thread.
    pub fn push(&self, entry: NonNull<E>) -> Pushed {
        // SAFETY: E1; the link is ours until the exchange.
        let link = unsafe { entry.as_ref() }.link();
        let mut seen = self.inbox.load(Ordering::Relaxed);
        loop {
            if seen == Self::closed() {
                return Pushed::Closed;
            }
            link.store(seen, Ordering::Relaxed);
            #[cfg(not(mutant = "root_push_relaxed"))]
            let order = Ordering::AcqRel;
            #[cfg(mutant = "root_push_relaxed")]
            let order = Ordering::Relaxed;
            match self.inbox.compare_exchange(seen, entry.as_ptr(), order, Ordering::Relaxed) {
                // From here on the entry may be gone.
                Ok(_) => return if seen.is_null() { Pushed::First } else { Pushed::Behind },
                Err(now) => seen = now,
            }
        }
    }

    /// Pushes an entry whose link is in use elsewhere: past the inbox, under the lock. If the shelf is closed, but has not
    /// ended, `may_still` answers for the entry.
    pub fn push_past_inbox(&self, entry: NonNull<E>, may_still: impl FnOnce() -> bool) -> Pushed {
        let mut ordered = lock(&self.ordered);
        #[cfg(not(mutant = "pushed_past_the_close"))]
        if ordered.ended || self.inbox.load(Ordering::Acquire) == Self::closed() && !may_still() {
            return Pushed::Closed;
        }
        #[cfg(mutant = "pushed_past_the_close")]
        let _ = may_still;
        self.sort_in(&mut ordered);
        // SAFETY: E1.
        ordered.put(unsafe { entry.as_ref() }.key(), entry);
        self.publish(&ordered);
        Pushed::First
    }

    /// Whether there is anything new in the inbox.
    #[inline(always)]
    fn has_mail(&self) -> bool {
        // Acquire: who sees that the inbox was taken sees what `best` was set to before.
        let head = self.inbox.load(Ordering::Acquire);
        !head.is_null() && head != Self::closed()
    }

    /// The key of the best, or [`NO_KEY`]. Sorts the inbox in first.
    #[inline(always)]
    pub fn key(&self) -> u64 {
        if self.has_mail() {
            self.sort_in(&mut lock(&self.ordered));
        }
        match self.best.load(Ordering::Relaxed) {
            SORTING => self.key_when_sorted(),
            key => key,
        }
    }

    #[cold]
    fn key_when_sorted(&self) -> u64 {
        let _sorted = lock(&self.ordered);
        self.best.load(Ordering::Relaxed)
    }

    #[cold]
    fn sort_in(&self, ordered: &mut Ordered<E>) {
        if self.has_mail() {
            // From the next step until the end of this one the entries stand nowhere that can be seen without the lock.
            #[cfg(not(mutant = "sorting_hides_roots"))]
            self.best.store(SORTING, Ordering::Release);
            // Closing is under the lock, which is held.
            #[cfg(not(mutant = "inbox_taken_in_two_steps"))]
            let head = self.inbox.swap(ptr::null_mut(), Ordering::AcqRel);
            #[cfg(mutant = "inbox_taken_in_two_steps")]
            let head = {
                let head = self.inbox.load(Ordering::Acquire);
                self.inbox.store(ptr::null_mut(), Ordering::Release);
                head
            };
            Self::put_all(ordered, head);
        }
        self.publish(ordered);
    }

    /// Puts what the inbox held into order.
    fn put_all(ordered: &mut Ordered<E>, head: *mut E) {
        let mut at = head;
        // Last in, first out: turn it round.
        let mut turned: *mut E = ptr::null_mut();
        // SAFETY: E1: popped whole, so the links are ours.
        while let Some(entry) = unsafe { at.as_ref() } {
            let next = entry.link().load(Ordering::Relaxed);
            entry.link().store(turned, Ordering::Relaxed);
            turned = at;
            at = next;
        }
        while let Some(entry) = NonNull::new(turned) {
            // SAFETY: as above.
            let (key, next) =
                unsafe { (entry.as_ref().key(), entry.as_ref().link().load(Ordering::Relaxed)) };
            ordered.put(key, entry);
            turned = next;
        }
    }

    fn publish(&self, ordered: &Ordered<E>) {
        let (key, _) = ordered.best();
        if self.best.load(Ordering::Relaxed) != key {
            self.best.store(key, Ordering::Release);
        }
    }

    /// Takes the best, if its key is at most `limit`; see [`Shelf::pop`].
    pub fn pop(&self, limit: u64) -> Option<NonNull<E>> {
        self.take(|ordered| ordered.take(limit, |_| true))
    }

    /// As [`pop`](Self::pop), if the best entry is `wanted`.
    pub fn pop_if(&self, limit: u64, wanted: impl FnOnce(&E) -> bool) -> Option<NonNull<E>> {
        self.take(|ordered| ordered.take(limit, wanted))
    }

    /// Takes the oldest entry of this key that is `wanted`. Looks at all of that key: for what is rare.
    pub fn take_of(&self, key: u64, wanted: impl Fn(&E) -> bool) -> Option<NonNull<E>> {
        self.take(|ordered| ordered.take_of(key, wanted))
    }

    /// Whether one stands here that is `wanted`. Looks at all of them: for what is rare.
    pub fn any(&self, wanted: impl Fn(&E) -> bool) -> bool {
        if self.key() == NO_KEY {
            return false;
        }
        let ordered = lock(&self.ordered);
        // SAFETY: E1.
        let wanted = |entry: NonNull<E>| wanted(unsafe { entry.as_ref() });
        let mut timely = ordered.segments.iter().flat_map(|segment| &segment.1);
        timely.any(|listed| wanted(listed.1))
            || ordered.late.iter().any(|Reverse((_, _, late))| wanted(*late))
    }

    fn take(&self, take: impl FnOnce(&mut Ordered<E>) -> Option<NonNull<E>>) -> Option<NonNull<E>> {
        if self.key() == NO_KEY {
            return None;
        }
        let mut ordered = lock(&self.ordered);
        if self.has_mail() {
            self.sort_in(&mut ordered);
        }
        let entry = take(&mut ordered);
        self.publish(&ordered);
        entry
    }

    /// An entry that may stand here was claimed by somebody who did not come for it. When such shells may outnumber what
    /// lives, everything `is_shell` is taken out and given to `drop_shell`: while all workers are busy nobody else would.
    pub fn note_shell(&self, is_shell: impl Fn(&E) -> bool, mut drop_shell: impl FnMut(NonNull<E>)) {
        if self.shells.fetch_add(1, Ordering::Relaxed) < SHELLS {
            return;
        }
        let mut shells = Vec::new();
        let mut ordered = lock(&self.ordered);
        if self.shells.load(Ordering::Relaxed) < SHELLS.max(ordered.len() as u64 / 2) {
            return;
        }
        self.shells.store(0, Ordering::Relaxed);
        self.sort_in(&mut ordered);
        let mut keep = |entry: NonNull<E>| {
            // SAFETY: E1.
            let shell = is_shell(unsafe { entry.as_ref() });
            if shell {
                shells.push(entry);
            }
            !shell
        };
        for (_, segment) in &mut ordered.segments {
            segment.retain(|listed| keep(listed.1));
        }
        ordered.late.retain(|Reverse((_, _, entry))| keep(*entry));
        self.publish(&ordered);
        drop(ordered);
        shells.into_iter().for_each(&mut drop_shell);
    }

    /// Closes the inbox, and takes out all there is that `stays` does not want to keep. Nothing comes any more but what
    /// goes past the inbox and is answered for.
    pub fn close(&self, stays: impl Fn(&E) -> bool) -> Vec<NonNull<E>> {
        let mut taken = Vec::new();
        let mut ordered = lock(&self.ordered);
        // As in `sort_in`: for a moment the entries stand nowhere.
        self.best.store(SORTING, Ordering::Release);
        #[cfg(mutant = "close_forgets_the_inbox")]
        {
            self.sort_in(&mut ordered);
            self.inbox.store(Self::closed(), Ordering::Release);
        }
        #[cfg(not(mutant = "close_forgets_the_inbox"))]
        {
            // E3.
            let head = self.inbox.swap(Self::closed(), Ordering::AcqRel);
            if head != Self::closed() {
                Self::put_all(&mut ordered, head);
            }
        }
        let mut keep = |entry: NonNull<E>| {
            // SAFETY: E1.
            let stays = stays(unsafe { entry.as_ref() });
            if !stays {
                taken.push(entry);
            }
            stays
        };
        for (_, segment) in &mut ordered.segments {
            segment.retain(|listed| keep(listed.1));
        }
        ordered.late.retain(|Reverse((_, _, entry))| keep(*entry));
        self.publish(&ordered);
        taken
    }

    /// Closes the inbox, and ends the shelf, if nothing is left; false if there is still work.
    pub fn close_if_empty(&self) -> bool {
        let mut ordered = lock(&self.ordered);
        if ordered.best().0 != NO_KEY {
            return false;
        }
        #[cfg(mutant = "close_by_store")]
        if self.inbox.load(Ordering::Acquire).is_null() {
            // A root that comes in between is overwritten.
            self.inbox.store(Self::closed(), Ordering::Release);
            ordered.ended = true;
            return true;
        }
        let closed =
            self.inbox.compare_exchange(ptr::null_mut(), Self::closed(), Ordering::AcqRel, Ordering::Acquire);
        ordered.ended = closed.is_ok() || self.inbox.load(Ordering::Acquire) == Self::closed();
        ordered.ended
    }
}

impl<E: Entry> Default for Roots<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Entry> std::fmt::Debug for Roots<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roots").field("best", &self.best.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}
