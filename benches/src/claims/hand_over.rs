//! Two contexts on two processors that hand something to each other all the time: a permit, a turn at a barrier, an item.
//!
//! Each of them waits for less time than a wake-up of a thread takes. tokio's tasks end up on one worker, where no hand-over crosses; forebear's requests
//! stay where they have started, and one of the two may run on the thread that waits for them. The items go between threads that are no workers.

use crate::claim::{Claim, Goal, Row, Runner, runner};
use crate::load::{Handed, Load};

const fn load(of: Handed) -> Load {
    Load::HandOver { n: 100_000, of }
}

const fn items(capacity: usize) -> [Runner; 5] {
    let load = load(Handed::Item(capacity));
    [
        runner("forebear", load),
        runner("crossbeam-channel", load),
        runner("flume", load),
        runner("threads", load),
        runner("tokio", load),
    ]
}

const fn row(name: &'static str, runners: &'static [Runner], goals: &'static [Goal]) -> Row {
    Row { name, workers: &[2], runners, goals }
}

/// Between requests, and between threads.
pub const CLAIM: Claim = Claim {
    name: "hand_over",
    op: "hand-over",
    unit: ("ns", 1.0),
    rows: &[
        row(
            "a permit, between requests",
            &[runner("forebear", load(Handed::Permit)), runner("tokio", load(Handed::Permit))],
            &[Goal::times(2.0, "tokio")],
        ),
        row(
            "a turn, between requests",
            &[
                runner("forebear", load(Handed::Turn)),
                runner("tokio", load(Handed::Turn)),
                runner("threads", load(Handed::Turn)),
            ],
            &[Goal::times(2.0, "tokio"), Goal::times(0.5, "threads")],
        ),
        row("an item, between threads, capacity 1", &items(1), &[Goal::times(1.2, "crossbeam-channel")]),
        row("an item, between threads, capacity 64", &items(64), &[Goal::times(1.2, "crossbeam-channel")]),
    ],
};
