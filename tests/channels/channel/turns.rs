//! Which waiter is served next; and the rest.

use std::thread;

use forebear::channel::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError, bounded,
};
use forebear::{Error, Priority, no_suspend};

use super::cancelling::asleep;
use super::support::order::{on_one, root};
use super::support::{Joined, on_each, until};
use super::{channel, each_capacity};

// ---- order ----------------------------------------------------------------------------------------------------------

const MIXED: [(&str, Priority); 4] = [
    ("normal 1", Priority::NORMAL),
    ("background", Priority::BACKGROUND),
    ("normal 2", Priority::NORMAL),
    ("urgent", Priority::URGENT),
];

#[test]
fn the_most_urgent_receiver_gets_the_first_item_and_equals_by_age() {
    on_one(|runtime, log| {
        let (sender, receiver) = bounded(0);
        let waiters: Vec<_> = MIXED
            .into_iter()
            .map(|(name, priority)| {
                let (receiver, log) = (receiver.clone(), log.clone());
                let waiter = root(runtime).priority(priority).spawn(move || {
                    let n: u32 = receiver.recv().unwrap();
                    log.note(format!("{n} {name}"));
                });
                asleep(&waiter);
                waiter
            })
            .collect();
        for n in 0..4 {
            sender.try_send(n).unwrap();
        }
        for waiter in &waiters {
            waiter.wait().unwrap();
        }
        let mut told = log.told();
        told.sort();
        assert_eq!(told, ["0 urgent", "1 normal 1", "2 normal 2", "3 background"]);
    });
}

#[test]
fn the_most_urgent_sender_gets_the_first_place_and_equals_by_age() {
    on_one(|runtime, _| {
        for capacity in [0, 1] {
            let (sender, receiver) = bounded(capacity);
            (0..capacity).for_each(|_| sender.send("first").unwrap());
            let waiters: Vec<_> = MIXED
                .into_iter()
                .map(|(name, priority)| {
                    let sender = sender.clone();
                    let waiter = root(runtime).priority(priority).spawn(move || sender.send(name).unwrap());
                    asleep(&waiter);
                    waiter
                })
                .collect();
            (0..capacity).for_each(|_| assert_eq!(receiver.recv(), Ok("first")));
            let got: Vec<_> = (0..4).map(|_| receiver.recv().unwrap()).collect();
            assert_eq!(got, ["urgent", "normal 1", "normal 2", "background"]);
            for waiter in &waiters {
                waiter.wait().unwrap();
            }
        }
    });
}

/// What was given to a waiter is its own before it runs.
#[test]
fn no_newcomer_snatches_what_was_given_to_a_waiter() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(1);
        let theirs = receiver.clone();
        let waits = root(runtime).spawn(move || theirs.recv());
        asleep(&waits);
        sender.send(1).unwrap();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(waits.wait().unwrap(), &Ok(1));
    });
}

// ---- the rest -------------------------------------------------------------------------------------------------------

#[test]
fn a_region_that_must_not_suspend_panics_only_if_it_would_wait() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let (sender, receiver) = bounded(1);
            no_suspend("region", || {
                sender.send(1).unwrap();
                assert_eq!(receiver.recv(), Ok(1));
                sender.send(2).unwrap();
            });
            let sends = std::panic::catch_unwind(|| no_suspend("region", || sender.send(3).is_ok()));
            assert!(sends.is_err());
            receiver.recv().unwrap();
            let receives = std::panic::catch_unwind(|| no_suspend("region", || receiver.recv().is_ok()));
            assert!(receives.is_err());
            // And nobody waits there.
            assert_eq!((sender.len(), receiver.try_recv()), (0, Err(TryRecvError::Empty)));
        });
        request.wait().unwrap();
    });
}

#[test]
fn errors_say_what_they_mean_and_have_a_source_if_it_is_a_cancellation() {
    use std::error::Error as _;
    struct Opaque;
    assert!(SendError::Cancelled(Opaque).source().is_some_and(|s| s.is::<forebear::Cancelled>()));
    assert!(SendError::Disconnected(Opaque).source().is_none());
    assert!(SendTimeoutError::Cancelled(Opaque).source().is_some());
    assert!(SendTimeoutError::TimedOut(Opaque).source().is_none());
    assert!(RecvError::Cancelled.source().is_some() && RecvError::Disconnected.source().is_none());
    assert!(RecvTimeoutError::Cancelled.source().is_some() && RecvTimeoutError::TimedOut.source().is_none());
    assert!(Error::from(RecvError::Cancelled).is_cancelled());
    assert_eq!(format!("{:?} {0}", TrySendError::Full(Opaque)), "Full(..) sending on a full channel");
    assert_eq!(RecvTimeoutError::TimedOut.to_string(), "the receive timed out");
    assert_eq!(RecvTimeoutError::from(RecvError::Cancelled), RecvTimeoutError::Cancelled);
    assert_eq!(SendTimeoutError::from(SendError::Disconnected(1)), SendTimeoutError::Disconnected(1));
    let (sender, receiver) = bounded::<Opaque>(3);
    assert_eq!(format!("{sender:?}"), "Sender { len: 0, capacity: Some(3), .. }");
    assert_eq!(format!("{receiver:?}"), "Receiver { len: 0, capacity: Some(3), .. }");
}

/// A token goes round: every hop wakes a waiter.
#[test]
fn a_ring_of_requests_and_threads_hands_a_token_on() {
    on_each(|runtime| {
        const ROUNDS: usize = 50;
        each_capacity(|capacity| {
            let (first, mut receiver) = channel::<usize>(capacity);
            let mut requests = Vec::new();
            let mut threads = Vec::new();
            for member in 0..5 {
                let (sender, next) = channel(capacity);
                let from = std::mem::replace(&mut receiver, next);
                let pass = move || from.iter().try_for_each(|n| sender.send(n + 1)).is_ok();
                match member % 2 {
                    0 => requests.push(runtime.spawn(pass)),
                    _ => threads.push(thread::spawn(pass)),
                }
            }
            for _ in 0..ROUNDS {
                first.send(0).unwrap();
                assert_eq!(receiver.recv(), Ok(5));
            }
            drop(first);
            assert!(requests.iter().all(|request| *request.wait().unwrap()));
            assert!(threads.into_iter().all(|thread| thread.joined().unwrap()));
        });
    });
}

#[test]
fn a_wait_that_begins_as_the_other_side_goes_ends() {
    on_each(|runtime| {
        for _ in 0..200 {
            let (sender, receiver) = bounded::<u32>(0);
            let request = runtime.spawn(move || drop(sender));
            assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
            request.wait().unwrap();
            let (sender, receiver) = bounded::<u32>(0);
            let request = runtime.spawn(move || drop(receiver));
            assert_eq!(sender.send(1), Err(SendError::Disconnected(1)));
            request.wait().unwrap();
            until(|| request.is_done());
        }
    });
}
