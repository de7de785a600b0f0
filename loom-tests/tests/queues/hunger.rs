//! Hunger: a thief that orders work and goes to sleep, and an owner that sees the order at a fork.
//!
//! Shipped: `Attention`, `SharedQueue`, `Signals`, `Worker::idle`. Transcribed, because a model has no coroutines: the few lines of
//! `runtime/src/schedule/worker/` that use them, in [`Owner::feed`] and in the methods of [`Supply`]. No thief has a tick here: what
//! needs one shows as a deadlock, or as an owner that waits for ever for an order.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_context::shim::{Arc, Condvar, Mutex as ShimMutex};
use forebear_pool::{Signals, Supply, Worker};
use forebear_runtime::model::attention::{Attention, HUNGRY, OLDER};
use forebear_runtime::model::shared_queue::SharedQueue;

use self::cell::{exhaust, explore};

/// What others see of the owner, and the thieves' signals.
struct Post {
    signals: Signals,
    attention: Attention,
    shared_queue: SharedQueue<u8>,
    taken: ShimMutex<u32>,
    taken_moved: Condvar,
}

impl Post {
    fn new(thieves: usize) -> Arc<Post> {
        Arc::new(Post {
            signals: Signals::new(thieves),
            attention: Attention::new(),
            shared_queue: SharedQueue::new(),
            taken: ShimMutex::new(0),
            taken_moved: Condvar::new(),
        })
    }

    /// One more was taken; holds the thief up until `all` are.
    fn meet(&self, all: u32) {
        let mut taken = self.taken.lock().unwrap();
        *taken += 1;
        self.taken_moved.notify_all();
        while *taken < all {
            taken = self.taken_moved.wait(taken).unwrap();
        }
    }
}

impl Supply for Post {
    type Task = NonNull<u8>;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, _: usize) -> Option<NonNull<u8>> {
        None
    }

    /// `Worker::steal` and `rob`.
    fn steal(&self, _: usize) -> Option<NonNull<u8>> {
        let mut first = None;
        let (taken, left) = self.shared_queue.pop_half(NO_KEY, |_, item| first = Some(item));
        // Nothing there: an order. Nothing left: the next one, ahead of need.
        if taken == 0 || !left {
            self.attention.raise(HUNGRY);
        }
        first
    }

    fn best(&self, _: usize) -> u64 {
        NO_KEY
    }

    fn more(&self, _: usize) -> bool {
        self.shared_queue.key() != NO_KEY
    }

    fn before_sleep(&self, _: usize) -> Option<Duration> {
        self.attention.raise(HUNGRY);
        None
    }
}

/// The worker that has the work.
struct Owner {
    post: Arc<Post>,
    private: Cell<u32>,
}

impl Owner {
    fn new(post: &Arc<Post>) -> Owner {
        Owner { post: Arc::clone(post), private: Cell::new(0) }
    }

    /// Goes on with its own until the order is seen.
    fn until_ordered(&self) {
        while self.post.attention.get() & HUNGRY == 0 {
            thread::yield_now();
        }
    }

    /// `spawn`: into the private queue, and a look at the attention word.
    fn fork(&self) -> Fed {
        self.private.set(self.private.get() + 1);
        if self.post.attention.get() & HUNGRY == 0 {
            return Fed::Nothing;
        }
        self.feed()
    }

    /// `Worker::feed`, with a batch of one.
    fn feed(&self) -> Fed {
        let published = self.private.replace(0);
        if published == 0 {
            return Fed::Nothing;
        }
        self.post.attention.feed(|| {
            for _ in 0..published {
                self.post.shared_queue.push(1, NonNull::dangling());
            }
        });
        if self.post.signals.notify_any() { Fed::AndWoke } else { Fed::AndWokeNobody }
    }
}

/// What a fork did for the hungry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fed {
    Nothing,
    AndWoke,
    AndWokeNobody,
}

impl Fed {
    fn told(self) -> &'static str {
        match self {
            Fed::Nothing => "nothing",
            Fed::AndWoke => "woke one",
            Fed::AndWokeNobody => "woke nobody",
        }
    }
}

/// A thread that is thief number `index` and runs `body`.
fn thief(post: &Arc<Post>, index: usize, body: impl FnOnce(&Worker<Post>) + 'static) -> JoinHandle<()> {
    let post = Arc::clone(post);
    thread::spawn(move || body(&Worker::attach(post, index)))
}

/// The owner sees the order at a fork and feeds: the thief has it, asleep or not.
#[test]
fn an_order_that_is_seen_is_served() {
    exhaust(&["woke one", "woke nobody"], |answers| {
        let post = Post::new(1);
        let thief = thief(&post, 0, |worker| assert!(worker.idle().is_some()));
        let owner = Owner::new(&post);
        owner.until_ordered();
        answers.note(owner.fork().told());
        thief.join().unwrap();
    });
}

/// With nothing to publish the bit stays up, and the next fork needs no second order.
#[test]
fn an_order_outlasts_an_empty_list() {
    exhaust(&["woke one", "woke nobody"], |answers| {
        let post = Post::new(1);
        let thief = thief(&post, 0, |worker| assert!(worker.idle().is_some()));
        let owner = Owner::new(&post);
        owner.until_ordered();
        assert_eq!(owner.feed(), Fed::Nothing);
        assert_ne!(post.attention.get() & HUNGRY, 0);
        answers.note(owner.fork().told());
        thief.join().unwrap();
    });
}

/// A thief that comes back orders again, even while its first order is being taken down.
#[test]
fn a_second_order_is_seen() {
    explore(&["woke one", "woke nobody"], |answers| {
        let post = Post::new(1);
        let thief = thief(&post, 0, |worker| {
            assert!(worker.idle().is_some());
            assert!(worker.idle().is_some());
        });
        let owner = Owner::new(&post);
        for _ in 0..2 {
            owner.until_ordered();
            answers.note(owner.fork().told());
        }
        thief.join().unwrap();
    });
}

/// Two thieves want one piece each. The first sleeps. The second, still searching, has the first piece while the bit is
/// up, so its own order for the next changes nothing; is relied on, so nobody is woken; and finds no more, so it wakes
/// nobody either. The bit must outlast that, or the first sleeps while the owner keeps all it makes.
#[test]
fn an_order_is_not_lost_to_another_thief() {
    explore(&["woke one", "woke nobody"], move |answers| {
        let post = Post::new(2);
        let thieves = [0, 1].map(|index| {
            thief(&post, index, |worker| {
                assert!(worker.idle().is_some());
                worker.supply().meet(2);
            })
        });
        let owner = Owner::new(&post);
        for _ in 0..2 {
            owner.until_ordered();
            answers.note(owner.fork().told());
        }
        for thief in thieves {
            thief.join().unwrap();
        }
    });
}

/// Whoever raises one bit while the other is taken down loses nothing.
#[test]
fn bits_of_the_attention_word_do_not_wipe_each_other() {
    exhaust(&["both up", "one up"], |answers| {
        let post = Post::new(0);
        post.attention.raise(HUNGRY);
        let other = {
            let post = Arc::clone(&post);
            thread::spawn(move || post.attention.raise(OLDER))
        };
        thread::yield_now();
        answers.note(if post.attention.get() & OLDER != 0 { "both up" } else { "one up" });
        assert!(post.attention.clear(HUNGRY));
        assert!(other.join().unwrap());
        assert_eq!(post.attention.get(), OLDER);
    });
}
