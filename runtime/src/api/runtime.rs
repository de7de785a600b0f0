//! [`Runtime`]: a set of workers and everything they share; and the default one.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use forebear_context::shim::Arc;
use forebear_pool::Engine;

mod build;
mod build_error;
pub(crate) mod default;
mod drive;
mod finish;
pub(crate) mod fork;
mod laggards;
mod late;
pub(crate) mod running;
mod shutdown_error;
mod stuck_scope;

pub use self::build::RuntimeBuilder;
pub use self::build_error::BuildError;
pub use self::late::LateEnd;
pub use self::shutdown_error::{Laggard, ShutdownError};

use self::build::MAX_WORKERS;
use crate::api::dump::{self, Dump};
use crate::schedule::worker::HasWorkers;
use crate::shared::Shared;

/// A handle to a set of workers. Clone it to share it. When the last handle is dropped, the submitted work ends, the
/// threads are joined and the stacks unmapped.
///
/// The drop of the last handle waits for that. If it takes longer than a second, a warning names the requests that have not ended;
/// [`RuntimeBuilder::late_end`] says what happens then. Inside a request, of any runtime, the drop does not wait: a thread of its own
/// does.
///
/// Several can live in one process. A request belongs to the runtime that is current where it was made. Free functions
/// such as [`spawn`](crate::spawn) mean the current request's runtime, else the entered one, else the default one.
///
/// The default one is made on first use, with as many workers as the machine has cores. The environment variable `FOREBEAR_THREADS` can set
/// another number, from 0 to 1024, where 0 is the synchronous mode. Any other value is a panic that says so.
///
/// # Memory
///
/// A request takes some 150 bytes beside what its closure captures. While it is suspended it has a stack of its own, of which the touched
/// pages count: one, mostly. Memory of ended requests is kept for later ones. Idle workers release it to the system: unused
/// stacks after some milliseconds, and other unused memory after a second. A few stacks and a mebibyte stay.
///
/// A thread that is no worker releases the memory of its requests when it waits for one of them, has run one, or ends. Addresses stay
/// reserved until the runtime is gone.
///
/// # Examples
///
/// ```
/// use forebear::{Runtime, spawn};
///
/// let runtime = Runtime::builder().workers(2).name("tiles").build()?;
/// let sum: u32 = runtime.run(|| (1..=4).map(|n| spawn(move || n * n).take().unwrap()).sum());
/// assert_eq!(sum, 30);
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<RuntimeHandle>);

pub(crate) struct RuntimeHandle {
    shared: Arc<Shared>,
    /// `None` once it is being taken down.
    engine: Option<Engine<Shared>>,
}

