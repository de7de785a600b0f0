//! Networks that are slow, cut, or half open, between the server on one side and the coordinator and its workers on the other. `ci/nats` runs it; without a server each test is ignored, by name.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebear_cluster::{ClusterCoordinator, ClusterError, TaskFn, Tasks, tasks};
use forebear_cluster_nats::{Nats, worker};

use crate::support::process::Process;
use crate::support::proxy::{Proxy, Way};
use crate::support::{Server, job, token, until};

/// Waits until its number is allowed, adds a line to the log, and says which attempt it is.
const LOG: TaskFn<(PathBuf, u32), (u32, u32)> = TaskFn::new("log", |ctx, (dir, n)| {
    use std::io::Write;
    while !dir.join(format!("gate {}", n / EACH)).exists() {
        forebear::time::sleep(Duration::from_millis(1))?;
    }
    let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
    log.write_all(format!("{n}\n").as_bytes())?;
    Ok((n, ctx.attempt()))
});

/// For each gate there are so many tasks.
const EACH: u32 = 20;
/// So many messages may have to come again at a time: one for each of two workers and each cut.
const LATE: usize = 6;

fn known() -> Tasks {
    tasks![LOG]
}

/// What the workers run: this program, with this test alone.
#[test]
fn worker_process() {
    worker::entry(known());
}

fn engine(url: &str) -> Nats {
    Nats::new(url, &job()).token(&token()).args(["worker_process", "--exact", "--nocapture"]).workers(2)
}

fn lines(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let mut lines: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    lines
}

/// A network that is away for less than a lease: nothing is raised, and each task runs once.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_blip_of_the_network_is_ridden_out_and_nothing_runs_twice() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    let dir = tempfile::tempdir().unwrap();
    let engine =
        engine(&proxy.url()).lease(Duration::from_secs(60)).unavailable_after(Duration::from_secs(50));
    let cluster = ClusterCoordinator::builder(engine).tasks(known()).min_workers(2).start().unwrap();
    let faults = [
        Way::Slow(Duration::from_millis(30)),
        Way::Cut,
        Way::HalfOpen,
        Way::Open,
        Way::HalfOpen,
        Way::Slow(Duration::from_millis(3)),
        Way::Cut,
    ];
    let size = EACH * faults.len() as u32;
    let values: Vec<_> = (0..size).map(|n| cluster.schedule(&LOG, (dir.path().into(), n)).unwrap()).collect();
    for (number, way) in faults.into_iter().enumerate() {
        proxy.set(way);
        // Tasks end while nobody can say so, and the next ones come when the network is back.
        fs::write(dir.path().join(format!("gate {number}")), "").unwrap();
        if way == Way::Open {
            proxy.cut();
        }
        let done = |at: usize| lines(dir.path()).len() >= at;
        let some = EACH as usize * number + 1;
        if matches!(way, Way::Slow(_) | Way::Open) {
            until(|| done(some));
        }
        proxy.set(Way::Open);
        // A message that was on its way when a connection was cut comes again later. Meanwhile its worker may have taken a task that waits for the next gate.
        until(|| done(EACH as usize * (number + 1) - LATE));
        assert!(!cluster.done().unwrap() || number + 1 == faults.len());
    }
    cluster.join().unwrap();
    assert_eq!(cluster.fetch(values).unwrap(), (0..size).map(|n| (n, 1)).collect::<Vec<_>>());
    assert_eq!(lines(dir.path()), (0..size).collect::<Vec<_>>(), "no worker died, so each ran once");
    assert_eq!(cluster.metrics().returned, 0);
}

