//! Cycles of waits, on the shipped contexts: their edges, the walk, and the hold by which a cycle is confirmed.
//!
//! Shipped: `Context` with its `edge` module, `Word`, `WaitQueue`. Transcribed from `runtime/src/schedule/wait.rs` and `runtime/src/deadlock/cycle.rs`, because a
//! model has no stacks: where a target stands is a plain field of [`Stack`], and how a cycle is confirmed is [`Stack::close`].
//!
//! # Simplifications that fail
//!
//! | simplification | what happens | mutant |
//! |---|---|---|
//! | wait bound by a store | two that close a cycle at once each see the other before it waits: nobody is told | `edge_by_store` |
//! | walk ended by a load | the same | `walk_ends_by_load` |
//! | walk before the wait is bound | the same | `walk_before_edge` |
//! | look for waiters before the wait is bound | one that came meanwhile walked only this far: nobody is told | `look_before_edge` |
//! | waiters looked for by a load | two that close a cycle at once each look before they see the other come | `waiters_by_load` |
//! | edge completed by a store | a walk that ended there before has left nothing | `edge_completed_by_store` |
//! | slot not looked at again after the edge was read | the next wait's edge is taken for this one's | `edge_without_second_look` |
//! | waker that takes a held wait for a settled one | the waiter sleeps for ever | `settle_ignores_hold` |
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

use forebear_context::context::edge::{Ahead, Held, Way, walk};
use forebear_context::context::{
    Cause, Context, ForeignContext, Reason, Ticket, WaitNode, WaitQueue, unpark,
};
use forebear_context::shim::atomic::{AtomicBool, Ordering};
use forebear_context::shim::{Mutex, hint, thread};
use forebear_runtime::model::word::{Bits, CLAIMED, HANDLE, LINK, QUEUED, SUBMITTED, WAITERS, Word};

use self::cell::{exhaust, explore};

/// A request, and the stack that it runs on.
struct Stack {
    context: ForeignContext,
    word: Word,
    waiters: WaitQueue,
    /// `Header::fiber`: it has started.
    started: AtomicBool,
    known: Cell<bool>,
}

/// What the stacks of a model share.
struct House {
    stacks: Vec<Stack>,
    /// Cycles are confirmed one at a time.
    foreign_stacks: Mutex<()>,
    #[allow(clippy::vec_box, reason = "nodes stay where they are")]
    nodes: std::sync::Mutex<Vec<Box<WaitNode>>>,
}

// SAFETY: J1, J2 of `cell`.
unsafe impl Send for House {}
// SAFETY: as above.
unsafe impl Sync for House {}

/// Begins a wait for nothing that is followed.
fn begin(context: &Context) -> Ticket {
    // SAFETY: C2: the thread that calls stands for the stack; C4.
    unsafe { context.begin(Reason::Request, std::ptr::null_mut()) }
}

fn lead(context: &Context, ahead: Ahead) {
    // SAFETY: X1: contexts stay to the end of the model; X3: the thread that calls stands for the stack, and has bound nothing.
    unsafe { context.lead(ahead) };
}

impl House {
    fn new(stacks: usize, unstarted: &[usize]) -> Arc<House> {
        let stack = |index: usize| {
            let starts = !unstarted.contains(&index);
            let life = if starts { CLAIMED } else { QUEUED };
            Stack {
                context: ForeignContext::new(),
                word: Word::new(life | SUBMITTED | HANDLE | LINK),
                waiters: WaitQueue::new(),
                started: AtomicBool::new(starts),
                known: Cell::new(false),
            }
        };
        Arc::new(House {
            stacks: (0..stacks).map(stack).collect(),
            foreign_stacks: Mutex::new(()),
            nodes: std::sync::Mutex::default(),
        })
    }

    fn context(&self, index: usize) -> &Context {
        self.stacks[index].context.context()
    }

    /// `execute`: a worker claims it, and it stands on its stack.
    fn start(&self, index: usize) {
        assert!(self.stacks[index].word.claim_by_queue());
        self.stacks[index].started.store(true, Ordering::Release);
    }

    /// `wait::prepare` and `cycle::bind`: `me` waits for `target`, and is told of a cycle, or would park now. Nobody is woken:
    /// the nodes of those who would park stay where they are.
    fn wait(&self, me: usize, target: usize) -> bool {
        let (context, of) = (self.context(me), &self.stacks[target]);
        let ticket = begin(context);
        lead(context, Ahead::Unknown);
        // SAFETY: C1: the house keeps its contexts to the end of the model.
        let node = Box::new(unsafe { WaitNode::new(context, ticket) });
        assert!(of.word.lock().is_ok(), "nobody ends");
        // SAFETY: W3: the lock; the node stays to the end of the model.
        unsafe { of.waiters.push(&node) };
        let bits = of.word.unlock(|bits| Bits(bits.0 | WAITERS));
        self.nodes.lock().unwrap().push(node);
        self.bind(me, target, ticket, bits)
    }

