//! The source of an engine's tasks: the one trait between threads and tasks.
//!
//! The engine knows threads, not tasks. Its owner lends it a `Supply`, which says where tasks come from, and when a
//! worker may leave. A worker's own thread calls all methods but [`Supply::signals`], inside [`Worker::idle`], and
//! holds no lock of the engine. So the methods may take locks of their own, and may call [`Signals::notify_any`] and
//! [`Signals::wake`].
//!
//! Order of the calls in one round of idling, `?` for what may be left out:
//!
//! ```text
//! take, steal?              look
//! best, take?, steal        search, repeatedly, if nobody else does
//! before_sleep              the worker is counted as asleep from just before this call
//! take, steal?              check once more: a task made meanwhile is found here, or wakes this worker
//! (the thread blocks)
//! after_sleep
//! ```
//!
//! [`Worker::idle`]: crate::Worker::idle

use std::time::Duration;

use crate::Signals;

/// Where the workers of an [`Engine`](crate::Engine) get their tasks.
///
/// The rule for code that adds tasks: make the task visible to [`take`](Supply::take) or [`steal`](Supply::steal)
/// first, then call [`Signals::notify_any`] (a task for anyone) or [`Signals::wake`] (a task for one worker). In the
/// other order a task may lie beside sleeping workers for ever.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use forebear::pool::engine::{Engine, Options, Signals, Supply, Worker};
///
/// /// A stack of numbers that all workers share.
/// struct Numbers {
///     signals: Signals,
///     left: Mutex<Vec<u32>>,
///     sum: Mutex<u32>,
/// }
///
/// impl Supply for Numbers {
///     type Task = u32;
///     fn signals(&self) -> &Signals {
///         &self.signals
///     }
///     fn take(&self, _worker: usize) -> Option<u32> {
///         self.left.lock().unwrap().pop()
///     }
///     fn steal(&self, _worker: usize) -> Option<u32> {
///         None // nothing is private to a worker
///     }
///     fn best(&self, _worker: usize) -> u64 {
///         if self.left.lock().unwrap().is_empty() { u64::MAX } else { 0 }
///     }
/// }
///
/// impl Numbers {
///     fn add(&self, number: u32) {
///         self.left.lock().unwrap().push(number);
///         self.signals.notify_any(); // after it can be taken
///     }
/// }
///
/// let supply = Arc::new(Numbers { signals: Signals::new(2), left: Mutex::default(), sum: Mutex::default() });
/// let engine = Engine::start(Options::new(2), supply, |worker: &Worker<Numbers>| {
///     while let Some(number) = worker.idle() {
///         *worker.supply().sum.lock().unwrap() += number;
///     }
/// })?;
/// (1..=3).for_each(|number| engine.supply().add(number));
/// engine.stop_and_join();
/// assert_eq!(*engine.supply().sum.lock().unwrap(), 6);
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not supply an engine with tasks",
    note = "implement `Supply`, or use `ThreadPool`, which is an engine with a queue"
)]
pub trait Supply: Send + Sync + 'static {
    /// What a worker is handed. Never leaves the worker's thread on the engine's account, so it need not be `Send`.
    type Task;

    /// The signals through which those who make tasks wake the workers; the same ones for the life of the supply.
    fn signals(&self) -> &Signals;

    /// The best of what this worker may take now: of its own and of what is shared.
    fn take(&self, worker: usize) -> Option<Self::Task>;

    /// A task from other workers. Called only after [`take`](Supply::take) found nothing.
    fn steal(&self, worker: usize) -> Option<Self::Task>;

    /// The key of the best this worker could take, smaller first; `u64::MAX` if there is nothing.
    ///
    /// A hint: while a worker searches it calls [`take`](Supply::take) when this says that there is something. It may
    /// be out of date; before a worker sleeps, `take` is called whatever this says.
    fn best(&self, worker: usize) -> u64;

    /// Whether there may be more that a sleeping worker could take or steal, asked of a searcher that has just found
    /// something. May err to `true` (a worker is woken in vain), never to `false` (work lies beside a sleeper).
    fn more(&self, worker: usize) -> bool {
        let _ = worker;
        true
    }

    /// The worker is about to sleep: the place to leave word that it is hungry. It is counted as asleep already, and
    /// checks all sources of work once more after this call. The answer is a tick, after which it checks again
    /// without having been woken; `None` to sleep until woken.
    fn before_sleep(&self, worker: usize) -> Option<Duration> {
        let _ = worker;
        None
    }

    /// The worker does not sleep any more; called once for every [`before_sleep`](Supply::before_sleep).
    fn after_sleep(&self, worker: usize) {
        let _ = worker;
    }

    /// Whether this worker may end, asked when the engine stops and the worker has found nothing. The thread that makes this answer
    /// change to `true` later calls [`Signals::wake`] for that worker.
    fn may_stop(&self, worker: usize) -> bool {
        let _ = worker;
        true
    }
}
