//! What is done to a worker whose timer has expired.

use std::time::{Duration, Instant};

use super::{Timer, TimerError};

/// Ends workers whose timers have expired. A closure is one.
///
/// Called by the server's thread, one worker at a time: what takes long delays the others.
///
/// ```
/// use std::time::Instant;
/// use forebear::timer::{Overdue, Reap, Reaper, Timer};
///
/// /// Warns at first, then ends the worker.
/// struct Patient;
///
/// impl Reaper<u32> for Patient {
///     fn reap(&mut self, overdue: &Overdue<'_, u32>) -> Reap {
///         match overdue.attempt {
///             0 => Reap::Again(std::time::Duration::from_secs(1)),
///             _ => Reap::Reaped,
///         }
///     }
/// }
///
/// let now = Instant::now();
/// let expired = [Timer::new("load", now)];
/// let overdue = Overdue::new(&7, &expired, 0, now).unwrap();
/// assert!(matches!(Patient.reap(&overdue), Reap::Again(_)));
/// ```
pub trait Reaper<W>: Send + 'static {
    /// Ends the worker, or says why not.
    ///
    /// If it panics the worker counts as reaped, since to try again would most likely panic again.
    fn reap(&mut self, overdue: &Overdue<'_, W>) -> Reap;
}

impl<W, F: FnMut(&Overdue<'_, W>) -> Reap + Send + 'static> Reaper<W> for F {
    fn reap(&mut self, overdue: &Overdue<'_, W>) -> Reap {
        self(overdue)
    }
}

/// A worker that is to be reaped, and why.
///
/// ```
/// use std::time::{Duration, Instant};
/// use forebear::timer::{Overdue, Signal, Timer};
///
/// let now = Instant::now();
/// let expired = [Timer::new("log", now).with_signal(Signal::LogOnly), Timer::new("load", now)];
/// let overdue = Overdue::new(&"worker 1", &expired, 0, now + Duration::from_secs(2)).unwrap();
/// assert_eq!((*overdue.worker, overdue.timer.scope.name()), ("worker 1", "load"));
/// assert_eq!(overdue.late(), Duration::from_secs(2));
/// assert!(Overdue::new(&"worker 1", &expired[..1], 0, now).is_none()); // it only logs
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Overdue<'a, W> {
    /// The worker.
    pub worker: &'a W,
    /// The timer that decides what is done: of those that have expired the earliest that does more than log. Its signal is never
    /// [`Signal::LogOnly`](super::Signal::LogOnly).
    pub timer: &'a Timer,
    /// Its timers that have expired and want more than a log, the earliest first.
    pub expired: &'a [Timer],
    /// How often it has been tried before, without its timers having been released since.
    pub attempt: u32,
    /// What time it is, on the server's clock.
    pub now: Instant,
}

impl<'a, W> Overdue<'a, W> {
    /// What a server would report: for authors of servers, and for tests of reapers. `expired` is in the order of deadlines. `None` if none of
    /// these timers asks for more than a log.
    pub fn new(worker: &'a W, expired: &'a [Timer], attempt: u32, now: Instant) -> Option<Self> {
        let timer = expired.iter().find(|timer| timer.signal != super::Signal::LogOnly)?;
        Some(Overdue { worker, timer, expired, attempt, now })
    }

    /// How long ago the timer that decides has expired.
    #[must_use]
    pub fn late(&self) -> Duration {
        self.now.saturating_duration_since(self.timer.deadline)
    }
}

/// The result of a [`reap`](Reaper::reap).
///
/// ```
/// use forebear::timer::{Overdue, Reap};
///
/// /// Ends threads; processes have another server.
/// fn reap(overdue: &Overdue<'_, &'static str>) -> Reap {
///     match *overdue.worker {
///         "main" => Reap::Spared,
///         _ => Reap::Reaped,
///     }
/// }
/// # let _: fn(&Overdue<'_, &'static str>) -> Reap = reap;
/// ```
#[derive(Debug)]
pub enum Reap {
    /// The worker was ended. All its timers are dropped.
    Reaped,
    /// The worker had ended already. All its timers are dropped.
    Gone,
    /// It could not be ended. Its timers stay, and it is tried again after the server's pause, unless they are released by then.
    Retry(TimerError),
    /// Nothing is done to it. The timers that had expired are dropped, its others continue: as if they had all been
    /// [`Signal::LogOnly`](super::Signal::LogOnly).
    Spared,
    /// Something has been done, and more is to be done if its timers are not released within this time: a milder step before a
    /// harder one. As for [`Retry`](Self::Retry), but nothing has gone wrong.
    Again(Duration),
}