    fn bind(&self, me: usize, target: usize, ticket: Ticket, bits: Bits) -> bool {
        let context = self.context(me);
        if !bits.is_unstarted() {
            // Claimed, and nowhere yet: there a survey looks again.
            while !self.stacks[target].started.load(Ordering::Acquire) {
                hint::spin_loop();
            }
            lead(context, self.leads_to(target));
        }
        // SAFETY: J1.
        let mut way =
            unsafe { context.bind_and_walk(ticket, || self.is_waited_for(me), 8, &mut || unreachable!()) };
        while way == Way::Round {
            if self.close(me) {
                return true;
            }
            if !context.is_waiting() {
                break;
            }
            // SAFETY: J1.
            way = unsafe { walk(context.into(), 8, &mut || unreachable!()) };
        }
        assert!(matches!(way, Way::End | Way::Round), "{way:?}");
        false
    }

    fn leads_to(&self, target: usize) -> Ahead {
        Ahead::Stack { context: NonNull::from(self.context(target)), foreign: false }
    }

    /// `is_waited_for` and `complete`.
    fn is_waited_for(&self, me: usize) -> bool {
        let stack = &self.stacks[me];
        let waited_for = stack.word.is_waited_for();
        if waited_for && !stack.known.get() && stack.word.lock().is_ok() {
            // SAFETY: Q1: the lock.
            unsafe {
                stack.waiters.find_to_front(|node| {
                    node.context().expect("it is a waiter's").complete(self.leads_to(me));
                    false
                });
            }
            stack.word.unlock(|bits| bits);
        }
        stack.known.set(true);
        waited_for
    }

    /// `collect`, and the end of the wait that has closed the cycle.
    fn close(&self, me: usize) -> bool {
        let _foreign_stacks = self.foreign_stacks.lock().unwrap();
        let mut ring: Vec<Held<'_>> = Vec::new();
        let mut at = NonNull::from(self.context(me));
        loop {
            // SAFETY: J1.
            let context = unsafe { at.as_ref() };
            let Some(held) = context.edge().and_then(|edge| context.hold(edge.ticket)) else { return false };
            let ahead = held.ahead();
            ring.push(held);
            match ahead {
                Ahead::Stack { context, .. } if std::ptr::eq(context.as_ptr(), self.context(me)) => break,
                Ahead::Stack { context, .. } => at = context,
                _ => return false,
            }
        }
        // All are held: all of them wait, each for the next.
        for held in &ring {
            assert!(held.context().is_waiting());
        }
        ring.swap_remove(0).end(Cause::Circular);
        true
    }
}

/// Each waits for the next.
fn ring(house: &Arc<House>, n: usize, me: usize) -> bool {
    house.wait(me, (me + 1) % n)
}

// ---- closing ---------------------------------------------------------------------------------------------------------

/// If neither were told both would sleep for ever. And not both are: who is told has ended its wait before the other looks.
#[test]
fn two_that_close_a_cycle_at_once_are_not_both_lost() {
    explore(&["first told", "second told"], |answers| {
        let house = House::new(2, &[]);
        let other = {
            let house = Arc::clone(&house);
            thread::spawn(move || ring(&house, 2, 1))
        };
        let first = ring(&house, 2, 0);
        let second = other.join().unwrap();
        assert!(first != second, "one of them is told");
        answers.note(if first { "first told" } else { "second told" });
    });
}

/// The third waits already, for the first.
#[test]
fn the_last_two_of_three_that_close_a_cycle_at_once_are_not_both_lost() {
    explore(&["first told", "second told"], |answers| {
        let house = House::new(3, &[]);
        assert!(!ring(&house, 3, 2));
        let other = {
            let house = Arc::clone(&house);
            thread::spawn(move || ring(&house, 3, 1))
        };
        let first = ring(&house, 3, 0);
        let second = other.join().unwrap();
        assert!(first != second, "one of them is told");
        answers.note(if first { "first told" } else { "second told" });
    });
}

/// The first waits for the second, which starts meanwhile, and waits for the first.
#[test]
fn a_target_that_starts_meanwhile_closes_the_cycle() {
    explore(&["first told", "second told"], |answers| {
        let house = House::new(2, &[1]);
        let other = {
            let house = Arc::clone(&house);
            thread::spawn(move || {
                house.start(1);
                ring(&house, 2, 1)
            })
        };
        // It has been started, or was not when this came into its list; `wait::prepare` leaves the rest to a survey.
        let first = ring(&house, 2, 0);
        let second = other.join().unwrap();
        assert!(first != second, "one of them is told");
        answers.note(if first { "first told" } else { "second told" });
    });
}

