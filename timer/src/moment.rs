//! Instants as numbers, in the same order and without loss: what a wheel takes digits from.
//!
//! A **moment** is an instant's distance from the wheel's *origin*: whole seconds, shifted by 30 bits, and nanoseconds below. That
//! needs no multiplication and no division; that of 2^30 values only 10^9 occur does not matter to code that only compares and takes digits.
//!
//! A distance is less than 2^64 seconds, hence its code less than 2^94. It is added to 2^94 for instants after the origin and taken away
//! from it for those before. So every `Instant` there is has a moment, no two have the same, and the order is that of time: there is
//! nothing that is too far off.

use std::time::{Duration, Instant};

/// See the module head.
pub(crate) type Moment = u128;

/// How many bits of a moment are used.
pub(crate) const BITS: u32 = 95;

const NANOS: u32 = 30;
const ORIGIN: Moment = 1 << 94;

/// The moment of `at`, seen from `origin`.
#[inline]
pub(crate) fn moment(origin: Instant, at: Instant) -> Moment {
    match at.checked_duration_since(origin) {
        Some(after) => ORIGIN + code(after),
        None => ORIGIN - code(origin.saturating_duration_since(at)),
    }
}

/// The instant of a moment that [`moment`] gave, from the same origin.
#[inline]
pub(crate) fn instant(origin: Instant, moment: Moment) -> Instant {
    if moment >= ORIGIN { origin + distance(moment - ORIGIN) } else { origin - distance(ORIGIN - moment) }
}

#[inline]
fn code(distance: Duration) -> Moment {
    Moment::from(distance.as_secs()) << NANOS | Moment::from(distance.subsec_nanos())
}

#[inline]
fn distance(code: Moment) -> Duration {
    Duration::new((code >> NANOS) as u64, code as u32 & ((1 << NANOS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instant_comes_back_from_its_moment_and_their_order_is_that_of_time() {
        let origin = Instant::now();
        let mut last = origin;
        while let Some(further) = last.checked_add(Duration::from_secs(1 << 40)) {
            last = further;
            if let Some(doubled) = last.checked_add(last - origin) {
                last = doubled;
            }
        }
        let second = Duration::from_secs(1);
        let distances = [1, 999_999_999, 1_000_000_000, 1_000_000_001, 1 << 40].map(Duration::from_nanos);
        let mut all = vec![origin, last, last - Duration::from_nanos(1), last - second];
        all.extend(distances.iter().map(|far| origin + *far));
        all.extend(distances.iter().filter_map(|far| origin.checked_sub(*far)));
        all.sort();
        let moments: Vec<_> = all.iter().map(|at| moment(origin, *at)).collect();
        assert!(moments.is_sorted_by(|one, next| one < next));
        assert!(moments.iter().all(|moment| moment >> BITS == 0));
        assert!(moments.iter().map(|moment| instant(origin, *moment)).eq(all));
    }
}
