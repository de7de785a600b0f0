//! Tasks that do nothing, on each engine of the cluster, beside the bare transport and the Python rivals. `benches/cluster` builds this, starts what it needs, and runs it.
//!
//! ```text
//! cluster [--row many,alone,killed,growth] [--rounds N] [--quick] [--python FILE] [--redis URL] [--nats URL] [--server PID] [--skipped WHY]... [--fact TEXT]...
//! ```
//!
//! [`rounds`] runs each candidate of a row in a process of its own, one after the other, and all of them again in each round. It judges by the medians of
//! the rounds' own ratios ([`goals`]). A candidate prints its figures, one a line: `rate 1234`. All times are wall-clock time.
//!
//! | row | the clock runs |
//! |---|---|
//! | `many` | from before the first of n tasks is scheduled, until the results of all are in the scheduling process |
//! | `alone` | from before a task is scheduled, until its result is there; nothing else is scheduled |
//! | `killed` | from before the kill -9 of the worker that runs a task, until the first line of that task runs on another worker |
//! | `growth` | as `many` and `alone`, with 1, 10, 100 and 1,000 workers of one slot |
//!
//! In `many` and `alone` each candidate has two workers, of 16 slots each: so many tasks are in transit to a worker or run there. Dask has no such
//! limit, and queues by itself.

mod bare;
mod candidates;
mod engines;
mod figures;
mod goals;
#[cfg(feature = "nats")]
mod jetstream;
mod killed;
mod rounds;
mod tasks;

use std::process::ExitCode;

/// Prints why the program ends early to standard error.
type Whether<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    forebear_cluster::worker::entry(tasks::known());
    #[cfg(feature = "nats")]
    forebear_cluster_nats::worker::entry(tasks::known());
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["echo", at_once] => bare::echo(at_once),
        #[cfg(feature = "nats")]
        ["consume", prefix, kept] => jetstream::consume(prefix, kept == "kept"),
        #[cfg(feature = "nats")]
        ["join", url, job, workers] => engines::join(url, job, workers),
        ["one", row, candidate, load] => candidates::run(row, candidate, load),
        _ => match rounds::Options::parse(args.iter().cloned()) {
            Ok(options) => return rounds::run(&options),
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::from(2)
        }
    }
}
