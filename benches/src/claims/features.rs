//! What a request costs that has a name, a callback, a deadline, or is waited for with a time-out: made, submitted and waited for,
//! one at a time.
//!
//! The first row has none of these, and is the base of comparison. A wait with a time-out never runs its target, but queues it
//! and suspends. A wait for a request that needs a stack of its own does the same, without a timer. `ci/counts` shows
//! that an unused feature costs nothing, in instructions.

use crate::claim::{Claim, Row, Runner, runner};
use crate::load::{Load, With};

const fn with(with: With) -> [Runner; 1] {
    [runner("forebear", Load::Features { n: 100_000, with })]
}

const fn row(name: &'static str, runners: &'static [Runner]) -> Row {
    Row { name, workers: &[1], runners, goals: &[] }
}

/// A feature a row.
pub const CLAIM: Claim = Claim {
    name: "features",
    op: "request",
    unit: ("ns", 1.0),
    rows: &[
        row("nothing", &with(With::Nothing)),
        row("a name", &with(With::Name)),
        row("a callback", &with(With::Callback)),
        row("a deadline", &with(With::Deadline)),
        row("a stack of its own", &with(With::OwnStack)),
        row("a time-out", &with(With::TimeOut)),
    ],
};
