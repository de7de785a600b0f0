//! The mailbox of `forebear-pool`, as it ships, with an owner that sleeps on the shipped `Signals`.
#![cfg(loom)]
// The items are raw pointers, as they are in the runtime.

use std::ptr::NonNull;

use forebear_context::shim::atomic::{AtomicPtr, Ordering};
use forebear_context::shim::thread;
use forebear_context::shim::{Arc, UnsafeCell};
use forebear_pool::{Linked, Mailbox, Signals, Supply, Worker};

/// A letter. Its text is a cell, so that the model sees a read that is not ordered after the write.
struct Letter {
    link: AtomicPtr<Letter>,
    text: UnsafeCell<u32>,
}

// SAFETY: always the same field, which is private and used by nobody else; found without touching the rest.
unsafe impl Linked for Letter {
    unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
        // SAFETY: live, by the caller's promise.
        unsafe { &(*this.as_ptr()).link }
    }
}

/// A worker whose tasks are batches of mail.
struct Post {
    signals: Signals,
    mailbox: Mailbox<Letter>,
}

impl Supply for Post {
    type Task = Vec<u32>;

    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn take(&self, _: usize) -> Option<Vec<u32>> {
        let texts: Vec<u32> = self.mailbox.take_all().map(open).collect();
        (!texts.is_empty()).then_some(texts)
    }

    fn steal(&self, _: usize) -> Option<Vec<u32>> {
        None
    }

    fn best(&self, _: usize) -> u64 {
        u64::MAX
    }
}

impl Post {
    fn new() -> Arc<Post> {
        Arc::new(Post { signals: Signals::new(1), mailbox: Mailbox::new() })
    }

    /// Sends a letter, and wakes the owner if the mailbox says so.
    fn send(&self, text: u32) {
        // SAFETY: fresh from a box, in no mailbox, alive until `open` has it from the mailbox.
        if unsafe { self.mailbox.push(written(text)) } {
            self.signals.wake(0);
        }
    }

    /// Sends two by one push.
    fn send_chain(&self, earlier: u32, later: u32) {
        let (earlier, later) = (written(earlier), written(later));
        // SAFETY: as in `send`; linked as they are to arrive.
        let was_empty = unsafe {
            Letter::link(later).store(earlier.as_ptr(), Ordering::Relaxed);
            self.mailbox.push_chain(later, earlier)
        };
        if was_empty {
            self.signals.wake(0);
        }
    }
}

/// A letter that nobody else knows of.
fn written(text: u32) -> NonNull<Letter> {
    let letter = Box::new(Letter { link: AtomicPtr::new(std::ptr::null_mut()), text: UnsafeCell::new(0) });
    // Written apart from the allocation, so that the model tracks it.
    // SAFETY: the letter is ours alone until it is pushed.
    letter.text.with_mut(|cell| unsafe { *cell = text });
    NonNull::from(Box::leak(letter))
}

fn open(letter: NonNull<Letter>) -> u32 {
    // SAFETY: it came out of the mailbox, so it is a box's and nobody else's.
    let letter = unsafe { Box::from_raw(letter.as_ptr()) };
    // SAFETY: ours alone.
    letter.text.with(|cell| unsafe { *cell })
}

#[test]
fn two_pushers_wake_the_sleeping_owner() {
    loom::model(|| {
        let post = Post::new();
        let owner = {
            let post = Arc::clone(&post);
            thread::spawn(move || {
                let worker = Worker::attach(post, 0);
                let mut texts = Vec::new();
                while texts.len() < 2 {
                    texts.extend(worker.idle().unwrap());
                }
                texts.sort_unstable();
                assert_eq!(texts, [1, 2]);
            })
        };
        let other = {
            let post = Arc::clone(&post);
            thread::spawn(move || post.send(1))
        };
        post.send(2);
        other.join().unwrap();
        owner.join().unwrap();
        assert!(post.mailbox.is_empty());
    });
}

#[test]
fn letters_of_one_sender_arrive_in_order() {
    loom::model(|| {
        let post = Post::new();
        let owner = {
            let post = Arc::clone(&post);
            thread::spawn(move || {
                let worker = Worker::attach(post, 0);
                let mut texts = Vec::new();
                while texts.len() < 3 {
                    texts.extend(worker.idle().unwrap());
                }
                assert_eq!(texts, [1, 2, 3]);
            })
        };
        for text in 1..=3 {
            post.send(text);
        }
        owner.join().unwrap();
    });
}

/// Several by one exchange: they arrive together, in order, and the owner is woken.
#[test]
fn a_chain_arrives_whole_beside_another_letter() {
    loom::model(|| {
        let post = Post::new();
        let owner = {
            let post = Arc::clone(&post);
            thread::spawn(move || {
                let worker = Worker::attach(post, 0);
                let mut texts = Vec::new();
                while texts.len() < 3 {
                    texts.extend(worker.idle().unwrap());
                }
                assert!(texts == [1, 2, 3] || texts == [3, 1, 2], "{texts:?}");
            })
        };
        let other = {
            let post = Arc::clone(&post);
            thread::spawn(move || post.send(3))
        };
        post.send_chain(1, 2);
        other.join().unwrap();
        owner.join().unwrap();
    });
}

/// A letter that was opened and sent again at once, by the owner, while another pusher holds the old head.
#[test]
fn an_item_may_come_back_at_once() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<Letter>::new());
        let letter = |text| {
            let letter = Letter { link: AtomicPtr::new(std::ptr::null_mut()), text: UnsafeCell::new(text) };
            NonNull::from(Box::leak(Box::new(letter)))
        };
        // SAFETY: a letter fresh from a box or just taken out, alive until `open`.
        let _ = unsafe { mailbox.push(letter(1)) };
        let other = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || {
                // SAFETY: as above, just taken out. fresh.
                let _ = unsafe { mailbox.push(letter(2)) };
            })
        };
        for item in mailbox.take_all() {
            // SAFETY: as above, just taken out.
            let _ = unsafe { mailbox.push(item) };
        }
        other.join().unwrap();
        let mut texts: Vec<u32> = mailbox.take_all().map(open).collect();
        texts.sort_unstable();
        assert_eq!(texts, [1, 2]);
    });
}
