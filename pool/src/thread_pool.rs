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

use std::any::Any;
use std::fmt;

use forebear_context::shim::Arc;
use forebear_context::shim::mutant;

use crate::generation::Generation;
use crate::task::{AffinityKey, Job};
use crate::task_queues::{LeftoverHook, PanicHook, TaskQueues};
use crate::{
    Affinity, Engine, Leftover, Options, PriorityQueue, Queue, StartError, Supply, Task, Warning, Worker,
    WorkerState,
};

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

/// What is done with tasks that were queued when their pool was dropped, unless the user says otherwise.
fn dropped_with_tasks<I>() -> LeftoverHook<I> {
    Box::new(|items| {
        let count = items.len();
        eprintln!(
            "forebear: a thread pool was dropped with {count} queued tasks, which never run; `stop` returns them"
        );
        drop(items);
    })
}

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
    options: Options,
    queue: Q,
    on_panic: PanicHook,
    on_leftover: LeftoverHook<Q::Item>,
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

/// The error of [`ThreadPool::submit`]: the pool takes no more tasks, and the task comes back as it was.
///
/// A caller meets it from the moment at which anybody calls [`ThreadPool::stop`]: after that call, or in another thread or a running task of the pool
/// meanwhile. The pool never takes tasks again. The caller may run the task itself, give it to another pool, or drop it.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, Stopped, ThreadPool};
///
/// let pool = ThreadPool::new(1, FifoQueue::<Job>::new())?;
/// pool.stop();
/// if let Err(Stopped(job)) = pool.submit(Box::new(|| println!("run here instead"))) {
///     job();
/// }
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stopped<T>(
    /// The task, as it was.
    pub T,
);

impl<T> Stopped<T> {
    /// The task, unchanged.
    ///
    /// ```
    /// use forebear::pool::{FifoQueue, Job, ThreadPool};
    ///
    /// let pool = ThreadPool::new(1, FifoQueue::<Job>::new())?;
    /// pool.stop();
    /// let Err(refused) = pool.submit(Box::new(|| println!("run here instead"))) else { panic!() };
    /// refused.into_inner()();
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> fmt::Debug for Stopped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopped(..)")
    }
}

impl<T> fmt::Display for Stopped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the thread pool has been stopped and takes no more tasks")
    }
}

impl<T> std::error::Error for Stopped<T> {}

/// A task that panicked, or the pool's queue, as the pool's hook receives it.
///
/// ```
/// use std::sync::mpsc;
/// use forebear::pool::{FifoQueue, Job, TaskPanic, ThreadPool};
///
/// let (send, seen) = mpsc::channel();
/// let pool = ThreadPool::builder()
///     .workers(1)
///     .queue(FifoQueue::<Job>::new())
///     .on_panic(move |panic: TaskPanic<'_>| {
///         assert!(panic.payload().is::<&str>());
///         send.send((panic.worker(), panic.message().map(String::from))).unwrap();
///     })
///     .build()?;
/// assert!(pool.submit(Box::new(|| panic!("no licence"))).is_ok());
/// assert_eq!(seen.recv()?, (0, Some("no licence".into())));
/// # pool.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct TaskPanic<'a> {
    pub(crate) worker: usize,
    pub(crate) origin: Origin,
    pub(crate) payload: &'a (dyn Any + Send),
}

/// What has panicked on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Task,
    /// The user's queue, when a worker took a task or sent one on.
    Queue,
}

impl<'a> TaskPanic<'a> {
    /// The number of the worker that ran it.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Whether the pool's [`Queue`] panicked, and no task: in its `pop`, or in the `push` by which a worker sends a task to the worker of its key.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use forebear::pool::{Job, Queue, ThreadPool};
    ///
    /// struct Broken(Vec<Job>);
    /// impl Queue for Broken {
    ///     type Item = Job;
    ///     fn push(&mut self, job: Job) {
    ///         self.0.push(job);
    ///     }
    ///     fn pop(&mut self) -> Option<Job> {
    ///         if self.0.pop().is_some() { panic!("lost") } else { None }
    ///     }
    ///     fn len(&self) -> usize {
    ///         self.0.len()
    ///     }
    /// }
    ///
    /// let (send, seen) = mpsc::channel();
    /// let pool = ThreadPool::builder().workers(1).queue(Broken(Vec::new()));
    /// let pool = pool.on_panic(move |panic| send.send((panic.is_of_queue(), panic.to_string())).unwrap()).build()?;
    /// assert!(pool.submit(Box::new(|| ())).is_ok());
    /// assert_eq!(seen.recv()?, (true, "the queue panicked on worker 0: lost".into()));
    /// # pool.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_of_queue(&self) -> bool {
        self.origin == Origin::Queue
    }

    /// What it panicked with.
    #[must_use]
    pub fn payload(&self) -> &'a (dyn Any + Send) {
        self.payload
    }

    /// What it panicked with, if that is text, as it is for `panic!` with a message.
    #[must_use]
    pub fn message(&self) -> Option<&'a str> {
        let text = self.payload.downcast_ref::<&'static str>().copied();
        text.or_else(|| self.payload.downcast_ref::<String>().map(String::as_str))
    }
}

impl fmt::Display for TaskPanic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.origin {
            Origin::Task => "a task",
            Origin::Queue => "the queue",
        };
        write!(f, "{what} panicked on worker {}: {}", self.worker, self.message().unwrap_or("(not a text)"))
    }
}

impl fmt::Debug for TaskPanic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPanic")
            .field("worker", &self.worker)
            .field("origin", &self.origin)
            .field("message", &self.message())
            .finish()
    }
}
