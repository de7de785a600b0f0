//! Jobs over local processes while coordinators and workers are killed and stopped at random. `ci/chaos` runs many seeds.
#![cfg(target_os = "linux")]

mod audit;
#[path = "../restart/job.rs"]
mod job;
mod plant;
mod torment;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use forebear_cluster::{LocalProcesses, worker};

use self::torment::{Torment, Verdict, over_seeds};

#[test]
fn worker_process() {
    worker::entry(job::known());
}

/// The coordinator that is killed and stopped.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let engine = LocalProcesses::new(3)
        .args(["worker_process", "--exact", "--nocapture"])
        .restarts(1_000)
        .on_warning(|_| {})
        .store_dir(&dir);
    plant::run(&dir, engine);
}

fn coordinator(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["coordinator_process", "--exact", "--nocapture"]).env("FOREBEAR_TEST_DIR", dir);
    command.stdout(Stdio::null());
    command
}

fn torment(seed: u64, faults: u32, coordinator: &dyn Fn(&Path) -> Command) -> Verdict {
    let still = Duration::from_millis(60);
    Torment { seed, faults, coordinator, still, exact: true, more: Vec::new() }.run()
}

#[test]
fn under_kills_and_stops_no_effect_is_lost_and_no_attempt_runs_twice() {
    over_seeds(3, 12, |seed, faults| torment(seed, faults, &coordinator));
}

#[test]
fn when_nothing_fails_each_task_has_its_effect_exactly_once() {
    let verdict = torment(1, 0, &coordinator);
    assert!(verdict.findings.is_empty() && verdict.again == 0, "{verdict}");
}

/// Without this, the tests above prove nothing.
#[test]
fn a_planted_loss_is_found() {
    let planted = |dir: &Path| {
        let mut command = coordinator(dir);
        command.env("FOREBEAR_TEST_PLANT", "yes");
        command
    };
    let verdict = torment(1, 0, &planted);
    assert!(verdict.findings.iter().any(|found| found.contains("is lost")), "{verdict}");
}
