//! Work that should be shared at once, after a pause in which every worker fell asleep.
//!
//! Lazy publication can fail here: no worker is hungry yet when the work is forked, and the owner runs user code
//! from then on. Two arms of a millisecond must take one millisecond on two workers; a hundred must take fifty.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;

const fn arms(arms: u64) -> Load {
    Load::Coarse { arms }
}

/// Two arms, and a hundred.
pub const CLAIM: Claim = Claim {
    name: "coarse",
    op: "load",
    unit: ("ms", 1e6),
    rows: &[
        Row {
            name: "two arms",
            workers: &[2],
            runners: &[
                runner("forebear", arms(2)),
                runner("rayon", arms(2)),
                runner("forte", arms(2)),
                runner("chili", arms(2)),
                runner("smol", arms(2)),
                runner("tokio", arms(2)),
                runner("may", arms(2)),
                runner("threads", arms(2)),
                runner("single", arms(2)),
            ],
            goals: &[Goal::times(1.0, "rayon")],
        },
        Row {
            name: "hundred arms",
            workers: &[2],
            runners: &[
                runner("forebear", arms(100)),
                runner("rayon", arms(100)),
                runner("forte", arms(100)),
                runner("chili", arms(100)),
                runner("smol", arms(100)),
                runner("tokio", arms(100)),
                runner("threads", arms(100)),
            ],
            goals: &[Goal::times(1.0, "rayon")],
        },
    ],
};
