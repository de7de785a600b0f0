//! The cases of Go's tests of channels and of its select, in our words: `docs/foreign-suites.md` says which is where.
//!
//! To close a channel is here to drop its last sender, and a nil channel is `None`.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use cancelling::asleep;
use forebear::channel::{Receiver, RecvError, Sender, TryRecvError, TrySendError, bounded, unbounded};
use forebear::{Request, select, spawn, yield_now};
use support::order::root;
use support::{Count, in_both_worlds, on_each};

#[test]
fn of_every_capacity() {
    on_each(|runtime| {
        for capacity in 0..8_usize {
            // A receive of an empty one waits, a try does not.
            let (sender, receiver) = bounded(capacity);
            let waiting = [0; 2].map(|_| {
                let receiver = receiver.clone();
                let waiting = root(runtime).spawn(move || receiver.recv());
                asleep(&waiting);
                waiting
            });
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            assert!(select! { _ = &receiver => false, else => true });
            (0..2).for_each(|_| sender.send(0).unwrap());
            assert!(waiting.iter().all(|waiting| waiting.wait().unwrap() == &Ok(0)));
            // A send to a full one, too.
            (0..capacity).for_each(|n| sender.send(n).unwrap());
            assert_eq!((sender.len(), sender.capacity()), (capacity, Some(capacity)));
            let again = sender.clone();
            let sends = root(runtime).spawn(move || again.send(99));
            asleep(&sends);
            assert_eq!(sender.try_send(7), Err(TrySendError::Full(7)));
            assert!(select! { _ = sender.send_arm(7) => false, else => true });
            // What was sent before the end comes in order, then the end.
            let first = receiver.recv().unwrap();
            assert_eq!(first, if capacity == 0 { 99 } else { 0 });
            sends.wait().unwrap().unwrap();
            drop(sender);
            let left: Vec<_> = receiver.iter().collect();
            assert_eq!(left.len(), capacity);
            assert!(left.iter().take(capacity.saturating_sub(1)).copied().eq(1..capacity));
            assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
            // The end wakes.
            let (sender, receiver) = bounded::<u32>(capacity);
            let waits = root(runtime).spawn(move || receiver.recv());
            asleep(&waits);
            drop(sender);
            assert_eq!(waits.wait().unwrap(), &Err(RecvError::Disconnected));
            // A hundred in order.
            let (sender, receiver) = bounded(capacity);
            let sends = runtime.spawn(move || (0..100).for_each(|n| sender.send(n).unwrap()));
            assert!(receiver.iter().eq(0..100));
            sends.wait().unwrap();
            // Four that send, four that receive: each item comes as often as it was sent.
            let (sender, receiver) = bounded(capacity);
            let all: Vec<Request<()>> = (0..4)
                .map(|_| {
                    let sender = sender.clone();
                    runtime.spawn(move || (0..100).for_each(|n| sender.send(n).unwrap()))
                })
                .collect();
            drop(sender);
            let takers: Vec<_> = (0..4)
                .map(|_| {
                    let receiver = receiver.clone();
                    runtime.spawn(move || receiver.iter().take(100).collect::<Vec<usize>>())
                })
                .collect();
            let mut counts = BTreeMap::new();
            for taker in &takers {
                taker.wait().unwrap().iter().for_each(|n| *counts.entry(*n).or_insert(0) += 1);
            }
            assert!(counts.len() == 100 && counts.values().all(|&n| n == 4), "{counts:?}");
            all.iter().for_each(|sends| _ = sends.wait().unwrap());
        }
    });
}

#[test]
fn what_was_sent_is_there_for_who_does_not_wait() {
    on_each(|runtime| {
        for _ in 0..100 {
            let (sender, receiver) = bounded(1);
            sender.send(1).unwrap();
            let theirs = receiver.clone();
            let takes = runtime.spawn(move || select! { n = &theirs => n.is_ok(), else => false });
            drop(sender);
            // It alone receives.
            assert!(*takes.wait().unwrap());
            assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
        }
    });
}

