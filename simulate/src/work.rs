//! What is to be done: requests as lists of steps.

use crate::costs::Nanos;
use crate::random::Random;

/// What a request does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Computes for so long.
    Compute(Nanos),
    /// Makes a child; its place in the order, and what tells the work which it is.
    Spawn(u64, u64),
    /// Makes ready what another worker has made, and what was after this request: the same two numbers.
    Admit(u64, u64),
    /// Lets the request of this number continue, which is suspended or will be.
    Wake(usize),
    /// Suspends until it is woken; returns at once if it was.
    Suspend,
    /// Is over.
    End,
}

/// A root that comes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Nanos,
    /// Which of the threads outside submits it.
    pub by: usize,
    /// What tells the work which it is.
    pub data: u64,
}

/// A load.
pub trait Work {
    /// The roots, in order of their numbers, which is the order of age. Those at 0 stand there before the workers begin to look.
    fn arrivals(&mut self) -> Vec<Arrival>;
    /// Step number `step` of the request that was made with `data`.
    fn step(&mut self, data: u64, step: u32) -> Step;
    /// Whether workers begin awake. Else they have fallen asleep long ago.
    fn awake(&self) -> bool {
        true
    }
}

/// Trees of requests without waits, the same as in the bench `inversions`: four children each, three levels below the root.
#[derive(Debug)]
pub struct Forest {
    /// How many trees.
    pub roots: u64,
    /// The mean time that a request computes, in microseconds.
    pub micros: u64,
    /// How long it is from one root to the next, in the mean; `None`: all are there at first.
    pub gap: Option<f64>,
    /// How many threads outside submit them, in turn.
    pub by: usize,
}

const CHILDREN: u64 = 4;
const LEVELS: u32 = 3;
/// How many requests are in a tree.
pub const EACH: u64 = 85;

const fn size(levels: u32) -> u64 {
    (CHILDREN.pow(levels + 1) - 1) / (CHILDREN - 1)
}

