//! A million tasks made by one task, and all waited for.
//!
//! rayon, forte and forebear's first row in a scope without handles; tokio, smol and forebear's second by a list of
//! handles, since that is what they have. chili has neither: it halves the range, which is a loop and not a spawn.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::{How, Load};
use crate::rivals::outside::GO;

pub(super) const fn million(how: How) -> Load {
    Load::SpawnIn { n: 1_000_000, how }
}

/// In a scope, and by handles.
pub const CLAIM: Claim = Claim {
    name: "spawn_in",
    op: "task",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "scope",
            workers: &[1, 2],
            runners: &[
                runner("forebear", million(How::Scope)),
                runner("chili", million(How::Scope)),
                runner("forte", million(How::Scope)),
                runner("rayon", million(How::Scope)),
                runner("smol", million(How::Value)),
                runner("tokio", million(How::Value)),
                runner(GO, million(How::Value)),
                runner("may", Load::SpawnIn { n: 20_000, how: How::Value }),
            ],
            goals: &[Goal::times(0.4, "rayon")],
        },
        Row {
            name: "handles",
            workers: &[1, 2],
            runners: &[runner("forebear", million(How::Value)), runner("rayon", million(How::Scope))],
            goals: &[],
        },
    ],
};
