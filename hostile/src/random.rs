//! The generator of the behaviour suite, and what else a program is drawn by.

#[path = "../../tests/support/random.rs"]
mod generator;

pub(crate) use self::generator::Random;

impl Random {
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
