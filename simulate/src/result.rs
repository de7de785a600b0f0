//! What a run gave.

use crate::costs::Nanos;

/// How often things happened, over all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were run.
    pub run: u64,
    /// Requests that were run by another worker than their maker's; roots do not count.
    pub moved: u64,
    /// Times that something was published,
    pub publications: u64,
    /// and requests published in all.
    pub published: u64,
    /// Times that a worker took from another's shared queue.
    pub steals: u64,
    /// Times that a taker had the lock of a shared queue or of the roots and found that others had been faster.
    pub late: u64,
    /// Times that a worker blocked.
    pub sleeps: u64,
    /// Wake-ups for anyone.
    pub wakes: u64,
    /// Wake-ups by name, of a worker that slept.
    pub named: u64,
    /// Hungry bits that were raised and had been down.
    pub hungry: u64,
    /// Suspended requests that continued.
    pub resumed: u64,
    /// Letters put into a mailbox of another worker.
    pub letters: u64,
}

/// One request's stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamped {
    /// Its root's key and its own place below it.
    pub place: (u64, u64),
    /// When it was made, or came.
    pub known: Nanos,
    /// When its worker had ended what it did before.
    pub before: Nanos,
    /// When it began.
    pub began: Nanos,
}

/// How long a line was in use, and waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// The share of the time, from 0 to 1.
    pub share: f64,
    /// How long one write waited, in nanoseconds.
    pub wait: f64,
    /// How many writes there were.
    pub writes: u64,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// When the last request was over, or the run was broken off.
    pub end: Nanos,
    /// See there.
    pub counts: Counts,
    /// Per request.
    pub stamps: Vec<Stamped>,
    /// Per worker: how many requests it has begun that are no roots.
    pub shares: Vec<u64>,
    /// Per root, in order of age: from its coming until all of it was over.
    pub latencies: Vec<Nanos>,
    /// How long all workers computed for requests.
    pub computed: Nanos,
    /// When all workers had begun something; `None` if one never did.
    pub all_busy: Option<Nanos>,
    /// The lock of the injector,
    pub roots: Load,
    /// the injector's inbox,
    pub inbox: Load,
    /// the word of searchers and sleepers,
    pub signals: Load,
    /// the list of sleepers,
    pub sleepers: Load,
    /// and, of the worker where it was most: the line of its mailbox, attention word and keys,
    pub post: Load,
    /// the lock of its shared queue.
    pub shared_queue: Load,
    /// The word of the group where it was most.
    pub group: Load,
    /// What picks, searches and all else but requests and sleep took of the workers' time, per request run.
    pub overhead: f64,
    /// When each thread outside had submitted its last root, the latest of them.
    pub submitted: Nanos,
}

impl Outcome {
    /// The shares of picks that were inverted: against something of an older root, and only within the root. As in the bench
    /// `inversions`.
    #[must_use]
    pub fn inversions(&self) -> (f64, f64) {
        let mut known: Vec<Nanos> = self.stamps.iter().map(|pick| pick.known).collect();
        known.sort_unstable();
        let rank = |at: Nanos| known.partition_point(|other| *other < at);
        // The first in the order among those known up to a rank that were picked by looks not older than the sweep has come:
        // a tree of prefixes.
        let mut first = vec![(u64::MAX, u64::MAX); known.len() + 1];
        let mut looks: Vec<&Stamped> = self.stamps.iter().collect();
        looks.sort_unstable_by_key(|pick| pick.before);
        let mut picks = looks.clone();
        picks.sort_unstable_by_key(|pick| std::cmp::Reverse(pick.began));
        let (mut between, mut within) = (0_u64, 0_u64);
        for pick in picks {
            while let Some(other) = looks.pop_if(|other| other.before > pick.began) {
                let mut at = rank(other.known) + 1;
                while at < first.len() {
                    first[at] = first[at].min(other.place);
                    at += at & at.wrapping_neg();
                }
            }
            let (mut at, mut passed) = (rank(pick.before), (u64::MAX, u64::MAX));
            while at > 0 {
                passed = passed.min(first[at]);
                at -= at & at.wrapping_neg();
            }
            if passed.0 < pick.place.0 {
                between += 1;
            } else {
                within += u64::from(passed < pick.place);
            }
        }
        let share = |count: u64| count as f64 / self.stamps.len().max(1) as f64;
        (share(between), share(within))
    }

    /// The mean over the roots.
    #[must_use]
    pub fn mean_latency(&self) -> f64 {
        self.latencies.iter().sum::<Nanos>() as f64 / self.latencies.len().max(1) as f64
    }

    /// The share of the workers' time in which requests computed.
    #[must_use]
    pub fn utilization(&self, workers: usize) -> f64 {
        self.computed as f64 / (self.end.max(1) as f64 * workers as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(place: (u64, u64), known: Nanos, before: Nanos, began: Nanos) -> Stamped {
        Stamped { place, known, before, began }
    }

    #[test]
    fn inversions_are_those_that_comparing_all_with_all_finds() {
        let mut random = crate::random::Random::new(1);
        for _ in 0..50 {
            let stamps: Vec<_> = (0..40)
                .map(|number| {
                    let [known, before] = [random.below(50), random.below(50)];
                    stamped((random.below(4), number), known, before, known.max(before) + random.below(9))
                })
                .collect();
            let passes = |pick: &Stamped, other: &Stamped| {
                other.place < pick.place && other.known < pick.before && other.before > pick.began
            };
            let of = |wanted: &dyn Fn(&Stamped, &Stamped) -> bool| {
                stamps.iter().filter(|pick| stamps.iter().any(|other| wanted(pick, other))).count() as f64
                    / 40.0
            };
            let between = of(&|pick, other| passes(pick, other) && other.place.0 < pick.place.0);
            let all = of(&passes);
            let outcome = Outcome { stamps: stamps.clone(), ..Outcome::default() };
            let (is, within) = outcome.inversions();
            assert!((is - between).abs() < 1e-9 && (is + within - all).abs() < 1e-9, "{stamps:?}");
        }
    }
}
