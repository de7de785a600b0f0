//! `select!`: one ticket in several lists.
//!
//! Shipped: the select, its arms over channels, and the nodes of a wait queue that stand in several lists.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use forebear_context::context::{Cause, Reason, WaitNode, WaitQueue, current};
use forebear_context::shim::{Arc, Mutex, thread};
use forebear_sync::channel::{RecvError, bounded, unbounded};
use forebear_sync::select;

use self::cell::explore;
use self::party::Party;

/// Spawns a party that does `f`.
fn party(f: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    let party = Party::new(0);
    thread::spawn(move || party.on(f))
}

/// Two items come at once, by two ways: it takes one, and leaves the other where it is.
fn two_come_at_once(capacity: usize) {
    explore(&["first", "second"], move |answers| {
        let (to_a, a) = bounded(capacity);
        let (to_b, b) = bounded(capacity);
        let one = party(move || assert!(to_a.send(1).is_ok()));
        let two = party(move || assert!(to_b.send(2).is_ok()));
        Party::new(0).on(|| {
            let got = select! {
                biased;
                n = &a => n.unwrap(),
                n = &b => n.unwrap(),
            };
            answers.note(if got == 1 { "first" } else { "second" });
            let other = if got == 1 { b.recv() } else { a.recv() };
            assert_eq!(other, Ok(3 - got));
        });
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn of_two_that_send_at_once_each_is_received() {
    two_come_at_once(0);
}

#[test]
fn of_two_items_that_come_at_once_each_is_received() {
    two_come_at_once(1);
}

#[test]
fn two_selects_that_offer_what_the_other_wants_meet() {
    explore(&[], |_| {
        let (to_a, a) = bounded(0);
        let (to_b, b) = bounded(0);
        let (theirs_to, theirs) = (to_b.clone(), a.clone());
        let other = party(move || {
            select! {
                n = &theirs => assert_eq!(n, Ok(1)),
                sent = theirs_to.send_arm(2) => assert!(sent.is_ok()),
            }
        });
        Party::new(0).on(|| {
            select! {
                n = &b => assert_eq!(n, Ok(2)),
                sent = to_a.send_arm(1) => assert!(sent.is_ok()),
            }
        });
        other.join().unwrap();
        drop((to_a, to_b, a, b));
    });
}

#[test]
fn the_end_of_a_channel_wakes_a_select() {
    explore(&[], |_| {
        let (to_a, a) = unbounded::<u32>();
        let (_to_b, b) = unbounded::<u32>();
        let goes = thread::spawn(move || drop(to_a));
        Party::new(0).on(|| {
            select! {
                n = &b => unreachable!("{n:?}"),
                n = &a => assert_eq!(n, Err(RecvError::Disconnected)),
            }
        });
        goes.join().unwrap();
    });
}

/// Lists that are taken whole, as a request's is: the owner of a node in both cannot tell who has woken it, and leaves both.
#[test]
fn a_node_of_several_is_let_go_of_by_every_taker() {
    explore(&[], |_| {
        struct List(Mutex<(WaitQueue, bool)>);
        // SAFETY: the lock.
        unsafe impl Send for List {}
        // SAFETY: as above.
        unsafe impl Sync for List {}
        let lists = [0; 2].map(|_| Arc::new(List(Mutex::new((WaitQueue::new(), false)))));
        let takers = lists.each_ref().map(|list| {
            let list = list.clone();
            thread::spawn(move || {
                let mut held = list.0.lock().unwrap();
                held.1 = true;
                // SAFETY: Q1: the lock; nobody comes there any more.
                let taken = unsafe { held.0.take() };
                drop(held);
                // SAFETY: as above.
                unsafe { taken.wake_all() }.notify(0);
            })
        });
        Party::new(0).on(|| {
            // SAFETY: the party's.
            let context = unsafe { current().unwrap().as_ref() };
            // SAFETY: C2: this is the party's thread; C4: for nothing that is followed.
            let ticket = unsafe { context.begin(Reason::Select, std::ptr::null_mut()) };
            // SAFETY: C1: the party outlives them.
            let nodes = [0; 2].map(|_| unsafe { WaitNode::one_of_several(context, ticket) });
            let listed: Vec<bool> = lists
                .iter()
                .zip(&nodes)
                .map(|(list, node)| {
                    let held = list.0.lock().unwrap();
                    if !held.1 {
                        // SAFETY: Q1, Q2: the lock; the node stays until it has left, below.
                        unsafe { held.0.push(node) };
                    }
                    !held.1
                })
                .collect();
            if listed.contains(&true) && (listed[0] && listed[1] || !context.withdraw(ticket)) {
                // SAFETY: on its own stack, after `begin`.
                assert_eq!(unsafe { context.park(None) }, Cause::Woken);
            } else if !listed.contains(&true) {
                // SAFETY: C2: begun above, and not parked.
                unsafe { context.abandon(ticket) };
            }
            for ((list, node), _) in lists.iter().zip(&nodes).zip(&listed).filter(|(_, listed)| **listed) {
                let held = list.0.lock().unwrap();
                if held.1 {
                    drop(held);
                    node.await_release();
                } else {
                    // SAFETY: Q1, Q2: it stands there.
                    unsafe { held.0.unlink(node) };
                }
            }
        });
        for taker in takers {
            taker.join().unwrap();
        }
    });
}
