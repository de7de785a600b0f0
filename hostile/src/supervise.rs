//! Watches the processes that run the programs, and reports what fails.

use std::collections::{HashSet, VecDeque};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Options;
use crate::program::Program;
use crate::shrink::shrink;

/// How many times its grace one program may take.
const PATIENCE: u64 = 3;

/// How many programs one process runs.
const BATCH: u64 = 500;

/// How many lines of a process's words a report has.
const LINES: usize = 40;

/// What the runtime says before it ends a process by a rule that its documentation states. The first only in a wild program.
const BY_RULE: [&str; 2] = ["a destructor waits in request", "where it must not suspend"];

/// Why a program failed.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) seed: u64,
    pub(crate) what: String,
    pub(crate) said: String,
}

/// Runs programs `seed..seed + programs` in one process. Answers how many ended, and why the next did not.
pub(crate) fn run_batch(
    seed: u64,
    programs: u64,
    without: &HashSet<u32>,
    canary: bool,
    grace: u64,
    until: Option<Instant>,
) -> io::Result<(u64, Option<Finding>)> {
    let mut ids: Vec<String> = without.iter().map(u32::to_string).collect();
    ids.sort();
    let patience = Duration::from_secs(PATIENCE * grace);
    let mut child = Command::new(std::env::current_exe()?)
        .args(canary.then_some("--canary"))
        .args([
            "--child",
            "--seed",
            &seed.to_string(),
            "--programs",
            &programs.to_string(),
            "--grace",
            &grace.to_string(),
            "--without",
            &ids.join(","),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let ears = thread::spawn({
        let (said, stderr) = (said.clone(), child.stderr.take().expect("it is piped"));
        move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if said.len() == LINES {
                    said.remove(LINES / 2);
                }
                said.push_back(line);
            }
        }
    });
    let (lines, told) = channel();
    let eyes = thread::spawn({
        let stdout = child.stdout.take().expect("it is piped");
        move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        }
    });
    let (mut ended, mut hangs, mut enough) = (0, false, false);
    loop {
        match told.recv_timeout(patience) {
            Ok(line) if line.starts_with("end") => ended += 1,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => hangs = true,
            Err(RecvTimeoutError::Disconnected) => break,
        }
        enough = until.is_some_and(|until| Instant::now() > until);
        if hangs || enough {
            stop(&mut child, hangs, &said);
            break;
        }
    }
    let status = child.wait()?;
    drop(told);
    let _ = (ears.join(), eyes.join());
    let said =
        said.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect::<Vec<_>>().join("\n");
    let seed = seed + ended;
    if enough || (status.success() && !hangs && ended == programs) {
        return Ok((ended, None));
    }
    let wild = Program::draw(seed, without.clone()).wild;
    if !hangs && BY_RULE.iter().enumerate().any(|(rule, words)| (rule > 0 || wild) && said.contains(words)) {
        return Ok((ended + 1, None)); // the rest of the batch is run by the next process
    }
    let what = why(hangs.then_some(patience), status, &said);
    Ok((ended, Some(Finding { seed, what, said })))
}

/// Ends a process. Of one that hangs, a debugger first says where its threads are, if there is one.
fn stop(child: &mut Child, hangs: bool, said: &Mutex<VecDeque<String>>) {
    if hangs {
        let stacks = Command::new("gdb")
            .args([
                "-p",
                &child.id().to_string(),
                "-batch",
                "-ex",
                "set width 0",
                "-ex",
                "thread apply all backtrace 12",
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        match stacks {
            Ok(stacks) => said.extend(
                String::from_utf8_lossy(&stacks.stdout)
                    .lines()
                    .filter(|line| line.starts_with(['#', 'T']))
                    .map(|line| line.chars().take(180).collect()),
            ),
            Err(_) => said.push_back("(no gdb here: no stacks)".into()),
        }
    }
    let _ = child.kill();
}

fn why(hangs: Option<Duration>, status: ExitStatus, said: &str) -> String {
    if let Some(patience) = hangs {
        return format!("no end after {} s", patience.as_secs());
    }
    let found = said.lines().find_map(|line| {
        line.find("VIOLATION")
            .or_else(|| line.find("ERROR: AddressSanitizer"))
            .map(|at| line[at..].to_owned())
    });
    found.unwrap_or_else(|| status.to_string())
}

/// Runs all programs that the options ask for, on several processes at once. Answers how many failed.
pub(crate) fn supervise(options: &Options) -> io::Result<u64> {
    let (next, ran, failed) = (AtomicU64::new(options.seed), AtomicU64::new(0), AtomicU64::new(0));
    let end = options.seed.saturating_add(options.programs);
    let started = Instant::now();
    let over = || options.until.is_some_and(|until| Instant::now() > until);
    let lane = || -> io::Result<()> {
        loop {
            let mut seed = next.fetch_add(BATCH, Ordering::Relaxed);
            let last = end.min(seed.saturating_add(BATCH));
            if seed >= end || over() {
                return Ok(());
            }
            while seed < last && !over() {
                let (ended, finding) = run_batch(
                    seed,
                    last - seed,
                    &options.without,
                    options.canary,
                    options.grace,
                    options.until,
                )?;
                ran.fetch_add(ended, Ordering::Relaxed);
                seed += ended;
                if let Some(finding) = finding {
                    failed.fetch_add(1, Ordering::Relaxed);
                    if options.canary {
                        println!("{}", finding.what);
                    } else {
                        report(&finding, options)?;
                    }
                    seed += 1;
                }
            }
        }
    };
    thread::scope(|s| {
        let lanes: Vec<_> = (0..options.jobs).map(|_| s.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane does not panic"))
    })?;
    let (ran, failed) = (ran.into_inner(), failed.into_inner());
    println!(
        "{} programs in {} s from seed {}: {failed} failed",
        ran + failed,
        started.elapsed().as_secs(),
        options.seed
    );
    Ok(failed)
}

fn report(finding: &Finding, options: &Options) -> io::Result<()> {
    println!("\nprogram {} failed: {}\n{}", finding.seed, finding.what, finding.said);
    let shrunk = shrink(finding, &options.without)?;
    let mut ids: Vec<u32> = shrunk.without.iter().copied().collect();
    ids.sort_unstable();
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    println!(
        "{} of {} runs of it alone failed; after shrinking {} of {}:",
        shrunk.before.0, shrunk.before.1, shrunk.after.0, shrunk.after.1
    );
    print!("{}", Program::draw(finding.seed, shrunk.without));
    println!("again: hostile --seed {} --programs 1 --without '{}'\n", finding.seed, ids.join(","));
    Ok(())
}
