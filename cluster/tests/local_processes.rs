//! What belongs to worker processes alone.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{
    ClusterCoordinator, ClusterCoordinatorBuilder, ClusterError, FetchError, LocalProcesses, TaskFn, Tasks,
    tasks, worker,
};
use rustix::process::{Pid, Signal, kill_process};

const PID: TaskFn<(), u32> = TaskFn::new("pid", |_, ()| Ok(process::id()));

/// Never ends, and never asks whether it is cancelled.
const STUCK: TaskFn<PathBuf, ()> = TaskFn::new("stuck", |_, begun| {
    fs::write(begun, "")?;
    loop {
        std::hint::spin_loop();
    }
});

const GATE: TaskFn<(PathBuf, PathBuf), u32> = TaskFn::new("gate", |_, (begun, gate)| {
    fs::write(begun, process::id().to_string())?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    Ok(process::id())
});

/// Starts this program as the worker was started, and returns what it says.
const START_ANOTHER: TaskFn<(), String> = TaskFn::new("start another", |_, ()| {
    let output = Command::new(std::env::current_exe()?).args(AS_WORKER).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
});

const AS_WORKER: [&str; 3] = ["worker_process", "--exact", "--nocapture"];

fn known() -> Tasks {
    tasks![PID, STUCK, GATE, START_ANOTHER]
}

/// What the workers run: this program, with this test alone.
#[test]
fn worker_process() {
    worker::entry(known());
    println!("this is no worker");
}

/// A worker of another version.
#[test]
fn strange_worker() {
    worker::entry(tasks![PID]);
}

/// A coordinator that is killed.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os("FOREBEAR_TEST_DIR").map(PathBuf::from) else { return };
    let cluster = start(engine(2)).min_workers(2).start().unwrap();
    for n in 0..2 {
        cluster.schedule(&GATE, (dir.join(format!("begun {n}")), dir.join("never"))).unwrap();
    }
    cluster.join().unwrap();
}

fn engine(workers: usize) -> LocalProcesses {
    LocalProcesses::new(workers).args(AS_WORKER)
}

fn start(engine: LocalProcesses) -> ClusterCoordinatorBuilder {
    ClusterCoordinator::builder(engine).tasks(known())
}

/// Waits until that holds.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        sleep(Duration::from_millis(1)).unwrap();
    }
}

fn state(cluster: &ClusterCoordinator) -> Option<WorkerState> {
    cluster.workers().first().map(|worker| worker.state)
}

fn pid_in(file: &Path) -> Pid {
    until(|| fs::read_to_string(file).is_ok_and(|text| !text.is_empty()));
    Pid::from_raw(fs::read_to_string(file).unwrap().parse().unwrap()).unwrap()
}

/// Whether it has ended; perhaps nobody has reaped it.
fn is_dead(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

#[test]
fn tasks_run_in_other_processes() {
    let cluster = start(engine(2)).min_workers(2).start().unwrap();
    let pids: Vec<u32> = (0..20).map(|_| cluster.schedule(&PID, ()).unwrap().fetch().unwrap()).collect();
    assert!(pids.iter().all(|pid| *pid != process::id()));
}

#[test]
fn a_worker_that_does_not_heed_a_cancel_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(engine(1).cancel_grace(Duration::from_millis(1))).start().unwrap();
    let value = cluster.schedule(&STUCK, dir.path().join("begun")).unwrap();
    until(|| dir.path().join("begun").exists());
    value.cancel();
    assert!(matches!(value.fetch(), Err(FetchError::Dropped)));
    until(|| cluster.workers().first().is_some_and(|worker| worker.id.incarnation() == 2));
    cluster.join().unwrap();
}

#[test]
fn a_worker_that_dies_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| dir.path().join(name));
    let cluster = start(engine(1)).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    let second = pid_in(&begun);
    assert_ne!(first, second);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), second.as_raw_nonzero().get() as u32);
    cluster.join().unwrap();
    assert_eq!(cluster.workers()[0].id.incarnation(), 2);
}

#[test]
fn when_no_worker_can_be_started_calls_that_wait_say_so() {
    let engine = LocalProcesses::new(2).args(["strange_worker", "--exact", "--nocapture"]).restarts(1);
    let cluster = start(engine).min_workers(0).start().unwrap();
    // It may be given up already.
    let scheduled = cluster.schedule(&PID, ());
    let is_away = |error: &ClusterError| matches!(error, ClusterError::Unavailable { .. });
    assert!(scheduled.as_ref().err().is_none_or(is_away));
    assert!(is_away(&cluster.join().unwrap_err()));
    assert!(is_away(&cluster.done().unwrap_err()));
}

#[test]
fn sigterm_has_a_worker_end_what_it_has_and_leave() {
    let dir = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| dir.path().join(name));
    let cluster = start(engine(1)).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let pid = pid_in(&begun);
    kill_process(pid, Signal::TERM).unwrap();
    until(|| state(&cluster) == Some(WorkerState::Draining));
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), pid.as_raw_nonzero().get() as u32);
    until(|| state(&cluster) == Some(WorkerState::Gone));
    until(|| is_dead(pid));
}

#[test]
fn workers_end_with_their_coordinator_however_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Command::new(std::env::current_exe().unwrap())
        .args(["coordinator_process", "--exact", "--nocapture"])
        .env("FOREBEAR_TEST_DIR", dir.path())
        .spawn()
        .unwrap();
    let pids = [0, 1].map(|n| pid_in(&dir.path().join(format!("begun {n}"))));
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    pids.into_iter().for_each(|pid| until(|| is_dead(pid)));
}

#[test]
fn what_a_worker_starts_is_no_worker() {
    let cluster = start(engine(1)).start().unwrap();
    let said = cluster.schedule(&START_ANOTHER, ()).unwrap().fetch().unwrap();
    assert!(said.contains("this is no worker"), "{said}");
}

#[test]
fn a_worker_with_other_tasks_is_none() {
    let engine = LocalProcesses::new(1).args(["strange_worker", "--exact", "--nocapture"]);
    let cluster = start(engine).min_workers(0).start().unwrap();
    until(|| state(&cluster) == Some(WorkerState::Gone));
}

#[test]
fn a_start_whose_workers_do_not_come_ends_with_an_error() {
    let engine = LocalProcesses::new(1).args(["strange_worker", "--exact", "--nocapture"]);
    let refused = start(engine).start_timeout(Duration::from_millis(200)).start();
    let Err(ClusterError::Start { message, .. }) = refused else { panic!("no worker can come") };
    assert!(message.contains("0 of 1 workers were ready"), "{message}");
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let error = start(LocalProcesses::new(1).program("/no/such/program")).start().unwrap_err();
    assert!(error.to_string().contains("did not start"), "{error}");
}
