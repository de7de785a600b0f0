//! A hundred thousand tasks that sleep, and how late they continue.
//!
//! All of them sleep before the first is due: at one instant, or at as many instants as there are tasks, spread over a tenth of a
//! second (a microsecond each, which is more than anybody keeps up with) and over a second. Late is the time between the instant
//! and the first step of the task, on the clock; tokio's instants are milliseconds, rounded up. Whoever gathers what they say waits for the
//! last of them first: at one instant it would else be woken once for each, in front of them where the oldest goes first and behind
//! them all where the first come does, and that would be what is measured.

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