impl Runtime {
    /// A description of a runtime to build.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// A runtime with the default settings.
    ///
    /// # Errors
    ///
    /// As [`RuntimeBuilder::build`].
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::new()?;
    /// assert_eq!(runtime.run(|| 6 * 7), 42);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn new() -> Result<Runtime, BuildError> {
        Runtime::builder().build()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// How many workers there are; 0 in the synchronous and in the seeded mode.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.0.shared.threads()
    }

    /// The time on the runtime's clock: what its deadlines and time-outs go by. Virtual in the seeded mode.
    ///
    /// ```
    /// use forebear::Runtime;
    /// let runtime = Runtime::builder().seeded(1).build()?;
    /// assert_eq!(runtime.now(), runtime.now()); // nothing waits, so no time passes
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[must_use]
    pub fn now(&self) -> std::time::Instant {
        self.0.shared.deadlines.now()
    }

    /// What the workers are doing, by number: a snapshot.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(2).build()?;
    /// assert_eq!(runtime.states().len(), 2);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn states(&self) -> Vec<forebear_pool::WorkerState> {
        self.0.engine.as_ref().map_or_else(Vec::new, Engine::states)
    }

    /// How many requests have begun and not ended, those included that run a pool's members: a snapshot, for a status
    /// display. The stacks are looked at for it, so it takes the longer the more there are.
    ///
    /// ```
    /// use forebear::{Request, Runtime};
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.active(), 0);
    /// assert_eq!(runtime.run({
    ///     let runtime = runtime.clone();
    ///     move || runtime.active()
    /// }), 1);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[must_use]
    pub fn active(&self) -> usize {
        laggards::count(&self.0.shared)
    }

    /// What every live request is doing, what it waits for, and which request or thread holds that. The runtime continues meanwhile.
    ///
    /// Each worker reports its requests at its next scheduling point. One that reaches none within 10 ms is listed with what it runs
    /// and the *number* of the requests that are private to it. So the call takes 10 ms at most, and some microseconds for each request
    /// that there is; a worker is kept from its work for a part of that. It blocks the thread, also in a request, and does not suspend.
    ///
    /// The dump has all that does not move meanwhile. It does not have requests that were not submitted, or those that
    /// a [`RequestPool`](crate::RequestPool) holds back, unless there is a wait for them. Nor does it have a completion that nothing waits for, declared
    /// waits included. Each request gets a
    /// [number](crate::Request::id) by this, which takes some 200 bytes until it has ended.
    ///
    /// ```
    /// use forebear::{Request, Runtime, State};
    ///
    /// let runtime = Runtime::builder().seeded(1).name("app").build()?;
    /// let dump = runtime.run({
    ///     let runtime = runtime.clone();
    ///     move || {
    ///         let load = Request::builder().name("load").spawn(|| 5);
    ///         let dump = runtime.dump();
    ///         load.take().map(|_| dump)
    ///     }
    /// })?;
    /// assert_eq!(dump.find("load").map(|load| load.state), Some(State::Queued));
    /// println!("{dump}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump {
        dump::take(&self.0.shared, &self.states())
    }

    /// Counters since the runtime was built: a snapshot.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// runtime.run(|| ());
    /// assert!(runtime.metrics().started >= 1);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let shared = &self.0.shared;
        let outside = shared.depot.direct();
        let mut metrics = Metrics {
            direct: outside,
            started: outside,
            live_stacks: shared.slab.live(),
            over_bound: shared.totals.over_bound(),
            shut_down: shared.totals.shut_down(),
            left_behind: shared.totals.left_behind(),
            armed: shared.deadlines.armed(),
            published: 0,
            steals: 0,
            sleeps: 0,
        };
        for worker in shared.workers() {
            let totals = worker.totals();
            metrics.direct += totals.direct;
            metrics.started += totals.direct + totals.started;
            metrics.published += totals.published;
            metrics.steals += totals.steals;
            metrics.sleeps += totals.sleeps;
        }
        metrics
    }
}

// A panic in a request leaves nothing of a runtime half done: it is caught before it reaches any of it.
impl UnwindSafe for Runtime {}
impl RefUnwindSafe for Runtime {}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("name", &self.0.shared.name)
            .field("workers", &self.workers())
            .field("states", &self.states())
            .finish()
    }
}

/// Counters of a runtime, from [`Runtime::metrics`].
///
/// ```
/// use forebear::{Metrics, Runtime};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let before: Metrics = runtime.metrics();
/// runtime.run(|| ());
/// assert!(runtime.metrics().started > before.started);
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests that were started, the direct ones included.
    pub started: u64,
    /// Requests that ran on their waiter's stack.
    pub direct: u64,
    /// Stacks in use or kept for use.
    pub live_stacks: usize,
    /// Requests of this runtime that a [`RequestPool`](crate::RequestPool) has admitted over its bound, since a waiter
    /// would otherwise have waited for them for ever.
    pub over_bound: u64,
    /// Requests that had started and not ended when the runtime was [shut down](Runtime::shutdown).
    pub shut_down: usize,
    /// Stacks that threads have left behind when a request on them ended the process, in a runtime without workers. They stay in memory.
    pub left_behind: usize,
    /// Times that something waits for on the runtime's clock: the limits of waits, sleeps, the deadlines of requests.
    pub armed: usize,
    /// Requests and arms of `join` that a worker has published, so that other workers can take them. It does so if
    /// another worker has no work, or before it suspends the request that made them.
    pub published: u64,
    /// Times that a worker took from what another had published: half of it at once.
    pub steals: u64,
    /// Times that a worker found nothing to do and went to sleep, or was about to.
    pub sleeps: u64,
}

/// The default runtime, made on first use.
///
/// # Panics
///
/// If it cannot be built, or if `FOREBEAR_THREADS` is not a number of workers.
pub(crate) fn default_shared() -> Arc<Shared> {
    let shared = default::get_or_make(|| {
        let mut builder = Runtime::builder();
        if let Ok(text) = std::env::var("FOREBEAR_THREADS") {
            match text.trim().parse() {
                Ok(workers @ 0..=MAX_WORKERS) => builder = builder.workers(workers),
                _ => panic!("forebear: FOREBEAR_THREADS is '{text}': give a number from 0 to {MAX_WORKERS}"),
            }
        }
        match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("forebear: the default runtime cannot be built: {error}"),
        }
    });
    shared.clone()
}
