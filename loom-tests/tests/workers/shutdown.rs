//! Shutdown against late submission, as it ships: the injector is closed while roots and children come. Each is taken out
//! by the closer, or by a worker before, or stays its pusher's, who then ends it: one of the three, once.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::UnsafeCell;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_runtime::model::shared_queue::{Injector, Pushed, QueueEntry};

use self::cell::{exhaust, explore};

/// A root. Its body is filled before the push, and emptied by whoever it belongs to in the end.
struct Item {
    link: AtomicPtr<Item>,
    key: u64,
    body: UnsafeCell<u64>,
}

// SAFETY: the link is the shared queue's, and the key constant.
unsafe impl QueueEntry for Item {
    fn link(&self) -> &AtomicPtr<Item> {
        &self.link
    }

    fn key(&self) -> u64 {
        self.key
    }
}

struct House {
    items: [Item; 2],
    roots: Injector<Item>,
}

// SAFETY: items are handed over through the shared queue; that is what the models are about.
unsafe impl Send for House {}
// SAFETY: as above.
unsafe impl Sync for House {}

impl House {
    fn new() -> Arc<House> {
        let item = |key| Item { link: AtomicPtr::new(ptr::null_mut()), key, body: UnsafeCell::new(0) };
        Arc::new(House { items: [item(3), item(5)], roots: Injector::new() })
    }

    /// A thread that does `f` in the house.
    fn with<T: 'static>(self: &Arc<House>, f: impl FnOnce(&House) -> T + 'static) -> JoinHandle<T> {
        let house = Arc::clone(self);
        thread::spawn(move || f(&house))
    }

    fn filled(&self, item: usize) -> NonNull<Item> {
        let item = &self.items[item];
        // SAFETY: nobody else knows of it; loom says if not.
        item.body.with_mut(|body| unsafe { *body = item.key });
        NonNull::from(item)
    }

    /// Submits it. If it comes back it is ended here: answers its key then.
    fn submit(&self, item: usize) -> Option<u64> {
        let entry = self.filled(item);
        (self.roots.push(entry) == Pushed::Closed).then(|| end(entry))
    }

    /// The same for a child, which goes past the inbox; `sheltered` answers for it.
    fn submit_child(&self, item: usize, sheltered: bool) -> Option<u64> {
        let entry = self.filled(item);
        (self.roots.push_past_inbox(entry, || sheltered) == Pushed::Closed).then(|| end(entry))
    }

    /// What shutdown does.
    fn shut(&self) -> Vec<u64> {
        self.roots.close(|_| false).into_iter().map(end).collect()
    }

    /// What a worker does.
    fn work(&self) -> Option<u64> {
        self.roots.pop(NO_KEY).map(end)
    }
}

/// Whoever has an entry has it alone.
fn end(entry: NonNull<Item>) -> u64 {
    // SAFETY: items outlive the execution's threads.
    let item = unsafe { entry.as_ref() };
    // SAFETY: taken from the shared queue, or never on it, hence ours; loom says if not.
    let body = item.body.with_mut(|body| unsafe { ptr::replace(body, 0) });
    assert_eq!(body, item.key, "ended twice, or before it was there");
    body
}

#[test]
fn a_root_that_comes_at_a_shutdown_is_ended_once() {
    exhaust(&["by the closer", "by its pusher"], |answers| {
        let house = House::new();
        let pusher = house.with(|house| house.submit(0));
        let taken = house.shut();
        let kept = pusher.join().unwrap();
        answers.note(match (kept, &*taken) {
            (None, [3]) => "by the closer",
            (Some(3), []) => "by its pusher",
            other => panic!("lost, or twice: {other:?}"),
        });
        assert_eq!(house.work(), None);
        assert_eq!(house.submit(1), Some(5), "from now on everything comes back");
        assert!(house.roots.close_if_empty());
    });
}

#[test]
fn roots_that_come_at_a_shutdown_while_a_worker_takes_are_each_ended_once() {
    explore(&["closer", "pusher", "worker"], |answers| {
        let house = House::new();
        assert_eq!(house.submit(1), None);
        let pusher = house.with(|house| house.submit(0));
        let worker = house.with(House::work);
        let mut ended = house.shut();
        let (kept, worked) = (pusher.join().unwrap(), worker.join().unwrap());
        for (by, some) in
            [("closer", !ended.is_empty()), ("pusher", kept.is_some()), ("worker", worked.is_some())]
        {
            if some {
                answers.note(by);
            }
        }
        ended.extend(kept.into_iter().chain(worked));
        ended.sort_unstable();
        assert_eq!(ended, [3, 5]);
    });
}

#[test]
fn a_child_that_nothing_shelters_is_ended_once() {
    exhaust(&["by the closer", "by its pusher"], |answers| {
        let house = House::new();
        let pusher = house.with(|house| house.submit_child(0, false));
        let taken = house.shut();
        let kept = pusher.join().unwrap();
        answers.note(match (kept, &*taken) {
            (None, [3]) => "by the closer",
            (Some(3), []) => "by its pusher",
            other => panic!("lost, or twice: {other:?}"),
        });
        assert!(house.roots.close_if_empty());
    });
}

/// What is sheltered is taken on after the shutdown, but never by a shared queue that nobody comes to any more.
#[test]
fn a_sheltered_child_is_run_unless_the_last_worker_has_gone() {
    exhaust(&["run", "by its pusher"], |answers| {
        let house = House::new();
        assert_eq!(house.shut(), []);
        let pusher = house.with(|house| house.submit_child(0, true));
        let mut worked = None;
        while !house.roots.close_if_empty() {
            worked = house.work();
        }
        let kept = pusher.join().unwrap();
        answers.note(match (kept, worked) {
            (None, Some(3)) => "run",
            (Some(3), None) => "by its pusher",
            other => panic!("lost, or twice: {other:?}"),
        });
        assert_eq!(house.submit_child(1, true), Some(5));
    });
}

/// Two shut it down at once.
#[test]
fn two_shutdowns_at_once_end_a_root_once() {
    explore(&["first", "second", "pusher"], |answers| {
        let house = House::new();
        let pusher = house.with(|house| house.submit(0));
        let other = house.with(House::shut);
        let mine = house.shut();
        let (kept, others) = (pusher.join().unwrap(), other.join().unwrap());
        answers.note(match (&*mine, &*others, kept) {
            ([3], [], None) => "first",
            ([], [3], None) => "second",
            ([], [], Some(3)) => "pusher",
            other => panic!("lost, or twice: {other:?}"),
        });
    });
}
