//! What the board finds beside it in the crate, without what the models do not ask about.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::{WorkerId, WorkerStatus};
use crate::remote::Slot;

#[path = "../../../cluster/src/coordinator/board.rs"]
#[allow(dead_code, reason = "a part of it is called here")]
pub(crate) mod board;
#[path = "../../../cluster/src/coordinator/metrics.rs"]
#[allow(unreachable_pub, reason = "it is public where it is shipped")]
mod metrics;

pub(crate) use self::metrics::Metrics;

/// The handles of the coordinator share it. Here nobody has one.
#[allow(dead_code, reason = "there is none")]
pub(crate) struct Shared;

pub(crate) mod journal {
    #[allow(dead_code, reason = "no result is kept")]
    #[derive(Clone)]
    pub(crate) struct Wanted;
}

#[allow(dead_code, reason = "no watchdog reads it")]
pub(crate) struct Stall {
    pub(crate) periods: u32,
    pub(crate) queued: usize,
    pub(crate) running: Vec<StalledTask>,
    pub(crate) workers: Vec<WorkerStatus>,
    pub(crate) dumps: Vec<()>,
}

#[allow(dead_code, reason = "as above")]
pub(crate) struct StalledTask {
    pub(crate) name: Arc<str>,
    pub(crate) worker: WorkerId,
    pub(crate) attempt: u32,
    pub(crate) ran: Duration,
}

/// A board whose queue has room for so many tasks.
pub(crate) fn board(tasks: usize) -> board::Board {
    board::Board::new(board::Limit { tasks, bytes: 100 }, Weak::new())
}

/// A task whose failure is raised.
pub(crate) fn listing(slot: &Arc<Slot>) -> board::Listing {
    let raises = board::Raises::Always;
    board::Listing { name: "task".into(), bytes: 1, slot: Arc::downgrade(slot), raises, by: None, kept: None }
}
