//! A lock held across a suspension: the holder yields, so that all others wait for the lock. With 64 tasks its queue is never empty; with two it is, each
//! time that the other comes.
//!
//! Rivals without tasks use one thread a task, so the system's scheduler decides the turns.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;
use crate::rivals::outside::GO;

pub(super) const HELD: Load = Load::LockYield { tasks: 64, each: 200 };
const FEWER: Load = Load::LockYield { tasks: 64, each: 20 };
const TWO: Load = Load::LockYield { tasks: 2, each: 5_000 };
const TWO_THREADS: Load = Load::LockYield { tasks: 2, each: 500 };

/// Two rows.
pub const CLAIM: Claim = Claim {
    name: "mutex_yield",
    op: "lock, yield and unlock",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "held across a yield",
            workers: &[1, 2],
            runners: &[
                runner("forebear", HELD),
                runner("may", HELD),
                runner(GO, HELD),
                runner("smol", HELD),
                runner("tokio", HELD),
                runner("threads", FEWER),
            ],
            goals: &[Goal::times(0.3, "may")],
        },
        Row {
            name: "held across a yield by two",
            workers: &[1, 2],
            runners: &[
                runner("forebear", TWO),
                runner("may", TWO),
                runner(GO, TWO),
                runner("smol", TWO),
                runner("tokio", TWO),
                runner("threads", TWO_THREADS),
            ],
            goals: &[Goal::times(0.3, "may")],
        },
    ],
};
