//! Faults at random: kill -9 and SIGSTOP of a coordinator and of its workers, and what an engine has beside them, while a job runs. The seed says which, to whom and when.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forebear::time::sleep;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::audit::Account;
use crate::job::{self, numbers, put};

/// Numbers from a seed.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below that.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub(crate) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// A fault of an engine's own.
pub(crate) struct Fault<'a> {
    pub(crate) name: &'static str,
    pub(crate) inflict: Box<dyn FnMut(&mut Draw) + 'a>,
}

/// What a job has to stand.
pub(crate) struct Torment<'a> {
    pub(crate) seed: u64,
    /// How many faults. None: nothing fails, and each task runs exactly once.
    pub(crate) faults: u32,
    /// Starts a coordinator in that directory.
    pub(crate) coordinator: &'a dyn Fn(&Path) -> Command,
    /// So long a process stands still at most.
    pub(crate) still: Duration,
    /// Only kills end a coordinator, and a worker that is not killed is never taken for dead: so each attempt more than one is a kill's. If not, a coordinator that has ended with an error,
    /// for instance since no server was there, is started again.
    pub(crate) exact: bool,
    pub(crate) more: Vec<Fault<'a>>,
}

/// How often each fault was inflicted, and what was wrong afterwards.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) faults: BTreeMap<&'static str, u32>,
    pub(crate) again: u32,
    pub(crate) findings: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times) in &self.faults {
            write!(f, "{name} {times}, ")?;
        }
        write!(f, "tasks begun again {}: ", self.again)?;
        if self.findings.is_empty() {
            return f.write_str("all accounted for");
        }
        f.write_str(&self.findings.join("; "))
    }
}

/// Nothing at all happens for so long: the job hangs.
const PATIENCE: Duration = Duration::from_secs(90);
/// For each fault the job computes so many squares.
const EACH: u32 = 12;
/// So often a coordinator is killed.
const RESTARTS: u32 = 3;
/// No coordinator is started again after so many.
const MOST_RUNS: u32 = 20;

/// A coordinator that runs, and who stands still.
struct Stage<'a> {
    dir: &'a Path,
    start: &'a dyn Fn(&Path) -> Command,
    child: Child,
    runs: u32,
    stopped: Vec<(OwnedFd, Instant)>,
}

impl Torment<'_> {
    /// Runs the job, inflicts the faults, and has the checker say what is wrong.
    pub(crate) fn run(mut self) -> Verdict {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (mut draw, mut verdict) = (Draw::new(self.seed), Verdict::default());
        let size = EACH * (self.faults + 1);
        put(&dir.join("size"), &size.to_string());
        let mut stage = Stage {
            dir,
            start: self.coordinator,
            child: (self.coordinator)(dir).spawn().unwrap(),
            runs: 1,
            stopped: Vec::new(),
        };
        let mut losses = 0;
        for fault in 1..=self.faults {
            let before = stage.written();
            put(&dir.join("limit"), &(fault * EACH).to_string());
            // Mostly when tasks run, now and then before.
            while draw.below(200) > 0
                && stage.written() == before
                && stage.child.try_wait().unwrap().is_none()
            {
                stage.go_on(false);
                sleep(Duration::from_millis(5)).unwrap();
            }
            sleep(draw.millis(20)).unwrap();
            stage.go_on(false);
            if let Some(status) = stage.child.try_wait().unwrap()
                && !stage.start_again(self.exact)
            {
                verdict.findings.push(format!("the coordinator has ended by itself: {status}"));
                return verdict;
            }
            let name = self.inflict(&mut stage, &mut draw);
            losses += u32::from(name == "workers killed");
            *verdict.faults.entry(name).or_default() += 1;
        }
        put(&dir.join("limit"), &size.to_string());
        stage.end(self.exact, &mut verdict.findings);
        let (log, end) = (numbers(&dir.join("log")), numbers(&dir.join("end")));
        let known = self.exact || self.faults == 0;
        let account =
            Account { size, log: &log, end: &end, runs: stage.runs, losses: known.then_some(losses) };
        verdict.findings.extend(account.findings());
        verdict.again = (log.iter().filter(|line| line[1] == job::BEGUN).count() as u32).saturating_sub(size);
        stage.await_workers(&log, &mut verdict.findings);
        verdict
    }

    fn inflict(&mut self, stage: &mut Stage<'_>, draw: &mut Draw) -> &'static str {
        let own = self.more.len() as u64;
        match draw.below(8 + own * 2) {
            0 if stage.runs <= RESTARTS => {
                stage.child.kill().unwrap();
                stage.child.wait().unwrap();
                stage.start();
                "coordinators killed"
            }
            1 => {
                let coordinator = pidfd(Pid::from_child(&stage.child)).unwrap();
                stage.stop(coordinator, draw.millis(self.still.as_millis() as u64));
                "coordinators stopped"
            }
            2 | 3 => {
                let Some(worker) = stage.worker(draw) else { return "workers not found" };
                stage.stop(worker, draw.millis(self.still.as_millis() as u64));
                "workers stopped"
            }
            at if at >= 8 => {
                let fault = &mut self.more[((at - 8) / 2) as usize];
                (fault.inflict)(draw);
                fault.name
            }
            _ => {
                let Some(worker) = stage.worker(draw) else { return "workers not found" };
                // It may have ended meanwhile.
                let _ = pidfd_send_signal(worker, Signal::KILL);
                "workers killed"
            }
        }
    }
}