/// As in the bench: looks like chance, and is the same every time.
fn scattered(n: u64) -> u64 {
    let x = (n ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

impl Work for Forest {
    fn arrivals(&mut self) -> Vec<Arrival> {
        let mut due = 0.0;
        (0..self.roots)
            .map(|root| {
                if let Some(gap) = self.gap {
                    let even = (scattered(!root) % (1 << 20)) as f64;
                    due += -((even + 1.0) / f64::from(1 << 20)).ln() * gap;
                }
                Arrival {
                    at: due as Nanos,
                    by: root as usize % self.by,
                    data: (root * EACH) << 4 | u64::from(LEVELS),
                }
            })
            .collect()
    }

    fn step(&mut self, data: u64, step: u32) -> Step {
        let (place, levels) = (data >> 4, (data & 15) as u32);
        match step {
            0 => Step::Compute(scattered(place) % (2 * self.micros * 1000)),
            child if levels > 0 && u64::from(child) <= CHILDREN => {
                let below = place + 1 + u64::from(child - 1) * size(levels - 1);
                Step::Spawn(below % EACH, below << 4 | u64::from(levels - 1))
            }
            _ => Step::End,
        }
    }
}

/// Roots that come by chance, each computing for a time by chance: what textbooks calculate.
#[derive(Debug)]
pub struct Queue {
    /// How many.
    pub roots: u64,
    /// The mean time between two.
    pub gap: f64,
    /// The mean time of one.
    pub mean: f64,
    /// How many threads outside submit them, in turn.
    pub by: usize,
    /// By chance or exactly so long.
    pub by_chance: bool,
    /// The sequence.
    pub random: Random,
}

impl Work for Queue {
    fn arrivals(&mut self) -> Vec<Arrival> {
        let mut at = 0;
        let one = |number: u64| {
            at += if self.by_chance { self.random.exponential(self.gap) } else { self.gap as Nanos };
            let takes = if self.by_chance { self.random.exponential(self.mean) } else { self.mean as Nanos };
            Arrival { at: at.max(1), by: (number % self.by as u64) as usize, data: takes }
        };
        (0..self.roots).map(one).collect()
    }

    fn step(&mut self, data: u64, step: u32) -> Step {
        if step == 0 { Step::Compute(data) } else { Step::End }
    }
}

/// One root makes all the others, which compute for equally long, when all workers are asleep.
#[derive(Debug)]
pub struct Burst {
    /// How many children.
    pub children: u64,
    /// How long each computes.
    pub takes: Nanos,
    /// How long the root computes before each.
    pub between: Nanos,
    /// Whether the workers are awake, and have just looked for work.
    pub awake: bool,
}

impl Work for Burst {
    fn arrivals(&mut self) -> Vec<Arrival> {
        vec![Arrival { at: 1, by: 0, data: u64::MAX }]
    }

    fn step(&mut self, data: u64, step: u32) -> Step {
        if data != u64::MAX {
            return if step == 0 { Step::Compute(self.takes) } else { Step::End };
        }
        let child = u64::from(step / 2);
        match step % 2 {
            _ if child == self.children => Step::End,
            0 => Step::Compute(self.between),
            _ => Step::Spawn(child + 1, child),
        }
    }

    fn awake(&self) -> bool {
        self.awake
    }
}

/// Consumers that are declared to be after one input, and become ready when it ends. All workers but one are asleep then.
#[derive(Debug)]
pub struct Fan {
    /// How many consumers.
    pub consumers: u64,
    /// How long the input computes.
    pub input: Nanos,
    /// How long each consumer computes, or blocks its worker.
    pub takes: Nanos,
    /// Whether the input has run on the worker whose request made the consumers. They then go to its private queue, else to the shared queue of the
    /// worker that ran the input.
    pub at_the_maker: bool,
}

impl Fan {
    /// How long it takes at least: the input, and then an even share of the consumers.
    #[must_use]
    pub fn ideal(&self, workers: usize) -> Nanos {
        self.input + self.consumers.div_ceil(workers as u64) * self.takes
    }
}

impl Work for Fan {
    fn arrivals(&mut self) -> Vec<Arrival> {
        vec![Arrival { at: 1, by: 0, data: u64::MAX }]
    }

    fn step(&mut self, data: u64, step: u32) -> Step {
        match (data, u64::from(step)) {
            (u64::MAX, 0) => Step::Compute(self.input),
            (u64::MAX, one) if one > self.consumers => Step::End,
            (u64::MAX, one) if self.at_the_maker => Step::Spawn(one, one),
            (u64::MAX, one) => Step::Admit(one, one),
            (_, 0) => Step::Compute(self.takes),
            _ => Step::End,
        }
    }

    fn awake(&self) -> bool {
        false
    }
}

/// As many roots as there are workers, all at once, when all workers are asleep.
#[derive(Debug)]
pub struct Roots {
    /// How many.
    pub roots: u64,
    /// How long each computes.
    pub takes: Nanos,
}

impl Work for Roots {
    fn arrivals(&mut self) -> Vec<Arrival> {
        (0..self.roots).map(|_| Arrival { at: 1, by: 0, data: 0 }).collect()
    }

    fn step(&mut self, _: u64, step: u32) -> Step {
        if step == 0 { Step::Compute(self.takes) } else { Step::End }
    }

    fn awake(&self) -> bool {
        false
    }
}

/// Roots that wake each other, for ever. Each computes, resumes another that is drawn at random, and suspends until it is resumed.
#[derive(Debug)]
pub struct Letters {
    /// How many roots.
    pub roots: u64,
    /// How long one computes in between, in the mean.
    pub takes: Nanos,
    /// The sequence.
    pub random: Random,
}

impl Work for Letters {
    fn arrivals(&mut self) -> Vec<Arrival> {
        (0..self.roots).map(|data| Arrival { at: 0, by: 0, data }).collect()
    }

    fn step(&mut self, _: u64, step: u32) -> Step {
        match step % 3 {
            0 => Step::Compute(self.random.exponential(self.takes as f64)),
            1 => Step::Wake(self.random.below(self.roots) as usize),
            _ => Step::Suspend,
        }
    }
}
