//! The memory of unstarted requests, and the memory that a burst of suspended ones leaves behind.
//!
//! Bytes are resident memory and page tables, divided by their number. For an unstarted request neither the user's closure counts
//! nor the maker's handle; for a future, the closure that it calls does not count. The rest is header and queue. The claim
//! [`suspended`](super::suspended) measures suspended ones, beside the rivals.
//!
//! In the rows of bursts all requests are over, their handles are dropped, and the runtime is idle: then it releases memory. It releases most stacks
//! at once. After a rest it releases headers too, and the stacks that workers keep for the next burst. Page tables stay. These rows have no rival.
//! Tasks without stacks leave this to malloc, which is set to keep freed memory here; may keeps its stacks.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::Load;
use crate::work::memory::{BARE, TRIMMED};

const fn at_most(figure: &'static str, bytes: f64) -> Goal {
    Goal::new(Measure::Figure(figure), Bound::AtMost(bytes))
}

const fn queued(name: &'static str) -> Runner {
    runner(name, Load::Queued { n: 1_000_000 })
}

const fn burst(name: &'static str, runners: &'static [Runner]) -> Row {
    // An eighth of what they may hold while they are suspended.
    const GOALS: &[Goal] = &[at_most(TRIMMED[2], 4.4 * 1024.0 / 8.0)];
    Row { name, workers: &[1, 2], runners, goals: GOALS }
}

/// Queued, and after bursts of suspended ones.
pub const CLAIM: Claim = Claim {
    name: "memory",
    op: "request",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "queued",
            workers: &[1],
            runners: &[queued("forebear"), queued("smol"), queued("tokio")],
            // 144, and less than one more for page tables and the ends of pieces of memory.
            goals: &[at_most(BARE, 145.0)],
        },
        Row {
            name: "declared to be after one",
            workers: &[1],
            runners: &[runner("forebear", Load::Dependents { n: 1_000_000, edges: 1 })],
            goals: &[at_most(BARE, 225.0)],
        },
        Row {
            name: "declared to be after two",
            workers: &[1],
            runners: &[runner("forebear", Load::Dependents { n: 1_000_000, edges: 2 })],
            goals: &[at_most(BARE, 273.0)],
        },
        burst("after a burst of 10^5", &[runner("forebear", Load::Burst { n: 100_000 })]),
        burst("after a burst of 10^6", &[runner("forebear", Load::Burst { n: 1_000_000 })]),
    ],
};
