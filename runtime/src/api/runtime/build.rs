//! [`RuntimeBuilder`]: the settings of a runtime, and the start of one.

use std::any::Any;
use std::cell::LazyCell;
use std::fmt;
use std::sync::Weak;

use forebear_context::clock::{Clock, ManualClock};
use forebear_context::error::Failure;
use forebear_context::shim::Arc;
use forebear_pool::{Affinity, Engine, Options};

use super::late::settle_late;
use super::stuck_scope;
use super::{BuildError, LateEnd, Runtime, RuntimeHandle, default};
use crate::api::dump;
use crate::api::runtime::fork;
use crate::deadlock::foreign_stacks;
use crate::foreign;
use crate::record::hooks::Hooks;
use crate::record::readers;
use crate::record::report;
use crate::schedule::above;
use crate::schedule::worker::{HasWorkers, Worker};
use crate::shared::deadlines::Deadlines;
use crate::shared::driven::{Driven, Seat};
use crate::shared::ending;
use crate::shared::exit_calls;
use crate::shared::{Settings, Shared, UpperCalls};
use crate::stack::{self, overflow};
use crate::time::deadlines::Time;

/// A description of a runtime.
///
/// ```
/// use forebear::Runtime;
///
/// let runtime = Runtime::builder().workers(2).name("tiles").stack_size(128 << 10).build()?;
/// assert_eq!(runtime.workers(), 2);
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[must_use = "a description starts nothing until `build`"]
pub struct RuntimeBuilder {
    name: String,
    workers: Option<usize>,
    stack_size: Option<usize>,
    max_stacks: usize,
    foreign_direct: bool,
    late_end: LateEnd,
    affinity: Affinity,
    hooks: Hooks,
    time: Time,
    seed: Option<u64>,
}

/// More threads than this are a mistake.
pub(super) const MAX_WORKERS: usize = 1024;

impl Default for RuntimeBuilder {
    fn default() -> Self {
        RuntimeBuilder {
            name: "forebear".into(),
            workers: None,
            stack_size: None,
            max_stacks: 1 << 24,
            foreign_direct: true,
            late_end: LateEnd::Wait,
            affinity: Affinity::default(),
            hooks: Hooks::default(),
            time: Time::Estimated,
            seed: None,
        }
    }
}

