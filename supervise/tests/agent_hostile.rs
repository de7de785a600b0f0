//! Workers that do their worst, and agents that are killed, cancelled, or asked for what makes no sense.
#![cfg(target_os = "linux")]

mod agent_support;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_support::{FOREBEAR_AGENT, Process, Told, all_ended, shell, with_hook, written};
use forebear::timer::local::{KillProcess, LocalTimerServer, LocalWorker};
use forebear::timer::{Overdue, Reap, Reaper, TimerError, expires};
use forebear::{CancelReason, spawn};
use forebear_supervise::agent::{
    AgentError, AgentEvent, End, GroupState, LocalAgent, LocalAgentBuilder, Node, assign_ranks, run_worker,
};
use rustix::process::{Pid, Signal, kill_process};
use support::Watchdog;
use tempfile::tempdir;

const LONG: Duration = Duration::from_secs(1_000);

#[test]
fn what_a_worker_forks_ends_with_its_attempt_even_if_it_ignores_sigterm() {
    let _dog = Watchdog::new("");
    // The worker succeeds, fails, or is stopped; its child hears no SIGTERM.
    for end in ["exit 0", "exit 1", "exec sleep 1000"] {
        let dir = tempdir().unwrap();
        let script = format!(
            "trap '' TERM; sh -c 'echo $$ > $DIR/child; exec sleep 1000' & \
             until [ -s $DIR/child ]; do :; done; trap - TERM; echo ready > $DIR/ready; {end}"
        );
        let (child, ready) = (dir.path().join("child"), dir.path().join("ready"));
        let agent = with_hook(shell(&script, dir.path()).max_restarts(0), move |agent, event| {
            if matches!(event, AgentEvent::Started { .. }) && end.starts_with("exec") {
                written(&ready);
                agent.request_stop();
            }
        });
        agent.run().unwrap();
        Process::of(&child).ended();
    }
}

#[test]
fn a_worker_that_has_gone_to_another_process_group_is_stopped_as_well() {
    let _dog = Watchdog::new("");
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: a_worker_that_has_gone_to_another_process_group_is_stopped_as_well: there is no python3"
        );
        return;
    }
    let dir = tempdir().unwrap();
    // It goes to the group of a child of its own.
    let script = "import os, time, subprocess
child = subprocess.Popen(['sh', '-c', 'exec sleep 1000'], preexec_fn=os.setpgrp)
os.setpgid(0, child.pid)
open(os.environ['DIR'] + '/ready', 'w').write(f'{child.pid}\\n')
while True:
    time.sleep(1000)";
    let ready = dir.path().join("ready");
    let told = Told::default();
    let mut hook = told.hook();
    let builder = LocalAgent::builder("python3").args(["-c", script]).env("DIR", dir.path());
    let builder = builder.launcher(FOREBEAR_AGENT).logs(dir.path().join("logs")).stop_timeouts(LONG, LONG);
    let child = ready.clone();
    let agent = with_hook(builder, move |agent, event| {
        hook(event);
        if matches!(event, AgentEvent::Started { .. }) {
            written(&ready);
            agent.request_stop();
        }
    });
    assert_eq!(agent.run().unwrap().state, GroupState::Stopped);
    assert_eq!(told.count("SIGKILL"), 0);
    // A process that leaves the group takes its children out of reach.
    let pid = Pid::from_raw(written(&child).parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_worker_that_closes_its_output_is_a_worker_like_any_other() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "exec >&- 2>&-; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 0 ] && exit 1; exec sleep 1000";
    let result = shell(script, dir.path()).workers(2).build().unwrap().run().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Succeeded, 1));
}

