//! A hundred tasks that are due while a tree of joins computes, and how late they are.
//!
//! They are made first, and sleep until instants that are spread over four fifths of the time that the tree takes. The tree is one younger task: some hundred thousand
//! leaves of ten microseconds. A join of forebear lets what is older go first, so a sleeper waits for two leaves at most, once its timer has fired. A busy worker's timers
//! are fired by the timer thread, after half a millisecond (decision 0022). rayon has no timers: a
//! thread sleeps and spawns, and a worker takes what is spawned from outside when its part of the tree is over. tokio's tree spawns a task for each
//! fork, and a worker looks at its timers after some tasks. In `tokio-blocking` the leaves are shared among as many calls of `spawn_blocking` as there are workers,
//! without forks, and the system's scheduler decides between these threads and the workers.

use crate::claim::{Bound, Claim, Goal, Measure, Row, Runner, runner};
use crate::load::Load;
use crate::rivals::BLOCKING;
use crate::work::LATE;

const fn load(workers: u64, apart: bool) -> Load {
    Load::Urgent { urgent: 100, spread_ms: 1_600 / workers, leaves: 200_000, micros: 10, apart }
}

const fn runners(workers: u64) -> [Runner; 4] {
    [
        runner("forebear", load(workers, false)),
        runner("rayon", load(workers, false)),
        runner("tokio", load(workers, false)),
        runner(BLOCKING, load(workers, true)),
    ]
}

const GOALS: &[Goal] = &[
    Goal::times(1.1, "rayon"),
    Goal::new(Measure::Figure(LATE[1]), Bound::Times(0.5, "tokio")),
    Goal::new(Measure::Figure(LATE[1]), Bound::Times(0.1, "rayon")),
];

/// By one worker, and by two.
pub const CLAIM: Claim = Claim {
    name: "urgent",
    op: "leaf",
    unit: ("us", 1e3),
    rows: &[
        Row { name: "beside a tree of two seconds", workers: &[1], runners: &runners(1), goals: GOALS },
        Row { name: "beside a tree of a second", workers: &[2], runners: &runners(2), goals: GOALS },
    ],
};
