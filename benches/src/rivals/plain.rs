//! forebear's plain thread pool with one queue for all tasks, first in, first out or last in, first out: a scheduler without
//! lineages. Its tasks cannot suspend.

use std::fmt::Debug;
use std::sync::Arc;

use forebear::pool::{FifoQueue, LifoQueue, Queue, ThreadPool};

use crate::load::Load;
use crate::rival::{Job, Rival, Run, Spawn};

/// Threads over one queue.
#[derive(Debug)]
pub struct Plain<Q: Queue<Item = Job> + 'static>(Arc<ThreadPool<Q>>);

impl Plain<FifoQueue<Job>> {
    /// First in, first out.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn fifo(workers: usize) -> Self {
        Plain(Arc::new(ThreadPool::new(workers, FifoQueue::new()).expect("the pool's threads")))
    }
}

impl Plain<LifoQueue<Job>> {
    /// Last in, first out.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn lifo(workers: usize) -> Self {
        Plain(Arc::new(ThreadPool::new(workers, LifoQueue::new()).expect("the pool's threads")))
    }
}

impl<Q: Queue<Item = Job> + Debug + 'static> Rival for Plain<Q> {
    fn run(&self, _: Load) -> Option<Run> {
        None
    }

    fn spawner(&self) -> Option<Arc<dyn Spawn>> {
        Some(Arc::new(Plain(self.0.clone())))
    }
}

impl<Q: Queue<Item = Job> + Debug + 'static> Spawn for Plain<Q> {
    fn spawn(&self, job: Job) {
        self.0.submit(job).expect("nobody stops the pool while it is used");
    }

    fn workers(&self) -> usize {
        self.0.workers()
    }
}
