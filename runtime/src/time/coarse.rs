//! The coarse time: since when a stack waits, nearly, without a reading of the clock.
//!
//! A worker reads the clock when it goes to sleep, when it wakes up, and when it answers a dump; each reading is its *tick*. A stack that
//! parks copies the tick of its worker: one load and one store. So the wait began after that reading, and before the worker's next one. A
//! dump therefore says for how long *at most* a wait has gone on. The error is the time for which the worker had been busy when the
//! wait began: nothing next to the age of a wait that hangs.
//!
//! Ticks are nanoseconds since an instant that the process has one of. 0 is no tick.

use std::time::{Duration, Instant};

use forebear_context::lineage::epoch;

use crate::shared::Shared;

/// The tick of now, on the clock that limits the runtime's waits: the virtual one, if it has one, else the system's.
pub(crate) fn now(shared: &Shared) -> u64 {
    let now = shared.driven.as_ref().and_then(|driven| driven.virtual_now());
    of(now.unwrap_or_else(forebear_context::shim::time::now))
}

fn of(at: Instant) -> u64 {
    let since = at.saturating_duration_since(epoch());
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// How long ago that was.
pub(crate) fn between(tick: u64, now: u64) -> Option<Duration> {
    (tick != 0).then(|| Duration::from_nanos(now.saturating_sub(tick)))
}