/// Somebody else receives meanwhile: either has the item, the other is told of the end, and neither finds nothing.
#[test]
fn what_was_sent_is_there_for_one_of_two_and_the_end_for_the_other() {
    on_each(|runtime| {
        for _ in 0..1000 {
            let (sender, receiver) = bounded(1);
            sender.send(1).unwrap();
            let theirs = receiver.clone();
            let looks = runtime.spawn(move || select! { n = &theirs => Some(n.is_ok()), else => None });
            drop(sender);
            let mine = receiver.recv().is_ok();
            assert_eq!(*looks.wait().unwrap(), Some(!mine));
        }
    });
}

#[test]
fn a_select_that_sends_and_receives_on_one_channel() {
    on_each(|runtime| {
        for capacity in [0, 10] {
            let (sender, receiver) = bounded(capacity);
            let party = |own: usize| {
                let (sender, receiver) = (sender.clone(), receiver.clone());
                move || {
                    for n in 0..300 {
                        if own == 0 || n % 2 == 0 {
                            select! {
                                sent = sender.send_arm(own) => sent.unwrap(),
                                got = &receiver => assert!(capacity > 0 || got.unwrap() != own),
                            }
                        } else {
                            select! {
                                got = &receiver => assert!(capacity > 0 || got.unwrap() != own),
                                sent = sender.send_arm(own) => sent.unwrap(),
                            }
                        }
                    }
                }
            };
            let parties = [runtime.spawn(party(0)), runtime.spawn(party(1))];
            parties.iter().for_each(|party| _ = party.wait().unwrap());
        }
    });
}

#[test]
fn senders_receivers_and_selects_on_four_channels() {
    on_each(|runtime| {
        const EACH: usize = 200;
        let ends: [(Sender<u32>, Receiver<u32>); 4] = [bounded(0), bounded(0), bounded(2), bounded(3)];
        let mut all = Vec::new();
        for (sender, receiver) in ends.clone() {
            all.push(runtime.spawn(move || (0..EACH).for_each(|_| sender.send(0).unwrap())));
            all.push(runtime.spawn(move || (0..EACH).for_each(|_| _ = receiver.recv().unwrap())));
        }
        let senders = ends.clone().map(|(sender, _)| sender);
        all.push(runtime.spawn(move || {
            let mut left = [EACH; 4];
            for _ in 0..4 * EACH {
                let sending = |n: usize| (left[n] > 0).then(|| senders[n].send_arm(0));
                let at = select! {
                    sent = sending(3) => { sent.unwrap(); 3 }
                    sent = sending(2) => { sent.unwrap(); 2 }
                    sent = sending(0) => { sent.unwrap(); 0 }
                    sent = sending(1) => { sent.unwrap(); 1 }
                };
                left[at] -= 1;
            }
        }));
        let receivers = ends.map(|(_, receiver)| receiver);
        all.push(runtime.spawn(move || {
            let mut left = [EACH; 4];
            for _ in 0..4 * EACH {
                let of = |n: usize| (left[n] > 0).then_some(&receivers[n]);
                let at = select! {
                    got = of(0) => { got.unwrap(); 0 }
                    got = of(1) => { got.unwrap(); 1 }
                    got = of(2) => { got.unwrap(); 2 }
                    got = of(3) => { got.unwrap(); 3 }
                };
                left[at] -= 1;
            }
        }));
        all.iter().for_each(|request| _ = request.wait().unwrap());
    });
}

#[test]
fn neither_of_two_that_are_always_ready_starves() {
    on_each(|runtime| {
        let ((to_a, a), (to_b, b)) = (unbounded(), unbounded());
        (0..2000).for_each(|_| {
            to_a.send(()).unwrap();
            to_b.send(()).unwrap();
        });
        let counts = runtime.spawn(move || {
            let mut counts = [0; 2];
            for _ in 0..2000 {
                select! {
                    got = &a => { got.unwrap(); counts[0] += 1 }
                    got = &b => { got.unwrap(); counts[1] += 1 }
                }
            }
            counts
        });
        assert!(counts.wait().unwrap().iter().all(|&n| n > 500), "{counts:?}");
    });
}

