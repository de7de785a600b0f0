//! Random programs whose closures, destructors, hooks and callbacks do their worst, in safe code.
//!
//! ```text
//! hostile [--seed N] [--programs N | --minutes N] [--jobs N] [--grace SECONDS] [--without ID,ID,...] [--tell | --canary]
//! ```
//!
//! A seed draws a program ([`program`]) on one to three runtimes with workers, or one without:
//!
//! * closures that wait, spawn, cancel, panic, forget guards, leave threads, shut runtimes down, and re-enter;
//! * requests that are declared to be after others, that others complete, that are waited for together, hinted, or polled as futures;
//! * watch and one-shot channels, a manual clock whose subscribers run code, and a plain pool with hooks.
//!
//! A child process runs the programs in turn ([`world`], [`act`]); this process watches it. A program fails if
//!
//! * its process ends by a signal, or a sanitizer reports an error,
//! * it does not end within three times the grace of 20 seconds,
//! * a promise that the program checks is broken: a `VIOLATION` line says which ([`value`]),
//! * a panic comes from the library's own files and is none of those that the documentation names.
//!
//! A failing program is run again by itself to see how often it fails. Then it is shrunk: nodes are left out for as long as it still fails
//! ([`shrink`]), with a grace of three seconds. The report says how to run what is left: `--seed N --programs 1 --without …`. In the seeded setting the seed
//! replays the schedule too.
//!
//! `--tell` prints the program instead of running it. `--canary` plants a leak in each program, which must be found. Exit codes: 0 no program failed, 1 one did, 2 the call was wrong.
#![forbid(unsafe_code)]

mod act;
mod child;
mod program;
mod random;
mod shrink;
mod supervise;
mod value;
mod world;

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use program::Program;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    seed: u64,
    programs: u64,
    until: Option<Instant>,
    jobs: usize,
    without: HashSet<u32>,
    tell: bool,
    child: bool,
    canary: bool,
    /// How many seconds a program has for each step of its end.
    grace: u64,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            seed: 0,
            programs: 1_000,
            until: None,
            jobs: std::thread::available_parallelism().map_or(1, |n| n.get()),
            without: HashSet::new(),
            tell: false,
            child: false,
            canary: false,
            grace: 20,
        };
        while let Some(arg) = args.next() {
            match &*arg {
                "--tell" => {
                    options.tell = true;
                    continue;
                }
                "--canary" => {
                    options.canary = true;
                    continue;
                }
                "--child" => {
                    options.child = true;
                    continue;
                }
                _ => {}
            }
            let value = args.next().ok_or(format!("{arg} needs a value"))?;
            let bad = || format!("{arg} {value}: not such a number");
            match &*arg {
                "--seed" => options.seed = value.parse().map_err(|_| bad())?,
                "--programs" => options.programs = value.parse().map_err(|_| bad())?,
                "--minutes" => {
                    let minutes: f64 = value.parse().map_err(|_| bad())?;
                    let time = Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| bad())?;
                    options.until = Some(Instant::now() + time);
                    options.programs = u64::MAX;
                }
                "--grace" => options.grace = value.parse().map_err(|_| bad())?,
                "--jobs" => options.jobs = value.parse().map_err(|_| bad())?,
                "--without" => {
                    for id in value.split(',').filter(|id| !id.is_empty()) {
                        options.without.insert(id.parse().map_err(|_| bad())?);
                    }
                }
                _ => return Err(format!("unknown: {arg}")),
            }
        }
        if options.jobs == 0 || options.programs == 0 || options.grace == 0 {
            return Err("there is nothing to do".into());
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("hostile: {wrong}");
            return ExitCode::from(2);
        }
    };
    if options.tell {
        print!("{}", Program::draw(options.seed, options.without));
        return ExitCode::SUCCESS;
    }
    if options.child {
        child::run(&options);
        return ExitCode::SUCCESS;
    }
    match supervise::supervise(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hostile: {error}");
            ExitCode::from(2)
        }
    }
}
