//! When workers are started, started again, and given up.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterError, FetchError, LocalProcesses, LocalProcessesControl};
use rustix::process::Signal;

use crate::deaths::{AS_WORKER, GATE, lives, pid_in, send, until};
use crate::{PID, engine, start};

#[test]
fn r23_workers_are_started_one_after_the_other() {
    lives::they_are_started_one_after_the_other(|each, most, workers| {
        start(engine(3).start_delay(each, most)).min_workers(workers).start().unwrap()
    });
}

#[test]
fn the_end_of_a_cluster_warns_of_no_worker_that_is_just_starting() {
    let (dir, program) = (tempfile::tempdir().unwrap(), std::env::current_exe().unwrap());
    let (begun, go) = (dir.path().join("begun"), dir.path().join("go"));
    let script = format!(
        "touch '{}'; until test -e '{}'; do sleep 0.01; done; exec '{}' worker_process --exact --nocapture",
        begun.display(),
        go.display(),
        program.display()
    );
    let (said, heard) = mpsc::channel::<String>();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let engine = LocalProcesses::new(1).program("sh").args(["-c", &script]).on_warning(hook);
    let cluster = start(engine).min_workers(0).start().unwrap();
    until(|| begun.exists());
    drop(cluster);
    fs::write(go, "").unwrap();
    // The hook is dropped when the worker has ended.
    assert_eq!(heard.recv(), Err(mpsc::RecvError));
}

#[test]
fn a_worker_that_dies_is_started_again() {
    lives::one_that_dies_is_started_again(&start(engine(1)).start().unwrap());
}

#[test]
fn one_that_dies_is_started_again_also_after_the_file_of_the_program_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let ended = Command::new(&copy)
        .args(["restarts::removes_its_file", "--exact", "--nocapture"])
        .env("FOREBEAR_TEST_DIR", dir.path())
        .status();
    assert!(ended.unwrap().success());
    assert!(!copy.exists());
}

/// The program of the test above.
#[test]
fn removes_its_file() {
    if std::env::var_os("FOREBEAR_TEST_DIR").is_none() {
        return;
    }
    let cluster = start(engine(1)).start().unwrap();
    fs::remove_file(std::env::current_exe().unwrap()).unwrap(); // as a build does
    lives::one_that_dies_is_started_again(&cluster);
}

#[test]
fn when_no_worker_can_be_started_calls_that_wait_say_so() {
    let engine = LocalProcesses::new(2).program("false").restarts(1);
    let cluster = start(engine).min_workers(0).start().unwrap();
    // It may be given up already.
    let scheduled = cluster.schedule(&PID, ());
    let is_away = |error: &ClusterError| matches!(error, ClusterError::Unavailable { .. });
    assert!(scheduled.as_ref().err().is_none_or(is_away));
    assert!(is_away(&cluster.join().unwrap_err()));
    assert!(is_away(&cluster.done().unwrap_err()));
}

/// They are scheduled while there is a worker, which is killed before it has run them.
#[test]
fn when_no_worker_can_be_started_a_map_that_waits_says_so() {
    for ordered in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let [program, begun] = ["program", "begun"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
        let engine = LocalProcesses::new(1).program(&program).args(AS_WORKER).restarts(0);
        let cluster = start(engine).min_workers(1).start().unwrap();
        let taken = forebear::spawn({
            let (cluster, begun) = (cluster.clone(), begun.clone());
            move || {
                let map = cluster.map(&GATE, [(begun, dir.path().join("gate"))]);
                if ordered {
                    map.map(|taken| taken.map(drop)).last()
                } else {
                    map.unordered().map(|taken| taken.map(drop)).last()
                }
            }
        });
        taken.submit();
        until(|| begun.exists());
        fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink("/bin/false", &program).unwrap();
        send(Signal::KILL, pid_in(&begun));
        assert!(matches!(taken.take().unwrap(), Some(Err(ClusterError::Unavailable { .. }))));
    }
}

