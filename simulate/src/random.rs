//! Chance that is the same for the same seed.

/// A sequence of numbers (xorshift with a multiplication).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = random.next());
        random
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than `n`, evenly.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Exponentially distributed around `mean`.
    pub fn exponential(&mut self, mean: f64) -> u64 {
        let even = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        (-even.ln() * mean) as u64
    }
}
