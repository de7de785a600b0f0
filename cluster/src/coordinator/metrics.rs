//! [`Metrics`]: what a coordinator has counted.

use std::time::Duration;

/// What a coordinator has counted.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, Metrics, TaskFn, tasks};
/// use std::time::Duration;
///
/// /// How long a task ran on average.
/// fn mean(metrics: &Metrics) -> Option<Duration> {
///     metrics.ran.checked_div(u32::try_from(metrics.done).ok()?)
/// }
///
/// const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));
///
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![NEXT]).start()?;
/// assert_eq!(mean(&cluster.metrics()), None);
/// cluster.schedule(&NEXT, 1)?.fetch().unwrap();
/// assert!(mean(&cluster.metrics()).is_some());
/// # Ok::<(), ClusterError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Tasks that were scheduled.
    pub scheduled: u64,
    /// Tasks that were not scheduled, since the [journal](crate::ClusterCoordinatorBuilder::journal) had their results.
    pub kept: u64,
    /// Tasks that have ended with a result.
    pub done: u64,
    /// Tasks that have failed.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// How often a task went back to the queue since its worker was gone.
    pub returned: u64,
    /// Tasks that wait for a worker now.
    pub queued: usize,
    /// Tasks that workers have now.
    pub running: usize,
    /// How long the tasks that have ended ran, in sum.
    pub ran: Duration,
    /// Values that were fetched.
    pub fetched: u64,
    /// How long fetches waited and decoded, in sum.
    pub fetching: Duration,
    /// So many bytes the coordinator has read from the engine's store. What only workers read does not count.
    pub read: u64,
}
