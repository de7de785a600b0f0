//! The simplest way from clients to a server: a queue in the memory of one process.
//!
//! One lock guards the queue, and the flag that says whether the receiver exists. A client that finds the receiver gone returns an error
//! at once. A wake-up is left as a token, so one that comes before the wait ends it too; it is taken only by a wait that would otherwise
//! have blocked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, MonotonicClock, deadline_after};
use forebear_context::shim::{Condvar, Mutex, MutexGuard, time};

use super::{RequestQueue, Scope, Signal, Timer, TimerClient, TimerError, TimerRequest, WorkerId};

/// A queue in memory: the sender makes clients, the receiver is for a [`Watchdog`](super::Watchdog).
///
/// Workers are whatever the clients are made for: threads, requests, connections. It has no bound: clients never wait.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{Demand, RequestQueue, Scope, TimerError, TimerGuard, channel};
///
/// let (timers, mut queue) = channel();
/// let client = timers.client("worker 1");
/// drop(TimerGuard::builder().client(&client).scope("load").expires(Duration::from_secs(5))?);
/// let requests = queue.get(2, Duration::ZERO)?;
/// assert!(matches!(requests[0].demand, Demand::Acquire(_)));
/// assert_eq!(requests[1].demand, Demand::Release(Scope::named("load")));
/// # Ok::<(), TimerError>(())
/// ```
#[must_use]
pub fn channel<W: WorkerId>() -> (TimerSender<W>, TimerReceiver<W>) {
    let state = QueueState { requests: VecDeque::new(), woken: false, closed: false };
    let shared = Arc::new(SharedQueue { state: Mutex::new(state), changed: Condvar::new() });
    (TimerSender(shared.clone()), TimerReceiver(shared))
}

/// The clients' end of a [`channel`].
///
/// ```
/// use std::time::{Duration, Instant};
/// use forebear::timer::{RequestQueue, Timer, TimerError, TimerRequest, TimerSender, channel};
///
/// let (timers, mut queue): (TimerSender<&str>, _) = channel();
/// let deadline = Instant::now() + Duration::from_secs(5);
/// timers.send(TimerRequest::acquire("worker 1", Timer::new("load", deadline)))?;
/// timers.send(TimerRequest::release("worker 1", "load"))?;
/// assert_eq!(queue.size(), 2);
/// # Ok::<(), TimerError>(())
/// ```
pub struct TimerSender<W>(Arc<SharedQueue<W>>);

/// The server's end of a [`channel`]. When it is dropped, clients get an error that the server is gone.
///
/// ```
/// use std::time::Duration;
/// use forebear::timer::{Overdue, Reap, TimerError, TimerReceiver, Watchdog, channel};
///
/// let (_timers, queue): (_, TimerReceiver<u32>) = channel();
/// let mut watchdog = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped);
/// watchdog.turn(Duration::ZERO)?;
/// # Ok::<(), TimerError>(())
/// ```
pub struct TimerReceiver<W: WorkerId>(Arc<SharedQueue<W>>);

/// A client of the worker it was made for. Made by [`TimerSender::client`].
///
/// ```
/// use forebear::time::{Clock, ManualClock};
/// use forebear::timer::{ChannelClient, TimerClient, channel};
///
/// let clock = ManualClock::new();
/// let (timers, _server) = channel();
/// let client: ChannelClient<&str> = timers.client("worker 1").with_clock(clock.clone());
/// assert_eq!(TimerClient::now(&client), clock.now());
/// ```
#[derive(Clone)]
pub struct ChannelClient<W> {
    worker: W,
    sender: TimerSender<W>,
    clock: Arc<dyn Clock>,
}

struct SharedQueue<W> {
    state: Mutex<QueueState<W>>,
    /// Told to the receiver: a request, or the token.
    changed: Condvar,
}

struct QueueState<W> {
    requests: VecDeque<TimerRequest<W>>,
    /// The token of a wake-up.
    woken: bool,
    /// The receiver is gone.
    closed: bool,
}

