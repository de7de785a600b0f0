//! Cycles that lead through locks: the edge of a wait for a lock goes to whoever holds it when a walk comes by.
//!
//! Shipped: `Mutex`, and the edges and the walk of contexts. What the runtime adds, to confirm a cycle by holding all of it, is in
//! `cycle.rs`; here whoever comes round is told.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebear_context::context::edge::{Ahead, Guide, Way};
use forebear_context::context::{Cause, Context, OwnerWait, Table, Ticket};
use forebear_context::error::Cycle;
use forebear_context::shim::{Arc, thread};
use forebear_sync::Mutex;

use self::cell::explore;
use self::party::Party;

/// All contexts are there as long as the model.
struct Anybody;

// SAFETY: they are, so nobody has to be kept.
unsafe impl Guide for Anybody {
    fn keep_foreign_stacks(&mut self) -> bool {
        false
    }

    fn admits(&mut self, _: NonNull<Context>) -> bool {
        true
    }
}

static TABLE: Table = Table { wait_for_owner, ..party::TABLE };

unsafe fn wait_for_owner(context: &Context, ticket: Ticket, wait: &OwnerWait, _: bool) -> Option<Cycle> {
    // SAFETY: X1: the wait's target stays as long as the wait; X3: on the context's own stack, before it is bound.
    unsafe { context.lead(Ahead::Owner(NonNull::from(wait))) };
    // SAFETY: on the context's own stack, before it parks; contexts stay.
    let way = unsafe { context.bind_and_walk(ticket, || context.locks().get() > 0, 8, &mut Anybody) };
    if way != Way::Round {
        return None;
    }
    // It may have been chosen meanwhile, or be no cycle any more for another that was told.
    context.hold_in_turn(ticket)?.end(Cause::Circular);
    Some(Cycle::new(["here"]))
}

type Locks = [Arc<Mutex<()>>; 2];

/// Takes one lock, then the other. Whether it was told of a cycle instead.
fn both(locks: &Locks, first: usize) -> bool {
    let _held = locks[first].lock();
    // A panic is how a plain lock tells it.
    catch_unwind(AssertUnwindSafe(|| drop(locks[1 - first].lock()))).is_err()
}

#[test]
fn two_that_take_two_locks_crosswise_are_not_both_lost() {
    explore(&["told", "went through"], |answers| {
        let locks: Locks = [Arc::new(Mutex::new(())), Arc::new(Mutex::new(()))];
        // Until both are over: a walk reads the context of the other.
        // SAFETY: the table is for any context that stays as long as the model.
        let parties = [0; 2].map(|_| unsafe { Party::with_table(&TABLE) });
        let other = {
            let (locks, party) = (locks.clone(), parties[1].clone());
            thread::spawn(move || party.on(|| both(&locks, 1)))
        };
        let told = parties[0].on(|| both(&locks, 0)) | other.join().unwrap();
        answers.note(if told { "told" } else { "went through" });
        assert!(!locks[0].is_locked() && !locks[1].is_locked());
    });
}

/// A dump holds a wait while it looks at it. The walk of the wait that closes the cycle comes by meanwhile.
#[test]
fn a_wait_that_is_looked_at_is_no_end_of_a_walk() {
    explore(&["told", "went through", "held"], |answers| {
        let locks: Locks = [Arc::new(Mutex::new(())), Arc::new(Mutex::new(()))];
        // SAFETY: as above.
        let parties = [0; 2].map(|_| unsafe { Party::with_table(&TABLE) });
        let other = {
            let (locks, party) = (locks.clone(), parties[1].clone());
            thread::spawn(move || party.on(|| both(&locks, 1)))
        };
        let dump = {
            let party = parties[1].clone();
            thread::spawn(move || {
                let context = party.context();
                context.is_parked() && context.hold(context.ticket()).is_some()
            })
        };
        let told = parties[0].on(|| both(&locks, 0)) | other.join().unwrap();
        answers.note(if told { "told" } else { "went through" });
        if dump.join().unwrap() {
            answers.note("held");
        }
        assert!(!locks[0].is_locked() && !locks[1].is_locked());
    });
}

#[test]
fn a_lock_within_itself_is_told() {
    explore(&[], |_| {
        let lock = Arc::new(Mutex::new(()));
        // SAFETY: as above.
        let party = unsafe { Party::with_table(&TABLE) };
        party.on(|| {
            let _held = lock.lock();
            assert!(catch_unwind(AssertUnwindSafe(|| drop(lock.lock()))).is_err());
        });
    });
}
