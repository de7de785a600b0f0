//! Streams between two workers, where receivers take items out in batches. Nothing is lost, doubled, or out of turn, and the bound holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use forebear::channel::{Receiver, Sender, bounded};
use forebear::select;
use forebear::time::after;

use super::channel;
use super::support::{fitting, runtime};

const SENDERS: usize = 4;

/// How a receiver receives.
#[derive(Clone, Copy, Debug)]
enum Way {
    Recv,
    Try,
    Timed,
    Select,
}

fn receive<T>(from: &Receiver<T>, way: Way) -> Option<T> {
    match way {
        Way::Recv => from.recv().ok(),
        Way::Try => from.try_recv().or_else(|_| from.recv()).ok(),
        Way::Timed => loop {
            match from.recv_timeout(Duration::from_micros(20)) {
                Err(forebear::channel::RecvTimeoutError::TimedOut) => {}
                other => return other.ok(),
            }
        },
        Way::Select => select! {
            item = from => item.ok(),
            () = after(Duration::from_secs(100)) => unreachable!("the senders go on"),
        },
    }
}

fn send_each(to: &Sender<(usize, usize)>, of: usize, each: usize) {
    for n in 0..each {
        if n % 64 == 5 {
            select! { sent = to.send_arm((of, n)) => sent.unwrap() }
        } else {
            to.send((of, n)).unwrap();
        }
    }
}

/// What a receiver has had: of each sender the items in the order in which they were sent.
fn received(from: &Receiver<(usize, usize)>, way: Way) -> usize {
    let (mut next, mut had) = ([0; SENDERS + 1], 0);
    while let Some((of, n)) = receive(from, way) {
        assert!(n >= next[of], "{way:?}: of {of} came {n} after {}", next[of]);
        assert!(
            from.capacity().is_none_or(|capacity| from.len() <= capacity),
            "{way:?}: {} items",
            from.len()
        );
        (next[of], had) = (n + 1, had + 1);
    }
    had
}

#[test]
fn each_item_of_a_stream_between_workers_comes_once_and_in_turn() {
    let each = fitting(5_000);
    let runtime = runtime(2);
    for capacity in [Some(1), Some(3), Some(64), Some(2000), None] {
        for ways in [&[Way::Recv][..], &[Way::Recv, Way::Try], &[Way::Timed, Way::Select, Way::Recv]] {
            let (sender, receiver) = channel(capacity);
            let senders: Vec<_> = (0..SENDERS)
                .map(|of| {
                    let sender = sender.clone();
                    runtime.spawn(move || send_each(&sender, of, each))
                })
                .collect();
            let outside = thread::spawn(move || send_each(&sender, SENDERS, each));
            let receivers: Vec<_> = ways
                .iter()
                .map(|&way| {
                    let receiver = receiver.clone();
                    runtime.spawn(move || received(&receiver, way))
                })
                .collect();
            let here = received(&receiver, Way::Recv);
            let had: usize = receivers.into_iter().map(|receiver| receiver.take().unwrap()).sum();
            assert_eq!(here + had, (SENDERS + 1) * each, "{capacity:?} {ways:?}");
            senders.into_iter().for_each(|sender| sender.take().unwrap());
            outside.join().unwrap();
        }
    }
}

/// Senders are cancelled and receivers go while items are in the batch and behind it. What was sent was received or dropped, and what was not
/// sent came back.
#[test]
fn no_item_of_a_stream_is_lost_where_senders_are_cancelled_and_receivers_go() {
    struct Item(Arc<AtomicUsize>);
    impl Drop for Item {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let runtime = runtime(2);
    for round in 0..fitting(300) {
        let alive = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = bounded(8);
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let (sender, alive) = (sender.clone(), alive.clone());
                runtime.spawn(move || {
                    loop {
                        alive.fetch_add(1, Ordering::Relaxed);
                        if sender.send(Item(alive.clone())).is_err() {
                            break;
                        }
                    }
                })
            })
            .collect();
        let takes =
            runtime.spawn(move || (0..200 + round).try_for_each(|_| receiver.recv().map(drop)).unwrap());
        if round % 2 == 0 {
            senders[0].cancel();
        }
        takes.take().unwrap();
        for sender in senders {
            _ = sender.wait();
        }
        drop(sender);
        assert_eq!(alive.load(Ordering::Relaxed), 0, "round {round}");
    }
}
