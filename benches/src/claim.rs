//! The parts of a claim.

use crate::load::Load;

/// What a goal bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Nanoseconds an operation.
    PerOp,
    /// One of [`Run::figures`](crate::Run::figures), by name.
    Figure(&'static str),
}

/// How a goal bounds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// At most so many times the figure of another runner of the row in the same run.
    Times(f64, &'static str),
    /// At most this.
    AtMost(f64),
    /// It comes to its end.
    Completes,
    /// The slowest of [`PROCESSES`] processes takes at most so many times their median.
    Spread(f64),
}

/// How many processes a [`Bound::Spread`] needs: a median of few hides a state that one process in ten is in.
pub const PROCESSES: usize = 30;

/// The name of the second driver of forebear, [`rivals::natural`](crate::rivals::natural).
pub const NATURAL: &str = "natural";

/// How much slower than forebear as the benches drive it the second driver may be.
const NATURAL_AT_MOST: f64 = 1.3;

/// What forebear must reach in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Which driver of forebear it is for.
    pub of: &'static str,
    /// What is compared.
    pub measure: Measure,
    /// With what.
    pub bound: Bound,
}

impl Goal {
    /// At most `times` as long per operation as `rival`.
    #[must_use]
    pub const fn times(times: f64, rival: &'static str) -> Goal {
        Goal::new(Measure::PerOp, Bound::Times(times, rival))
    }

    /// A goal of forebear as the benches drive it.
    #[must_use]
    pub const fn new(measure: Measure, bound: Bound) -> Goal {
        Goal { of: "forebear", measure, bound }
    }
}

/// A runtime and its load in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runner {
    /// A name that [`rivals::start`](crate::rivals::start) knows.
    pub name: &'static str,
    /// Its work: the same for all, or smaller for slow runtimes.
    pub load: Load,
}

/// Shorthand for a [`Runner`].
#[must_use]
pub const fn runner(name: &'static str, load: Load) -> Runner {
    Runner { name, load }
}

/// One table: several runtimes, one kind of work.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Unique within its claim.
    pub name: &'static str,
    /// The numbers of workers for which the row is measured.
    pub workers: &'static [usize],
    /// The candidates that are measured.
    pub runners: &'static [Runner],
    /// What is judged.
    pub goals: &'static [Goal],
}

impl Row {
    /// The runners of the row, with the second driver of forebear behind the first where its load has a natural form.
    #[must_use]
    pub fn all_runners(&self) -> Vec<Runner> {
        let mut all = self.runners.to_vec();
        if let Some(at) = all.iter().position(|runner| runner.name == "forebear")
            && self.has_natural()
        {
            all.insert(at + 1, runner(NATURAL, all[at].load));
        }
        all
    }

    /// The goals of the row, with those of the second driver: at most 1.3 times the first, and ahead of each rival that a goal of the
    /// first names.
    #[must_use]
    pub fn all_goals(&self) -> Vec<Goal> {
        let mut all = self.goals.to_vec();
        if self.has_natural() {
            let natural = |times, rival| Goal { of: NATURAL, ..Goal::times(times, rival) };
            all.push(natural(NATURAL_AT_MOST, "forebear"));
            all.extend(self.goals.iter().filter_map(|goal| match (goal.measure, goal.bound) {
                (Measure::PerOp, Bound::Times(_, rival)) => Some(natural(1.0, rival)),
                (_, Bound::Spread(_)) => Some(Goal { of: NATURAL, ..*goal }),
                _ => None,
            }));
        }
        all
    }

    /// How many processes of each runner the verdict on the row needs.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let spread = self.goals.iter().any(|goal| matches!(goal.bound, Bound::Spread(_)));
        if spread { PROCESSES } else { crate::report::ROUNDS }
    }

    /// False where two builds of one driver are compared, where no work is done, and where curves are
    /// drawn.
    fn has_natural(&self) -> bool {
        let plain = |runner: &Runner| {
            runner.name != crate::rivals::UNORDERED
                && !matches!(runner.load, Load::Idle { .. } | Load::Growth { .. } | Load::Wake { .. })
        };
        self.runners.iter().all(plain)
    }
}

/// One line of what forebear promises.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The bench's name, as in the table of goals.
    pub name: &'static str,
    /// What an operation is, in words.
    pub op: &'static str,
    /// The name of the unit, and how many nanoseconds it has.
    pub unit: (&'static str, f64),
    /// The tables.
    pub rows: &'static [Row],
}
