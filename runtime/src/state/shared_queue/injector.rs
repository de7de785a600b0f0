//! The injector.
//!
//! Any thread pushes roots into an inbox (one exchange, no lock). The next reader sorts them in, under the shared
//! queue's lock. There is a segment for each priority, first in, first out. A side heap has the roots that arrive out
//! of order: those that are submitted long after they were made, and those with a deadline. Entries with a hint are
//! kept apart, with children that have one ([`hinted`](super::hinted)). Roots never enter a private queue: there they
//! could be hidden behind a request that spins for them.
//!
//! # Invariants
//!
//! * **E2** The inbox holds either a list of entries or the mark that says *closed*; once closed it stays so, and who
//!   finds the mark keeps its entry.
//! * **E3** The closer of the inbox takes its contents by the same exchange. So an entry is pushed before, and is among
//!   what the closer sorts in and takes out, or its pusher finds the mark.
//! * **E4** What goes past the inbox is put in, and the shared queue is closed and ended, under the lock. A closed shared queue still
//!   takes what its pusher answers for; one that has *ended* takes nothing: no worker reads it any
//!   more.

use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use forebear_context::shim::{Mutex, mutant};

use super::ordered::Ordered;
use super::{QueueEntry, lock};

/// Instead of a key: entries are on their way from the inbox to their places; look under the lock. No root has this key.
const SORTING: u64 = 0;

/// So many stale entries are noted before those are taken out that are found at once: in the inbox, and before all that live.
const STALE_AT_LEAST: u64 = if cfg!(loom) { 1 } else { 64 };

/// If so many are left then, and are half of what stands here, all entries are looked at.
const LEFT_AT_LEAST: u64 = 1024;

/// The roots of one runtime. See the head of this module.
pub struct Injector<E: QueueEntry> {
    inbox: AtomicPtr<E>,
    best: AtomicU64,
    /// How many entries were claimed elsewhere since the last time that stale ones were taken out.
    stale: AtomicU64,
    ordered: Mutex<Ordered<E>>,
}

// SAFETY: as for `SharedQueue`.
unsafe impl<E: QueueEntry> Send for Injector<E> {}
// SAFETY: as for `SharedQueue`.
unsafe impl<E: QueueEntry> Sync for Injector<E> {}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is the only one in the inbox: notify somebody.
    First,
    /// Others were pushed before, and the pusher of the first of them notifies.
    Behind,
    /// Nobody will look again: the entry is still the pusher's.
    Closed,
}

impl<E: QueueEntry> Injector<E> {
    /// An empty shared queue.
    pub fn new() -> Injector<E> {
        Injector {
            inbox: AtomicPtr::new(ptr::null_mut()),
            best: AtomicU64::new(NO_KEY),
            stale: AtomicU64::new(0),
            ordered: Mutex::new(Ordered::default()),
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
            let order = mutant!("root_push_relaxed", Ordering::Relaxed, Ordering::SeqCst);
            match self.inbox.compare_exchange(seen, entry.as_ptr(), order, Ordering::Relaxed) {
                // From here on the entry may be gone.
                Ok(_) => return if seen.is_null() { Pushed::First } else { Pushed::Behind },
                Err(now) => seen = now,
            }
        }
    }

    /// Pushes an entry whose link is in use elsewhere: past the inbox, under the lock. If the shared queue is closed, but has not
    /// ended, `may_still` answers for the entry.
    pub fn push_past_inbox(&self, entry: NonNull<E>, may_still: impl FnOnce() -> bool) -> Pushed {
        let mut ordered = lock(&self.ordered);
        #[cfg(not(mutant = "pushed_past_the_close"))]
        if ordered.ended || self.inbox.load(Ordering::Acquire) == Self::closed() && !may_still() {
            return Pushed::Closed;
        }
        self.sort_in(&mut ordered);
        // SAFETY: E1.
        ordered.put(unsafe { entry.as_ref() }.key(), entry);
        self.publish(&ordered);
        Pushed::First
    }

    /// Whether there is anything new in the inbox.
    #[inline(always)]
    fn has_mail(&self) -> bool {
        // Acquire: who sees that the inbox was taken sees what `best` was set to before. Sequentially consistent, as the push and the looks at `best` are: a worker
        // that has said what it runs sees the root, or the root's pusher sees what it runs.
        let head = self.inbox.load(Ordering::SeqCst);
        !head.is_null() && head != Self::closed()
    }

    /// The key of the best, or [`NO_KEY`]. Sorts the inbox in first.
    #[inline(always)]
    pub fn key(&self) -> u64 {
        if self.has_mail() {
            self.sort_in(&mut lock(&self.ordered));
        }
        match self.best.load(Ordering::SeqCst) {
            SORTING => self.key_when_sorted(),
            key => key,
        }
    }

