//! Declared dependencies: the count of a dependent's open edges, as it ships, with the shipped words and lists.
//!
//! [`Dependent`] does in the same order what `runtime/src/api/after.rs` and `schedule/dependents.rs` do. The memory of each edge is a cell that loom watches: its submitter writes it,
//! a finisher or reader reads it until its decrement, and whoever has claimed the dependent writes it, as if it were moved or freed.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | the count begins without the bit *setting up* | the last edge is closed by the submitter, which takes no message: the dependent is never queued | `declared_is_not_set_up` |
//! | the decrement is no release and no acquire | the edges are moved under a finisher | `declared_down_relaxed` |
//! | a reader holds edges of which none is open | they are moved under it | `declared_held_at_none` |
//! | it is admitted while somebody has its lock | the count is moved under a reader | `admitted_past_the_lock` |
//! | a canceller does not wait for the submitter | it leaves lists that the submitter has yet to enter, and frees the edges | `declared_left_while_set_up` |
//! | who starts it early does not take its lock | a canceller takes the same node out | `declared_early_unlocked` |
//! | who starts it early does not note what is out of its list | the same, if a finisher still has another node in hand | `declared_early_stays_listed` |
//! | a canceller does not wait for finishers and readers | the edges are freed under them | `declared_freed_while_open` |
#![cfg(loom)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebear_context::context::{WaitNode, WaitQueue};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_loom_tests::{Answers, exhaust, explore};
use forebear_runtime::model::open::{self, Open};
use forebear_runtime::model::word::{
    CLAIMED, Cancel, Demand, FINISHED, HANDLE, HELD, LINK, NEW, SUBMITTED, WAITERS, Word,
};

/// A dependency that runs.
struct Dependency {
    word: Word,
    waiters: WaitQueue,
}

struct Dependent<const N: usize> {
    word: Word,
    open: Open,
    nodes: std::cell::UnsafeCell<[WaitNode; N]>,
    /// The memory of the edges.
    memory: [UnsafeCell<u32>; N],
    /// The memory of the count.
    count: UnsafeCell<u32>,
    dependencies: [Dependency; N],
    ran: AtomicU32,
    ended: AtomicU32,
    answers: Answers,
}

// SAFETY: that is what the models ask: loom sees every access that matters.
unsafe impl<const N: usize> Sync for Dependent<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Send for Dependent<N> {}

impl<const N: usize> Dependent<N> {
    fn new(answers: &Answers) -> Arc<Dependent<N>> {
        let nobody = NonNull::<()>::dangling();
        Arc::new(Dependent {
            word: Word::new(NEW | HANDLE),
            open: Open::new(),
            // SAFETY: Q5: in no list.
            nodes: std::cell::UnsafeCell::new(
                [(); N].map(|()| unsafe { WaitNode::of_record(nobody, nobody) }),
            ),
            memory: [(); N].map(|()| UnsafeCell::new(0)),
            count: UnsafeCell::new(7),
            dependencies: [(); N].map(|()| Dependency {
                word: Word::new(CLAIMED | SUBMITTED | HANDLE | LINK),
                waiters: WaitQueue::new(),
            }),
            ran: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            answers: answers.clone(),
        })
    }

    fn node(&self, at: usize) -> *mut WaitNode {
        // SAFETY: in range.
        unsafe { self.nodes.get().cast::<WaitNode>().add(at) }
    }

    /// As `begin` and `set_up`.
    fn submit(&self) {
        if !self.word.hold(|| self.open.begin(N as u32)) {
            return;
        }
        for at in 0..N {
            // SAFETY: that is what the models ask.
            self.memory[at].with_mut(|memory| unsafe { *memory = 7 });
            let of = &self.dependencies[at];
            // SAFETY: Q5: the model stays until all threads are over.
            let entered = unsafe {
                *self.node(at) = WaitNode::of_record(NonNull::from(self).cast(), NonNull::from(of).cast());
                open::enter(&self.open, &of.word, &of.waiters, &*self.node(at), |_| ())
            };
            self.answers.note(if entered.is_some() { "entered" } else { "was over" });
        }
        if self.open.set_up() {
            self.answers.note("submitter admits");
            self.admit();
        }
    }

