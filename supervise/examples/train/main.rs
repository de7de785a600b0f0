//! A long job that may be ended at any moment: the colours of a picture, by k-means.
//!
//! ```text
//! cargo run --release -p forebear-supervise --example train -- --dir target/train
//! ```
//!
//! Press Ctrl-C, or end it by `kill -9`, and start it again: it goes on at its newest checkpoint, and comes to the same result to the last bit. `--crash-at 17`
//! ends the process by itself after step 17. `tensorboard --logdir target/train` shows how far it is.
//!
//! On Linux, `--workers 3` has three processes do it, each with other colours to begin with, and prints the best result. They are the workers of one agent: if one
//! fails, all are started anew, and go on at their checkpoints. `--stuck-at 17` has one of them hang after step 17, once. Its timer expires, the
//! agent kills it, and the result is the same.
//!
//! Exit codes: 0 done, or stopped in order; 1 it could not be done (stderr says why); 2 the arguments are wrong.

mod job;
mod kmeans;
#[cfg(target_os = "linux")]
mod workers;

use std::error::Error as StdError;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use self::job::Part;

/// How the job is done.
#[derive(Parser)]
struct Arguments {
    /// Where checkpoints and summaries are.
    #[arg(long)]
    dir: PathBuf,
    /// A JPEG file.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/hubble_deep_field.jpg"))]
    picture: PathBuf,
    /// How many colours.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=256))]
    colours: u32,
    /// How many steps.
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// Pixels in a block.
    #[arg(long, default_value_t = 1 << 14, value_parser = clap::value_parser!(u32).range(1..))]
    block: u32,
    /// Milliseconds between checkpoints.
    #[arg(long, default_value_t = 200)]
    save_every: u64,
    /// Aborts the process after this step.
    #[arg(long)]
    crash_at: Option<u64>,
    /// How many processes, each with other colours to begin with.
    #[cfg(target_os = "linux")]
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Milliseconds that a step of a worker process may take.
    #[cfg(target_os = "linux")]
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    step_limit: u64,
    /// The last of the worker processes hangs after this step, in the first attempt.
    #[cfg(target_os = "linux")]
    #[arg(long)]
    stuck_at: Option<u64>,
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    forebear_supervise::agent::entry();
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprint!("error: {error}");
        // With its causes.
        let mut cause = error.source();
        while let Some(error) = cause {
            eprint!(": {error}");
            cause = error.source();
        }
        eprintln!();
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode, Box<dyn StdError>> {
    #[cfg(target_os = "linux")]
    if let Some(ended) = workers::run(arguments)? {
        return Ok(ended);
    }

    let ended = job::run(arguments, &Part::whole(arguments))?;
    if !ended.is_complete {
        println!("stopped after step {}: start it again, and it goes on", ended.step);
        return Ok(ExitCode::SUCCESS);
    }
    ended.print();
    Ok(ExitCode::SUCCESS)
}
