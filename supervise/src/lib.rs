//! Long jobs on [forebear] that must stop together and report why.
//!
//! * [`Coordinator`]: several workers (requests, threads, child processes) that stop together. The first error decides, and
//!   [`Coordinator::join`] returns it.
//! * [`Checkpoints`]: the state of a job in files, so that the job continues after a crash.
//!   With the feature `safetensors`, arrays in them can be exported for programs in other languages.
//! * [`EventWriter`]: scalars, histograms, images and texts for TensorBoard.
//! * [`Supervisor`]: all of these around one job, in one or several processes. It continues at its newest checkpoint, saves itself, and writes summaries.
//! * `agent` (on Linux): a group of worker processes that is watched and restarted as a unit.
//!
//! ```
//! use forebear_supervise::{Coordinator, EndOfInput, JoinError};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! static SUM: AtomicU64 = AtomicU64::new(0);
//!
//! let coordinator = Coordinator::new();
//! coordinator.spawn("adder", |me| {
//!     for n in 1_u64.. {
//!         me.check_stop()?; // an error once a stop was requested
//!         if n > 100 {
//!             return Err(EndOfInput.into()); // stops all workers; `join` still answers `Ok`
//!         }
//!         SUM.fetch_add(n, Ordering::Relaxed);
//!     }
//!     Ok(())
//! });
//! coordinator.join()?;
//! assert_eq!(SUM.load(Ordering::Relaxed), 5_050);
//! # Ok::<(), JoinError>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod agent;
mod checkpoint;
mod contain;
mod coordinator;
mod events;
mod ordinary;
mod shim;
mod supervisor;

#[cfg(feature = "safetensors")]
pub use checkpoint::Tensor;
pub use checkpoint::{
    Checkpoint, CheckpointError, Checkpoints, CopiedState, SavedSections, SectionError, SectionReader,
    SectionWriter, Sections, Snapshot, State,
};
pub use coordinator::{
    ChildFailed, Coordinator, CoordinatorBuilder, EndOfInput, Every, JoinError, JoinOptions, Joinable,
    LastCheck, Looper, Member, Stop, Straggler, Vanished, WorkerCancelled,
};
pub use events::{EventError, EventWriter, SessionLog, Summary};
pub use supervisor::{
    Chief, ChiefDeath, ChiefDied, JobCancelled, Prepared, Preparing, Readiness, Session, SessionManager,
    StepCounter, SuperviseError, Supervisor, SupervisorBuilder,
};

#[cfg(feature = "safetensors")]
#[doc(no_inline)]
pub use safetensors::Dtype;

/// The source of the errors of cancelled waits.
static CANCELLED: forebear::Cancelled = forebear::Cancelled::new();
