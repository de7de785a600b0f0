//! How a cancel comes to the thread that has a family: mailboxes and messages as they ship, with the shipped words.
//!
//! Transcribed, because a model has no arenas: the few lines of `wait.rs`, `cancel.rs` and `message.rs` that use them. A family
//! is a list that its owner alone touches; loom says if not.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a bit that is left as it is if it is up | the worker takes it down, and does not see the message yet | `message_raised_by_look` |
//! | a worker that takes its bit down after it has looked | a message lies there and no bit says so | `message_cleared_late` |
//! | the flag taken down after the lock is let go | the same | `mailbox_emptied_after_unlock` |
//! | a nudge before the message is there | the thread looks, finds nothing, and blocks for good | `nudged_before_it_is_sent` |
//! | a message left though nobody runs there | nobody reads it, and nobody is told | `left_for_nobody` |
//! | a thread, or a worker, that goes without a last look | the same | `rests_without_a_look`, `goes_without_a_look` |
//! | a link let go of without an order | the header ends under the other's eyes | `link_down_relaxed` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use forebear_context::context::{Cause, ForeignContext, Reason, Ticket};
use forebear_context::shim::UnsafeCell;
use forebear_context::shim::thread;
use forebear_runtime::model::attention::{Attention, MESSAGE};
use forebear_runtime::model::owner_mailbox::OwnerMailbox;
use forebear_runtime::model::word::{
    CLAIMED, Cancel, Demand, FAILED, HANDLE, LINK, MARKED, NEW, SUBMITTED, Word,
};

use self::cell::{exhaust, explore, with};

// ---- the mailbox ------------------------------------------------------------------------------------------------------

/// A worker's mailbox and its attention word.
struct Post {
    owner_mailbox: OwnerMailbox<u8>,
    attention: Attention,
}

impl Post {
    fn new() -> Arc<Post> {
        Arc::new(Post { owner_mailbox: OwnerMailbox::default(), attention: Attention::new() })
    }

    fn leave(&self, message: u8) {
        assert!(self.owner_mailbox.send(message, false).is_ok());
        self.attention.insist(MESSAGE);
    }

    /// What a worker does at a scheduling point.
    fn attend(&self) -> Vec<u8> {
        if self.attention.get() & MESSAGE == 0 || self.owner_mailbox.is_cleared(&self.attention) {
            return Vec::new();
        }
        self.owner_mailbox.take()
    }
}

/// A worker looks while messages are left: what it has not read by then its bit tells of, so the next look does.
#[test]
fn a_message_left_while_a_worker_looks_is_read_then_or_at_the_next_look() {
    explore(&["at once", "in two", "later"], |answers| {
        let post = Post::new();
        let makers = [1, 2].map(|message| with(&post, move |post| post.leave(message)));
        thread::yield_now();
        let first = post.attend();
        for maker in makers {
            maker.join().unwrap();
        }
        let rest = post.attend();
        answers.note(["later", "in two", "at once"][first.len()]);
        let mut all = [first, rest].concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2], "a message that nobody reads");
    });
}

/// The bit is still up for the sake of a message that was read with another, and goes down while the next one is left.
#[test]
fn a_message_left_as_the_bit_goes_down_is_read_then_or_at_the_next_look() {
    exhaust(&["at once", "later"], |answers| {
        let post = Post::new();
        post.attention.raise(MESSAGE);
        let maker = with(&post, |post| post.leave(1));
        let first = post.attend();
        maker.join().unwrap();
        answers.note(if first.is_empty() { "later" } else { "at once" });
        assert_eq!([first, post.attend()].concat(), [1], "a message that nobody reads");
    });
}

/// A foreign thread's mailbox, and the context in which it blocks.
struct Elsewhere {
    owner_mailbox: OwnerMailbox<u8>,
    context: ForeignContext,
}

// SAFETY: a context's slot is atomic; the rest of it is the owner's.
unsafe impl Send for Elsewhere {}
// SAFETY: as above.
unsafe impl Sync for Elsewhere {}

impl Elsewhere {
    fn new() -> Arc<Elsewhere> {
        Arc::new(Elsewhere { owner_mailbox: OwnerMailbox::default(), context: ForeignContext::new() })
    }

