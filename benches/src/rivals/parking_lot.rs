//! parking_lot's lock, on plain threads.

use parking_lot::{Mutex, RwLock};

use super::threads::{Threads, sync};
use crate::load::Load;
use crate::rival::{Rival, Run};
use crate::work::contend;

/// Threads that lock with it.
#[derive(Debug)]
pub struct ParkingLot(Threads);

impl ParkingLot {
    /// Only remembers how many threads there may be.
    #[must_use]
    pub fn start(workers: usize) -> ParkingLot {
        ParkingLot(Threads::start(workers))
    }
}

impl Rival for ParkingLot {
    fn run(&self, load: Load) -> Option<Run> {
        Some(match load {
            Load::Lock { n } => sync::alone::<Mutex<u64>>(n),
            Load::ReadLock { n } => sync::alone_reading(n, RwLock::new(1), |lock| *lock.read()),
            Load::LockContended { tasks, each } => sync::contended::<Mutex<u64>>(&self.0, tasks, each),
            Load::Contend { many, sections, .. } => contend::by_threads(&Mutex::new(0), many, sections),
            Load::Append { many, .. } => contend::append_by_threads(&Mutex::new(0), many),
            Load::Coarse { .. } => return self.0.run(load),
            _ => return None,
        })
    }
}