    /// The key of the best, if it is known without a call; else 0, which is less than every key.
    #[inline(always)]
    pub fn key_shortly(&self) -> u64 {
        let key = if self.has_mail() { SORTING } else { self.best.load(Ordering::SeqCst) };
        const { assert!(SORTING == 0) };
        key
    }

    #[cold]
    fn key_when_sorted(&self) -> u64 {
        let _sorted = lock(&self.ordered);
        self.best.load(Ordering::Relaxed)
    }

    #[cold]
    fn sort_in(&self, ordered: &mut Ordered<E>) {
        self.sort_in_but(ordered, |_| false);
    }

    /// The same; what `takes` takes stays the callee's.
    fn sort_in_but(&self, ordered: &mut Ordered<E>, takes: impl FnMut(NonNull<E>) -> bool) {
        if self.has_mail() {
            // From the next step until the end of this one the entries stand nowhere that can be seen without the lock.
            mutant!("sorting_hides_roots", (), self.best.store(SORTING, Ordering::Release));
            // Closing is under the lock, which is held.
            let head = mutant!(
                "inbox_taken_in_two_steps",
                {
                    let head = self.inbox.load(Ordering::Acquire);
                    self.inbox.store(ptr::null_mut(), Ordering::Release);
                    head
                },
                self.inbox.swap(ptr::null_mut(), Ordering::AcqRel)
            );
            Self::put_all(ordered, head, takes);
        }
        self.publish(ordered);
    }

