//! [`StepCounter`]: how far a job has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a job has come, by a name. A handle: clones count the same steps.
///
/// A checkpoint is named by it, and restoring one sets it. Summaries are written for the step that it shows.
///
/// ```
/// use forebear_supervise::StepCounter;
/// let steps = StepCounter::new("global_step");
/// assert_eq!((steps.add(3), steps.get()), (3, 3));
/// ```
#[derive(Clone, Debug)]
pub struct StepCounter {
    name: Arc<str>,
    count: Arc<AtomicU64>,
}

impl StepCounter {
    /// One that shows zero.
    pub fn new(name: impl Into<Arc<str>>) -> StepCounter {
        StepCounter { name: name.into(), count: Arc::default() }
    }

    /// The name, which the rate of steps bears in the summaries: `<name>/sec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The step. Does not suspend; one relaxed load.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts so many steps, and returns the new one. It wraps around after 2^64.
    pub fn add(&self, steps: u64) -> u64 {
        self.count.fetch_add(steps, Ordering::Relaxed).wrapping_add(steps)
    }

    /// Makes it show this step.
    pub fn set(&self, step: u64) {
        self.count.store(step, Ordering::Relaxed);
    }
}

impl Default for StepCounter {
    /// One of the name `global_step`.
    fn default() -> Self {
        StepCounter::new("global_step")
    }
}
