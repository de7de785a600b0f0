//! Those that are stuck are killed, and nobody else.

use std::time::{Duration, Instant};

use forebear::timer::local::configure_from_env;
use forebear::timer::{Signal, TimerGuard, expires};

use crate::worker::{LONG, Server, Told, Worker, get_stuck, leave, say, wait_for_word};

/// A timer that is long enough for what is between two calls, and short enough for a test.
const SHORT: Duration = Duration::from_secs(1);

pub(crate) fn play(role: &str) {
    match role {
        "stuck" => {
            configure_from_env().unwrap();
            let _timer = expires(Duration::from_millis(20)).unwrap();
            get_stuck();
        }
        "in time" => {
            configure_from_env().unwrap();
            drop(expires(LONG).unwrap());
            say("done");
            wait_for_word();
            leave();
        }
        "recursion" => {
            configure_from_env().unwrap();
            deeper(4, Instant::now() + SHORT);
            leave();
        }
        "recursion, stuck inside" => {
            configure_from_env().unwrap();
            let level = |after| TimerGuard::builder().scope("level").expires(after).unwrap();
            let _outer = level(LONG);
            let _inner = level(Duration::from_millis(20));
            get_stuck();
        }
        "ten nested" => {
            configure_from_env().unwrap();
            nested(10);
            say("done");
            wait_for_word();
            leave();
        }
        _ => {}
    }
}

/// Acquires one scope at each level; all but the innermost want to be over by `until`, which passes before they are.
fn deeper(levels: u32, until: Instant) {
    let after = if levels == 1 { LONG } else { until.saturating_duration_since(Instant::now()) };
    let guard = TimerGuard::builder().scope("level").expires(after).unwrap();
    if levels > 1 {
        deeper(levels - 1, until);
    } else {
        // That the server has looked after `until` is told by a timer which only logs.
        let after = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let probe = TimerGuard::builder().scope("probe").signal(Signal::LogOnly).expires(after).unwrap();
        wait_for_word();
        drop(probe);
    }
    guard.release().unwrap();
}

fn nested(levels: u32) {
    let _timer = TimerGuard::builder().scope(format!("level {levels}")).expires(LONG).unwrap();
    if levels > 1 {
        nested(levels - 1);
    }
}

#[test]
fn a_deadline_holds_when_every_thread_is_stuck_in_a_computation() {
    let mut server = Server::start();
    let worker = Worker::start("stuck", &server);
    let pid = worker.pid();
    worker.dies_by(libc::SIGKILL);
    server.expect(&Told::Ended(pid, true));
    let told = server.stop();
    // First that it has expired, then that it was killed, then that it has ended; once each.
    let of_it = |told: &&Told| matches!(told, Told::Expired(..) | Told::Reaped(..) | Told::Ended(..));
    let of_it: Vec<_> = told.iter().filter(of_it).collect();
    assert!(
        matches!(of_it[..], [Told::Expired(a, _), Told::Reaped(b, _), Told::Ended(c, true)]
            if [*a, *b, *c] == [pid; 3]),
        "{told:#?}"
    );
}

#[test]
fn of_a_mixed_group_the_stuck_half_dies_and_the_other_half_ends_well() {
    let server = Server::start();
    let role = |n: usize| if n.is_multiple_of(2) { "stuck" } else { "in time" };
    let group: Vec<_> = (0..8).map(|n| Worker::start(role(n), &server)).collect();
    for (n, mut worker) in group.into_iter().enumerate() {
        if n.is_multiple_of(2) {
            worker.dies_by(libc::SIGKILL);
        } else {
            worker.expect("done");
            worker.ends_well();
        }
    }
    assert_eq!(server.handle.stats().reaped, 4);
    server.handle.stop().unwrap();
}

#[test]
fn in_a_recursion_the_last_acquire_counts() {
    let mut server = Server::start();
    let mut worker = Worker::start("recursion", &server);
    server.expect(&Told::Expired(worker.pid(), "probe".into()));
    worker.word();
    worker.ends_well();
    assert_eq!(server.handle.stats().reaped, 0);
    let worker = Worker::start("recursion, stuck inside", &server);
    let pid = worker.pid();
    worker.dies_by(libc::SIGKILL);
    server.expect(&Told::Reaped(pid, "level".into()));
}

#[test]
fn many_processes_with_nested_timers_are_all_counted() {
    let server = Server::start();
    let mut workers: Vec<_> = (0..10).map(|_| Worker::start("ten nested", &server)).collect();
    for worker in &mut workers {
        worker.expect("done");
    }
    // Acquired and released, ten each.
    server.counts(200);
    workers.into_iter().for_each(Worker::ends_well);
    // And each leaves.
    server.counts(210);
    let stats = server.handle.stats();
    assert_eq!((stats.reaped, stats.orphaned), (0, 0));
}
