//! A plain thread pool: the engine with a queue.
//!
//! Knows tasks, not requests: a task runs to its end on its worker's thread, and blocks it if it blocks. Stopping is
//! this, in order:
//!
//! 1. The queues are closed: `submit` hands its item back from now on, and no worker takes another.
//! 2. Every worker is signalled to stop, and woken; it ends after its current task.
//! 3. The caller waits for all of them (a worker that stops its own pool: for all others; its thread ends when the task
//!    that called `stop` has returned).
//! 4. The caller gets what is on the queues. A second call of `stop` gets nothing more, after the same wait.
//!
//! Dropping the pool does 1 and 2, never waits, and gives what was queued to a hook.
//!
//! **In a forked child** the pool has no threads, and its locks may be held for ever. What needs one of them panics there, and dropping the pool
//! does nothing. A task that has forked, and returns in the child, ends the child: its worker would run what the parent runs, too.

mod builder;
mod stopped;
mod task_panic;

use std::fmt;

use forebear_context::shim::mutant;

pub use self::builder::ThreadPoolBuilder;
use self::builder::dropped_with_tasks;
pub use self::stopped::Stopped;
pub(crate) use self::task_panic::Origin;
pub use self::task_panic::TaskPanic;
use crate::generation::Generation;
use crate::task::{AffinityKey, Job};
use crate::task_queues::TaskQueues;
use crate::{Engine, Options, PriorityQueue, Queue, StartError, Supply, Task, Worker, WorkerState};

/// Threads that run tasks from a queue of the user's choice.
///
/// ```
/// use std::sync::mpsc;
/// use forebear::pool::{FifoQueue, Job, ThreadPool};
///
/// let pool: ThreadPool<FifoQueue<Job>> = ThreadPool::new(2, FifoQueue::new())?;
/// let (send, receive) = mpsc::channel();
/// for number in 0..3 {
///     let send = send.clone();
///     pool.submit(Box::new(move || send.send(number * number).unwrap()))?;
/// }
/// let sum: i32 = receive.iter().take(3).sum();
/// assert_eq!(sum, 0 + 1 + 4);
/// assert!(pool.stop().is_empty(), "all tasks had run");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **Dropping** a pool stops its workers after their current tasks, and does not wait for them. Queued tasks go to
/// [`ThreadPoolBuilder::on_leftover`]; by default they are dropped, with a line on stderr. To wait, and to get the
/// queued tasks back, call [`stop`](ThreadPool::stop).
///
/// **In a forked child** a pool of the parent has no threads. [`submit`](ThreadPool::submit), [`stop`](ThreadPool::stop), [`queued`](ThreadPool::queued)
/// and [`worker_of`](ThreadPool::worker_of) panic there with a message that says so, and dropping it does nothing. Make a new one after the fork.
/// A task that forks has to end the child itself, or `exec`: if it returns there, the process aborts.
#[doc(alias = "spawn_blocking")]
pub struct ThreadPool<Q>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    engine: Engine<TaskQueues<Q>>,
}

impl ThreadPool<PriorityQueue<i64, Job>> {
    /// Describes a pool: as many workers as there are cores, a priority queue of [`Job`]s with the smallest key first;
    /// all of it can be changed.
    ///
    /// ```
    /// use forebear::pool::ThreadPool;
    ///
    /// let pool = ThreadPool::builder().workers(1).name_prefix("render ").build()?;
    /// pool.submit((2, Box::new(|| println!("maybe later"))))?;
    /// pool.submit((1, Box::new(|| println!("maybe sooner"))))?;
    /// # pool.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> ThreadPoolBuilder<PriorityQueue<i64, Job>> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        ThreadPoolBuilder {
            options: Options::new(workers),
            queue: PriorityQueue::new(),
            on_panic: Box::new(|panic| eprintln!("forebear: {panic}")),
            on_leftover: dropped_with_tasks(),
        }
    }
}