impl RuntimeBuilder {
    /// The name its threads begin with.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).name("tiles").build()?;
    /// let thread = runtime.run(|| std::thread::current().name().map(String::from));
    /// assert!(thread.is_some_and(|name| name.starts_with("tiles")));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many workers; by default as many as the machine has cores for this process.
    ///
    /// With 0 there is no worker thread. This is the *synchronous mode*, for debugging and for tests that need a simple
    /// order. The promises are the same. [`submit`](crate::Request::submit) and all functions that spawn run the
    /// request on the calling thread until it ends or suspends, before they return. A suspended request continues
    /// whenever that thread waits, yields or drops the last handle of the runtime. Several threads may use such a runtime, up to 32 at a
    /// time; more wait for their turn. Each runs what it submits.
    ///
    /// If nothing can end a wait for a request, it returns [`CircularWait`](crate::WaitError::CircularWait), as long as the waits that it depends on are
    /// for requests, and for the ends of scopes and pools. A cycle through locks is found as with workers. But any thread of the process may set an
    /// [`Event`](https://docs.rs/forebear/latest/forebear/sync/struct.Event.html), send an item, notify, or complete a request. So a wait for that, and what depends on it, is not
    /// answered: if nobody comes, the thread blocks for good, also in a call that drives the runtime, as [`Runtime::run`](crate::Runtime::run). To see
    /// what it waits for, call [`Runtime::dump`](crate::Runtime::dump) on another thread.
    ///
    /// A thread should wait for its suspended requests before it exits. At its exit those that are left are cancelled, with
    /// [`ThreadExited`](crate::CancelReason::ThreadExited), and the thread drives them to their ends, since they
    /// may hold references to its locals. If one waits in a way that no cancel ends, as for a lock, the exit waits for it, and a warning
    /// names it after a second. A destructor of a thread-local may use such a runtime, too, until the runtime's own thread-local is destroyed.
    /// If a request calls [`process::exit`](std::process::exit), nothing that is suspended on that thread continues.
    ///
    /// A request is queued, and not run at once, if it is submitted inside [`no_suspend`](crate::no_suspend()), in an
    /// unwind, or by a request of another runtime. In the last case it runs when a thread that has used this runtime
    /// waits. If no thread has used this runtime, it never runs.
    ///
    /// A runtime without workers needs glibc: elsewhere [`build`](Self::build) answers [`BuildError::NoExitCalls`].
    ///
    /// ```
    /// use forebear::{Runtime, spawn};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// static RAN: AtomicBool = AtomicBool::new(false);
    /// let debug = Runtime::builder().workers(0).build()?;
    /// let request = debug.spawn(|| RAN.store(true, Ordering::Relaxed));
    /// assert!(RAN.load(Ordering::Relaxed) && request.is_done());
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// The *seeded mode*: everything runs on one thread, in an order that `seed` decides, under a virtual clock. If a
    /// program has no contexts but requests of this runtime and the thread that runs them, it repeats the same steps
    /// for the same seed. Other seeds give other interleavings.
    ///
    /// At every wait, yield, submit and end the seed decides which request continues. So requests do *not* run in the order of their
    /// ancestors here, but none that can continue is passed over for ever. The runtime belongs to the thread that first
    /// submits to it, waits in it, enters or runs it, until that exits; requests run when that thread waits or yields. Other threads may use it
    /// as they may use any, but then what happens depends on them, too. Time is virtual: when no request can continue, the clock
    /// jumps to the next deadline, so an hour's time-out passes at once; [`Runtime::now`] reads it. Goes with neither
    /// [`workers`](Self::workers) above 1 nor [`clock`](Self::clock).
    ///
    /// The grace of [`finish`](Runtime::finish) and [`shutdown`](Runtime::shutdown) is virtual time, too: time passes to the deadlines within it, and no
    /// further. It stands still while requests can continue. So the grace also limits their steps, which the seed decides: one for each microsecond of the
    /// grace, but at least 100, and two for each request that has begun. A grace of an hour is more than three billion steps, which may take an hour if
    /// requests yield without end. The second of [`late_end`](Self::late_end) is a million steps while requests can continue.
    ///
    /// The grace gives no real time to another thread that runs a request of this runtime: such a request may be named as a laggard at once.
    ///
    /// ```
    /// use forebear::{Runtime, scope, yield_now};
    /// use std::sync::Mutex;
    ///
    /// let trace = |seed| {
    ///     let order = Mutex::new(Vec::new());
    ///     let runtime = Runtime::builder().seeded(seed).build().unwrap();
    ///     runtime.run(|| {
    ///         scope(|s| {
    ///             for name in ["a", "b", "c"] {
    ///                 let order = &order;
    ///                 s.spawn(move || {
    ///                     order.lock().unwrap().push(name);
    ///                     yield_now().unwrap();
    ///                     order.lock().unwrap().push(name);
    ///                 });
    ///             }
    ///         })
    ///     });
    ///     order.into_inner().unwrap()
    /// };
    /// assert_eq!(trace(7), trace(7));
    /// assert!((1..50).any(|seed| trace(seed) != trace(0)));
    /// ```
    ///
    /// As with [`workers(0)`](Self::workers), a wait for an item, an event, a lock or a completion is not answered when no request can continue: another thread
    /// might still send. So a test in which `runtime.run(|| receiver.recv())` waits and no sender is left to act hangs, without a word. In two ways such a
    /// test fails instead. A [limit](https://docs.rs/forebear/latest/forebear/time/fn.try_timeout.html) of an hour answers
    /// [`TimedOut`](crate::WaitError::TimedOut) at once, since the clock jumps. And [`finish`](crate::Runtime::finish) aborts each request that
    /// cannot continue, and names it in a [warning](Self::on_warning), with what it waits for.
    ///
    /// ```
    /// use forebear::channel::bounded_named;
    /// use forebear::{Runtime, WaitError, time};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let an_hour = Duration::from_secs(3600);
    /// let (_sender, receiver) = bounded_named::<u32>("orders", 1); // nobody sends
    /// let (warn, warnings) = mpsc::channel();
    /// let runtime = Runtime::builder().seeded(1).on_warning(move |text| _ = warn.send(text.to_owned())).build()?;
    /// let answer = runtime.run(|| time::try_timeout(an_hour, || Ok(receiver.recv()?)));
    /// assert!(matches!(answer, Err(WaitError::TimedOut)));
    ///
    /// let shop = runtime.try_spawn(move || Ok(receiver.recv()?));
    /// runtime.finish(an_hour)?;
    /// assert!(matches!(shop.wait(), Err(WaitError::TargetCancelled(_))));
    /// assert!(warnings.try_iter().any(|text| text.contains("orders")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many bytes of stack a request is guaranteed that does not ask for another size. 64 KiB by default, more without
    /// optimisation.
    ///
    /// Without optimisation the compiler copies a value several times on its way out of a closure, and each copy takes room on the stack. A
    /// request whose value has some hundred kilobytes needs a larger stack then, or has to return a `Box`.
    ///
    /// ```
    /// use forebear::{BuildError, Runtime};
    ///
    /// let refused = Runtime::builder().stack_size(1 << 40).build();
    /// assert!(matches!(refused, Err(BuildError::StackSize { .. })));
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// How many stacks there may be at once, suspended and kept ones together; at least two per worker. A wait that
    /// would need one more is answered with a [`StackError`](forebear_context::error::StackError). Without workers each thread that uses the runtime has a further one, on
    /// which requests are ended that cannot have any; more of these while destructors wait there.
    ///
    /// ```
    /// use forebear::{BuildError, Runtime};
    ///
    /// let refused = Runtime::builder().workers(4).max_stacks(4).build();
    /// let Err(BuildError::Stacks { min, .. }) = refused else { panic!() };
    /// assert!(Runtime::builder().workers(4).max_stacks(min).build().is_ok());
    /// ```
    pub fn max_stacks(mut self, stacks: usize) -> Self {
        self.max_stacks = stacks;
        self
    }