impl<W> SharedQueue<W> {
    fn lock(&self) -> MutexGuard<'_, QueueState<W>> {
        // No user code runs while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: WorkerId> TimerSender<W> {
    /// Sends a request, of whatever worker.
    ///
    /// # Errors
    ///
    /// [`TimerError::ServerGone`].
    pub fn send(&self, request: TimerRequest<W>) -> Result<(), TimerError> {
        let refused = {
            let mut state = self.0.lock();
            if state.closed {
                Some(request)
            } else {
                state.requests.push_back(request);
                self.0.changed.notify_one();
                None
            }
        };
        if refused.is_some() { Err(TimerError::ServerGone) } else { Ok(()) }
    }

    /// A client for `worker`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::timer::{TimerError, TimerGuard, channel};
    ///
    /// let (timers, _server) = channel();
    /// let (one, another) = (timers.client(1), timers.client(2)); // two workers
    /// let timer = TimerGuard::builder().client(&one).expires(Duration::from_secs(5))?;
    /// # drop((timer, another));
    /// # Ok::<(), TimerError>(())
    /// ```
    pub fn client(&self, worker: W) -> ChannelClient<W> {
        ChannelClient { worker, sender: self.clone(), clock: Arc::new(MonotonicClock) }
    }
}

impl<W> Clone for TimerSender<W> {
    fn clone(&self) -> Self {
        TimerSender(self.0.clone())
    }
}

impl<W: WorkerId> ChannelClient<W> {
    /// Goes by this clock, which should be that of the server.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        ChannelClient { clock: Arc::new(clock), ..self }
    }
}

impl<W: WorkerId + Sync> TimerClient for ChannelClient<W> {
    fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
        self.acquire_with(scope, deadline, Signal::Default)
    }

    fn release(&self, scope: &Scope) -> Result<(), TimerError> {
        self.sender.send(TimerRequest::release(self.worker.clone(), scope))
    }

    fn acquire_with(&self, scope: &Scope, deadline: Instant, signal: Signal) -> Result<(), TimerError> {
        let timer = Timer::new(scope, deadline).with_signal(signal);
        self.sender.send(TimerRequest::acquire(self.worker.clone(), timer))
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl<W: WorkerId> RequestQueue<W> for TimerReceiver<W> {
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<W>>, TimerError> {
        let until = deadline_after(time::now(), timeout);
        let mut state = self.0.lock();
        while state.requests.len() < n {
            let left = until.map(|until| until.saturating_duration_since(time::now()));
            if left == Some(Duration::ZERO) || std::mem::take(&mut state.woken) {
                break;
            }
            state = match left {
                None => self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let n = n.min(state.requests.len());
        Ok(state.requests.drain(..n).collect())
    }

    fn size(&mut self) -> usize {
        self.0.lock().requests.len()
    }

    fn waker(&self) -> Option<Waker> {
        Some(Waker::from(self.0.clone()))
    }
}

impl<W: WorkerId> Wake for SharedQueue<W> {
    fn wake(self: Arc<Self>) {
        #[cfg(not(mutant = "timer_wake_leaves_no_token"))]
        {
            self.lock().woken = true;
        }
        self.changed.notify_one();
    }
}

impl<W: WorkerId> Drop for TimerReceiver<W> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.lock();
            state.closed = true;
            std::mem::take(&mut state.requests)
        };
        // Names of workers are the user's: their destructors run without the lock.
        drop(left);
    }
}

impl<W> fmt::Debug for TimerSender<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (queued, closed) = {
            let state = self.0.lock();
            (state.requests.len(), state.closed)
        };
        f.debug_struct("TimerSender").field("queued", &queued).field("closed", &closed).finish()
    }
}

impl<W: WorkerId> fmt::Debug for TimerReceiver<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.0.lock().requests.len();
        f.debug_struct("TimerReceiver").field("queued", &queued).finish()
    }
}

impl<W: WorkerId> fmt::Debug for ChannelClient<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelClient").field("worker", &self.worker).finish_non_exhaustive()
    }
}
