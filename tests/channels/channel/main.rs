//! Channels: what arrives, where and in which order; how the two sides end; and that nothing is lost by those who leave.

#[path = "../../support/cancelling.rs"]
mod cancelling;
mod items;
mod short;
mod streams;
#[path = "../../support/mod.rs"]
mod support;
mod turns;
mod waits;

use std::time::Duration;

use forebear::channel::{Receiver, bounded, unbounded};

const LONG: Duration = Duration::from_secs(100);

/// Of every capacity that is something of its own.
fn each_capacity(mut test: impl FnMut(Option<usize>)) {
    [Some(0), Some(1), Some(3), None].into_iter().for_each(&mut test);
}

fn channel<T>(capacity: Option<usize>) -> (forebear::channel::Sender<T>, Receiver<T>) {
    capacity.map_or_else(unbounded, bounded)
}
