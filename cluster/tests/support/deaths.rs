//! What tests of worker processes that die share: tasks that say where they run and stay there, and whether a process has ended.
#![allow(dead_code, reason = "each test program uses some of it")]

#[path = "judged.rs"]
pub(crate) mod judged;
#[path = "lives.rs"]
pub(crate) mod lives;
#[path = "until.rs"]
mod until;

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::TaskFn;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::until::until;

/// What a program that is a worker runs: that test alone.
pub(crate) const AS_WORKER: [&str; 3] = ["worker_process", "--exact", "--nocapture"];

/// Writes its process id into the first file, waits for the second one, and returns the id and the attempt.
pub(crate) const GATE: TaskFn<(PathBuf, PathBuf), (u32, u32)> = TaskFn::new("gate", |ctx, (begun, gate)| {
    say(&begun)?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    Ok((process::id(), ctx.attempt()))
});

/// Never ends, and never asks whether it is cancelled.
pub(crate) const STUCK: TaskFn<PathBuf, ()> = TaskFn::new("stuck", |_, begun| {
    say(&begun)?;
    loop {
        std::hint::spin_loop();
    }
});

/// Ends its process by that status, or by an abort.
pub(crate) const EXIT: TaskFn<i32, ()> =
    TaskFn::new("exit", |_, status| if status < 0 { process::abort() } else { process::exit(status) });

/// Writes the number of a process into a file, which is there as a whole or not at all.
pub(crate) fn put(file: &Path, pid: u32) -> std::io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, pid.to_string())?;
    fs::rename(new, file)
}

/// The same with that of this process.
pub(crate) fn say(file: &Path) -> std::io::Result<()> {
    put(file, process::id())
}

/// The number in a file, which is waited for.
#[track_caller]
pub(crate) fn pid_in(file: &Path) -> u32 {
    until(|| file.exists());
    fs::read_to_string(file).unwrap().parse().unwrap()
}

pub(crate) fn send(signal: Signal, to: u32) {
    kill_process(Pid::from_raw(to as i32).unwrap(), signal).unwrap();
}

/// Whether it has ended; perhaps nobody has reaped it.
pub(crate) fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// A directory, and two files in it that are not there.
pub(crate) fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| dir.path().join(name));
    (dir, begun, gate)
}
