//! The list of a worker's coroutines (K5).

use std::ptr::NonNull;

use super::Coroutine;

/// The coroutines of one worker that are built and not dismantled. One goes without a look at another, whose stack nobody may have
/// touched for long: its place is left empty for the next.
pub(crate) struct CoroutineList {
    /// A coroutine; or nothing, and the number of the next such place in an odd address.
    places: Vec<*const Coroutine>,
    /// The number of an empty place, or [`NONE`].
    empty: usize,
}

impl Default for CoroutineList {
    fn default() -> CoroutineList {
        CoroutineList { places: Vec::new(), empty: NONE }
    }
}

/// The number of no place.
const NONE: usize = usize::MAX >> 1;

impl CoroutineList {
    /// Answers the place where it stands from now on.
    pub(crate) fn add(&mut self, coroutine: NonNull<Coroutine>) -> usize {
        let place = self.empty;
        let Some(there) = self.places.get_mut(place) else {
            self.places.push(coroutine.as_ptr());
            return self.places.len() - 1;
        };
        // Coroutines are aligned, so an odd address is a number.
        self.empty = there.addr() >> 1;
        *there = coroutine.as_ptr();
        place
    }

    pub(crate) fn remove(&mut self, place: usize) {
        self.places[place] = std::ptr::without_provenance(self.empty << 1 | 1);
        self.empty = place;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = NonNull<Coroutine>> {
        let coroutines = self.places.iter().filter(|at| at.addr() & 1 == 0);
        coroutines.filter_map(|at| NonNull::new(at.cast_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coroutine(n: usize) -> NonNull<Coroutine> {
        NonNull::new(std::ptr::without_provenance_mut::<Coroutine>(64 * n + 64)).unwrap()
    }

    #[test]
    fn coroutines_are_listed_each_once_and_their_places_are_used_again() {
        const MANY: usize = 1_000;
        let mut listed = CoroutineList::default();
        for round in 0..4 {
            let mut there: Vec<_> = (0..MANY).map(|n| (listed.add(coroutine(n)), n)).collect();
            match round {
                // The first come goes first, the last, or now this one and now that.
                0 => {}
                1 => there.reverse(),
                _ => there.sort_by_key(|(_, n)| n.wrapping_mul(0x9e37_79b9) % MANY),
            }
            let gone: Vec<_> = there.drain(..MANY / 2).collect();
            gone.iter().for_each(|(place, _)| listed.remove(*place));
            // Some come again.
            there.extend(gone[..MANY / 10].iter().map(|&(_, n)| (listed.add(coroutine(n)), n)));
            let mut found: Vec<_> = listed.iter().collect();
            let mut wanted: Vec<_> = there.iter().map(|(_, n)| coroutine(*n)).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
            there.iter().for_each(|(place, _)| listed.remove(*place));
            assert_eq!((listed.iter().count(), listed.places.len()), (0, MANY));
        }
    }
}
