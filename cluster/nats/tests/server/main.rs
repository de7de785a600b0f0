//! What belongs to the engine over NATS alone: deaths that no process sees, servers that die and come back, wrong credentials, hostile messages, large values. `ci/nats` runs it; without a server each
//! test is ignored, by name.

#![allow(
    clippy::duplicate_mod,
    reason = "other programs have one of the two modules of helpers, and each needs `until`"
)]

#[path = "../../../tests/restart/check.rs"]
mod check;
mod deaths;
#[path = "../../../tests/support/deaths.rs"]
mod dying;
mod ends;
#[path = "../../../tests/restart/job.rs"]
mod job;
mod losses;
mod messages;
mod order;
mod stale;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod upgrade;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{
    ClusterCoordinator, ClusterCoordinatorBuilder, PerWorker, Registered, ResourceFn, TaskFn, Tasks, tasks,
};
use forebear_cluster_nats::Nats;
use forebear_cluster_nats::worker;

use crate::dying::lives::state;
use crate::dying::{AS_WORKER, EXIT, GATE, STUCK, files, is_dead, pid_in};
use crate::support::process::Process;
use crate::support::{job, shared_url, token, until};

const ADD: TaskFn<(u32, u32), u32> = TaskFn::new("add", |_, (a, b)| Ok(a + b));

/// Adds a line to a file.
const LOG: TaskFn<(PathBuf, u32), u32> = TaskFn::new("log", |_, (file, n)| {
    use std::io::Write;
    fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(format!("{n}\n").as_bytes())?;
    Ok(n)
});

const REVERSE: TaskFn<Vec<u8>, Vec<u8>> = TaskFn::new("reverse", |_, mut bytes| {
    bytes.reverse();
    Ok(bytes)
});

/// So many bytes.
const BYTES: TaskFn<usize, Vec<u8>> = TaskFn::new("sevens", |_, n| Ok(vec![7; n]));

/// Keeps what it was given.
const TABLE: ResourceFn<Vec<u8>, Vec<u8>> = ResourceFn::new("table", |_, table| Ok(table));
const LENGTH: TaskFn<PerWorker<Vec<u8>>, usize> =
    TaskFn::new("length", |ctx, table| Ok(ctx.local(&table)?.len()));

fn known() -> Tasks {
    known_with(upgrade::BUILD)
}

/// With that form of the task of this name.
fn known_with(build: impl Registered) -> Tasks {
    tasks![ADD, LOG, GATE, STUCK, REVERSE, BYTES, TABLE, LENGTH, EXIT, order::FAIL, stale::HOARD].with(build)
}

/// What the workers run that the coordinator starts: this program, with this test alone.
#[test]
fn worker_process() {
    worker::entry(known());
}

/// A worker from elsewhere.
#[test]
fn lone_worker() {
    let is = |name: &str| std::env::var_os(format!("FOREBEAR_TEST_{name}")).is_some();
    support::process::lone_worker(match () {
        () if is("STRANGE") => tasks![ADD],
        () if is("CHANGED") => known_with(upgrade::CHANGED),
        () if is("NEWER") => known_with(upgrade::BUILD).with(upgrade::NEWEST),
        () => known(),
    });
}

/// A coordinator that is killed.
#[test]
fn coordinator_process() {
    let Ok(url) = std::env::var("FOREBEAR_TEST_COORDINATE") else { return };
    let [job, begun] = ["FOREBEAR_TEST_JOB", "FOREBEAR_TEST_BEGUN"].map(|name| std::env::var(name).unwrap());
    let cluster = start(engine(&url, &job, LEASE).workers(1)).start().unwrap();
    let _value = cluster.schedule(&GATE, (begun.into(), "/no/such/gate".into())).unwrap();
    cluster.join().unwrap();
}

/// A coordinator that stands still, with tasks in its queue, until another one has its job. It writes what it is told then, and ends when it may.
#[test]
fn ousted_coordinator() {
    let Ok(url) = std::env::var("FOREBEAR_TEST_OUST") else { return };
    let [job, begun, told, leave] =
        ["JOB", "BEGUN", "TOLD", "LEAVE"].map(|name| std::env::var(format!("FOREBEAR_TEST_{name}")).unwrap());
    let cluster = start(engine(&url, &job, LEASE)).min_workers(0).start().unwrap();
    let _value = cluster.schedule(&GATE, (begun.into(), "/no/such/gate".into())).unwrap();
    let _queued: Vec<_> = (0..20).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    until(|| cluster.done().is_err());
    let error = cluster.done().unwrap_err();
    fs::write(Path::new(&told).with_extension("new"), format!("{error:?}")).unwrap();
    fs::rename(Path::new(&told).with_extension("new"), &told).unwrap();
    until(|| Path::new(&leave).exists());
}

/// A coordinator that is killed and started again.
#[test]
fn restarted_coordinator() {
    let Ok(url) = std::env::var("FOREBEAR_TEST_RESTART") else { return };
    let [job, dir] = ["FOREBEAR_TEST_JOB", "FOREBEAR_TEST_DIR"].map(|name| std::env::var(name).unwrap());
    let engine = Nats::new(&url, &job).token(&token()).lease(LEASE).workers(2);
    job::run(dir.as_ref(), engine.args(["restarted_worker", "--exact", "--nocapture"]));
}

#[test]
fn restarted_worker() {
    worker::entry(job::known());
}

/// A lease that tests wait for.
const LEASE: Duration = Duration::from_millis(1_500);
/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(60);

fn engine(url: &str, job: &str, lease: Duration) -> Nats {
    Nats::new(url, job).token(&token()).lease(lease).args(AS_WORKER)
}

fn start(engine: Nats) -> ClusterCoordinatorBuilder {
    ClusterCoordinator::builder(engine).tasks(known())
}

/// A cluster with two workers from elsewhere, of which the first runs a task that waits for its gate.
fn with_strangers(
    begun: &Path,
    gate: &Path,
) -> (ClusterCoordinator, [Process; 2], forebear_cluster::RemoteValue<(u32, u32)>) {
    let job = job();
    let cluster = start(engine(&shared_url(), &job, LEASE)).min_workers(0).start().unwrap();
    let first = Process::worker(&shared_url(), &job, "first");
    until(|| state(&cluster, "first") == Some(WorkerState::Ready));
    let value = cluster.schedule(&GATE, (begun.into(), gate.into())).unwrap();
    assert_eq!(pid_in(begun), first.0.id());
    let second = Process::worker(&shared_url(), &job, "second");
    until(|| state(&cluster, "second") == Some(WorkerState::Ready));
    (cluster, [first, second], value)
}
