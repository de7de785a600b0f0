//! Whether the other side of a channel may be at work elsewhere, and how long an operation then pauses between its retries. See the head of `core/waiting.rs`.

use std::time::Duration;

use forebear_context::context::Context;
use forebear_context::shim::hint;

/// Pauses between two retries of a sender. They are long, so that there is room for several items
/// at once.
pub(super) const ROOM: u32 = 16;
/// The same for a receiver.
pub(super) const SOMETHING: u32 = 4;

/// An operation with a shorter time-out than this waits at once.
const HURRY: Duration = Duration::from_millis(1);

/// The number of no thread.
pub(super) const NOBODY: u32 = u32::MAX;

/// The number of the thread on which a context runs, as far as a hint needs it.
#[inline(always)]
pub(super) fn on_of(context: &Context) -> u32 {
    context.place().get() as u32
}

/// Whether a caller on the thread `on` may find by a retry what it waits for: whether `other`, the thread of the other side, is another one.
pub(super) fn is_elsewhere(on: u32, other: u32) -> bool {
    other != on && other != NOBODY
}

/// Whether a wait of at most this length is too short to try again first.
pub(super) fn is_in_a_hurry(timeout: Option<Duration>) -> bool {
    timeout.is_some_and(|timeout| timeout < HURRY)
}

/// Between two retries.
pub(super) fn pause(pauses: u32) {
    (0..pauses).for_each(|_| hint::spin_loop());
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_its_own_worker_or_for_nobody_yet_does_not_retry() {
        assert!(!is_elsewhere(8, NOBODY));
        assert!(!is_elsewhere(8, 8));
        assert!(is_elsewhere(8, 7));
    }
}
