//! A server on a thread of its own, and the handle by which it is stopped.
//!
//! The thread sleeps in its queue, or after a failed turn in a pause. A caller of `stop` sets a flag under the lock, notifies the pause, and wakes
//! the queue. Both check before they sleep: the pause reads the flag, the queue the token that its waker leaves. A clock that jumps wakes the queue
//! in the same way. The thread subscribes to the clock before it first reads it, so it misses no jump.
//!
//! The destructor does not wait: dropping the handle asks the thread to stop.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use forebear_context::clock::deadline_after;
use forebear_context::context::user_code;
use forebear_context::shim::mutant;
use forebear_context::shim::thread::{Builder, JoinHandle, current};
use forebear_context::shim::{Condvar, Mutex, MutexGuard, time};

use super::stats::Counts;
use super::{Watchdog, WatchdogStats};
use crate::expiry::{Reaper, RequestQueue, TimerError, TimerEvent, TimerServer, WorkerId};

/// A server that is running. Made by [`Watchdog::start`].
///
/// Dropping it asks the server to stop, and does not wait for it. With a queue that cannot be woken the server sees that after its
/// [`max_interval`](Watchdog::max_interval) at the latest: a minute, by default.
///
/// ```
/// use forebear::timer::{Overdue, Reap, Watchdog, WatchdogHandle, channel};
///
/// let (_timers, queue) = channel();
/// let watchdog: WatchdogHandle = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped).start()?;
/// assert_eq!(watchdog.stats().reaped, 0);
/// watchdog.stop()?;
/// assert!(!watchdog.is_running());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the server is stopped when the handle is dropped"]
pub struct WatchdogHandle {
    shared: Arc<SharedWatchdog>,
    thread: Mutex<Option<JoinHandle<()>>>,
    max_interval: Duration,
    counts: Arc<Counts>,
}

struct SharedWatchdog {
    state: Mutex<WatchdogState>,
    /// Told: the flags.
    changed: Condvar,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Default)]
struct WatchdogState {
    /// It is to stop.
    stop: bool,
    /// It has.
    ended: bool,
    /// The handle was detached: dropping it does not stop the thread.
    detached: bool,
}

impl WatchdogHandle {
    pub(super) fn start<W, Q, R, S>(watchdog: Watchdog<W, Q, R, S>) -> io::Result<WatchdogHandle>
    where
        W: WorkerId,
        Q: RequestQueue<W>,
        R: Reaper<W>,
        S: TimerServer<W>,
    {
        let waker = watchdog.queue.waker();
        let shared = Arc::new(SharedWatchdog { state: Mutex::default(), changed: Condvar::new(), waker });
        let (max_interval, counts) = (watchdog.max_interval, watchdog.counts.clone());
        // The name of a thread cannot hold a zero.
        let name = watchdog.hooks.name.replace('\0', "");
        let thread = Builder::new().name(name).spawn({
            let shared = shared.clone();
            move || shared.run(watchdog)
        })?;
        Ok(WatchdogHandle { shared, thread: Mutex::new(Some(thread)), max_interval, counts })
    }
}

impl WatchdogHandle {
    /// Stops the server. No turn begins any more; the call waits for a turn that has begun, for at most its
    /// [`max_interval`](Watchdog::max_interval). Its clients get an error from then on. A second call does
    /// nothing.
    ///
    /// Called on the server's own thread, by a hook or a reaper, it only asks.
    ///
    /// # Errors
    ///
    /// [`TimerError::StillRunning`] if the turn does not end in time: a reaper or a hook that hangs. It stops when that returns.
    pub fn stop(&self) -> Result<(), TimerError> {
        self.shared.ask();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_none_or(|thread| thread.thread().id() == current().id()) {
            return Ok(());
        }
        if !self.shared.wait_for(self.max_interval, |state| state.ended) {
            return Err(TimerError::StillRunning);
        }
        // All that is left to do in the thread is to return. What it may have panicked with the panic hook has shown.
        let _ = thread.take().map(JoinHandle::join);
        Ok(())
    }

    /// Leaves the server running without a handle, for as long as the process lasts.
    ///
    /// ```
    /// use forebear::timer::{Overdue, Reap, Watchdog, channel};
    ///
    /// let (timers, queue) = channel::<u32>();
    /// Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped).start()?.detach();
    /// # drop(timers);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn detach(self) {
        self.shared.lock().detached = true;
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        !self.shared.lock().ended
    }

    /// What it has counted so far.
    pub fn stats(&self) -> WatchdogStats {
        self.counts.read()
    }
}

impl Drop for WatchdogHandle {
    fn drop(&mut self) {
        if !self.shared.lock().detached {
            self.shared.ask();
        }
    }
}

impl SharedWatchdog {
    fn lock(&self) -> MutexGuard<'_, WatchdogState> {
        // Nothing but the flags is touched while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread stop, wherever it sleeps.
    fn ask(&self) {
        mutant!("timer_stop_wakes_first", wake(&self.waker));
        self.lock().stop = true;
        self.changed.notify_all();
        mutant!("timer_stop_wakes_first", (), wake(&self.waker));
    }

    /// Waits until a flag is set, for at most `time`; says whether it is.
    fn wait_for(&self, time: Duration, flag: impl Fn(&WatchdogState) -> bool) -> bool {
        let until = deadline_after(time::now(), time);
        let mut state = self.lock();
        while !flag(&state) {
            let left = until.map(|until| until.saturating_duration_since(time::now()));
            state = match left {
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        true
    }

    fn run<W, Q, R, S>(&self, watchdog: Watchdog<W, Q, R, S>)
    where
        W: WorkerId,
        Q: RequestQueue<W>,
        R: Reaper<W>,
        S: TimerServer<W>,
    {
        // Dropped in reverse: it has ended when its queue and all else of it is gone.
        let _ended = Ended(self);
        let mut watchdog = watchdog;
        let waker = self.waker.clone();
        #[cfg(mutant = "timer_subscribes_after_a_sleep")]
        for _ in 0..2 {
            let _ = watchdog.turn_when_due(true, true);
        }
        let jumps = watchdog.clock.subscribe(Box::new(move |_| wake(&waker)));
        watchdog.hooks.tell(&TimerEvent::Started);
        while !self.lock().stop {
            if watchdog.turn_when_due(jumps.is_some(), self.waker.is_some()).is_err() {
                self.wait_for(watchdog.retry_after, |state| state.stop);
            }
        }
        watchdog.hooks.tell(&TimerEvent::Stopped);
    }
}

/// Wakes the queue, by a waker that may be the user's.
fn wake(waker: &Option<Waker>) {
    if let Some(waker) = waker {
        user_code();
        waker.wake_by_ref();
    }
}

/// Tells that the thread has ended, however it has.
struct Ended<'a>(&'a SharedWatchdog);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for WatchdogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchdogHandle")
            .field("running", &self.is_running())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
