//! How often the callers of one side retry before they wait. See the head of `core/waiting.rs`.

use std::time::Duration;

use forebear_context::context::Context;
use forebear_context::shim::hint;

/// So often at most. None in a model: a look changes nothing.
#[cfg(not(any(loom, shuttle)))]
const LOOKS: u8 = 16;
#[cfg(any(loom, shuttle))]
const LOOKS: u8 = 0;

/// Pauses between two retries of a sender. They are long, so that there is room for several items
/// at once.
pub(super) const ROOM: u32 = 16;
/// The same for a receiver.
pub(super) const SOMETHING: u32 = 4;

/// After retries in vain, only one wait in so many retries.
const TRIES: u8 = 16;

/// An operation with a shorter time-out than this waits at once.
const HURRY: Duration = Duration::from_millis(1);

/// The number of no thread.
pub(super) const NOBODY: u32 = u32::MAX;

/// The number of the thread on which a context runs, as far as a hint needs it.
#[inline(always)]
pub(super) fn on_of(context: &Context) -> u32 {
    context.place().get() as u32
}

/// See the module head. Under the channel's lock.
#[derive(Debug)]
pub(super) struct Retries {
    /// How often a wait may look.
    many: u8,
    /// How many waits may not look before one tries again.
    rest: u8,
}

impl Retries {
    pub(super) const fn new() -> Retries {
        Retries { many: LOOKS, rest: TRIES }
    }

    /// Whether a caller on the thread `on` that has retried `looked` times retries again before it waits. `other` is the thread of the
    /// other side.
    pub(super) fn again(&mut self, on: u32, other: u32, looked: u8) -> bool {
        if other == on || other == NOBODY || LOOKS == 0 {
            return false;
        }
        if looked < self.many {
            return true;
        }
        if looked > 0 {
            // In vain.
            self.many /= 2;
        } else {
            self.rest -= 1;
            if self.rest == 0 {
                (self.rest, self.many) = (TRIES, 1);
                return true;
            }
        }
        false
    }

    /// One that has looked has found what it wanted.
    pub(super) fn found(&mut self) {
        self.many = LOOKS;
    }
}

/// Whether a wait of at most this length is too short to try again first.
pub(super) fn is_in_a_hurry(timeout: Option<Duration>) -> bool {
    timeout.is_some_and(|timeout| timeout < HURRY)
}

/// Between two looks.
pub(super) fn pause(pauses: u32) {
    (0..pauses).for_each(|_| hint::spin_loop());
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Waits, and looks in vain. Answers how often.
    fn in_vain(retries: &mut Retries, other: u32) -> u8 {
        let mut looked = 0;
        while retries.again(8, other, looked) {
            looked += 1;
        }
        looked
    }

    #[test]
    fn who_waits_for_its_own_worker_or_for_nobody_yet_does_not_look() {
        let mut retries = Retries::new();
        assert_eq!(in_vain(&mut retries, NOBODY), 0);
        assert_eq!(in_vain(&mut retries, 8), 0);
        assert_eq!(in_vain(&mut retries, 7), LOOKS);
    }

    #[test]
    fn looks_that_are_in_vain_become_fewer_and_one_that_finds_something_restores_them() {
        let mut retries = Retries::new();
        let first: Vec<u8> = (0..6).map(|_| in_vain(&mut retries, 7)).collect();
        assert_eq!(first, [16, 8, 4, 2, 1, 0]);
        let later: u32 = (0..160).map(|_| u32::from(in_vain(&mut retries, 7))).sum();
        assert_eq!(later, 10, "one try in sixteen waits");
        while !retries.again(8, 7, 0) {}
        retries.found();
        assert_eq!(in_vain(&mut retries, 7), LOOKS);
    }
}
