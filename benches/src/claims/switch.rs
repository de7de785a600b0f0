//! A yield on one worker: eight tasks take turns.
//!
//! There are eight, because one task alone may continue without a switch. Besides the switch itself, return addresses decide the
//! time: each call between the last resume and the next yield is mispredicted when it returns. Hence three rows.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;
use crate::rivals::outside::GO;

const fn turns(calls: u8) -> Load {
    Load::Switch { tasks: 8, yields: 25_000, calls }
}

/// In the loop, behind one call, behind three.
pub const CLAIM: Claim = Claim {
    name: "switch",
    op: "yield",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "in the loop",
            workers: &[1],
            runners: &[
                runner("forebear", turns(0)),
                runner("may", turns(0)),
                runner(GO, turns(0)),
                runner("smol", turns(0)),
                runner("tokio", turns(0)),
            ],
            goals: &[Goal::times(0.15, "may")],
        },
        Row {
            name: "behind a call",
            workers: &[1],
            runners: &[runner("forebear", turns(1)), runner("may", turns(1)), runner(GO, turns(1))],
            goals: &[Goal::times(0.7, "may")],
        },
        Row {
            name: "behind three calls",
            workers: &[1],
            runners: &[runner("forebear", turns(3)), runner("may", turns(3)), runner(GO, turns(3))],
            goals: &[],
        },
    ],
};
