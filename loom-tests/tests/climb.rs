//! A question goes up a line of ancestors, past those that are over, and leaves shortcuts for the next.
//!
//! Shipped: the climb, the shortcuts, the words. A node here is a word, its parent and the place for a shortcut.
#![cfg(loom)]

mod cell;

use std::ptr;

use forebear_context::shim::Arc;
use forebear_context::shim::thread;
use forebear_runtime::model::climb::{Climb, Shortcut, first_above};
use forebear_runtime::model::word::{CLAIMED, Cancel, FINISHED, LINK, MARKED, Word};

use self::cell::exhaust;

struct Node {
    word: Word,
    above: Option<Arc<Node>>,
    shortcut: Shortcut<Node>,
}

// SAFETY: nodes are shared by counts, and ancestors are kept by who descends from them (S1).
unsafe impl Sync for Node {}
// SAFETY: as above.
unsafe impl Send for Node {}

impl Node {
    /// One that runs, and that its children keep.
    fn below(above: Option<&Arc<Node>>) -> Arc<Node> {
        let word = Word::new(CLAIMED | (LINK * 2));
        Arc::new(Node { word, above: above.cloned(), shortcut: Shortcut::default() })
    }

    fn end(&self) {
        self.word.finish(true, |_| FINISHED);
    }
}

impl Climb for Node {
    fn above(&self) -> Option<&Node> {
        self.above.as_deref()
    }

    fn is_passed(&self) -> bool {
        let bits = self.word.load();
        bits.is_terminal() && !bits.has(MARKED)
    }

    fn shortcut(&self) -> Option<&Shortcut<Node>> {
        Some(&self.shortcut)
    }

    fn shortcut_or_new(&self) -> Option<&Shortcut<Node>> {
        Some(&self.shortcut)
    }
}

/// The first is cancelled, then the second ends; who has come past the second, be it by what another has left, sees the mark.
#[test]
fn who_goes_by_a_shortcut_knows_what_came_before_the_ends_that_it_leads_past() {
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
