//! A reaper that escalates: it asks, then warns, then kills.
//!
//! A ladder is a list of steps, each with the time between the step before it (or the expiry) and itself. The server calls the reaper
//! once for each step and counts the calls. So the count is the index of the step, and the ladder itself has no state. If the time
//! before the first step is not zero, the first call only answers when to call again. Between two steps a worker saves itself by
//! releasing its timer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{LocalWorker, Signalled, reapers};
use crate::expiry::{Overdue, Reap, Reaper};

/// First asks, then warns, then kills: a [`Reaper`] that takes a step, waits whether the worker releases its timer, and takes the next.
///
/// A timer with a signal of its own is not for the ladder: its worker is ended by that signal at once.
///
/// ```
/// use forebear::timer::local::Ladder;
/// use std::time::Duration;
///
/// let ladder = Ladder::new()
///     .cancel_after(Duration::ZERO, |overdue| eprintln!("{:?} is to give up", overdue.worker))
///     .signal_after(Duration::from_secs(2), 15)
///     .kill_after(Duration::from_secs(5));
/// ```
#[must_use = "a ladder does nothing until a server has it"]
pub struct Ladder {
    steps: Vec<(Duration, Step)>,
}

type Ask = Box<dyn FnMut(&Overdue<'_, LocalWorker>) + Send>;

enum Step {
    Cancel(Ask),
    Signal(i32),
}

impl Ladder {
    /// A ladder without steps. The last step should be [`kill_after`](Self::kill_after). A ladder without any step kills at once.
    pub fn new() -> Ladder {
        Ladder { steps: Vec::new() }
    }

    /// Calls `ask`, this long after the step before, to make the worker give up by itself: for example by a message, or by
    /// aborting a request.
    ///
    /// It is called on the server's thread, so it must not wait. If it panics, the next step follows all the same.
    pub fn cancel_after(
        self,
        after: Duration,
        ask: impl FnMut(&Overdue<'_, LocalWorker>) + Send + 'static,
    ) -> Ladder {
        self.step(after, Step::Cancel(Box::new(ask)))
    }

    /// Sends the signal of this number, this long after the step before: 15, SIGTERM, for most.
    pub fn signal_after(self, after: Duration, signal: i32) -> Ladder {
        self.step(after, Step::Signal(signal))
    }

    /// Kills, this long after the step before.
    pub fn kill_after(self, after: Duration) -> Ladder {
        self.step(after, Step::Signal(KILL))
    }

    fn step(mut self, after: Duration, step: Step) -> Ladder {
        self.steps.push((after, step));
        self
    }
}

const KILL: i32 = rustix::process::Signal::KILL.as_raw();

impl Default for Ladder {
    fn default() -> Ladder {
        Ladder::new()
    }
}

impl Reaper<LocalWorker> for Ladder {
    fn reap(&mut self, overdue: &Overdue<'_, LocalWorker>) -> Reap {
        if let Some(signal) = overdue.timer.signal.number() {
            return reapers::end(overdue.worker, signal);
        }
        let attempt = usize::try_from(overdue.attempt).unwrap_or(usize::MAX);
        let first = self.steps.first().map_or(Duration::ZERO, |(after, _)| *after);
        let place = match (attempt, first.is_zero()) {
            (0, false) => return Reap::Again(first),
            (_, false) => attempt - 1,
            (_, true) => attempt,
        };
        let next = self.steps.get(place.saturating_add(1)).map(|(after, _)| *after);
        match (self.steps.get_mut(place), next) {
            (Some((_, Step::Cancel(ask))), _) => {
                // The panic hook has reported it. A panicking step does not spare the worker.
                _ = catch_unwind(AssertUnwindSafe(|| ask(overdue)));
                match next {
                    Some(next) => Reap::Again(next),
                    None => Reap::Reaped,
                }
            }
            (Some((_, Step::Signal(signal))), Some(next)) => match overdue.worker.signal(*signal) {
                Ok(Signalled::Sent) => Reap::Again(next),
                Ok(Signalled::Ended) => Reap::Gone,
                Err(error) => Reap::Retry(error),
            },
            (Some((_, Step::Signal(signal))), None) => reapers::end(overdue.worker, *signal),
            // The last step has failed: try it again.
            (None, _) => match self.steps.last() {
                Some((_, Step::Signal(signal))) => reapers::end(overdue.worker, *signal),
                _ => reapers::end(overdue.worker, KILL),
            },
        }
    }
}

impl fmt::Debug for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|(after, step)| match step {
            Step::Cancel(_) => format!("cancel after {after:?}"),
            Step::Signal(signal) => format!("signal {signal} after {after:?}"),
        });
        f.debug_list().entries(steps).finish()
    }
}
