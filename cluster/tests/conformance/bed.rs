//! [`Bed`]: what the suite needs of an engine, beside the engine itself.

use std::time::Duration;

use forebear_cluster::engine::{Engine, WorkerState};
use forebear_cluster::{ClusterCoordinator, ClusterCoordinatorBuilder, ClusterError, TaskFailure};

use crate::desk::{Desk, all_tasks};
use crate::until;

/// An engine, and what makes its workers come and die. The workers of the start are `worker-0` and so on, and run one task at a time.
pub(crate) trait Bed: Sized + Sync {
    /// Whether its workers are processes, of which one can be ended with what runs on it.
    const ENDS_WORKERS: bool;

    /// With a grace that no test waits for.
    fn engine(workers: usize) -> (Self, impl Engine) {
        Self::engine_of_grace(workers, Duration::from_secs(200))
    }
    fn engine_of_grace(workers: usize, cancel_grace: Duration) -> (Self, impl Engine);
    /// A worker comes, or comes back. Does not wait until it is ready.
    fn add(&self, name: &str);
    /// The program ends a worker, and it does not come back.
    fn kill(&self, name: &str);
    /// A worker dies by itself, and comes back. Over processes this is its process.
    fn lose(&self, name: &str, process: u32);
    /// A worker is asked to leave.
    fn drain(&self, name: &str);
}

/// A cluster with a desk.
pub(crate) struct Field<B> {
    pub(crate) cluster: ClusterCoordinator,
    pub(crate) desk: Desk,
    pub(crate) bed: B,
    dir: tempfile::TempDir,
}

/// A cluster whose workers are all ready.
pub(crate) fn field<B: Bed>(workers: usize) -> Field<B> {
    field_with(workers, |builder| builder)
}

pub(crate) fn field_with<B: Bed>(
    workers: usize,
    settings: impl FnOnce(ClusterCoordinatorBuilder) -> ClusterCoordinatorBuilder,
) -> Field<B> {
    field_of(B::engine(workers), workers, settings)
}

/// The same over that engine.
pub(crate) fn field_of<B: Bed>(
    (bed, engine): (B, impl Engine),
    workers: usize,
    settings: impl FnOnce(ClusterCoordinatorBuilder) -> ClusterCoordinatorBuilder,
) -> Field<B> {
    let builder = ClusterCoordinator::builder(engine).tasks(all_tasks()).min_workers(workers);
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::new(&dir);
    Field { cluster: settings(builder).start().unwrap(), desk, bed, dir }
}

impl<B: Bed> Field<B> {
    /// Brings a worker, and waits until it is ready.
    pub(crate) fn add(&self, name: &str) {
        self.bed.add(name);
        self.await_state(name, WorkerState::Ready);
    }

    /// Kills a worker, and waits until that is known.
    pub(crate) fn kill(&self, name: &str) {
        self.bed.kill(name);
        self.await_state(name, WorkerState::Gone);
    }

    /// Drops the handle of the cluster. The desk stays.
    pub(crate) fn close(self) -> tempfile::TempDir {
        self.dir
    }

    pub(crate) fn state(&self, name: &str) -> Option<WorkerState> {
        self.cluster.workers().iter().find(|worker| worker.id.name() == name).map(|worker| worker.state)
    }

    pub(crate) fn await_state(&self, name: &str, state: WorkerState) {
        until(|| self.state(name) == Some(state));
    }

    pub(crate) fn at(&self, gate: &str) -> (Desk, String) {
        (self.desk.clone(), gate.to_owned())
    }
}

/// The failure, of an answer that is one.
pub(crate) fn failure_of<T: std::fmt::Debug>(answer: Result<T, ClusterError>) -> TaskFailure {
    match answer {
        Err(ClusterError::Task(failure)) => failure,
        other => panic!("no failure of a task, but {other:?}"),
    }
}

/// The text that a task failed with.
pub(crate) fn text_of(failure: &TaskFailure) -> String {
    failure.kind().to_string()
}