#[test]
fn a_worker_of_this_crate_gives_its_message_though_its_output_takes_nothing() -> ExitCode {
    let _dog = Watchdog::new("");
    const TEST: &str = "a_worker_of_this_crate_gives_its_message_though_its_output_takes_nothing";
    if support::is_child(TEST) {
        return run_worker(|_| Err::<(), _>(forebear::Error::other("it does not add up")));
    }
    let dir = tempdir().unwrap();
    let agent =
        shell("exec \"$ITSELF\" \"$TEST\" --exact --nocapture --test-threads=1 2>/dev/full", dir.path())
            .env("ITSELF", std::env::current_exe().unwrap())
            .env("TEST", TEST)
            .env("FOREBEAR_TEST_CHILD", TEST)
            .max_restarts(0);
    let result = agent.build().unwrap().run().unwrap();
    let message = result.first_failure().unwrap().message.as_deref();
    assert!(message.is_some_and(|text| text.contains("it does not add up")), "{message:?}");
    ExitCode::SUCCESS
}

#[test]
fn a_file_for_the_first_failure_that_cannot_be_written_is_an_event_and_the_failure_is_returned() {
    let _dog = Watchdog::new("");
    let (dir, told) = (tempdir().unwrap(), Told::default());
    let agent = shell("exit 3", dir.path()).max_restarts(0).error_file(dir.path().join("none/error.json"));
    let result = agent.on_event(told.hook()).build().unwrap().run().unwrap();
    assert_eq!((result.state, result.first_failure().unwrap().end), (GroupState::Failed, End::Exit(3)));
    assert_eq!(told.count("none/error.json: the first failure could not be written: No such file"), 1);
}

#[test]
fn a_flood_of_output_goes_into_the_log_and_holds_nobody_up() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let agent = shell("head -c 20000000 /dev/zero", dir.path()).workers(2).build().unwrap();
    let result = agent.run().unwrap();
    assert_eq!(result.state, GroupState::Succeeded);
    for rank in ["0", "1"] {
        let log = result.logs.as_ref().unwrap().join("attempt_0").join(rank).join("stdout.log");
        assert_eq!(log.metadata().unwrap().len(), 20_000_000);
    }
}

#[test]
fn a_result_that_is_too_long_or_no_file_is_an_error_that_says_so() {
    let _dog = Watchdog::new("");
    for (script, part) in [
        ("head -c 1001 /dev/zero > $FOREBEAR_RESULT_FILE", "1001 bytes"),
        ("mkfifo $FOREBEAR_RESULT_FILE", "no ordinary file"),
        ("ln -s /dev/zero $FOREBEAR_RESULT_FILE", "result of worker 0"),
    ] {
        let dir = tempdir().unwrap();
        let error = shell(script, dir.path()).result_limit(1_000).build().unwrap().run().unwrap_err();
        assert!(matches!(error, AgentError::Result { rank: 0, .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// An agent whose workers are this test, run once more.
fn this_test(test: &str, dir: &Path) -> LocalAgentBuilder {
    let agent = LocalAgent::builder(std::env::current_exe().unwrap());
    let agent = agent.args([test, "--exact", "--test-threads=1"]).env("FOREBEAR_TEST_CHILD", test);
    agent.launcher(FOREBEAR_AGENT).logs(dir)
}

#[test]
fn a_worker_that_is_stuck_is_killed_for_its_timer_and_the_group_starts_again() -> ExitCode {
    let _dog = Watchdog::new("");
    const TEST: &str = "a_worker_that_is_stuck_is_killed_for_its_timer_and_the_group_starts_again";
    if support::is_child(TEST) {
        return run_worker(|me| {
            if me.restart_count == 0 && me.ranks.rank == 1 {
                let _timer = expires(Duration::from_millis(10))?;
                loop {
                    std::thread::park();
                }
            }
            let _timer = expires(LONG)?;
            Ok(me.ranks.rank)
        });
    }
    let dir = tempdir().unwrap();
    let told = Told::default();
    let mut hook = told.hook();
    let mut failures = Vec::new();
    let (failed, failures_of) = std::sync::mpsc::channel();
    let agent = this_test(TEST, dir.path())
        .workers(2)
        .backoff(Duration::ZERO, Duration::ZERO)
        .on_event(move |event| {
            hook(event);
            if let AgentEvent::Failed(failure) = event {
                failed.send((*failure).clone()).unwrap();
            }
        })
        .build()
        .unwrap();
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Succeeded, 1));
    assert_eq!(result.get::<usize>(1).unwrap(), Some(1));
    failures.extend(failures_of.try_iter());
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].rank, failures[0].end), (1, End::Signal(9)));
    assert!(failures[0].expired.as_ref().is_some_and(|scope| scope.contains("agent_hostile.rs")));
    assert_eq!((agent.metrics().expired, told.count("of worker 1")), (1, 1));
    ExitCode::SUCCESS
}

