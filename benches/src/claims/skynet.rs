//! A tree of tasks, ten children a node, a million leaves: the sum of the leaves' numbers.
//!
//! chili halves instead, as it has only `join`. forte helps while it waits, nesting on one stack, and now and then
//! overflows it with two workers: such a run counts as died.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::{How, Load};
use crate::rivals::outside::GO;

const SCOPES: Load = Load::Skynet { leaves: 1_000_000, how: How::Scope };
const TREE: Load = Load::Skynet { leaves: 1_000_000, how: How::Value };

/// By requests, `spawn` and `take`, and by a scope in each node, as rayon's.
pub const CLAIM: Claim = Claim {
    name: "skynet",
    op: "node",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "by scopes",
            workers: &[1, 2],
            runners: &[runner("forebear", SCOPES), runner("rayon", SCOPES)],
            goals: &[Goal::times(0.4, "rayon")],
        },
        Row {
            name: "tree",
            workers: &[1, 2],
            runners: &[
                runner("forebear", TREE),
                runner("chili", TREE),
                runner("rayon", TREE),
                runner("forte", TREE),
                runner("smol", TREE),
                runner("tokio", TREE),
                runner(GO, TREE),
                runner("may", Load::Skynet { leaves: 10_000, how: How::Value }),
                runner("single", TREE),
            ],
            goals: &[Goal::times(0.4, "rayon")],
        },
    ],
};
