//! A task made and waited for before the next is made.
//!
//! On one worker this is the price of a task; on two it also shows whether a spawn wakes a worker in vain.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::{How, Load};

const fn ones(n: u64, how: How) -> Load {
    Load::SpawnWaitOne { n, how }
}

/// A thousandth of what the original in Python took, which is not measured here: 29 µs.
const OF_THE_ORIGINAL: Goal = Goal::new(Measure::PerOp, Bound::AtMost(29.0));

/// The value taken, and read through a reference.
pub const CLAIM: Claim = Claim {
    name: "spawn_wait_one",
    op: "task",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "by value",
            workers: &[1, 2],
            runners: &[
                runner("forebear", ones(10_000, How::Value)),
                runner("forte", ones(10_000, How::Value)),
                runner("rayon", ones(10_000, How::Value)),
                runner("smol", ones(10_000, How::Value)),
                runner("tokio", ones(10_000, How::Value)),
                runner("may", ones(1_000, How::Value)),
                runner("threads", ones(100, How::Value)),
            ],
            goals: &[Goal::times(0.35, "forte"), OF_THE_ORIGINAL],
        },
        Row {
            name: "by reference",
            workers: &[1, 2],
            runners: &[
                runner("forebear", ones(10_000, How::Reference)),
                runner("forte", ones(10_000, How::Reference)),
                runner("rayon", ones(10_000, How::Reference)),
            ],
            goals: &[Goal::times(0.7, "forte")],
        },
    ],
};