/// Both have come into the other's list already, and each has seen so: only the edges are left, and the ends of the walks.
#[test]
fn two_that_wait_for_each_other_already_are_not_both_lost() {
    exhaust(&["first", "second", "both"], |answers| {
        let house = House::new(2, &[]);
        let tickets = [0, 1].map(|me| begin(house.context(me)));
        let bind = |house: &House, me: usize, ticket| {
            let context = house.context(me);
            lead(context, house.leads_to(1 - me));
            // SAFETY: J1.
            unsafe { context.bind_and_walk(ticket, || true, 4, &mut || unreachable!()) == Way::Round }
        };
        let other = {
            let house = Arc::clone(&house);
            thread::spawn(move || bind(&house, 1, tickets[1]))
        };
        let first = bind(&house, 0, tickets[0]);
        answers.note(match (first, other.join().unwrap()) {
            (true, false) => "first",
            (false, true) => "second",
            (true, true) => "both",
            (false, false) => panic!("nobody has come round"),
        });
    });
}

/// The first waits for what the second starts, the second for what the third starts, and the third for the first.
#[test]
fn of_two_that_start_what_is_waited_for_one_comes_round() {
    explore(&["round"], |answers| {
        let house = House::new(3, &[]);
        let tickets = [0, 1, 2].map(|me| begin(house.context(me)));
        [0, 1].iter().for_each(|me| lead(house.context(*me), Ahead::Unknown));
        lead(house.context(2), house.leads_to(0));
        let bind = move |house: &House, me: usize| {
            let look = || {
                if me > 0 {
                    // SAFETY: X1: contexts stay to the end of the model; X3: once, from unknown to known.
                    unsafe { house.context(me - 1).complete(house.leads_to(me)) };
                }
                true
            };
            // SAFETY: J1.
            unsafe {
                house.context(me).bind_and_walk(tickets[me], look, 4, &mut || unreachable!()) == Way::Round
            }
        };
        let others = [1, 2].map(|me| {
            let house = Arc::clone(&house);
            thread::spawn(move || bind(&house, me))
        });
        let mut round = bind(&house, 0);
        for other in others {
            round |= other.join().unwrap();
        }
        assert!(round, "nobody has come round");
        answers.note("round");
    });
}

// ---- certainty -------------------------------------------------------------------------------------------------------

/// Whoever reads an edge while its context goes on to the next wait sees the one or the other, and no mixture.
#[test]
fn the_edge_of_one_wait_is_not_taken_for_that_of_the_next() {
    exhaust(&["first", "second", "none"], |answers| {
        let house = House::new(3, &[]);
        let walker = {
            let (house, answers) = (Arc::clone(&house), answers.clone());
            thread::spawn(move || match house.context(0).edge() {
                None => answers.note("none"),
                Some(edge) if edge.ahead == house.leads_to(1) => {
                    answers.note("first");
                    assert!(house.context(0).hold(edge.ticket).is_none_or(|held| held.ahead() == edge.ahead));
                }
                Some(edge) => {
                    assert_eq!(edge.ahead, house.leads_to(2));
                    answers.note("second");
                    assert!(house.context(0).hold(edge.ticket).is_some(), "the second wait goes on");
                }
            })
        };
        let context = house.context(0);
        let first = begin(context);
        lead(context, house.leads_to(1));
        // SAFETY: J1; it was led there just now.
        unsafe { context.bind(first) };
        assert!(context.settle(first, Cause::Woken));
        let second = begin(context);
        lead(context, house.leads_to(2));
        // SAFETY: J1; it was led there just now.
        unsafe { context.bind(second) };
        walker.join().unwrap();
    });
}

/// A wait is held while it is woken.
#[test]
fn a_waiter_whose_wait_is_held_is_woken_all_the_same() {
    exhaust(&["held", "over"], |answers| {
        let house = House::new(2, &[]);
        let context = house.context(0);
        let ticket = begin(context);
        lead(context, house.leads_to(1));
        // SAFETY: J1; it was led there just now.
        unsafe { context.bind(ticket) };
        let holder = {
            let house = Arc::clone(&house);
            thread::spawn(move || {
                let context = house.context(0);
                context.edge().and_then(|edge| context.hold(edge.ticket)).is_some()
            })
        };
        // SAFETY: J1.
        let won = unsafe { unpark(context.into(), ticket, Cause::Woken) };
        assert!(won, "there is no other waker");
        assert!(!context.is_waiting());
        answers.note(if holder.join().unwrap() { "held" } else { "over" });
    });
}
