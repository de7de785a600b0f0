//! A question goes up a line of ancestors, past those that are over, and leaves skip links for the next.
//!
//! And a cancel that is on its way down: who hears of it by its target's end draws it down to itself.
//!
//! Shipped: the walk, the skip links, the words, the outcome. A node here is a word, its parent and the place for a skip link.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | only the first ancestor is asked that is not over | a grandchild fails by what its grandparent's cancel did to its target | `drawn_from_the_first_only` |
//! | a lender counts as demand until its mark is delivered | its guest is spared for nobody, and fails | `marked_lender_wants` |
//! | an error that says that a target was cancelled is a failure, marked or not | a cancelled request ends as failed | `mark_is_not_looked_at` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr;

use forebear_context::shim::Arc;
use forebear_context::shim::thread;
use forebear_runtime::model::ancestor_walk::{Ancestry, Height, SkipLink, draw_down, first_above};
use forebear_runtime::model::word::{
    CANCELLED, CLAIMED, COMPLETING, Cancel, Demand, FAILED, FINISHED, LENT, LINK, MARKED, Word, outcome,
};

use self::cell::exhaust;

struct Node {
    word: Word,
    above: Option<Arc<Node>>,
    skip: SkipLink<Node>,
}

// SAFETY: nodes are shared by counts, and ancestors are kept by who descends from them (CL1).
unsafe impl Sync for Node {}
// SAFETY: as above.
unsafe impl Send for Node {}

impl Node {
    /// One that runs, and that its children keep.
    fn below(above: Option<&Arc<Node>>) -> Arc<Node> {
        Node::with(CLAIMED | (LINK * 2), above)
    }

    fn with(bits: u64, above: Option<&Arc<Node>>) -> Arc<Node> {
        Arc::new(Node { word: Word::new(bits), above: above.cloned(), skip: SkipLink::default() })
    }

    /// As a waiter does that has been told that its target was cancelled with its parent; `lender` is the request on whose stack it
    /// runs.
    fn draw(&self, lender: Option<&Node>) {
        draw_down(self, Height::Root, |next, _| {
            let wants = || lender.is_none_or(|lender| lender.word.load().is_demand());
            _ = next.word.cancel_lent(wants, || Demand::Nobody);
            let bits = next.word.load();
            bits.has(MARKED) || bits.life() >= COMPLETING
        });
    }

    /// Ends by the error that says so; answers as what.
    fn end_by_target(&self) -> u64 {
        self.word.finish(true, |bits| outcome(FAILED, true, bits)).1.life()
    }

    fn end(&self) {
        self.word.finish(true, |_| FINISHED);
    }
}

impl Ancestry for Node {
    fn above(&self) -> Option<&Node> {
        self.above.as_deref()
    }

    fn is_passed(&self) -> bool {
        let bits = self.word.load();
        bits.is_terminal() && !bits.has(MARKED)
    }

    fn is_cancelled(&self) -> bool {
        self.word.load().has(MARKED)
    }

    fn passes_on(&self) -> bool {
        self.word.load().is_terminal()
    }

    fn skip(&self) -> Option<&SkipLink<Node>> {
        Some(&self.skip)
    }

    fn skip_or_new(&self) -> Option<&SkipLink<Node>> {
        Some(&self.skip)
    }
}

/// The first is cancelled, then the second ends; who has come past the second, be it by what another has left, sees the mark.
#[test]
fn a_skip_link_shows_what_came_before_the_ends_that_it_leads_past() {
    exhaust(&["the second", "the first"], |answers| {
        let first = Node::below(None);
        let second = Node::below(Some(&first));
        let third = Node::below(Some(&second));
        third.end();
        let (mine, theirs) = (Node::below(Some(&third)), Node::below(Some(&third)));
        let other = {
            let (first, second) = (first.clone(), second.clone());
            thread::spawn(move || {
                assert_eq!(first.word.abort(|| ()), Cancel::Marked);
                second.end();
                assert!(first_above(&*theirs).is_some_and(|found| ptr::eq(found, &*first)));
            })
        };
        thread::yield_now();
        let found = first_above(&*mine).expect("the first is not over");
        if ptr::eq(found, &*first) {
            assert!(found.word.load().has(MARKED), "the second was passed, so the mark was there");
            answers.note("the first");
        } else {
            assert!(ptr::eq(found, &*second));
            answers.note("the second");
        }
        other.join().unwrap();
    });
}

/// The eldest is cancelled, and its mark goes on to its child and to its grandchild, one after the other. Meanwhile the grandchild
/// waits for another child of the eldest, which nobody has submitted: if it is told that this one was cancelled with its parent,
/// it ends as cancelled, and so does the child that waits for it and passes its error on.
#[test]
fn a_grandchild_hears_of_a_cancel_by_its_targets_end_before_the_mark_comes() {
    exhaust(&["told", "not told"], |answers| {
        let eldest = Node::below(None);
        let child = Node::below(Some(&eldest));
        let grandchild = Node::below(Some(&child));
        let target = Node::below(Some(&eldest));
        let spread = {
            let (eldest, child, grandchild) = (eldest.clone(), child.clone(), grandchild.clone());
            thread::spawn(move || {
                assert_eq!(eldest.word.cancel(|| Demand::Nobody), Cancel::Marked);
                if child.word.cancel_inherited() == Some(Cancel::Marked) {
                    _ = grandchild.word.cancel_inherited();
                }
            })
        };
        thread::yield_now();
        if first_above(&*target).is_some_and(Ancestry::is_cancelled) {
            answers.note("told");
            grandchild.draw(None);
            assert_eq!(grandchild.end_by_target(), CANCELLED, "by a cancel that it was told of");
            assert_eq!(child.end_by_target(), CANCELLED, "the mark was there before its child ended");
        } else {
            answers.note("not told");
        }
        spread.join().unwrap();
    });
}

/// A request that lends its stack is cancelled, and so is the guest, by others; the lender's mark has not been delivered when the
/// guest hears of it by its target's end. The guest is spared only while the lender is not marked.
#[test]
fn a_guest_hears_of_its_lenders_cancel_by_its_targets_end() {
    exhaust(&["told", "not told"], |answers| {
        let lender = Node::below(None);
        let guest = Node::with(CLAIMED | LENT | (LINK * 2), Some(&lender));
        let target = Node::below(Some(&lender));
        let others = {
            let (lender, guest) = (lender.clone(), guest.clone());
            thread::spawn(move || {
                assert_eq!(lender.word.cancel(|| Demand::Nobody), Cancel::Marked);
                // By one who has only the word to go by.
                _ = guest.word.cancel(|| Demand::Live);
            })
        };
        thread::yield_now();
        if first_above(&*target).is_some_and(Ancestry::is_cancelled) {
            answers.note("told");
            guest.draw(Some(&lender));
            assert_eq!(guest.end_by_target(), CANCELLED, "by a cancel that it was told of");
            assert_eq!(lender.end_by_target(), CANCELLED, "its mark was there before");
        } else {
            answers.note("not told");
        }
        others.join().unwrap();
    });
}
