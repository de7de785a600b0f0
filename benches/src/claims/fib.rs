//! Fork-join without a cut-off: Fibonacci of 27, and 30 for two workers, where 27 is over before both are warm.
//!
//! The runtimes that make a task of every fork get a smaller number; their figure per fork is better for it.

use crate::claim::{Claim, Goal, Row, runner};
use crate::load::{How, Load};

const fn fib(n: u64, how: How) -> Load {
    Load::Fib { n, how }
}

/// By `join`, by requests whose value is taken, by requests whose value is read through a
/// reference.
pub const CLAIM: Claim = Claim {
    name: "fib",
    op: "fork",
    unit: ("ns", 1.0),
    rows: &[
        Row {
            name: "join",
            workers: &[1, 2],
            runners: &[
                runner("forebear", fib(27, How::Join)),
                runner("chili", fib(27, How::Join)),
                runner("forte", fib(27, How::Join)),
                runner("rayon", fib(27, How::Join)),
                runner("single", fib(27, How::Join)),
            ],
            goals: &[Goal::times(1.0, "chili")],
        },
        Row {
            name: "longer join",
            workers: &[2],
            runners: &[
                runner("forebear", fib(30, How::Join)),
                runner("chili", fib(30, How::Join)),
                runner("rayon", fib(30, How::Join)),
            ],
            goals: &[Goal::times(1.0, "chili")],
        },
        Row {
            name: "by value",
            workers: &[1, 2],
            runners: &[
                runner("forebear", fib(27, How::Value)),
                runner("rayon", fib(27, How::Value)),
                runner("smol", fib(20, How::Value)),
                runner("tokio", fib(20, How::Value)),
                runner("may", fib(16, How::Value)),
                runner("threads", fib(9, How::Value)),
            ],
            goals: &[Goal::times(1.0, "rayon")],
        },
        Row {
            name: "by reference",
            workers: &[1, 2],
            runners: &[runner("forebear", fib(27, How::Reference)), runner("rayon", fib(27, How::Reference))],
            goals: &[Goal::times(2.0, "rayon")],
        },
    ],
};
