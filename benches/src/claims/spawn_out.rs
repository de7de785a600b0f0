//! A million tasks made by a thread that is not the runtime's, and all waited for there.
//!
//! rayon's and forebear's first row in a scope without handles, the others by a list of handles.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::{How, Load};

pub(super) const fn million(how: How) -> Load {
    Load::SpawnOut { n: 1_000_000, how }
}

/// In a scope, and by handles.
pub const CLAIM: Claim = Claim {
    name: "spawn_out",
    op: "task",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "scope",
            workers: &[1, 2],
            runners: &[
                runner("forebear", million(How::Scope)),
                runner("rayon", million(How::Scope)),
                runner("smol", million(How::Value)),
                runner("tokio", million(How::Value)),
                runner("may", Load::SpawnOut { n: 20_000, how: How::Value }),
            ],
            goals: &[Goal::times(1.0, "rayon")],
        },
        Row {
            name: "handles",
            workers: &[1, 2],
            runners: &[runner("forebear", million(How::Value)), runner("rayon", million(How::Scope))],
            goals: &[],
        },
    ],
};
