//! What is done to those whose timers have expired: signals, ladders, nothing; and reapers that fail.

use std::sync::mpsc;
use std::time::Duration;

use forebear::timer::local::{
    KillProcess, Ladder, LocalTimerServer, LocalWorker, LogOnly, configure_from_env,
};
use forebear::timer::{Overdue, Reap, Signal, TimerError, TimerGuard, expires};

use crate::worker::{LONG, Server, Told, WATCHDOG, Worker, get_stuck, leave, say, wait_for_word};

const SHORT: Duration = Duration::from_millis(20);

fn ignore(signal: libc::c_int) {
    // SAFETY: to ignore a signal installs no code.
    assert_ne!(unsafe { libc::signal(signal, libc::SIG_IGN) }, libc::SIG_ERR);
}

pub(crate) fn play(role: &str) {
    match role {
        "deaf and stuck" => {
            ignore(libc::SIGTERM);
            configure_from_env().unwrap();
            let _timer = expires(SHORT).unwrap();
            get_stuck();
        }
        "gives up when asked" => {
            configure_from_env().unwrap();
            let timer = expires(SHORT).unwrap();
            wait_for_word();
            timer.release().unwrap();
            say("given up");
            wait_for_word();
            leave();
        }
        "by a signal of its own" => {
            configure_from_env().unwrap();
            // Of those that have expired the earliest that does more than log decides.
            let builder = TimerGuard::builder;
            let _logged = builder().scope("first").signal(Signal::LogOnly).expires(Duration::ZERO).unwrap();
            let _own = builder().scope("own").signal(libc::SIGUSR2).expires(SHORT).unwrap();
            get_stuck();
        }
        "only logged" => {
            configure_from_env().unwrap();
            let builder = TimerGuard::builder().scope("logged").signal(0);
            let _timer = builder.expires(Duration::ZERO).unwrap();
            let _long = expires(LONG).unwrap();
            wait_for_word();
            leave();
        }
        _ => {}
    }
}

/// Where among what was told this first comes.
fn place(all: &[Told], what: &Told) -> usize {
    all.iter().position(|told| told == what).unwrap_or_else(|| panic!("no {what:?} in {all:#?}"))
}

#[test]
fn a_ladder_asks_first_then_warns_then_kills() {
    let (ask, asked) = mpsc::channel();
    let ladder = Ladder::new()
        .cancel_after(SHORT, move |overdue| _ = ask.send(overdue.worker.pid()))
        .signal_after(SHORT, libc::SIGTERM)
        .kill_after(SHORT);
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(ladder));
    let worker = Worker::start("deaf and stuck", &server);
    let pid = worker.pid();
    worker.dies_by(libc::SIGKILL);
    assert_eq!(asked.recv_timeout(WATCHDOG), Ok(pid));
    server.expect(&Told::Ended(pid, true));
    let told = server.stop();
    // A wait, the question, and the warning.
    assert_eq!(told.iter().filter(|told| **told == Told::Warned(pid)).count(), 3, "{told:#?}");
    let ended = place(&told, &Told::Ended(pid, true));
    assert!(place(&told, &Told::Warned(pid)) < ended);
}

#[test]
fn who_heeds_the_warning_dies_by_it() {
    let ladder = Ladder::new().signal_after(Duration::ZERO, libc::SIGTERM).kill_after(LONG);
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(ladder));
    let worker = Worker::start("stuck", &server);
    let pid = worker.pid();
    worker.dies_by(libc::SIGTERM);
    server.expect_some(|told| matches!(told, Told::Ended(of, _) if *of == pid), "its end");
    assert_eq!(server.handle.stats().reaped, 0);
}

#[test]
fn who_gives_up_when_asked_is_let_go() {
    let ladder = Ladder::new().cancel_after(Duration::ZERO, |_| {}).kill_after(Duration::from_secs(60));
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(ladder));
    let mut worker = Worker::start("gives up when asked", &server);
    server.expect(&Told::Warned(worker.pid()));
    worker.word();
    worker.expect("given up");
    server.counts(2);
    worker.word();
    worker.ends_well();
    assert_eq!(server.handle.stats().reaped, 0);
}

