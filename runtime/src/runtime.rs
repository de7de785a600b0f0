//! [`Runtime`]: a set of workers and everything they share; and the default one.

use std::fmt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{OnceLock, Weak};

use forebear_context::error::{Error, Failure, WaitError};
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;
use forebear_pool::{Affinity, Engine, Options, StartError};

use crate::cell::{Callable, Fallible, Plain};
use crate::foreign;
use crate::header::OWN_STACK;
use crate::hooks;
use crate::origin;
use crate::request::Request;
use crate::scope::into_wait_error;
use crate::shared::{Settings, Shared, UnseenHook};
use crate::stack::{self, overflow};
use crate::strand::Strand;

/// A handle to a set of workers. Clone it to share it; when the last handle goes, the work that was submitted ends, the
/// threads are joined and the stacks unmapped.
///
/// Several can live in one process. A request belongs to the runtime that is current where it was made; free functions
/// such as [`spawn`](crate::spawn) mean the current request's runtime, else the entered one, else a default, which is made
/// on first use with as many workers as the machine has cores, or as the environment variable `FOREBEAR_THREADS` says (a
/// number from 1 to 1024; anything else is a panic that says so).
///
/// ```
/// use forebear_runtime::{Runtime, spawn};
///
/// let runtime = Runtime::builder().workers(2).name("tiles").build()?;
/// let sum: u32 = runtime.run(|| (1..=4).map(|n| spawn(move || n * n).take().unwrap()).sum());
/// assert_eq!(sum, 30);
/// # Ok::<(), forebear_runtime::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<Handle>);

pub(crate) struct Handle {
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
    pub fn new() -> Result<Runtime, BuildError> {
        Runtime::builder().build()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Runs `f` as a request of this runtime, on one of its workers, and returns what it returned. `f` may borrow.
    ///
    /// Suspends the calling request, or blocks the calling thread.
    ///
    /// # Panics
    ///
    /// With the panic of `f`.
    ///
    /// ```
    /// # use forebear_runtime::{Request, Runtime};
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let text = String::from("borrowed");
    /// assert_eq!(runtime.run(|| text.len()), 8);
    /// assert!(runtime.run(|| Request::current().is_some()));
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    #[track_caller]
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let mut caught = None;
        let body = || caught = Some(catch_unwind(AssertUnwindSafe(f)));
        match self.run_borrowed(Plain(body)) {
            Ok(()) => match caught {
                Some(Ok(value)) => value,
                Some(Err(payload)) => resume_unwind(payload),
                None => unreachable!("a finished request has run"),
            },
            Err(error) => forebear_context::error::internal::unwind_with(
                error.into(),
                forebear_context::context::in_request(),
            ),
        }
    }

