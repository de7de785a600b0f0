//! Child processes as workers, and signals.
#![cfg(unix)]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebear_supervise::{ChildFailed, Coordinator, JoinOptions};
use rustix::process::{Pid, Signal, getpid, kill_process};
use support::Watchdog;

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("there is a shell")
}

/// A shell that has come so far that it has said so.
fn shell_at_work(script: &str) -> Child {
    let mut child = shell(script);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "at work\n");
    child
}

#[test]
fn a_child_that_ends_well_is_joined() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.register("child", shell("exit 0")).unwrap();
    coordinator.join().unwrap();
}

#[test]
fn a_child_that_fails_stops_all_with_its_status() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.register("child", shell("exit 3")).unwrap();
    coordinator.spawn("waits", |me| Ok(me.wait_for_stop()?));
    let error = coordinator.join().unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!(failure.request(), "child");
    assert_eq!(failure.downcast_ref::<ChildFailed>().unwrap().status.code(), Some(3));
}

#[test]
fn a_child_that_somebody_kills_is_a_failure() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let child = shell_at_work("echo at work; exec sleep 1000");
    let pid = Pid::from_child(&child);
    coordinator.register("child", child).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let error = coordinator.join().unwrap_err();
    assert_eq!(error.failure().unwrap().downcast_ref::<ChildFailed>().unwrap().status.signal(), Some(9));
}

#[test]
fn a_stop_sends_a_child_sigterm_and_that_is_no_failure() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.register("child", shell_at_work("echo at work; exec sleep 1000")).unwrap();
    coordinator.request_stop();
    coordinator.join().unwrap();
    // One that comes after the stop gets it, too.
    coordinator.clear_stop();
    coordinator.request_stop();
    coordinator.register("late", shell_at_work("echo at work; exec sleep 1000")).unwrap();
    coordinator.join().unwrap();
}

#[test]
fn a_child_that_will_not_end_is_killed_and_named() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let deaf = shell_at_work("trap '' TERM; echo at work; exec sleep 1000");
    let pid = Pid::from_child(&deaf);
    coordinator.register("deaf", deaf).unwrap();
    coordinator.request_stop();
    let error = coordinator.join_with(JoinOptions::new().grace(Duration::from_millis(20))).unwrap_err();
    assert_eq!((error.stragglers()[0].name.as_str(), error.stragglers()[0].killed), ("deaf", true));
    // It has been reaped, as the join has waited for it: there is no such child any more.
    let gone = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    assert_eq!(gone.unwrap_err(), rustix::io::Errno::CHILD);
}

#[test]
fn the_first_signal_stops_and_the_second_ends_the_process() {
    let _dog = Watchdog::new("");
    const TEST: &str = "the_first_signal_stops_and_the_second_ends_the_process";
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        if support::is_child(TEST) {
            let signal =
                if std::env::var("SIGNAL").as_deref() == Ok("INT") { Signal::INT } else { Signal::TERM };
            let coordinator = Coordinator::builder().stop_on_signals().build().unwrap();
            kill_process(getpid(), signal).unwrap();
            coordinator.wait_for_stop().unwrap();
            coordinator.join().unwrap();
            eprintln!("stopped once");
            // A stop that was taken back lets the next signal be a first one.
            coordinator.clear_stop();
            kill_process(getpid(), signal).unwrap();
            coordinator.wait_for_stop().unwrap();
            eprintln!("stopped again");
            kill_process(getpid(), signal).unwrap();
            loop {
                std::thread::park();
            }
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env("FOREBEAR_TEST_CHILD", TEST)
            .env("SIGNAL", signal)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("stopped once") && told.contains("stopped again"), "{told}");
        assert_eq!(output.status.signal(), Some(number), "{told}");
    }
}

#[test]
fn when_no_coordinator_is_left_a_signal_ends_the_process() {
    let _dog = Watchdog::new("");
    const TEST: &str = "when_no_coordinator_is_left_a_signal_ends_the_process";
    if support::is_child(TEST) {
        drop(Coordinator::builder().stop_on_signals().build().unwrap());
        kill_process(getpid(), Signal::TERM).unwrap();
        loop {
            std::thread::park();
        }
    }
    let (well, told) = support::again_in_child(TEST, ("A", "B"), "");
    assert!(!well, "{told}");
}

/// As under `nohup`, or in the background of a shell.
#[test]
fn a_signal_that_the_process_ignores_stays_ignored() {
    let _dog = Watchdog::new("");
    const TEST: &str = "a_signal_that_the_process_ignores_stays_ignored";
    if !support::is_child(TEST) {
        let (well, told) = support::again_in_child(TEST, ("A", "B"), "trap '' INT;");
        assert!(well, "{told}");
        return;
    }
    let coordinator = Coordinator::builder().stop_on_signals().build().unwrap();
    for signal in [Signal::INT, Signal::INT, Signal::TERM] {
        assert!(!coordinator.should_stop(), "SIGINT was ignored before");
        kill_process(getpid(), signal).unwrap();
    }
    coordinator.wait_for_stop().unwrap();
    coordinator.join().unwrap();
    // Were the two taken, they would be a first and a second signal.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        assert_eq!(u64::from_str_radix(line.trim(), 16).unwrap() & 2, 2, "{line}");
    }
}

#[test]
fn a_child_that_was_waited_for_before_counts_by_its_status() {
    let _dog = Watchdog::new("");
    for code in [0, 3] {
        let mut child = shell(&format!("exit {code}"));
        child.wait().unwrap();
        let coordinator = Coordinator::new();
        coordinator.register("child", child).unwrap();
        let ended = coordinator.join();
        match code {
            0 => ended.unwrap(),
            _ => {
                let error = ended.unwrap_err();
                let failed: &ChildFailed = error.failure().unwrap().downcast_ref().expect("its status");
                assert_eq!(failed.status.code(), Some(3));
            }
        }
        // Nobody sends a signal to a number that may mean another process.
        coordinator.clear_stop();
        coordinator.request_stop();
        coordinator.join().unwrap();
    }
}
