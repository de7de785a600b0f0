//! A rival: a started runtime that runs a [`Load`], and the result.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::Load;
use crate::work;

/// The result of one run of a load.
#[derive(Debug, Clone)]
pub struct Run {
    /// The time the load took.
    pub elapsed: Duration,
    /// To be compared with [`Load::expected`].
    pub value: u64,
    /// Anything else that was measured, by name: `bytes`, `create ns`.
    pub figures: Vec<(&'static str, f64)>,
}

impl Run {
    /// Runs `f` under the clock.
    #[inline]
    pub fn timed(f: impl FnOnce() -> u64) -> Run {
        let start = Instant::now();
        let value = f();
        Run { elapsed: start.elapsed(), value, figures: Vec::new() }
    }

    /// The same for a future.
    pub async fn timed_async(f: impl Future<Output = u64>) -> Run {
        let start = Instant::now();
        let value = f.await;
        Run { elapsed: start.elapsed(), value, figures: Vec::new() }
    }
}

/// A started runtime.
pub trait Rival: Debug {
    /// Runs the load and returns the result; `None` if this runtime cannot run it.
    ///
    /// Called from a thread that is not the runtime's; blocks until the load is done.
    fn run(&self, load: Load) -> Option<Run>;

    /// Makes tasks that are not waited for, for the loads that are the same for all runtimes. `None` if the runtime cannot.
    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        None
    }
}

/// A task that is not waited for.
pub type Job = Box<dyn FnOnce() + Send>;

/// Makes such tasks, inside the runtime or outside.
pub trait Spawn: Send + Sync {
    /// Makes one. Inside a task of the runtime's it is a child, if the runtime has such a relation.
    fn spawn(&self, job: Job);

    /// How many workers there are.
    fn workers(&self) -> usize;

    /// What the runtime itself has counted so far, by name.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Runs the load: in the runtime's own way, or by its spawner if the load is the same for all.
pub fn run(rival: &dyn Rival, load: Load) -> Option<Run> {
    match load {
        Load::Forest { roots, arrivals } => Some(work::forest::run(&rival.spawner()?, roots, arrivals)),
        Load::Idle { millis } => {
            // Some work before; a runtime without the means for arms has had none.
            let _ = rival.run(Load::SETTLING);
            Some(work::idle::idle(millis))
        }
        Load::Wake { n, pause } => Some(work::idle::wakes(&*rival.spawner()?, n, pause)),
        _ => rival.run(load),
    }
}
