//! Clients whose server is not there, goes, comes again, or stands still.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use forebear::timer::local::{
    KillProcess, Limits, LocalEvent, LocalTimerClient, LocalTimerServer, LocalWorker, LogOnly, Refusal,
    configure_from_env,
};
use forebear::timer::{
    Overdue, Reap, Scope, Signal, TimerClient, TimerError, TimerEvent, TimerGuard, expires,
};

use crate::worker::{
    Copies, LONG, Server, StandingStill, Told, Worker, leave, say, wait_for_word, wait_until,
};

pub(crate) fn play(role: &str) {
    match role {
        "serves" => {
            let path = std::env::var_os("PATH_OF_SERVER").unwrap();
            let server = LocalTimerServer::bind_at(path).unwrap();
            let server = server.on_event(|event| match event {
                TimerEvent::Expired { timer, .. } => say(timer.scope.name()),
                TimerEvent::Reaped { .. } => say("reaped"),
                TimerEvent::Orphaned { timers, .. } => say(&format!("{} orphaned", timers.len())),
                _ => {}
            });
            let server = server.on_process(|event| match event {
                LocalEvent::Refused { .. } => say("refused"),
                LocalEvent::Full { .. } => say("full"),
                _ => {}
            });
            let mut limits = Limits::default();
            limits.connections_of_one = 100;
            let server = server.limits(limits);
            if let Some(few) = std::env::var_os("DESCRIPTORS") {
                let few = few.to_str().unwrap().parse().unwrap();
                let few = libc::rlimit { rlim_cur: few, rlim_max: few };
                // SAFETY: the record is valid for the call.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
            }
            let server = server.start().unwrap();
            say("ready");
            wait_for_word();
            server.stop().unwrap();
            leave();
        }
        "is in time while the server stands still" => {
            configure_from_env().unwrap();
            say("connected");
            wait_for_word();
            // Longer than what follows takes on any machine: there is no second try, since the server's queue would be full.
            let short = Duration::from_secs(3);
            let until = Instant::now() + short;
            let timer = expires(short).unwrap();
            let probe = TimerGuard::builder().signal(Signal::LogOnly).scope("probe");
            let probe = probe.expires(short).unwrap();
            // So much that the server does not take it all at once.
            for _ in 0..100 {
                drop(expires(LONG).unwrap());
            }
            let released = timer.release();
            assert!(Instant::now() < until, "this machine is too slow for this test");
            released.unwrap();
            say("released");
            wait_until(until);
            say("past");
            wait_for_word();
            drop(probe);
            leave();
        }
        "ends while the server stands still" => {
            configure_from_env().unwrap();
            say("connected");
            wait_for_word();
            // So much that the server does not take it all before it sees the end.
            for _ in 0..100 {
                drop(expires(LONG).unwrap());
            }
            std::mem::forget(expires(Duration::ZERO).unwrap());
            leave();
        }
        _ => {}
    }
}

/// A part of all the time that an instant can tell.
const FAR: Duration = Duration::from_secs(1 << 54);

#[track_caller]
fn is_gone<T: std::fmt::Debug>(answer: Result<T, TimerError>) {
    assert!(matches!(answer, Err(TimerError::ServerGone)), "{answer:?}");
}

#[test]
fn without_a_server_a_client_is_told_at_once() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("timers");
    let before = Instant::now();
    is_gone(LocalTimerClient::connect(&path));
    // One that was killed, and left its socket.
    let server = Worker::serve(&path);
    server.signal(libc::SIGKILL);
    assert_eq!(server.end().signal(), Some(libc::SIGKILL));
    assert!(path.exists());
    is_gone(LocalTimerClient::connect(&path));
    assert!(before.elapsed() < Duration::from_secs(60), "not by waiting");
}

#[test]
fn when_its_server_goes_a_client_is_told_and_finds_the_next_one() {
    let around = tempfile::tempdir().unwrap();
    let path = around.path().join("timers");
    let first = Server::of(LocalTimerServer::bind_at(&path).unwrap().reaper(LogOnly));
    let taken = LocalTimerServer::bind_at(&path).unwrap_err();
    assert!(
        matches!(&taken, TimerError::Io(error) if error.kind() == std::io::ErrorKind::AddrInUse),
        "{taken:?}"
    );
    let client = LocalTimerClient::connect(&path).unwrap();
    let guard = || TimerGuard::builder().client(&client).scope("scope").expires(LONG);
    let held = guard().unwrap();
    first.stop();
    // What it had there is void, and it says so; while there is no other it goes on saying so.
    is_gone(guard());
    is_gone(guard());
    is_gone(held.release());
    let second = Server::of(LocalTimerServer::bind_at(&path).unwrap().reaper(LogOnly));
    guard().unwrap().release().unwrap();
    second.counts(2);
    second.stop();
    assert!(!path.exists());
}

#[test]
fn a_server_that_stood_still_kills_nobody_who_was_in_time() {
    StandingStill::with("is in time while the server stands still").kills_nobody();
}

#[test]
fn what_a_worker_said_before_its_end_is_heard_and_then_that_it_has_ended() {
    let StandingStill { mut server, worker, _around } =
        StandingStill::with("ends while the server stands still");
    worker.ends_well();
    server.signal(libc::SIGCONT);
    // It has expired too, but who has ended is not reaped.
    server.expect("1 orphaned");
    server.word();
    server.ends_well();
}

