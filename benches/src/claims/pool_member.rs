//! Many tasks with a bound on how many are active, each value handed on as it comes: forebear's `RequestPool`, tokio's
//! `JoinSet` with the bound kept by the loop around it.
//!
//! With a bound as small as the number of workers a member often waits for the receiver. From outside that is a wake-up
//! of a thread; `wide` leaves room.

use crate::claim::{Claim, Row, runner};
use crate::load::Load;

const fn members(bound: usize, inside: bool) -> Load {
    Load::PoolMember { n: 100_000, bound, inside }
}

const fn row(name: &'static str, runners: &'static [crate::claim::Runner]) -> Row {
    Row { name, workers: &[1, 2], runners, goals: &[] }
}

/// From inside and outside, narrow and wide.
pub const CLAIM: Claim = Claim {
    name: "pool_member",
    op: "member",
    unit: ("ns", 1.0),
    rows: &[
        row("inside, 2", &[runner("forebear", members(2, true)), runner("tokio", members(2, true))]),
        row("inside, 64", &[runner("forebear", members(64, true)), runner("tokio", members(64, true))]),
        row("outside, 2", &[runner("forebear", members(2, false)), runner("tokio", members(2, false))]),
        row("outside, 64", &[runner("forebear", members(64, false)), runner("tokio", members(64, false))]),
    ],
};
