//! A build tool: targets, what they need, and commands that make them, as `make` has it.
//!
//! ```text
//! cargo run --release -p build_tool -- --jobs 4 --keep-going --file Buildfile app docs
//! ```
//!
//! Without a file it builds something small in a directory of its own, to show what it does.
//!
//! * Each target is a request that is declared to be after those of what it needs. Until they are over it is a record in a queue, without a stack. If
//!   one fails, it fails too, and says which.
//! * A child process is awaited by a future that owns it: its request is suspended, and a cancel drops the future, which kills the child.
//! * A semaphore bounds how many commands run at a time.
//! * Ctrl-C aborts all requests, and so kills all children.
//! * Requests that are declared can form no cycle, since each names others that exist. A cycle in the file is found, and named, when they are made.

mod buildfile;
mod show;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use forebear::prelude::*;
use forebear::sync::Semaphore;
use forebear::tokio::block_on;
use forebear::{AnyRequest, CancelReason, Error, Outcome, RequestSet};
use tokio::process::Command;
use tokio::runtime::Handle;

use buildfile::{Buildfile, Mistake};

#[derive(Parser)]
struct Args {
    /// The file that says what to build. Without one, a demonstration.
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// How many commands may run at a time.
    #[arg(short, long, default_value_t = 2)]
    jobs: usize,
    /// Build what does not need what has failed.
    #[arg(short, long)]
    keep_going: bool,
    /// What to build; by default the first target of the file.
    targets: Vec<String>,
}

/// How a build goes about it.
#[derive(Clone, Copy)]
struct Terms {
    jobs: usize,
    keep_going: bool,
}

/// A command that has failed.
#[derive(Debug)]
struct CommandFailed {
    command: String,
    status: std::process::ExitStatus,
}

impl fmt::Display for CommandFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` has ended with {}", self.command, self.status)
    }
}

impl std::error::Error for CommandFailed {}

/// What became of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Became {
    Built,
    UpToDate,
    Failed(String),
    Stopped,
}

impl fmt::Display for Became {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Became::Built => f.write_str("built"),
            Became::UpToDate => f.write_str("up to date"),
            Became::Failed(why) => write!(f, "failed: {why}"),
            Became::Stopped => f.write_str("stopped"),
        }
    }
}

/// Builds the targets, and all that they need. What became of each, in the order in which they can be built.
fn build(
    file: &Arc<Buildfile>,
    targets: &[String],
    terms: Terms,
    tokio: &Handle,
) -> Result<Vec<(String, Became)>, Mistake> {
    let order = file.order(targets)?;
    let permits = Arc::new(Semaphore::new(terms.jobs.max(1)));
    let mut made: HashMap<&str, Request<bool>> = HashMap::new();
    for target in &order {
        // What has no rule is a file that is there.
        let needed: Vec<_> = file.needs(target).filter_map(|name| made.get(name).cloned()).collect();
        let (file, permits, tokio) = (Arc::clone(file), Arc::clone(&permits), tokio.clone());
        let name = target.clone();
        let builder = Request::builder().name(target.clone()).after_all(&needed);
        let request = builder.try_build(move || {
            // All of them are over, and have not failed, or this would not run.
            let anew = needed.iter().any(|request| request.get() == Some(&true));
            make(&file, &name, anew, &permits, &tokio)
        });
        made.insert(target, request);
    }
    let all: Vec<Request<bool>> = order.iter().map(|target| made[target.as_str()].clone()).collect();
    drop(made);

    let stopped: Vec<AnyRequest> = all.iter().map(Request::to_untyped).collect();
    let ctrl_c = tokio.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            // The last first: so none is told that what it needs was stopped.
            stopped.iter().rev().for_each(|request| _ = request.abort(CancelReason::Asked));
        }
    });
    let mut running: RequestSet<bool> = all.iter().cloned().collect();
    while let Ok(Some((_, request))) = running.wait_next() {
        if !terms.keep_going && request.wait().is_err() {
            break;
        }
    }
    // What is left is wanted by nobody but the set.
    running.cancel();
    ctrl_c.abort();
    let became = all.iter().map(|request| {
        // Each is over, or has been cancelled just now, and kills its child.
        let _ = request.watch();
        match request.outcome() {
            Some(Outcome::Finished(true)) => Became::Built,
            Some(Outcome::Finished(false)) => Became::UpToDate,
            Some(Outcome::Failed(failure)) => Became::Failed(why(failure)),
            Some(Outcome::Cancelled(_)) | None => Became::Stopped,
        }
    });
    Ok(order.iter().cloned().zip(became.collect::<Vec<_>>()).collect())
}

/// Runs the commands of a target, unless it is newer than all that it needs. True: it did.
fn make(
    file: &Buildfile,
    target: &str,
    anew: bool,
    permits: &Semaphore,
    tokio: &Handle,
) -> Result<bool, Error> {
    if !anew && file.is_up_to_date(target) {
        return Ok(false);
    }
    for command in file.commands(target) {
        let _permit = permits.acquire()?;
        let run = async {
            Command::new("sh").args(["-c", command]).current_dir(file.dir()).kill_on_drop(true).status().await
        };
        // A cancel drops the future here, and with it the child.
        let status = block_on(tokio, run)??;
        if !status.success() {
            return Err(CommandFailed { command: command.to_owned(), status }.into());
        }
    }
    Ok(true)
}

/// What failed first, and with what.
fn why(failure: &forebear::Failure) -> String {
    match failure.path().len() {
        1 => failure.error().to_string(),
        _ => format!("needs `{}`, and {}", failure.request(), failure.error()),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let Some(path) = &args.file else { return show::off(tokio.handle()) };
    let file = Arc::new(Buildfile::read(path)?);
    let targets = if args.targets.is_empty() { file.first().into_iter().collect() } else { args.targets };
    let terms = Terms { jobs: args.jobs, keep_going: args.keep_going };
    let became = build(&file, &targets, terms, tokio.handle())?;
    for (target, became) in &became {
        println!("{target}: {became}");
    }
    let fine = |became: &Became| matches!(became, Became::Built | Became::UpToDate);
    std::process::exit(i32::from(!became.iter().all(|(_, became)| fine(became))));
}
