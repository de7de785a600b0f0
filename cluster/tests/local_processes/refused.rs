//! Programs that are no workers of this coordinator, or do not start.

use std::time::{Duration, Instant};

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{
    ClusterCoordinator, ClusterCoordinatorBuilder, ClusterError, InProcess, LocalProcesses, Tasks,
};

use crate::deaths::until;
use crate::{After, Before, PID, engine, start};

/// No start of these tests waits for so long.
const LONG: Duration = Duration::from_secs(20);

/// Whatever the worker was built from, the start says which task is another one.
#[test]
fn a_worker_with_other_tasks_is_refused_and_the_start_says_which() {
    for (worker, says) in [
        ("strange_worker", "does not know the coordinator's `bytes`"),
        ("older_worker", "its `pid` is `task () -> u64`, the coordinator's `task () -> u32`"),
        ("worker_of_twins", "its `pid` is `two of this name`, the coordinator's `task () -> u32`"),
    ] {
        let engine = LocalProcesses::new(2).args([worker, "--exact", "--nocapture"]);
        let refused = start(engine).start();
        let Err(ClusterError::Start { message, .. }) = refused else { panic!("no worker can work") };
        assert!(message.contains(says), "{message}");
    }
}

/// It was built later, and its coordinator asks for none of the new ones.
#[test]
fn a_worker_that_knows_more_tasks_than_its_coordinator_works() {
    let engine = LocalProcesses::new(1).args(["newer_worker", "--exact", "--nocapture"]);
    let cluster = start(engine).start().unwrap();
    cluster.schedule(&PID, ()).unwrap().fetch().unwrap();
    cluster.join().unwrap();
}

/// The name of a type says nothing of its fields.
#[test]
fn a_worker_whose_types_have_other_fields_is_refused_and_the_start_says_which() {
    let names = |tasks: Tasks| tasks.signatures().next().unwrap().1.split(" as ").next().unwrap().to_owned();
    assert_eq!(names(Before::known()), names(After::known()));
    let engine = LocalProcesses::new(1).args(["worker_with_other_fields", "--exact", "--nocapture"]);
    let refused = ClusterCoordinator::builder(engine).tasks(After::known()).start();
    let Err(ClusterError::Start { message, .. }) = refused else { panic!("it reads widths as heights") };
    for says in
        ["its `rows` is", "as [Size {height: u32, width: u32}]", "as [Size {width: u32, height: u32}]"]
    {
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn a_start_whose_workers_do_not_come_ends_with_an_error() {
    // However long this takes, no worker is given up meanwhile.
    let engine = LocalProcesses::new(1).program("sleep").args(["1000"]).cancel_grace(Duration::ZERO);
    let refused = start(engine).start_timeout(Duration::from_millis(200)).start();
    let Err(ClusterError::Start { message, .. }) = refused else { panic!("no worker can come") };
    assert!(message.contains("0 of 1 workers were ready"), "{message}");
}

#[test]
fn a_start_that_waits_for_more_workers_than_its_engine_starts_is_refused_at_once_and_says_what_to_do() {
    let refusal = |builder: ClusterCoordinatorBuilder| {
        let begun = Instant::now();
        let error = builder.start_timeout(LONG).start().unwrap_err();
        assert!(begun.elapsed() < LONG / 2);
        error
    };
    for none in [
        start(LocalProcesses::new(0)),
        ClusterCoordinator::builder(InProcess::new(0)),
        start(LocalProcesses::new(0).start_delay(LONG, LONG)),
    ] {
        let error = refusal(none);
        assert!(matches!(error, ClusterError::TooFewWorkers { wanted: 1, starts: 0, .. }), "{error:?}");
        assert!(error.to_string().contains("set `min_workers(0)` and add others"), "{error}");
    }
    let error = refusal(start(engine(1)).min_workers(2));
    assert!(matches!(error, ClusterError::TooFewWorkers { wanted: 2, starts: 1, .. }), "{error:?}");
    // It has no worker, and may be given some.
    let engine = engine(0);
    let control = engine.control();
    let cluster = start(engine).min_workers(0).start().unwrap();
    control.add("late").unwrap();
    until(|| cluster.workers().iter().any(|worker| worker.state == WorkerState::Ready));
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let error = start(LocalProcesses::new(1).program("/no/such/program")).start().unwrap_err();
    let says = error.to_string();
    assert!(says.contains("did not start") && says.contains("/no/such/program"), "{says}");
}
