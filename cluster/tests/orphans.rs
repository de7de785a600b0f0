//! No worker process outlives its job: each state of a worker, and the death of its coordinator in it; and workers that stand still while their coordinator lives.
#![cfg(target_os = "linux")]

#[path = "support/deaths.rs"]
mod deaths;

use std::cell::Cell;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::{ClusterCoordinator, LocalProcesses, ResourceFn, TaskFn, Tasks, tasks, worker};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, getpid, kill_process_group, pidfd_getfd, pidfd_open,
};

use crate::deaths::{STUCK, is_dead, pid_in, put, say, send, until};

/// Says which process it is, and waits for a cancel.
const HEEDS: TaskFn<PathBuf, ()> = TaskFn::new("heeds", |_, begun| {
    say(&begun)?;
    Ok(sleep(Duration::MAX)?)
});

/// Starts a process, and says that one's number in place of its own.
const PARENT: TaskFn<PathBuf, ()> = TaskFn::new("parent", |_, begun| {
    let child = Command::new("sleep").arg("1000").spawn()?;
    put(&begun.with_extension("child"), child.id())?;
    say(&begun)?;
    Ok(sleep(Duration::MAX)?)
});

/// Its answer does not fit into the socket. It waits for a file first.
const LONG: TaskFn<PathBuf, Vec<Vec<u8>>> = TaskFn::new("long", |_, begun| {
    say(&begun)?;
    while !begun.with_extension("answer").exists() {
        sleep(Duration::from_millis(1))?;
    }
    Ok(vec![vec![7; 1 << 10]; 250])
});

/// Takes arguments that do not fit into the socket.
const TAKES: TaskFn<Vec<u8>, ()> = TaskFn::new("takes", |_, _| Ok(()));

const NEVER_MADE: ResourceFn<PathBuf, ()> = ResourceFn::new("never made", |_, begun| {
    say(&begun)?;
    loop {
        std::hint::spin_loop();
    }
});

fn known() -> Tasks {
    tasks![HEEDS, STUCK, PARENT, LONG, TAKES, NEVER_MADE]
}

const DIR: &str = "FOREBEAR_TEST_DIR";
const STATE: &str = "FOREBEAR_TEST_STATE";

#[test]
fn worker_process() {
    worker::entry(known());
}

thread_local! {
    static HANGS: Cell<Option<Hangs>> = const { Cell::new(None) };
}

/// Its destructor never ends.
struct Hangs;

impl Drop for Hangs {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// A worker that is not a worker yet, says so, and waits for a file. Another one never ends by itself.
#[test]
fn slow_worker() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    if std::env::var(STATE).is_ok_and(|state| state == "hangs at its end") {
        HANGS.set(Some(Hangs));
    } else {
        say(&dir.join("begun")).unwrap();
        until(|| dir.join("go").exists());
    }
    worker::entry(known());
}

/// The coordinator that dies. What it does first is the state's name.
#[test]
fn coordinator_process() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let (begun, state) = (dir.join("begun"), std::env::var(STATE).unwrap());
    let worker = match &state[..] {
        "before its entry" | "hangs at its end" => "slow_worker",
        _ => "worker_process",
    };
    let mut engine = LocalProcesses::new(1).args([worker, "--exact", "--nocapture"]);
    if state == "hangs at its end" {
        // It has not the group to itself, so it does not end with that.
        let this = std::env::current_exe().unwrap();
        let args = ["-c", "\"$0\" \"$@\"; true", this.to_str().unwrap(), worker, "--exact", "--nocapture"];
        engine = engine.program("sh").args(args);
    }
    let engine = engine.cancel_grace(Duration::from_millis(20)).store_dir(&dir);
    let cluster = ClusterCoordinator::builder(engine).min_workers(0).tasks(known()).start().unwrap();
    let mut resource = None;
    let scheduled = match &state[..] {
        "before its entry" => None,
        "makes a resource" => {
            resource = Some(cluster.per_worker(&NEVER_MADE, begun).unwrap());
            None
        }
        "runs what heeds no cancel" => Some(cluster.schedule(&STUCK, begun).unwrap()),
        "has a child" => Some(cluster.schedule(&PARENT, begun).unwrap()),
        "has an answer that does not fit" => {
            // Nobody reads it, since this process stands still by then.
            cluster.schedule(&LONG, begun.clone()).unwrap();
            None
        }
        _ => Some(cluster.schedule(&HEEDS, begun).unwrap()),
    };
    let _held = (state == "has a socket that another process holds").then(hold_sockets);
    say(&dir.join("coordinator")).unwrap();
    sleep(Duration::MAX).unwrap();
    drop((scheduled, resource));
}

