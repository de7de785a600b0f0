//! A million nested waits: a request that waits for one that waits for one.
//!
//! A runtime that waits by running other tasks on top of its own stack overflows it, and the process dies. So each
//! runtime has a process of its own, and criterion does not run this claim.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::Load;

const DEEP: Load = Load::Depth { levels: 1_000_000 };

/// It completes.
pub const CLAIM: Claim = Claim {
    name: "depth",
    op: "level",
    unit: ("ns", 1.0),
    rows: &[Row {
        name: "nested waits",
        workers: &[1],
        runners: &[
            runner("forebear", DEEP),
            runner("rayon", DEEP),
            runner("forte", DEEP),
            runner("chili", DEEP),
            runner("smol", DEEP),
            runner("tokio", DEEP),
        ],
        goals: &[Goal::new(Measure::PerOp, Bound::Completes)],
    }],
};