#[test]
fn a_question_that_panics_does_not_save_anybody() {
    let ladder = Ladder::new().cancel_after(Duration::ZERO, |_| panic!("asked in vain")).kill_after(SHORT);
    let server = Server::of(LocalTimerServer::bind().unwrap().reaper(ladder));
    Worker::start("stuck", &server).dies_by(libc::SIGKILL);
}

#[test]
fn a_timer_may_bring_its_own_signal() {
    for ladder in [false, true] {
        let server = LocalTimerServer::bind().unwrap();
        let mut server = match ladder {
            true => Server::of(server.reaper(Ladder::new().kill_after(LONG))),
            false => Server::of(server),
        };
        let worker = Worker::start("by a signal of its own", &server);
        let pid = worker.pid();
        worker.dies_by(libc::SIGUSR2);
        server.expect(&Told::Expired(pid, "first".into()));
        server.expect(&Told::Reaped(pid, "own".into()));
    }
}

#[test]
fn a_timer_that_only_logs_kills_nobody_and_the_others_go_on() {
    let mut server = Server::start();
    let mut worker = Worker::start("only logged", &server);
    server.expect(&Told::Expired(worker.pid(), "logged".into()));
    server.counts(2);
    worker.word();
    let pid = worker.pid();
    worker.ends_well();
    // One of the two was there until the end.
    server.expect(&Told::Orphaned(pid, 1));
}

#[test]
fn a_reaper_that_only_logs_spares_everybody() {
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(LogOnly));
    let worker = Worker::start("stuck", &server);
    let pid = worker.pid();
    server.expect_some(|told| matches!(told, Told::Expired(of, _) if *of == pid), "an expired timer");
    server.expect(&Told::Joined(pid));
    worker.signal(libc::SIGCONT);
    worker.signal(libc::SIGTERM);
    worker.dies_by(libc::SIGTERM);
    assert_eq!(server.handle.stats().reaped, 0);
}

#[test]
fn a_reap_that_fails_is_tried_again_and_one_that_panics_is_not() {
    let mut tries = 0;
    let fails_twice = move |overdue: &Overdue<'_, LocalWorker>| {
        tries += 1;
        match (tries, overdue.attempt) {
            (1 | 2, _) => Reap::Retry(TimerError::other("not now")),
            (_, 2) => match overdue.worker.end_by(libc::SIGKILL) {
                Ok(_) => Reap::Reaped,
                Err(error) => Reap::Retry(error),
            },
            other => panic!("{other:?}"),
        }
    };
    let server = LocalTimerServer::bind().unwrap().reaper(fails_twice).retry_after(SHORT);
    let server = Server::of(server);
    Worker::start("stuck", &server).dies_by(libc::SIGKILL);
    assert_eq!((server.handle.stats().failed_reaps, server.handle.stats().reaped), (2, 1));

    let panics = |_: &Overdue<'_, LocalWorker>| -> Reap { panic!("this reaper is broken") };
    let mut server = Server::of(LocalTimerServer::bind().unwrap().reaper(panics));
    let worker = Worker::start("stuck", &server);
    server.expect(&Told::ReaperPanicked(worker.pid()));
    worker.signal(libc::SIGTERM);
    worker.dies_by(libc::SIGTERM);
    assert_eq!(server.handle.stats().panicked_reaps, 1);
}

#[test]
fn who_survives_its_signal_is_told_and_holds_up_nobody() {
    let server = LocalTimerServer::bind().unwrap().reaper(KillProcess::with_signal(libc::SIGTERM).unwrap());
    let mut server = Server::of(server.patience(SHORT));
    let deaf = Worker::start("deaf and stuck", &server);
    server.expect(&Told::Survives(deaf.pid(), libc::SIGTERM));
    // Meanwhile others are served.
    Worker::start("stuck", &server).dies_by(libc::SIGTERM);
    deaf.signal(libc::SIGKILL);
    let pid = deaf.pid();
    deaf.dies_by(libc::SIGKILL);
    server.expect(&Told::Ended(pid, true));
    let told = server.stop();
    let survives = Told::Survives(pid, libc::SIGTERM);
    assert_eq!(told.iter().filter(|told| **told == survives).count(), 1, "{told:#?}");
}
