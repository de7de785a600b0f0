//! The channel of one item, and that of the newest value.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled};
use forebear::channel::{RecvError, RecvTimeoutError, TryRecvError, oneshot, watch};
use forebear::{CancelReason, Request, select};
use support::order::root;
use support::{Count, Joined, in_both_worlds, on_each};

const LONG: Duration = Duration::from_secs(100);

// ---- one item ------------------------------------------------------------------------------------------------------------------

#[test]
fn one_item_arrives_before_or_after_it_is_waited_for() {
    on_each(|runtime| {
        let (sender, receiver) = oneshot::channel();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        sender.send(1).unwrap();
        assert!(receiver.is_ready());
        assert_eq!(receiver.recv(), Ok(1));
        let (sender, receiver) = oneshot::channel();
        let waits = root(runtime).spawn(move || receiver.recv());
        asleep(&waits);
        sender.send(2).unwrap();
        assert_eq!(waits.wait().unwrap(), &Ok(2));
        let (sender, receiver) = oneshot::channel();
        let sends = thread::spawn(move || sender.send(3));
        assert_eq!(receiver.recv(), Ok(3));
        sends.joined().unwrap().unwrap();
    });
}

#[test]
fn one_item_that_was_had_is_gone() {
    in_both_worlds(|| {
        let (sender, receiver) = oneshot::channel();
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::TimedOut));
        sender.send(1).unwrap();
        assert_eq!(receiver.recv_timeout(LONG), Ok(1));
        assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
    });
}

#[test]
fn either_side_of_one_item_learns_that_the_other_is_gone() {
    on_each(|runtime| {
        let (sender, receiver) = oneshot::channel::<u32>();
        drop(sender);
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        let (sender, receiver) = oneshot::channel::<u32>();
        let waits = root(runtime).spawn(move || receiver.recv());
        asleep(&waits);
        drop(sender);
        assert_eq!(waits.wait().unwrap(), &Err(RecvError::Disconnected));
        let (sender, receiver) = oneshot::channel();
        assert!(!sender.is_disconnected());
        drop(receiver);
        assert!(sender.is_disconnected());
        assert_eq!(sender.send(1), Err(1));
    });
}

/// Several wait by one `&Receiver`: one has the item, and each other one learns that nothing comes any more.
#[test]
fn waiters_for_one_item_that_another_has_learn_that_the_sender_is_gone() {
    on_each(|runtime| {
        let (sender, receiver) = oneshot::channel();
        let receiver = Arc::new(receiver);
        let waits = [(); 4].map(|()| receiver.clone()).map(|receiver| {
            root(runtime).own_stack().spawn(move || {
                select! {
                    told = &*receiver => told,
                }
            })
        });
        waits.iter().for_each(asleep);
        let timed = root(runtime).own_stack().spawn({
            let receiver = receiver.clone();
            move || receiver.recv_timeout(Duration::MAX)
        });
        asleep(&timed);
        sender.send(1).unwrap();
        let told = waits.each_ref().map(|waits| *waits.wait().unwrap());
        assert_eq!(told.iter().filter(|&&told| told == Ok(1)).count(), 1);
        assert_eq!(told.iter().filter(|&&told| told == Err(RecvError::Disconnected)).count(), 3);
        assert_eq!(timed.wait().unwrap(), &Err(RecvTimeoutError::Disconnected));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn one_item_that_nobody_has_received_is_dropped() {
    in_both_worlds(|| {
        let dropped = Count::new();
        let (sender, receiver) = oneshot::channel();
        sender.send(dropped.probe()).unwrap();
        assert_eq!(dropped.get(), 0);
        drop(receiver);
        assert_eq!(dropped.get(), 1);
        let (sender, receiver) = oneshot::channel();
        sender.send(dropped.probe()).unwrap();
        drop(receiver.recv().unwrap());
        assert_eq!(dropped.get(), 2);
    });
}

#[test]
fn a_cancel_ends_the_wait_for_one_item() {
    on_each(|runtime| {
        let (sender, receiver) = oneshot::channel::<u32>();
        let waits = root(runtime).try_spawn(move || Ok(receiver.recv()?));
        asleep(&waits);
        waits.cancel();
        ends_cancelled(&waits);
        assert_eq!(sender.send(1), Err(1));
        let request = root(runtime).spawn(|| {
            Request::current().unwrap().abort(CancelReason::Asked);
            let (sender, receiver) = oneshot::channel();
            sender.send(1).unwrap();
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Cancelled));
            assert_eq!(receiver.try_recv(), Ok(1));
        });
        ends_cancelled(&request);
    });
}

// ---- the newest value ----------------------------------------------------------------------------------------------------------

#[test]
fn the_newest_value_is_seen_once_by_each_receiver() {
    in_both_worlds(|| {
        let (sender, mut one) = watch::channel(0);
        let mut two = one.clone();
        assert!(!one.has_changed());
        assert_eq!(one.try_recv(), Err(TryRecvError::Empty));
        assert_eq!((*one.get(), *sender.get()), (0, 0));
        (1..4).for_each(|n| sender.send(n).unwrap());
        assert!(one.has_changed() && two.has_changed());
        assert_eq!((*one.recv().unwrap(), *two.recv_timeout(LONG).unwrap()), (3, 3));
        assert_eq!(one.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::TimedOut));
        assert_eq!(*two.get(), 3);
        let mut late = sender.receiver();
        assert_eq!(late.try_recv(), Err(TryRecvError::Empty));
        sender.clone().send(4).unwrap();
        assert!([one, two, late].iter_mut().all(|receiver| *receiver.try_recv().unwrap() == 4));
    });
}

