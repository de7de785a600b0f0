//! The calls of user code that the ends of requests make on a stack, against a thread that reads them while it holds the stack's wait.
//!
//! Shipped: `EndCalls`, and `Context` with its `edge` module. A model has no requests: [`Ended`] stands for one, whose memory goes when its end is over.
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | a call stays in the list when it has returned | a reader finds a request that is over | `end_call_stays_listed` |
//! | a held wait is released by a relaxed store | the stack takes the call out while it is read | `held_released_relaxed` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use forebear_context::context::edge::Ahead;
use forebear_context::context::{Cause, Context, ForeignContext, Reason, Ticket, unpark};
use forebear_context::shim::UnsafeCell;
use forebear_context::shim::thread;
use forebear_runtime::model::end_calls::EndCalls;

use self::cell::exhaust;

/// A request that is being ended.
struct Ended {
    name: &'static str,
    there: UnsafeCell<bool>,
}

/// A stack that ends two requests, one after the other.
struct Stack {
    context: ForeignContext,
    calls: EndCalls<Ended>,
    ended: [Ended; 2],
}

// SAFETY: J1, J2 of `cell`.
unsafe impl Send for Stack {}
// SAFETY: as above.
unsafe impl Sync for Stack {}

impl Stack {
    fn new() -> Arc<Stack> {
        let ended = |name| Ended { name, there: UnsafeCell::new(true) };
        Arc::new(Stack {
            context: ForeignContext::new(),
            calls: EndCalls::new(),
            ended: [ended("first"), ended("second")],
        })
    }

    fn context(&self) -> &Context {
        self.context.context()
    }

    /// The end of a request, which calls `user_code`.
    fn end(&self, number: usize, user_code: impl FnOnce()) {
        let ended = &self.ended[number];
        // SAFETY: EC1: the thread that calls stands for the stack; EC2: it is over below.
        unsafe { self.calls.call(ended, ptr::null(), user_code) };
        // SAFETY: J1.
        ended.there.with_mut(|there| unsafe { *there = false });
    }

    /// User code begins a wait, and binds it.
    fn begin(&self) -> Ticket {
        let context = self.context();
        // SAFETY: C2: the thread that calls stands for the stack; C4: for nothing that is followed.
        let ticket = unsafe { context.begin(Reason::Request, ptr::null_mut()) };
        // SAFETY: X1, X3: it leads nowhere, and is bound below.
        unsafe { context.lead(Ahead::Unknown) };
        // SAFETY: it was led just now.
        unsafe { context.bind(ticket) };
        ticket
    }

    /// A look at the stack by another thread: what is being ended there.
    fn look(&self) -> &'static str {
        let context = self.context();
        let held = context.edge().and_then(|edge| context.hold_in_turn(edge.ticket));
        let Some(_held) = held else { return "goes on" };
        // SAFETY: EC1: the wait is held.
        let mut calls = unsafe { self.calls.each() };
        let names = calls.by_ref().take(2).map(|call| {
            // SAFETY: EC2: what is listed is not over.
            let ended = unsafe { call.header.as_ref() }.expect("an end is a request's");
            // SAFETY: J1.
            assert!(ended.there.with(|there| unsafe { *there }), "a request that is over is listed");
            ended.name
        });
        let names: Vec<_> = names.collect();
        assert_eq!(names.len(), 1, "user code waits in one end");
        names[0]
    }
}

#[test]
fn a_reader_that_holds_the_wait_sees_what_is_being_ended() {
    exhaust(&["second", "goes on"], |answers| {
        let stack = Stack::new();
        let mut reader = None;
        stack.end(0, || {
            let ticket = stack.begin();
            let (stack2, answers) = (Arc::clone(&stack), answers.clone());
            reader = Some(thread::spawn(move || {
                let stack = stack2;
                assert_eq!(stack.look(), "first", "it waits there");
                // SAFETY: C1: the stack stays to the end of the model.
                assert!(unsafe { unpark(NonNull::from(stack.context()), ticket, Cause::Woken) });
                answers.note(stack.look());
            }));
            // SAFETY: on the stack's own thread, after `begin`.
            unsafe { stack.context().park(None) };
        });
        stack.end(1, || {
            let ticket = stack.begin();
            // A wait whose end comes from the stack itself, so that the reader may be anywhere.
            assert!(stack.context().settle(ticket, Cause::Woken));
        });
        reader.unwrap().join().unwrap();
    });
}
