//! The engine: a fixed set of threads that take tasks from a [`Supply`].
//!
//! **Life.** `start` makes all threads before any of them runs its hooks or its body: they wait at a *gate*. If one
//! cannot be made, the others end without running anything, and the caller gets the error. Then each thread runs:
//! pin, start hook, body, stop hook. The body ends when [`Worker::idle`] says so; the engine tells workers to stop
//! (through the signals) and waits for them, nothing else.
//!
//! **Waiting for the end.** `JoinHandle` alone is not enough: a thread cannot join itself, and a worker may be the
//! waiter. So each worker has a *stage* under one lock:
//!
//! | stage | meaning |
//! |---|---|
//! | `Present` | runs its body |
//! | `Joining` | is itself waiting in [`Engine::join`], inside its body, and will take no further task |
//! | `Gone` | has run its stop hook; the thread ends |
//!
//! A waiter outside the pool waits until all workers are `Gone`; a worker waits until all others are `Gone` or `Joining`. Two
//! workers that wait for the end at the same time thus do not wait for each other. The handles of `Gone` threads are
//! then joined by the first waiter, so that no thread is still exiting when `join` returns.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use forebear_context::shim::atomic::{AtomicBool, Ordering::AcqRel};
use forebear_context::shim::thread::{self, Builder, JoinHandle, Thread};
use forebear_context::shim::{Arc, Condvar, Mutex, MutexGuard, ThreadBody};

use crate::generation::Generation;
use crate::options::{Options, WorkerHook};
use crate::start_error::check;
use crate::state::States;
use crate::{StartError, Supply, Worker, WorkerState};

/// Threads that live on a supply of tasks.
///
/// The runtime of `forebear` and [`ThreadPool`](crate::ThreadPool) are both this, with supplies of their own. Dropping
/// it stops the workers and does not wait for them. In a forked child, which has none of the threads, dropping it does nothing.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use forebear::pool::engine::{Engine, Options, Signals, Supply, Worker};
///
/// struct Numbers { signals: Signals, left: Mutex<Vec<u32>>, sum: Mutex<u32> }
/// impl Supply for Numbers {
///     type Task = u32;
///     fn signals(&self) -> &Signals { &self.signals }
///     fn take(&self, _: usize) -> Option<u32> { self.left.lock().unwrap().pop() }
///     fn steal(&self, _: usize) -> Option<u32> { None }
///     fn best(&self, _: usize) -> u64 { 0 }
/// }
///
/// let numbers = Numbers { signals: Signals::new(2), left: Mutex::new(vec![1, 2, 3]), sum: Mutex::new(0) };
/// let engine = Engine::start(Options::new(2), Arc::new(numbers), |worker: &Worker<Numbers>| {
///     while let Some(number) = worker.idle() {
///         *worker.supply().sum.lock().unwrap() += number;
///     }
/// })?;
/// engine.stop_and_join();
/// assert_eq!(*engine.supply().sum.lock().unwrap(), 6);
/// # Ok::<(), forebear::pool::StartError>(())
/// ```
pub struct Engine<S: Supply> {
    supply: Arc<S>,
    common: Arc<Common>,
    threads: Vec<Thread>,
    /// By number; `None` once joined.
    handles: Mutex<Vec<Option<JoinHandle<()>>>>,
    /// The process that the threads are in.
    born: Generation,
}

/// What an engine and its threads share.
struct Common {
    options: Options,
    states: Arc<States>,
    gate: Mutex<Gate>,
    gate_moved: Condvar,
    stages: Mutex<Vec<Stage>>,
    stage_moved: Condvar,
    warned: AtomicBool,
    /// How many cores the workers may run on together; none before the first of them has counted.
    cores: Mutex<Option<usize>>,
}

/// What the threads wait for before they begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Closed,
    Open,
    /// A thread could not be made: all leave.
    Abandoned,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Present,
    Joining,
    Gone,
}

impl<S: Supply> Engine<S> {
    /// Starts the threads; each runs `main` once, as its body.
    ///
    /// `main` is to run tasks until [`Worker::idle`] answers `None`. A panic that leaves it aborts the process: the body
    /// is the owner's own code, and tasks that can panic are to be caught inside it.
    ///
    /// # Errors
    ///
    /// [`StartError`]: no workers or too many, signals made for another number, a name with a zero byte, or a thread
    /// that the system would not make. Nothing is left running then, and no hook has run.
    pub fn start<M>(options: Options, supply: Arc<S>, main: M) -> Result<Engine<S>, StartError>
    where
        M: Fn(&Worker<S>) + Send + Sync + 'static,
    {
        let workers = options.workers;
        check(&options, supply.signals().workers())?;
        let common = Arc::new(Common::new(options));
        let main = Arc::new(main);
        let mut engine = Engine {
            supply,
            common,
            threads: Vec::with_capacity(workers),
            handles: Mutex::new(Vec::new()),
            born: Generation::of_process(),
        };
        for index in 0..workers {
            if let Err(source) = engine.add_thread(index, Arc::clone(&main)) {
                engine.common.set_gate(Gate::Abandoned);
                engine.join_handles();
                return Err(StartError::Thread { index, source });
            }
        }
        engine.common.set_gate(Gate::Open);
        Ok(engine)
    }