impl Stage<'_> {
    /// A child of the coordinator.
    fn worker(&self, draw: &mut Draw) -> Option<OwnedFd> {
        let parent = self.child.id();
        let mut all = Vec::new();
        for task in fs::read_dir(format!("/proc/{parent}/task")).ok()? {
            let children = fs::read_to_string(task.ok()?.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        all.sort_unstable();
        if all.is_empty() {
            return None;
        }
        let pid = all[draw.below(all.len() as u64) as usize];
        let worker = pidfd(Pid::from_raw(pid)?)?;
        // If the number has been taken again meanwhile, it is not the coordinator's child.
        (parent_of(pid)? == parent).then_some(worker)
    }

    fn stop(&mut self, process: OwnedFd, time: Duration) {
        let _ = pidfd_send_signal(&process, Signal::STOP);
        self.stopped.push((process, Instant::now() + time));
    }

    /// A process that has stood still for long enough goes on.
    fn go_on(&mut self, all: bool) {
        let now = Instant::now();
        self.stopped.retain(|(process, due)| {
            let over = all || *due <= now;
            if over {
                let _ = pidfd_send_signal(process, Signal::CONT);
            }
            !over
        });
    }

    /// A coordinator has ended by itself.
    fn start_again(&mut self, exact: bool) -> bool {
        let again = !exact && self.runs < MOST_RUNS;
        if again {
            self.start();
        }
        again
    }

    fn start(&mut self) {
        self.child = (self.start)(self.dir).spawn().unwrap();
        self.runs += 1;
    }

    /// How much the tasks have written.
    fn written(&self) -> u64 {
        fs::metadata(self.dir.join("log")).map_or(0, |log| log.len())
    }

    /// Waits for the end of the job.
    fn end(&mut self, exact: bool, findings: &mut Vec<String>) {
        let (mut moved, mut length) = (Instant::now(), 0);
        loop {
            self.go_on(false);
            if let Some(status) = self.child.try_wait().unwrap() {
                if !status.success() {
                    if self.start_again(exact) {
                        continue;
                    }
                    findings.push(format!("the coordinator has failed: {status}"));
                }
                return self.go_on(true);
            }
            let now = self.written();
            if now != length {
                (moved, length) = (Instant::now(), now);
            }
            if moved.elapsed() > PATIENCE {
                findings.push(format!("nothing has happened for {PATIENCE:?}"));
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                return self.go_on(true);
            }
            sleep(Duration::from_millis(2)).unwrap();
        }
    }

    /// Workers end with their coordinator.
    fn await_workers(&self, log: &[Vec<u32>], findings: &mut Vec<String>) {
        let begun = Instant::now();
        let mut pids: Vec<u32> = log.iter().map(|line| line[4]).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            while is_of_job(pid, self.dir) {
                if begun.elapsed() > PATIENCE {
                    findings.push(format!("the worker {pid} has outlived the job"));
                    break;
                }
                sleep(Duration::from_millis(2)).unwrap();
            }
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.go_on(true);
    }
}

/// Whether a process of the job in this directory has that number. Another one may have it now, also one of another job that runs meanwhile.
fn is_of_job(pid: u32, dir: &Path) -> bool {
    let its = format!("FOREBEAR_TEST_DIR={}", dir.display());
    let settings = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    settings.split(|byte| *byte == 0).any(|setting| setting == its.as_bytes())
}

/// Otherwise nothing ever outlives its job.
#[test]
fn a_process_is_of_its_own_job_until_it_is_dead() {
    let (own, other) = (Path::new("/the/own"), Path::new("/the"));
    let mut process = Command::new("sleep").arg("1000").env("FOREBEAR_TEST_DIR", own).spawn().unwrap();
    // It has no settings for a moment, while the kernel loads its program.
    let begun = Instant::now();
    while !is_of_job(process.id(), own) && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1)).unwrap();
    }
    let seen = [own, other].map(|dir| is_of_job(process.id(), dir));
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(seen, [true, false]);
    assert!(!is_of_job(process.id(), own));
}

fn pidfd(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn parent_of(pid: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

/// A number from the environment.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Runs a job for each seed: as many as `FOREBEAR_CHAOS_SEEDS` says, from `FOREBEAR_CHAOS_SEED` on, with `FOREBEAR_CHAOS_FAULTS` faults each. Each must be all right.
pub(crate) fn over_seeds(seeds: u64, faults: u64, mut torment: impl FnMut(u64, u32) -> Verdict) {
    let (first, faults) = (setting("FOREBEAR_CHAOS_SEED", 1), setting("FOREBEAR_CHAOS_FAULTS", faults));
    for seed in first..first + setting("FOREBEAR_CHAOS_SEEDS", seeds) {
        let verdict = torment(seed, faults as u32);
        println!("seed {seed}: {verdict}");
        let shown =
            format!("FOREBEAR_CHAOS_SEED={seed} FOREBEAR_CHAOS_SEEDS=1 FOREBEAR_CHAOS_FAULTS={faults}");
        assert!(verdict.findings.is_empty(), "{shown}: {verdict}");
        assert_eq!(verdict.faults.values().sum::<u32>(), faults as u32);
    }
}
