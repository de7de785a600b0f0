//! A bounded channel of 64 places: four senders to one receiver, and one to one.
//!
//! The goal is 0.8 times Go, which took 33 ns an item when it was set, beside tokio's 66. Where there is no Go, tokio stands for it by
//! these figures: 0.8 × 33 / 66 = 0.4. may's channels are unbounded, so its senders never wait. Rivals
//! without tasks use one thread a task, whatever the number of workers.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;
use crate::rivals::outside::GO;

pub(super) const fn items(senders: u64) -> Load {
    Load::Mpsc { senders, each: 100_000 / senders, capacity: 64 }
}

/// Four to one, one to one.
pub const CLAIM: Claim = Claim {
    name: "mpsc",
    op: "item",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "four to one",
            workers: &[1, 2],
            runners: &[
                runner("forebear", items(4)),
                runner("tokio", items(4)),
                runner("smol", items(4)),
                runner("may", items(4)),
                runner(GO, items(4)),
                runner("threads", items(4)),
                runner("crossbeam-channel", items(4)),
                runner("flume", items(4)),
            ],
            goals: &[Goal::times(0.4, "tokio"), Goal::times(0.8, GO)],
        },
        Row {
            name: "one to one",
            workers: &[1, 2],
            runners: &[
                runner("forebear", items(1)),
                runner("tokio", items(1)),
                runner("smol", items(1)),
                runner("may", items(1)),
                runner(GO, items(1)),
                runner("threads", items(1)),
                runner("crossbeam-channel", items(1)),
                runner("flume", items(1)),
            ],
            goals: &[],
        },
    ],
};
