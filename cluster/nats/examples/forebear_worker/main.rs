//! A worker of a job that another machine coordinates, as a program to copy: `tasks.rs` is what it shares with the coordinator, and the only file to change.
//!
//! ```text
//! forebear_worker --server tls://queue.example.org:4222 --job render --user worker --password-file worker.password --authority authority.pem
//! ```
//!
//! SIGTERM has it end what it has and leave; a second one ends it at once. Exit codes: 0 it has left, 1 it could not work (stderr says why), 2 the arguments are wrong.

mod tasks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use clap::Parser;
use forebear_cluster_nats::worker::{self, WorkerOptions};

/// Run tasks of a job that another machine coordinates.
#[derive(Debug, Parser)]
#[command(name = "forebear_worker", version)]
struct Flags {
    /// The nats-server, or several of one cluster with commas between them.
    #[arg(long, value_name = "URL")]
    server: String,
    /// The name of the job on the server.
    #[arg(long, value_name = "NAME")]
    job: String,
    /// The name of this worker. Each process has another one if not given. A worker waits while another one of its name is there.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run so many tasks at once: as many as there are processors if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: Option<u32>,
    /// End when no coordinator has answered for so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u32,
    /// Keep so many MiB of stored values that tasks have read.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    cache: u32,
    /// The file with a JWT and its key.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_file", "user"])]
    credentials: Option<PathBuf>,
    /// The file with the token.
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    token_file: Option<PathBuf>,
    /// The user at the server.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// The file with the user's password.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// The file with the certificate that has signed the server's.
    #[arg(long, value_name = "FILE")]
    authority: Option<PathBuf>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let ended = options(&flags)
        .and_then(|options| worker::run(options, tasks::known()).map_err(|error| error.to_string()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn options(flags: &Flags) -> Result<WorkerOptions, String> {
    let slots =
        flags.slots.map_or_else(|| available_parallelism().map_or(1, usize::from), |slots| slots as usize);
    let mut options = WorkerOptions::new(&flags.server, &flags.job)
        .slots(slots)
        .patience(Duration::from_secs(flags.patience.into()))
        .cache(u64::from(flags.cache) << 20);
    if let Some(name) = &flags.name {
        options = options.name(name);
    }
    if let Some(file) = &flags.credentials {
        options = options.credentials(file);
    }
    if let Some(file) = &flags.token_file {
        options = options.token(&secret(file)?);
    }
    if let (Some(user), Some(file)) = (&flags.user, &flags.password_file) {
        options = options.user(user, &secret(file)?);
    }
    if let Some(file) = &flags.authority {
        options = options.tls(file);
    }
    Ok(options)
}

/// What is in a file, without the end of its line.
fn secret(file: &Path) -> Result<String, String> {
    let text =
        fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    Ok(text.trim_end().to_owned())
}
