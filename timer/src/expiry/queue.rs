//! The server's end of the way that messages take.

use std::task::Waker;
use std::time::Duration;

use super::{Timer, TimerError, TimerRequest};

/// Where a server finds what its clients have said.
///
/// The loop owns it, and drops it when it stops. A queue that reports the end of its server to its clients does so
/// then.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{RequestQueue, TimerError, TimerRequest, channel};
///
/// /// Passes on what another queue delivers, and counts it.
/// struct Counting<Q> {
///     inner: Q,
///     delivered: usize,
/// }
///
/// impl<Q: RequestQueue<u32>> RequestQueue<u32> for Counting<Q> {
///     fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<u32>>, TimerError> {
///         let requests = self.inner.get(n, timeout)?;
///         self.delivered += requests.len();
///         Ok(requests)
///     }
///     fn size(&mut self) -> usize {
///         self.inner.size()
///     }
/// }
///
/// let (timers, inner) = channel();
/// let mut queue = Counting { inner, delivered: 0 };
/// timers.send(TimerRequest::leave(7))?;
/// queue.get(1, Duration::ZERO)?;
/// assert_eq!((queue.size(), queue.delivered), (0, 1));
/// # Ok::<(), TimerError>(())
/// ```
pub trait RequestQueue<W>: Send + 'static {
    /// Takes up to `n` requests, in the order in which they came, and waits for them no longer than `timeout`: what is there at its end is what
    /// there is. It may return with fewer, or none, when it is [woken](Self::waker). [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    ///
    /// The queue cannot be read. The server calls its hooks, and tries again after a pause.
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<W>>, TimerError>;

    /// How many requests can be had without waiting: all that were sent before the call, if the queue can see that. It gets smaller by
    /// [`get`](Self::get) alone.
    ///
    /// That no worker is reaped that has released its timer in time, however late the server looks, rests on this.
    fn size(&mut self) -> usize;

    /// What ends a [`get`](Self::get) that waits, or the next one that would, from any thread.
    ///
    /// `None` if there is no such thing: then the server never waits longer than its `max_interval`, so as to see that it is to stop.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// The server has dropped these timers of `worker` by itself: it has reaped or spared the worker, or they only log.
    /// They were not released.
    ///
    /// For a queue that bounds how many timers a worker has: with this and the requests that it hands out it knows how many the server keeps. It is
    /// called between two turns' looks into the queue, and not for a worker that the queue itself said [leaves](super::Demand::Leave). By default it does nothing.
    fn dropped(&mut self, worker: &W, timers: &[Timer]) {
        let _ = (worker, timers);
    }
}

impl<W, Q: RequestQueue<W> + ?Sized> RequestQueue<W> for Box<Q> {
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<W>>, TimerError> {
        (**self).get(n, timeout)
    }

    fn size(&mut self) -> usize {
        (**self).size()
    }

    fn waker(&self) -> Option<Waker> {
        (**self).waker()
    }

    fn dropped(&mut self, worker: &W, timers: &[Timer]) {
        (**self).dropped(worker, timers);
    }
}