    fn add_thread<M>(&mut self, index: usize, main: Arc<M>) -> io::Result<()>
    where
        M: Fn(&Worker<S>) + Send + Sync + 'static,
    {
        let mut builder = Builder::new().name(self.common.options.name_of(index));
        if let Some(bytes) = self.common.options.stack_size {
            builder = builder.stack_size(bytes);
        }
        let (supply, common) = (Arc::clone(&self.supply), Arc::clone(&self.common));
        let body: ThreadBody = Box::new(move || {
            if common.pass_gate() {
                common.live(index, supply, &*main);
            }
        });
        let handle = builder.spawn(body)?;
        self.threads.push(handle.thread().clone());
        lock(&self.handles).push(Some(handle));
        Ok(())
    }

    /// Whether its threads are in a process that this one was forked from.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.born.is_inherited()
    }

    /// Where the workers get their tasks.
    #[must_use]
    pub fn supply(&self) -> &Arc<S> {
        &self.supply
    }

    /// What each worker is doing, by number; a snapshot.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use forebear::pool::WorkerState;
    /// use forebear::pool::engine::{Engine, Options, Signals, Supply, Worker};
    ///
    /// /// A supply of nothing.
    /// struct Nothing(Signals);
    /// impl Supply for Nothing {
    ///     type Task = ();
    ///     fn signals(&self) -> &Signals { &self.0 }
    ///     fn take(&self, _: usize) -> Option<()> { None }
    ///     fn steal(&self, _: usize) -> Option<()> { None }
    ///     fn best(&self, _: usize) -> u64 { u64::MAX }
    /// }
    ///
    /// let engine = Engine::start(Options::new(2), Arc::new(Nothing(Signals::new(2))), |worker: &Worker<Nothing>| {
    ///     assert_eq!(worker.idle(), None); // until the engine stops
    /// })?;
    /// assert_eq!((engine.options().workers(), engine.threads().len()), (2, 2));
    /// assert_eq!(engine.current_worker(), None); // this thread is none of its workers
    /// engine.supply().signals().stop();
    /// engine.join_some(|worker| worker == 1);
    /// assert!(engine.ends_within(Duration::from_secs(60)));
    /// engine.join();
    /// assert_eq!(engine.states(), [WorkerState::Stopped; 2]);
    /// # Ok::<(), forebear::pool::StartError>(())
    /// ```
    #[must_use]
    pub fn states(&self) -> Vec<WorkerState> {
        self.common.states.all()
    }

    /// The options it was started with.
    pub fn options(&self) -> &Options {
        &self.common.options
    }

    /// The threads, by number.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// The number of the worker on whose thread this is called; `None` on any other thread. Looks through all workers:
    /// for stopping and checks, not for hot paths.
    #[must_use]
    pub fn current_worker(&self) -> Option<usize> {
        let current = thread::current().id();
        self.threads.iter().position(|thread| thread.id() == current)
    }

    /// Waits until every worker has ended. Does not signal them to stop: see [`stop_and_join`](Engine::stop_and_join).
    ///
    /// Called on a worker's own thread it waits for the *others*, those excepted that are waiting here too; the thread
    /// itself ends when its body returns. May be called several times, from several threads. Blocks the thread.
    pub fn join(&self) {
        let me = self.current_worker();
        self.common.wait_for_end(me);
        if me.is_none() {
            self.join_handles();
        }
    }

    /// Waits until those workers have ended whose numbers are `wanted`, and leaves the others alone. Not to be called on a
    /// worker's own thread. Blocks the thread.
    pub fn join_some(&self, wanted: impl Fn(usize) -> bool) {
        self.common.wait_for_some(&wanted);
        for (_, handle) in lock(&self.handles).iter_mut().enumerate().filter(|(index, _)| wanted(*index)) {
            if let Some(handle) = handle.take() {
                // As in `join_handles`.
                let _ = handle.join();
            }
        }
    }

    /// Waits until all workers have ended, for so long at most; whether they have. Not to be called on a worker's own thread. Blocks
    /// the thread.
    #[cfg(not(loom))]
    pub fn ends_within(&self, limit: std::time::Duration) -> bool {
        self.common.wait_for_all(limit)
    }

    /// Stops the workers and waits for them as [`join`](Engine::join) does.
    pub fn stop_and_join(&self) {
        self.supply.signals().stop();
        self.join();
    }

    fn join_handles(&self) {
        // Under the lock, so that a second caller waits too. No worker takes this lock.
        for handle in lock(&self.handles).iter_mut().filter_map(Option::take) {
            // A worker's thread never panics: its body aborts, its hooks are contained.
            let _ = handle.join();
        }
    }
}

impl<S: Supply> Drop for Engine<S> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // There is nobody to stop. A handle would detach a thread that is not there, or one of this process that has its stack.
            let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(handles));
            return;
        }
        self.supply.signals().stop();
    }
}

