//! Row 62: a coordinator that is killed and started again goes on at its checkpoint.
#![cfg(target_os = "linux")]

mod check;
mod job;

#[path = "../support/until.rs"]
mod until;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use forebear_cluster::{ClusterCoordinator, LocalProcesses, TaskFn, TaskOptions, tasks, worker};

use crate::until::until;

#[test]
fn worker_process() {
    worker::entry(job::known());
}

/// The coordinator that is killed.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let engine = LocalProcesses::new(2).args(["worker_process", "--exact", "--nocapture"]).store_dir(&dir);
    job::run(&dir, engine);
}

const LOGGED: TaskFn<(PathBuf, u32), u32> = TaskFn::new("logged", |_, (log, n)| {
    let mut log = fs::OpenOptions::new().create(true).append(true).open(log)?;
    log.write_all(format!("{n}\n").as_bytes())?;
    Ok(n * n)
});

#[test]
fn journal_worker() {
    worker::entry(tasks![LOGGED]);
}

/// The coordinator that is killed when all is computed, and has fetched nothing. The next one fetches all.
#[test]
fn journal_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let engine = LocalProcesses::new(2).args(["journal_worker", "--exact", "--nocapture"]).store_dir(&dir);
    let builder = ClusterCoordinator::builder(engine).tasks(tasks![LOGGED]).journal(dir.join("journal"));
    let cluster = builder.start().unwrap();
    let schedule = |n: u32| {
        let options = TaskOptions::new().key(n.to_string());
        cluster.schedule_with(&options, &LOGGED, (dir.join("log"), n)).unwrap()
    };
    let values: Vec<_> = (0..30).map(schedule).collect();
    cluster.join().unwrap();
    if fs::write(dir.join("joined"), "").is_ok() && !dir.join("again").exists() {
        forebear::time::sleep(std::time::Duration::MAX).unwrap();
    }
    let squares = cluster.fetch(values).unwrap();
    assert_eq!(squares, (0..30).map(|n| n * n).collect::<Vec<u32>>());
    fs::write(dir.join("fetched"), "").unwrap();
}

#[test]
fn r62_results_that_a_killed_coordinator_has_not_fetched_are_not_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["journal_process", "--exact", "--nocapture"]).env("FOREBEAR_TEST_DIR", dir);
        command.spawn().unwrap()
    };
    let mut first = start();
    until(|| dir.join("joined").exists());
    first.kill().unwrap();
    first.wait().unwrap();
    fs::write(dir.join("again"), "").unwrap();
    // A worker that the first one was starting when it was killed may hold the lock for a moment.
    until(|| start().wait().unwrap().success() && dir.join("fetched").exists());
    assert_eq!(fs::read_to_string(dir.join("log")).unwrap().lines().count(), 30, "each was computed once");
}

#[test]
fn r62_a_coordinator_that_is_killed_goes_on_at_its_checkpoint() {
    check::check(|dir| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["coordinator_process", "--exact", "--nocapture"]).env("FOREBEAR_TEST_DIR", dir);
        command
    });
}
