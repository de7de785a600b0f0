//! Instants that all processes of this machine agree on: nanoseconds of `CLOCK_MONOTONIC`, which no change of the date moves.
//!
//! An `Instant` is a reading of that clock too, but does not expose its value. So an anchor reads both once, and converts by
//! differences from then on. Time passes between two readings, so the clock is read before *and* after the `Instant`. Conversions use
//! the reading that makes the result later: no timer expires before its time.

use std::time::{Duration, Instant};

use forebear_context::shim::time;
use rustix::time::{ClockId, clock_gettime};

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    instant: Instant,
    /// The clock, read just before `instant`.
    before: u64,
    /// The clock, read just after `instant`.
    after: u64,
}

impl Anchor {
    /// Reads both clocks, a few times, and keeps the closest reading.
    pub(crate) fn new() -> Anchor {
        let read = |_| {
            let before = now();
            let instant = time::now();
            Anchor { instant, before, after: now() }
        };
        let first = read(0);
        (1..5).map(read).fold(first, |best, other| {
            if other.after - other.before < best.after - best.before { other } else { best }
        })
    }

    /// The clock's value at `at`, or a few nanoseconds later. Zero for instants before the clock began.
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        let nanos = |distance: Duration| u64::try_from(distance.as_nanos()).unwrap_or(u64::MAX);
        match at.checked_duration_since(self.instant) {
            Some(later) => self.after.saturating_add(nanos(later)),
            None => self.after.saturating_sub(nanos(self.instant.saturating_duration_since(at))),
        }
    }

    /// The instant at which the clock shows `nanos`, or a few nanoseconds later. `None` if `Instant`
    /// cannot represent it.
    pub(crate) fn instant(&self, nanos: u64) -> Option<Instant> {
        match nanos.checked_sub(self.before) {
            Some(later) => self.instant.checked_add(Duration::from_nanos(later)),
            None => Some(
                self.instant.checked_sub(Duration::from_nanos(self.before - nanos)).unwrap_or(self.instant),
            ),
        }
    }
}

/// The clock's value.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock starts at zero when the machine boots.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_never_earlier_and_hardly_later() {
        let (there, back) = (Anchor::new(), Anchor::new());
        let now = Instant::now();
        for far in [0, 1, 1_000, 1_000_000_000, 3_600_000_000_000].map(Duration::from_nanos) {
            let came = back.instant(there.nanos(now + far)).unwrap();
            assert!(came >= now + far);
            assert!(came - (now + far) < Duration::from_secs(1), "{came:?}");
        }
    }

    #[test]
    fn what_is_out_of_reach_is_as_far_as_can_be_said() {
        let anchor = Anchor::new();
        let mut last = Instant::now();
        while let Some(further) = last.checked_add(Duration::from_secs(1 << 40)) {
            last = further;
        }
        assert_eq!(anchor.nanos(last), u64::MAX);
        assert!(anchor.instant(0).unwrap() <= Instant::now());
    }
}
