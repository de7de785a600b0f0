//! [`Runtime`]: a set of workers and everything they share; and the default one.

use std::fmt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Weak;

use forebear_context::error::{CancelReason, Error, WaitError};
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;
use forebear_pool::Engine;

mod build;
pub(crate) mod default;
mod finish;
mod laggards;

pub use self::build::{BuildError, RuntimeBuilder};
pub use self::finish::{Laggard, ShutdownError};

use self::build::MAX_WORKERS;
use crate::cell::{Callable, Fallible, Plain};
use crate::driver;
use crate::ending::Stage;
use crate::foreign;
use crate::header::{OWN_STACK, Place};
use crate::hooks;
use crate::origin;
use crate::request::Request;
use crate::scope::into_wait_error;
use crate::shared::Shared;
use crate::shield::shield;
use crate::strand::Strand;

/// A handle to a set of workers. Clone it to share it; when the last handle goes, the work that was submitted ends, the
/// threads are joined and the stacks unmapped.
///
/// Several can live in one process. A request belongs to the runtime that is current where it was made; free functions
/// such as [`spawn`](crate::spawn) mean the current request's runtime, else the entered one, else a default, which is made
/// on first use with as many workers as the machine has cores, or as the environment variable `FOREBEAR_THREADS` says (a
/// number from 0 to 1024, where 0 is the synchronous mode; anything else is a panic that says so).
///
/// # Memory
///
/// A request takes some 150 bytes beside what its closure captures, and while it is suspended a stack of its own, of which the pages that it
/// touches count: one, mostly. What has ended is kept for what comes next. Workers that have nothing to do give it back to the system: stacks
/// that lie free after some milliseconds, and all that nobody has taken for a second after that; a few stacks and a mebibyte stay. A thread that is no
/// worker gives back what its requests have taken when it waits for one of them, has run one, or ends. Addresses stay reserved
/// until the runtime is gone.
///
/// # Examples
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
                scope: ptr::null(),
                place: Place::Nowhere,
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
        let mut answer = request.wait().copied();
        // However often the wait is refused, the borrow lasts until the request is over.
        while !request.is_done() {
            if matches!(answer, Err(WaitError::Cancelled)) {
                // Nobody else wants it.
                request.abort(CancelReason::Parent);
            } else {
                std::thread::yield_now();
            }
            let end = shield(|| request.wait().copied());
            if !matches!(answer, Err(WaitError::Cancelled)) {
                answer = end;
            }
        }
        answer
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
        driver::enter(self.shared(), strand);
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

    /// How many workers there are; 0 in the synchronous and in the seeded mode.
    pub fn workers(&self) -> usize {
        self.0.shared.threads()
    }

    /// The time on the runtime's clock: what its deadlines and time-outs go by. Virtual in the seeded mode.
    ///
    /// ```
    /// # use forebear_runtime::Runtime;
    /// let runtime = Runtime::builder().seeded(1).build()?;
    /// assert_eq!(runtime.now(), runtime.now()); // nothing waits, so no time passes
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    pub fn now(&self) -> std::time::Instant {
        self.0.shared.deadlines.now()
    }

    /// What the workers are doing, by number: a snapshot.
    pub fn states(&self) -> Vec<forebear_pool::WorkerState> {
        self.0.engine.as_ref().map_or_else(Vec::new, Engine::states)
    }

    /// How many requests have begun and not ended, those included that run a pool's members: a snapshot, for a status
    /// display. The stacks are looked at for it, so it takes the longer the more there are.
    ///
    /// ```
    /// # use forebear_runtime::{Request, Runtime};
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.active(), 0);
    /// assert_eq!(runtime.run({
    ///     let runtime = runtime.clone();
    ///     move || runtime.active()
    /// }), 1);
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    pub fn active(&self) -> usize {
        laggards::count(&self.0.shared)
    }

    /// Counters since the runtime was built: a snapshot.
    pub fn metrics(&self) -> Metrics {
        let shared = &self.0.shared;
        let mut metrics = Metrics {
            direct: shared.foreign_direct_count.load(Ordering::Relaxed),
            started: shared.foreign_direct_count.load(Ordering::Relaxed),
            live_stacks: shared.slab.live(),
            over_bound: shared.over_bound.load(Ordering::Relaxed),
            armed: shared.deadlines.armed(),
            published: 0,
            steals: 0,
            sleeps: 0,
        };
        for worker in shared.workers() {
            let direct = worker.direct.get();
            metrics.direct += direct;
            metrics.started += direct + worker.started.get();
            metrics.published += worker.published.get();
            metrics.steals += worker.steals.get();
            metrics.sleeps += worker.sleeps.get();
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
        if self.shared.driven.is_some() {
            return driver::handle_gone(&self.shared);
        }
        let Some(engine) = self.engine.take() else { return };
        if self.shared.is_inherited() {
            // The threads are in the parent; so may be those that hold its locks.
            std::mem::forget(engine);
            return;
        }
        self.shared.ending.begin();
        self.shared.signals.stop();
        let shared = self.shared.clone();
        let take_down = move || {
            shared.ending.close_once(|| {
                // After a shutdown those that have not ended may never do: then all that is left stays.
                if !shared.ending.is(Stage::GivenUp) || shared.ending.is_quiet() {
                    engine.join();
                    // SAFETY: the threads are gone.
                    unsafe { shared.close() };
                }
                true
            });
        };
        let inside = crate::strand::get().is_some_and(|strand| finish::is_inside(strand, &self.shared));
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
    /// Requests of this runtime that a [`RequestPool`](crate::RequestPool) has admitted over its bound, since somebody waited
    /// for them who would else have waited for ever.
    pub over_bound: u64,
    /// Times that something waits for on the runtime's clock: the limits of waits, sleeps, the deadlines of requests.
    pub armed: usize,
    /// Requests and arms of `join` that a worker has put where other workers can take them, for one that had nothing to do or
    /// before it suspended what had made them.
    pub published: u64,
    /// Times that a worker took from what another had published: half of it at once.
    pub steals: u64,
    /// Times that a worker found nothing to do and went to sleep, or was about to.
    pub sleeps: u64,
}

/// How many requests can run at once: the number of workers of the current runtime. A sizing hint.
///
/// ```
/// assert!(forebear_runtime::parallelism().get() >= 1);
/// ```
pub fn parallelism() -> std::num::NonZero<usize> {
    let workers = match foreign::strand() {
        Some(strand) => origin::current_runtime(strand).threads(),
        None => 1,
    };
    std::num::NonZero::new(workers).unwrap_or(std::num::NonZero::<usize>::MIN)
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
