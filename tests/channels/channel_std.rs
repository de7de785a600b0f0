//! The cases of std's tests of its channels, in our words: `docs/foreign-suites.md` says which is where. Each is run by threads and by
//! requests, for every capacity that it makes sense for.

#[path = "../support/mod.rs"]
mod support;

use std::rc::Rc;
use std::thread;
use std::time::Duration;

use forebear::channel::{
    Receiver, RecvError, RecvTimeoutError, SendError, SendTimeoutError, Sender, TryRecvError, TrySendError,
    bounded, unbounded,
};
use forebear::{Request, Runtime, spawn, yield_now};
use support::{Joined, in_both_worlds, on_each};

const SHORT: Duration = Duration::from_millis(1);

/// What stands in for a thread of a case: a thread, or a request.
enum Hand {
    Thread(thread::JoinHandle<()>),
    Request(Request<()>),
}

impl Hand {
    fn done(self) {
        match self {
            Hand::Thread(thread) => thread.joined().unwrap(),
            Hand::Request(request) => _ = request.wait().unwrap(),
        }
    }
}

/// Makes one hand after the other, threads or requests.
type Hands<'a> = &'a dyn Fn(Box<dyn FnOnce() + Send>) -> Hand;

/// Runs the case with either kind of hands, in runtimes of every kind.
fn with_hands(case: impl Fn(Hands<'_>)) {
    on_each(|runtime: &Runtime| {
        case(&|f| Hand::Thread(thread::spawn(f)));
        case(&|f| Hand::Request(runtime.spawn(f)));
    });
}

type Ends<T> = (Sender<T>, Receiver<T>);

/// An unbounded one, as `mpsc::channel`, and bounded ones with room.
fn with_room<T>() -> [Ends<T>; 3] {
    [unbounded(), bounded(1), bounded(64)]
}

/// The same, and one without room, as `mpsc::sync_channel(0)`.
fn of_each<T>() -> [Ends<T>; 3] {
    [unbounded(), bounded(0), bounded(1)]
}

#[test]
fn what_is_sent_is_received() {
    in_both_worlds(|| {
        for (sender, receiver) in with_room() {
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            sender.send(1).unwrap();
            assert_eq!(receiver.recv(), Ok(1));
            let again = sender.clone();
            drop(sender);
            again.try_send(2).unwrap();
            assert_eq!(receiver.try_recv(), Ok(2));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        }
        for (sender, _receiver) in with_room() {
            // Dropped full.
            drop(sender.clone());
            sender.send(Box::new(1)).unwrap();
        }
    });
    with_hands(|hands| {
        for (sender, receiver) in of_each() {
            let hand = hands(Box::new(move || sender.send(1).unwrap()));
            assert_eq!(receiver.recv(), Ok(1));
            hand.done();
        }
    });
}

#[test]
fn nobody_receives_any_more() {
    in_both_worlds(|| {
        for (sender, receiver) in of_each() {
            drop(receiver);
            let again = sender.clone();
            assert_eq!(sender.send(Box::new(1)), Err(SendError::Disconnected(Box::new(1))));
            drop(sender);
            assert_eq!(again.try_send(Box::new(2)), Err(TrySendError::Disconnected(Box::new(2))));
            assert!(again.send(Box::new(3)).is_err());
        }
        let (sender, receiver) = bounded(1);
        sender.try_send(1).unwrap();
        drop(receiver);
        assert_eq!(sender.try_send(2), Err(TrySendError::Disconnected(2)));
    });
    with_hands(|hands| {
        for (sender, receiver) in of_each() {
            let hand = hands(Box::new(move || _ = receiver.recv().unwrap()));
            let again = sender.clone();
            // Where this thread has to let the other go on it must.
            while sender.send(1).is_ok() && again.send(1).is_ok() {
                let _ = yield_now();
            }
            hand.done();
        }
    });
}

#[test]
fn nobody_sends_any_more() {
    in_both_worlds(|| {
        for (sender, receiver) in of_each::<u32>() {
            drop(sender.clone());
            drop(sender);
            assert_eq!(receiver.recv(), Err(RecvError::Disconnected));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        }
        for (sender, receiver) in with_room() {
            sender.send(10).unwrap();
            drop(sender);
            assert_eq!(receiver.try_recv(), Ok(10));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        }
    });
    with_hands(|hands| {
        for (sender, receiver) in of_each() {
            let hand = hands(Box::new(move || (1..=2).for_each(|n| sender.send(n).unwrap())));
            assert_eq!((receiver.recv(), receiver.recv()), (Ok(1), Ok(2)));
            assert!(receiver.recv().is_err());
            hand.done();
        }
    });
}

#[test]
fn many_items_of_one_and_of_many() {
    with_hands(|hands| {
        const EACH: u32 = 300;
        for (sender, receiver) in of_each() {
            let senders: Vec<_> = (0..8)
                .map(|_| {
                    let sender = sender.clone();
                    hands(Box::new(move || (0..EACH).for_each(|_| sender.send(1).unwrap())))
                })
                .collect();
            drop(sender);
            for _ in 0..8 * EACH {
                assert_eq!(receiver.recv(), Ok(1));
            }
            assert!(receiver.try_recv().is_err());
            senders.into_iter().for_each(Hand::done);
        }
    });
}

/// A token there and back, neither side in a runtime's hands, or both.
#[test]
fn there_and_back() {
    with_hands(|hands| {
        let ((to_one, one), (to_two, two)) = (unbounded(), unbounded());
        let first = hands(Box::new(move || {
            assert_eq!(one.recv(), Ok(1));
            to_two.send(2).unwrap();
        }));
        let second = hands(Box::new(move || {
            to_one.send(1).unwrap();
            assert_eq!(two.recv(), Ok(2));
        }));
        first.done();
        second.done();
        let (sender, receiver) = unbounded();
        let hand = hands(Box::new(move || (0..40).for_each(|_| assert_eq!(receiver.recv(), Ok(1)))));
        (0..40).for_each(|_| sender.send(1).unwrap());
        hand.done();
    });
}

#[test]
fn one_item_and_the_ends_of_either_side_at_once() {
    with_hands(|hands| {
        for _ in 0..30 {
            for (sender, receiver) in of_each::<Box<u32>>() {
                let hand = hands(Box::new(move || drop(receiver)));
                drop(sender);
                hand.done();
            }
            for (sender, receiver) in of_each::<Box<u32>>() {
                let hand = hands(Box::new(move || drop(receiver)));
                let _ = sender.send(Box::new(1));
                hand.done();
            }
            for (sender, receiver) in of_each::<Box<u32>>() {
                let hand = hands(Box::new(move || drop(sender)));
                assert!(receiver.recv().is_err());
                hand.done();
            }
            for (sender, receiver) in of_each::<Box<u32>>() {
                let hand = hands(Box::new(move || assert_eq!(*receiver.recv().unwrap(), 10)));
                sender.send(Box::new(10)).unwrap();
                hand.done();
            }
        }
    });
}

/// Each item is sent, and each received, by a hand of its own, one begun by the other.
#[test]
fn ends_that_are_handed_on_from_request_to_request() {
    fn send(sender: Sender<Box<u32>>, n: u32) {
        if n < 10 {
            spawn(move || {
                sender.send(Box::new(n)).unwrap();
                send(sender, n + 1);
            });
        }
    }
    fn receive(receiver: Receiver<Box<u32>>, n: u32, done: Sender<()>) {
        if n == 10 {
            done.send(()).unwrap();
        } else {
            spawn(move || {
                assert_eq!(*receiver.recv().unwrap(), n);
                receive(receiver, n + 1, done);
            });
        }
    }
    in_both_worlds(|| {
        for (sender, receiver) in of_each() {
            let (done, all) = unbounded();
            send(sender, 0);
            receive(receiver, 0, done);
            assert_eq!(all.recv(), Ok(()));
        }
    });
}

#[test]
fn limits() {
    in_both_worlds(|| {
        for (sender, receiver) in with_room() {
            let _again = sender.clone();
            assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::TimedOut));
            sender.send(1).unwrap();
            assert_eq!(receiver.recv_timeout(SHORT), Ok(1));
        }
        let (sender, _receiver) = bounded(1);
        assert_eq!(sender.send_timeout(1, SHORT), Ok(()));
        assert_eq!(sender.send_timeout(1, SHORT), Err(SendTimeoutError::TimedOut(1)));
    });
    with_hands(|hands| {
        for (sender, receiver) in of_each() {
            let senders: Vec<_> = (0..4)
                .map(|_| {
                    let sender = sender.clone();
                    hands(Box::new(move || (0..100).for_each(|_| sender.send(1).unwrap())))
                })
                .collect();
            drop(sender);
            let mut got = 0;
            loop {
                match receiver.recv_timeout(SHORT) {
                    Ok(n) => got += n,
                    Err(RecvTimeoutError::TimedOut) => {}
                    Err(_) => break,
                }
            }
            assert_eq!(got, 400);
            senders.into_iter().for_each(Hand::done);
        }
        // Farther off than any clock can tell.
        let (sender, receiver) = unbounded();
        let hand =
            hands(Box::new(move || assert_eq!(receiver.recv_timeout(Duration::from_secs(u64::MAX)), Ok(()))));
        sender.send(()).unwrap();
        hand.done();
        // The end comes while it waits with a limit, twice.
        let (sender, receiver) = unbounded::<()>();
        let hand = hands(Box::new(move || drop(sender)));
        while receiver.recv_timeout(SHORT) != Err(RecvTimeoutError::Disconnected) {}
        assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::Disconnected));
        hand.done();
    });
}

