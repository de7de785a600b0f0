//! A panic on a worker of a thread pool, as its hook receives it.

use std::any::Any;
use std::fmt;

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

    /// Whether the pool's [`Queue`](crate::Queue) panicked, and no task: in its `pop`, or in the `push` by which a worker sends a task to the worker of its key.
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
