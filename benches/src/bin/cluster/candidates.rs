//! The candidates of each row, and how much work each of them gets.
//!
//! A candidate has a load that takes it a second or so: the slow ones get fewer tasks. `quick` is a tenth of that.

use crate::{Whether, bare, engines, killed};

/// The workers of `many` and `alone`.
pub(crate) const WORKERS: usize = 2;
/// The slots of each.
pub(crate) const SLOTS: usize = 16;
/// The leases, in seconds, for workers whose death only the lease detects.
#[cfg(feature = "nats")]
const LEASES: [u64; 2] = [2, 15];

/// A program that a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Nats,
    /// A Python module, and a Redis beside it if it is Celery.
    Python,
}

/// One line of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) row: &'static str,
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    /// So many tasks, or kills.
    pub(crate) load: u64,
}

const fn of(row: &'static str, name: &'static str, needs: Needs, load: u64) -> Candidate {
    Candidate { row, name, needs, load }
}

/// All of them, in the order of the tables.
pub(crate) const ALL: &[Candidate] = &[
    of("many", "InProcess", Needs::Nothing, 100_000),
    of("many", "LocalProcesses", Needs::Nothing, 100_000),
    of("many", "socket pair", Needs::Nothing, 1_000_000),
    of("many", "socket pair, one message a call", Needs::Nothing, 300_000),
    of("many", "Nats", Needs::Nats, 5_000),
    of("many", "JetStream", Needs::Nats, 10_000),
    of("many", "JetStream, results kept", Needs::Nats, 10_000),
    of("many", "Celery", Needs::Python, 2_000),
    of("many", "Dask", Needs::Python, 2_000),
    of("alone", "InProcess", Needs::Nothing, 20_000),
    of("alone", "LocalProcesses", Needs::Nothing, 20_000),
    of("alone", "socket pair", Needs::Nothing, 50_000),
    of("alone", "Nats", Needs::Nats, 1_000),
    of("alone", "JetStream", Needs::Nats, 2_000),
    of("alone", "JetStream, results kept", Needs::Nats, 2_000),
    of("alone", "Celery", Needs::Python, 500),
    of("alone", "Dask", Needs::Python, 500),
    of("killed", "LocalProcesses", Needs::Nothing, 20),
    of("killed", "Nats", Needs::Nats, 20),
    of("killed", "Nats, unseen, lease 2 s", Needs::Nats, 4),
    of("killed", "Nats, unseen, lease 15 s", Needs::Nats, 1),
    of("growth", "InProcess, 1 worker", Needs::Nothing, 50_000),
    of("growth", "InProcess, 10 workers", Needs::Nothing, 50_000),
    of("growth", "InProcess, 100 workers", Needs::Nothing, 50_000),
    of("growth", "InProcess, 1000 workers", Needs::Nothing, 50_000),
    of("growth", "LocalProcesses, 1 worker", Needs::Nothing, 20_000),
    of("growth", "LocalProcesses, 10 workers", Needs::Nothing, 20_000),
    of("growth", "LocalProcesses, 100 workers", Needs::Nothing, 20_000),
    of("growth", "Nats, 1 worker", Needs::Nats, 1_000),
    of("growth", "Nats, 10 workers", Needs::Nats, 3_000),
    of("growth", "Nats, 100 workers", Needs::Nats, 3_000),
    of("growth", "Nats, 1000 workers", Needs::Nats, 3_000),
];

/// The function of a candidate's process, except those in Python.
pub(crate) fn run(row: &str, candidate: &str, load: &str) -> Whether<()> {
    let n: u64 = load.parse()?;
    let (name, detail) = candidate.split_once(", ").unwrap_or((candidate, ""));
    let first = detail.split(' ').next().unwrap_or_default();
    match (row, name) {
        ("many", "socket pair") => bare::many(n, if detail.is_empty() { SLOTS } else { 1 }),
        ("alone", "socket pair") => bare::alone(n),
        #[cfg(feature = "nats")]
        ("many", "JetStream") => crate::jetstream::many(n, !detail.is_empty()),
        #[cfg(feature = "nats")]
        ("alone", "JetStream") => crate::jetstream::alone(n, !detail.is_empty()),
        ("many", engine) => engines::many(engine, n),
        ("alone", engine) => engines::alone(engine, n),
        ("killed", "LocalProcesses") => killed::local(n),
        #[cfg(feature = "nats")]
        ("killed", "Nats") => match detail.rsplit(' ').nth(1).and_then(|word| word.parse().ok()) {
            Some(lease) if LEASES.contains(&lease) => killed::unseen(n, lease),
            _ => killed::seen(n),
        },
        ("growth", engine) => engines::grown(engine, first.parse()?, n),
        _ => Err(format!("no candidate `{candidate}` in the row `{row}`").into()),
    }
}
