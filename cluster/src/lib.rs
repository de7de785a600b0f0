//! Typed tasks on workers that may come, go and die, on [forebear].
//!
//! A [`ClusterCoordinator`] schedules [`TaskFn`]s, which any worker may run, and hands out [`RemoteValue`]s. A task whose worker dies is run again by another one. The
//! first error cancels the rest, and comes out of the next call.
//!
//! ```
//! use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskFn, tasks};
//!
//! const PRIMES: TaskFn<(u32, u32), usize> = TaskFn::new("primes", |_, (from, to)| {
//!     let is_prime = |n: &u32| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
//!     Ok((from..to).filter(is_prime).count())
//! });
//!
//! let cluster = ClusterCoordinator::builder(InProcess::new(2)).tasks(tasks![PRIMES]).start()?;
//! let parts: Vec<_> = (0..10)
//!     .map(|part| cluster.schedule(&PRIMES, (part * 100, (part + 1) * 100)))
//!     .collect::<Result<_, _>>()?;
//! cluster.join()?; // all have ended, or the first error
//! let counts = cluster.fetch(parts).unwrap();
//! assert_eq!(counts.iter().sum::<usize>(), 168);
//! # Ok::<(), ClusterError>(())
//! ```
//!
//! # The parts
//!
//! * [`ClusterCoordinator`]: the queue, the error latch, the values.
//! * [`engine`]: the messages that an engine carries, and what it owes. [`InProcess`] and, on Linux, `LocalProcesses` are the engines of this crate.
//! * [`worker`]: what runs the tasks, for engines; and the entry of worker processes.
//!
//! `docs/cluster.md` in the repository says row by row what became of the original, TensorFlow's `ClusterCoordinator`, and what is not there yet.

#![forbid(unsafe_code)]

mod by_task;
mod cache;
mod coordinator;
mod ctx;
mod dispatch;
mod encoded;
pub mod engine;
mod error;
mod holds;
mod in_process;
#[cfg(target_os = "linux")]
mod local;
mod map;
mod remote;
mod shim;
mod stored;
mod task;
pub mod worker;

/// Makes a function a task: `score::TASK` is the [`TaskFn`] of `fn score`, in a module beside it.
///
/// The function returns a `Result`, whose error becomes a [`forebear::Error`]. Its first argument may be a [`&TaskCtx`](TaskCtx). The other arguments are owned; several are a tuple for
/// [`schedule`](ClusterCoordinator::schedule), one is itself. The function can still be called. Register the constant as any other: [`tasks!`].
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, TaskCtx, task, tasks};
///
/// #[task]
/// fn repeat(ctx: &TaskCtx, text: String, times: usize) -> forebear::Result<String> {
///     forebear::check_cancelled()?;
///     Ok(format!("{} on {}", text.repeat(times), ctx.worker().name()))
/// }
///
/// # fn main() -> Result<(), ClusterError> {
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![repeat::TASK]).start()?;
/// assert_eq!(cluster.schedule(&repeat::TASK, ("ha".into(), 2))?.fetch().unwrap(), "haha on worker-0");
/// # Ok(())
/// # }
/// ```
///
/// Only the text of an error, and the texts of its sources, reach the coordinator. An error that the caller is to have with its type is returned as a [`TaskError`]; [`TaskFailure::downcast`] gives it back.
///
/// ```
/// use forebear_cluster::{TaskError, task};
///
/// #[derive(Debug, serde::Serialize, serde::Deserialize)]
/// enum Refused {
///     TooOld { years: u32 },
/// }
///
/// impl std::fmt::Display for Refused {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "{self:?}")
///     }
/// }
///
/// impl std::error::Error for Refused {}
///
/// #[task]
/// fn check(years: u32) -> Result<(), TaskError> {
///     if years > 9 { Err(TaskError::new(Refused::TooOld { years })) } else { Ok(()) }
/// }
/// # fn main() {}
/// ```
///
/// A task stands in a module, not in the body of another function: the attribute makes a module beside it, which could not find it there. A task that returns no `Result`, or borrows an argument, does not compile either:
///
/// ```compile_fail
/// #[forebear_cluster::task]
/// fn length(text: String) -> usize {
///     text.len()
/// }
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[forebear_cluster::task]
/// fn length(number: u32, text: &str) -> forebear::Result<usize> {
///     Ok(text.len())
/// }
/// # fn main() {}
/// ```
///
/// Only a first `&TaskCtx` is borrowed, and no other first argument:
///
/// ```compile_fail
/// #[forebear_cluster::task]
/// fn length(text: &str) -> forebear::Result<usize> {
///     Ok(text.len())
/// }
/// # fn main() {}
/// ```
pub use forebear_cluster_macros::task;

/// Makes a function one that makes a resource: `table::RESOURCE` is the [`ResourceFn`] of `fn table`. As [`task`](macro@task), but the result stays on its worker and is never encoded.
///
/// ```
/// use forebear_cluster::{ClusterCoordinator, ClusterError, InProcess, PerWorker, TaskCtx, resource, task, tasks};
///
/// #[resource]
/// fn words(text: String) -> forebear::Result<Vec<String>> {
///     Ok(text.split(' ').map(String::from).collect())
/// }
///
/// #[task]
/// fn word(ctx: &TaskCtx, words: PerWorker<Vec<String>>, at: usize) -> forebear::Result<String> {
///     Ok(ctx.local(&words)?[at].clone())
/// }
///
/// # fn main() -> Result<(), ClusterError> {
/// let cluster = ClusterCoordinator::builder(InProcess::new(1)).tasks(tasks![words::RESOURCE, word::TASK]).start()?;
/// let words = cluster.per_worker(&words::RESOURCE, "a b c".into())?;
/// assert_eq!(cluster.schedule(&word::TASK, (words, 1))?.fetch().unwrap(), "b");
/// # Ok(())
/// # }
/// ```
pub use forebear_cluster_macros::resource;

pub use coordinator::{
    ClusterCoordinator, ClusterCoordinatorBuilder, Metrics, Stall, StalledTask, TaskOptions,
    TryScheduleError, WorkerDump,
};
pub use ctx::TaskCtx;
pub use error::{ClusterError, FailureKind, FetchError, TaskError, TaskFailure, TypedError};
pub use in_process::{InProcess, InProcessControl};
#[cfg(target_os = "linux")]
pub use local::{LocalProcesses, LocalProcessesControl};
pub use map::{Each, Map, Unordered};
pub use remote::{Fetch, Plain, RemoteState, RemoteValue};
pub use stored::Stored;
pub use task::{PerWorker, Registered, ResourceFn, Returned, TaskFn, Tasks};
