//! What arrives, and how the sides end.

use std::sync::Arc;
use std::thread;

use forebear::channel::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError, bounded, unbounded,
};
use forebear::sync::Mutex;
use forebear::yield_now;

use super::cancelling::asleep;
use super::support::order::root;
use super::support::{Count, Joined, in_both_worlds, on_each};
use super::{LONG, channel, each_capacity};

// ---- what arrives ---------------------------------------------------------------------------------------------------

#[test]
fn items_come_out_in_the_order_in_which_they_went_in() {
    on_each(|runtime| {
        each_capacity(|capacity| {
            let (sender, receiver) = channel(capacity);
            let producer = runtime.spawn(move || (0..100).try_for_each(|n| sender.send(n)).is_ok());
            let got: Vec<u32> = receiver.iter().collect();
            assert_eq!(got, (0..100).collect::<Vec<_>>());
            assert!(producer.wait().unwrap());
        });
    });
}

#[test]
fn each_item_goes_to_one_receiver_whoever_sends_and_receives() {
    on_each(|runtime| {
        each_capacity(|capacity| {
            const EACH: usize = 60;
            let (sender, receiver) = channel(capacity);
            let produce = |of: usize| {
                let sender = sender.clone();
                move || {
                    for n in 0..EACH {
                        sender.send((of, n)).unwrap();
                        if n % 7 == 0 {
                            let _ = yield_now();
                        }
                    }
                }
            };
            let got = Arc::new(Mutex::new(Vec::new()));
            let consume = || {
                let (receiver, got) = (receiver.clone(), got.clone());
                move || {
                    while let Ok(item) = receiver.recv() {
                        got.lock().push(item);
                    }
                }
            };
            let requests: Vec<_> = (0..3).map(|of| runtime.spawn(produce(of))).collect();
            let takers: Vec<_> = (0..2).map(|_| runtime.spawn(consume())).collect();
            let mut threads: Vec<_> = (3..5).map(|of| thread::spawn(produce(of))).collect();
            threads.push(thread::spawn(consume()));
            drop((sender, receiver));
            for thread in threads {
                thread.joined().unwrap();
            }
            for request in requests.iter().chain(&takers) {
                request.wait().unwrap();
            }
            let mut got = std::mem::take(&mut *got.lock());
            got.sort_unstable();
            let sent: Vec<_> = (0..5).flat_map(|of| (0..EACH).map(move |n| (of, n))).collect();
            assert_eq!(got, sent);
        });
    });
}

#[test]
fn a_channel_of_no_capacity_holds_nothing_and_a_send_ends_when_its_item_is_received() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(0);
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(sender.capacity(), Some(0));
        assert!(sender.is_full() && sender.is_empty() && receiver.is_full() && receiver.is_empty());
        let theirs = sender.clone();
        let waits = root(runtime).spawn(move || theirs.send(2));
        asleep(&waits);
        assert_eq!(receiver.len(), 0);
        assert_eq!(receiver.try_recv(), Ok(2));
        assert_eq!(waits.wait().unwrap(), &Ok(()));
        // And a receiver that waits takes what is merely tried.
        let taker = root(runtime).spawn(move || receiver.recv());
        asleep(&taker);
        assert_eq!(sender.try_send(3), Ok(()));
        assert_eq!(taker.wait().unwrap(), &Ok(3));
    });
}

#[test]
fn a_bounded_one_holds_as_many_as_it_says() {
    in_both_worlds(|| {
        let (sender, receiver) = bounded(2);
        assert!(receiver.is_empty() && !receiver.is_full());
        assert_eq!((sender.send(1), sender.try_send(2)), (Ok(()), Ok(())));
        assert!(sender.is_full() && sender.len() == 2);
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!(sender.try_send(4), Ok(()));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        let (sender, receiver) = unbounded();
        (0..10_000).for_each(|n| sender.send(n).unwrap());
        assert_eq!((sender.capacity(), sender.is_full(), receiver.len()), (None, false, 10_000));
        assert!(receiver.try_iter().eq(0..10_000));
        let (other, _end) = unbounded::<i32>();
        assert!(sender.same_channel(&sender.clone()) && !sender.same_channel(&other));
        assert!(receiver.same_channel(&receiver.clone()));
    });
}

// ---- how the sides end ----------------------------------------------------------------------------------------------

#[test]
fn what_was_sent_is_received_though_the_senders_are_gone() {
    in_both_worlds(|| {
        each_capacity(|capacity| {
            let (sender, receiver) = channel(capacity);
            let again = sender.clone();
            let room = capacity.unwrap_or(5);
            (0..room).for_each(|n| sender.send(n).unwrap());
            drop(sender);
            assert!(room == 0 || receiver.recv() == Ok(0));
            drop(again);
            assert!(receiver.iter().eq(1..room));
            assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        });
    });
}

#[test]
fn the_last_sender_wakes_all_who_receive() {
    on_each(|runtime| {
        let (sender, receiver) = bounded::<u32>(1);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let receiver = receiver.clone();
                let request = root(runtime).spawn(move || receiver.recv());
                asleep(&request);
                request
            })
            .collect();
        let again = sender.clone();
        drop(sender);
        drop(again);
        for request in &waiting {
            assert_eq!(request.wait().unwrap(), &Err(RecvError::Disconnected));
        }
    });
}

#[test]
fn the_last_receiver_gives_waiting_senders_their_items_back_and_drops_what_is_left() {
    on_each(|runtime| {
        for capacity in [0, 2] {
            let (sender, receiver) = bounded(capacity);
            let dropped = Count::new();
            (0..capacity).for_each(|_| sender.send(dropped.probe()).unwrap());
            let waiting: Vec<_> = (0..3)
                .map(|_| {
                    let (sender, probe) = (sender.clone(), dropped.probe());
                    let request = root(runtime).spawn(move || match sender.send(probe) {
                        Err(SendError::Disconnected(_probe)) => (),
                        other => panic!("{other:?}"),
                    });
                    asleep(&request);
                    request
                })
                .collect();
            let again = receiver.clone();
            drop(receiver);
            assert!(!sender.is_disconnected());
            assert_eq!(dropped.get(), 0);
            drop(again);
            for request in &waiting {
                request.wait().unwrap();
            }
            assert_eq!(dropped.get(), capacity + 3);
            assert!(sender.is_disconnected());
            assert!(matches!(sender.send(dropped.probe()), Err(SendError::Disconnected(_))));
            assert!(matches!(sender.try_send(dropped.probe()), Err(TrySendError::Disconnected(_))));
            let late = sender.send_timeout(dropped.probe(), LONG);
            assert!(matches!(late, Err(SendTimeoutError::Disconnected(_))));
        }
    });
}

/// An item may hold the ends of the very channel that it is in.
#[test]
fn a_channel_that_holds_its_own_ends_goes_with_the_last_receiver() {
    struct Item(#[allow(dead_code)] Box<dyn Send>);
    in_both_worlds(|| {
        let dropped = Count::new();
        let (sender, receiver) = unbounded();
        sender.send(Item(Box::new((sender.clone(), dropped.probe())))).unwrap();
        drop(sender);
        drop(receiver);
        assert_eq!(dropped.get(), 1);
    });
}