    /// Whether a foreign thread that waits for an unstarted request runs it itself; true by default. Switch it off where
    /// the foreign threads must stay responsive, as those of a user interface.
    ///
    /// ```
    /// use std::thread;
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).run_on_caller(false).build()?;
    /// let ran_on = runtime.spawn(|| thread::current().id()).take()?;
    /// assert_ne!(ran_on, thread::current().id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_on_caller(mut self, allowed: bool) -> Self {
        self.foreign_direct = allowed;
        self
    }

    /// Which processors the workers run on.
    ///
    /// ```
    /// use forebear::Runtime;
    /// use forebear::pool::Affinity;
    ///
    /// let runtime = Runtime::builder().workers(1).affinity(Affinity::OneEach).build()?;
    /// assert_eq!(runtime.run(|| 7), 7);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = affinity;
        self
    }

    /// Called for every failure that no code has handled, when the last handle is dropped. By default one line on standard error; with the
    /// feature `tracing` an event of level `ERROR` instead, if a subscriber takes it.
    ///
    /// The hook runs on the thread that drops that handle, often a worker's. It may read, log, notify, send without waiting and cancel. If it
    /// waits, or makes or runs a request, that panics with a message; hand the failure to a thread or a request of your own by a channel. A
    /// panic of the hook ends there, with one line on standard error.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use forebear::{Request, Runtime};
    ///
    /// let (send, seen) = mpsc::channel();
    /// let runtime = Runtime::builder()
    ///     .workers(1)
    ///     .on_unhandled_failure(move |failure| send.send(failure.request().to_owned()).unwrap())
    ///     .build()?;
    /// Request::builder().name("load").on(&runtime).try_spawn(|| Ok("x".parse::<u32>()?));
    /// drop(runtime);
    /// assert_eq!(seen.recv()?, "load");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_unhandled_failure(mut self, hook: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.hooks.on_unhandled_failure = Some(Box::new(hook));
        self
    }

    /// The clock of the deadlines and time-outs of this runtime; by default the system's,
    /// [`MonotonicClock`](forebear_context::clock::MonotonicClock).
    ///
    /// On a clock that jumps, as [`ManualClock`] does, only its jumps let time pass. The thread that moves the clock wakes all due waits before
    /// the move returns, so a test need not wait.
    ///
    /// The runtime calls its [`now`](Clock::now) where a wait for a time begins, and in its timer thread. It must not wait, nor make
    /// or run a request. If it does, or if it panics, the process ends with a message.
    ///
    /// ```
    /// use forebear::time::ManualClock;
    /// use forebear::Runtime;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().workers(1).clock(clock.clone()).build()?;
    /// clock.advance(Duration::from_secs(3600)); // an hour has passed for everything that waits there
    /// # drop(runtime);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Time::by(clock);
        self
    }

    /// Called with warnings that no error carries: for example that a destructor waits while an error unwinds its
    /// request. By default one line on standard error; with the feature `tracing` an event of level `WARN` instead, if a subscriber takes it.
    /// Each kind of warning comes once, and that a scope waits once for each scope.
    ///
    /// The hook runs on a worker's thread, outside of any request; on the thread that ends the runtime; or on one that is started for it. It may do what [`on_unhandled_failure`](Self::on_unhandled_failure) may.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).on_warning(|text| eprintln!("tiles: {text}")).build()?;
    /// assert_eq!(runtime.run(|| 7), 7);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.hooks.on_warning = Some(Box::new(hook));
        self
    }

    /// What the drop of the last handle does after it has waited for a second, and has named the requests that it waits for. By default
    /// it continues to wait. Without workers the drop drives the runtime for that second, or, in the [seeded](Self::seeded) mode, for a million steps.
    ///
    /// ```
    /// use forebear::sync::Event;
    /// use forebear::{LateEnd, Runtime};
    ///
    /// let runtime = Runtime::builder().workers(1).late_end(LateEnd::ShutDown).build()?;
    /// runtime.spawn(|| _ = Event::new().wait());
    /// drop(runtime); // waits for a second, and then cancels the request
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn late_end(mut self, late_end: LateEnd) -> Self {
        self.late_end = late_end;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for numbers that cannot be, or if the system refuses a thread or lacks what the mode needs.
    pub fn build(self) -> Result<Runtime, BuildError> {
        // Counted if need be: that takes longer than to start a thread.
        let cores = LazyCell::new(|| std::thread::available_parallelism().map_or(1, usize::from));
        // A seeded runtime has one seat.
        let workers = self.workers.unwrap_or_else(|| if self.seed.is_some() { 1 } else { *cores });
        if workers > MAX_WORKERS {
            return Err(BuildError::Workers { asked: workers, max: MAX_WORKERS });
        }
        if self.seed.is_some() && self.workers.is_some_and(|workers| workers > 1) {
            return Err(BuildError::Seeded { with: "workers" });
        }
        if self.seed.is_some() && !matches!(self.time, Time::Estimated) {
            return Err(BuildError::Seeded { with: "clock" });
        }
        let (driven, time) = match (self.seed, self.time) {
            (Some(seed), _) => {
                let clock = ManualClock::new();
                (Some(Driven::new(Some((seed, clock.clone())))), Time::by(clock))
            }
            (None, time) => ((workers == 0).then(|| Driven::new(None)), time),
        };
        if driven.is_some() && !exit_calls::are_possible() {
            return Err(BuildError::NoExitCalls);
        }
        // The records; what drives them is another matter.
        let workers = driven.as_ref().map_or(workers, Driven::seats);
        let threads = if driven.is_some() { 1 } else { workers };
        if self.max_stacks < 2 * threads {
            return Err(BuildError::Stacks { asked: self.max_stacks, min: 2 * threads });
        }
        let need = self.stack_size.unwrap_or(stack::DEFAULT);
        let too_large = || BuildError::StackSize { asked: need, max: stack::MAX };
        // The slot is a class above the guarantee, so that a few waiters can lend each other their stacks; what asks for
        // the smallest gets the smallest.
        let default_class = stack::class_for(need).ok_or_else(too_large)?;
        report::wrap_panic_hook();
        overflow::install();
        fork::install();
        readers::settle_who_pays();
        above::provide();
        let shared = Shared::new(Settings {
            name: self.name.clone(),
            workers,
            // Two or fewer need no look at the cores.
            at_a_time: if workers > 2 { workers.min(*cores) } else { workers },
            default_class,
            default_need: need.div_ceil(4 << 10) as u16,
            max_stacks: self.max_stacks,
            foreign_direct: self.foreign_direct,
            late_end: self.late_end,
            hooks: self.hooks,
            deadlines: Deadlines::new(time, &self.name, workers, driven.is_none()),
            driven,
            calls: UpperCalls {
                answer_dumps: dump::answer_all,
                put_back_drawn: |record| Worker::of(record).put_back_drawn(),
                sit_down: |record| Worker::of(record).sit_down(),
                end_begun: Seat::end_begun,
                leave_seat: Seat::leave,
                settle_late,
                check_scope: stuck_scope::check,
            },
        });
        Worker::all_of(&shared, workers);
        foreign_stacks::register_runtime(&shared);
        foreign::provide();
        if shared.driven.is_some() {
            return Ok(Self::finished(RuntimeHandle { shared, engine: None }));
        }
        let options = Options::new(workers)
            .name_prefix(format!("{} #", self.name))
            .affinity(self.affinity)
            .stack_size(1 << 20);
        let stacks = shared.workers().iter().try_for_each(Worker::take_first_stack);
        let started = stacks.map_err(BuildError::Stack).and_then(|()| {
            Engine::start(options, shared.clone(), |worker: &forebear_pool::Worker<Shared>| {
                ending::tell_of_exit(&worker.supply().arc(), worker.index());
                let _stack = overflow::AlternateStack::new();
                worker.supply().workers()[worker.index()].drive(worker);
            })
            .map_err(BuildError::Start)
        });
        let engine = match started {
            Ok(engine) => engine,
            Err(error) => {
                // SAFETY: no thread is left that was started for it.
                unsafe { shared.close() };
                return Err(error);
            }
        };
        Ok(Self::finished(RuntimeHandle { shared, engine: Some(engine) }))
    }

    fn finished(handle: RuntimeHandle) -> Runtime {
        let handle = Arc::new(handle);
        let known: Weak<dyn Any + Send + Sync> = Arc::<RuntimeHandle>::downgrade(&handle);
        handle.shared.set_handle(known);
        Runtime(handle)
    }

    /// Builds the default runtime of the process, for the free functions.
    ///
    /// If there is one already that has no work, this one takes its place, and that one ends. Requests that were made there
    /// and not submitted are cancelled when they are submitted, with [`CancelReason::Shutdown`](crate::CancelReason::Shutdown).
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build); [`BuildError::DefaultBusy`] if the present one has work: a request that was submitted and
    /// has not ended.
    ///
    /// ```
    /// use forebear::{Runtime, parallelism, spawn};
    ///
    /// Runtime::builder().workers(2).build_global()?;
    /// assert_eq!(spawn(|| parallelism().get()).take().ok(), Some(2));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn build_global(self) -> Result<Runtime, BuildError> {
        default::replace(self)
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("name", &self.name)
            .field("workers", &self.workers)
            .field("stack_size", &self.stack_size)
            .field("clock", &self.time)
            .finish_non_exhaustive()
    }
}
