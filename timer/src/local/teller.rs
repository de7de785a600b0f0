//! Which events about processes the hooks get, and how many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use forebear_context::error::internal::{ShownName, drop_contained};
use forebear_context::shim::time;

use super::{LocalEvent, Refusal};

/// Refusals that are reported in a second.
const MOST: u32 = 32;

/// Reports events about processes to the hooks.
pub(crate) type Tell = Box<dyn FnMut(&LocalEvent<'_>) + Send>;

/// Tells the hook, and not more than it can bear.
pub(super) struct Teller {
    name: String,
    hooks: Vec<Tell>,
    /// The second that is counted in.
    since: Instant,
    reported: u32,
    suppressed: u64,
}

impl Teller {
    pub(super) fn new(name: String, hooks: Vec<Tell>) -> Teller {
        Teller { name, hooks, since: time::now(), reported: 0, suppressed: 0 }
    }

    pub(super) fn tell(&mut self, event: &LocalEvent<'_>) {
        let quiet =
            matches!(event, LocalEvent::Joined { .. } | LocalEvent::Closed { .. } | LocalEvent::Ended { .. });
        if self.hooks.is_empty() && !quiet {
            eprintln!("forebear: {}: {event}", ShownName(&self.name));
        }
        for hook in &mut self.hooks {
            // A hook that panics has had its say through the panic hook.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| hook(event))) {
                drop_contained(payload);
            }
        }
    }

    /// Anybody can bring a refusal about, as often as it likes.
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
        self.tell(&LocalEvent::Refused { pid: pid.map(i32::unsigned_abs), why, suppressed });
    }
}
