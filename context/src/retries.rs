//! How often a wait retries before it costs a wake-up.
//!
//! What a thread waits for often comes within the time that a wake-up would take. A thread that still runs then finds it at once. One that sleeps costs its
//! waker a system call, and has to be scheduled again. So a thread that is about to wait retries a few times first, with pauses in between. (Karlin, Manasse, McGeoch and
//! Owicki, *Competitive Randomized Algorithms for Non-Uniform Problems*, 1990, have the bound: a thread that retries for as long as a wake-up takes loses at most as much again.)
//!
//! Retries in vain become fewer: each such wait halves them. When none are left, one wait in sixteen makes an attempt, with one retry first, and with twice as many
//! after each attempt in vain, up to all; then with one again. So a thread for which retries have come to pay off finds that out within eighty waits, and until then an average wait has
//! less than half a retry. A wait that finds something restores all of them.

/// A wait retries so often at most. Not at all in a model: a retry changes nothing.
#[cfg(not(any(loom, shuttle)))]
const MOST: u8 = 16;
#[cfg(any(loom, shuttle))]
const MOST: u8 = 0;

/// When no retries are left, one wait in so many makes an attempt.
const REST: u8 = 16;

/// The retries of the waits in one place, or of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// How often a wait may retry.
    many: u8,
    /// How often the attempt that is under way may; zero if none is.
    attempt: u8,
    /// The same for the next attempt.
    next_attempt: u8,
    /// How many waits are left until then.
    rest: u8,
}

impl Retries {
    /// All of them.
    #[must_use]
    pub const fn new() -> Retries {
        Retries { many: MOST, attempt: 0, next_attempt: 1, rest: REST }
    }

    /// Whether a wait that has retried `tried` times does so again. False ends the retries of this wait: they were in vain.
    pub fn again(&mut self, tried: u8) -> bool {
        if MOST == 0 {
            return false;
        }
        if tried < self.many.max(self.attempt) {
            return true;
        }
        if tried == 0 {
            return self.attempts();
        }
        if self.attempt == 0 {
            self.many /= 2;
        }
        self.attempt = 0;
        false
    }

    /// Whether a wait that may not retry makes an attempt.
    fn attempts(&mut self) -> bool {
        self.rest -= 1;
        if self.rest > 0 {
            return false;
        }
        self.rest = REST;
        self.attempt = self.next_attempt;
        self.next_attempt = if self.attempt == MOST { 1 } else { self.attempt * 2 };
        true
    }

    /// A retry has found what the wait was for.
    pub fn found(&mut self) {
        (self.many, self.attempt, self.next_attempt) = (MOST, 0, 1);
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Waits, and retries in vain. Answers how often.
    fn in_vain(retries: &mut Retries) -> u8 {
        let mut tried = 0;
        while retries.again(tried) {
            tried += 1;
        }
        tried
    }

    #[test]
    fn retries_in_vain_become_fewer_attempts_have_more_and_more_and_one_that_finds_something_restores_all() {
        let mut retries = Retries::new();
        let first: Vec<u8> = (0..6).map(|_| in_vain(&mut retries)).collect();
        assert_eq!(first, [16, 8, 4, 2, 1, 0]);
        let later: Vec<u8> = (0..6 * 16).map(|_| in_vain(&mut retries)).filter(|&tried| tried > 0).collect();
        assert_eq!(later, [1, 2, 4, 8, 16, 1], "one attempt in sixteen waits");
        while !retries.again(0) {}
        retries.found();
        assert_eq!(in_vain(&mut retries), MOST);
    }
}
