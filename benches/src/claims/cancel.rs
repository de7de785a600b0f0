//! How long a cancel takes with 100,000 requests in flight, from the call to the end of the last.
//!
//! forebear: the parent's `cancel`, until a scope around its children has returned; children that are suspended return
//! from their cancelled waits, and children that have not started are dropped. tokio: `JoinSet::shutdown`, which drops
//! futures and runs no code of theirs but destructors. One among many: `cancel` or `AbortHandle::abort`, and a wait until
//! it is over.
//!
//! *Suspended* requests wait for another request (tokio: for a `Notify`). The others wait for a lock that another task holds
//! (`lock_or_cancelled`: a plain `lock` is no cancellation point), for room in a channel, or sleep. Those that run loop: they
//! check for a cancel, and yield.

use crate::claim::{Claim, Row, Runner, runner};
use crate::load::{Load, Stand};

const fn all(suspended: u64, queued: u64) -> Load {
    Load::Cancel { suspended, queued }
}

const fn at(stand: Stand) -> [Runner; 2] {
    let load = Load::CancelAt { n: 100_000, stand };
    [runner("forebear", load), runner("tokio", load)]
}

const fn standing(name: &'static str, runners: &'static [Runner]) -> Row {
    Row { name, workers: &[1, 2], runners, goals: &[] }
}

pub(super) const SOME: Load = Load::CancelSome { among: 100_000, victims: 1_000 };

/// All suspended, none started, half of each, all in the same place, and one after the other.
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
        standing("running with checks", &at(Stand::Checks)),
        standing("before a lock", &at(Stand::Lock)),
        standing("before a channel", &at(Stand::Channel)),
        standing("asleep", &at(Stand::Sleep)),
        Row {
            name: "one",
            workers: &[1],
            runners: &[runner("forebear", SOME), runner("tokio", SOME), runner("pages", SOME)],
            goals: &[],
        },
    ],
};
