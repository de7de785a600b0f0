//! The cost of an idle runtime, and how long it takes to wake it from outside.
//!
//! [`coarse`](super::coarse) measures that no core idles while there is work to steal.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::Load;
use crate::work::idle;

const NOTHING: Load = Load::Idle { millis: 2_000 };
const SOON: Load = Load::Wake { n: 200, pause: 100 };
const LATER: Load = Load::Wake { n: 100, pause: 5_000 };

const NO_CPU: Goal = Goal::new(Measure::PerOp, Bound::AtMost(0.0));
const NO_SWITCH: Goal = Goal::new(Measure::Figure(idle::SWITCHES), Bound::AtMost(0.0));

/// Two seconds of nothing, and tasks from outside.
pub const CLAIM: Claim = Claim {
    name: "idle",
    op: "operation",
    unit: ("us", 1e3),
    rows: &[
        Row {
            name: "two seconds",
            workers: &[2, 8],
            runners: &[
                runner("forebear", NOTHING),
                runner("rayon", NOTHING),
                runner("forte", NOTHING),
                runner("chili", NOTHING),
                runner("smol", NOTHING),
                runner("tokio", NOTHING),
                runner("may", NOTHING),
            ],
            goals: &[NO_CPU, NO_SWITCH],
        },
        Row {
            name: "woken after 100 us",
            workers: &[2],
            runners: &[
                runner("forebear", SOON),
                runner("pool-fifo", SOON),
                runner("rayon", SOON),
                runner("smol", SOON),
                runner("tokio", SOON),
            ],
            goals: &[Goal::times(1.1, "tokio")],
        },
        Row {
            name: "woken after 5 ms",
            workers: &[2],
            runners: &[
                runner("forebear", LATER),
                runner("pool-fifo", LATER),
                runner("rayon", LATER),
                runner("smol", LATER),
                runner("tokio", LATER),
            ],
            goals: &[Goal::times(1.1, "tokio")],
        },
    ],
};