#[test]
fn of_two_sends_that_are_ready_either_is_taken() {
    on_each(|runtime| {
        for capacity in [0, 100] {
            let (sender, receiver) = bounded(capacity);
            let takes = runtime.spawn(move || receiver.iter().take(100).map(usize::from).sum::<usize>());
            let sends = runtime.spawn(move || {
                for _ in 0..100 {
                    let _ = yield_now();
                    select! {
                        sent = sender.send_arm(true) => sent.unwrap(),
                        sent = sender.send_arm(false) => sent.unwrap(),
                    }
                }
            });
            sends.wait().unwrap();
            let ones = *takes.wait().unwrap();
            assert!((10..=90).contains(&ones), "{ones} of 100, capacity {capacity}");
        }
    });
}

#[test]
fn many_consumers_pass_on_what_they_get() {
    on_each(|runtime| {
        const WORKERS: usize = 23;
        const ITEMS: usize = 2_000;
        let ((to_work, work), (to_end, end)) = (bounded(WORKERS * 3), bounded(WORKERS * 3));
        for worker in 0..WORKERS {
            let (work, to_end) = (work.clone(), to_end.clone());
            runtime.spawn(move || {
                for item in work.iter() {
                    if item % 10 == worker % 10 {
                        let _ = yield_now();
                    }
                    to_end.send(item).unwrap();
                }
            });
        }
        drop((work, to_end));
        let feeds = runtime.spawn(move || (0..ITEMS).for_each(|n| to_work.send(n).unwrap()));
        let (mut count, mut sum) = (0, 0);
        for item in end.iter() {
            count += 1;
            sum += item;
        }
        assert_eq!((count, sum), (ITEMS, (0..ITEMS).sum()));
        feeds.wait().unwrap();
    });
}

#[test]
fn a_select_may_stand_twice_in_one_channel() {
    on_each(|runtime| {
        let ((to_c, c), (to_d, d), (to_e, e)) = (bounded(0), bounded::<u32>(0), bounded(1));
        let theirs = c.clone();
        let first = root(runtime).spawn(move || {
            select! {
                got = &theirs => _ = got.unwrap(),
                got = &theirs => _ = got.unwrap(),
                got = &d => _ = got.unwrap(),
            }
            to_e.send(9).unwrap();
        });
        asleep(&first);
        let second = root(runtime).spawn(move || c.recv());
        asleep(&second);
        to_d.send(7).unwrap();
        assert_eq!(e.recv(), Ok(9));
        to_c.send(8).unwrap();
        assert_eq!(second.wait().unwrap(), &Ok(8));
        first.wait().unwrap();
    });
}

/// The line behind which it stood is whole when it has gone.
#[test]
fn a_select_that_is_the_last_in_a_line_leaves_it_whole() {
    on_each(|runtime| {
        let ((to_a, a), (to_b, b), (to_c, c)) = (bounded(0), bounded(0), bounded(1));
        let theirs = a.clone();
        let first = root(runtime).spawn(move || theirs.recv());
        asleep(&first);
        let second = root(runtime).spawn(move || {
            select! {
                got = &a => unreachable!("{got:?}"),
                got = &b => to_c.send(got.unwrap()).unwrap(),
            }
            a.recv()
        });
        asleep(&second);
        to_b.send(true).unwrap();
        assert_eq!(c.recv(), Ok(true));
        (0..2).for_each(|_| to_a.send(true).unwrap());
        assert!([first, second].iter().all(|request| request.wait().unwrap() == &Ok(true)));
    });
}

