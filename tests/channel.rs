//! Channels: what arrives, where and in which order; how the two sides end; and that nothing is lost by those who leave.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::channel::{
    Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError, bounded,
    unbounded,
};
use forebear::sync::Mutex;
use forebear::{CancelReason, Cancellation, Error, Priority, Request, no_suspend, shield, yield_now};
use support::order::{on_one, root};
use support::{Count, Joined, Random, in_both_worlds, on_each, until};

const LONG: Duration = Duration::from_secs(100);

/// Of every capacity that is something of its own.
fn each_capacity(mut test: impl FnMut(Option<usize>)) {
    [Some(0), Some(1), Some(3), None].into_iter().for_each(&mut test);
}

fn channel<T>(capacity: Option<usize>) -> (forebear::channel::Sender<T>, Receiver<T>) {
    capacity.map_or_else(unbounded, bounded)
}

// ---- what arrives --------------------------------------------------------------------------------------------------------------

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

// ---- how the sides end ---------------------------------------------------------------------------------------------------------

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

// ---- limits --------------------------------------------------------------------------------------------------------------------

#[test]
fn a_wait_that_times_out_leaves_no_trace() {
    in_both_worlds(|| {
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            let (sender, receiver) = bounded(0);
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
            // Nobody is there to be served.
            assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
            assert_eq!(sender.send_timeout(2, limit), Err(SendTimeoutError::TimedOut(2)));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            let (sender, receiver) = bounded(1);
            sender.send_timeout(1, limit).unwrap();
            assert_eq!(sender.send_timeout(2, limit), Err(SendTimeoutError::TimedOut(2)));
            assert_eq!(receiver.recv_timeout(limit), Ok(1));
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
        }
    });
}

#[test]
fn limits_go_by_the_clock_of_the_runtime() {
    on_each_clocked(|runtime, clock| {
        let (sender, receiver) = bounded::<u32>(1);
        sender.send(0).unwrap();
        let theirs = sender.clone();
        let sends = root(runtime).spawn(move || theirs.send_timeout(1, Duration::from_secs(5)));
        asleep(&sends);
        clock.advance(Duration::from_secs(4));
        assert!(!sends.is_done());
        clock.advance(Duration::from_secs(1));
        assert_eq!(sends.wait().unwrap(), &Err(SendTimeoutError::TimedOut(1)));
        receiver.recv().unwrap();
        let receives = root(runtime).spawn(move || receiver.recv_timeout(Duration::from_secs(5)));
        asleep(&receives);
        clock.advance(Duration::from_secs(5));
        assert_eq!(receives.wait().unwrap(), &Err(RecvTimeoutError::TimedOut));
        drop(sender);
    });
}

// ---- cancellation --------------------------------------------------------------------------------------------------------------

#[test]
fn a_cancelled_waiter_leaves_at_once_with_what_it_brought() {
    on_each(|runtime| {
        each_capacity(|capacity| {
            let (sender, receiver) = channel::<Request<()>>(capacity);
            let theirs = receiver.clone();
            let receives = root(runtime).spawn(move || theirs.recv().map(drop));
            asleep(&receives);
            assert_eq!(receives.cancel(), Cancellation::Marked);
            ends_cancelled(&receives);
            assert!(capacity != Some(0) || sender.try_send(Request::ready(())).is_err());
            let Some(room) = capacity else { return };
            (0..room).for_each(|_| sender.send(Request::ready(())).unwrap());
            let (theirs, back) = (sender.clone(), Count::new());
            let up = back.clone();
            let sends = root(runtime).spawn(move || {
                let item = Request::ready(());
                if let Err(SendError::Cancelled(item)) = theirs.send(item) {
                    assert!(item.is_done());
                    up.up();
                }
            });
            asleep(&sends);
            assert_eq!(sends.cancel(), Cancellation::Marked);
            ends_cancelled(&sends);
            assert_eq!(back.get(), 1);
            assert_eq!(receiver.try_iter().count(), room);
        });
    });
}

#[test]
fn in_a_cancelled_request_they_answer_so_even_if_they_need_not_wait() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(2);
        let request = root(runtime).spawn(move || {
            sender.send(1).unwrap();
            Request::current().unwrap().abort(CancelReason::Asked);
            assert_eq!(receiver.recv(), Err(RecvError::Cancelled));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Cancelled));
            assert_eq!(sender.send(2), Err(SendError::Cancelled(2)));
            assert_eq!(sender.send_timeout(2, LONG), Err(SendTimeoutError::Cancelled(2)));
            // These do not wait.
            assert_eq!((sender.try_send(3), receiver.try_recv()), (Ok(()), Ok(1)));
            assert_eq!(shield(|| receiver.recv()), Ok(3));
        });
        ends_cancelled(&request);
    });
}