    fn context(&self) -> NonNull<forebear_context::context::Context> {
        NonNull::from(self.context.context())
    }
}

/// The request that runs in a foreign thread ends while a message is sent for it: read there, or given back.
#[test]
fn a_message_left_as_its_reader_goes_is_read_or_given_back() {
    exhaust(&["read", "given back"], |answers| {
        let there = Elsewhere::new();
        // SAFETY: O2: taken back below.
        let before = unsafe { there.owner_mailbox.begin_run(Some(there.context())) };
        let maker = with(&there, |there| there.owner_mailbox.send(1, true));
        let mut read = Vec::new();
        loop {
            if !there.owner_mailbox.is_empty() {
                read.extend(there.owner_mailbox.take());
            }
            // SAFETY: O2: as it was.
            if unsafe { there.owner_mailbox.end_run(before) } {
                break;
            }
        }
        answers.note(match maker.join().unwrap() {
            Ok(()) => {
                assert_eq!(read, [1], "a message that nobody reads");
                "read"
            }
            Err(_) => {
                assert!(read.is_empty(), "read, and given back");
                "given back"
            }
        });
    });
}

/// A worker goes for good while a message is sent for it: read there, or given back.
#[test]
fn a_message_left_as_its_worker_goes_is_read_or_given_back() {
    exhaust(&["read", "given back"], |answers| {
        let post = Post::new();
        let maker = with(&post, |post| post.owner_mailbox.send(1, false));
        let mut read = Vec::new();
        while !post.owner_mailbox.abandon() {
            read.extend(post.owner_mailbox.take());
        }
        let given_back = maker.join().unwrap().is_err();
        assert_ne!(read == [1], given_back, "a message that nobody reads, or two do");
        answers.note(if given_back { "given back" } else { "read" });
    });
}

/// A foreign thread blocks while a message is sent for it that ends its wait: it looks, and goes on.
#[test]
fn a_message_reaches_a_thread_that_blocks() {
    exhaust(&["before it blocked", "while it blocked"], |answers| {
        let there = Elsewhere::new();
        // SAFETY: O2: taken back below.
        unsafe { there.owner_mailbox.begin_run(Some(there.context())) };
        let maker = with(&there, |there| there.owner_mailbox.send(1, true).is_ok());
        let context = there.context.context();
        // SAFETY: C2: this is its thread; C4: for nothing that is followed.
        let ticket = unsafe { context.begin(Reason::Request, ptr::null_mut()) };
        let mut looks = 0;
        while context.is_waiting() {
            if !there.owner_mailbox.is_empty() && there.owner_mailbox.take() == [1] {
                context.settle(ticket, Cause::Cancelled);
            }
            looks += 1;
            // SAFETY: this is its thread.
            let _ = unsafe { ForeignContext::block(context, None) };
        }
        assert!(maker.join().unwrap());
        // SAFETY: O2.
        unsafe { there.owner_mailbox.begin_run(None) };
        answers.note(if looks == 1 { "before it blocked" } else { "while it blocked" });
    });
}

// ---- what is left to a worker to end -----------------------------------------------------------------------------------

/// A request that has failed, with a deadline: the timer's link and an untyped handle are all that is left of it.
struct Failed {
    word: Word,
    owner_mailbox: OwnerMailbox<()>,
    attention: Attention,
    /// The failure, in the header: whether it is there.
    failure: UnsafeCell<bool>,
    /// How often the header ended, and where; nothing that loom sees.
    ended: Mutex<Vec<&'static str>>,
}

// SAFETY: the failure is whose the header is; loom says if not.
unsafe impl Send for Failed {}
// SAFETY: as above.
unsafe impl Sync for Failed {}

impl Failed {
    fn touch(&self) {
        // SAFETY: the cell is there as long as the model.
        self.failure.with(|there| assert!(unsafe { *there }, "a header touched after its end"));
    }

    /// `arena::end`.
    fn end(&self, by: &'static str) {
        // SAFETY: as above.
        self.failure.with_mut(|there| unsafe { *there = false });
        self.ended.lock().unwrap().push(by);
    }

