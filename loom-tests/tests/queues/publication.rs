//! Publication as it ships: the private bit that goes before the push, the shared queues, and the injector's inbox.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::shim::thread;
use forebear_context::shim::{self, UnsafeCell};
use forebear_pool::{Signals, Supply, Worker};
use forebear_runtime::model::shared_queue::{Injector, KeyGroup, Pushed, QueueEntry, SharedQueue};
use forebear_runtime::model::word::{HandleDrop, SPAWNED};

use self::cell::{BLOCKING, Job, Took, exhaust, explore, with};

// ---- the private bit -----------------------------------------------------------------------------------------------

/// A request and the shared queue of the worker that made it.
struct Made {
    job: Arc<Job>,
    shared_queue: SharedQueue<Job>,
}

impl Made {
    fn spawned() -> Arc<Made> {
        Arc::new(Made { job: Job::new(SPAWNED), shared_queue: SharedQueue::new() })
    }

    /// What `Worker::feed` does with one entry.
    fn publish(&self) {
        self.job.touch();
        self.job.word.publish();
        self.shared_queue.push(1, NonNull::from(&*self.job));
    }

    /// What a worker does with the best of the shared queue.
    fn run_published(&self) -> Option<bool> {
        // SAFETY: J1.
        self.shared_queue.pop(NO_KEY).map(|entry| unsafe { entry.as_ref() }.run_entry())
    }
}

#[test]
fn a_handle_elsewhere_goes_while_its_request_is_published() {
    exhaust(&["running", "terminal"], |answers| {
        let made = Made::spawned();
        let handle = with(&made, |made| made.job.drop_handle());
        made.publish();
        assert_eq!(made.run_published(), Some(true));
        answers.note(match handle.join().unwrap() {
            HandleDrop::Running => "running",
            _ => "terminal",
        });
        made.job.check();
    });
}

/// Its maker takes it by value, and a thief has it from the shared queue: the take must not believe it still private.
#[test]
fn a_published_request_is_taken_and_stolen() {
    exhaust(&["nothing there", "stolen", "a stale entry"], |answers| {
        let made = Made::spawned();
        let thief = with(&made, Made::run_published);
        made.publish();
        let listed = Cell::new(false);
        assert_eq!(made.job.take(&made.job.waiter(&BLOCKING), &listed, || {}), Took::Value);
        let stolen = thief.join().unwrap();
        answers.note(match stolen {
            None => "nothing there",
            Some(true) => "stolen",
            Some(false) => "a stale entry",
        });
        if stolen.is_none() {
            assert_eq!(made.run_published(), Some(false));
        }
        made.job.check();
    });
}

// ---- the shared queues ---------------------------------------------------------------------------------------------------

/// What stands in a shared queue: the shipped link and a body that must be seen by whoever takes it.
struct Item {
    link: AtomicPtr<Item>,
    key: u64,
    body: UnsafeCell<u64>,
}

impl Item {
    /// An item without a body.
    fn new(key: u64) -> Item {
        Item { link: AtomicPtr::new(ptr::null_mut()), key, body: UnsafeCell::new(0) }
    }

    /// Gives it one, and the pointer to push.
    fn filled(&self) -> NonNull<Item> {
        // SAFETY: nobody else knows of it; loom says if not.
        self.body.with_mut(|body| unsafe { *body = self.key });
        NonNull::from(self)
    }

    /// Takes the body: whoever takes an item has it alone.
    fn empty(item: NonNull<Item>) -> u64 {
        // SAFETY: items outlive the execution's threads.
        let item = unsafe { item.as_ref() };
        // SAFETY: taken from the shared queue, hence ours; loom says if not.
        let body = item.body.with_mut(|body| unsafe { ptr::replace(body, 0) });
        assert_eq!(body, item.key, "taken twice, or before it was there");
        body
    }
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

struct Shop {
    items: [Item; 2],
    shared_queue: SharedQueue<Item>,
    roots: Injector<Item>,
}

// SAFETY: items are handed over through the shared queues; that is what the models are about.
unsafe impl Send for Shop {}
// SAFETY: as above.
unsafe impl Sync for Shop {}

impl Shop {
    fn new() -> Arc<Shop> {
        Arc::new(Shop {
            items: [Item::new(3), Item::new(5)],
            shared_queue: SharedQueue::new(),
            roots: Injector::new(),
        })
    }

    fn put(&self, item: usize) {
        self.shared_queue.push(self.items[item].key, self.items[item].filled());
    }

