//! A lock held for one addition: by one task that is alone with it, and by 64 tasks for one number.
//!
//! On one worker tasks that do not suspend under the lock never meet there, so only two workers contend. parking_lot, std and the
//! like have no tasks. As many threads as there are workers execute the tasks' sections, one task after the other, as a pool of
//! threads would.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;
use crate::rivals::outside::GO;

const ALONE: Load = Load::Lock { n: 320_000 };
const SHORT: Load = Load::LockContended { tasks: 64, each: 5_000 };

/// Alone, and together.
pub const CLAIM: Claim = Claim {
    name: "mutex",
    op: "lock and unlock",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "alone",
            workers: &[1],
            runners: &[
                runner("forebear", ALONE),
                runner("parking_lot", ALONE),
                runner("threads", ALONE),
                runner("may", ALONE),
                runner(GO, ALONE),
                runner("smol", ALONE),
                runner("tokio", ALONE),
            ],
            goals: &[Goal::times(1.1, "parking_lot")],
        },
        Row {
            name: "short section",
            workers: &[1, 2],
            runners: &[
                runner("forebear", SHORT),
                runner("parking_lot", SHORT),
                runner("threads", SHORT),
                runner("may", SHORT),
                runner(GO, SHORT),
                runner("smol", SHORT),
                runner("tokio", SHORT),
            ],
            goals: &[Goal::times(1.1, "parking_lot")],
        },
    ],
};