#[test]
fn what_does_not_fit_into_a_message_is_an_error_and_changes_nothing() {
    let server = Server::of(LocalTimerServer::bind().unwrap().reaper(LogOnly));
    let client = LocalTimerClient::connect(server.handle.path()).unwrap();
    let acquire = |len: usize| client.acquire(&Scope::named("x".repeat(len)), Instant::now() + LONG);
    acquire(488).unwrap();
    let error = acquire(489).unwrap_err();
    assert!(matches!(error, TimerError::TooLarge { size: 513, limit: 512, .. }), "{error:?}");
    acquire(1).unwrap();
    server.counts(2);
    let error = client.acquire_with(&Scope::named("x"), Instant::now(), Signal::from(999)).unwrap_err();
    assert!(matches!(error, TimerError::Io(_)), "{error:?}");
    assert!(KillProcess::with_signal(999).is_err());
    drop(server);
}

#[test]
fn a_deadline_long_past_is_an_acquire_and_no_release() {
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(LogOnly));
    let client = LocalTimerClient::connect(server.handle.path()).unwrap();
    let mut past = Instant::now();
    while let Some(further) = past.checked_sub(FAR) {
        past = further;
    }
    client.acquire(&Scope::named("past"), past).unwrap();
    server.expect(&Told::Expired(std::process::id(), "past".into()));
    let mut future = Instant::now();
    while let Some(further) = future.checked_add(FAR) {
        future = further;
    }
    client.acquire(&Scope::named("future"), future).unwrap();
    server.counts(2);
    assert_eq!(server.handle.stats().expired, 1);
}

/// A server that takes so many timers of a process, and a client of it.
fn limited(timers: usize) -> (Server, LocalTimerClient) {
    let mut limits = Limits::default();
    limits.timers_of_one = timers;
    let server = Server::of(LocalTimerServer::bind().unwrap().reaper(LogOnly).limits(limits));
    let client = LocalTimerClient::connect(server.handle.path()).unwrap();
    (server, client)
}

#[test]
fn more_timers_than_one_process_may_have_are_refused_and_those_it_has_go_on() {
    let (mut server, client) = limited(3);
    let acquire = |name: &str| client.acquire(&Scope::named(name), Instant::now() + LONG);
    for name in ["a", "b", "c", "a"] {
        acquire(name).unwrap();
    }
    server.counts(4);
    acquire("d").unwrap();
    let me = std::process::id();
    server.expect(&Told::Refused(Some(me), "TooManyTimers".into()));
    server.expect(&Told::Closed(me));
    let error = acquire("e").unwrap_err();
    assert!(
        matches!(&error, TimerError::Other(why) if why.downcast_ref() == Some(&Refusal::TooManyTimers)),
        "{error:?}"
    );
    // It is the same process still: there is room when it has released one. A release finds its way also by a new connection.
    client.release(&Scope::named("a")).unwrap();
    acquire("d").unwrap();
    server.counts(6);
    acquire("e").unwrap();
    server.all.clear();
    server.expect(&Told::Closed(me));
    client.release(&Scope::named("b")).unwrap();
    server.counts(7);
}

#[test]
fn a_timer_that_has_expired_counts_until_the_server_drops_it() {
    let mut limits = Limits::default();
    limits.timers_of_one = 8;
    let mut server = LocalTimerServer::bind().unwrap().limits(limits);
    server = server.retry_after(LONG);
    // Nobody is ended, and nobody is let go: each expired timer stays.
    let mut server = Server::of(server.reaper(|_: &Overdue<'_, LocalWorker>| Reap::Again(LONG)));
    let client = LocalTimerClient::connect(server.handle.path()).unwrap();
    for number in 0..8 {
        client.acquire(&Scope::named(format!("{number}")), Instant::now()).unwrap();
    }
    server.counts(8);
    let me = std::process::id();
    assert!(!server.all.contains(&Told::Refused(Some(me), "TooManyTimers".into())));
    client.acquire(&Scope::named("one more"), Instant::now()).unwrap();
    server.expect(&Told::Refused(Some(me), "TooManyTimers".into()));
    // A release makes room.
    server.expect(&Told::Closed(me));
    while client.release(&Scope::named("3")).is_err() {}
    client.acquire(&Scope::named("one more"), Instant::now()).unwrap();
    server.expect(&Told::Expired(me, "one more".into()));
}

#[test]
fn what_the_server_has_dropped_counts_no_more() {
    let (mut server, client) = limited(3);
    let me = std::process::id();
    for number in 0..20 {
        let (name, now) = (format!("{number}"), Instant::now());
        match number % 2 {
            // Spared by its reaper.
            0 => client.acquire(&Scope::named(&*name), now).unwrap(),
            _ => client.acquire_with(&Scope::named(&*name), now, Signal::LogOnly).unwrap(),
        }
        server.expect(&Told::Expired(me, name));
    }
    let told = server.stop();
    assert!(!told.iter().any(|told| matches!(told, Told::Refused(..))), "{told:#?}");
}

#[test]
fn a_client_is_told_that_its_line_is_closed_though_a_child_of_the_servers_process_has_copies() {
    let (mut server, client) = limited(1);
    let acquire = |name: &str| client.acquire(&Scope::named(name), Instant::now() + LONG);
    acquire("a").unwrap();
    server.counts(1);
    let _copies = Copies::of_this_process();
    acquire("b").unwrap();
    server.expect(&Told::Closed(std::process::id()));
    let error = acquire("b").unwrap_err();
    assert!(matches!(error, TimerError::Other(_)), "{error:?}");
    acquire("a").unwrap();
    server.counts(2);
    let _copies = Copies::of_this_process();
    server.stop();
    is_gone(acquire("a"));
}
