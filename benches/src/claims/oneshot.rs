//! A channel of one item: sent into by a task made for it while the maker waits, and by the maker itself.
//!
//! tokio has one-shot channels; the others' are channels of capacity 1, and may's are unbounded. Threads are left out where one would
//! have to be made for each item.

use crate::claim::{Claim, Row, runner};
use crate::load::Load;

const SPAWNED: Load = Load::Oneshot { n: 20_000, spawned: true };
const OWN: Load = Load::Oneshot { n: 100_000, spawned: false };

/// By another task, by itself.
pub const CLAIM: Claim = Claim {
    name: "oneshot",
    op: "channel",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "from a task made for it",
            workers: &[1, 2],
            runners: &[
                runner("forebear", SPAWNED),
                runner("tokio", SPAWNED),
                runner("smol", SPAWNED),
                runner("may", SPAWNED),
            ],
            goals: &[],
        },
        Row {
            name: "from the receiver",
            workers: &[1],
            runners: &[
                runner("forebear", OWN),
                runner("tokio", OWN),
                runner("smol", OWN),
                runner("may", OWN),
                runner("threads", OWN),
                runner("crossbeam-channel", OWN),
                runner("flume", OWN),
            ],
            goals: &[],
        },
    ],
};
