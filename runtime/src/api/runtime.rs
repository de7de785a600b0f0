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
pub(crate) mod fork;
mod laggards;
mod late;

pub use self::build::{BuildError, RuntimeBuilder};
pub use self::finish::{Laggard, ShutdownError};
pub use self::late::LateEnd;

use self::build::MAX_WORKERS;
use crate::api::dump::{self, Dump};
use crate::api::origin;
use crate::api::request::{Request, spawn_of};
use crate::api::scope::into_wait_error;
use crate::foreign;
use crate::record::callback;
use crate::record::cell::{Callable, Fallible, For, Plain, type_of};
use crate::record::fiber::Fiber;
use crate::record::header::{BORROWS, HeaderPlace, OWN_STACK};
use crate::record::no_suspend;
use crate::schedule::driver;
use crate::schedule::wait;
use crate::shared::Shared;
use crate::stack::lent::Lent;

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

    /// Runs `f` as a request of this runtime, on one of its workers, and returns what it returned. `f` may borrow.
    ///
    /// Suspends the calling request, or blocks the calling thread.
    ///
    /// # Panics
    ///
    /// With the panic of `f`. In a region of [`no_suspend`](crate::no_suspend()), before `f` is called.
    ///
    /// ```
    /// use forebear::{Request, Runtime};
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let text = String::from("borrowed");
    /// assert_eq!(runtime.run(|| text.len()), 8);
    /// assert!(runtime.run(|| Request::current().is_some()));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[track_caller]
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let (named, mut caught) = (type_of(&f), None);
        let body = || caught = Some(catch_unwind(AssertUnwindSafe(f)));
        match self.run_borrowed(For(Plain(body), named)) {
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
    ///
    /// # Panics
    ///
    /// In a region of [`no_suspend`](crate::no_suspend()), before `f` is called.
    ///
    /// ```
    /// use forebear::{Runtime, WaitError};
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let text = String::from("x");
    /// let failed = runtime.try_run(|| Ok(text.parse::<u32>()?));
    /// assert!(matches!(failed, Err(WaitError::Failed(_))));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[track_caller]
    pub fn try_run<R: Send>(&self, f: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, WaitError> {
        let (named, mut value) = (type_of(&f), None);
        let body = || {
            value = Some(f()?);
            Ok(())
        };
        self.run_borrowed(For(Fallible(body), named))?;
        value.ok_or_else(|| into_wait_error(Error::other("a finished request has run")))
    }

    /// Runs a callable that may borrow from the caller's frame as a request of this runtime. Returns when the request is over: however the wait for
    /// it is refused, the frame stays lent until then. An unwind in between ends the process ([`Lent`]).
    #[track_caller]
    fn run_borrowed<C: Callable<()>>(&self, callable: C) -> Result<(), WaitError> {
        let fiber = foreign::fiber();
        if let Some(fiber) = fiber.filter(|fiber| fiber.context().no_suspend().get() != 0) {
            // Before anything is lent: it always has to wait.
            callback::refuse("make a request");
            no_suspend::refuse(fiber, "Runtime::run", true);
        }
        let request: Request<()> = {
            let origin = origin::here(Some(self.shared()));
            let birth = crate::record::cell::Birth {
                word: crate::state::word::NEW | crate::state::word::HANDLE,
                lineage: origin.lineage(origin::Rank::default()),
                need_pages: origin.shared.default_need,
                scope: ptr::null(),
                place: HeaderPlace::Nowhere,
            };
            // SAFETY: M1: this thread's arena. The callable may borrow: it is submitted below, and this function does not
            // return before the request is over; an unwind in between ends the process.
            unsafe {
                let header = crate::record::cell::make(origin.arena, birth, callable);
                header.as_ref().flags.set(OWN_STACK | BORROWS);
                Request::from_raw(header)
            }
        };
        let lent = Lent::to(|| "the request of Runtime::run");
        request.submit();
        let mut answer = request.wait().copied();
        if !request.is_done() {
            answer = run_to_its_end(&request, answer);
        }
        lent.given_back();
        answer
    }

    /// Makes a request of this runtime and submits it. A child of the current request if that is of this runtime too,
    /// else a root.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.spawn(|| 6 * 7).take()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
        // SAFETY: the callable is `'static`.
        unsafe { spawn_of(self.shared(), Plain(f)) }
    }

    /// As [`spawn`](Self::spawn), for a callable that may return an error.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.try_spawn(|| Ok("12".parse::<u32>()?)).take()?, 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn try_spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Request<T> {
        // SAFETY: the callable is `'static`.
        unsafe { spawn_of(self.shared(), Fallible(f)) }
    }

    /// Calls `f` here; the free functions inside mean this runtime.
    ///
    /// ```
    /// use forebear::{Runtime, parallelism};
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| parallelism().get()), 3);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        struct EnterGuard<'a>(&'a Fiber, *const Shared, *const crate::record::arena::Arena);
        impl Drop for EnterGuard<'_> {
            fn drop(&mut self) {
                self.0.entered.set(self.1);
                self.0.arena.set(self.2);
            }
        }
        let Some(fiber) = foreign::fiber() else { return f() };
        driver::enter(self.shared(), fiber);
        let entered = fiber.entered.replace(&*self.0.shared);
        // The fast ways of spawn and take go by the arena; without one they leave the matter to the slow ones.
        let _back = EnterGuard(fiber, entered, fiber.arena.replace(ptr::null()));
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
    /// use forebear::Runtime;
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| Runtime::current().workers()), 3);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[track_caller]
    pub fn current() -> Runtime {
        let shared = match foreign::fiber() {
            Some(fiber) => origin::current_runtime(fiber),
            None => default_shared(),
        };
        match shared.handle.get().and_then(Weak::upgrade).map(Arc::downcast) {
            Some(Ok(handle)) => Runtime(handle),
            _ => panic!(
                "forebear: the last handle of the current runtime was dropped: it accepts no more requests"
            ),
        }
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

    /// What every live request is doing, whom it waits for, and who holds that. While the runtime goes on.
    ///
    /// Each worker reports its requests at its next scheduling point. One that reaches none within 10 ms is listed with what it runs
    /// and the *number* of the requests that are private to it. So the call takes 10 ms at most, and some microseconds for each request
    /// that there is; a worker is kept from its work for a part of that. It blocks the thread, also in a request, and does not suspend.
    ///
    /// What stands still meanwhile is in the dump. Not in it are requests that were not submitted, and those that a
    /// [`RequestPool`](crate::RequestPool) holds back, unless somebody waits for them. Each request gets a
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
            over_bound: shared.over_bound.load(Ordering::Relaxed),
            shut_down: shared.shut_down.load(Ordering::Relaxed),
            left_behind: shared.left_behind.load(Ordering::Relaxed),
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

/// The wait for a request that borrows from the caller's frame was refused with this answer: waits until the request is over all the same.
#[cold]
fn run_to_its_end(request: &Request<()>, answer: Result<(), WaitError>) -> Result<(), WaitError> {
    if matches!(answer, Err(WaitError::Cancelled)) {
        // Nobody else waits for it.
        request.abort(CancelReason::Parent);
    }
    let Some(fiber) = foreign::fiber() else { unreachable!("a request was made here") };
    // SAFETY: the calling fiber, on which no region is open; the handle; it was submitted.
    unsafe { wait::until_over_at_any_rate(fiber, request.header_ptr()) };
    match answer {
        Err(WaitError::Cancelled) => answer,
        // No stack to suspend on, a cycle, a runtime that has given up: none of that is the outcome.
        _ => request.wait().copied(),
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
    /// Requests of this runtime that a [`RequestPool`](crate::RequestPool) has admitted over its bound, since somebody waited
    /// for them who would else have waited for ever.
    pub over_bound: u64,
    /// Requests that had started and not ended when the runtime was [shut down](Runtime::shutdown).
    pub shut_down: usize,
    /// Stacks that threads have left behind when they exited, in a runtime without workers. They stay in memory.
    pub left_behind: usize,
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
/// assert!(forebear::parallelism().get() >= 1);
/// ```
#[must_use]
pub fn parallelism() -> std::num::NonZero<usize> {
    let workers = match foreign::fiber() {
        Some(fiber) => origin::current_runtime(fiber).threads(),
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