/// What is here already is fetched all the same.
#[test]
fn when_no_worker_can_be_started_a_fetch_that_waits_says_so_and_the_value_comes_with_the_next_worker() {
    let dir = tempfile::tempdir().unwrap();
    let [program, begun, gate] = ["program", "begun", "gate"].map(|name| dir.path().join(name));
    let link = |to: &Path| {
        let _ = fs::remove_file(&program);
        std::os::unix::fs::symlink(to, &program).unwrap();
    };
    let here = std::env::current_exe().unwrap();
    link(&here);
    let engine = LocalProcesses::new(1).program(&program).args(AS_WORKER).restarts(0);
    let control = engine.control();
    let cluster = start(engine).min_workers(1).start().unwrap();
    let before = cluster.schedule(&PID, ()).unwrap();
    before.fetch().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let waits = value.clone();
    let fetch = forebear::spawn(move || waits.fetch());
    fetch.submit();
    let first = pid_in(&begun);
    link(Path::new("/bin/false"));
    send(Signal::KILL, first);
    for fetched in [fetch.take().unwrap(), value.fetch(), value.fetch_timeout(Duration::from_secs(1_000))] {
        assert!(matches!(fetched, Err(FetchError::Unavailable { .. })), "{fetched:?}");
    }
    before.fetch().unwrap();
    link(&here);
    fs::write(gate, "").unwrap();
    control.add("another").unwrap();
    assert_eq!(value.fetch().unwrap().1, 2);
    cluster.join().unwrap();
}

/// A program that kills or drains a worker may start it again, but need not: the others are given up.
#[test]
fn when_no_worker_can_be_started_and_the_others_were_killed_or_drained_calls_that_wait_say_so() {
    for drains in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
        let engine = LocalProcesses::new(1).program(&program).args(AS_WORKER).restarts(0);
        let control = engine.control();
        let cluster = start(engine).min_workers(1).start().unwrap();
        fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink("/bin/false", &program).unwrap();
        // It ends before it is ready, and is given up.
        control.add("never").unwrap();
        let stop = if drains { LocalProcessesControl::drain } else { LocalProcessesControl::kill };
        stop(&control, "worker-0");
        let _ = cluster.schedule(&PID, ());
        assert!(matches!(cluster.join(), Err(ClusterError::Unavailable { .. })), "drains: {drains}");
    }
}

#[test]
fn a_worker_that_is_given_up_is_warned_of_by_name_and_reason() {
    let (said, heard) = mpsc::channel();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let engine = LocalProcesses::new(1).program("false").restarts(1).on_warning(hook);
    let _cluster = start(engine).min_workers(0).start().unwrap();
    assert_eq!(
        heard.recv_timeout(Duration::from_secs(60)).unwrap(),
        "the worker `worker-0` is not started again: it has ended 2 times in a row before it was ready (exit status: 1)"
    );
}

#[test]
fn a_worker_that_ends_again_and_again_with_nothing_to_do_is_given_up_and_calls_say_how_it_has_ended() {
    let dir = tempfile::Builder::new().prefix("crashing-").tempdir().unwrap();
    let begun = dir.path().join("begun");
    let args = ["crashing_worker", dir.path().to_str().unwrap(), "--exact", "--nocapture"];
    let engine = LocalProcesses::new(1).args(args).restarts(2).on_warning(|_| {});
    let cluster = start(engine).min_workers(0).start().unwrap();
    let dies_as = |incarnation: u64| {
        let pid = pid_in(&begun);
        fs::remove_file(&begun).unwrap();
        let is_ready = || {
            let workers = cluster.workers();
            let newest = workers.first().map(|worker| (worker.id.incarnation(), worker.state));
            newest == Some((incarnation, WorkerState::Ready))
        };
        until(is_ready);
        fs::write(dir.path().join(pid.to_string()), "").unwrap();
    };
    (1..=2).for_each(dies_as);
    // What it has finished is for it.
    let pid = pid_in(&begun);
    assert_eq!(cluster.schedule(&PID, ()).unwrap().fetch().unwrap(), pid);
    (3..=6).for_each(dies_as);
    until(|| cluster.done().is_err());
    let Err(ClusterError::Unavailable { reason, .. }) = cluster.join() else { panic!("it is given up") };
    assert!(reason.contains("`worker-0` at last so: exit status: 7"), "{reason}");
    assert!(!begun.exists(), "it is started no more");
}

#[test]
fn a_worker_that_ends_by_itself_is_warned_of_by_name_and_signal() {
    let dir = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| dir.path().join(name));
    let (said, heard) = mpsc::channel();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let cluster = start(engine(1).on_warning(hook)).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    until(|| begun.exists());
    send(Signal::KILL, pid_in(&begun));
    assert_eq!(
        heard.recv_timeout(Duration::from_secs(60)).unwrap(),
        "the worker `worker-0` has ended (signal: 9 (SIGKILL)). It is started again, and its tasks run again."
    );
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 2);
    cluster.join().unwrap();
}

#[test]
fn a_worker_whose_program_cannot_be_started_for_a_while_comes_back() {
    lives::one_whose_program_cannot_be_started_for_a_while_comes_back(|program| {
        let engine = LocalProcesses::new(1).program(program).args(AS_WORKER).restarts(1_000);
        start(engine).start().unwrap()
    });
}
