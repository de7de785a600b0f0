//! Row 62: a coordinator that is killed and started again goes on at its checkpoint.
#![cfg(target_os = "linux")]

mod check;
mod job;

use std::path::PathBuf;
use std::process::Command;

use forebear_cluster::{LocalProcesses, worker};

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

#[test]
fn r62_a_coordinator_that_is_killed_goes_on_at_its_checkpoint() {
    check::check(|dir| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["coordinator_process", "--exact", "--nocapture"]).env("FOREBEAR_TEST_DIR", dir);
        command
    });
}
