//! A worker in another language uses the timers of its agent.
#![cfg(target_os = "linux")]

mod agent_support;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};

use agent_support::{FOREBEAR_AGENT, Told};
use forebear_supervise::agent::{GroupState, LocalAgent};
use support::Watchdog;
use tempfile::tempdir;

#[test]
fn a_worker_in_python_has_timers_and_is_killed_when_it_is_stuck() {
    let _dog = Watchdog::new("");
    let python = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        println!(
            "skipped: a_worker_in_python_has_timers_and_is_killed_when_it_is_stuck: there is no python3"
        );
        return;
    }
    let dir = tempdir().unwrap();
    let told = Told::default();
    let agent = LocalAgent::builder("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/expiration_timers.py"))
        .launcher(FOREBEAR_AGENT)
        .logs(dir.path())
        .workers(2)
        .on_event(told.hook())
        .build()
        .unwrap();
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Succeeded, 1), "{:?}", result.first_failure());
    assert_eq!(told.count("the timer stuck "), 1);
    assert_eq!(told.count("has ended with signal 9, after its timer stuck "), 1);
    for (rank, sum) in [(0, 249_500), (1, 250_000)] {
        let text = format!("{{\"rank\": {rank}, \"attempt\": 1, \"sum\": {sum}}}");
        assert_eq!(String::from_utf8(result.results[&rank].clone()).unwrap(), text);
    }
}