#[test]
fn a_great_many_items_without_anybody_else() {
    in_both_worlds(|| {
        const MANY: usize = 10_000;
        for (sender, receiver) in [unbounded(), bounded(MANY)] {
            (0..MANY).for_each(|_| sender.send(()).unwrap());
            (0..MANY).for_each(|_| receiver.recv().unwrap());
            assert!(receiver.is_empty());
        }
    });
}

#[test]
fn iteration() {
    in_both_worlds(|| {
        for (sender, receiver) in [unbounded(), bounded(2)] {
            (1..=2).for_each(|n| sender.send(n).unwrap());
            drop(sender);
            let mut items = (&receiver).into_iter();
            assert_eq!((items.next(), items.next(), items.next()), (Some(1), Some(2), None));
            let mut none = receiver.into_iter();
            assert_eq!(none.next(), None);
        }
    });
    with_hands(|hands| {
        for (sender, receiver) in of_each() {
            let (total, sum) = bounded(1);
            let hand = hands(Box::new(move || total.send(receiver.iter().sum::<u32>()).unwrap()));
            [3, 1, 2].into_iter().for_each(|n| sender.send(n).unwrap());
            drop(sender);
            assert_eq!(sum.recv(), Ok(6));
            hand.done();
        }
        for (sender, receiver) in of_each() {
            let (total, sum) = bounded(1);
            let hand = hands(Box::new(move || {
                let mut count = 0;
                for n in receiver.iter() {
                    if count >= 3 {
                        break;
                    }
                    count += n;
                }
                total.send(count).unwrap();
            }));
            (0..3).for_each(|_| sender.send(2).unwrap());
            drop(sender);
            assert_eq!(sum.recv(), Ok(4));
            hand.done();
        }
        // Asks until it has six.
        let ((ask, asked), (answer, answers)) = (unbounded(), unbounded());
        let hand = hands(Box::new(move || {
            let mut count = 0;
            loop {
                for n in answers.try_iter() {
                    count += n;
                    if count == 6 {
                        return;
                    }
                }
                ask.send(()).unwrap();
                let _ = yield_now();
            }
        }));
        for () in asked.iter() {
            if answer.send(2).is_err() {
                break;
            }
        }
        hand.done();
    });
}

