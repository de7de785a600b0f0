//! Workers and coordinators that die, stand still or cannot be started.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterError, FetchError};
use rustix::process::{Pid, Signal, kill_process};

use crate::dying::{judged, lives};
use crate::support::process::Process;
use crate::support::{Server, job, shared_url, until};
use crate::{
    ADD, GATE, LEASE, LONG, STUCK, check, engine, files, is_dead, pid_in, start, state, with_strangers,
};

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_nobody_sees_die_is_gone_after_its_lease() {
    let (_dir, begun, gate) = files();
    let (cluster, [first, second], value) = with_strangers(&begun, &gate);
    fs::remove_file(&begun).unwrap();
    first.signal(Signal::KILL);
    assert_eq!(pid_in(&begun), second.0.id());
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second.0.id(), 2));
    assert_eq!(state(&cluster, "first"), Some(WorkerState::Gone));
    assert_eq!(cluster.metrics().returned, 1);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_stands_still_loses_its_tasks_and_joins_anew() {
    let (_dir, begun, gate) = files();
    let (cluster, [first, second], value) = with_strangers(&begun, &gate);
    fs::remove_file(&begun).unwrap();
    first.signal(Signal::STOP);
    assert_eq!(pid_in(&begun), second.0.id());
    until(|| state(&cluster, "first") == Some(WorkerState::Gone));
    // What it says when it goes on counts for nothing.
    first.signal(Signal::CONT);
    until(|| state(&cluster, "first") == Some(WorkerState::Ready));
    let workers = cluster.workers();
    assert_eq!(workers.iter().find(|worker| worker.id.name() == "first").unwrap().id.incarnation(), 2);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second.0.id(), 2));
    cluster.join().unwrap();
}

/// A worker that stands still for longer than a lease is replaced, although its process has not died.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_of_this_process_that_stands_still_for_a_lease_is_started_again() {
    let (_dir, begun, gate) = files();
    let engine = engine(&shared_url(), &job(), LEASE).workers(1).cancel_grace(Duration::from_millis(300));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::STOP).unwrap();
    let second = pid_in(&begun);
    assert_ne!(first, second);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second, 2));
    until(|| is_dead(first));
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_heeds_no_cancel_ends_its_worker() {
    let (_dir, begun, _gate) = files();
    let engine = engine(&shared_url(), &job(), LEASE).workers(1).cancel_grace(Duration::from_millis(10));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&STUCK, begun.clone()).unwrap();
    until(|| begun.exists());
    value.cancel();
    assert!(value.fetch().is_err());
    // It is started again, as the next incarnation.
    until(|| cluster.workers().iter().any(|worker| worker.id.incarnation() == 2));
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_ends_its_process_is_not_tried_for_ever_and_others_go_on() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).max_attempts(2).start().unwrap();
    judged::a_task_that_ends_its_process_fails(&cluster, || {
        assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    });
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn tasks_beside_the_one_that_kills_their_worker_are_not_judged_before_they_have_run_alone() {
    let engine = engine(&shared_url(), &job(), LONG).workers(1).slots(4).on_warning(|_| {});
    let cluster = start(engine).max_attempts(2).start().unwrap();
    judged::neighbours_are_judged_by_a_death_of_their_own(&cluster);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_kill_by_the_program_is_no_task_s_fault() {
    let engine = engine(&shared_url(), &job(), LONG).workers(1).on_warning(|_| {});
    let control = engine.control();
    let cluster = start(engine).max_attempts(1).start().unwrap();
    judged::what_the_program_kills_is_no_death(&cluster, || {
        control.kill("worker-0");
        control.add("worker-0").unwrap();
    });
}

/// The workers cancel what they have when the server is away for a lease. That is no death.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_whose_workers_lose_the_server_again_and_again_is_not_judged_for_that() {
    let mut server = Server::start();
    let (_dir, begun, gate) = files();
    let cluster = start(engine(&server.url(), &job(), LEASE).workers(1)).max_attempts(1).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    for _ in 0..2 {
        let pid = pid_in(&begun);
        fs::remove_file(&begun).unwrap();
        server.kill();
        sleep(2 * LEASE).unwrap();
        server.restart();
        assert_eq!(pid_in(&begun), pid, "it is the same process");
    }
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 3);
    cluster.join().unwrap();
}