/// The first time it refuses, then it kills.
struct Refuses(bool);

impl Reaper<LocalWorker> for Refuses {
    fn reap(&mut self, overdue: &Overdue<'_, LocalWorker>) -> Reap {
        if std::mem::replace(&mut self.0, true) {
            return KillProcess::new().reap(overdue);
        }
        Reap::Retry(TimerError::other("not now"))
    }
}

/// By the hook of the agent; of an agent without one by its standard error, and nothing else.
#[test]
fn what_the_timer_server_cannot_do_is_an_event_and_written_where_there_is_no_hook() -> ExitCode {
    let _dog = Watchdog::new("");
    const TEST: &str = "what_the_timer_server_cannot_do_is_an_event_and_written_where_there_is_no_hook";
    if std::env::var_os("TORCHELASTIC_RUN_ID").is_some() {
        return run_worker(|_| -> Result<(), forebear::Error> {
            let _timer = expires(Duration::from_millis(10))?;
            loop {
                std::thread::park();
            }
        });
    }
    let dir = tempdir().unwrap();
    let server = LocalTimerServer::bind().unwrap().reaper(Refuses(false)).on_process(|_| {});
    let agent = this_test(TEST, dir.path()).timers(server).max_restarts(0);
    let told = Told::default();
    let without_a_hook = support::is_child(TEST);
    let agent = if without_a_hook { agent } else { agent.on_event(told.hook()) };
    assert_eq!(agent.build().unwrap().run().unwrap().state, GroupState::Failed);
    if without_a_hook {
        return ExitCode::SUCCESS;
    }
    assert_eq!(told.count("timers: "), 1);
    assert_eq!(told.count("could not be reaped: not now"), 1);
    let (ok, said) = support::again_in_child(TEST, ("WITHOUT", "A_HOOK"), "");
    assert!(ok, "{said}");
    let events: Vec<_> = said.lines().filter(|line| line.starts_with("forebear: ")).collect();
    assert!(matches!(events[..], [line] if line.contains("could not be reaped: not now")), "{said}");
    ExitCode::SUCCESS
}

#[test]
fn a_budget_of_restarts_is_whole_again_after_a_healthy_time() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // Each attempt but the first waits until the budget is whole, and fails then.
    let script = "N=$TORCHELASTIC_RESTART_COUNT; [ $N = 3 ] && exit 0; [ $N = 0 ] || until [ -e $DIR/go_$N ]; do :; done; exit 1";
    let place = dir.path().to_owned();
    let builder = shell(script, dir.path()).max_restarts(1).refill_after(Duration::ZERO);
    let agent = with_hook(builder, move |agent, event| {
        if matches!(event, AgentEvent::Refilled) {
            std::fs::write(place.join(format!("go_{}", agent.status().attempt)), "").unwrap();
        }
    });
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Succeeded, 3));
}

