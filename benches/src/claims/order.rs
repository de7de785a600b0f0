//! What the strict order costs: forebear against itself, built with `--cfg forebear_unordered`.
//!
//! The other side is another build of the same binary, named to `claims` by `--unordered PATH`. That no younger root is
//! picked before an older one is a test of the runtime, not a bench.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::{How, Load};

use crate::rivals::UNORDERED;

const COST: &[Goal] = &[Goal::times(1.1, UNORDERED)];
const ROOTS: Load = Load::Roots { roots: 64, children: 512 };
const FLAT: Load = Load::SpawnIn { n: 1_000_000, how: How::Scope };
const TREE: Load = Load::Skynet { leaves: 1_000_000, how: How::Value };
const TURNS: Load = Load::Switch { tasks: 8, yields: 25_000, calls: 0 };

/// Many roots at once, and the rows of other claims that the order could slow down.
pub const CLAIM: Claim = Claim {
    name: "order",
    op: "operation",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "many roots",
            workers: &[1, 2],
            runners: &[runner("forebear", ROOTS), runner(UNORDERED, ROOTS)],
            goals: COST,
        },
        Row {
            name: "flat",
            workers: &[1, 2],
            runners: &[runner("forebear", FLAT), runner(UNORDERED, FLAT)],
            goals: COST,
        },
        Row {
            name: "tree",
            workers: &[1, 2],
            runners: &[runner("forebear", TREE), runner(UNORDERED, TREE)],
            goals: COST,
        },
        Row {
            name: "yield",
            workers: &[1],
            runners: &[runner("forebear", TURNS), runner(UNORDERED, TURNS)],
            goals: COST,
        },
    ],
};
