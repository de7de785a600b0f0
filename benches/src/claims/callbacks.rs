//! What callbacks cost: a request that is made, subscribed to, submitted and waited for, one at a time.
//!
//! The row without callbacks is the base of comparison. tokio has no callbacks; the nearest is a second task that
//! awaits the first and calls the closures. So tokio's rows with callbacks have one task more. Its closures run after
//! the first task is over, where forebear's are a part of the request.

use crate::claim::{Claim, Row, runner};
use crate::load::Load;

const fn load(each: u64) -> Load {
    Load::Callbacks { n: 100_000, each }
}

/// None, one and eight.
pub const CLAIM: Claim = Claim {
    name: "callbacks",
    op: "request",
    unit: ("ns", 1.0),
    rows: &[
        Row { name: "none", workers: &[1], runners: &[runner("forebear", load(0))], goals: &[] },
        Row {
            name: "one",
            workers: &[1, 2],
            runners: &[runner("forebear", load(1)), runner("tokio", load(1))],
            goals: &[],
        },
        Row {
            name: "eight",
            workers: &[1, 2],
            runners: &[runner("forebear", load(8)), runner("tokio", load(8))],
            goals: &[],
        },
    ],
};
