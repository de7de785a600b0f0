//! A lock that 2, 10 and 100 contenders take again and again: how long the longest wait is, beside
//! the median.
//!
//! A section takes some hundreds of nanoseconds, and each contender does as much outside. A lock that leaves the choice to chance has a short
//! median, and may starve a waiter. A lock that is handed over in turn has a median as long as all its waits. The goal bounds the ratio; the table
//! also has the cost of a section with all waits. parking_lot and std have no tasks: they use as many threads in each row. may is not in the last
//! two rows: with threads and tasks at one lock, it did not finish within 180 s in three processes.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::{Contenders, Load};
use crate::work::contend::WAITS;

const fn runners(of: Contenders, many: u64) -> [Runner; 5] {
    let load = Load::Contend { of, many, sections: 300_000 };
    [
        runner("forebear", load),
        runner("parking_lot", load),
        runner("threads", load),
        runner("tokio", load),
        runner("may", load),
    ]
}

const GOALS: &[Goal] = &[Goal::new(Measure::Figure(WAITS[0]), Bound::Times(2.0, "parking_lot"))];

const fn row(name: &'static str, runners: &'static [Runner]) -> Row {
    Row { name, workers: &[2], runners, goals: GOALS }
}

/// Threads, tasks, and both.
pub const CLAIM: Claim = Claim {
    name: "fairness",
    op: "section",
    unit: ("ns", 1.0),
    rows: &[
        row("2 threads", const { &runners(Contenders::Threads, 2) }),
        row("10 threads", const { &runners(Contenders::Threads, 10) }),
        row("100 threads", const { &runners(Contenders::Threads, 100) }),
        row("2 tasks", const { &runners(Contenders::Tasks, 2) }),
        row("10 tasks", const { &runners(Contenders::Tasks, 10) }),
        row("100 tasks", const { &runners(Contenders::Tasks, 100) }),
        row("a thread and a task", const { &runners(Contenders::Mixed, 2) }),
        row("5 threads and 5 tasks", const { &runners(Contenders::Mixed, 10) }.split_at(4).0),
        row("50 threads and 50 tasks", const { &runners(Contenders::Mixed, 100) }.split_at(4).0),
    ],
};
