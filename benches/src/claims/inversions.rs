//! How far picks are from the exact order, and how soon the oldest root is over.
//!
//! A pick is inverted if an earlier task of the order was in any queue, private to another worker or not, and was picked
//! later: see [`forest`]. It is a promise that no pick passes over a root in the injector; other inversions are only
//! counted. With more workers than cores, a worker that loses its core during a pick decides by what it read before.

use crate::claim::{Bound, Claim, Goal, Measure, Row, runner};
use crate::load::{Arrivals, Load};
use crate::rivals::UNORDERED;
use crate::work::forest;

const fn roots(arrivals: Arrivals) -> Load {
    Load::Forest { roots: 64, arrivals }
}

const BATCH: Load = roots(Arrivals::Batch);
const POISSON: Load = roots(Arrivals::Poisson(80));

const NONE_PASSED: Goal = Goal::new(Measure::Figure(forest::ROOTS_PASSED), Bound::AtMost(0.0));
const OLDEST_FIRST: Goal = Goal::new(Measure::Figure(forest::OLDEST), Bound::Times(0.25, "pool-fifo"));

/// A batch, and roots that arrive at random.
pub const CLAIM: Claim = Claim {
    name: "inversions",
    op: "task",
    unit: ("us", 1e3),
    rows: &[
        Row {
            name: "batch",
            workers: &[1, 2, 4, 8],
            runners: &[
                runner("forebear", BATCH),
                runner(UNORDERED, BATCH),
                runner("pool-fifo", BATCH),
                runner("pool-lifo", BATCH),
                runner("rayon", BATCH),
                runner("smol", BATCH),
                runner("tokio", BATCH),
            ],
            goals: &[NONE_PASSED, OLDEST_FIRST],
        },
        Row {
            name: "poisson",
            workers: &[1, 2, 4, 8],
            runners: &[
                runner("forebear", POISSON),
                runner(UNORDERED, POISSON),
                runner("pool-fifo", POISSON),
                runner("pool-lifo", POISSON),
                runner("rayon", POISSON),
                runner("smol", POISSON),
                runner("tokio", POISSON),
            ],
            goals: &[NONE_PASSED],
        },
    ],
};
