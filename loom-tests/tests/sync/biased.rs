//! The lock that has an owner, as it ships. The value is in a cell that loom watches.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | the owner goes in without a look | both are in | `owner_goes_in_unlooked` |
//! | a visitor does not wait until the owner is out | the same | `visitor_goes_in_unlooked` |
//! | the last word of who was in is no release | the next does not see what was written | `out_relaxed` |
//! | a visitor that stays takes back that it is there | the owner and the next visitor, who pays no fence, are both in | `visitor_stays_and_leaves` |
//!
//! Without its fences it fails as well; these are planted for the model `local`, which has them from the same place.
#![cfg(loom)]

use forebear_context::shim::{Arc, thread};
use forebear_loom_tests::exhaust;
use forebear_runtime::model::biased::Biased;

fn add(to: &mut u32) -> u32 {
    *to += 1;
    *to
}

#[test]
fn an_owner_and_a_visitor_are_never_in_together() {
    exhaust(&["owner first", "visitor first", "between"], |answers| {
        let lock = Arc::new(Biased::new(0, true));
        let there = lock.clone();
        let visitor = thread::spawn(move || there.visit(add));
        // SAFETY: this thread is the owner.
        let own = unsafe { [lock.own(add), lock.own(add)] };
        let seen = visitor.join().unwrap();
        answers.note(match (own, seen) {
            ([1, 2], 3) => "owner first",
            ([2, 3], 1) => "visitor first",
            ([1, 3], 2) => "between",
            other => panic!("{other:?}"),
        });
        // SAFETY: as above.
        assert_eq!(unsafe { lock.own(|value| *value) }, 3);
    });
}

#[test]
fn two_visitors_and_the_owner_come_one_after_the_other() {
    exhaust(&[], |_| {
        let lock = Arc::new(Biased::new(0, true));
        let visitors = [0, 1].map(|_| {
            let there = lock.clone();
            thread::spawn(move || there.visit(add))
        });
        // SAFETY: this thread is the owner.
        let own = unsafe { lock.own(add) };
        let mut seen: Vec<_> = visitors.into_iter().map(|visitor| visitor.join().unwrap()).collect();
        seen.push(own);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3]);
    });
}

/// The kernel refuses the fence from the first visit on: is the owner kept out by that one, for all visitors to come?
#[test]
fn a_visitor_that_stays_keeps_the_owner_out_for_those_who_come_later() {
    exhaust(&[], |_| {
        let lock = Arc::new(Biased::new(0, true));
        let there = lock.clone();
        let visitor =
            thread::spawn(move || [there.visit_where(|| false, add), there.visit_where(|| false, add)]);
        // SAFETY: this thread is the owner.
        let own = unsafe { [lock.own(add), lock.own(add)] };
        let mut seen = [visitor.join().unwrap(), own].concat();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3, 4]);
    });
}
