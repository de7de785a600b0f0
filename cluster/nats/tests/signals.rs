//! What SIGTERM does when `worker::run` has returned. No server is needed: there is none at that address, and the worker has no patience, so it returns at once.

#[path = "support/process.rs"]
#[allow(dead_code, reason = "a worker of a server is not among these")]
mod process;
#[path = "../../tests/support/until.rs"]
mod until;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebear_cluster::tasks;
use forebear_cluster_nats::worker::{self, WorkerOptions};
use rustix::process::Signal;

use crate::process::Process;
use crate::until::until;

/// What `process` needs of its program.
fn token() -> String {
    String::new()
}

/// Runs a worker, says that this has returned, and goes on.
#[test]
fn goes_on() {
    let Ok(said) = std::env::var("FOREBEAR_TEST_SAID") else { return };
    let ended = Arc::new(AtomicBool::new(false));
    if std::env::var_os("FOREBEAR_TEST_OWN").is_some() {
        signal_hook::flag::register(signal_hook::consts::SIGTERM, ended.clone()).unwrap();
    }
    for _ in 0..2 {
        let options = WorkerOptions::new("nats://127.0.0.1:1", "none").patience(Duration::ZERO);
        worker::run(options, tasks![]).unwrap_err();
    }
    std::fs::write(&said, "").unwrap();
    until(|| ended.load(Ordering::Relaxed));
}

fn started(said: &Path, more: &[(&str, &str)]) -> Process {
    let process = Process::start("goes_on", &[&[("SAID", said.to_str().unwrap())], more].concat());
    until(|| said.exists());
    process
}

#[test]
fn sigterm_ends_a_program_whose_worker_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = started(&dir.path().join("said"), &[]);
    process.signal(Signal::TERM);
    assert_eq!(process.0.wait().unwrap().signal(), Some(15));
}

#[test]
fn sigterm_is_a_programs_own_that_has_a_handler_when_its_worker_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = started(&dir.path().join("said"), &[("OWN", "yes")]);
    process.signal(Signal::TERM);
    assert!(process.0.wait().unwrap().success());
}