    fn put_root(&self, item: usize) -> Pushed {
        self.roots.push(self.items[item].filled())
    }
}

/// The owner pushes two while a thief takes one and takes the rest away: both are found, once, the oldest first.
#[test]
fn a_shared_queue_loses_nothing() {
    exhaust(&["thief none", "thief one", "thief two"], |answers| {
        let shop = Shop::new();
        let thief = with(&shop, |shop| {
            let mut taken = Vec::new();
            taken.extend(shop.shared_queue.pop(NO_KEY).map(Item::empty));
            shop.shared_queue.pop_half(NO_KEY, |_, item| taken.push(Item::empty(item)));
            taken
        });
        shop.put(1);
        shop.put(0);
        let mut taken = thief.join().unwrap();
        answers.note(["thief none", "thief one", "thief two"][taken.len()]);
        let rest: Vec<u64> = std::iter::from_fn(|| shop.shared_queue.pop(NO_KEY).map(Item::empty)).collect();
        assert!(rest.is_sorted(), "{rest:?}");
        assert_eq!(shop.shared_queue.key(), NO_KEY);
        taken.extend(rest);
        taken.sort_unstable();
        assert_eq!(taken, [3, 5]);
    });
}

/// Two shared queues that share a word. The first item stands on the first of them.
struct Pair {
    items: [Item; 2],
    group: shim::Arc<KeyGroup>,
    shared_queues: [SharedQueue<Item>; 2],
}

// SAFETY: as for `Shop`.
unsafe impl Send for Pair {}
// SAFETY: as for `Shop`.
unsafe impl Sync for Pair {}

impl Pair {
    fn new() -> Arc<Pair> {
        let group = shim::Arc::new(KeyGroup::new());
        let shared_queues = [(), ()].map(|()| SharedQueue::in_group(shim::Arc::clone(&group)));
        let pair = Arc::new(Pair { items: [Item::new(3), Item::new(5)], group, shared_queues });
        pair.put(0, 0);
        pair
    }

    fn put(&self, item: usize, shared_queue: usize) {
        self.shared_queues[shared_queue].push(self.items[item].key, self.items[item].filled());
    }

    fn take(&self, shared_queue: usize) -> u64 {
        self.shared_queues[shared_queue].pop(NO_KEY).map(Item::empty).unwrap()
    }

    fn least(&self) -> u64 {
        self.shared_queues[0].key().min(self.shared_queues[1].key())
    }

    /// What `Shared::look_by_groups` does with a group. Answers when the item that comes was seen.
    fn look(&self) -> &'static str {
        let readings = RefCell::new(Vec::new());
        self.group.mend(self.group.key(), || {
            readings.borrow_mut().push(self.least());
            *readings.borrow().last().unwrap()
        });
        match readings.into_inner()[..] {
            [5] | [5, 5] => "at once",
            [NO_KEY, 5] => "after mending",
            [NO_KEY, NO_KEY] => "not yet",
            [NO_KEY] => "mended by others",
            ref other => panic!("{other:?}"),
        }
    }
}

/// The old item is gone, and a picker mends the word while the other shared queue publishes: whatever was read on either side,
/// the word does not hide that one in the end.
#[test]
fn a_groups_word_that_is_mended_hides_nothing() {
    exhaust(&["at once", "after mending", "not yet"], |answers| {
        let pair = Pair::new();
        assert_eq!(pair.take(0), 3);
        let publisher = with(&pair, |pair| pair.put(1, 1));
        answers.note(pair.look());
        publisher.join().unwrap();
        assert!(pair.group.key() <= 5, "hidden");
    });
}

/// The same with two pickers.
#[test]
fn a_groups_word_that_two_mend_hides_nothing() {
    explore(&["at once", "after mending", "not yet", "mended by others"], |answers| {
        let pair = Pair::new();
        assert_eq!(pair.take(0), 3);
        let publisher = with(&pair, |pair| pair.put(1, 1));
        let picker = with(&pair, Pair::look);
        answers.note(pair.look());
        publisher.join().unwrap();
        answers.note(picker.join().unwrap());
        assert!(pair.group.key() <= 5, "hidden");
        // A look in vain leaves it right.
        pair.look();
        assert_eq!(pair.group.key(), 5);
    });
}

/// Two roots come from different threads while a worker takes: both are found, once, and in order once both are there.
#[test]
fn two_roots_at_once_are_both_found() {
    explore(&["worker none", "worker one", "worker two", "first", "behind"], |answers| {
        let shop = Shop::new();
        let pushers = [0, 1].map(|item| with(&shop, move |shop| shop.put_root(item)));
        let mut taken = Vec::new();
        for _ in 0..2 {
            thread::yield_now();
            taken.extend(shop.roots.pop(NO_KEY).map(Item::empty));
        }
        answers.note(["worker none", "worker one", "worker two"][taken.len()]);
        for pusher in pushers {
            answers.note(match pusher.join().unwrap() {
                Pushed::First => "first",
                Pushed::Behind => "behind",
                Pushed::Closed => "closed",
            });
        }
        let rest: Vec<u64> = std::iter::from_fn(|| shop.roots.pop(NO_KEY).map(Item::empty)).collect();
        assert!(rest.is_sorted(), "{rest:?}");
        taken.extend(rest);
        taken.sort_unstable();
        assert_eq!(taken, [3, 5]);
        assert!(shop.roots.close_if_empty());
    });
}

