//! Workers that end, or close their connection, with and without timers.

use std::mem;
use std::time::{Duration, Instant};

use forebear::timer::local::{LocalTimerClient, configure_from_env};
use forebear::timer::{Scope, TimerClient, expires};

use crate::worker::{LONG, Server, Told, Worker, get_stuck, leave, say, wait_for_word};

pub(crate) fn play(role: &str) {
    match role {
        "releases and exits" => {
            configure_from_env().unwrap();
            drop(expires(LONG).unwrap());
            leave();
        }
        "exits before it releases" => {
            configure_from_env().unwrap();
            let one = expires(LONG).unwrap();
            let other = expires(LONG).unwrap();
            mem::forget((one, other));
            leave();
        }
        "closes and is stuck" => {
            let client = LocalTimerClient::from_env().unwrap();
            client.acquire(&Scope::named("left"), Instant::now() + Duration::from_millis(300)).unwrap();
            drop(client);
            get_stuck();
        }
        "closes and lives" => {
            let client = LocalTimerClient::from_env().unwrap();
            client.acquire(&Scope::named("left"), Instant::now() + LONG).unwrap();
            drop(client);
            wait_for_word();
            // Its timers are found again by another connection.
            let client = LocalTimerClient::from_env().unwrap();
            client.release(&Scope::named("left")).unwrap();
            drop(client);
            say("released");
            wait_for_word();
            leave();
        }
        "stops itself" => {
            configure_from_env().unwrap();
            let _timer = expires(Duration::from_millis(50)).unwrap();
            // SAFETY: asks nothing of its caller.
            unsafe { libc::raise(libc::SIGSTOP) };
            panic!("it goes on");
        }
        _ => {}
    }
}

#[test]
fn who_has_released_and_exits_leaves_no_trace() {
    let mut server = Server::start();
    let worker = Worker::start("releases and exits", &server);
    let pid = worker.pid();
    worker.ends_well();
    server.expect(&Told::Ended(pid, false));
    server.counts(3);
    assert_eq!(server.handle.stats().orphaned, 0);
    let told = server.stop();
    assert!(!told.iter().any(|told| matches!(told, Told::Orphaned(..) | Told::Expired(..))), "{told:#?}");
}

#[test]
fn when_a_worker_ends_its_timers_are_dropped_and_nobody_is_killed() {
    let mut server = Server::start();
    let worker = Worker::start("exits before it releases", &server);
    let pid = worker.pid();
    worker.ends_well();
    server.expect(&Told::Orphaned(pid, 2));
    server.expect(&Told::Ended(pid, false));
    let told = server.stop();
    assert!(!told.iter().any(|told| matches!(told, Told::Reaped(..))), "{told:#?}");
}

#[test]
fn who_has_only_closed_its_connection_is_killed_all_the_same() {
    let mut server = Server::start();
    let worker = Worker::start("closes and is stuck", &server);
    let pid = worker.pid();
    server.expect(&Told::Closed(pid));
    worker.dies_by(libc::SIGKILL);
    server.expect(&Told::Reaped(pid, "left".into()));
    server.expect(&Told::Ended(pid, true));
}

#[test]
fn who_comes_back_finds_its_timers() {
    let mut server = Server::start();
    let mut worker = Worker::start("closes and lives", &server);
    let pid = worker.pid();
    server.expect(&Told::Closed(pid));
    worker.word();
    worker.expect("released");
    worker.word();
    worker.ends_well();
    server.expect(&Told::Ended(pid, false));
    // An acquire, a release, and the end.
    server.counts(3);
    let told = server.stop();
    assert!(!told.iter().any(|told| matches!(told, Told::Orphaned(..))), "{told:#?}");
    assert_eq!(told.iter().filter(|told| **told == Told::Joined(pid)).count(), 1, "{told:#?}");
}

#[test]
fn a_stopped_process_is_killed_too() {
    let mut server = Server::start();
    let worker = Worker::start("stops itself", &server);
    let pid = worker.pid();
    worker.dies_by(libc::SIGKILL);
    server.expect(&Told::Ended(pid, true));
}