impl<S: Supply> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.common.options)
            .field("states", &self.states())
            .finish_non_exhaustive()
    }
}

impl Common {
    fn new(options: Options) -> Common {
        let workers = options.workers;
        Common {
            options,
            states: Arc::new(States::new(workers)),
            gate: Mutex::new(Gate::Closed),
            gate_moved: Condvar::new(),
            stages: Mutex::new(vec![Stage::Present; workers]),
            stage_moved: Condvar::new(),
            warned: AtomicBool::new(false),
            cores: Mutex::new(None),
        }
    }

    fn set_gate(&self, gate: Gate) {
        *lock(&self.gate) = gate;
        self.gate_moved.notify_all();
    }

    /// Waits at the gate; whether it opened.
    fn pass_gate(&self) -> bool {
        let mut gate = lock(&self.gate);
        while *gate == Gate::Closed {
            gate = self.gate_moved.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        *gate == Gate::Open
    }

    /// The life of one worker, on its thread.
    fn live<S: Supply>(&self, index: usize, supply: Arc<S>, main: &dyn Fn(&Worker<S>)) {
        // By the first worker, before it is bound to a core. The thread that makes an engine does not count them: to read the limits of
        // the control group takes longer than to start a thread.
        let search = self.options.search_on(|| {
            *lock(&self.cores).get_or_insert_with(|| {
                let process = std::thread::available_parallelism().map_or(1, usize::from);
                self.options.affinity.cores_of(process)
            })
        });
        if let Err(warning) = self.options.affinity.apply(index)
            && !self.warned.swap(true, AcqRel)
        {
            contain(|| (self.options.on_warning)(&warning));
        }
        self.call_hook(&self.options.on_start, index);
        let worker = Worker::new(supply, Arc::clone(&self.states), index, search);
        let mut guard = AbortOnUnwind { options: &self.options, index, armed: true };
        // What it finds at its first look it runs at once.
        worker.set_state(WorkerState::Running);
        main(&worker);
        guard.armed = false;
        worker.set_state(WorkerState::Stopped);
        drop(worker);
        self.call_hook(&self.options.on_stop, index);
        self.set_stage(index, Stage::Gone);
    }

    fn call_hook(&self, hook: &Option<WorkerHook>, worker: usize) {
        if let Some(hook) = hook {
            contain(|| hook(worker));
        }
    }

    fn set_stage(&self, worker: usize, stage: Stage) {
        lock(&self.stages)[worker] = stage;
        self.stage_moved.notify_all();
    }

    fn wait_for_some(&self, wanted: &dyn Fn(usize) -> bool) {
        let mut stages = lock(&self.stages);
        while stages.iter().enumerate().any(|(index, stage)| wanted(index) && *stage != Stage::Gone) {
            stages = self.stage_moved.wait(stages).unwrap_or_else(PoisonError::into_inner);
        }
    }

    #[cfg(not(loom))]
    fn wait_for_all(&self, limit: std::time::Duration) -> bool {
        let end = std::time::Instant::now() + limit;
        let mut stages = lock(&self.stages);
        loop {
            let over = stages.iter().all(|stage| matches!(stage, Stage::Gone));
            let left = end.saturating_duration_since(std::time::Instant::now());
            if over || left.is_zero() {
                return over;
            }
            stages = self.stage_moved.wait_timeout(stages, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for all, or, on the thread of worker `me`, for all others that do not wait here themselves.
    fn wait_for_end(&self, me: Option<usize>) {
        if let Some(me) = me {
            self.set_stage(me, Stage::Joining);
        }
        let excused = me.is_some() && !cfg!(mutant = "join_waits_for_joiners");
        // Its own stage is among them, and `Joining`.
        let mine = |place: usize| me == Some(place);
        let over = |(place, stage): (usize, &Stage)| match stage {
            Stage::Present => false,
            Stage::Joining => excused || mine(place),
            Stage::Gone => true,
        };
        let mut stages = lock(&self.stages);
        while !stages.iter().enumerate().all(over) {
            stages = self.stage_moved.wait(stages).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the process if it is dropped: a body that unwinds has lost its thread's work and would leave it unserved.
struct AbortOnUnwind<'a> {
    options: &'a Options,
    index: usize,
    armed: bool,
}

impl Drop for AbortOnUnwind<'_> {
    fn drop(&mut self) {
        // A model reports a failure by a panic; it must come through.
        if self.armed && !cfg!(any(loom, shuttle)) {
            let name = self.options.name_of(self.index);
            eprintln!("forebear: {name} panicked outside any task; the process ends");
            std::process::abort();
        }
    }
}

/// Runs the user's code. A panic in it, which std's hook has reported already, is caught.
pub(crate) fn contain(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        discard(payload);
    }
}

/// Drops a panic's payload, whose destructor may panic in its turn. The second payload is not asked again.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// Locks; nothing under the engine's locks can panic half-way, so a poisoned one holds whole data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
