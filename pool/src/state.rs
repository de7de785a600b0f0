//! What a worker is doing, as other threads see it.
//!
//! A worker writes its state by plain stores, and any thread reads it at any time. It is for display only: no
//! decision depends on it.

use std::fmt;

use forebear_context::shim::atomic::{AtomicU8, Ordering::Relaxed};

/// What a worker of an engine is doing; a snapshot.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, ThreadPool, WorkerState};
///
/// let pool = ThreadPool::new(2, FifoQueue::<Job>::new())?;
/// pool.stop();
/// assert!(pool.states().iter().all(|state| *state == WorkerState::Stopped));
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum WorkerState {
    /// The thread is not there yet, or in its start hook.
    Starting,
    /// It searches for a task.
    Searching,
    /// It runs a task.
    Running,
    /// It is asleep, until it is woken.
    Sleeping,
    /// It has left its loop: in its stop hook, or gone.
    Stopped,
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkerState::Starting => "starting",
            WorkerState::Searching => "searching",
            WorkerState::Running => "running",
            WorkerState::Sleeping => "sleeping",
            WorkerState::Stopped => "stopped",
        })
    }
}

/// The states of all workers of an engine.
#[derive(Debug)]
pub(crate) struct States(Box<[State]>);

/// One state, on a line of its own: it is written at every change of task.
#[derive(Debug)]
#[repr(align(128))]
struct State(AtomicU8);

impl States {
    pub(crate) fn new(workers: usize) -> States {
        States((0..workers).map(|_| State(AtomicU8::new(WorkerState::Starting as u8))).collect())
    }

    #[inline]
    pub(crate) fn set(&self, worker: usize, state: WorkerState) {
        self.0[worker].0.store(state as u8, Relaxed);
    }

    pub(crate) fn all(&self) -> Vec<WorkerState> {
        self.0.iter().map(|state| State::read(state.0.load(Relaxed))).collect()
    }
}

impl State {
    fn read(byte: u8) -> WorkerState {
        use WorkerState::{Running, Searching, Sleeping, Starting, Stopped};
        [Starting, Searching, Running, Sleeping, Stopped]
            .into_iter()
            .find(|&state| state as u8 == byte)
            .unwrap_or(Stopped)
    }
}