#[test]
fn the_pauses_before_restarts_grow_and_a_stop_ends_them() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let (told, pauses) = std::sync::mpsc::channel();
    let builder = shell("exit 1", dir.path()).max_restarts(9).backoff(Duration::from_millis(1), LONG);
    let agent = with_hook(builder, move |_, event| {
        if let AgentEvent::Restarting { pause, .. } = event {
            told.send(*pause).unwrap();
        }
    });
    agent.run().unwrap();
    let pauses: Vec<u128> = pauses.try_iter().map(|pause| pause.as_millis()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256]);

    let agent = with_hook(shell("exit 1", dir.path()).backoff(LONG, LONG), |agent, event| {
        if matches!(event, AgentEvent::Restarting { .. }) {
            agent.request_stop();
        }
    });
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Stopped, 1));
}

#[test]
fn who_is_cancelled_while_a_group_runs_stops_it_and_waits_for_its_end() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let agent = shell("exec sleep 1000", dir.path()).workers(2).build().unwrap();
    let inside = agent.clone();
    let request = spawn(move || inside.run());
    while agent.status().pids.is_empty() {
        std::thread::yield_now();
    }
    let pids = agent.status().pids;
    request.to_untyped().abort(CancelReason::Asked);
    // Its answer is that it was cancelled, or the error that says so.
    if let Ok(result) = request.take() {
        assert!(matches!(result, Err(AgentError::Cancelled)), "{result:?}");
    }
    all_ended(&pids);
    // The stop was for that run only.
    let next = shell("exit 0", dir.path()).build().unwrap();
    assert_eq!(next.run().unwrap().state, GroupState::Succeeded);
}

#[test]
fn of_two_runs_at_once_the_second_is_refused_and_a_hook_that_panics_is_called_no_more() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    static TOLD: AtomicBool = AtomicBool::new(false);
    let agent = with_hook(shell("exit 0", dir.path()), |agent, _| {
        assert!(!TOLD.swap(true, Ordering::Relaxed), "it was called again");
        assert!(matches!(agent.run(), Err(AgentError::AlreadyRunning)));
        panic!("on purpose");
    });
    assert_eq!(agent.run().unwrap().state, GroupState::Succeeded);
    assert_eq!(agent.run().unwrap().state, GroupState::Succeeded);
    assert!(TOLD.load(Ordering::Relaxed));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let _dog = Watchdog::new("");
    let nobody =
        [LocalAgent::builder("true").workers(0), LocalAgent::builder("true").among([Node::new("a", 1)], 1)];
    for builder in nobody {
        assert!(matches!(builder.build(), Err(AgentError::Invalid(_))));
    }
    for id in ["", "..", "a/b"] {
        let error = LocalAgent::builder("true").run_id(id).build().unwrap_err();
        assert!(error.to_string().contains("slashes"), "{error}");
    }
    // Neither this test nor `true` calls `agent::entry`.
    let error = LocalAgent::builder("true").build().unwrap().run().unwrap_err();
    assert!(matches!(error, AgentError::EntryMissing));
    let error = LocalAgent::builder("true").launcher("/bin/true").build().unwrap().run().unwrap_err();
    assert!(error.to_string().contains("agent::entry"), "{error}");
    // One that never says anything is not waited for.
    let silent =
        LocalAgent::builder("1000").launcher("/bin/sleep").start_timeout(Duration::ZERO).build().unwrap();
    let error = silent.run().unwrap_err();
    assert!(
        matches!(&error, AgentError::Start { source, .. } if source.kind() == std::io::ErrorKind::TimedOut),
        "{error}"
    );
    let agent = shell("exit 0", tempdir().unwrap().path()).build().unwrap();
    assert!(matches!(agent.resize(0), Err(AgentError::Invalid(_))));
}

