//! [`RuntimeBuilder`]: what a runtime is to be; and why one could not be built.

use std::fmt;

use forebear_context::clock::{Clock, MonotonicClock};
use forebear_context::error::{Failure, StackError};
use forebear_context::shim::Arc;
use forebear_pool::{Affinity, Engine, Options, StartError};

use super::{DEFAULT, Handle, Runtime};
use crate::hooks;
use crate::shared::{Settings, Shared, UnseenHook, WarningHook};
use crate::stack::{self, overflow};
use crate::worker::Worker;

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
    /// The workers could not be given the stacks they begin on.
    Stack(StackError),
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
                write!(
                    f,
                    "at most {asked} stacks were asked for and the workers alone need {min}: raise max_stacks, or ask \
                     for fewer workers"
                )
            }
            BuildError::Stack(error) => error.fmt(f),
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
    on_warning: Option<WarningHook>,
    clock: Arc<dyn Clock>,
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
            affinity: Affinity::default(),
            on_unseen_failure: None,
            on_warning: None,
            clock: Arc::new(MonotonicClock),
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
    /// would need one more is answered with a [`StackError`].
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

    /// The clock that deadlines and time-outs of this runtime go by; by default the system's, [`MonotonicClock`].
    ///
    /// On a clock that jumps, as [`ManualClock`](forebear_context::clock::ManualClock) does, time passes by its jumps alone:
    /// whoever moves it wakes all that is due on the spot, so a test need not wait for anything. Its
    /// [`now`](Clock::now) is called by workers and by the runtime's timer thread; a panic there ends the process.
    ///
    /// ```
    /// use forebear_context::clock::ManualClock;
    /// use forebear_runtime::Runtime;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().workers(1).clock(clock.clone()).build()?;
    /// clock.advance(Duration::from_secs(3600)); // an hour has passed for everything that waits there
    /// # drop(runtime);
    /// # Ok::<(), forebear_runtime::BuildError>(())
    /// ```
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Called with what a user ought to know and no error carries: that a destructor waits while an error unwinds its
    /// request, for one. By default one line on standard error. Each kind of thing is said once.
    pub fn on_warning(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_warning = Some(Box::new(hook));
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
            on_warning: self.on_warning,
            clock: self.clock,
        });
        let options = Options::new(workers)
            .name_prefix(format!("{} #", self.name))
            .affinity(self.affinity)
            .stack_size(1 << 20);
        let stacks = shared.workers().iter().try_for_each(Worker::take_first_stack);
        let started = stacks.map_err(BuildError::Stack).and_then(|()| {
            Engine::start(options, shared.clone(), |worker: &forebear_pool::Worker<Shared>| {
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
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
