//! How long a thread drives towards the end of a runtime without workers, though something is always ready.
//!
//! A thread that drives has no time of its own beside the requests: a request that yields in a loop, or two that send to each other, keep it in its
//! loop. So the loop asks a [`Limit`] after each step.
//!
//! * *The synchronous mode*: the limit is an instant, of the runtime's clock for a grace, and of the caller's clock otherwise. A grace that is short, or zero,
//!   would leave requests behind that could end at once. So all that has begun may take some steps first ([`SURE`]), for [`SPARE`] at most.
//! * *The seeded mode*: an instant would end the same seed at another step each time. No virtual time passes while anything is ready. So the limit is a number
//!   of steps, one for each [`STEP`] that the limit lasts. Virtual time passes no further than the grace ([`Limit::until`]).

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::shim::time;

use crate::shared::Shared;
use crate::shared::driven::Driven;

/// So much of its limit a step counts in the seeded mode: about what it takes.
const STEP: Duration = Duration::from_micros(1);
/// So many steps, and two for each request that has begun, belong to any grace.
const SURE: u64 = 100;
/// So long these may take once the grace is over.
const SPARE: Duration = Duration::from_millis(20);

/// See the module head.
pub(crate) struct Limit {
    /// `None`: there is none.
    until: Option<Instant>,
    /// Whether that is by the runtime's clock.
    is_grace: bool,
    /// So many steps are taken whatever the clock shows.
    sure: u64,
    /// So many steps are taken at most, in the seeded mode.
    most: u64,
    steps: u64,
}

impl Limit {
    /// A grace, by the runtime's clock, of an end that a thread drives on whose seat so many requests have begun.
    pub(crate) fn of_grace(shared: &Shared, begun: usize, grace: Duration) -> Limit {
        let sure = SURE + 2 * begun as u64;
        Limit {
            until: shared.deadlines.after(grace),
            is_grace: true,
            sure,
            most: steps_within(grace).max(sure),
            steps: 0,
        }
    }

    /// From now on, by the caller's clock. No limit in a model: there a wait that nothing ends is a fault.
    pub(crate) fn of_call(span: Duration) -> Limit {
        let until = if cfg!(shuttle) { None } else { deadline_after(time::now(), span) };
        Limit { until, is_grace: false, sure: 0, most: steps_within(span), steps: 0 }
    }

    /// None.
    pub(crate) fn none() -> Limit {
        Limit { until: None, is_grace: false, sure: 0, most: 0, steps: 0 }
    }

    /// The instant; also the last one that virtual time may pass to.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// A step was taken.
    pub(crate) fn count(&mut self) {
        self.steps += 1;
    }

    /// Whether the next step is not to be taken.
    pub(crate) fn is_over(&self, shared: &Shared) -> bool {
        let Some(until) = self.until else { return false };
        if is_seeded(shared) {
            return self.steps >= self.most;
        }
        let now = if self.is_grace { shared.deadlines.now() } else { time::now() };
        now >= until && (self.steps >= self.sure || deadline_after(until, SPARE).is_some_and(|at| now >= at))
    }

    /// Lets all the virtual time pass that is left of a grace.
    pub(crate) fn pass(&self, shared: &Shared) {
        let clock = shared.driven.as_ref().and_then(Driven::virtual_clock);
        if let (Some(clock), Some(until)) = (clock, self.until)
            && shared.deadlines.now() < until
        {
            clock.set(until);
        }
    }
}

/// How many steps count that much.
fn steps_within(span: Duration) -> u64 {
    u64::try_from(span.as_nanos() / STEP.as_nanos()).unwrap_or(u64::MAX)
}

fn is_seeded(shared: &Shared) -> bool {
    shared.driven.as_ref().is_some_and(|driven| driven.seed.is_some())
}
