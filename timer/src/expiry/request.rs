//! What clients say to servers, and what servers keep.

use std::fmt;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Instant;

use super::Scope;

/// What names a worker: whatever a client and its server have agreed on.
///
/// Every type has it that can be cloned, compared, hashed, printed and sent.
///
/// A name must not be used again while timers of its first owner may be left. A number that the system gives to one
/// process after another is no good name: some day a wrong process would be reaped.
///
/// ```
/// use forebear::timer::{WorkerId, channel};
///
/// /// A number alone would be given to another process one day.
/// #[derive(Clone, PartialEq, Eq, Hash, Debug)]
/// struct Process {
///     pid: u32,
///     started: u64,
/// }
///
/// fn is_worker<W: WorkerId>(_: &W) {}
/// let process = Process { pid: 7, started: 1_700_000_000 };
/// is_worker(&process);
/// let (timers, _server) = channel();
/// let client = timers.client(process);
/// # drop(client);
/// ```
pub trait WorkerId: Clone + Eq + Hash + fmt::Debug + Send + 'static {}

impl<W: Clone + Eq + Hash + fmt::Debug + Send + 'static> WorkerId for W {}

/// A countdown timer of one worker.
///
/// ```
/// use std::time::Instant;
/// use forebear::timer::{Signal, Timer};
///
/// let timer = Timer::new("load", Instant::now()).with_signal(Signal::from(15));
/// assert_eq!((timer.scope.name(), timer.signal.number()), ("load", Some(15)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timer {
    /// What it is for.
    pub scope: Scope,
    /// When it expires: at this instant, not after it.
    pub deadline: Instant,
    /// What is to be done then.
    pub signal: Signal,
}

impl Timer {
    /// A timer that leaves it to the reaper what is to be done.
    pub fn new(scope: impl Into<Scope>, deadline: Instant) -> Timer {
        Timer { scope: scope.into(), deadline, signal: Signal::Default }
    }

    /// The same with another signal.
    #[must_use]
    pub fn with_signal(self, signal: Signal) -> Timer {
        Timer { signal, ..self }
    }
}

/// What a timer wants done to its worker when it expires.
///
/// ```
/// use forebear::timer::Signal;
///
/// assert_eq!(Signal::from(15).number(), Some(15));
/// assert_eq!(Signal::from(0), Signal::LogOnly);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Signal {
    /// What the reaper does unasked.
    #[default]
    Default,
    /// That it is reaped by the signal of this number. What it means for workers that are no processes is up to their reaper.
    Number(NonZeroU32),
    /// Nothing: the event hooks get the timer, and it is forgotten.
    LogOnly,
}

impl Signal {
    /// The number, if there is one.
    #[must_use]
    pub fn number(self) -> Option<i32> {
        match self {
            Signal::Number(number) => i32::try_from(number.get()).ok(),
            Signal::Default | Signal::LogOnly => None,
        }
    }
}

impl From<i32> for Signal {
    /// The signal of that number; zero and what is below only logs.
    fn from(number: i32) -> Signal {
        u32::try_from(number).ok().and_then(NonZeroU32::new).map_or(Signal::LogOnly, Signal::Number)
    }
}

/// A message of a worker to its server.
///
/// ```
/// use std::time::Instant;
/// use forebear::timer::{Demand, Scope, Timer, TimerRequest};
///
/// let timer = Timer::new("load", Instant::now());
/// assert_eq!(TimerRequest::acquire(7, timer.clone()).demand, Demand::Acquire(timer));
/// assert_eq!(TimerRequest::release(7, "load").demand, Demand::Release(Scope::named("load")));
/// assert_eq!(TimerRequest::leave(7).worker, 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TimerRequest<W> {
    /// Whose timers it is about.
    pub worker: W,
    /// What is asked.
    pub demand: Demand,
}

/// What a [`TimerRequest`] asks for.
///
/// ```
/// use forebear::timer::{Demand, TimerRequest};
///
/// fn line(request: &TimerRequest<u32>) -> String {
///     match &request.demand {
///         Demand::Acquire(timer) => format!("{} acquires {}", request.worker, timer.scope.name()),
///         Demand::Release(scope) => format!("{} releases {}", request.worker, scope.name()),
///         Demand::Leave => format!("{} has ended", request.worker),
///     }
/// }
/// assert_eq!(line(&TimerRequest::release(7, "load")), "7 releases load");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Demand {
    /// To start this timer, or to put it in the place of the worker's timer of the same scope.
    Acquire(Timer),
    /// To stop the timer of this scope, if there is one.
    Release(Scope),
    /// To drop all timers of the worker, which has ended. Said by a queue that sees its workers end.
    Leave,
}

impl<W> TimerRequest<W> {
    /// The worker starts or moves a timer.
    pub fn acquire(worker: W, timer: Timer) -> Self {
        TimerRequest { worker, demand: Demand::Acquire(timer) }
    }

    /// The worker stops a timer.
    pub fn release(worker: W, scope: impl Into<Scope>) -> Self {
        TimerRequest { worker, demand: Demand::Release(scope.into()) }
    }

    /// The worker has ended.
    pub fn leave(worker: W) -> Self {
        TimerRequest { worker, demand: Demand::Leave }
    }
}
