//! A token between two tasks, over two channels of capacity 1: on one worker, and across two.
//!
//! The goals are 0.2 and 1.0 times Go, which took 195 ns on one worker and 12 to 47 µs across two when they were set. This is beside
//! tokio's 216 ns and 38 µs. Where there is no Go, tokio stands for it by these figures: 0.2 × 195 / 216 = 0.18, and 1.0.
//!
//! Across two, each side runs on a worker of its own. forebear pins started requests; tokio and smol, whose tasks move to the
//! worker that wakes them, get two runtimes of one thread each. Go's two goroutines are each locked to a thread. may cannot do this, and its channels are unbounded. Rivals
//! without tasks use a thread for each side.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::{Across, Load};
use crate::rivals::outside::GO;

const fn trips(n: u64, across: Across) -> Load {
    Load::PingPong { n, across }
}

pub(super) const ONE: Load = trips(10_000, Across::One);
pub(super) const AWAKE: Load = trips(5_000, Across::Awake);
pub(super) const ASLEEP: Load = trips(500, Across::Asleep);

/// One worker, two that are awake, two that sleep.
pub const CLAIM: Claim = Claim {
    name: "pingpong",
    op: "round trip",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "on one worker",
            workers: &[1],
            runners: &[
                runner("forebear", ONE),
                runner("tokio", ONE),
                runner("may", ONE),
                runner(GO, ONE),
                runner("smol", ONE),
            ],
            goals: &[Goal::times(0.18, "tokio"), Goal::times(0.2, GO)],
        },
        Row {
            name: "across and awake",
            workers: &[2],
            runners: &[
                runner("forebear", AWAKE),
                runner("tokio", AWAKE),
                runner("smol", AWAKE),
                runner(GO, AWAKE),
            ],
            goals: &[Goal::new(Measure::PerOp, Bound::AtMost(1000.0))],
        },
        Row {
            name: "across and asleep",
            workers: &[2],
            runners: &[
                runner("forebear", ASLEEP),
                runner("tokio", ASLEEP),
                runner("smol", ASLEEP),
                runner(GO, ASLEEP),
                runner("threads", ASLEEP),
                runner("crossbeam-channel", ASLEEP),
                runner("flume", ASLEEP),
            ],
            goals: &[Goal::times(1.0, "tokio"), Goal::times(1.0, GO)],
        },
    ],
};
