//! What a claim is made of.

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
    /// At most so many times what another runner of the row had in the same run.
    Times(f64, &'static str),
    /// At most this.
    AtMost(f64),
    /// It comes to its end.
    Completes,
}

/// What forebear must reach in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// What is compared.
    pub measure: Measure,
    /// With what.
    pub bound: Bound,
}

impl Goal {
    /// At most `times` as long per operation as `rival`.
    #[must_use]
    pub const fn times(times: f64, rival: &'static str) -> Goal {
        Goal { measure: Measure::PerOp, bound: Bound::Times(times, rival) }
    }
}

/// A runtime and the load it gets in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runner {
    /// A name that [`rivals::start`](crate::rivals::start) knows.
    pub name: &'static str,
    /// Its work: the same for all, or smaller for the slow.
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
    /// Who is measured.
    pub runners: &'static [Runner],
    /// What is judged.
    pub goals: &'static [Goal],
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
