//! What requests hold that have not begun, and what a burst of suspended ones leaves behind.
//!
//! Bytes are resident memory and page tables, divided by their number. Of a request that has not begun neither the user's closure
//! counts nor the handle that its maker keeps; of a future, nothing of the closure that it calls. The rest is header and queue. What
//! suspended ones hold stands in [`suspended`](super::suspended), beside the rivals.
//!
//! In the rows of bursts all requests are over and their handles gone, and the runtime has nothing to do: then it gives memory back. At once
//! that of most stacks; after a rest also headers, and the stacks that workers keep for the next crowd. Page tables stay. No rival stands there: tasks without stacks leave
//! that to malloc, which the children are told to keep what is freed; may keeps its stacks.

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
