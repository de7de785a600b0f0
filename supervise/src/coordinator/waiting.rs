//! How a join waits: the other side of the races that the head of [`super::board`] names.

use std::time::{Duration, Instant};

use forebear::{Cancelled, TimeoutError};

use super::board::{Board, Join};

/// A join that waits for stragglers advances the tick so many times, so that the report says when they have last asked.
const STEPS: u32 = 64;

impl Board {
    /// Waits until no member of the join is left, or the grace has passed.
    pub(super) fn wait_for(&self, join: &Join, grace: Duration) -> Result<(), Cancelled> {
        let begun = Instant::now();
        let step = (grace / STEPS).max(Duration::from_millis(1));
        loop {
            #[cfg(not(mutant = "join_resets_late"))]
            join.wake.reset();
            let look = self.look(join);
            #[cfg(mutant = "join_resets_late")]
            join.wake.reset();
            if look.left == 0 {
                return Ok(());
            }
            let Some(stop) = look.stop else {
                join.wake.wait()?;
                continue;
            };
            let left = left_of(grace, begun, stop, Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            match join.wake.wait_timeout(left.min(step)) {
                Ok(()) => {}
                Err(TimeoutError::TimedOut) => self.advance(),
                Err(TimeoutError::Cancelled) => return Err(Cancelled::new()),
            }
        }
    }
}

/// What is left of the grace, which begins with the stop, or with a join that begins after it.
fn left_of(grace: Duration, begun: Instant, stop: Instant, now: Instant) -> Duration {
    match stop.max(begun).checked_add(grace) {
        Some(end) => end.saturating_duration_since(now),
        // A time that is no instant is farther off than any thread waits.
        None => Duration::MAX,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_grace_begins_with_the_stop_or_with_a_later_join() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let left = |begun: u32, stop: u32, now: u32| {
            left_of(second * 10, start + second * begun, start + second * stop, start + second * now)
        };
        assert_eq!(left(0, 100, 101), second * 9, "the join had waited before the stop");
        assert_eq!(left(100, 0, 101), second * 9, "the stop came before the join");
        assert_eq!(left(0, 0, 10), Duration::ZERO);
        assert_eq!(left_of(Duration::MAX, start, start, start), Duration::MAX);
    }
}
