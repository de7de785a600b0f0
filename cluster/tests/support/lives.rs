//! How worker processes are started, die, come back and leave: the same over processes and over NATS. Each test gives a cluster with one worker, `worker-0`, unless it says otherwise.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterCoordinator, RemoteState};
use rustix::process::Signal;

use super::{GATE, files, is_dead, pid_in, send, until};

/// The state of the newest worker of that name.
pub(crate) fn state(cluster: &ClusterCoordinator, name: &str) -> Option<WorkerState> {
    cluster.workers().iter().find(|worker| worker.id.name() == name).map(|worker| worker.state)
}

/// The cluster starts three workers, each so long after the one before, and all within the second time. It begins when so many are ready.
pub(crate) fn they_are_started_one_after_the_other(
    start: impl Fn(Duration, Duration, usize) -> ClusterCoordinator,
) {
    let (short, long) = (Duration::from_millis(5), Duration::from_secs(5_000));
    // In the last case the thread that starts the others does not outlive the job.
    for (each, most, workers) in [(short, long, 3), (long, short, 3), (long, long, 1)] {
        let cluster = start(each, most, workers);
        assert_eq!(cluster.workers().len(), workers);
        cluster.shutdown().unwrap();
    }
}

pub(crate) fn one_that_dies_is_started_again(cluster: &ClusterCoordinator) {
    let (_dir, begun, gate) = files();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    send(Signal::KILL, first);
    let second = pid_in(&begun);
    assert_ne!(first, second);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second, 2));
    cluster.join().unwrap();
    assert_eq!(cluster.workers()[0].id.incarnation(), 2);
}

/// A machine may have no room for a process just now, or a program be replaced. The cluster's workers run that program.
pub(crate) fn one_whose_program_cannot_be_started_for_a_while_comes_back(
    start: impl FnOnce(&Path) -> ClusterCoordinator,
) {
    let (dir, begun, gate) = files();
    let program = dir.path().join("program");
    let link = || std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    link();
    let cluster = start(&program);
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    fs::remove_file(&program).unwrap();
    send(Signal::KILL, first);
    until(|| state(&cluster, "worker-0") == Some(WorkerState::Gone));
    // The first try has failed by now, or will; there is another one after it.
    sleep(Duration::from_millis(20)).unwrap();
    assert!(cluster.done().is_ok(), "it is not given up");
    link();
    fs::write(gate, "").unwrap();
    let (second, attempt) = value.fetch().unwrap();
    assert!(second != first && attempt == 2);
}

/// The cluster's only worker has that name. It takes nothing more, and nobody starts it again.
pub(crate) fn by_sigterm_one_ends_what_it_has_and_leaves(cluster: &ClusterCoordinator, name: &str) {
    let (_dir, begun, gate) = files();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let pid = pid_in(&begun);
    let later = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    send(Signal::TERM, pid);
    until(|| state(cluster, name) == Some(WorkerState::Draining));
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (pid, 1));
    until(|| state(cluster, name) == Some(WorkerState::Gone));
    until(|| is_dead(pid));
    assert!(matches!(later.state(), RemoteState::Queued), "{later:?}");
    assert_eq!(cluster.metrics().returned, 0);
}