impl<Q> ThreadPool<Q>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    /// A pool of `workers` threads over this queue. It runs what the queue contains already.
    ///
    /// # Errors
    ///
    /// As [`Engine::start`]: above all for no workers, and for threads that the system would not make.
    ///
    /// ```
    /// use forebear::pool::{LifoQueue, Job, ThreadPool};
    ///
    /// let pool = ThreadPool::new(2, LifoQueue::<Job>::new())?;
    /// assert_eq!(pool.workers(), 2);
    /// # pool.stop();
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    pub fn new(workers: usize, queue: Q) -> Result<ThreadPool<Q>, StartError> {
        ThreadPool::builder().workers(workers).queue(queue).build()
    }

    /// Queues a task, and wakes a worker for it if need be. Never waits for a task; may be called from anywhere, tasks
    /// of this pool included.
    ///
    /// A task whose [`AffinityKey`] is set goes to that worker; any other to the first that is free.
    ///
    /// # Errors
    ///
    /// [`Stopped`], with the task in it, if the pool has been stopped.
    ///
    /// # Panics
    ///
    /// In a forked child, if the pool was made in the parent.
    #[track_caller]
    pub fn submit(&self, item: Q::Item) -> Result<(), Stopped<Q::Item>> {
        self.check_process();
        self.engine.supply().put(item)
    }

    /// Stops the pool: lets each worker finish its current task, waits for them, and hands back everything that was
    /// queued and not begun, tasks with a key included.
    ///
    /// Blocks the thread. Idempotent: later calls wait too, and get nothing. In a task of this pool it waits for the
    /// other workers only; two workers that stop their pool at the same time do not wait for each other.
    ///
    /// # Panics
    ///
    /// In a forked child, if the pool was made in the parent.
    #[track_caller]
    pub fn stop(&self) -> Vec<Q::Item> {
        self.check_process();
        let queues = self.engine.supply();
        mutant!("stop_closes_late", (), queues.close());
        self.engine.stop_and_join();
        let items = queues.empty();
        mutant!("stop_closes_late", queues.close());
        items
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.engine.options().workers()
    }

    /// What each worker is doing, by number; a snapshot.
    ///
    /// ```
    /// use forebear::pool::{FifoQueue, Job, ThreadPool, WorkerState};
    ///
    /// let pool = ThreadPool::new(2, FifoQueue::<Job>::new())?;
    /// pool.stop();
    /// assert_eq!(pool.states(), [WorkerState::Stopped; 2]);
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    #[must_use]
    pub fn states(&self) -> Vec<WorkerState> {
        self.engine.states()
    }

    /// How many tasks wait for a worker; a snapshot.
    ///
    /// # Panics
    ///
    /// In a forked child, if the pool was made in the parent.
    ///
    /// ```
    /// use forebear::pool::{FifoQueue, Job, ThreadPool};
    ///
    /// let pool = ThreadPool::new(2, FifoQueue::<Job>::new())?;
    /// assert_eq!(pool.queued(), 0);
    /// # pool.stop();
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn queued(&self) -> usize {
        self.check_process();
        self.engine.supply().len()
    }

    /// The number of the worker on whose thread this is called; `None` elsewhere.
    ///
    /// ```
    /// use std::sync::{Arc, mpsc};
    /// use forebear::pool::{FifoQueue, Job, ThreadPool};
    ///
    /// let pool = Arc::new(ThreadPool::new(1, FifoQueue::<Job>::new())?);
    /// assert_eq!(pool.current_worker(), None);
    /// let (send, seen) = mpsc::channel();
    /// let handle = pool.clone();
    /// assert!(pool.submit(Box::new(move || send.send(handle.current_worker()).unwrap())).is_ok());
    /// assert_eq!(seen.recv()?, Some(0));
    /// # pool.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn current_worker(&self) -> Option<usize> {
        self.engine.current_worker()
    }

    /// The worker that this affinity key names in this pool; `None` until a worker has taken a task with it.
    ///
    /// # Panics
    ///
    /// In a forked child, if the pool was made in the parent.
    ///
    /// ```
    /// use forebear::pool::{AffinityKey, FifoQueue, Job, ThreadPool};
    ///
    /// let pool = ThreadPool::new(2, FifoQueue::<Job>::new())?;
    /// assert_eq!(pool.worker_of(&AffinityKey::new()), None); // no task has run with it
    /// # pool.stop();
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn worker_of(&self, affinity: &AffinityKey) -> Option<usize> {
        self.check_process();
        affinity.worker(&self.engine.supply().mark)
    }

    /// Before what needs the threads, or a lock that one of them may have held when the process was forked.
    #[inline]
    #[track_caller]
    fn check_process(&self) {
        if self.engine.is_inherited() {
            refuse();
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn refuse() -> ! {
    panic!("forebear: this thread pool's threads are in the parent process; make a new one after fork")
}

impl<Q> Drop for ThreadPool<Q>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            return;
        }
        let queues = self.engine.supply();
        queues.signals().stop();
        queues.abandon();
    }
}

impl<Q> fmt::Debug for ThreadPool<Q>
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("ThreadPool");
        if self.engine.is_inherited() {
            return s.field("process", &format_args!("the parent")).finish_non_exhaustive();
        }
        s.field("states", &self.states()).field("queued", &self.queued()).finish_non_exhaustive()
    }
}

/// The body of each thread.
fn serve<Q>(worker: &Worker<TaskQueues<Q>>)
where
    Q: Queue + 'static,
    Q::Item: Task,
{
    let queues = worker.supply();
    let born = Generation::of_process();
    while let Some(item) = queues.take(worker.index()).or_else(|| worker.idle()) {
        worker.set_state(WorkerState::Running);
        queues.run(worker.index(), item);
        if born.is_inherited() {
            die_in_child();
        }
    }
}

/// What is queued is the parent's to run.
#[cold]
fn die_in_child() -> ! {
    eprintln!(
        "forebear: a task of a thread pool has returned in a forked child, whose pool has no threads; the child ends. \
         Call `exec` or `_exit` in the child"
    );
    std::process::abort()
}
