//! When dumps of a runtime ended, and which numbers of requests were drawn by then: how old a request is at least.
//!
//! No birth reads a clock. A request draws its number when a dump first lists it, or the program first asks for it. Numbers count up in the process.
//! So a request whose number was drawn before a dump ended is older than that end.

use std::sync::PoisonError;

use forebear_context::shim::Mutex;

use crate::record::any::RequestId;

/// So many ends are remembered. Then each new one takes the place of the one whose loss changes ages least in proportion.
const KEPT: usize = 64;

/// The ends of a runtime's dumps, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sightings(Mutex<Vec<Sighting>>);

/// The end of one dump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    /// No smaller number is drawn from then on.
    next: RequestId,
    /// On the clock of [`crate::time::coarse`].
    tick: u64,
}

impl Sightings {
    /// A dump ends. `now` reads the clock.
    pub(crate) fn note(&self, now: impl FnOnce() -> u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = RequestId::undrawn();
        // The clock second: what had a number by the look above was there before this tick.
        let tick = now();
        if all.len() == KEPT {
            let least = least_loss(&all, tick);
            all.remove(least);
        }
        all.push(Sighting { next, tick });
    }

    /// All that are remembered.
    pub(crate) fn all(&self) -> Vec<Sighting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Which of these is missed least at this tick; not the first, nor the last. A request that came after the one before it has the age of the one behind it from
/// then on.
fn least_loss(all: &[Sighting], now: u64) -> usize {
    let age = |at: usize| u128::from(now.saturating_sub(all[at].tick).max(1));
    let is_less = |one: usize, other: usize| age(one - 1) * age(other + 1) < age(other - 1) * age(one + 1);
    (2..all.len() - 1).fold(1, |least, at| if is_less(at, least) { at } else { least })
}

/// The tick of the first of these by whose end this number was drawn; 0: there is none.
pub(crate) fn first_tick(all: &[Sighting], id: RequestId) -> u64 {
    all.get(all.partition_point(|sighting| sighting.next <= id)).map_or(0, |first| first.tick)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_as_old_as_the_first_end_behind_it_also_when_ends_were_forgotten() {
        let sightings = Sightings::default();
        let (mut ids, mut clock) = (Vec::new(), 0);
        for _ in 0..40 * KEPT as u64 {
            ids.push(RequestId::next());
            clock += 10;
            sightings.note(|| clock);
        }
        let all = sightings.all();
        assert!(all.len() <= KEPT);
        let last = RequestId::next();
        assert_eq!(first_tick(&all, last), 0, "no end came behind it");
        for (n, id) in ids.iter().enumerate() {
            let (drawn, known) = (10 * (n as u64 + 1), first_tick(&all, *id));
            assert!(known >= drawn, "older than it is");
            assert!(
                (clock - known) * 3 + 20 >= (clock - drawn) * 2,
                "{n}: {known}, drawn at {drawn} of {clock}"
            );
        }
        assert_eq!(first_tick(&all, ids[0]), 10);
    }
}
