//! The same work with growing numbers of requests, waiters, levels, timers or workers: the time for an item must stay about
//! the same. The points of each curve are its figures.
//!
//! More workers than cores must cost little. A thousand requests, waiters or levels stay in the caches; a million do not,
//! and fault in memory. The bound leaves room for that, and for nothing that grows with their number.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::{Fixed, Grows, Load};
use crate::work::WORST;

const fn grows(of: Grows, up_to: u64) -> [Runner; 1] {
    [runner("forebear", Load::Growth { of, up_to })]
}

const fn at_most(times: f64) -> [Goal; 1] {
    [Goal::new(Measure::Figure(WORST), Bound::AtMost(times))]
}

const fn items(name: &'static str, runners: &'static [Runner], goals: &'static [Goal]) -> Row {
    Row { name, workers: &[1, 2], runners, goals }
}

/// The row's number of workers is the largest one of the curve.
const fn workers(name: &'static str, runners: &'static [Runner]) -> Row {
    const GOALS: &[Goal] = &at_most(1.2);
    Row { name, workers: &[16], runners, goals: GOALS }
}

/// Items, and workers.
pub const CLAIM: Claim = Claim {
    name: "growth",
    op: "item",
    unit: ("ns", 1.0),
    rows: &[
        items("requests", &grows(Grows::Requests, 1_000_000), &at_most(8.0)),
        items("depth", &grows(Grows::Depth, 1_000_000), &at_most(8.0)),
        items("waiters on a request", &grows(Grows::WaitersOfRequest, 100_000), &at_most(8.0)),
        items("waiters on a lock", &grows(Grows::WaitersOfLock, 100_000), &at_most(8.0)),
        items("timers", &grows(Grows::Timers, 1_000_000), &at_most(8.0)),
        workers("workers: a tree", &grows(Grows::Workers(Fixed::Tree), 16)),
        workers("workers: fork-join", &grows(Grows::Workers(Fixed::Fib), 16)),
        workers("workers: arms", &grows(Grows::Workers(Fixed::Arms), 16)),
        workers("workers: roots", &grows(Grows::Workers(Fixed::Roots), 16)),
        workers("workers: a lock", &grows(Grows::Workers(Fixed::Lock), 16)),
    ],
};