#[test]
fn a_newer_value_wakes_all_who_wait() {
    on_each(|runtime| {
        let (sender, receiver) = watch::channel(0);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let mut receiver = receiver.clone();
                let request = root(runtime).spawn(move || *receiver.recv().unwrap());
                asleep(&request);
                request
            })
            .collect();
        let mut receiver = receiver;
        let thread = thread::spawn(move || *receiver.recv().unwrap());
        sender.send(7).unwrap();
        assert!(waiting.iter().all(|request| *request.wait().unwrap() == 7));
        assert_eq!(thread.joined().unwrap(), 7);
    });
}

#[test]
fn the_last_value_is_seen_though_nobody_sends_any_more() {
    on_each(|runtime| {
        let (sender, mut receiver) = watch::channel(0);
        let again = sender.clone();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(*receiver.recv().unwrap(), 1);
        let mut theirs = receiver.clone();
        let waits = root(runtime).spawn(move || theirs.recv().map(|_| ()));
        asleep(&waits);
        drop(again);
        assert_eq!(waits.wait().unwrap(), &Err(RecvError::Disconnected));
        assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(*receiver.get(), 1);
    });
}

#[test]
fn a_value_without_receivers_comes_back_and_old_values_go() {
    in_both_worlds(|| {
        let dropped = Count::new();
        let (sender, receiver) = watch::channel(dropped.probe());
        assert!(sender.send(dropped.probe()).is_ok());
        assert_eq!(dropped.get(), 1);
        let kept = receiver.get();
        sender.send(dropped.probe()).unwrap();
        assert_eq!(dropped.get(), 1);
        drop(kept);
        assert_eq!(dropped.get(), 2);
        drop(receiver);
        assert!(sender.is_disconnected());
        drop(sender.send(dropped.probe()).unwrap_err());
        assert_eq!(dropped.get(), 3);
        let receiver = sender.receiver();
        assert!(!sender.is_disconnected());
        drop((sender, receiver));
        assert_eq!(dropped.get(), 4);
    });
}

#[test]
fn a_cancel_ends_the_wait_for_a_newer_value() {
    on_each(|runtime| {
        let (sender, receiver) = watch::channel(0);
        let mut theirs = receiver.clone();
        let waits = root(runtime).try_spawn(move || Ok(*theirs.recv()?));
        asleep(&waits);
        waits.cancel();
        ends_cancelled(&waits);
        sender.send(1).unwrap();
        let mut theirs = receiver.clone();
        let request = root(runtime).spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            assert_eq!(theirs.recv(), Err(RecvError::Cancelled));
            assert_eq!(*theirs.try_recv().unwrap(), 1);
        });
        ends_cancelled(&request);
        assert!(receiver.has_changed());
    });
}

/// What is sent in the moment in which somebody begins to wait is not missed.
#[test]
fn no_newer_value_is_missed() {
    on_each(|runtime| {
        let (sender, mut receiver) = watch::channel(0);
        let (done, wait) = oneshot::channel();
        let request = runtime.spawn(move || {
            let mut seen = 0;
            while let Ok(value) = receiver.recv() {
                assert!(*value > seen);
                seen = *value;
            }
            done.send(seen).unwrap();
        });
        for n in 1..=500 {
            sender.send(n).unwrap();
        }
        drop(sender);
        assert_eq!(wait.recv(), Ok(500));
        request.wait().unwrap();
    });
}
