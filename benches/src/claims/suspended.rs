//! A million suspended requests: their memory, and the cost of waking them.
//!
//! Bytes are resident memory and page tables, divided by their number; requests ask for 48 KiB of guaranteed stack.
//! Stackless tasks are in the row for scale. may stops at some 32,000 stacks, two map entries each.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::Load;

const fn crowd(n: u64, scattered: bool) -> Load {
    Load::Suspended { n, scattered }
}

/// The same for any order of waking.
const GOALS: &[Goal] = &[
    Goal::new(Measure::Figure("bytes"), Bound::AtMost(4.4 * 1024.0)),
    Goal::new(Measure::PerOp, Bound::AtMost(150.0)),
];

/// Woken in the order of their making, and scattered.
pub const CLAIM: Claim = Claim {
    name: "suspended",
    op: "wake",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "in order",
            workers: &[1],
            runners: &[
                runner("forebear", crowd(1_000_000, false)),
                runner("smol", crowd(1_000_000, false)),
                runner("tokio", crowd(1_000_000, false)),
                runner("may", crowd(30_000, false)),
            ],
            goals: GOALS,
        },
        Row {
            name: "scattered",
            workers: &[1],
            runners: &[
                runner("forebear", crowd(1_000_000, true)),
                runner("smol", crowd(1_000_000, true)),
                runner("tokio", crowd(1_000_000, true)),
                runner("may", crowd(30_000, true)),
            ],
            goals: GOALS,
        },
    ],
};