/// Two roots stand in the inbox; one worker takes one of them while another looks. The other root is there all the while,
/// and whoever looks must see it: the look may be its last before it sleeps.
#[test]
fn a_root_is_not_hidden_while_another_is_taken() {
    exhaust(&["looked before", "looked after"], |answers| {
        let shop = Shop::new();
        shop.put_root(0);
        shop.put_root(1);
        let taker = with(&shop, |shop| shop.roots.pop(NO_KEY).map(Item::empty));
        let key = shop.roots.key();
        assert_ne!(key, NO_KEY, "a worker that sees this goes to sleep");
        answers.note(if key == 3 { "looked before" } else { "looked after" });
        assert_eq!(taker.join().unwrap(), Some(3));
        assert_eq!(shop.roots.pop(NO_KEY).map(Item::empty), Some(5));
    });
}

/// A thread has claimed the first of two roots by a wait, and takes out what is stale, while a worker looks and takes: the other root is seen all the
/// while, and each entry is taken once.
#[test]
fn a_root_is_not_hidden_while_a_stale_entry_is_taken_out() {
    explore(&["by the waiter", "by the worker"], |answers| {
        let shop = Shop::new();
        shop.put_root(0);
        shop.put_root(1);
        let waiter = with(&shop, |shop| {
            let mut taken = Vec::new();
            shop.roots.note_stale(|item| item.key == 3, |item| taken.push(Item::empty(item)));
            taken
        });
        assert_ne!(shop.roots.key(), NO_KEY, "a worker that sees this goes to sleep");
        let by_worker = shop.roots.pop(NO_KEY).map(Item::empty);
        let mut taken = waiter.join().unwrap();
        answers.note(if by_worker == Some(3) { "by the worker" } else { "by the waiter" });
        taken.extend(by_worker);
        taken.extend(std::iter::from_fn(|| shop.roots.pop(NO_KEY).map(Item::empty)));
        taken.sort_unstable();
        assert_eq!(taken, [3, 5]);
        assert!(shop.roots.close_if_empty());
    });
}

/// The last worker closes the inbox while a root comes: either it sees the root, or the pusher keeps it.
#[test]
fn a_root_that_comes_at_the_close_is_seen_or_kept() {
    exhaust(&["closed", "in time"], |answers| {
        let shop = Shop::new();
        let pusher = with(&shop, |shop| shop.put_root(0));
        let closed = shop.roots.close_if_empty();
        let taken = shop.roots.pop(NO_KEY).map(Item::empty);
        let pushed = pusher.join().unwrap();
        if closed {
            assert_eq!((pushed, taken), (Pushed::Closed, None), "pushed where nobody will look");
            answers.note("closed");
            return;
        }
        // The thread to which the close was refused sees why.
        assert_eq!((pushed, taken), (Pushed::First, Some(3)));
        answers.note("in time");
        assert!(shop.roots.close_if_empty());
        assert_eq!(shop.put_root(1), Pushed::Closed);
    });
}

// ---- roots and sleepers --------------------------------------------------------------------------------------------

struct Roof {
    shop: Arc<Shop>,
    signals: Signals,
}

impl Supply for Roof {
    type Task = u64;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, _: usize) -> Option<u64> {
        self.shop.roots.pop(NO_KEY).map(Item::empty)
    }

    fn steal(&self, _: usize) -> Option<u64> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        NO_KEY
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        None
    }
}

/// Only the push into an empty inbox notifies; the one behind it relies on that. The sleeper finds both.
#[test]
fn a_root_behind_another_reaches_the_sleeper() {
    explore(&["first", "behind"], |answers| {
        let roof = shim::Arc::new(Roof { shop: Shop::new(), signals: Signals::new(1) });
        let sleeper = {
            let roof = shim::Arc::clone(&roof);
            thread::spawn(move || {
                let worker = Worker::attach(roof, 0);
                assert_eq!(worker.idle().unwrap() + worker.idle().unwrap(), 8);
            })
        };
        let push = |roof: &Roof, item| {
            let pushed = roof.shop.put_root(item);
            if pushed == Pushed::First {
                roof.signals.notify_any();
            }
            if pushed == Pushed::First { "first" } else { "behind" }
        };
        let other = {
            let roof = shim::Arc::clone(&roof);
            thread::spawn(move || push(&roof, 1))
        };
        answers.note(push(&roof, 0));
        answers.note(other.join().unwrap());
        sleeper.join().unwrap();
    });
}

/// One worker can take up only what is for it by name, and waits for that; the other sleeps. The wake-up for anyone must
/// reach the other, and the one by name the first.
#[test]
fn a_wake_for_anyone_does_not_go_to_who_waits_for_its_name() {
    explore(&["woke one", "woke nobody"], |answers| {
        let roof = shim::Arc::new(Roof { shop: Shop::new(), signals: Signals::new(2) });
        let workers = [0, 1].map(|index| {
            let roof = shim::Arc::clone(&roof);
            thread::spawn(move || {
                let worker = Worker::attach(roof, index);
                let mail = || worker.supply().shop.shared_queue.pop(NO_KEY).map(Item::empty);
                let taken =
                    if index == 0 { worker.wait_for_wake(|| None, mail) } else { worker.idle().unwrap() };
                assert_eq!(taken, [3, 5][index]);
            })
        });
        assert_eq!(roof.shop.put_root(1), Pushed::First);
        answers.note(if roof.signals.notify_any() { "woke one" } else { "woke nobody" });
        roof.shop.put(0);
        roof.signals.wake(0);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
