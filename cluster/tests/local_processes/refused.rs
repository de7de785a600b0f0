//! Programs that are no workers of this coordinator, or do not start.

use std::time::Duration;

use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses, Tasks};

use crate::{After, Before, PID, start};

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
fn a_program_that_cannot_be_started_is_an_error() {
    let error = start(LocalProcesses::new(1).program("/no/such/program")).start().unwrap_err();
    let says = error.to_string();
    assert!(says.contains("did not start") && says.contains("/no/such/program"), "{says}");
}
