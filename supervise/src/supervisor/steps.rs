//! [`StepCounter`]: the number of steps that a job has made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of steps that a job has made, with a name. A handle: clones count the same steps.
///
/// A checkpoint's name has the number; a restore sets the counter to it. Summaries are written for the current number.
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
    /// A counter at zero.
    pub fn new(name: impl Into<Arc<str>>) -> StepCounter {
        StepCounter { name: name.into(), count: Arc::default() }
    }

    /// The name. In summaries the rate of steps is called `<name>/sec`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The step. Does not suspend; one relaxed load.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds `steps`, and returns the new number. It wraps around at 2^64. Does not suspend.
    pub fn add(&self, steps: u64) -> u64 {
        self.count.fetch_add(steps, Ordering::Relaxed).wrapping_add(steps)
    }

    /// Sets the number. Does not suspend.
    ///
    /// ```
    /// use forebear_supervise::StepCounter;
    ///
    /// let steps = StepCounter::new("epochs");
    /// steps.set(10);
    /// assert_eq!((steps.name(), steps.get()), ("epochs", 10));
    /// ```
    pub fn set(&self, step: u64) {
        self.count.store(step, Ordering::Relaxed);
    }
}

impl Default for StepCounter {
    /// A counter named `global_step`.
    fn default() -> Self {
        StepCounter::new("global_step")
    }
}
