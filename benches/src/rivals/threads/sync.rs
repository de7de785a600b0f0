//! Locks and channels that block threads: the loads for all that have no tasks of their own, and std's own.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use super::Threads;
#[cfg(feature = "rivals")]
use crate::load::{Across, Handed, Load};
#[cfg(feature = "rivals")]
use crate::rival::Rival;
use crate::rival::Run;
use crate::work::contend::Locked;

/// A bounded channel.
pub(in crate::rivals) trait Channel {
    type Sender: Clone + Send + 'static;
    type Receiver: Send + 'static;
    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver);
    fn send(sender: &Self::Sender, item: u64);
    /// None when all senders have gone.
    fn receive(receiver: &Self::Receiver) -> Option<u64>;
}

/// The loads for a rival with channels like std's: `$rival` is its type, and the other arguments make its channels.
macro_rules! channel {
    ($rival:ty, $sender:ty, $receiver:ty, $bounded:path) => {
        impl $crate::rivals::threads::sync::Channel for $rival {
            type Sender = $sender;
            type Receiver = $receiver;

            fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
                $bounded(capacity)
            }

            #[inline(always)]
            fn send(sender: &Self::Sender, item: u64) {
                sender.send(item).expect("somebody receives");
            }

            #[inline(always)]
            fn receive(receiver: &Self::Receiver) -> Option<u64> {
                receiver.recv().ok()
            }
        }
    };
}
#[cfg(feature = "rivals")]
pub(in crate::rivals) use channel;

/// std's.
#[derive(Debug)]
pub(super) struct Std;

channel!(Std, SyncSender<u64>, Receiver<u64>, sync_channel);

/// A rival that has nothing but channels, on plain threads.
#[cfg(feature = "rivals")]
macro_rules! channels_only {
    ($(#[$doc:meta])* $name:ident, $($made_of:ident)::+) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name($crate::rivals::threads::Threads);

        impl $name {
            /// Only remembers how many threads there may be where that is not the number of tasks.
            #[must_use]
            pub fn start(workers: usize) -> $name {
                $name($crate::rivals::threads::Threads::start(workers))
            }
        }

        $crate::rivals::threads::sync::channel!(
            $name,
            ::$($made_of)::+::Sender<u64>,
            ::$($made_of)::+::Receiver<u64>,
            ::$($made_of)::+::bounded
        );

        impl $crate::rival::Rival for $name {
            fn run(&self, load: $crate::load::Load) -> Option<$crate::rival::Run> {
                $crate::rivals::threads::sync::run_channels::<$name>(&self.0, load)
            }
        }
    };
}
#[cfg(feature = "rivals")]
pub(in crate::rivals) use channels_only;

/// The loads that channels and threads are enough for.
#[cfg(feature = "rivals")]
pub(in crate::rivals) fn run_channels<C: Channel>(threads: &Threads, load: Load) -> Option<Run> {
    Some(match load {
        Load::PingPong { n, across: Across::Asleep } => ping_pong::<C>(n),
        Load::Mpsc { senders, each, capacity } => mpsc::<C>(senders, each, capacity),
        Load::Oneshot { n, spawned: false } => oneshots::<C>(n),
        Load::HandOver { n, of: Handed::Item(capacity) } => mpsc::<C>(1, n, capacity),
        Load::Coarse { .. } => return threads.run(load),
        _ => return None,
    })
}

/// Two threads meet at a barrier again and again.
pub(super) fn meet(n: u64) -> Run {
    let barrier = Barrier::new(2);
    let meet = || (0..n).filter(|_| barrier.wait().is_leader()).count() as u64;
    Run::timed(|| {
        thread::scope(|scope| {
            let other = scope.spawn(meet);
            meet() + other.join().expect("a thread panicked")
        })
    })
}

fn number<L: Locked>(lock: &L) -> u64 {
    let mut number = 0;
    lock.with(|it| number = *it);
    number
}

pub(in crate::rivals) fn alone<L: Locked + Default>(n: u64) -> Run {
    let lock = L::default();
    Run::timed(|| {
        for _ in 0..n {
            black_box(&lock).with(|number| *number += 1);
        }
        number(&lock)
    })
}

pub(in crate::rivals) fn alone_reading<L>(n: u64, lock: L, read: impl Fn(&L) -> u64) -> Run {
    Run::timed(|| (0..n).map(|_| read(black_box(&lock))).sum())
}

/// The threads do the tasks one after the other.
pub(in crate::rivals) fn contended<L: Locked + Default>(threads: &Threads, tasks: u64, each: u64) -> Run {
    let lock = L::default();
    Run::timed(|| {
        threads.each(tasks, |_| {
            for _ in 0..each {
                lock.with(|number| *number += 1);
            }
            0
        });
        number(&lock)
    })
}

/// A thread a task, which gives up its time slice with the lock.
pub(super) fn held_across_a_yield(tasks: u64, each: u64) -> Run {
    let lock = Arc::new(Mutex::new(0));
    let add = || {
        for _ in 0..each {
            lock.with(|number| {
                thread::yield_now();
                *number += 1;
            });
        }
    };
    Run::timed(|| {
        thread::scope(|scope| (0..tasks).for_each(|_| drop(scope.spawn(add))));
        number(&*lock)
    })
}

/// Two threads; the first round trip is not counted.
pub(in crate::rivals) fn ping_pong<C: Channel>(n: u64) -> Run {
    let ((there, tokens), (back, returns)) = (C::bounded(1), C::bounded(1));
    let other = thread::spawn(move || {
        while let Some(token) = C::receive(&tokens) {
            C::send(&back, token);
        }
    });
    let one = |_| {
        C::send(&there, 1);
        C::receive(&returns).expect("somebody sends")
    };
    one(0);
    let run = Run::timed(|| (0..n).map(one).sum());
    drop(there);
    other.join().expect("a thread panicked");
    run
}

pub(in crate::rivals) fn mpsc<C: Channel>(senders: u64, each: u64, capacity: usize) -> Run {
    let (sender, receiver) = C::bounded(capacity);
    let send = |sender: C::Sender| {
        thread::spawn(move || (0..each).for_each(|_| C::send(&sender, 1)));
    };
    Run::timed(|| {
        (0..senders).for_each(|_| send(sender.clone()));
        drop(sender);
        std::iter::from_fn(|| C::receive(&receiver)).sum()
    })
}

pub(in crate::rivals) fn oneshots<C: Channel>(n: u64) -> Run {
    let one = |_| {
        let (sender, receiver) = C::bounded(1);
        C::send(black_box(&sender), 1);
        C::receive(&receiver).expect("it is there")
    };
    Run::timed(|| (0..n).map(one).sum())
}