#[test]
fn what_a_look_tells_from_beginning_to_end() {
    with_hands(|hands| {
        for capacity in [None, Some(1)] {
            let ends = || capacity.map_or_else(unbounded, bounded);
            let (values, value) = ends();
            let (step, steps) = capacity.map_or_else(unbounded, bounded);
            let (done, dones) = capacity.map_or_else(unbounded, bounded);
            let hand = hands(Box::new(move || {
                steps.recv().unwrap();
                values.send(1).unwrap();
                done.send(()).unwrap();
                steps.recv().unwrap();
                drop(values);
                done.send(()).unwrap();
            }));
            assert_eq!(value.try_recv(), Err(TryRecvError::Empty));
            step.send(()).unwrap();
            dones.recv().unwrap();
            assert_eq!((value.try_recv(), value.try_recv()), (Ok(1), Err(TryRecvError::Empty)));
            step.send(()).unwrap();
            dones.recv().unwrap();
            assert_eq!(value.try_recv(), Err(TryRecvError::Disconnected));
            hand.done();
        }
    });
}

#[test]
fn ends_that_go_while_the_other_side_is_about() {
    with_hands(|hands| {
        for ((sender, receiver), (done, dones)) in of_each::<()>().into_iter().zip(of_each::<()>()) {
            let hand = hands(Box::new(move || {
                receiver.recv().unwrap();
                drop(receiver);
                done.send(()).unwrap();
            }));
            let again = sender.clone();
            drop(sender);
            again.send(()).unwrap();
            dones.recv().unwrap();
            hand.done();
        }
        // Two that wait to send, and nobody comes.
        let (sender, receiver) = bounded(0);
        let senders = [1, 2].map(|n| {
            let sender = sender.clone();
            hands(Box::new(move || assert_eq!(sender.send(n), Err(SendError::Disconnected(n)))))
        });
        drop(receiver);
        senders.into_iter().for_each(Hand::done);
        let (sender, receiver) = bounded(1);
        sender.send(1).unwrap();
        let hand = hands(Box::new(move || drop(receiver)));
        assert!(sender.send(1).is_err());
        hand.done();
        for _ in 0..50 {
            let ((to, from), (back, came)) = (bounded(3), bounded(3));
            let hand = hands(Box::new(move || {
                from.recv().unwrap();
                back.try_send(()).unwrap();
            }));
            to.try_send(()).unwrap();
            came.recv().unwrap();
            hand.done();
        }
    });
}

#[test]
fn a_try_finds_room_or_none() {
    in_both_worlds(|| {
        let (sender, _receiver) = bounded(0);
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        let (sender, _receiver) = bounded(1);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
    });
}

#[test]
fn what_was_not_received_goes_with_the_last_receiver() {
    in_both_worlds(|| {
        for (sender, receiver) in with_room() {
            let item = Rc::new(());
            let weak = Rc::downgrade(&item);
            sender.send(item).unwrap();
            drop(receiver);
            assert!(weak.upgrade().is_none());
            drop(sender);
        }
    });
}
