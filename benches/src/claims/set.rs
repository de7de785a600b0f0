//! Ten thousand tasks at once, taken in the order in which they end.
//!
//! forebear: a `RequestSet`. tokio: a `JoinSet`, and in the row of its own `FuturesUnordered` of join handles.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::Load;
use crate::rivals::UNORDERED_FUTURES;

const MANY: Load = Load::Set { n: 10_000 };

/// One row.
pub const CLAIM: Claim = Claim {
    name: "set",
    op: "task",
    unit: ("ns", 1.0),
    rows: &[Row {
        name: "of 10,000",
        workers: &[1, 2],
        runners: &[runner("forebear", MANY), runner("tokio", MANY), runner(UNORDERED_FUTURES, MANY)],
        goals: &[Goal::times(1.0, "tokio"), Goal::times(1.0, UNORDERED_FUTURES)],
    }],
};
