//! The private queue that a request stands in, in a model, where others may raid it: `private_queue.rs`, `schedule/worker/raids.rs`.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_runtime::model::asymmetric;
use forebear_runtime::model::attention::{Attention, RAIDED};
use forebear_runtime::model::raid::{HeaderPlace, Placed, PrivateEntry, RaidGuard};
use forebear_runtime::model::shared_queue::SharedQueue;
use forebear_runtime::start_at_once;

use super::Job;

/// A list of one worker's, with a few jobs at most; and its shared queue.
pub struct List {
    attention: Attention,
    gate: RaidGuard<Job>,
    front: AtomicPtr<Job>,
    shared_queue: SharedQueue<Job>,
}

impl List {
    /// An empty list.
    pub fn new() -> Arc<List> {
        Arc::new(List {
            attention: Attention::new(),
            gate: RaidGuard::new(),
            front: AtomicPtr::new(ptr::null_mut()),
            shared_queue: SharedQueue::new(),
        })
    }

    /// A raid by a worker that has nothing to do. Answers how many it has published.
    pub fn raid(&self) -> usize {
        let Some(mut raid) = self.gate.begin(&self.attention, &self.front) else { return 0 };
        asymmetric::heavy();
        // SAFETY: fenced; J1.
        let raided = unsafe { raid.walk(|job| job.show(&self.shared_queue)) };
        drop(raid);
        raided
    }

    /// What a worker does with the best of the shared queue. True: it ran it.
    pub fn run_published(&self) -> Option<bool> {
        // SAFETY: J1.
        self.shared_queue.pop(u64::MAX).map(|entry| unsafe { entry.as_ref() }.run_entry())
    }
}

impl PrivateEntry for Job {
    fn place(&self) -> &Placed {
        &self.place
    }

    fn next(&self) -> &AtomicPtr<Job> {
        &self.next
    }
}

impl Job {
    /// Puts it into `list`, as its owner.
    pub fn enter(&self, list: &List) {
        self.begin_entry();
        self.enter_known(list);
    }

    /// The same if its header was written before, since another thread knows of it already.
    pub fn enter_known(&self, list: &List) {
        self.place.set(HeaderPlace::Private);
        self.next.store(ptr::null_mut(), Ordering::Relaxed);
        list.front.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// The same, directly behind `before`, in front of what stood there.
    pub fn enter_behind(&self, before: &Job) {
        self.begin_entry();
        self.place.set(HeaderPlace::Private);
        self.before.set(before);
        let after = before.next.load(Ordering::Relaxed);
        // SAFETY: J1; listed.
        if let Some(after) = unsafe { after.as_ref() } {
            after.before.set(self);
        }
        self.next.store(after, Ordering::Relaxed);
        before.next.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// The owner writes the header before a link leads to it.
    fn begin_entry(&self) {
        // SAFETY: J1.
        self.header.with_mut(|there| unsafe { *there = true });
    }

    /// The touch of a plain store: false if it was raided.
    pub(super) fn begin_touch(&self) -> bool {
        let Some(list) = &self.listed_in else { return true };
        self.place.touch(|| list.attention.get() & RAIDED == 0)
    }

    /// The start by an owner that is about to take it out: false if it was raided, or `step` does not hold.
    pub(super) fn start_entry(&self, step: impl Fn() -> bool) -> bool {
        start_at_once!(
            listed: self.listed_in.is_some(),
            touch: self.begin_touch(),
            may_start: true,
            step: step(),
            restore: self.place.restore()
        )
    }

    /// After a touch that leaves it where it is.
    pub(super) fn touched(&self) {
        self.place.restore();
    }

    /// Its owner touches it and takes it out of its list.
    pub(super) fn take_out(&self, listed: &Cell<bool>) {
        while !self.begin_touch() {
            if let Some(list) = &self.listed_in {
                list.gate.settle(&list.attention, || false);
            }
        }
        self.unlink(listed);
    }

    /// The same of one that is touched.
    pub(super) fn unlink(&self, listed: &Cell<bool>) {
        assert!(listed.replace(false), "a private entry that is not in its list");
        let Some(list) = &self.listed_in else { return };
        // SAFETY: J1; what stands in front is taken out later.
        let link = unsafe { self.before.get().as_ref() }.map_or(&list.front, |before| &before.next);
        link.store(self.next.load(Ordering::Relaxed), Ordering::Release);
    }

    /// A raider's doing with an entry.
    fn show(&self, shared_queue: &SharedQueue<Job>) -> bool {
        self.touch();
        if self.word.is_local() {
            self.word.revoke_for_raid(&self.local, &self.local_owner);
        }
        let raided = self.word.raid();
        if raided {
            shared_queue.push(1, NonNull::from(self));
        }
        raided
    }
}
