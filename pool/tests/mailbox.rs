//! The mailbox, single-threaded and under load; its races are models in `loom-tests`.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;
use std::thread;

use forebear_pool::{Linked, Mailbox};

struct Letter {
    link: AtomicPtr<Letter>,
    from: usize,
    number: usize,
}

// SAFETY: always the same field, used by nobody else.
unsafe impl Linked for Letter {
    unsafe fn link<'a>(this: NonNull<Letter>) -> &'a AtomicPtr<Letter> {
        // SAFETY: live, by the caller's promise.
        unsafe { &(*this.as_ptr()).link }
    }
}

fn send(mailbox: &Mailbox<Letter>, from: usize, number: usize) -> bool {
    let letter = Box::new(Letter { link: AtomicPtr::new(null_mut()), from, number });
    // SAFETY: fresh from a box, alive until `read` has it.
    unsafe { mailbox.push(NonNull::from(Box::leak(letter))) }
}

fn read(letter: NonNull<Letter>) -> (usize, usize) {
    // SAFETY: came out of the mailbox, into which `send` put it from a box.
    let letter = unsafe { Box::from_raw(letter.as_ptr()) };
    (letter.from, letter.number)
}

#[test]
fn only_the_first_into_an_empty_mailbox_is_told_so() {
    let mailbox = Mailbox::new();
    assert!(mailbox.is_empty());
    assert!(send(&mailbox, 0, 0));
    assert!(!send(&mailbox, 0, 1));
    assert!(!mailbox.is_empty());
    assert_eq!(mailbox.take_all().map(read).count(), 2);
    assert!(mailbox.is_empty());
    assert!(send(&mailbox, 0, 2));
    mailbox.take_all().for_each(|letter| {
        read(letter);
    });
}

#[test]
fn items_come_out_in_order_of_arrival() {
    let mailbox = Mailbox::new();
    for number in 0..5 {
        send(&mailbox, 0, number);
    }
    let numbers: Vec<usize> = mailbox.take_all().map(|letter| read(letter).1).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert!(mailbox.take_all().is_empty());
}

/// Four senders and one reader: nothing is lost or doubled, and each sender's letters stay in order.
#[test]
fn nothing_is_lost_under_load() {
    const EACH: usize = 20_000;
    let mailbox = Mailbox::new();
    let mut next = [0; 4];
    thread::scope(|scope| {
        for from in 0..4 {
            let mailbox = &mailbox;
            scope.spawn(move || {
                for number in 0..EACH {
                    send(mailbox, from, number);
                }
            });
        }
        while next != [EACH; 4] {
            for (from, number) in mailbox.take_all().map(read) {
                assert_eq!(number, next[from]);
                next[from] += 1;
            }
        }
    });
    assert!(mailbox.is_empty());
}
