//! The settings of a thread pool, and its start.

use std::fmt;

use forebear_context::shim::Arc;

use super::{TaskPanic, ThreadPool, serve};
use crate::task_queues::{LeftoverHook, PanicHook, TaskQueues};
use crate::{Affinity, Engine, Leftover, Options, Queue, StartError, Task, Warning};

/// Describes a [`ThreadPool`]; see [`ThreadPool::builder`]. Each method changes one thing and hands the builder on.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, ThreadPool};
///
/// let pool = ThreadPool::builder()
///     .workers(2)
///     .queue(FifoQueue::<Job>::new())
///     .name_prefix("render ")
///     .stack_size(256 * 1024)
///     .build()?;
/// assert_eq!(pool.workers(), 2);
/// # pool.stop();
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct ThreadPoolBuilder<Q: Queue> {
    pub(super) options: Options,
    pub(super) queue: Q,
    pub(super) on_panic: PanicHook,
    pub(super) on_leftover: LeftoverHook<Q::Item>,
}

impl<Q: Queue> ThreadPoolBuilder<Q> {
    /// How many threads; as many as there are cores, otherwise.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// The queue, and with it the discipline and the type of the tasks. Forgets an earlier
    /// [`on_leftover`](ThreadPoolBuilder::on_leftover), which was for tasks of another type.
    pub fn queue<R: Queue>(self, queue: R) -> ThreadPoolBuilder<R> {
        let ThreadPoolBuilder { options, on_panic, .. } = self;
        ThreadPoolBuilder { options, queue, on_panic, on_leftover: dropped_with_tasks() }
    }

    /// The prefix of the number in a thread's name; "Worker #" by default.
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options = self.options.name_prefix(prefix);
        self
    }

    /// The size of each thread's stack, in bytes; std's default otherwise.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.options = self.options.stack_size(bytes);
        self
    }

    /// Which cores the threads may run on; any, otherwise.
    ///
    /// ```
    /// use forebear::pool::{Affinity, ThreadPool};
    ///
    /// let pool = ThreadPool::builder().workers(1).affinity(Affinity::OneEach).on_warning(|_| ()).build()?;
    /// # pool.stop();
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.options = self.options.affinity(affinity);
        self
    }

    /// Called on each worker's thread, with its number, before its first task. A panic in it is contained.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use forebear::pool::ThreadPool;
    ///
    /// let (begun, ended) = (mpsc::channel(), mpsc::channel());
    /// let pool = ThreadPool::builder()
    ///     .workers(1)
    ///     .on_start(move |worker| begun.0.send(worker).unwrap())
    ///     .on_stop(move |worker| ended.0.send(worker).unwrap())
    ///     .build()?;
    /// pool.stop();
    /// assert_eq!((begun.1.recv()?, ended.1.recv()?), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.options = self.options.on_start(hook);
        self
    }

    /// Called on each worker's thread, with its number, after its last task. A panic in it is contained.
    pub fn on_stop(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.options = self.options.on_stop(hook);
        self
    }

    /// Called for a warning: something was refused, and work continues without it. Otherwise such a warning is one line
    /// on stderr.
    pub fn on_warning(mut self, hook: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.options = self.options.on_warning(hook);
        self
    }

    /// Called on the worker's thread for each task that panicked, and for each panic of the [`Queue`] there; otherwise that is one line on stderr, after that of
    /// std's own hook. A panic in it is contained.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use forebear::pool::{FifoQueue, Job, ThreadPool};
    ///
    /// let (send, seen) = mpsc::channel();
    /// let pool = ThreadPool::builder()
    ///     .workers(1)
    ///     .queue(FifoQueue::<Job>::new())
    ///     .on_panic(move |panic| send.send(panic.worker()).unwrap())
    ///     .build()?;
    /// assert!(pool.submit(Box::new(|| panic!("no licence"))).is_ok());
    /// assert_eq!(seen.recv()?, 0);
    /// # pool.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_panic(mut self, hook: impl Fn(TaskPanic<'_>) + Send + Sync + 'static) -> Self {
        self.on_panic = Box::new(hook);
        self
    }

    /// Is called with the tasks that were queued when the pool was dropped, in the dropping thread. Rarely it is called
    /// a second time, in a worker's thread, for a task that was being sent to its key's worker at that moment. Without
    /// this hook the tasks are dropped, with a line on stderr. A panic in it is caught.
    ///
    /// ```
    /// use forebear::pool::{FifoQueue, Job, ThreadPool};
    ///
    /// let pool = ThreadPool::builder()
    ///     .workers(1)
    ///     .queue(FifoQueue::<Job>::new())
    ///     .on_leftover(|tasks| eprintln!("{} tasks were not begun", tasks.len()))
    ///     .build()?;
    /// drop(pool);
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    pub fn on_leftover(mut self, hook: impl Fn(Leftover<Q::Item>) + Send + Sync + 'static) -> Self {
        self.on_leftover = Box::new(hook);
        self
    }

    /// Starts the pool.
    ///
    /// # Errors
    ///
    /// As [`Engine::start`]. The queue is dropped then, with what was in it.
    pub fn build(self) -> Result<ThreadPool<Q>, StartError>
    where
        Q: 'static,
        Q::Item: Task,
    {
        let ThreadPoolBuilder { options, queue, on_panic, on_leftover } = self;
        crate::start_error::check_workers(options.workers)?;
        let queues = TaskQueues::new(options.workers, queue, on_panic, on_leftover);
        Ok(ThreadPool { engine: Engine::start(options, Arc::new(queues), serve)? })
    }
}

impl<Q: Queue> fmt::Debug for ThreadPoolBuilder<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPoolBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What is done with tasks that were queued when their pool was dropped, unless the user says otherwise.
pub(super) fn dropped_with_tasks<I>() -> LeftoverHook<I> {
    Box::new(|items| {
        let count = items.len();
        eprintln!(
            "forebear: a thread pool was dropped with {count} queued tasks, which never run; `stop` returns them"
        );
        drop(items);
    })
}
