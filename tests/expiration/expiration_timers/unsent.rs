//! Releases that cannot be sent, since the server stands still and its queue is full.

use std::time::{Duration, Instant};

use forebear::timer::local::{ENVIRONMENT, LocalTimerClient};
use forebear::timer::{Scope, Signal, TimerClient, TimerGuard, configure, expires};

use crate::worker::{LONG, StandingStill, get_stuck, leave, say, wait_for_word, wait_until};

/// Of the timers that are released in time. Longer than what follows takes on any machine.
const SHORT: Duration = Duration::from_secs(3);

/// A client that waits for its server longer than the test lasts: so who waits is killed by its own clock, and the test fails.
fn patient() -> LocalTimerClient {
    LocalTimerClient::connect_timeout(std::env::var_os(ENVIRONMENT).unwrap(), LONG).unwrap()
}

/// Says so much that the server's queue is full: its size by that of a send buffer, of which each message takes 512 bytes or more.
fn fill(client: &LocalTimerClient) {
    let size = std::fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap();
    for _ in 0..size.trim().parse::<usize>().unwrap() / 512 {
        client.release(&Scope::named("nothing")).unwrap();
    }
}

pub(crate) fn play(role: &str) {
    match role {
        "releases when the queue is full" => {
            configure(patient());
            let client = patient();
            say("connected");
            wait_for_word();
            let until = Instant::now() + SHORT;
            let builder = || TimerGuard::builder().client(&client);
            let dropped = builder().expires(SHORT).unwrap();
            let released = builder().scope("released").expires(SHORT).unwrap();
            // By another connection, whose queue has room: it is still there when the others have expired.
            let probe = TimerGuard::builder().signal(Signal::LogOnly).scope("probe").expires(SHORT).unwrap();
            fill(&client);
            drop(dropped);
            released.release().unwrap();
            assert!(Instant::now() < until, "this machine is too slow for this test");
            say("released");
            wait_until(until);
            say("past");
            wait_for_word();
            drop(probe);
            // It can be used as before.
            drop(builder().expires(LONG).unwrap());
            leave();
        }
        "acquires again what it has released" => {
            let client = patient();
            say("connected");
            wait_for_word();
            let (scope, deadline) = (Scope::named("scope"), Instant::now());
            client.acquire(&scope, deadline + LONG).unwrap();
            fill(&client);
            client.release(&scope).unwrap();
            say("released");
            // Waits for room; the release does not stop it, though it was said in another way.
            client.acquire(&scope, deadline + LONG).unwrap();
            client.acquire(&scope, deadline).unwrap();
            get_stuck();
        }
        "ends when the queue is full" => {
            let client = patient();
            say("connected");
            wait_for_word();
            let kept = Scope::named("kept");
            client.acquire(&kept, Instant::now() + LONG).unwrap();
            client.acquire(&Scope::named("released"), Instant::now()).unwrap();
            fill(&client);
            client.release(&Scope::named("released")).unwrap();
            drop(client);
            say("released");
            configure(patient());
            drop(expires(LONG).unwrap());
            say("closed");
            wait_for_word();
            leave();
        }
        _ => {}
    }
}

#[test]
fn who_releases_in_time_while_the_servers_queue_is_full_does_not_wait_and_is_not_killed() {
    StandingStill::with("releases when the queue is full").kills_nobody();
}

#[test]
fn a_release_that_could_not_be_sent_does_not_stop_a_later_timer_of_its_scope() {
    let StandingStill { mut server, mut worker, _around } =
        StandingStill::with("acquires again what it has released");
    worker.expect("released");
    server.signal(libc::SIGCONT);
    worker.dies_by(libc::SIGKILL);
    server.expect("scope");
    server.expect("reaped");
    server.word();
    server.ends_well();
}

#[test]
fn what_a_client_could_not_send_is_heard_though_it_has_closed_its_connection() {
    let StandingStill { mut server, mut worker, _around } =
        StandingStill::with("ends when the queue is full");
    worker.expect("released");
    server.signal(libc::SIGCONT);
    worker.expect("closed");
    worker.word();
    worker.ends_well();
    server.expect("1 orphaned");
    server.word();
    server.ends_well();
}
