//! Calls the hooks for events about processes. Limits how many refusals it reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebear_context::error::internal::{ShownName, drop_contained};
use forebear_context::shim::time;

use super::{LocalEvent, Refusal};

/// At most so many refusals are reported in a second.
const MOST: u32 = 32;

/// Reports events about processes to the hooks.
pub(crate) type EventHook = Box<dyn FnMut(&LocalEvent<'_>) + Send>;

/// Reports events to the hooks, and counts the refusals that it suppresses.
pub(super) struct Reporter {
    name: String,
    hooks: Vec<EventHook>,
    /// The beginning of the second whose refusals are counted.
    since: Instant,
    reported: u32,
    suppressed: u64,
}

impl Reporter {
    pub(super) fn new(name: String, hooks: Vec<EventHook>) -> Reporter {
        Reporter { name, hooks, since: time::now(), reported: 0, suppressed: 0 }
    }

    pub(super) fn report(&mut self, event: &LocalEvent<'_>) {
        let quiet =
            matches!(event, LocalEvent::Joined { .. } | LocalEvent::Closed { .. } | LocalEvent::Ended { .. });
        if self.hooks.is_empty() && !quiet {
            eprintln!("forebear: {}: {event}", ShownName(&self.name));
        }
        for hook in &mut self.hooks {
            // The panic hook has reported it.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| hook(event))) {
                drop_contained(payload);
            }
        }
    }

    /// Reports a refusal. Any process can cause refusals at any rate, so at most [`MOST`] a second
    /// are reported.
    pub(super) fn refused(&mut self, pid: Option<i32>, why: Refusal) {
        let now = time::now();
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.reported) = (now, 0);
        }
        if self.reported == MOST {
            self.suppressed += 1;
            return;
        }
        self.reported += 1;
        let suppressed = std::mem::take(&mut self.suppressed);
        self.report(&LocalEvent::Refused { pid: pid.map(i32::unsigned_abs), why, suppressed });
    }
}
