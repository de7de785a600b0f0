//! What a plain thread pool runs, and where.
//!
//! A task is anything that can be run once. Most are closures and run anywhere. *Stateful* tasks share something that
//! is tied to a thread. Examples are the steps of a long computation, each of which wakes the next, and calls of a
//! library that must all come from one thread. Such tasks share an [`AffinityKey`]. It is empty until a worker takes
//! the first of them, and from then on it names that worker.
//!
//! An affinity key is set once per pool, under its own lock, by the worker that has taken a task with it. If two
//! workers take two tasks with one key at the same moment, one of them sets the key. The other sends its task to that
//! worker.

use std::fmt;
use std::sync::PoisonError;

use forebear_context::shim::{Arc, Mutex};

/// Something a [`ThreadPool`](crate::ThreadPool) can run. Every `FnOnce() + Send + 'static` is one, and so is a pair
/// of anything and a task, which is what a [`PriorityQueue`](crate::PriorityQueue) holds.
///
/// Implement it for a type of your own to give it an affinity key:
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use forebear::pool::{FifoQueue, AffinityKey, Task, ThreadPool};
///
/// /// Counts down; every step runs on the thread that ran the first.
/// struct Countdown { left: u32, affinity: AffinityKey, pool: Arc<ThreadPool<FifoQueue<Countdown>>>, done: mpsc::Sender<()> }
///
/// impl Task for Countdown {
///     fn run(mut self) {
///         if self.left == 0 {
///             let _ = self.done.send(());
///             return;
///         }
///         self.left -= 1;
///         let pool = Arc::clone(&self.pool);
///         let _ = pool.submit(self);      // refused if the pool has been stopped; the step comes back in the error
///     }
///     fn affinity_key(&self) -> Option<&AffinityKey> {
///         Some(&self.affinity)
///     }
/// }
///
/// let pool = Arc::new(ThreadPool::new(2, FifoQueue::new())?);
/// let (done, over) = mpsc::channel();
/// pool.submit(Countdown { left: 3, affinity: AffinityKey::new(), pool: Arc::clone(&pool), done }).map_err(|_| "stopped")?;
/// over.recv()?;
/// pool.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What cannot be sent to another thread is not a task:
///
/// ```compile_fail,E0277
/// let shared = std::rc::Rc::new(1);
/// let mut queue = forebear::pool::FifoQueue::new();
/// forebear::pool::Queue::push(&mut queue, move || println!("{shared}"));
/// let pool = forebear::pool::ThreadPool::new(1, queue);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a task: a pool cannot run it",
    label = "not a closure that can be sent to a thread, and no `Task` is implemented for it",
    note = "a task is a closure without arguments that is `Send` and `'static` (does it capture an `Rc` or a borrow?),",
    note = "a type with an `impl Task`, or, for a `PriorityQueue`, a pair of a key and a task"
)]
pub trait Task: Send + 'static {
    /// Runs the task, on a worker's thread. A panic in it is reported to the pool's hook; the worker continues.
    fn run(self);

    /// Where the task has to run: on the worker of this affinity key, once it is set; `None` for anywhere.
    ///
    /// Asked when the task is put in and again when it is taken; must answer with the same affinity key each time.
    fn affinity_key(&self) -> Option<&AffinityKey> {
        None
    }
}

impl<F: FnOnce() + Send + 'static> Task for F {
    #[inline]
    fn run(self) {
        self();
    }
}

impl<K: Send + 'static, T: Task> Task for (K, T) {
    #[inline]
    fn run(self) {
        self.1.run();
    }

    #[inline]
    fn affinity_key(&self) -> Option<&AffinityKey> {
        self.1.affinity_key()
    }
}

/// A task of any kind, for queues of mixed ones.
///
/// ```
/// use forebear::pool::Job;
///
/// let jobs: Vec<Job> = vec![Box::new(|| println!("one")), Box::new(|| println!("another"))];
/// jobs.into_iter().for_each(|job| job());
/// ```
pub type Job = Box<dyn FnOnce() + Send>;

/// Identifies a pool: the address of an empty counted allocation, which an affinity key keeps alive, so that the
/// address is never reused.
#[derive(Clone, Debug)]
pub(crate) struct PoolMark(Arc<u8>);

impl PoolMark {
    pub(crate) fn new() -> PoolMark {
        PoolMark(Arc::new(0))
    }
}

impl PartialEq for PoolMark {
    fn eq(&self, other: &PoolMark) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The one worker of a pool on which a line of tasks runs; empty until the first of them is taken.
///
/// Cloning it shares it. An affinity key used in several pools names one worker in each of them.
///
/// ```
/// use std::sync::mpsc;
/// use std::thread;
/// use forebear::pool::{AffinityKey, FifoQueue, Task, ThreadPool};
///
/// /// A step of a line of work that stays on one worker.
/// struct Step {
///     line: AffinityKey,
///     report: mpsc::Sender<thread::ThreadId>,
/// }
///
/// impl Task for Step {
///     fn run(self) {
///         self.report.send(thread::current().id()).unwrap();
///     }
///     fn affinity_key(&self) -> Option<&AffinityKey> {
///         Some(&self.line)
///     }
/// }
///
/// let (report, threads) = mpsc::channel();
/// let (pool, line) = (ThreadPool::new(4, FifoQueue::new())?, AffinityKey::new());
/// assert_eq!(pool.worker_of(&line), None);
/// for _ in 0..3 {
///     assert!(pool.submit(Step { line: line.clone(), report: report.clone() }).is_ok());
/// }
/// let first = threads.recv()?;
/// assert!(pool.worker_of(&line).is_some());
/// assert!(threads.iter().take(2).all(|thread| thread == first));
/// # pool.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AffinityKey {
    /// One entry per pool that has taken a task with this affinity key; nearly always one in all.
    workers: Arc<Mutex<Vec<(PoolMark, usize)>>>,
}

impl AffinityKey {
    /// An empty affinity key: the first worker that takes a task with it becomes it.
    #[must_use]
    pub fn new() -> AffinityKey {
        AffinityKey { workers: Arc::new(Mutex::new(Vec::new())) }
    }

    /// The worker it names in this pool, if it has been set there.
    pub(crate) fn worker(&self, pool: &PoolMark) -> Option<usize> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().find(|(mark, _)| mark == pool).map(|&(_, worker)| worker)
    }

    /// Makes `worker` the affinity key in this pool, unless one is set there; the one that is.
    pub(crate) fn claim(&self, pool: &PoolMark, worker: usize) -> usize {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let set = workers.iter().find(|(mark, _)| mark == pool).map(|&(_, worker)| worker);
        if let Some(set) = set.filter(|_| !cfg!(mutant = "key_claimed_twice")) {
            return set;
        }
        workers.push((pool.clone(), worker));
        worker
    }
}

impl Default for AffinityKey {
    fn default() -> AffinityKey {
        AffinityKey::new()
    }
}

impl fmt::Debug for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(workers.iter().map(|&(_, worker)| worker)).finish()
    }
}
