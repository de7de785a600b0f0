//! Ninety-nine contenders append to a list in order, and poll for their turn under its lock. The last is made
//! first.
//!
//! One contender can append; the others take the lock in vain. A contender that waits long for the lock delays all of them. std and parking_lot have
//! no tasks: they use as many threads in each row.
//!
//! On one worker there is no row of tasks alone. A task that polls there always finds the lock free and never waits, so it keeps its worker from the
//! others for ever. Such a loop has to yield (`Mutex`, *Fairness*). With threads beside it the lock is contended, and all contenders finish.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::{Contenders, Load};

const fn runners(of: Contenders) -> [Runner; 3] {
    let load = Load::Append { of, many: 99 };
    [runner("forebear", load), runner("threads", load), runner("parking_lot", load)]
}

const GOALS: &[Goal] = &[Goal::times(3.0, "threads")];
/// With one worker the goal is only that all finish.
const ENDS: &[Goal] = &[Goal::new(Measure::PerOp, Bound::Completes)];

/// Threads, tasks, and both.
pub const CLAIM: Claim = Claim {
    name: "append",
    op: "list",
    unit: ("ms", 1e6),
    rows: &[
        Row { name: "threads", workers: &[2, 4], runners: &runners(Contenders::Threads), goals: GOALS },
        Row { name: "tasks", workers: &[2, 4], runners: &runners(Contenders::Tasks), goals: GOALS },
        Row {
            name: "threads and tasks",
            workers: &[2, 4],
            runners: &runners(Contenders::Mixed),
            goals: GOALS,
        },
        Row {
            name: "threads and tasks of one worker",
            workers: &[1],
            runners: &[runner("forebear", Load::Append { of: Contenders::Mixed, many: 99 })],
            goals: ENDS,
        },
    ],
};