/// Starts processes that hold all sockets of this one, as a process does that was forked and has not executed its program.
fn hold_sockets() -> Vec<Child> {
    let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let sockets = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| {
        let is_socket = fs::read_link(entry.path()).ok()?.to_str()?.starts_with("socket:");
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let socket: OwnedFd = pidfd_getfd(&me, number, PidfdGetfdFlags::empty()).ok()?;
        is_socket.then_some(socket)
    });
    let sockets: Vec<OwnedFd> = sockets.collect();
    assert!(!sockets.is_empty());
    let hold = |socket| Command::new("sleep").arg("1000").stdin(Stdio::from(socket)).spawn().unwrap();
    sockets.into_iter().map(hold).collect()
}

/// A process, which is killed with its group.
struct Leader(Child);

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }
}

/// Starts a coordinator, waits until its worker is in that state, kills the coordinator, and waits until the worker is dead.
fn orphan(dir: &Path, state: &str, before: impl FnOnce(u32)) {
    use std::os::unix::process::CommandExt;
    let mut coordinator = Command::new(std::env::current_exe().unwrap())
        .args(["coordinator_process", "--exact", "--nocapture"])
        .env(DIR, dir)
        .env(STATE, state)
        .process_group(0)
        .spawn()
        .map(Leader)
        .unwrap();
    let worker = pid_in(&dir.join("begun"));
    pid_in(&dir.join("coordinator"));
    before(worker);
    coordinator.0.kill().unwrap();
    coordinator.0.wait().unwrap();
    // What holds its sockets is in its group, and lives on.
    let _ = fs::write(dir.join("go"), "");
    until(|| is_dead(worker));
}

#[test]
fn a_worker_ends_with_its_coordinator_whatever_its_state() {
    for state in
        ["runs what heeds a cancel", "runs what heeds no cancel", "makes a resource", "before its entry"]
    {
        let dir = tempfile::tempdir().unwrap();
        orphan(dir.path(), state, |_| ());
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        let is_store = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("forebear-cluster-");
        // One that never learned where the directory is leaves it to the next coordinator.
        assert!(state == "before its entry" || !left.iter().any(is_store), "{state}: {left:?}");
    }
}

#[test]
fn a_worker_that_stands_still_ends_with_its_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    orphan(dir.path(), "stands still", |worker| send(Signal::STOP, worker));
}

#[test]
fn a_worker_whose_socket_another_process_holds_ends_with_its_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    orphan(dir.path(), "has a socket that another process holds", |_| ());
}

#[test]
fn a_worker_whose_end_hangs_ends_with_its_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    orphan(dir.path(), "hangs at its end", |_| ());
}

#[test]
fn a_worker_whose_answer_nobody_reads_ends_with_its_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    orphan(dir.path(), "has an answer that does not fit", |_| {
        let coordinator = pid_in(&dir.path().join("coordinator"));
        send(Signal::STOP, coordinator);
        fs::write(dir.path().join("begun.answer"), "").unwrap();
    });
}

#[test]
fn what_a_task_has_started_ends_with_the_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    orphan(dir.path(), "has a child", |_| ());
    let child = pid_in(&dir.path().join("begun.child"));
    until(|| is_dead(child));
}

/// Its socket is full, so the thread that would kill it waits for room.
#[test]
fn a_worker_that_stands_still_and_reads_nothing_is_killed_when_its_task_is_late() {
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let engine = LocalProcesses::new(1)
        .slots(3)
        .args(["worker_process", "--exact", "--nocapture"])
        .cancel_grace(Duration::from_millis(20));
    let cluster = ClusterCoordinator::builder(engine).tasks(known()).start().unwrap();
    let value = cluster.schedule(&HEEDS, begun.clone()).unwrap();
    let first = pid_in(&begun);
    send(Signal::STOP, first);
    let waits = cluster.schedule(&TAKES, vec![7; 4 << 20]).unwrap();
    value.cancel();
    until(|| is_dead(first));
    assert!(value.fetch().is_err());
    waits.fetch().unwrap();
    // The same when the coordinator orders the worker to leave, and it has no task.
    let value = cluster.schedule(&HEEDS, dir.path().join("again")).unwrap();
    let second = pid_in(&dir.path().join("again"));
    value.cancel();
    assert!(value.fetch().is_err());
    send(Signal::STOP, second);
    let _takes = cluster.schedule(&TAKES, vec![7; 4 << 20]).unwrap();
    drop(cluster);
    until(|| is_dead(second));
}