    /// As [`run`](Self::run), for a closure that may return an error.
    ///
    /// # Errors
    ///
    /// The failure of the request.
    pub fn try_run<R: Send>(&self, f: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, WaitError> {
        let mut value = None;
        let body = || {
            value = Some(f()?);
            Ok(())
        };
        self.run_borrowed(Fallible(body))?;
        value.ok_or_else(|| into_wait_error(Error::other("a finished request has run")))
    }

    fn run_borrowed<C: Callable<()>>(&self, callable: C) -> Result<(), WaitError> {
        let request: Request<()> = {
            let origin = origin::here(Some(self.shared()));
            let birth = crate::cell::Birth {
                word: crate::word::NEW | crate::word::HANDLE,
                lineage: origin.lineage(origin::Rank::default()),
                need_pages: origin.shared.default_need,
            };
            // SAFETY: M1: this thread's home. The callable may borrow: it is submitted below, and this function does not
            // return before the request is over; it never unwinds in between.
            unsafe {
                let header = crate::cell::make(origin.home, birth, callable);
                header.as_ref().flags.set(OWN_STACK);
                Request::from_raw(header)
            }
        };
        request.submit();
        // However often the wait is refused, the borrow lasts until the request is over.
        loop {
            match request.wait() {
                Ok(()) => return Ok(()),
                Err(error) if request.is_done() => return Err(error),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Makes a request of this runtime and submits it. A child of the current request if that is of this runtime too,
    /// else a root.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
        Request::builder().on(self).spawn(f)
    }

    /// As [`spawn`](Self::spawn), for a callable that may return an error.
    #[track_caller]
    pub fn try_spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Request<T> {
        Request::builder().on(self).try_spawn(f)
    }

    /// Calls `f` here; the free functions inside mean this runtime.
    ///
    /// ```
    /// # use forebear_runtime::{Runtime, parallelism};
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| parallelism().get()), 3);
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Back<'a>(&'a Strand, *const Shared, *const crate::home::Home);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.entered.set(self.1);
                self.0.home.set(self.2);
            }
        }
        let Some(strand) = foreign::strand() else { return f() };
        let entered = strand.entered.replace(&*self.0.shared);
        // The fast ways of spawn and take go by the home; without one they leave the matter to the slow ones.
        let _back = Back(strand, entered, strand.home.replace(ptr::null()));
        f()
    }

    /// The runtime that free functions mean here: the one entered, else the current request's, else the default one,
    /// which is made if need be.
    ///
    /// # Panics
    ///
    /// If its last handle has gone and it is only letting its work end; if the default one cannot be built.
    ///
    /// ```
    /// # use forebear_runtime::Runtime;
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| Runtime::current().workers()), 3);
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    #[track_caller]
    pub fn current() -> Runtime {
        let shared = match foreign::strand() {
            Some(strand) => origin::current_runtime(strand),
            None => default_shared(),
        };
        match shared.handle.get().and_then(Weak::upgrade) {
            Some(handle) => Runtime(handle),
            None => panic!("forebear: the last handle of the current runtime has gone; it takes no more"),
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.0.shared.workers().len()
    }

    /// What the workers are doing, by number: a snapshot.
    pub fn states(&self) -> Vec<forebear_pool::WorkerState> {
        self.0.engine.as_ref().map_or_else(Vec::new, Engine::states)
    }

    /// Counters since the runtime was built: a snapshot.
    pub fn metrics(&self) -> Metrics {
        let shared = &self.0.shared;
        let mut metrics = Metrics {
            direct: shared.foreign_direct_count.load(Ordering::Relaxed),
            started: shared.foreign_direct_count.load(Ordering::Relaxed),
            live_stacks: shared.slab.live(),
        };
        for worker in shared.workers() {
            let direct = worker.direct.get();
            metrics.direct += direct;
            metrics.started += direct + worker.started.get();
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

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        self.shared.signals.stop();
        let shared = self.shared.clone();
        let take_down = move || {
            engine.join();
            // SAFETY: the threads are gone.
            unsafe { shared.close() };
        };
        let inside = crate::strand::get()
            .and_then(Strand::worker)
            .is_some_and(|worker| ptr::eq(worker.shared(), &*self.shared));
        if !inside {
            take_down();
            return;
        }
        // A worker cannot wait for itself to end: somebody else does.
        let end = std::thread::Builder::new().name("forebear end".into()); // not modelled: it joins and ends
        if let Err(error) = end.spawn(take_down) {
            hooks::die(&format_args!("the last handle went inside a request, and {error}"));
        }
    }
}

/// Counters of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Requests that were started, the direct ones included.
    pub started: u64,
    /// Requests that ran on their waiter's stack.
    pub direct: u64,
    /// Stacks in use or kept for use.
    pub live_stacks: usize,
}

/// A runtime that could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// No workers, or more than can be.
    #[non_exhaustive]
    Workers {
        /// How many were asked for.
        asked: usize,
        /// How many there may be at most.
        max: usize,
    },
    /// The stack size asked for is beyond the largest class.
    #[non_exhaustive]
    StackSize {
        /// The bytes asked for.
        asked: usize,
        /// The largest that can be had.
        max: usize,
    },
    /// Fewer stacks than the workers need for themselves.
    #[non_exhaustive]
    Stacks {
        /// How many were asked for.
        asked: usize,
        /// How many there must be at least.
        min: usize,
    },
    /// The threads could not be started.
    Start(StartError),
    /// There is a default runtime already.
    DefaultExists,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Workers { asked, max } => {
                write!(f, "a runtime of {asked} workers was asked for: ask for 1 to {max}")
            }
            BuildError::StackSize { asked, max } => {
                write!(f, "stacks of {asked} bytes were asked for: ask for at most {max}")
            }
            BuildError::Stacks { asked, min } => {
                write!(f, "at most {asked} stacks were asked for: the workers alone need {min}")
            }
            BuildError::Start(error) => error.fmt(f),
            BuildError::DefaultExists => f.write_str(
                "there is a default runtime already: build the global one before anything uses the default",
            ),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BuildError::Start(error) => std::error::Error::source(error),
            _ => None,
        }
    }
}

/// A description of a runtime.
#[must_use = "a description starts nothing until `build`"]
pub struct RuntimeBuilder {
    name: String,
    workers: Option<usize>,
    stack_size: Option<usize>,
    max_stacks: usize,
    foreign_direct: bool,
    affinity: Affinity,
    on_unseen_failure: Option<UnseenHook>,
}

/// More threads than this are a mistake.
const MAX_WORKERS: usize = 1024;

