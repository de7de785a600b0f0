//! A lock held across a suspension: 64 tasks, of which the holder yields, so that all others wait for the lock.
//!
//! Rivals without tasks use one thread a task, so the system's scheduler decides the turns.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;

const HELD: Load = Load::LockYield { tasks: 64, each: 200 };
const FEWER: Load = Load::LockYield { tasks: 64, each: 20 };

/// One row.
pub const CLAIM: Claim = Claim {
    name: "mutex_yield",
    op: "lock, yield and unlock",
    unit: ("ns", 1.0),
    rows: &[Row {
        name: "held across a yield",
        workers: &[1, 2],
        runners: &[
            runner("forebear", HELD),
            runner("may", HELD),
            runner("smol", HELD),
            runner("tokio", HELD),
            runner("threads", FEWER),
        ],
        goals: &[Goal::times(0.3, "may")],
    }],
};
