//! Shared queues: unstarted requests that anybody may take.
//!
//! There is one per worker, for what it has published, and one per runtime, for roots. Entries are links: a request
//! that was claimed elsewhere meanwhile is a *stale entry*, whose link the taker releases. A thread that submits
//! requests and then runs them in its waits, beside busy workers, would fill the injector with them. So a thread that
//! claims such an entry notes it there. Every 64th note takes out the stale entries that can be found without reading
//! others, or all of them when they may outnumber the live ones.
//!
//! # Keys
//!
//! Each shared queue publishes the root key of its best entry in one word, so that a poll costs a load. The word is
//! written under the lock. It may be late, but loses no work: a pusher to a shared queue notifies after it has pushed,
//! and a taker reads under the lock. While the inbox is being sorted in, the word says so, and a poll waits. Otherwise
//! a worker that polls for the last time before it sleeps could find the inbox already empty and the places still
//! empty.
//!
//! Above eight workers, every eight shared queues share one more word: a [`KeyGroup`].
//!
//! # Invariants
//!
//! * **E1** An entry owns a link of its request.
//!
//! E2 to E4 are about the roots: [`injector`].

use std::collections::VecDeque;
use std::ptr::NonNull;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use forebear_context::shim::{Arc, Mutex, MutexGuard, mutant};
use forebear_pool::Signals;

mod group;
mod hinted;
mod injector;
mod ordered;

pub use self::group::KeyGroup;
pub use self::hinted::{Hint, HintGroup};
pub use self::injector::{Injector, Pushed};

/// What stands in a shared queue. The runtime's are headers; a model has its own.
///
/// # Safety
///
/// `link` gives a pointer cell of the entry that is the shared queue's while the entry is on its way through the inbox; `key`
/// does not change.
pub unsafe trait QueueEntry: Sized {
    /// The cell by which the inbox links entries.
    fn link(&self) -> &AtomicPtr<Self>;
    /// The root's key.
    fn key(&self) -> u64;
    /// Its hint where to stand among its like, if it has one. Whether it has does not change.
    #[inline(always)]
    fn hint(&self) -> Option<&Hint> {
        None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        // Nothing that runs under a shared queue's lock can panic half-way.
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// What one worker has published, oldest first.
pub struct SharedQueue<E> {
    entries: Mutex<VecDeque<(u64, NonNull<E>)>>,
    best: AtomicU64,
    group: Option<Arc<KeyGroup>>,
}

// SAFETY: entries are links (E1), which may be used from any thread; the list is under a lock.
unsafe impl<E> Send for SharedQueue<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for SharedQueue<E> {}

impl<E> SharedQueue<E> {
    /// An empty shared queue.
    pub fn new() -> SharedQueue<E> {
        SharedQueue { entries: Mutex::new(VecDeque::new()), best: AtomicU64::new(NO_KEY), group: None }
    }

    /// An empty shared queue that shares `group` with others.
    pub fn in_group(group: Arc<KeyGroup>) -> SharedQueue<E> {
        SharedQueue { group: Some(group), ..SharedQueue::new() }
    }

    /// The key of the best entry, or [`NO_KEY`].
    #[inline(always)]
    pub fn key(&self) -> u64 {
        self.best.load(Ordering::Relaxed)
    }

    /// How many entries there are, stale entries too.
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

    /// Puts in what a thief has stolen and does not run at once. It stood in no queue for a moment, so another worker may have found nothing,
    /// and be asleep.
    pub fn push_stolen(&self, rest: impl IntoIterator<Item = (u64, NonNull<E>)>, signals: &Signals) {
        self.push_all(rest);
        mutant!("stolen_unannounced", (), signals.notify_any());
    }

    /// Takes the best entry, if its key is at most `limit`. The entry that the caller saw may have been taken
    /// meanwhile, and another queue may have a better entry than the one that is left.
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
        mutant!("shared_queue_key_after_unlock", {
            // What was pushed in between is hidden by the key of an empty shared queue.
            let key = entries.front().map_or(NO_KEY, |first| first.0);
            drop(entries);
            self.best.store(key, Ordering::Release);
            return entry.map(|(_, entry)| entry);
        });
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

impl<E> Default for SharedQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> std::fmt::Debug for SharedQueue<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedQueue").field("key", &self.key()).finish_non_exhaustive()
    }
}