#[test]
fn the_question_mark_ends_a_cancelled_request_as_cancelled() {
    on_each(|runtime| {
        let (sender, receiver) = bounded::<u32>(0);
        let ways: [Box<dyn FnOnce() -> Result<(), Error> + Send>; 4] = [
            Box::new({
                let receiver = receiver.clone();
                move || Ok(_ = receiver.recv()?)
            }),
            Box::new({
                let receiver = receiver.clone();
                move || Ok(_ = receiver.recv_timeout(LONG)?)
            }),
            Box::new({
                let sender = sender.clone();
                move || Ok(sender.send_timeout(1, LONG)?)
            }),
            Box::new(move || {
                let item = std::cell::Cell::new(1);
                let (sender, _receiver) = bounded(0);
                Ok(sender.send(item).map_err(SendError::without_item)?)
            }),
        ];
        for way in ways {
            let request = root(runtime).try_spawn(way);
            asleep(&request);
            request.cancel();
            ends_cancelled(&request);
        }
        // The others mean what they say.
        drop(sender);
        let failed = runtime.try_spawn(move || Ok(receiver.recv()?));
        let error = failed.wait().unwrap_err();
        assert_eq!(error.downcast_ref::<RecvError>(), Some(&RecvError::Disconnected), "{error}");
    });
}

#[test]
fn nothing_is_lost_to_those_who_leave() {
    on_each(|runtime| {
        let mut random = Random::new(7);
        for round in 0..40 {
            for capacity in [0, 1] {
                let (sender, receiver) = bounded(capacity);
                let got = Arc::new(Mutex::new(BTreeSet::new()));
                let takers: Vec<_> = (0..4)
                    .map(|_| {
                        let (receiver, got) = (receiver.clone(), got.clone());
                        runtime.spawn(move || {
                            while let Ok(item) = receiver.recv() {
                                assert!(got.lock().insert(item), "{item} came twice");
                            }
                        })
                    })
                    .collect();
                let back = Arc::new(Mutex::new(BTreeSet::new()));
                let givers: Vec<_> = (0..4)
                    .map(|of| {
                        let (sender, back) = (sender.clone(), back.clone());
                        runtime.spawn(move || {
                            for n in 0..6 {
                                if let Err(error) = sender.send(of * 6 + n) {
                                    back.lock().insert(error.into_inner());
                                }
                            }
                        })
                    })
                    .collect();
                for request in takers.iter().take(3).chain(givers.iter().take(3)) {
                    if random.below(3) > 0 {
                        request.cancel();
                    }
                    if round % 2 == 0 {
                        let _ = yield_now();
                    }
                }
                drop(sender);
                for request in &givers {
                    // One that was cancelled before it began has brought nothing.
                    let _ = request.wait();
                }
                drop(receiver);
                for request in &takers {
                    let _ = request.wait();
                }
                let (got, back) = (got.lock(), back.lock());
                assert!(got.is_disjoint(&back), "came, and came back: {:?}", got.intersection(&back));
                for (of, giver) in givers.iter().enumerate() {
                    if giver.wait().is_ok() {
                        let all = of * 6..(of + 1) * 6;
                        assert!(
                            all.clone().all(|n| got.contains(&n) || back.contains(&n)),
                            "{all:?}: {got:?} {back:?}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn iteration_ends_with_the_senders_and_unwinds_if_it_is_cancelled() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(1);
        let (theirs, got) = (receiver.clone(), Count::new());
        let counts = got.clone();
        let request = root(runtime).spawn(move || theirs.into_iter().for_each(|()| _ = counts.up()));
        sender.send(()).unwrap();
        got.wait_for(1);
        asleep(&request);
        request.cancel();
        ends_cancelled(&request);
        sender.send(()).unwrap();
        drop(sender);
        assert_eq!((&receiver).into_iter().count(), 1);
        assert_eq!(receiver.iter().next(), None);
    });
}

// ---- order ---------------------------------------------------------------------------------------------------------------------

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

// ---- the rest ------------------------------------------------------------------------------------------------------------------

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