/// Nobody knows whether a worker comes from elsewhere, so this is no error. The time limit of a fetch is that of the wait.
#[test]
#[ignore = "needs a server: ci/nats"]
fn when_all_workers_of_this_process_are_given_up_the_operator_is_told_and_tasks_wait_for_others() {
    let job = job();
    let (said, heard) = std::sync::mpsc::channel();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let engine = engine(&shared_url(), &job, LONG).workers(1).restarts(0).on_warning(hook);
    let engine = engine.program("sh").args(["-c", "head -c 1 >/dev/null; exit 3"]);
    let cluster = start(engine).min_workers(0).start().unwrap();
    let value = cluster.schedule(&ADD, (1, 2)).unwrap();
    let warning = heard.recv_timeout(Duration::from_secs(100)).unwrap();
    assert!(
        warning.contains("`worker-0` is not started again") && warning.contains("status: 3"),
        "{warning}"
    );
    let fetched = value.fetch_timeout(Duration::from_millis(10));
    assert!(matches!(fetched, Err(FetchError::TimedOut)), "{fetched:?}");
    assert!(!cluster.done().unwrap());
    let _worker = Process::worker(&shared_url(), &job, "elsewhere");
    assert_eq!(value.fetch().unwrap(), 3);
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r23_workers_are_started_one_after_the_other() {
    lives::they_are_started_one_after_the_other(|each, most, workers| {
        let engine = engine(&shared_url(), &job(), LONG).workers(3).start_delay(each, most);
        start(engine).min_workers(workers).start().unwrap()
    });
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r66_a_clone_of_an_engine_that_runs_is_refused() {
    let engine = engine(&shared_url(), &job(), LONG).workers(1);
    let cluster = start(engine.clone()).start().unwrap();
    let second = start(engine).start();
    assert!(
        matches!(second, Err(ClusterError::Start { message, .. }) if message.contains("a clone of this engine"))
    );
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}

/// One that the coordinator has started, and one from elsewhere, as `systemctl stop` asks it.
#[test]
#[ignore = "needs a server: ci/nats"]
fn sigterm_has_a_worker_end_what_it_has_and_leave() {
    for elsewhere in [false, true] {
        let job = job();
        let cluster = start(engine(&shared_url(), &job, LONG).workers(usize::from(!elsewhere)));
        let cluster = cluster.min_workers(0).start().unwrap();
        let name = if elsewhere { "lone" } else { "worker-0" };
        let _lone = elsewhere.then(|| Process::worker(&shared_url(), &job, name));
        lives::by_sigterm_one_ends_what_it_has_and_leaves(&cluster, name);
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_dies_is_started_again() {
    let engine = engine(&shared_url(), &job(), LONG).workers(1);
    lives::one_that_dies_is_started_again(&start(engine).start().unwrap());
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_whose_program_cannot_be_started_for_a_while_comes_back() {
    lives::one_whose_program_cannot_be_started_for_a_while_comes_back(|program| {
        let engine = engine(&shared_url(), &job(), LONG).workers(1).program(program).restarts(1_000);
        start(engine).start().unwrap()
    });
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn workers_end_with_their_coordinator_and_its_job_can_start_again() {
    let (_dir, begun, _gate) = files();
    let (job, url, begun_text) = (job(), shared_url(), begun.to_str().unwrap().to_owned());
    let settings = [("COORDINATE", &*url), ("JOB", &*job), ("BEGUN", &*begun_text)];
    let coordinator = Process::start("coordinator_process", &settings);
    let pid = pid_in(&begun);
    // While it runs, nobody else coordinates this job.
    let refused = start(engine(&url, &job, LEASE)).min_workers(0).start();
    assert!(
        matches!(refused, Err(ClusterError::Start { message, .. }) if message.contains("another coordinator"))
    );
    drop(coordinator);
    until(|| is_dead(pid));
    // Its queue is dropped, and its worker's lock has expired.
    let cluster = start(engine(&url, &job, LEASE).workers(1)).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    cluster.join().unwrap();
    assert_eq!(cluster.metrics().scheduled, 1);
}

/// It goes on, still has tasks in its queue, and would have heard the requests to join that were meant for its successor.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_coordinator_that_stood_still_beyond_its_lease_leaves_the_job_to_its_successor() {
    let (dir, begun, gate) = files();
    let [told, leave] = ["told", "leave"].map(|name| dir.path().join(name));
    let (job, url) = (job(), shared_url());
    let text = |file: &Path| file.to_str().unwrap().to_owned();
    let (begun_text, told_text, leave_text) = (text(&begun), text(&told), text(&leave));
    let settings = [
        ("OUST", &*url),
        ("JOB", &*job),
        ("BEGUN", &*begun_text),
        ("TOLD", &*told_text),
        ("LEAVE", &*leave_text),
    ];
    let mut first = Process::start("ousted_coordinator", &settings);
    let _workers = [Process::worker(&url, &job, "one"), Process::worker(&url, &job, "two")];
    pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    first.signal(Signal::STOP);
    // It starts when the lock has expired.
    let cluster = start(engine(&url, &job, LEASE)).min_workers(2).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let pid = pid_in(&begun);
    first.signal(Signal::CONT);
    until(|| told.exists());
    for n in 0..200 {
        assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
    }
    // Its end removes nothing either.
    fs::write(leave, "").unwrap();
    assert!(first.0.wait().unwrap().success());
    let more: Vec<_> = (0..200).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (pid, 1));
    assert_eq!(cluster.fetch(more).unwrap(), (1..=200).collect::<Vec<_>>());
    cluster.join().unwrap();
    assert_eq!(cluster.metrics().returned, 0);
    assert!(cluster.workers().iter().all(|worker| worker.id.incarnation() == 1), "{:?}", cluster.workers());
    let reason = fs::read_to_string(&told).unwrap();
    assert!(reason.contains("Unavailable") && reason.contains("a newer coordinator"), "{reason}");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_stands_still_ends_with_its_coordinator() {
    let (_dir, begun, _gate) = files();
    let (job, url, begun_text) = (job(), shared_url(), begun.to_str().unwrap().to_owned());
    let settings = [("COORDINATE", &*url), ("JOB", &*job), ("BEGUN", &*begun_text)];
    let coordinator = Process::start("coordinator_process", &settings);
    let pid = pid_in(&begun);
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    drop(coordinator);
    until(|| is_dead(pid));
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r62_a_coordinator_that_is_killed_goes_on_at_its_checkpoint() {
    let (url, job) = (shared_url(), job());
    check::check(|dir| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["restarted_coordinator", "--exact", "--nocapture"]);
        command
            .env("FOREBEAR_TEST_RESTART", &url)
            .env("FOREBEAR_TEST_JOB", &job)
            .env("FOREBEAR_TEST_DIR", dir);
        command
    });
}