/// A receive, a select of one and a select of two meet each of the sends that are like them.
#[test]
fn each_way_to_send_meets_each_way_to_receive() {
    type Receive = fn(Receiver<u32>) -> u32;
    type Send = fn(Sender<u32>);
    const RECEIVES: [Receive; 3] = [
        |receiver| receiver.recv().unwrap(),
        |receiver| select! { n = &receiver => n.unwrap() },
        |receiver| {
            let (_other, never) = bounded(0);
            select! { n = &receiver => n.unwrap(), n = &never => n.unwrap() }
        },
    ];
    const SENDS: [Send; 3] = [
        |sender| sender.send(1).unwrap(),
        |sender| select! { sent = sender.send_arm(1) => sent.unwrap() },
        |sender| {
            let (other, _never) = bounded(0);
            select! { sent = sender.send_arm(1) => sent.unwrap(), sent = other.send_arm(2) => sent.unwrap() }
        },
    ];
    on_each(|runtime| {
        for receive in RECEIVES {
            for send in SENDS {
                let (sender, receiver) = bounded(0);
                let receives = runtime.spawn(move || receive(receiver));
                let _ = yield_now();
                send(sender);
                assert_eq!(receives.wait().unwrap(), &1);
            }
        }
    });
}

// ---- test/chan -----------------------------------------------------------------------------------------------------------------

#[test]
fn two_ways_into_one_are_merged_without_doubles() {
    on_each(|runtime| {
        const ITEMS: u32 = 1_000;
        let ways: [(Sender<u32>, Receiver<u32>); 4] = std::array::from_fn(|_| bounded(0));
        let [a, b, c, d] = ways.clone().map(|(sender, _)| sender);
        runtime.spawn(move || {
            for n in 0..ITEMS {
                select! {
                    sent = a.send_arm(n) => sent.unwrap(),
                    sent = b.send_arm(n) => sent.unwrap(),
                    sent = c.send_arm(n) => sent.unwrap(),
                    sent = d.send_arm(n) => sent.unwrap(),
                }
            }
        });
        let (merged, all) = bounded(0);
        for (_, receiver) in ways {
            let merged = merged.clone();
            runtime.spawn(move || receiver.iter().for_each(|n| merged.send(n).unwrap()));
        }
        drop(merged);
        let mut got: Vec<_> = all.iter().collect();
        got.sort_unstable();
        assert!(got.into_iter().eq(0..ITEMS));
    });
}

#[test]
fn a_long_line_of_requests_hands_on_in_order() {
    on_each(|runtime| {
        let (first, mut receiver) = bounded(0);
        for _ in 0..1_000 {
            let (sender, next) = bounded(0);
            let from = std::mem::replace(&mut receiver, next);
            runtime.spawn(move || from.iter().try_for_each(|n: u32| sender.send(n + 1)));
        }
        for n in 0..3 {
            first.send(n).unwrap();
            assert_eq!(receiver.recv(), Ok(n + 1_000));
        }
    });
}

/// What can be looked for without waiting, of items of several kinds.
#[test]
fn nothing_of_any_kind_waits_where_it_must_not() {
    fn of<T: Clone + PartialEq + std::fmt::Debug + Send + 'static>(item: T) {
        let (sender, receiver) = bounded(0);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(sender.try_send(item.clone()), Err(TrySendError::Full(item.clone())));
        let (theirs, expected) = (receiver.clone(), item.clone());
        let takes = Request::builder().own_stack().spawn(move || assert_eq!(theirs.recv(), Ok(expected)));
        while sender.try_send(item.clone()).is_err() {
            let _ = yield_now();
        }
        takes.wait().unwrap();
        let gives = {
            let (sender, item) = (sender.clone(), item.clone());
            Request::builder().own_stack().spawn(move || sender.send(item).is_ok())
        };
        let got = loop {
            match receiver.try_recv() {
                Ok(got) => break got,
                Err(_) => _ = yield_now(),
            }
        };
        assert_eq!(got, item);
        assert!(*gives.wait().unwrap());
        let (sender, receiver) = bounded(1);
        assert!(select! { sent = sender.send_arm(item.clone()) => sent.is_ok(), else => false });
        assert!(sender.try_send(item.clone()).is_err());
        assert!(select! { got = &receiver => got == Ok(item), else => false });
    }
    in_both_worlds(|| {
        of(7_i32);
        of(String::from("text"));
        of(true);
        of([0_u8; 300]);
        of(());
    });
}

