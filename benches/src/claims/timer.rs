//! A timer that never fires: armed and disarmed. Nearly every time-out is like that.
//!
//! *One at a time* and *all standing* are the timer alone, without a wait around it, an hour off. forebear: what every wait with a
//! time-out does before it parks and after it continues, on a context that does not park. tokio: a `Sleep`, and smol: a `Timer`,
//! polled once and dropped. Go: `time.AfterFunc` and `Stop`. *Met in time* is a wait as users write it. A token goes back and forth over two channels, and each
//! side receives with a time-out (forebear: `recv_timeout`; tokio: `timeout(HOUR, recv())`; smol: `recv()` or a `Timer`; Go: a `select`
//! with the channel of a `time.Timer` that it stops).
//!
//! Each of the rivals reads the clock once a timer, which takes 20 ns; forebear mostly estimates the time.

use crate::claim::{Claim, Goal, Row, Runner, runner};
use crate::load::Load;
use crate::rivals::outside::GO;

const fn timers(tasks: u64, standing: bool) -> Load {
    Load::Timer { tasks, each: 1_000_000 / tasks, standing }
}

const MET: Load = Load::Timeouts { n: 100_000 };

const fn runners(load: Load) -> [Runner; 4] {
    [runner("forebear", load), runner("tokio", load), runner("smol", load), runner(GO, load)]
}

const GOALS: &[Goal] = &[Goal::times(0.25, "tokio")];

/// One at a time, a million at once, and around a wait.
pub const CLAIM: Claim = Claim {
    name: "timer",
    op: "timer",
    unit: ("ns", 1.0),
    rows: &[
        Row { name: "one at a time", workers: &[1], runners: &runners(timers(1, false)), goals: GOALS },
        Row {
            name: "one at a time by each of two",
            workers: &[2],
            runners: &runners(timers(2, false)),
            goals: GOALS,
        },
        Row { name: "all standing", workers: &[1], runners: &runners(timers(1, true)), goals: GOALS },
        Row { name: "all standing by two", workers: &[2], runners: &runners(timers(2, true)), goals: GOALS },
        Row { name: "met in time", workers: &[1], runners: &runners(MET), goals: GOALS },
    ],
};