    /// As `finish::notify_end` and `ended`.
    fn finish(&self, at: usize) {
        let of = &self.dependencies[at];
        let (before, _) = of.word.finish(true, |_| FINISHED);
        if !before.has(WAITERS) {
            return;
        }
        // SAFETY: W3: terminal.
        let mut listeners = unsafe { of.waiters.take().wake_all() };
        // SAFETY: Q5: taken by this.
        unsafe {
            listeners.report(|record| {
                assert_eq!(record.cast::<Self>().as_ptr().cast_const(), std::ptr::from_ref(self));
                self.read(at);
                if self.open().down() {
                    self.answers.note("finisher admits");
                    self.admit();
                }
            });
        }
    }

    fn read(&self, at: usize) {
        // SAFETY: that is what the models ask.
        self.memory[at].with(|memory| assert_eq!(unsafe { *memory }, 7, "the edges are gone"));
    }

    fn open(&self) -> &Open {
        // SAFETY: that is what the models ask.
        self.count.with(|count| assert_eq!(unsafe { *count }, 7, "the count is gone"));
        &self.open
    }

    /// The edges and their count are moved, or freed.
    fn free(&self) {
        // SAFETY: that is what the models ask.
        self.count.with_mut(|count| unsafe { *count = 0 });
        for memory in &self.memory {
            // SAFETY: that is what the models ask.
            memory.with_mut(|memory| unsafe { *memory = 0 });
        }
    }

    /// As `admit`, and the worker that takes the entry.
    fn admit(&self) {
        if self.word.admit(0) && self.word.claim_by_queue() {
            self.free();
            self.ran.fetch_add(1, Relaxed);
            self.answers.note("ran");
        }
        self.word.release_link();
    }

    /// As a reader.
    fn look(&self) {
        let Ok(bits) = self.word.lock() else { return };
        let held = bits.life() == HELD && self.open().try_hold();
        self.word.unlock(|bits| bits);
        if held {
            self.answers.note("read");
            (0..N).for_each(|at| self.read(at));
            if self.open.down() {
                self.answers.note("reader admits");
                self.admit();
            }
        }
    }

    /// As a cancel, and the drop of the edges.
    fn cancel(&self) {
        if self.word.cancel(|| Demand::Nobody) != Cancel::Ended {
            return;
        }
        if !self.open.is_none() {
            self.withdraw();
        }
        self.free();
        self.ended.fetch_add(1, Relaxed);
        self.answers.note("cancelled");
        self.word.release_link();
    }

    fn withdraw(&self) {
        self.open.await_set_up();
        for at in 0..N {
            // SAFETY: it has been set up.
            let node = unsafe { &*self.node(at) };
            if !node.is_listed() {
                continue;
            }
            match self.leave(at, node) {
                Some(true) => _ = self.word.release_link(),
                Some(false) => {}
                None => self.answers.note("finisher has it"),
            }
        }
        self.open.await_none();
    }

    /// As `leave_declared`. Answers whether the edge was the last that was open.
    fn leave(&self, at: usize, node: &WaitNode) -> Option<bool> {
        let of = &self.dependencies[at];
        let unlink = |_: bool| {
            assert!(!of.waiters.is_empty(), "the node has been taken out before");
            // SAFETY: Q1: the lock.
            unsafe { of.waiters.unlink(node) };
            node.set_unlisted();
            if of.waiters.is_empty() { Demand::Nobody } else { Demand::Idle }
        };
        // SAFETY: the node is listed.
        unsafe { open::leave(&self.open, &of.word, false, unlink) }.map(|(_, last)| last)
    }