    /// `deadlines::let_go`: no user code runs on the timer's thread, so the header goes to a worker, without a link.
    fn let_go(&self) {
        self.touch();
        if !self.word.release_link() {
            return;
        }
        match self.owner_mailbox.send((), false) {
            Ok(()) => self.attention.insist(MESSAGE),
            Err(()) => self.end("the timer"),
        }
    }

    /// What the worker does at a scheduling point: `cell::end_put_aside`.
    fn attend(&self) {
        for () in self.owner_mailbox.take() {
            self.touch();
            assert!(self.word.load().is_terminal());
            self.end("the worker");
        }
    }
}

/// The timer lets go of a failed request while the last handle goes, and while the worker goes for good: its header, which no link
/// keeps, is ended by one of the three, once.
#[test]
fn a_header_without_a_link_is_ended_by_a_worker_or_by_who_finds_none() {
    explore(&["the worker", "the timer", "the handle"], |answers| {
        let failed = Arc::new(Failed {
            word: Word::new(FAILED | (2 * LINK)),
            owner_mailbox: OwnerMailbox::default(),
            attention: Attention::new(),
            failure: UnsafeCell::new(true),
            ended: Mutex::default(),
        });
        let timer = with(&failed, Failed::let_go);
        let handle = with(&failed, |failed| {
            failed.touch();
            if failed.word.release_link() {
                failed.end("the handle");
            }
        });
        if failed.attention.get() & MESSAGE != 0 && !failed.owner_mailbox.is_cleared(&failed.attention) {
            failed.attend();
        }
        while !failed.owner_mailbox.abandon() {
            failed.attend();
        }
        timer.join().unwrap();
        handle.join().unwrap();
        let ended = failed.ended.lock().unwrap();
        assert_eq!(ended.len(), 1, "a header that nobody ends, or several do");
        answers.note(ended[0]);
    });
}

/// A request that was claimed to be ended, and that a foreign thread has put off in the middle of a destructor which waits for its end. The thread is
/// about to block.
struct PutOff {
    owner_mailboxes: [OwnerMailbox<()>; 2],
    /// What the request has captured: whether it is there.
    captures: UnsafeCell<bool>,
    context: ForeignContext,
    /// The wait of the thread; nothing that loom sees.
    ticket: Mutex<Option<Ticket>>,
    ended: Mutex<Vec<&'static str>>,
}

// SAFETY: the captures are whose the claim is; loom says if not. A context's slot is atomic; the rest of it is the owner's.
unsafe impl Send for PutOff {}
// SAFETY: as above.
unsafe impl Sync for PutOff {}

impl PutOff {
    /// `cell::end_put_aside`: captures dropped, and who waits for the end told.
    fn end(&self, by: &'static str) {
        // SAFETY: the cell is there as long as the model.
        self.captures.with_mut(|there| assert!(unsafe { std::mem::take(&mut *there) }, "ended by two"));
        self.ended.lock().unwrap().push(by);
        let ticket = self.ticket.lock().unwrap().expect("it was begun before");
        // SAFETY: C1: the model keeps the context.
        unsafe { ForeignContext::release(NonNull::from(self.context.context()), ticket, Cause::Woken) };
    }

    /// `Spread::put_aside`, beside the thread's own runtime: to the first worker that reads it. Where nobody does, a thread is started for it.
    fn give_away(&self) {
        if !self.owner_mailboxes.iter().any(|mailbox| mailbox.send((), false).is_ok()) {
            self.end("nobody");
        }
    }

    /// A worker that has nothing to do, until it goes for good.
    fn worker(&self, index: usize) {
        while !self.owner_mailboxes[index].abandon() {
            for () in self.owner_mailboxes[index].take() {
                self.end(["the first", "the second"][index]);
            }
        }
    }
}

