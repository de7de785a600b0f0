//! What a server tells about itself.

use std::fmt;
use std::time::Duration;

use forebear_context::error::Failure;

use super::{Timer, TimerError};

/// An event of a server, for its hooks. `Display` is a line for a log.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use forebear::timer::{Overdue, Reap, TimerEvent, TimerGuard, Watchdog, channel};
///
/// let (timers, queue) = channel();
/// let (send, seen) = mpsc::channel();
/// let mut watchdog = Watchdog::new(queue, |_: &Overdue<'_, u32>| Reap::Reaped).on_event(move |event| {
///     if let TimerEvent::Reaped { worker, .. } = event {
///         send.send(**worker).unwrap();
///     }
/// });
/// let client = timers.client(7);
/// let stuck = TimerGuard::builder().client(&client).expires(Duration::ZERO)?;
/// watchdog.turn(Duration::ZERO)?;
/// assert_eq!(seen.recv(), Ok(7));
/// # drop(stuck);
/// # Ok::<(), forebear::timer::TimerError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum TimerEvent<'a, W> {
    /// The server's thread has begun.
    Started,
    /// It has ended: the last event.
    Stopped,
    /// A timer was found to have expired. Reported once for each, before a worker is reaped for it.
    #[non_exhaustive]
    Expired {
        /// The worker that has it.
        worker: &'a W,
        /// The timer.
        timer: &'a Timer,
        /// How long ago it expired.
        late: Duration,
    },
    /// A worker was reaped, and its timers are dropped.
    #[non_exhaustive]
    Reaped {
        /// The worker.
        worker: &'a W,
        /// The timer that decided.
        timer: &'a Timer,
        /// How long ago that had expired when the reaper was called.
        late: Duration,
    },
    /// A worker that was to be reaped was gone already, and its timers are dropped.
    #[non_exhaustive]
    Gone {
        /// The worker.
        worker: &'a W,
    },
    /// A step against a worker was taken, and the next follows if its timers are not released.
    #[non_exhaustive]
    Warned {
        /// The worker.
        worker: &'a W,
        /// How often the reaper was called before this.
        attempt: u32,
        /// When it is called again.
        again_in: Duration,
    },
    /// A worker could not be reaped.
    #[non_exhaustive]
    ReapFailed {
        /// The worker.
        worker: &'a W,
        /// The reason.
        error: &'a TimerError,
        /// How often it was tried before this.
        attempt: u32,
        /// When it is tried again.
        again_in: Duration,
    },
    /// The reaper panicked. The worker counts as reaped, and its timers are dropped.
    #[non_exhaustive]
    ReaperPanicked {
        /// The worker that was to be reaped.
        worker: &'a W,
        /// The panic.
        failure: &'a Failure,
    },
    /// A worker has ended with timers that it had not released. They are dropped, and no worker is reaped.
    #[non_exhaustive]
    Orphaned {
        /// The worker that has ended.
        worker: &'a W,
        /// What was dropped.
        timers: &'a [Timer],
    },
    /// A turn of the server was given up. It continues with the next.
    #[non_exhaustive]
    TurnFailed {
        /// The reason.
        error: &'a TimerError,
    },
}

impl<W: fmt::Debug> fmt::Display for TimerEvent<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimerEvent::Started => f.write_str("started"),
            TimerEvent::Stopped => f.write_str("stopped"),
            TimerEvent::Expired { worker, timer, late } => {
                write!(f, "the timer {} of {worker:?} expired {late:?} ago", timer.scope)
            }
            TimerEvent::Reaped { worker, timer, late } => {
                write!(f, "{worker:?} was reaped, {late:?} after its timer {} had expired", timer.scope)
            }
            TimerEvent::Gone { worker } => write!(f, "{worker:?} had already ended when it was to be reaped"),
            TimerEvent::Warned { worker, attempt, again_in } => {
                write!(
                    f,
                    "step {} against {worker:?} was taken, the next follows in {again_in:?}",
                    attempt + 1
                )
            }
            TimerEvent::ReapFailed { worker, error, attempt, again_in } => {
                let tried = attempt + 1;
                write!(
                    f,
                    "{worker:?} could not be reaped: {error} (attempt {tried}, the next in {again_in:?})"
                )
            }
            TimerEvent::ReaperPanicked { worker, failure } => {
                write!(f, "the reaper panicked, and {worker:?} counts as reaped: {}", failure.error())
            }
            TimerEvent::Orphaned { worker, timers } => {
                write!(f, "{worker:?} has ended with {} timers that it had not released", timers.len())
            }
            TimerEvent::TurnFailed { error } => write!(f, "a round was abandoned: {error}"),
        }
    }
}
