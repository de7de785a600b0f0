//! The row `killed`: kill -9 of a worker, until its task runs elsewhere.
//!
//! There are two workers of one slot and one task, so a worker is idle when the other one dies. The task reports to a socket of this process where it
//! runs and when it began, by a clock that all processes share ([`HOLD`]). The clock runs from before the kill until the first line of the second
//! attempt. Then the row waits until there are two workers again.
//!
//! The engine `LocalProcesses` detects the death of a worker by its pidfd. `Nats` does the same for workers that the coordinator's process has
//! started. This program itself starts the *unseen* ones, as on a machine without an agent: only the lease detects their deaths. A worker is killed
//! as soon as its task runs. It has just sent a message, so hardly any of its lease has passed.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterCoordinator, LocalProcesses};
use rustix::process::{Pid, Signal, kill_process};

use crate::Whether;
use crate::figures::{percentile, print};
use crate::tasks::{HOLD, clock, known};

/// The socket to which tasks report that they run. Dropping it removes its file.
struct Ear {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Ear {
    fn new() -> Whether<Ear> {
        let path = std::env::temp_dir().join(format!("forebear-bench-{}.socket", std::process::id()));
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Ear { socket, path })
    }

    /// The process that a task runs in, and when the task began.
    fn hear(&self) -> Whether<(i32, u64)> {
        let mut buffer = [0; 64];
        let read = self.socket.recv(&mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let (pid, begun) = text.split_once(' ').ok_or("a task has said something else")?;
        Ok((pid.parse()?, begun.parse()?))
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Kills `n` times. `again` is called after each, with what was killed.
fn kill(cluster: &ClusterCoordinator, n: u64, mut again: impl FnMut(i32) -> Whether<()>) -> Whether<()> {
    let (ear, mut all) = (Ear::new()?, Vec::new());
    let path = ear.path.to_str().ok_or("the path of the socket is no text")?;
    for _ in 0..n {
        two_ready(cluster)?;
        let value = cluster.schedule(&HOLD, path.to_owned())?;
        let (pid, _) = ear.hear()?;
        let victim = Pid::from_raw(pid).ok_or("no process")?;
        let killed = clock();
        kill_process(victim, Signal::KILL)?;
        let (other, begun) = ear.hear()?;
        if value.fetch()? != 2 || other == pid {
            return Err("the task has not run once more".into());
        }
        all.push(begun.saturating_sub(killed) as f64 / 1e6);
        again(pid)?;
    }
    print("p50 ms", percentile(&mut all, 50));
    print("worst ms", percentile(&mut all, 100));
    Ok(())
}

/// Waits until two workers are ready.
fn two_ready(cluster: &ClusterCoordinator) -> Whether<()> {
    let begun = Instant::now();
    while cluster.workers().iter().filter(|worker| worker.state == WorkerState::Ready).count() < 2 {
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("a worker that was killed has not come back".into());
        }
        forebear::time::sleep(Duration::from_millis(5))?;
    }
    // The new worker's start is over, and its processor is free again.
    Ok(forebear::time::sleep(Duration::from_millis(100))?)
}

pub(crate) fn local(n: u64) -> Whether<()> {
    let cluster =
        ClusterCoordinator::builder(LocalProcesses::new(2)).tasks(known()).min_workers(2).start()?;
    kill(&cluster, n, |_| Ok(()))?;
    Ok(cluster.shutdown()?)
}

#[cfg(feature = "nats")]
pub(crate) fn seen(n: u64) -> Whether<()> {
    let engine = crate::engines::nats()?.workers(2);
    let cluster = ClusterCoordinator::builder(engine).tasks(known()).min_workers(2).start()?;
    kill(&cluster, n, |_| Ok(()))?;
    Ok(cluster.shutdown()?)
}

/// Workers that only their lease, in seconds, says to be dead.
#[cfg(feature = "nats")]
pub(crate) fn unseen(n: u64, lease: u64) -> Whether<()> {
    use std::process::{Child, Command};

    let (url, _) = crate::engines::server()?;
    let start = || -> Whether<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(command.args(["join", &url, &crate::engines::job(), "1"]).spawn()?)
    };
    let mut workers = vec![start()?];
    let engine = crate::engines::nats()?.lease(Duration::from_secs(lease));
    let cluster = ClusterCoordinator::builder(engine).tasks(known()).min_workers(1).start()?;
    workers.push(start()?);
    let killed = kill(&cluster, n, |pid| {
        let dead = workers.iter().position(|worker| i32::try_from(worker.id()) == Ok(pid));
        let mut dead = workers.remove(dead.ok_or("a strange worker")?);
        dead.wait()?;
        workers.push(start()?);
        Ok(())
    });
    let ended = cluster.shutdown();
    // The newest one may not have joined yet, and would ask for a coordinator for long.
    for worker in &mut workers {
        worker.kill()?;
        worker.wait()?;
    }
    killed?;
    Ok(ended?)
}
