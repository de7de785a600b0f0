//! A tree of tasks, ten children a node, a million leaves: the sum of the leaves' numbers.
//!
//! chili halves instead, as it has only `join`. forte helps while it waits, nesting on one stack, and now and then
//! overflows it with two workers: such a run is counted as one that died.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;

const TREE: Load = Load::Skynet { leaves: 1_000_000 };

/// By requests, `spawn` and `take`.
pub const CLAIM: Claim = Claim {
    name: "skynet",
    op: "node",
    unit: ("ns", 1.0),
    rows: &[Row {
        name: "tree",
        workers: &[1, 2],
        runners: &[
            runner("forebear", TREE),
            runner("chili", TREE),
            runner("rayon", TREE),
            runner("forte", TREE),
            runner("smol", TREE),
            runner("tokio", TREE),
            runner("may", Load::Skynet { leaves: 10_000 }),
            runner("single", TREE),
        ],
        goals: &[Goal::times(0.4, "rayon")],
    }],
};
