//! The two queues of a readers-writer lock: readers wait until it opens, and one writer waits until the last reader has left.

use std::ptr::{self, NonNull};

use forebear_context::context::Lock;
use forebear_context::shim::atomic::Ordering;

use super::{DRAINING, READER, RawRwLock, SHUT, WAITED, WHAT};
use crate::lock_queue::Place;
use crate::queued_wait::QueuedWaiter;

/// The queue of waiting readers.
pub(super) struct ReadersQueue<'a>(pub(super) &'a RawRwLock);

/// The queue of the one writer that drains.
impl QueuedWaiter<()> for RawRwLock {
    fn at_once(&self, (): &()) -> bool {
        self.word.load(Ordering::Acquire) / READER == 0
    }

    fn enter(&self, place: &Place) -> bool {
        self.drain.with(|queue| {
            let mut word = self.word.load(Ordering::Acquire);
            #[cfg(mutant = "draining_by_look")]
            if word / READER != 0 {
                self.word.fetch_or(DRAINING, Ordering::AcqRel);
                // SAFETY: L1; L2.
                unsafe { queue.enter(place) };
                return true;
            }
            while word / READER != 0 {
                match self.word.compare_exchange_weak(
                    word,
                    word | DRAINING,
                    Ordering::Relaxed,
                    Ordering::Acquire,
                ) {
                    Ok(_) => {
                        // SAFETY: L1; L2: the place stays in its frame until it is out.
                        unsafe { queue.enter(place) };
                        return true;
                    }
                    Err(seen) => word = seen,
                }
            }
            false
        })
    }

    fn leave(&self, place: &Place) -> bool {
        self.drain.with(|queue| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            self.word.fetch_and(!DRAINING, Ordering::Relaxed);
        });
        true
    }

    fn lock(&self) -> Option<(&'static Lock, NonNull<()>)> {
        Some((&DRAIN, NonNull::from(self).cast()))
    }

    fn is_held_by_thread(&self) -> bool {
        self.writer_lock.is_read_unknown()
    }
}

impl QueuedWaiter<()> for ReadersQueue<'_> {
    fn at_once(&self, (): &()) -> bool {
        self.0.try_read()
    }

    fn enter(&self, place: &Place) -> bool {
        let word = &self.0.word;
        self.0.readers.with(|queue| {
            loop {
                if self.0.come_in() {
                    return false;
                }
                // The lock was shut, and may be open again.
                let seen = word.load(Ordering::Relaxed);
                if seen & SHUT != 0
                    && word
                        .compare_exchange(seen, seen | WAITED, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
                {
                    // SAFETY: L1; L2: the place stays in its frame until it is out.
                    unsafe { queue.enter(place) };
                    return true;
                }
            }
        })
    }

    fn leave(&self, place: &Place) -> bool {
        self.0.readers.with(|queue| {
            // SAFETY: L1.
            unsafe { queue.remove(place) };
            if queue.is_empty() {
                self.0.word.fetch_and(!WAITED, Ordering::Relaxed);
            }
        });
        true
    }

    fn lock(&self) -> Option<(&'static Lock, NonNull<()>)> {
        Some((&READ, NonNull::from(self.0).cast()))
    }

    fn is_held_by_thread(&self) -> bool {
        let RawRwLock { writer_lock, word, .. } = self.0;
        // An upgradable reader has not shut.
        word.load(Ordering::Relaxed) & SHUT != 0
            && writer_lock.holder().is_null()
            && writer_lock.is_held_unknown()
    }
}

/// The description of a reader's wait: its holder is that of the writers' lock.
static READ: Lock = Lock {
    what: WHAT,
    name,
    owner: |lock| {
        // SAFETY: by the contract of `OwnerWait`.
        unsafe { lock.cast::<RawRwLock>().as_ref() }.writer_lock.holder()
    },
    share: None,
    promote: |lock, node, key| {
        // SAFETY: by the contract of `OwnerWait`: the lock is a `RawRwLock`, and the node a `Place` of its readers' queue, both alive while
        // the wait lasts.
        let lock = unsafe { lock.cast::<RawRwLock>().as_ref() };
        // SAFETY: as above.
        let place = unsafe { node.cast::<Place>().as_ref() };
        // SAFETY: L1.
        lock.readers.with(|queue| unsafe { queue.promote(place, key) });
    },
};

/// The description of a draining writer's wait. Readers are only counted; their contexts know what they read. The queue has one waiter at most.
static DRAIN: Lock =
    Lock { what: WHAT, name, owner: |_| ptr::null(), share: Some(share), promote: |_, _, _| () };

/// # Safety
///
/// As [`Lock::share`].
unsafe fn share(lock: NonNull<()>) -> NonNull<()> {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawRwLock>().as_ref() }.share.get()
}

/// # Safety
///
/// As [`Lock::name`].
unsafe fn name(lock: NonNull<()>) -> Option<&'static str> {
    // SAFETY: by the contract of `OwnerWait`.
    unsafe { lock.cast::<RawRwLock>().as_ref() }.writer_lock.label().name()
}
