//! A cluster of three servers on this machine, each of which keeps all messages: any one may be killed. `ci/nats` runs it; without a server each test is ignored, by name.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::{ClusterCoordinator, ClusterError, TaskFn, Tasks, tasks};
use forebear_cluster_nats::group::{Group, GroupOptions};
use forebear_cluster_nats::{Nats, worker};

use crate::support::sieve::Sieve;
use crate::support::trio::{await_replicas, three};
use crate::support::{Server, job, token, until};

/// Adds a line to a file, some milliseconds later.
const LOG: TaskFn<(PathBuf, u32), u32> = TaskFn::new("log", |_, (file, n)| {
    use std::io::Write;
    sleep(Duration::from_millis(u64::from(n % 7)))?;
    fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(format!("{n}\n").as_bytes())?;
    Ok(n)
});
/// A result that is an object.
const LARGE: TaskFn<usize, Vec<u8>> = TaskFn::new("large", |_, size| Ok(vec![7; size]));

fn known() -> Tasks {
    tasks![LOG, LARGE]
}

#[test]
fn worker_process() {
    worker::entry(known());
}

/// One test at a time: six servers, with their elections, and two jobs are too many for two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lines(log: &Path) -> Vec<u32> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// A job whose streams three servers keep, with two workers. Leases are longer than what any test does.
fn started(url: &str, job: &str, unavailable_after: Duration) -> ClusterCoordinator {
    let engine = Nats::new(url, job)
        .token(&token())
        .replicas(3)
        .lease(Duration::from_secs(60))
        .unavailable_after(unavailable_after)
        .args(["worker_process", "--exact", "--nocapture"])
        .workers(2);
    ClusterCoordinator::builder(engine).tasks(known()).min_workers(2).start().unwrap()
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn any_of_three_servers_that_is_killed_at_any_moment_loses_nothing() {
    const EACH: u32 = 120;
    let _alone = alone();
    let mut servers = three();
    let url = servers.each_ref().map(Server::url).join(",");
    let (job, dir) = (job(), tempfile::tempdir().unwrap());
    let log = dir.path().join("log");
    let cluster = started(&url, &job, Duration::from_secs(60));
    let mut values = Vec::new();
    let mut large = Vec::new();
    for (killed, server) in servers.iter_mut().enumerate() {
        let first = values.len() as u32;
        await_replicas(&url, &job);
        values.extend((first..first + EACH).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()));
        large.push(cluster.schedule(&LARGE, (1 << 19) + killed).unwrap());
        until(|| lines(&log).len() as u32 > first + EACH / 3);
        server.kill();
        // Scheduled and run meanwhile.
        let next = first + EACH;
        values.extend((next..next + EACH).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()));
        until(|| lines(&log).len() as u32 > next + EACH / 3);
        server.restart();
    }
    cluster.join().unwrap();
    let size = values.len() as u32;
    assert_eq!(cluster.fetch(values).unwrap(), (0..size).collect::<Vec<_>>());
    for (killed, value) in large.into_iter().enumerate() {
        assert_eq!(value.fetch().unwrap().len(), (1 << 19) + killed);
    }
    let mut ran = lines(&log);
    ran.sort_unstable();
    assert_eq!(ran, (0..size).collect::<Vec<_>>(), "no worker died, so each ran once");
    assert_eq!(cluster.metrics().returned, 0);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_waits_until_the_servers_have_a_leader() {
    // One try of a start asks fewer times than this.
    const ASKED: usize = 14;
    let _alone = alone();
    let mut servers = three();
    servers[1].kill();
    servers[2].kill();
    let (sieve, asked) = (Sieve::before(servers[0].port()), Arc::new(AtomicUsize::new(0)));
    let its = asked.clone();
    sieve.lose(move |message| {
        its.fetch_add(usize::from(message.contains("$JS.API.STREAM.")), Ordering::Relaxed);
        false
    });
    let (url, job, dir) = (sieve.url(), job(), tempfile::tempdir().unwrap());
    let starts = thread::spawn(move || started(&url, &job, Duration::from_secs(200)));
    until(|| asked.load(Ordering::Relaxed) > ASKED);
    servers[1].restart();
    servers[2].restart();
    let cluster = starts.join().unwrap();
    assert_eq!(cluster.schedule(&LOG, (dir.path().join("log"), 7)).unwrap().fetch().unwrap(), 7);
}

/// The server that is left has no leader for any stream, and answers nothing about them. The coordinator and the workers are connected to it all the time.
#[test]
#[ignore = "needs a server: ci/nats"]
fn the_loss_of_two_of_three_servers_is_raised_until_one_is_back_and_loses_nothing() {
    const SIZE: u32 = 1_000;
    let _alone = alone();
    let mut servers = three();
    let (job, dir) = (job(), tempfile::tempdir().unwrap());
    let log = dir.path().join("log");
    let cluster = started(&servers[0].url(), &job, Duration::from_secs(15));
    await_replicas(&servers[0].url(), &job);
    let values: Vec<_> = (0..SIZE).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()).collect();
    until(|| lines(&log).len() > 10);
    servers[1].kill();
    servers[2].kill();
    let raised = cluster.join().unwrap_err();
    assert!(matches!(raised, ClusterError::Unavailable { .. }), "{raised}");
    servers[1].restart();
    until(|| cluster.done().is_ok());
    cluster.join().unwrap();
    assert_eq!(cluster.fetch(values).unwrap(), (0..SIZE).collect::<Vec<_>>());
    let mut ran = lines(&log);
    ran.sort_unstable();
    assert_eq!(ran, (0..SIZE).collect::<Vec<_>>(), "no worker died, so each ran once");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn the_roll_of_a_group_is_kept_by_as_many_servers_as_it_asks_for() {
    let _alone = alone();
    let servers = three();
    let (url, name) = (servers.each_ref().map(Server::url).join(","), job());
    let options = GroupOptions::new(&url, &name).token(&token()).replicas(3).lease(Duration::from_secs(60));
    let group = Group::join(options).unwrap();
    assert_eq!(group.form().unwrap().members.len(), 1);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let kept = tokio.block_on(async {
        use futures_util::TryStreamExt;
        let client = async_nats::ConnectOptions::with_token(token()).connect(servers[0].url()).await.unwrap();
        let context = async_nats::jetstream::new(client);
        context.streams().try_collect::<Vec<_>>().await.unwrap()
    });
    let replicas: Vec<usize> = kept.iter().map(|stream| stream.config.num_replicas).collect();
    assert_eq!(replicas, [3]);
}
