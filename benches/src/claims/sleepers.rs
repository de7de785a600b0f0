//! A hundred thousand tasks that sleep, and how late they continue.
//!
//! All of them sleep before the first is due. They are due at one instant, or at as many instants as there are tasks. These are spread over
//! a tenth of a second (one each microsecond, more than any runtime can serve) and over a second. Late is the time between the instant and
//! the first step of the task, on the clock; tokio's instants are milliseconds, rounded up. The task that collects their results waits
//! for the last of them first. Otherwise one instant would wake it once for each task. It would run before them where the oldest runs
//! first, and after all of them in a first-in, first-out queue. The claim would measure that.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::Load;
use crate::work::LATE;

const fn runners(spread_ms: u64) -> [Runner; 3] {
    let load = Load::Sleepers { n: 100_000, spread_ms };
    [runner("forebear", load), runner("tokio", load), runner("smol", load)]
}

const GOALS: &[Goal] = &[Goal::new(Measure::Figure(LATE[1]), Bound::Times(0.5, "smol"))];

/// At once, and spread.
pub const CLAIM: Claim = Claim {
    name: "sleepers",
    op: "sleeper",
    unit: ("ns", 1.0),
    rows: &[
        Row { name: "at one instant", workers: &[1, 2], runners: &runners(0), goals: GOALS },
        Row { name: "over a tenth of a second", workers: &[1, 2], runners: &runners(100), goals: GOALS },
        Row { name: "over a second", workers: &[1, 2], runners: &runners(1_000), goals: GOALS },
    ],
};