#[test]
fn a_number_of_workers_that_is_out_of_range_is_refused_of_every_agent() {
    let _dog = Watchdog::new("");
    for nodes in [
        [Node::new("a", usize::MAX), Node::new("b", 1)],
        [Node::new("a", 65_537), Node::new("b", 1)],
        [Node::new("a", 0), Node::new("b", 1)],
    ] {
        let number = nodes[0].workers.to_string();
        // Whichever of them this one is.
        for own in [1, 0] {
            let error = LocalAgent::builder("true").among(nodes.clone(), own).build().unwrap_err();
            assert!(matches!(error, AgentError::Invalid(_)), "{error:?}");
            let message = error.to_string();
            assert!(message.contains(&number) && message.contains("agent 0"), "{message}");
        }
        if nodes[0].workers > 0 {
            assert_eq!((assign_ranks(&nodes, 0), assign_ranks(&nodes, 1)), (None, None));
        }
    }
    // What `among` was given is judged, also if another setting follows.
    for nodes in [vec![], vec![Node::new("a", 1)]] {
        let error = LocalAgent::builder("true").among(nodes.clone(), 1).workers(2).role("b").build();
        let message = error.unwrap_err().to_string();
        assert!(message.contains("number 1") && message.contains(&format!("{}", nodes.len())), "{message}");
    }
}

#[test]
fn what_is_missing_at_a_start_is_named() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let (none, file) = (dir.path().join("none"), dir.path().join("file"));
    std::fs::write(&file, "mine").unwrap();
    let said =
        |builder: LocalAgentBuilder| builder.build().and_then(|agent| agent.run()).unwrap_err().to_string();
    let by_ours = || LocalAgent::builder("/bin/true").launcher(FOREBEAR_AGENT);
    for missing in [&none, &file] {
        let message = said(by_ours().current_dir(missing));
        let words = format!("the directory {missing:?} for workers");
        assert!(message.contains(&words), "{message}");
        let message = said(LocalAgent::builder("/bin/true").launcher(missing));
        assert!(message.contains(&format!("the launcher {missing:?}")), "{message}");
        assert!(message.contains(if missing == &none { "No such file" } else { "Permission denied" }));
        // The program that is missing itself.
        let message = said(LocalAgent::builder(missing).launcher(FOREBEAR_AGENT));
        assert!(message.contains(&format!("could not be started from {}: ", missing.display())), "{message}");
    }
    let message = said(by_ours().logs(&file));
    assert!(message.contains(&format!("the directory {file:?} for logs")), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let message = said(by_ours().logs(file.join("logs")));
    assert!(message.contains(&format!("the directory {:?} for logs", file.join("logs"))), "{message}");
    let message = said(by_ours().logs(dir.path()).run_id("x".repeat(300)));
    assert!(message.contains("xxx\"") && message.contains("name too long"), "{message}");
    let message = said(by_ours().run_id("a\0b"));
    assert!(message.contains(r#""a\0b""#) && message.contains("zero byte"), "{message}");
    assert!(!message.contains("slashes"), "{message}");
}

#[test]
fn a_stop_before_a_run_has_it_start_nothing() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let agent = shell("echo > $DIR/ran", dir.path()).build().unwrap();
    agent.request_stop();
    assert_eq!(agent.run().unwrap().state, GroupState::Stopped);
    assert!(!dir.path().join("ran").exists());
    assert_eq!(agent.run().unwrap().state, GroupState::Succeeded);
    assert!(dir.path().join("ran").exists());
}

#[test]
fn without_logs_nothing_of_a_run_stays() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let agent = LocalAgent::builder("sh")
        .args([
            "-c",
            "echo $FOREBEAR_RESULT_FILE $FOREBEAR_TIMERS > $DIR/places; echo text > $FOREBEAR_RESULT_FILE",
        ])
        .env("DIR", dir.path())
        .launcher(FOREBEAR_AGENT)
        .build()
        .unwrap();
    let result = agent.run().unwrap();
    assert_eq!((result.results[&0].as_slice(), result.logs), (&b"text\n"[..], None));
    drop(agent);
    let places = written(&dir.path().join("places"));
    for place in places.split(' ') {
        let place = std::path::Path::new(place);
        assert!(place.is_absolute() && !place.exists() && !place.parent().unwrap().exists(), "{place:?}");
    }
}