impl Default for RuntimeBuilder {
    fn default() -> Self {
        RuntimeBuilder {
            name: "forebear".into(),
            workers: None,
            stack_size: None,
            max_stacks: 1 << 24,
            foreign_direct: true,
            affinity: Affinity::default(),
            on_unseen_failure: None,
        }
    }
}

impl RuntimeBuilder {
    /// The name its threads begin with.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many workers; by default as many as the machine has cores for this process.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// How many bytes of stack a request is guaranteed that does not ask otherwise. 64 KiB by default, more without
    /// optimisation.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// How many stacks there may be at once, suspended and kept ones together; at least two per worker. A wait that
    /// would need one more is answered with a [`StackError`](forebear_context::error::StackError).
    pub fn max_stacks(mut self, stacks: usize) -> Self {
        self.max_stacks = stacks;
        self
    }

    /// Whether a foreign thread that waits for an unstarted request runs it itself; true by default. Switch it off where
    /// the foreign threads must stay responsive, as those of a user interface.
    pub fn foreign_direct(mut self, allowed: bool) -> Self {
        self.foreign_direct = allowed;
        self
    }

    /// Which processors the workers run on.
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = affinity;
        self
    }

    /// Called for every failure that nobody looked at, when the last handle goes. By default one line on standard error.
    pub fn on_unseen_failure(mut self, hook: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.on_unseen_failure = Some(Box::new(hook));
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for numbers that cannot be, or if the system refuses a thread.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let workers = match self.workers {
            Some(workers) => workers,
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        if workers == 0 || workers > MAX_WORKERS {
            return Err(BuildError::Workers { asked: workers, max: MAX_WORKERS });
        }
        if self.max_stacks < 2 * workers {
            return Err(BuildError::Stacks { asked: self.max_stacks, min: 2 * workers });
        }
        let need = self.stack_size.unwrap_or(stack::DEFAULT);
        let too_large = || BuildError::StackSize { asked: need, max: stack::MAX };
        // The slot is a class above the guarantee, so that a few waiters can lend each other their stacks; what asks for
        // the smallest gets the smallest.
        let default_class = stack::class_for(need).ok_or_else(too_large)?;
        hooks::wrap_panic_hook();
        overflow::install();
        let shared = Shared::new(Settings {
            name: self.name.clone(),
            workers,
            default_class,
            default_need: need.div_ceil(4 << 10) as u16,
            max_stacks: self.max_stacks,
            foreign_direct: self.foreign_direct,
            on_unseen_failure: self.on_unseen_failure,
        });
        let options = Options::new(workers)
            .name_prefix(format!("{} #", self.name))
            .affinity(self.affinity)
            .stack_size(1 << 20);
        let engine = Engine::start(options, shared.clone(), |worker: &forebear_pool::Worker<Shared>| {
            let _stack = overflow::AlternateStack::new();
            worker.supply().workers()[worker.index()].drive(worker);
        })
        .map_err(BuildError::Start)?;
        let handle = Arc::new(Handle { shared, engine: Some(engine) });
        // Just made: nobody else can have set it.
        let _ = handle.shared.handle.set(Arc::downgrade(&handle));
        Ok(Runtime(handle))
    }

    /// Builds the default runtime of the process, for the free functions.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build); [`BuildError::DefaultExists`] if there is one.
    pub fn build_global(self) -> Result<Runtime, BuildError> {
        if DEFAULT.get().is_some() {
            return Err(BuildError::DefaultExists);
        }
        let runtime = self.build()?;
        match DEFAULT.set(runtime.clone()) {
            Ok(()) => Ok(runtime),
            Err(_) => Err(BuildError::DefaultExists),
        }
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("name", &self.name)
            .field("workers", &self.workers)
            .field("stack_size", &self.stack_size)
            .finish_non_exhaustive()
    }
}

/// Never taken down: it does not hold up the end of the process.
static DEFAULT: OnceLock<Runtime> = OnceLock::new();

/// The default runtime, made on first use.
///
/// # Panics
///
/// If it cannot be built, or if `FOREBEAR_THREADS` is not a number of workers.
pub(crate) fn default_shared() -> Arc<Shared> {
    DEFAULT
        .get_or_init(|| {
            let mut builder = Runtime::builder();
            if let Ok(text) = std::env::var("FOREBEAR_THREADS") {
                match text.trim().parse() {
                    Ok(workers @ 1..=MAX_WORKERS) => builder = builder.workers(workers),
                    _ => panic!(
                        "forebear: FOREBEAR_THREADS is '{text}': give a number from 1 to {MAX_WORKERS}"
                    ),
                }
            }
            match builder.build() {
                Ok(runtime) => runtime,
                Err(error) => panic!("forebear: the default runtime cannot be built: {error}"),
            }
        })
        .shared()
        .clone()
}
