//! The options of an engine's threads: their number, names, stacks, cores and hooks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::affinity::{Affinity, Warning};

/// How long a worker searches before it sleeps: about what a sleep costs, a wake-up being 27 µs on the machine this was
/// tuned on. Longer burns a core for nothing, shorter pays for sleeps that a moment later were not needed.
const SEARCH: Duration = Duration::from_micros(28);

/// A hook that gets a worker's number. (`std`'s `Arc`: loom's cannot hold a trait object, and hooks do not race.)
pub(crate) type WorkerHook = Arc<dyn Fn(usize) + Send + Sync>;
/// A hook that gets warnings.
pub(crate) type WarningHook = Arc<dyn Fn(&Warning) + Send + Sync>;

/// How the threads of an [`Engine`](crate::Engine) are made. Each method changes one thing and hands the options on.
///
/// ```
/// use forebear::pool::{Affinity, engine::Options};
///
/// let options = Options::new(4).name_prefix("tiles ").stack_size(256 * 1024).affinity(Affinity::OneEach);
/// assert_eq!(options.workers(), 4);
/// assert_eq!(options.name_of(3), "tiles 3");
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until an engine is started with them"]
pub struct Options {
    pub(crate) workers: usize,
    pub(crate) prefix: String,
    pub(crate) stack_size: Option<usize>,
    pub(crate) affinity: Affinity,
    pub(crate) search: Option<Duration>,
    pub(crate) on_start: Option<WorkerHook>,
    pub(crate) on_stop: Option<WorkerHook>,
    pub(crate) on_warning: WarningHook,
}

impl Options {
    /// `workers` threads called "Worker #0" and so on, with std's stack size, on any core, without hooks.
    pub fn new(workers: usize) -> Options {
        Options {
            workers,
            prefix: "Worker #".into(),
            stack_size: None,
            affinity: Affinity::Free,
            search: Some(SEARCH),
            on_start: None,
            on_stop: None,
            on_warning: Arc::new(|warning| eprintln!("forebear: {warning}")),
        }
    }

    /// The prefix of the number in a thread's name; "Worker #" by default. Linux shows 15 bytes of a name.
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Options {
        self.prefix = prefix.into();
        self
    }

    /// The size of each thread's stack, in bytes; std's default otherwise.
    pub fn stack_size(mut self, bytes: usize) -> Options {
        self.stack_size = Some(bytes);
        self
    }

    /// Which cores the threads may run on; any, otherwise.
    pub fn affinity(mut self, affinity: Affinity) -> Options {
        self.affinity = affinity;
        self
    }

    /// How long a worker searches for work before it sleeps; zero to sleep at once. Workers never search when there are
    /// more of them than cores: a searcher would then take the core from one that has work.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::pool::engine::Options;
    ///
    /// let options = Options::new(2)
    ///     .search_for(Duration::ZERO)
    ///     .on_start(|worker| println!("worker {worker} begins"))
    ///     .on_stop(|worker| println!("worker {worker} has ended"))
    ///     .on_warning(|warning| eprintln!("{warning}"));
    /// assert_eq!(options.workers(), 2);
    /// ```
    pub fn search_for(mut self, time: Duration) -> Options {
        self.search = (!time.is_zero()).then_some(time);
        self
    }

    /// Called on each worker's thread, with its number, before its first task. A panic in it is contained.
    pub fn on_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Options {
        self.on_start = Some(Arc::new(hook));
        self
    }

    /// Called on each worker's thread, with its number, after its last task. A panic in it is contained.
    pub fn on_stop(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Options {
        self.on_stop = Some(Arc::new(hook));
        self
    }

    /// Called for a warning: something was refused, and work continues without it. Otherwise such a warning is one line
    /// on stderr. Each kind of warning comes at most once per engine.
    pub fn on_warning(mut self, hook: impl Fn(&Warning) + Send + Sync + 'static) -> Options {
        self.on_warning = Arc::new(hook);
        self
    }

    /// How many workers were asked for.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The name of the thread of the worker with this number.
    #[must_use]
    pub fn name_of(&self, worker: usize) -> String {
        format!("{}{worker}", self.prefix)
    }

    /// How long a worker of this engine is to search, `cores` being how many its workers may run on. Time does not pass in a model: one
    /// look there.
    pub(crate) fn search_on(&self, cores: impl FnOnce() -> usize) -> Option<Duration> {
        if cfg!(any(loom, shuttle)) {
            return self.search.map(|_| Duration::ZERO);
        }
        // One worker has a core: then nothing is counted, which takes longer than to start a thread.
        self.search.filter(|_| self.workers <= 1 || self.workers <= cores())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("workers", &self.workers)
            .field("prefix", &self.prefix)
            .field("stack_size", &self.stack_size)
            .field("affinity", &self.affinity)
            .field("search", &self.search)
            .finish_non_exhaustive()
    }
}
