//! Runs a load for a given time, and judges whether memory grows.
//!
//! ```text
//! soak [--minutes N] [--workers N] [--every SECONDS] [--only PART]... [--leak N]
//! ```
//!
//! The user's threads make, suspend, cancel, time and drop requests in all the ways of [`churn`], or in those with PART in their
//! names. Every few seconds (`--every`, 3) they stop between two rounds, until all their requests are over and the runtime has
//! released the memory that it releases. This is *rest*. Then the program writes a line: resident bytes at work and at rest, allocated
//! bytes, and the runtime's counters.
//!
//! The verdict uses the last two thirds of the readings of resident and allocated memory at rest ([`line`]). A page more for each
//! kept stack, a few dozen, is no growth. At each rest no request may be active, no timer armed, and no resource in use. The exit
//! code is 1 if memory grows, or anything is left over. `--leak` forgets the handle of one request in so many, to show that the
//! verdict fails. The exit code is 2 for an unknown argument.

mod churn;
mod counted;
mod line;

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebear::Runtime;
use forebear_benches::work::Memory;

use churn::Churn;
use counted::Counted;
use line::Line;

#[global_allocator]
static ALLOCATED: Counted = Counted::new();

/// By then all requests must be over, and the memory released.
const COMES_TO_REST: Duration = Duration::from_secs(20);

/// How many stacks each worker may keep after two idle seconds.
const KEPT_STACKS: usize = 16 + 2;

/// A page of a stack.
const PAGE: usize = 4_096;

#[derive(Debug)]
struct Options {
    time: Duration,
    workers: usize,
    every: Duration,
    only: Vec<String>,
    leak: Option<u64>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            time: Duration::from_secs(3_600),
            workers: 2,
            every: Duration::from_secs(3),
            only: Vec::new(),
            leak: None,
        };
        while let Some(arg) = args.next() {
            let value = args.next().ok_or(format!("{arg} needs a value"))?;
            let bad = || format!("{arg} {value}: not such a number");
            match &*arg {
                "--minutes" => {
                    let minutes: f64 = value.parse().map_err(|_| bad())?;
                    options.time = Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| bad())?;
                }
                "--workers" => options.workers = value.parse().map_err(|_| bad())?,
                "--every" => options.every = Duration::from_secs(value.parse().map_err(|_| bad())?),
                "--only" => options.only.push(value),
                "--leak" => options.leak = Some(value.parse().map_err(|_| bad())?),
                _ => return Err(format!("unknown: {arg}")),
            }
        }
        let enough = !options.time.is_zero() && options.workers > 0 && options.leak != Some(0);
        enough.then_some(options).ok_or("there is nothing to do".into())
    }
}

#[allow(clippy::disallowed_methods, reason = "time that passes is the load")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until no request is active, and then until no more memory is released. Answers what is left after the time limit.
fn rest(runtime: &Runtime, churn: &Churn) -> Result<u64, String> {
    let start = Instant::now();
    loop {
        let (active, armed, held) = (runtime.active(), runtime.metrics().armed, churn.held());
        if active == 0 && armed == 0 && held == 0 {
            break;
        }
        if start.elapsed() > COMES_TO_REST {
            return Err(format!(
                "{active} requests go on, {armed} timers are armed, {held} handles are on their way"
            ));
        }
        pass(Duration::from_millis(1));
    }
    let stacks = || runtime.metrics().live_stacks;
    let (mut least, mut quiet) = (Memory::now().resident, 0);
    while quiet < 50 {
        pass(Duration::from_millis(1));
        let (now, many) = (Memory::now().resident, stacks() > runtime.workers() * KEPT_STACKS);
        quiet = if now < least || many { 0 } else { quiet + 1 };
        least = least.min(now);
        if start.elapsed() > COMES_TO_REST {
            return Err(format!(
                "{} stacks are handed out, and memory went from {least} to {now} bytes",
                stacks()
            ));
        }
    }
    Ok(least)
}

fn soak(options: &Options) -> Result<bool, String> {
    let runtime = Runtime::builder().workers(options.workers).on_unhandled_failure(|_| ()).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let churn = Churn::start(&runtime, &options.only, options.leak)?;
    let (start, time) = (Instant::now(), options.time);
    let (mut resident, mut allocated) = (Line::default(), Line::default());
    println!("seconds\trequests\tMiB at work\tat rest\tallocated\tstacks\tpublished\tsteals\tsleeps");
    let mut told = Ok(());
    while start.elapsed() < time && told.is_ok() && !churn.has_failed() {
        pass(options.every);
        let busy = Memory::now().resident;
        told = churn.held_up(|| -> Result<(), String> {
            let rested = rest(&runtime, &churn)?;
            let (metrics, used) = (runtime.metrics(), ALLOCATED.bytes());
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{:.1}\t{}\t{:.2}\t{:.2}\t{:.3}\t{}\t{}\t{}\t{}",
                start.elapsed().as_secs_f64(),
                metrics.started,
                mib(busy),
                mib(rested),
                mib(used),
                metrics.live_stacks,
                metrics.published,
                metrics.steals,
                metrics.sleeps
            );
            resident.add(metrics.started, rested);
            allocated.add(metrics.started, used);
            Ok(())
        });
    }
    let rounds = churn.stop();
    for (name, rounds) in churn::NAMES.iter().zip(&rounds) {
        println!("{name}: {} rounds", rounds.load(Relaxed));
    }
    if let Err(why) = told {
        eprintln!("soak: {why}");
        return Ok(false);
    }
    let mut flat = true;
    // Kept stacks keep what they have touched, and the longer it goes on the more of them have once been deep.
    let pages = (runtime.metrics().live_stacks * PAGE) as u64;
    for (name, line, spare) in [("resident", resident, pages), ("allocated", allocated, 0)] {
        let verdict = line.verdict(spare).ok_or("too short a time to tell anything")?;
        println!("{name}: {verdict}");
        flat &= verdict.is_flat();
    }
    Ok(flat)
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| soak(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(2)
        }
    }
}