    /// Puts what the inbox held into order, but for what `takes` takes.
    fn put_all(ordered: &mut Ordered<E>, head: *mut E, mut takes: impl FnMut(NonNull<E>) -> bool) {
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
            // SAFETY: E1: the inbox was popped whole, so each entry is this thread's, with its link, until it is put elsewhere.
            let first = unsafe { entry.as_ref() };
            let key = first.key();
            turned = first.link().load(Ordering::Relaxed);
            if !takes(entry) {
                ordered.put(key, entry);
            }
        }
    }

    fn publish(&self, ordered: &Ordered<E>) {
        let key = ordered.key();
        if self.best.load(Ordering::Relaxed) != key {
            self.best.store(key, Ordering::Release);
        }
    }

    /// Takes the best, if its key is at most `limit`; see [`SharedQueue::pop`](super::SharedQueue::pop).
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
        lock(&self.ordered).entries().any(wanted)
    }

    /// The same, and looks at what has just come, too.
    pub fn any_by_now(&self, wanted: impl Fn(&E) -> bool) -> bool {
        if self.key() == NO_KEY {
            return false;
        }
        let mut ordered = lock(&self.ordered);
        self.sort_in(&mut ordered);
        ordered.entries().any(wanted)
    }

    /// Gives an entry another hint, whether it stands here or comes later. False: it has been taken, or has none.
    pub fn set_hint(&self, entry: &E, value: i64) -> bool {
        let Some(hint) = entry.hint() else { return false };
        // One that is in the inbox is put in later, under this lock.
        let mut ordered = lock(&self.ordered);
        let lifted = ordered.hinted().lift(hint);
        // Between the two the group has a place without a member.
        mutant!("hint_moved_in_two_steps", {
            drop(ordered);
            ordered = lock(&self.ordered);
        });
        ordered.hinted().set(hint, lifted, value)
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

    /// An entry that may stand here was claimed by a thread that did not take it from here. Now and then what `is_stale` is taken out and
    /// given to `drop_stale`: while all workers are busy no other thread would. Mostly a thread runs what it has made in the same
    /// order. So a stale entry is in the inbox, or before all that live, and costs no look at others.
    #[inline]
    pub fn note_stale(&self, is_stale: impl Fn(&E) -> bool, drop_stale: impl FnMut(NonNull<E>)) {
        if self.stale.fetch_add(1, Ordering::Relaxed) + 1 >= STALE_AT_LEAST {
            self.take_stale(is_stale).into_iter().for_each(drop_stale);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_stale(&self, is_stale: impl Fn(&E) -> bool) -> Vec<NonNull<E>> {
        let mut taken = Vec::with_capacity(STALE_AT_LEAST as usize);
        let mut ordered = lock(&self.ordered);
        let noted = self.stale.swap(0, Ordering::Relaxed);
        self.sort_in_but(&mut ordered, |entry| {
            // SAFETY: E1.
            let e = unsafe { entry.as_ref() };
            let takes = e.hint().is_none() && is_stale(e);
            if takes {
                taken.push(entry);
            }
            takes
        });
        ordered.take_first(&is_stale, &mut taken);
        // What another worker has published is noted here and stands elsewhere, so this is no more than a guess.
        ordered.stale = (ordered.stale + noted).saturating_sub(taken.len() as u64);
        if ordered.stale >= LEFT_AT_LEAST.max(ordered.len() as u64 / 2) {
            ordered.stale = 0;
            taken.extend(ordered.take_all(is_stale));
        }
        self.publish(&ordered);
        taken
    }

    /// Closes the inbox, and takes out all there is that `stays` does not want to keep. Nothing comes any more but what
    /// goes past the inbox and is answered for.
    pub fn close(&self, stays: impl Fn(&E) -> bool) -> Vec<NonNull<E>> {
        let mut ordered = lock(&self.ordered);
        // As in `sort_in`: for a moment the entries stand nowhere.
        self.best.store(SORTING, Ordering::Release);
        // E3.
        let head = mutant!(
            "close_forgets_the_inbox",
            {
                self.sort_in(&mut ordered);
                self.inbox.store(Self::closed(), Ordering::Release);
                Self::closed()
            },
            self.inbox.swap(Self::closed(), Ordering::AcqRel)
        );
        if head != Self::closed() {
            Self::put_all(&mut ordered, head, |_| false);
        }
        let taken = ordered.take_all(|entry| !stays(entry));
        self.publish(&ordered);
        taken
    }

    /// Closes the inbox, and ends the shared queue, if nothing is left; false if there is still work.
    pub fn close_if_empty(&self) -> bool {
        let mut ordered = lock(&self.ordered);
        if ordered.key() != NO_KEY {
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

impl<E: QueueEntry> Default for Injector<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: QueueEntry> std::fmt::Debug for Injector<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector").field("best", &self.best.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering as Std}; // not modelled: a test

    use super::*;

    struct Entry {
        link: AtomicPtr<Entry>,
        key: u64,
        claimed: AtomicBool,
        dropped: AtomicUsize,
    }

    // SAFETY: the link is the queue's, and the key constant.
    unsafe impl QueueEntry for Entry {
        fn link(&self) -> &AtomicPtr<Entry> {
            &self.link
        }

        fn key(&self) -> u64 {
            self.key
        }
    }

    fn entries(n: u64) -> (Vec<Entry>, Injector<Entry>) {
        let entry = |key| Entry {
            link: AtomicPtr::default(),
            key: key + 1,
            claimed: AtomicBool::new(false),
            dropped: AtomicUsize::new(0),
        };
        let (entries, queue) = ((0..n).map(entry).collect::<Vec<_>>(), Injector::new());
        entries.iter().for_each(|entry| _ = queue.push(NonNull::from(entry)));
        (entries, queue)
    }

    /// As a waiter does that has not taken it from the queue.
    fn claim(entry: &Entry, queue: &Injector<Entry>) {
        entry.claimed.store(true, Std::Relaxed);
        queue.note_stale(
            |entry| entry.claimed.load(Std::Relaxed),
            // SAFETY: the entries outlive the queue.
            |entry| _ = unsafe { entry.as_ref() }.dropped.fetch_add(1, Std::Relaxed),
        );
    }

    fn left(entries: &[Entry]) -> usize {
        entries.iter().filter(|entry| entry.dropped.load(Std::Relaxed) == 0).count()
    }

    #[test]
    fn entries_that_are_claimed_in_order_leave_soon_each_once() {
        let (entries, queue) = entries(1_000);
        for (n, entry) in entries.iter().enumerate() {
            claim(entry, &queue);
            assert!(left(&entries[..=n]) < STALE_AT_LEAST as usize, "after {n}");
        }
        assert!(entries.iter().all(|entry| entry.dropped.load(Std::Relaxed) <= 1));
    }

    #[test]
    fn stale_entries_behind_a_live_one_leave_before_they_outnumber_the_rest() {
        let (entries, queue) = entries(5_000);
        for entry in &entries[1..] {
            claim(entry, &queue);
        }
        let most = (LEFT_AT_LEAST + STALE_AT_LEAST) as usize;
        assert!(left(&entries) <= most, "{} are left", left(&entries));
        assert!(entries.iter().all(|entry| entry.dropped.load(Std::Relaxed) <= 1));
        assert_eq!(queue.pop(NO_KEY), Some(NonNull::from(&entries[0])), "the one that lives");
    }

    #[test]
    fn what_lives_stays_in_order_beside_stale_entries() {
        let (entries, queue) = entries(1_000);
        entries.iter().filter(|entry| entry.key % 3 != 0).for_each(|entry| claim(entry, &queue));
        // SAFETY: the entries outlive the queue.
        let all = std::iter::from_fn(|| queue.pop(NO_KEY)).map(|entry| unsafe { entry.as_ref() });
        let live: Vec<_> =
            all.filter(|entry| !entry.claimed.load(Std::Relaxed)).map(|entry| entry.key).collect();
        assert!(live.iter().copied().eq((1..=1_000).filter(|key| key % 3 == 0)), "{live:?}");
    }
}
