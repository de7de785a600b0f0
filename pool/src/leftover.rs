//! The tasks of a stopped thread pool that were not run.

use std::fmt;
use std::ops::Deref;
use std::vec;

use forebear_context::error::internal::drop_each;

/// The tasks that were queued when their pool was dropped, in the order of their queue; see
/// [`ThreadPoolBuilder::on_leftover`](crate::ThreadPoolBuilder::on_leftover).
///
/// What is not taken out is dropped one by one, also by its iterator. If several destructors panic, all tasks are dropped, and the first
/// panic comes out. A `Vec` would end the process at the second.
///
/// ```
/// use forebear::pool::{FifoQueue, Job, ThreadPool};
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use std::sync::{Arc, mpsc};
///
/// let left = Arc::new(AtomicUsize::new(0));
/// let count = left.clone();
/// let pool = ThreadPool::builder()
///     .workers(1)
///     .queue(FifoQueue::<Job>::new())
///     .on_leftover(move |tasks| _ = count.fetch_add(tasks.len(), Ordering::Relaxed))
///     .build()?;
/// let ((began, begins), (go, goes)) = (mpsc::channel(), mpsc::channel::<()>());
/// let held: Job = Box::new(move || {
///     began.send(()).unwrap();
///     _ = goes.recv();
/// });
/// assert!(pool.submit(held).is_ok());
/// begins.recv()?;
/// assert!(pool.submit(Box::new(|| ())).is_ok());
/// drop(pool);
/// drop(go);
/// assert_eq!(left.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Leftover<I>(Vec<I>);

impl<I> Leftover<I> {
    pub(crate) fn new(items: Vec<I>) -> Leftover<I> {
        Leftover(items)
    }

    /// All of them, as a vector.
    ///
    /// ```
    /// use forebear::pool::{FifoQueue, Leftover, ThreadPool};
    ///
    /// let builder = ThreadPool::builder().queue(FifoQueue::<fn()>::new());
    /// let builder = builder.on_leftover(|tasks: Leftover<fn()>| tasks.into_vec().into_iter().for_each(|task| task()));
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn into_vec(mut self) -> Vec<I> {
        std::mem::take(&mut self.0)
    }
}

impl<I> Deref for Leftover<I> {
    type Target = [I];

    fn deref(&self) -> &[I] {
        &self.0
    }
}

impl<I> fmt::Debug for Leftover<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leftover").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl<I> Drop for Leftover<I> {
    fn drop(&mut self) {
        drop_each(std::mem::take(&mut self.0));
    }
}

impl<I> IntoIterator for Leftover<I> {
    type Item = I;
    type IntoIter = IntoIter<I>;

    fn into_iter(self) -> IntoIter<I> {
        IntoIter(self.into_vec().into_iter())
    }
}

/// The iterator of a [`Leftover`].
///
/// ```
/// use forebear::pool::{FifoQueue, Leftover, ThreadPool};
///
/// let builder = ThreadPool::builder().queue(FifoQueue::<fn()>::new());
/// let builder = builder.on_leftover(|tasks: Leftover<fn()>| {
///     for task in tasks {
///         task(); // run here instead
///     }
/// });
/// # drop(builder);
/// ```
pub struct IntoIter<I>(vec::IntoIter<I>);

impl<I> Iterator for IntoIter<I> {
    type Item = I;

    fn next(&mut self) -> Option<I> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<I> ExactSizeIterator for IntoIter<I> {}

impl<I> fmt::Debug for IntoIter<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

impl<I> Drop for IntoIter<I> {
    fn drop(&mut self) {
        drop_each(self.0.by_ref());
    }
}
