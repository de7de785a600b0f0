//! What crosses two workers, over thirty processes: a median of few hides a state that one process in ten is in.
//!
//! The loads are those of the claims that the rows are called after. *Placed freely* is the token of `pingpong` between two tasks that
//! the runtime places as it likes: on one worker or on two. Go's goroutines are locked to a thread each only where the row says awake or
//! asleep. *line* is two threads that pass a number through one memory line, without any runtime, and *pages* one thread that
//! touches the pages that a cancel touches. Goroutines cannot be cancelled: each of them looks at a context of its own.

use super::{cancel, mpsc, mutex_yield, pingpong, spawn_in, spawn_out};
use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::{How, Load};
use crate::rivals::outside::GO;

const fn runners(load: Load) -> [Runner; 3] {
    [runner("forebear", load), runner("tokio", load), runner(GO, load)]
}

/// With the bound: whatever crosses takes as long as a memory line, and the line has states of its own.
const fn bounded(load: Load) -> [Runner; 4] {
    [runner("forebear", load), runner("tokio", load), runner(GO, load), runner("line", load)]
}

/// No process worse than three times the median, and the median ahead of both rivals.
const GOALS: &[Goal] =
    &[Goal::new(Measure::PerOp, Bound::Spread(3.0)), Goal::times(1.0, "tokio"), Goal::times(1.0, GO)];

const fn row(name: &'static str, runners: &'static [Runner]) -> Row {
    Row { name, workers: &[2], runners, goals: GOALS }
}

/// A row for each claim that once had two states.
pub const CLAIM: Claim = Claim {
    name: "across",
    op: "step",
    unit: ("ns", 1.0),
    rows: &[
        row("pingpong placed freely", &runners(pingpong::ONE)),
        row("pingpong awake", &bounded(pingpong::AWAKE)),
        row("pingpong asleep", &bounded(pingpong::ASLEEP)),
        row("mpsc", &runners(mpsc::items(4))),
        row("mutex_yield", &runners(mutex_yield::HELD)),
        row(
            "cancel of one",
            &[
                runner("forebear", cancel::SOME),
                runner("tokio", cancel::SOME),
                runner(GO, cancel::SOME),
                runner("pages", cancel::SOME),
            ],
        ),
        row(
            "spawn_in",
            &[
                runner("forebear", spawn_in::million(How::Scope)),
                runner("tokio", spawn_in::million(How::Value)),
                runner(GO, spawn_in::million(How::Value)),
            ],
        ),
        row("spawn_out", &runners(spawn_out::million(How::Value))),
    ],
};
