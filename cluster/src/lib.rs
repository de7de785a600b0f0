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

mod coordinator;
mod ctx;
mod dispatch;
pub mod engine;
mod error;
mod in_process;
#[cfg(target_os = "linux")]
mod local;
mod map;
mod remote;
mod task;
pub mod worker;

pub use coordinator::{
    ClusterCoordinator, ClusterCoordinatorBuilder, Metrics, TaskOptions, TryScheduleError,
};
pub use ctx::TaskCtx;
pub use error::{ClusterError, FailureKind, FetchError, TaskFailure};
pub use in_process::{InProcess, InProcessControl};
#[cfg(target_os = "linux")]
pub use local::{LocalProcesses, LocalProcessesControl};
pub use map::Map;
pub use remote::{Fetch, Plain, RemoteState, RemoteValue};
pub use task::{PerWorker, Registered, ResourceFn, TaskFn, Tasks};