    /// As `start_early`.
    fn start_early(&self) {
        let Ok(bits) = self.word.lock() else { return };
        let held = bits.life() == HELD && self.open().try_hold();
        self.word.unlock(|bits| bits);
        if !held {
            return;
        }
        open::while_held(&self.word, || {
            for at in 0..N {
                self.read(at);
                // SAFETY: kept by the reader.
                let node = unsafe { &*self.node(at) };
                if node.is_listed() && self.leave(at, node).is_some() {
                    self.answers.note("left early");
                }
            }
        });
        if self.open.down() {
            self.answers.note("starter admits");
            self.admit();
        }
    }

    fn check(&self) {
        assert_eq!(self.ran.load(Relaxed) + self.ended.load(Relaxed), 1, "it runs, or is ended, once");
        assert_eq!(self.word.load().links(), 0, "its links are given back");
    }
}

fn with<const N: usize>(
    model: &Arc<Dependent<N>>,
    what: impl FnOnce(&Dependent<N>) + Send + 'static,
) -> thread::JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || what(&model))
}

/// Two dependencies end while the edges to them are set up: is it queued once, when both are over?
#[test]
fn dependencies_that_end_while_edges_are_set_up_start_it_once() {
    explore(&["entered", "was over", "submitter admits", "finisher admits", "ran"], |answers| {
        let model = Dependent::<2>::new(answers);
        let others = [0, 1].map(|at| with(&model, move |model| model.finish(at)));
        model.submit();
        others.into_iter().for_each(|other| other.join().unwrap());
        model.check();
    });
}

/// The same with an edge to one that has ended.
#[test]
fn an_edge_to_what_has_ended_is_closed_by_the_submitter() {
    exhaust(&["entered", "was over", "submitter admits", "finisher admits", "ran"], |answers| {
        let model = Dependent::<2>::new(answers);
        model.finish(1);
        let other = with(&model, |model| model.finish(0));
        model.submit();
        other.join().unwrap();
        model.check();
    });
}

/// A dependency ends while the dependent is cancelled: is it started or ended, once, and are its edges left in place for the finisher?
#[test]
fn a_cancel_meets_the_last_end() {
    explore(&["entered", "finisher has it", "finisher admits", "ran", "cancelled"], |answers| {
        let model = Dependent::<2>::new(answers);
        model.submit();
        let others = [0, 1].map(|at| with(&model, move |model| model.finish(at)));
        model.cancel();
        others.into_iter().for_each(|other| other.join().unwrap());
        model.check();
    });
}

/// It is cancelled while its edges are set up.
#[test]
fn a_cancel_meets_the_submitter() {
    exhaust(&["entered", "cancelled"], |answers| {
        let model = Dependent::<1>::new(answers);
        let canceller = with(&model, Dependent::cancel);
        model.submit();
        canceller.join().unwrap();
        model.finish(0);
        model.check();
    });
}

/// Somebody reads where the edges lead while the last dependency ends, or the dependent is cancelled.
#[test]
fn a_reader_meets_the_last_end_and_a_cancel() {
    explore(
        &["entered", "finisher has it", "read", "reader admits", "finisher admits", "ran", "cancelled"],
        |answers| {
            let model = Dependent::<1>::new(answers);
            model.submit();
            let reader = with(&model, Dependent::look);
            let canceller = with(&model, Dependent::cancel);
            model.finish(0);
            reader.join().unwrap();
            canceller.join().unwrap();
            model.check();
        },
    );
}

/// It is to start early while one of its dependencies ends, and it is cancelled.
#[test]
fn an_early_start_meets_an_end_and_a_cancel() {
    explore(
        &[
            "entered",
            "left early",
            "finisher has it",
            "finisher admits",
            "starter admits",
            "ran",
            "cancelled",
        ],
        |answers| {
            let model = Dependent::<2>::new(answers);
            model.submit();
            let others = [with(&model, Dependent::start_early), with(&model, |model| model.finish(1))];
            model.cancel();
            others.into_iter().for_each(|other| other.join().unwrap());
            model.finish(0);
            model.check();
        },
    );
}