/// A foreign thread gives away what it has put off, and blocks; both workers may go meanwhile. The request ends once, and the thread goes on.
#[test]
fn what_a_thread_has_put_off_is_ended_by_others_while_it_blocks() {
    exhaust(&["the first", "the second", "nobody"], |answers| {
        let put_off = Arc::new(PutOff {
            owner_mailboxes: Default::default(),
            captures: UnsafeCell::new(true),
            context: ForeignContext::new(),
            ticket: Mutex::default(),
            ended: Mutex::default(),
        });
        let context = put_off.context.context();
        // SAFETY: C2: this is its thread; C4: for nothing that is followed.
        *put_off.ticket.lock().unwrap() = Some(unsafe { context.begin(Reason::Request, ptr::null_mut()) });
        let workers = [0, 1].map(|index| with(&put_off, move |put_off| put_off.worker(index)));
        put_off.give_away();
        // SAFETY: this is its thread.
        while !unsafe { ForeignContext::block(context, None) } {}
        let ended = put_off.ended.lock().unwrap().clone();
        assert_eq!(ended.len(), 1, "a request that nobody ends, or several do");
        // SAFETY: the cell is there as long as the model.
        put_off.captures.with(|there| assert!(!unsafe { *there }));
        for worker in workers {
            worker.join().unwrap();
        }
        answers.note(ended[0]);
    });
}

// ---- families ------------------------------------------------------------------------------------------------------

/// A parent that runs on a worker, and a child of its that another thread submits.
struct Family {
    parent: Word,
    child: Word,
    owner_mailbox: OwnerMailbox<Note>,
    attention: Attention,
    /// The parent's list of children: whether the child stands in it.
    children: UnsafeCell<bool>,
}

// SAFETY: the list is the owner's; loom says if not.
unsafe impl Send for Family {}
// SAFETY: as above.
unsafe impl Sync for Family {}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Note {
    Cancelled,
    Child,
}

impl Family {
    fn new() -> Arc<Family> {
        Arc::new(Family {
            parent: Word::new(CLAIMED | SUBMITTED | HANDLE | LINK),
            child: Word::new(NEW | HANDLE | LINK),
            owner_mailbox: OwnerMailbox::default(),
            attention: Attention::new(),
            children: UnsafeCell::new(false),
        })
    }

    fn leave(&self, note: Note) {
        assert!(self.owner_mailbox.send(note, false).is_ok());
        self.attention.insist(MESSAGE);
    }

    /// The parent is cancelled from elsewhere.
    fn cancel(&self) {
        assert_eq!(self.parent.cancel(|| Demand::Nobody), Cancel::Marked);
        self.leave(Note::Cancelled);
    }

    /// The child is submitted elsewhere, and its family told. False: its parent was cancelled before, and so is it.
    fn submit(&self) -> bool {
        if self.parent.load().has(MARKED) {
            self.ask();
            return false;
        }
        assert!(self.child.submit(SUBMITTED));
        self.leave(Note::Child);
        true
    }

    fn ask(&self) {
        let _ = self.child.cancel(|| Demand::Nobody);
    }

    /// What the owner does at a scheduling point.
    fn attend(&self) {
        if self.attention.get() & MESSAGE == 0 || self.owner_mailbox.is_cleared(&self.attention) {
            return;
        }
        for note in self.owner_mailbox.take() {
            match note {
                Note::Child => {
                    // SAFETY: the owner's.
                    self.children.with_mut(|listed| unsafe { *listed = true });
                    if self.parent.load().has(MARKED) {
                        self.ask();
                    }
                }
                Note::Cancelled => {
                    // SAFETY: the owner's.
                    if self.children.with(|listed| unsafe { *listed }) {
                        self.ask();
                    }
                }
            }
        }
    }
}

/// A child is submitted in one thread while its parent is cancelled in another: whoever comes second finds the first.
#[test]
fn a_child_that_is_submitted_while_its_parent_is_cancelled_is_reached() {
    explore(&["born so", "reached at once", "reached later"], |answers| {
        let family = Family::new();
        let canceller = with(&family, Family::cancel);
        let submitter = with(&family, Family::submit);
        thread::yield_now();
        family.attend();
        let at_once = family.child.load().has(MARKED);
        canceller.join().unwrap();
        let submitted = submitter.join().unwrap();
        family.attend();
        assert!(family.child.load().has(MARKED), "a child that no cancel reaches");
        answers.note(match (submitted, at_once) {
            (false, _) => "born so",
            (true, true) => "reached at once",
            (true, false) => "reached later",
        });
    });
}
