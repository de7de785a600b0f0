//! The batch of a channel: two receivers that take from it, those that wait beside it, and the end of a side.
//!
//! Shipped: the channels, `LockQueue`, `Guarded`, `select!`, and the seam's *choose* and *ready*.
#![cfg(loom)]

#[path = "../support/cell/mod.rs"]
mod cell;
#[path = "../support/party/mod.rs"]
mod party;

use std::iter::from_fn;

use forebear_context::shim::atomic::{AtomicUsize, Ordering};
use forebear_context::shim::{Arc, thread};
use forebear_sync::channel::{Receiver, Sender, bounded};
use forebear_sync::select;

use self::cell::explore;
use self::party::Party;

/// A party of the worker `place`, which takes the short ways.
fn party(place: usize) -> Arc<Party> {
    let party = Party::shown(1);
    party.context().place().set(place);
    party
}

/// Spawns one that does `f`.
fn spawn(place: usize, f: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    let party = party(place);
    thread::spawn(move || party.on(f))
}

/// The worker 1 sends items, and the worker 2 receives them in batches.
fn send<T>(to: &Sender<T>, items: impl IntoIterator<Item = T>) {
    party(1).on(|| items.into_iter().for_each(|item| assert!(to.send(item).is_ok())));
}

fn receive<T>(from: &Receiver<T>) {
    assert!(party(2).on(|| from.recv()).is_ok());
}

/// An empty channel for three items, whose batch has memory.
fn before_a_batch<T>(item: impl Fn(u32) -> T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = bounded(3);
    send(&sender, [item(0), item(1)]);
    // Finds an item behind the one that it takes, and takes the memory for a batch.
    receive(&receiver);
    receive(&receiver);
    (sender, receiver)
}

/// A full channel: the items 2 and 3 are in the batch, and 4 behind it.
fn with_a_batch<T>(item: impl Fn(u32) -> T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = before_a_batch(&item);
    send(&sender, [item(1), item(2), item(3)]);
    receive(&receiver);
    send(&sender, [item(4)]);
    assert!(receiver.is_full());
    (sender, receiver)
}

/// What is left, by a receiver that is alone.
fn rest(receiver: &Receiver<u32>) -> Vec<u32> {
    from_fn(|| receiver.try_recv().ok()).collect()
}

#[test]
fn two_receivers_take_from_one_batch() {
    explore(&[], |_| {
        let (_sender, receiver) = with_a_batch(|n| n);
        let theirs = receiver.clone();
        let other = spawn(3, move || _ = theirs.recv().unwrap());
        let items = party(2).on(|| [receiver.recv().unwrap(), receiver.recv().unwrap()]);
        assert!(items[0] < items[1], "the older item first: {items:?}");
        other.join().unwrap();
        assert_eq!(rest(&receiver), []);
    });
}

/// Two that have found several items take the memory for a batch, which is there once.
#[test]
fn two_receivers_make_one_batch() {
    explore(&[], |_| {
        let (sender, receiver) = bounded(5);
        party(1).on(|| (0..5).for_each(|n| sender.send(n).unwrap()));
        let theirs = receiver.clone();
        let other = spawn(3, move || _ = [theirs.recv().unwrap(), theirs.recv().unwrap()]);
        let items = party(2).on(|| [receiver.recv().unwrap(), receiver.recv().unwrap()]);
        other.join().unwrap();
        assert!(items[0] < items[1], "the older item first: {items:?}");
        assert_eq!(rest(&receiver), [4]);
    });
}

/// One receiver takes an item and fills the batch with the other. The second has found the batch empty before; it is on the sender's worker, where a
/// receiver may wait in the short way.
#[test]
fn a_receiver_does_not_wait_beside_a_batch() {
    explore(&[], |_| {
        let (sender, receiver) = before_a_batch(|n| n);
        send(&sender, [2, 3]);
        let theirs = receiver.clone();
        let fills = thread::spawn(move || receive(&theirs));
        assert!(party(1).on(|| receiver.recv()).is_ok());
        fills.join().unwrap();
        assert_eq!(rest(&receiver), []);
    });
}

/// The arm has found no item. Before it waits, two are sent, and one of them is in a batch.
#[test]
fn an_arm_does_not_wait_for_an_item_beside_a_batch() {
    explore(&[], |_| {
        let (sender, receiver) = before_a_batch(|n| n);
        let (to, theirs) = (sender.clone(), receiver.clone());
        let fills = thread::spawn(move || {
            send(&to, [2, 3]);
            receive(&theirs);
        });
        party(1).on(|| select! { item = &receiver => assert!(item.is_ok()) });
        fills.join().unwrap();
        assert_eq!(rest(&receiver), []);
        drop(sender);
    });
}

/// The receiver takes one item, and waits for the sender, which may have begun to wait for room by then.
#[test]
fn a_sender_has_the_room_of_an_item_that_leaves_a_batch() {
    explore(&[], |_| {
        let (sender, receiver) = with_a_batch(|n| n);
        let sends = spawn(1, move || sender.send(5).unwrap());
        assert_eq!(party(2).on(|| receiver.recv()), Ok(2));
        sends.join().unwrap();
        assert_eq!(rest(&receiver), [3, 4, 5]);
    });
}

#[test]
fn an_arm_has_the_room_of_an_item_that_leaves_a_batch() {
    explore(&[], |_| {
        let (sender, receiver) = with_a_batch(|n| n);
        let sends = spawn(1, move || select! { sent = sender.send_arm(5) => sent.unwrap() });
        assert_eq!(party(2).on(|| receiver.recv()), Ok(2));
        sends.join().unwrap();
        assert_eq!(rest(&receiver), [3, 4, 5]);
    });
}

/// Counts its drop.
struct Item(Arc<AtomicUsize>);

impl Drop for Item {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_last_receiver_goes_with_a_batch_while_a_sender_sends() {
    explore(&[], |_| {
        let drops = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = with_a_batch(|_| Item(drops.clone()));
        let item = Item(drops.clone());
        let sends = spawn(1, move || assert!(sender.send(item).is_err()));
        drop(receiver);
        sends.join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 7);
    });
}
