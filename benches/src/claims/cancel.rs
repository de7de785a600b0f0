//! What a cancel takes with 100,000 in flight, from asking to the last one over.
//!
//! forebear: the parent's `cancel`, until a scope around its children has returned; children that are suspended return
//! by their refused waits, children that have not begun are dropped. tokio: `JoinSet::shutdown`, which drops futures and
//! runs no code of theirs but destructors. One among many: `cancel` or `AbortHandle::abort`, and a wait until it is over.

use crate::claim::{Claim, Row, runner};
use crate::load::Load;

const fn all(suspended: u64, queued: u64) -> Load {
    Load::Cancel { suspended, queued }
}

const SOME: Load = Load::CancelSome { among: 100_000, victims: 1_000 };

/// All suspended, none begun, half of each, and one after the other.
pub const CLAIM: Claim = Claim {
    name: "cancel",
    op: "request ended",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "suspended",
            workers: &[1, 2],
            runners: &[runner("forebear", all(100_000, 0)), runner("tokio", all(100_000, 0))],
            goals: &[],
        },
        Row {
            name: "queued",
            workers: &[1],
            runners: &[runner("forebear", all(0, 100_000)), runner("tokio", all(0, 100_000))],
            goals: &[],
        },
        Row {
            name: "mixed",
            workers: &[1, 2],
            runners: &[runner("forebear", all(50_000, 50_000)), runner("tokio", all(50_000, 50_000))],
            goals: &[],
        },
        Row {
            name: "one",
            workers: &[1],
            runners: &[runner("forebear", SOME), runner("tokio", SOME)],
            goals: &[],
        },
    ],
};
