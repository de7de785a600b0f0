//! Channels: items against those who wait for them and leave, and against the end of either side.
//!
//! Shipped: the channels, `LockQueue`, `Guarded`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::time::Duration;

use forebear_context::context::Cause;
use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, UnsafeCell, thread};
use forebear_sync::channel::{
    RecvError, RecvTimeoutError, SendTimeoutError, TryRecvError, bounded, oneshot, unbounded, watch,
};

use self::cell::explore;
use self::party::Party;

const LIMIT: Duration = Duration::from_secs(1);

/// Counts its drop, and is written to by whoever has it.
struct Item(Arc<AtomicUsize>, UnsafeCell<u32>);

// SAFETY: that loom finds nothing is what shows it.
unsafe impl Send for Item {}

impl Item {
    fn touch(&self) {
        // SAFETY: none but that one has it at a time.
        self.1.with_mut(|count| unsafe { *count += 1 });
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.touch();
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Drops(Arc<AtomicUsize>);

impl Drops {
    fn new() -> Drops {
        Drops(Arc::new(AtomicUsize::new(0)))
    }

    fn item(&self) -> Item {
        let item = Item(self.0.clone(), UnsafeCell::new(0));
        item.touch();
        item
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Spawns a party that does `f`.
fn party(f: impl FnOnce() + 'static) -> (Arc<Party>, thread::JoinHandle<()>) {
    let party = Party::new(0);
    let there = party.clone();
    (party, thread::spawn(move || there.on(f)))
}

/// The same for a party that takes the short ways.
fn short_party(f: impl FnOnce() + 'static) -> (Arc<Party>, thread::JoinHandle<()>) {
    let party = Party::shown(1);
    let there = party.clone();
    (party, thread::spawn(move || there.on(f)))
}

/// Whoever sends and receives, each item arrives once, and its bytes with it.
fn an_item_goes_across(capacity: Option<usize>) {
    an_item_goes_from_to(capacity, party, || Party::new(0));
}

fn an_item_goes_from_to(
    capacity: Option<usize>,
    from: impl Fn(Box<dyn FnOnce()>) -> (Arc<Party>, thread::JoinHandle<()>) + Sync + Send + 'static,
    to: impl Fn() -> Arc<Party> + Sync + Send + 'static,
) {
    explore(&[], move |_| {
        let drops = Drops::new();
        let (sender, receiver) = capacity.map_or_else(unbounded, bounded);
        let (first, second) = (drops.item(), drops.item());
        let sends = from(Box::new(move || {
            assert!(sender.send(first).is_ok());
            assert!(sender.send(second).is_ok());
        }));
        to().on(|| {
            receiver.recv().unwrap().touch();
            receiver.recv().unwrap().touch();
            assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
        });
        sends.1.join().unwrap();
        assert_eq!(drops.get(), 2);
    });
}

#[test]
fn items_go_through_a_channel_without_room() {
    an_item_goes_across(Some(0));
}

#[test]
fn items_go_through_a_channel_of_one() {
    an_item_goes_across(Some(1));
}

#[test]
fn items_go_through_a_channel_without_bound() {
    an_item_goes_across(None);
}

#[test]
fn items_go_through_a_channel_of_one_in_the_short_ways() {
    an_item_goes_from_to(Some(1), short_party, || Party::shown(2));
}

/// One side takes the short ways, the other the general ones.
#[test]
fn items_go_through_a_channel_of_one_in_short_ways_and_in_general_ones() {
    an_item_goes_from_to(Some(1), short_party, || Party::new(0));
    an_item_goes_from_to(Some(1), party, || Party::shown(2));
}

#[test]
fn the_last_receiver_goes_while_the_last_sender_sends() {
    for capacity in [0, 1] {
        let answers: &[&str] = if capacity == 0 { &["back"] } else { &["sent", "back"] };
        explore(answers, move |answers| {
            let drops = Drops::new();
            let (sender, receiver) = bounded(capacity);
            let (item, answers) = (drops.item(), answers.clone());
            let sends = party(move || answers.note(if sender.send(item).is_ok() { "sent" } else { "back" }));
            drop(receiver);
            sends.1.join().unwrap();
            assert_eq!(drops.get(), 1);
        });
    }
}

#[test]
fn the_last_two_senders_go_while_a_receiver_waits() {
    explore(&[], |_| {
        let (sender, receiver) = bounded::<u32>(1);
        let (one, two) = (sender.clone(), sender);
        let first = thread::spawn(move || drop(one));
        let second = thread::spawn(move || drop(two));
        Party::new(0).on(|| assert_eq!(receiver.recv(), Err(RecvError::Disconnected)));
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn the_last_sender_goes_while_a_receiver_begins_to_wait_in_the_short_way() {
    explore(&[], |_| {
        let (sender, receiver) = bounded::<u32>(1);
        let goes = thread::spawn(move || drop(sender));
        Party::shown(1).on(|| assert_eq!(receiver.recv(), Err(RecvError::Disconnected)));
        goes.join().unwrap();
    });
}

/// The first receiver waits, and the second meets the sender. The second waits in the general way, since the queue is not empty. So chooses a sender that
/// finds both there.
#[test]
fn two_receivers_in_the_short_ways_have_an_item_each() {
    explore(&[], |_| {
        let drops = Drops::new();
        let (sender, receiver) = bounded::<Item>(2);
        let (theirs, given) = (receiver.clone(), drops.clone());
        let first = Party::shown(1);
        first.meanwhile(move || {
            let items = [given.item(), given.item()];
            let sends =
                short_party(move || assert!(items.map(|item| sender.send(item).is_ok()) == [true; 2]));
            Party::shown(1).on(|| theirs.recv().unwrap().touch());
            sends.1.join().unwrap();
        });
        first.on(|| receiver.recv().unwrap().touch());
        assert_eq!(drops.get(), 2);
    });
}

/// As [`a_send_meets_a_receiver_that_leaves`], with a sender that chooses in the short way. The receiver's next wait is its own.
#[test]
fn a_short_send_meets_a_receiver_that_leaves() {
    for cause in [Cause::TimedOut, Cause::Cancelled] {
        explore(&["left", "had"], move |answers| {
            let drops = Drops::new();
            let (sender, receiver) = bounded::<Item>(2);
            let noted = answers.clone();
            let (leaver, leaving) = short_party(move || {
                match receiver.recv_timeout(LIMIT) {
                    Ok(item) => {
                        item.touch();
                        noted.note("had");
                    }
                    Err(error) => {
                        assert_eq!(error == RecvTimeoutError::TimedOut, cause == Cause::TimedOut);
                        noted.note("left");
                    }
                }
                assert!(receiver.recv().is_ok());
            });
            let ends = thread::spawn(move || _ = leaver.end_wait(cause));
            let (theirs, first, second) = (sender.clone(), drops.item(), drops.item());
            let sends = short_party(move || assert!(theirs.send(first).is_ok()));
            sends.1.join().unwrap();
            // The receiver may have gone by then.
            _ = sender.try_send(second);
            drop(sender);
            leaving.join().unwrap();
            ends.join().unwrap();
            assert_eq!(drops.get(), 2);
        });
    }
}

#[test]
fn both_ends_go_at_once_with_an_item_between() {
    explore(&[], |_| {
        let drops = Drops::new();
        let (sender, receiver) = unbounded();
        assert!(sender.send(drops.item()).is_ok());
        let goes = thread::spawn(move || drop(sender));
        drop(receiver);
        goes.join().unwrap();
        assert_eq!(drops.get(), 1);
    });
}

/// The item goes to the one that leaves, or stays with the sender; not both, and not neither.
#[test]
fn a_send_meets_a_receiver_that_leaves() {
    for cause in [Cause::TimedOut, Cause::Cancelled] {
        explore(&["left", "had"], move |answers| {
            let drops = Drops::new();
            let (sender, receiver) = bounded::<Item>(0);
            let (had, noted) = (Arc::new(AtomicUsize::new(0)), answers.clone());
            let theirs = had.clone();
            let (leaver, leaving) = party(move || match receiver.recv_timeout(LIMIT) {
                Ok(item) => {
                    item.touch();
                    theirs.store(1, Ordering::Relaxed);
                    noted.note("had");
                }
                Err(RecvTimeoutError::Disconnected) => {}
                Err(error) => {
                    assert_eq!(error == RecvTimeoutError::TimedOut, cause == Cause::TimedOut);
                    noted.note("left");
                }
            });
            let ends = thread::spawn(move || _ = leaver.end_wait(cause));
            let sent = sender.try_send(drops.item()).is_ok();
            drop(sender);
            leaving.join().unwrap();
            ends.join().unwrap();
            assert_eq!(had.load(Ordering::Relaxed) == 1, sent);
            assert_eq!(drops.get(), 1);
        });
    }
}

/// The item is received, or comes back.
#[test]
fn a_receive_meets_a_sender_that_leaves() {
    for capacity in [0, 1] {
        explore(&["back", "sent"], move |answers| {
            let drops = Drops::new();
            let (sender, receiver) = bounded(capacity);
            (0..capacity).for_each(|_| assert!(sender.try_send(drops.item()).is_ok()));
            let (item, answers) = (drops.item(), answers.clone());
            let (leaver, leaving) = party(move || match sender.send_timeout(item, LIMIT) {
                Ok(()) => answers.note("sent"),
                Err(SendTimeoutError::TimedOut(item)) => {
                    item.touch();
                    answers.note("back");
                }
                Err(other) => panic!("{other}"),
            });
            let ends = thread::spawn(move || _ = leaver.end_wait(Cause::TimedOut));
            Party::new(0).on(|| while receiver.recv().is_ok() {});
            leaving.join().unwrap();
            ends.join().unwrap();
            assert_eq!(drops.get(), capacity + 1);
        });
    }
}

#[test]
fn one_item_meets_the_end_of_its_receiver() {
    explore(&["sent", "back"], |answers| {
        let drops = Drops::new();
        let (sender, receiver) = oneshot::channel();
        let (item, answers) = (drops.item(), answers.clone());
        let sends =
            thread::spawn(move || answers.note(if sender.send(item).is_ok() { "sent" } else { "back" }));
        drop(receiver);
        sends.join().unwrap();
        assert_eq!(drops.get(), 1);
    });
}

#[test]
fn one_item_meets_a_receiver_that_leaves() {
    explore(&["left", "had"], |answers| {
        let drops = Drops::new();
        let (sender, receiver) = oneshot::channel();
        let noted = answers.clone();
        let (leaver, leaving) = party(move || {
            let told = receiver.recv_timeout(LIMIT);
            noted.note(if told.is_ok() { "had" } else { "left" });
            drop(told);
            // Nothing comes after it.
            assert!(matches!(
                receiver.try_recv(),
                Ok(_) | Err(TryRecvError::Empty | TryRecvError::Disconnected)
            ));
        });
        let item = drops.item();
        let sends = thread::spawn(move || drop(sender.send(item)));
        leaver.end_wait(Cause::TimedOut);
        leaving.join().unwrap();
        sends.join().unwrap();
        assert_eq!(drops.get(), 1);
    });
}

/// The first receiver waits, and the second meets the sender. The item goes to the first, and the second learns that nothing comes any more.
#[test]
fn two_receivers_of_one_item_are_answered() {
    explore(&[], |_| {
        let (sender, receiver) = oneshot::channel();
        let receiver = Arc::new(receiver);
        let theirs = receiver.clone();
        let first = Party::new(0);
        first.meanwhile(move || {
            let sends = thread::spawn(move || sender.send(1).unwrap());
            Party::new(0).on(|| assert_eq!(theirs.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected)));
            sends.join().unwrap();
        });
        first.on(|| assert_eq!(receiver.recv_timeout(LIMIT), Ok(1)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn behind_one_item_there_is_the_end() {
    explore(&[], |_| {
        let (sender, receiver) = oneshot::channel();
        let sends = thread::spawn(move || sender.send(1).unwrap());
        Party::new(0).on(|| {
            assert_eq!(receiver.recv_timeout(LIMIT), Ok(1));
            assert_eq!(receiver.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
        });
        sends.join().unwrap();
    });
}

#[test]
fn a_newer_value_is_seen_by_who_begins_to_wait() {
    explore(&[], |_| {
        let (sender, mut receiver) = watch::channel(0);
        let sends = thread::spawn(move || {
            assert!(sender.send(1).is_ok());
            assert!(sender.send(2).is_ok());
        });
        Party::new(0).on(|| {
            let mut seen = 0;
            while let Ok(value) = receiver.recv() {
                assert!(*value > seen);
                seen = *value;
            }
            assert_eq!(seen, 2);
        });
        sends.join().unwrap();
    });
}