/// A nil channel is never ready; with one that is, that is taken, and with `else` that.
#[test]
fn what_is_absent_is_never_ready() {
    in_both_worlds(|| {
        let (sender, receiver) = bounded(2);
        let absent: Option<&Receiver<u32>> = None;
        assert!(select! { _ = absent => false, else => true });
        let n = select! {
            _ = absent => 0,
            sent = Some(sender.send_arm(5)) => { sent.unwrap(); 1 }
        };
        assert_eq!((n, receiver.len()), (1, 1));
        drop(sender);
        let got = select! {
            got = Some(&receiver) => got,
            got = absent => got,
        };
        assert_eq!(got, Ok(5));
        assert_eq!(select! { got = &receiver => got }, Err(RecvError::Disconnected));
    });
}

/// What stands right of `=` is evaluated once, in order, and whichever arm is taken.
#[test]
fn sources_are_evaluated_once_and_in_order() {
    in_both_worlds(|| {
        let (sender, receiver) = bounded(1);
        let mut order = Vec::new();
        let mut note = |n: u32| {
            order.push(n);
            n
        };
        select! {
            sent = { note(1); &sender }.send_arm(note(2)) => sent.unwrap(),
            got = { note(3); &receiver } => _ = got.unwrap(),
            _ = { note(4); None::<&Receiver<u32>> } => unreachable!(),
        }
        assert_eq!(order, [1, 2, 3, 4]);
    });
}

#[test]
fn a_loop_of_selects_keeps_nothing() {
    on_each(|runtime| {
        let dropped = Count::new();
        let (sender, receiver) = bounded(0);
        let (stop, stopped) = bounded::<()>(0);
        let takes = runtime.spawn(move || {
            let mut got = 0;
            loop {
                select! {
                    item = &receiver => match item {
                        Ok(item) => { drop(item); got += 1 }
                        Err(_) => break got,
                    },
                    end = &stopped => end.unwrap(),
                }
            }
        });
        for _ in 0..500 {
            sender.send(dropped.probe()).unwrap();
        }
        drop(sender);
        assert_eq!(*takes.wait().unwrap(), 500);
        assert_eq!(dropped.get(), 500);
        drop(stop);
    });
}

/// A select in the body of an arm of another.
#[test]
fn selects_within_selects() {
    on_each(|_| {
        let ((to_a, a), (to_b, b)) = (bounded(1), bounded(1));
        to_a.send(1).unwrap();
        to_b.send(2).unwrap();
        let got = select! {
            one = &a => select! { two = &b => (one.unwrap(), two.unwrap()) },
            two = &b => select! { one = &a => (one.unwrap(), two.unwrap()) },
        };
        assert_eq!(got, (1, 2));
    });
}

/// The sieve: a chain of filters, each a request, as long as there are primes.
#[test]
fn the_sieve_of_requests() {
    on_each(|runtime| {
        let primes = runtime.spawn(|| {
            let (numbers, mut from) = bounded(1);
            spawn(move || (2_u32..).try_for_each(|n| numbers.send(n)));
            let mut primes = Vec::new();
            for _ in 0..25 {
                let prime = from.recv().unwrap();
                primes.push(prime);
                let (to, next) = bounded(1);
                spawn(move || from.iter().filter(|n| n % prime != 0).try_for_each(|n| to.send(n)));
                from = next;
            }
            primes
        });
        let primes = primes.wait().unwrap();
        assert_eq!((primes.len(), primes.last()), (25, Some(&97)));
    });
}

#[test]
fn items_without_size() {
    in_both_worlds(|| {
        let (sender, receiver) = bounded(1);
        sender.send(()).unwrap();
        assert_eq!(sender.try_send(()), Err(TrySendError::Full(())));
        assert_eq!((receiver.recv(), receiver.len()), (Ok(()), 0));
        let (sender, receiver) = unbounded::<[u64; 0]>();
        (0..1000).for_each(|_| sender.send([]).unwrap());
        assert_eq!(receiver.try_iter().count(), 1000);
    });
}
