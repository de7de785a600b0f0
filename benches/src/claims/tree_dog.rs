//! Image work, 768 tasks of a quarter millisecond: the scheduler's cost must not be visible.
//!
//! The base of comparison is one thread a core that takes numbers from a shared counter. `claims` sets the
//! children's malloc to keep freed memory; otherwise the order of allocations would decide.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;

const TILES: Load = Load::TreeDog { tasks: 768 };

/// As fast as threads written by hand.
pub const CLAIM: Claim = Claim {
    name: "tree_dog",
    op: "picture",
    unit: ("ms", 1e6),
    rows: &[Row {
        name: "tiles",
        workers: &[1, 2],
        runners: &[
            runner("forebear", TILES),
            runner("threads", TILES),
            runner("rayon", TILES),
            runner("forte", TILES),
            runner("chili", TILES),
            runner("smol", TILES),
            runner("tokio", TILES),
            runner("may", TILES),
            runner("single", TILES),
        ],
        goals: &[Goal::times(1.02, "threads")],
    }],
};
