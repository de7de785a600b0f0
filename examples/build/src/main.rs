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
//! * A child process is awaited by a future that owns it: its request is suspended, and a cancel drops the future, which kills the child and what it has
//!   started.
//! * A semaphore bounds how many commands run at a time.
//! * Ctrl-C aborts all requests, and so kills all children. So does the first failure, unless `--keep-going` is given.
//! * It ends with 1 if a target was not built or the result cannot be printed, and with 2 if the file or the arguments are wrong.
//! * Requests that are declared can form no cycle, since each names others that exist. A cycle in the file is found, and named, when they are made.

mod buildfile;
mod show;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;

use clap::Parser;
use forebear::prelude::*;
use forebear::sync::Semaphore;
use forebear::tokio::block_on;
use forebear::{AnyRequest, CancelReason, Error, Outcome, RequestSet};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::runtime::Handle;

use buildfile::{Buildfile, Mistake};

#[derive(Parser)]
struct Args {
    /// The file that says what to build. Without one, a demonstration.
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// How many commands may run at a time.
    #[arg(short, long, default_value = "2", requires = "file")]
    jobs: NonZero<usize>,
    /// Build what does not need what has failed.
    #[arg(short, long, requires = "file")]
    keep_going: bool,
    /// What to build; by default the first target of the file.
    #[arg(requires = "file")]
    targets: Vec<String>,
}

/// The options of a build.
#[derive(Clone, Copy)]
struct Terms {
    jobs: NonZero<usize>,
    keep_going: bool,
}

/// A command that has failed.
#[derive(Debug)]
struct CommandFailed {
    command: String,
    status: ExitStatus,
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

/// Standard output is full, for instance.
#[derive(Debug)]
struct CannotPrint(io::Error);

impl fmt::Display for CannotPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot print the result: {}", self.0)
    }
}

impl std::error::Error for CannotPrint {}

/// Prints a line. A reader who has gone away (`| head`) is no failure: the targets are built.
fn print(line: impl fmt::Display) -> Result<(), CannotPrint> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(CannotPrint),
    }
}

/// Builds the targets, and all that they need. Answers what became of each, in an order in which they can be
/// built.
fn build(
    file: &Arc<Buildfile>,
    targets: &[String],
    terms: Terms,
    tokio: &Handle,
) -> Result<Vec<(String, Became)>, Mistake> {
    let order = file.order(targets)?;
    let permits = Arc::new(Semaphore::new(terms.jobs.get().min(Semaphore::MAX_PERMITS)));
    let mut made: HashMap<&str, Request<bool>> = HashMap::new();
    for target in &order {
        // A need without a rule is a file that exists.
        let needed: Vec<_> =
            file.needs(target).iter().filter_map(|name| made.get(name.as_str()).cloned()).collect();
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
            // In reverse order, so that no target fails since one that it needs was stopped.
            stopped.iter().rev().for_each(|request| _ = request.abort(CancelReason::Asked));
        }
    });
    let mut running: RequestSet<bool> = all.iter().cloned().collect();
    while let Ok(Some((_, request))) = running.wait_next() {
        if !terms.keep_going && request.wait().is_err() {
            break;
        }
    }
    // Only the set has demand for the remaining targets.
    running.cancel();
    ctrl_c.abort();
    let became = all.iter().map(|request| {
        // Each is over, or was cancelled just now and kills its child.
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

/// Runs the commands of a target, unless it is up to date. Answers whether it ran them.
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
        // A cancel drops the future here, and with it the child.
        let status = block_on(tokio, run(file.dir(), command))??;
        if !status.success() {
            return Err(CommandFailed { command: command.to_owned(), status }.into());
        }
    }
    Ok(true)
}

/// Runs a command to its end. If this is dropped before, the command is killed, and what it has started.
async fn run(dir: &Path, command: &str) -> std::io::Result<ExitStatus> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(dir).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    let mut child = shell.spawn()?;
    let mut group = KillOnDrop(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let status = child.wait().await;
    group.0 = None;
    status
}

/// The process group of a command that has not been awaited to its end, so its number is in use.
struct KillOnDrop(Option<Pid>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// What failed first, and with what.
fn why(failure: &forebear::Failure) -> String {
    match failure.path().len() {
        1 => failure.error().to_string(),
        _ => format!("needs `{}`, and {}", failure.request(), failure.error()),
    }
}

fn main() -> ExitCode {
    match build_or_show(Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("build_tool: {error}");
            ExitCode::from(if error.is::<CannotPrint>() { 1 } else { 2 })
        }
    }
}

/// Whether all was built.
fn build_or_show(args: Args) -> Result<bool, Box<dyn std::error::Error>> {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let Some(path) = &args.file else { return show::off(tokio.handle()).map(|()| true) };
    let named = |mistake: Mistake| format!("{}: {mistake}", path.display());
    let file = Arc::new(Buildfile::read(path).map_err(named)?);
    let targets = match args.targets.is_empty() {
        true => vec![file.first().ok_or(Mistake::Nothing).map_err(named)?],
        false => args.targets,
    };
    let terms = Terms { jobs: args.jobs, keep_going: args.keep_going };
    let became = build(&file, &targets, terms, tokio.handle()).map_err(named)?;
    for (target, became) in &became {
        print(format_args!("{target}: {became}"))?;
    }
    let fine = |became: &Became| matches!(became, Became::Built | Became::UpToDate);
    Ok(became.iter().all(|(_, became)| fine(became)))
}
