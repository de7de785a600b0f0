//! crossbeam-channel's channels, on plain threads.

use crossbeam_channel::{Receiver, Sender, bounded};

use super::threads::Threads;
use super::threads::sync::{self, Channel};
use crate::load::{Across, Load, Rival, Run};

/// Threads that send and receive.
#[derive(Debug)]
pub struct Crossbeam(Threads);

impl Crossbeam {
    /// Only remembers how many threads there may be where that is not the number of tasks.
    #[must_use]
    pub fn start(workers: usize) -> Crossbeam {
        Crossbeam(Threads::start(workers))
    }
}

impl Channel for Crossbeam {
    type Sender = Sender<u64>;
    type Receiver = Receiver<u64>;

    fn bounded(capacity: usize) -> (Self::Sender, Self::Receiver) {
        bounded(capacity)
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

impl Rival for Crossbeam {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::PingPong { n, across: Across::Asleep } => sync::ping_pong::<Crossbeam>(n),
            Load::Mpsc { senders, each, capacity } => sync::mpsc::<Crossbeam>(senders, each, capacity),
            Load::Oneshot { n, spawned: false } => sync::oneshots::<Crossbeam>(n),
            Load::Coarse { .. } => return self.0.run(load),
            _ => return None,
        })
    }
}