/// A connection over which nothing comes any more is noticed, and a loss beyond the limit is raised; when the network is back, everything goes on.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_network_that_is_away_for_too_long_is_raised_and_nothing_is_lost() {
    let server = Server::start();
    for away in [Way::HalfOpen, Way::Cut] {
        let proxy = Proxy::before(server.port());
        let dir = tempfile::tempdir().unwrap();
        let engine =
            engine(&proxy.url()).lease(Duration::from_secs(60)).unavailable_after(Duration::from_millis(100));
        let cluster = ClusterCoordinator::builder(engine).tasks(known()).min_workers(2).start().unwrap();
        let values: Vec<_> =
            (0..EACH).map(|n| cluster.schedule(&LOG, (dir.path().into(), n)).unwrap()).collect();
        proxy.set(away);
        let is_away = |error: &ClusterError| matches!(error, ClusterError::Unavailable { .. });
        assert!(is_away(&cluster.join().unwrap_err()));
        assert!(is_away(&cluster.schedule(&LOG, (dir.path().into(), 0)).unwrap_err()));
        fs::write(dir.path().join("gate 0"), "").unwrap();
        proxy.set(Way::Open);
        until(|| cluster.done().is_ok());
        assert_eq!(cluster.fetch(values).unwrap(), (0..EACH).map(|n| (n, 1)).collect::<Vec<_>>());
        assert_eq!(lines(dir.path()), (0..EACH).collect::<Vec<_>>());
        cluster.join().unwrap();
    }
}

/// The coordinator hears nothing of its workers, and they nothing of it, for longer than a lease: they cancel, join anew, and everything is run at least once.
#[test]
#[ignore = "needs a server: ci/nats"]
fn workers_that_the_network_has_cut_off_for_a_lease_join_anew_and_nothing_is_lost() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    let dir = tempfile::tempdir().unwrap();
    let job = job();
    let engine = Nats::new(&server.url(), &job).token(&token()).lease(Duration::from_millis(1_500));
    let cluster = ClusterCoordinator::builder(engine).tasks(known()).min_workers(0).start().unwrap();
    // Those workers are beyond the proxy; the coordinator is not.
    let _workers = ["a", "b"].map(|name| Process::worker(&proxy.url(), &job, name));
    until(|| cluster.workers().len() == 2);
    let values: Vec<_> = (0..EACH).map(|n| cluster.schedule(&LOG, (dir.path().into(), n)).unwrap()).collect();
    until(|| cluster.metrics().running == 2);
    proxy.set(Way::HalfOpen);
    until(|| cluster.metrics().returned == 2);
    fs::write(dir.path().join("gate 0"), "").unwrap();
    proxy.set(Way::Open);
    let fetched = cluster.fetch(values).unwrap();
    assert!(fetched.iter().map(|(n, _)| *n).eq(0..EACH));
    let mut ran = lines(dir.path());
    ran.dedup();
    assert_eq!(ran, (0..EACH).collect::<Vec<_>>());
    cluster.join().unwrap();
}

/// A worker from elsewhere.
#[test]
fn lone_worker() {
    support::process::lone_worker(known());
}

/// A server that accepts and says nothing keeps nobody.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_over_a_network_that_is_half_open_ends_with_an_error() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    proxy.set(Way::HalfOpen);
    let engine = engine(&proxy.url()).connect_timeout(Duration::from_millis(200));
    let refused = ClusterCoordinator::builder(engine).tasks(known()).start();
    assert!(matches!(refused, Err(ClusterError::Start { .. })), "{refused:?}");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_and_a_coordinator_wait_for_a_server_that_is_not_there_yet() {
    let (server, job) = (Server::start(), job());
    let proxy = Proxy::before(server.port());
    proxy.set(Way::Cut);
    let _worker = Process::worker(&proxy.url(), &job, "early");
    until(|| proxy.refused() > 0);
    let engine = Nats::new(&proxy.url(), &job).token(&token()).connect_timeout(Duration::from_secs(1_000));
    let starts = std::thread::spawn(move || {
        ClusterCoordinator::builder(engine.workers(0)).tasks(known()).min_workers(1).start().unwrap()
    });
    // Each has asked in vain, and one of them again.
    until(|| proxy.refused() > 3);
    proxy.set(Way::Open);
    let cluster = starts.join().unwrap();
    assert_eq!(cluster.workers().len(), 1);
}
