//! The error of a thread pool that takes no more tasks.

use std::fmt;

/// The error of [`ThreadPool::submit`](crate::ThreadPool::submit): the pool takes no more tasks, and the task comes back as it was.
///
/// A caller meets it from the moment at which anybody calls [`ThreadPool::stop`](crate::ThreadPool::stop): after that call, or in another thread or a running task of the pool
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
