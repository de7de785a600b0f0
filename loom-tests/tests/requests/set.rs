//! A set of requests: its core, as it ships, with the shipped contexts.
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | the owner looks for an end before it takes the lock under which it stands there | an end in between is told to nobody, and the owner sleeps on | `set_looks_before` |
//! | an end wakes without telling its number first | the owner finds nothing, and sleeps on | `set_wakes_before_it_tells` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::ptr;

use forebear_context::context::{Cause, Context, Reason, current};
use forebear_context::shim::{Arc, thread};
use forebear_runtime::model::set::{Core, SetPlace};

use self::cell::explore;
use self::party::Party;

fn place(number: usize) -> SetPlace {
    SetPlace { slot: number, number }
}

/// The context of the calling party.
fn here() -> &'static Context {
    let context = current().expect("a party's");
    // SAFETY: the party stays until the model is over.
    unsafe { context.as_ref() }
}

/// Waits for the next end, as a set's owner does. True: it has slept.
fn next(core: &Core) -> (usize, bool) {
    let context = here();
    let mut slept = false;
    loop {
        if let Some(place) = core.pop() {
            return (place.number, slept);
        }
        // SAFETY: C2: the calling context's own stack; it is parked or taken back below.
        let ticket = unsafe { context.begin(Reason::Select, ptr::null_mut()) };
        // SAFETY: RS1: it leaves below.
        if unsafe { core.stand(context, ticket, Cause::Woken) } {
            slept = true;
            // SAFETY: on the context's own stack, after `begin`.
            unsafe { context.park_until(ticket, None) };
            core.leave();
        } else {
            // SAFETY: C2: begun just now, and not parked; nobody has the ticket.
            unsafe { context.abandon(ticket) };
        }
    }
}

#[test]
fn an_end_meets_the_owner_that_goes_to_sleep() {
    explore(&["slept", "found"], |answers| {
        let core = Arc::<Core>::default();
        let told = Arc::clone(&core);
        let ends = thread::spawn(move || told.tell(place(1)));
        Party::new(0).on(|| {
            let (number, slept) = next(&core);
            assert_eq!(number, 1);
            answers.note(if slept { "slept" } else { "found" });
        });
        ends.join().unwrap();
    });
}

#[test]
fn two_ends_come_out_once_each() {
    explore(&["one first", "two first"], |answers| {
        let core = Arc::<Core>::default();
        let ends = [1, 2].map(|number| {
            let told = Arc::clone(&core);
            thread::spawn(move || told.tell(place(number)))
        });
        Party::new(0).on(|| {
            let numbers = [next(&core).0, next(&core).0];
            assert_eq!(numbers[0] + numbers[1], 3, "each once");
            answers.note(if numbers[0] == 1 { "one first" } else { "two first" });
        });
        _ = ends.map(|end| end.join().unwrap());
        assert!(core.is_empty());
    });
}

#[test]
fn an_end_interrupts_a_wait_for_one_request() {
    explore(&["interrupted"], |answers| {
        let core = Arc::<Core>::default();
        let told = Arc::clone(&core);
        let ends = thread::spawn(move || told.tell(place(1)));
        Party::new(0).on(|| {
            let context = here();
            // SAFETY: C2: the calling context's own stack; it parks below.
            let ticket = unsafe { context.begin(Reason::Request, ptr::null_mut()) };
            // SAFETY: RS1: it leaves below.
            unsafe { core.interrupts(context, ticket) };
            // SAFETY: on the context's own stack, after `begin`.
            if unsafe { context.park_until(ticket, None) } == Cause::TimedOut {
                answers.note("interrupted");
            }
            core.leave();
            assert_eq!(core.pop().map(|place| place.number), Some(1));
        });
        ends.join().unwrap();
    });
}
