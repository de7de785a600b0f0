//! The local agent, row by row of the study: `rNN_` is row NN.
#![cfg(target_os = "linux")]

mod agent_support;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fs;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use agent_support::{Told, all_ended, shell, with_hook, written};
use forebear_supervise::agent::{
    AgentError, AgentEvent, End, GroupState, LocalAgent, Node, Ranks, WorkerEnv, assign_ranks, run_worker,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use support::Watchdog;
use tempfile::tempdir;

const LONG: Duration = Duration::from_secs(1_000);

#[test]
fn r31_a_group_goes_through_its_states_and_runs_in_two_of_them() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let (seen, states) = mpsc::channel();
    let agent = with_hook(shell("exit 1", dir.path()).max_restarts(1), move |agent, _| {
        seen.send(agent.status().state).unwrap();
    });
    assert_eq!(agent.status().state, GroupState::Init);
    let result = agent.run().unwrap();
    assert_eq!((result.state, agent.status().state), (GroupState::Failed, GroupState::Failed));
    let mut states: Vec<GroupState> = states.try_iter().collect();
    states.dedup();
    use GroupState::{Failed, Healthy, Unhealthy};
    // The pause before the restart belongs to the group that has failed.
    assert_eq!(states, [Healthy, Unhealthy, Healthy, Unhealthy, Failed]);
    let running = [Healthy, Unhealthy];
    let all = [GroupState::Init, GroupState::Stopped, GroupState::Succeeded, Failed, GroupState::Unknown];
    assert!(running.into_iter().all(GroupState::is_running));
    assert!(!all.into_iter().any(GroupState::is_running));
}

#[test]
fn r32_if_one_worker_fails_all_are_stopped_and_started_anew() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && exit 3; exec sleep 1000";
    let (started, attempts) = mpsc::channel();
    let hook = move |event: &AgentEvent<'_>| {
        if let AgentEvent::Started { pids, .. } = event {
            started.send(pids.to_vec()).unwrap();
        }
    };
    let agent = shell(script, dir.path()).workers(3).on_event(hook).build().unwrap();
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts, result.restarts_left), (GroupState::Succeeded, 1, 2));
    let attempts: Vec<Vec<u32>> = attempts.try_iter().collect();
    assert_eq!(attempts.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    attempts.iter().for_each(|pids| all_ended(pids));
    assert!(agent.status().pids.is_empty());
}

#[test]
fn r33_a_group_that_always_fails_is_started_once_and_as_often_as_the_budget_says() {
    let _dog = Watchdog::new("");
    for budget in [3, 0] {
        let dir = tempdir().unwrap();
        let told = Told::default();
        let agent = shell("exit 7", dir.path()).max_restarts(budget).on_event(told.hook()).build().unwrap();
        let result = agent.run().unwrap();
        assert_eq!((result.state, result.restarts, result.restarts_left), (GroupState::Failed, budget, 0));
        assert_eq!(told.count("processes ["), budget as usize + 1);
        assert_eq!(result.first_failure().unwrap().end, End::Exit(7));
    }
}

#[test]
fn r34_a_group_that_is_resized_is_started_anew_at_no_cost_to_the_budget() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "echo $WORLD_SIZE; [ $WORLD_SIZE = 3 ] && exit 0; exec sleep 1000";
    let agent = with_hook(shell(script, dir.path()).workers(2).max_restarts(1), |agent, event| {
        if matches!(event, AgentEvent::Started { pids, .. } if pids.len() == 2) {
            agent.resize(3).unwrap();
        }
    });
    let result = agent.run().unwrap();
    assert_eq!((result.state, result.restarts, result.restarts_left), (GroupState::Succeeded, 0, 1));
    assert_eq!((result.results.len(), agent.metrics().resizes), (3, 1));
    // The next run begins with as many.
    assert_eq!(agent.run().unwrap().results.len(), 3);
}

#[test]
fn r35_r47_if_nobody_knows_what_became_of_a_worker_that_is_an_error_at_once() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let told = Told::default();
    let mut hook = told.hook();
    let script = "[ $RANK = 1 ] && exit 1; exec sleep 1000";
    // Somebody else waits for worker 1, before the agent can look.
    let reap = move |event: &AgentEvent<'_>| {
        hook(event);
        if let AgentEvent::Started { pids, .. } = event {
            let pid = Pid::from_raw(i32::try_from(pids[1]).unwrap());
            waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
        }
    };
    let agent = shell(script, dir.path()).workers(2).on_event(reap).build().unwrap();
    let error = agent.run().unwrap_err();
    assert!(matches!(error, AgentError::Unknown { rank: 1, .. }), "{error}");
    assert!(error.to_string().contains("SIGCHLD"));
    let status = agent.status();
    assert_eq!(agent.metrics().errors, 1);
    assert_eq!((status.state, status.restarts_left, status.attempt), (GroupState::Unknown, 3, 0));
    assert_eq!((told.count("processes ["), told.count("signal 15 was sent to 1")), (1, 1));
}

#[test]
fn r36_a_failure_while_starting_comes_out_and_the_group_was_never_there() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "no program").unwrap();
    for (program, kind) in
        [("/no/such/program".into(), "NotFound"), (text.into_os_string(), "PermissionDenied")]
    {
        let agent = LocalAgent::builder(program).workers(3).launcher(agent_support::FOREBEAR_AGENT).build();
        let agent = agent.unwrap();
        match agent.run().unwrap_err() {
            AgentError::Start { rank: 0, source, .. } => assert_eq!(format!("{:?}", source.kind()), kind),
            error => panic!("{error}"),
        }
        let status = agent.status();
        assert_eq!((status.state, status.restarts_left), (GroupState::Init, 3));
        assert_eq!(agent.metrics().errors, 1);
    }
}

#[test]
fn r37_there_are_results_of_all_or_of_none_and_failures_of_those_who_have_failed_themselves() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let agent = shell("printf 'of %s' $RANK > $FOREBEAR_RESULT_FILE", dir.path()).workers(3).build().unwrap();
    let result = agent.run().unwrap();
    let of = |rank: usize| (rank, format!("of {rank}").into_bytes());
    assert_eq!(result.results, [of(0), of(1), of(2)].into());
    assert!(result.failures.is_empty() && result.first_failure().is_none());

    let script =
        "echo x > $FOREBEAR_RESULT_FILE; case $RANK in 0) exit 0;; 1) exit 5;; 2) exec sleep 1000;; esac";
    let agent = shell(script, dir.path()).workers(3).max_restarts(0).build().unwrap();
    let result = agent.run().unwrap();
    assert!(result.results.is_empty());
    assert_eq!(result.failures.keys().collect::<Vec<_>>(), [&1]);
}

#[test]
fn r37_a_worker_of_this_crate_returns_a_value_an_error_or_a_panic() -> ExitCode {
    let _dog = Watchdog::new("");
    const TEST: &str = "r37_a_worker_of_this_crate_returns_a_value_an_error_or_a_panic";
    if support::is_child(TEST) {
        return run_worker(|me: &WorkerEnv| match me.role.as_str() {
            "sum" => Ok((me.ranks.rank as u64, "text".to_owned())),
            "error" => Err(forebear::Error::other("it does not add up")),
            _ => panic!("out of its mind"),
        });
    }
    let dir = tempdir().unwrap();
    let run = |role: &str| {
        let agent = LocalAgent::builder(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--test-threads=1"])
            .env("FOREBEAR_TEST_CHILD", TEST)
            .launcher(agent_support::FOREBEAR_AGENT)
            .logs(dir.path())
            .workers(2)
            .max_restarts(0)
            .role(role)
            .build();
        agent.unwrap().run().unwrap()
    };
    let sum = run("sum");
    assert_eq!(sum.get::<(u64, String)>(1).unwrap(), Some((1, "text".into())));
    assert_eq!(sum.get::<(u64, String)>(2).unwrap(), None);
    let wrong = sum.get::<u64>(1).unwrap_err();
    assert!(matches!(wrong, AgentError::Decode { rank: 1, .. }), "{wrong}");
    for (role, text) in [("error", "it does not add up"), ("panic", "out of its mind")] {
        let result = run(role);
        let message = result.first_failure().unwrap().message.clone().unwrap();
        assert!(message.contains(text), "{message}");
    }
    ExitCode::SUCCESS
}

#[test]
fn r38_the_first_failure_by_time_has_code_message_and_time_and_is_written_to_a_file() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // Worker 1 fails first; that of worker 0 is newer.
    let script = r#"
        E=$TORCHELASTIC_ERROR_FILE
        if [ $RANK = 1 ]; then echo 'the "first" of all' > $E; exit 7; fi
        OTHER=$(dirname $E)/../1/error.json
        until [ -s $OTHER ]; do :; done
        until [ $E -nt $OTHER ]; do echo second > $E; done
        exit 1"#;
    let before = SystemTime::now();
    let file = dir.path().join("error.json");
    let builder = shell(script, dir.path()).workers(2).max_restarts(0).error_file(&file);
    // The agent looks when both have ended.
    let both_ended = |event: &AgentEvent<'_>| {
        if let AgentEvent::Started { pids, .. } = event {
            all_ended(pids);
        }
    };
    let result = builder.on_event(both_ended).build().unwrap().run().unwrap();
    assert_eq!(result.failures.len(), 2);
    let first = result.first_failure().unwrap();
    assert_eq!((first.rank, first.end), (1, End::Exit(7)));
    assert_eq!(first.message.as_deref(), Some("the \"first\" of all"));
    // The clock of files is a few milliseconds behind.
    let slack = Duration::from_secs(1);
    assert!(first.at > before - slack && first.at <= SystemTime::now());
    let json = fs::read_to_string(file).unwrap();
    assert!(json.contains(r#""message": "the \"first\" of all", "errorCode": 7"#), "{json}");
}

#[test]
fn r39_ranks_are_consecutive_also_with_several_agents_sizes_and_roles() {
    let of = |nodes: &[Node], own| -> Vec<Ranks> { assign_ranks(nodes, own).unwrap() };
    let nodes = [("a", 2), ("b", 1), ("a", 3), ("c", 4), ("b", 2)].map(|(role, n)| Node::new(role, n));
    let all: Vec<Vec<Ranks>> = (0..nodes.len()).map(|own| of(&nodes, own)).collect();
    let ranks: Vec<usize> = all.iter().flatten().map(|ranks| ranks.rank).collect();
    assert_eq!(ranks, (0..12).collect::<Vec<_>>());
    for (role, size) in [("a", 5), ("b", 3), ("c", 4)] {
        let same = all.iter().zip(&nodes).filter(|(_, node)| node.role == role);
        let ranks: Vec<&Ranks> = same.flat_map(|(ranks, _)| ranks).collect();
        assert_eq!(
            ranks.iter().map(|ranks| ranks.role_rank).collect::<Vec<_>>(),
            (0..size).collect::<Vec<_>>()
        );
        assert!(ranks.iter().all(|ranks| (ranks.role_world_size, ranks.world_size) == (size, 12)));
    }
    for (own, ranks) in all.iter().enumerate() {
        assert_eq!(ranks.len(), nodes[own].workers);
        for (local_rank, ranks) in ranks.iter().enumerate() {
            assert_eq!((ranks.local_rank, ranks.local_world_size), (local_rank, nodes[own].workers));
            assert_eq!((ranks.group_rank, ranks.group_world_size), (own, 5));
        }
    }
    assert!(assign_ranks(&nodes, 5).is_none());
}

#[test]
fn r40_the_environment_says_who_a_worker_is() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let nodes = [Node::new("reader", 1), Node::new("trainer", 2), Node::new("reader", 2)];
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; env > $FOREBEAR_RESULT_FILE";
    let builder = shell(script, dir.path()).among(nodes, 2).max_restarts(5).run_id("run 7");
    // A variable of one's own does not replace one of these.
    let result = builder.env("RANK", "99").env("OWN", "yes").build().unwrap().run().unwrap();
    assert_eq!(result.results.keys().collect::<Vec<_>>(), [&3, &4]);
    let text = String::from_utf8(result.results[&4].clone()).unwrap();
    let env: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let expected = [
        ("RANK", "4"),
        ("LOCAL_RANK", "1"),
        ("ROLE_RANK", "2"),
        ("GROUP_RANK", "2"),
        ("WORLD_SIZE", "5"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("ROLE_WORLD_SIZE", "3"),
        ("GROUP_WORLD_SIZE", "3"),
        ("ROLE_NAME", "reader"),
        ("TORCHELASTIC_RUN_ID", "run 7"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
        ("TORCHELASTIC_MAX_RESTARTS", "5"),
        ("OWN", "yes"),
    ];
    for (name, value) in expected {
        assert_eq!(env.get(name), Some(&value), "{name}");
    }
    assert!(env.contains_key("FOREBEAR_TIMERS") && env.contains_key("TORCHELASTIC_ERROR_FILE"));
    assert!(!env.contains_key("FOREBEAR_AGENT_LAUNCH"));
}

#[test]
fn r41_logs_are_kept_by_run_attempt_and_worker_and_a_resize_replaces_those_of_its_attempt() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "echo out $TORCHELASTIC_RESTART_COUNT $RANK of $WORLD_SIZE; echo err $RANK >&2; \
                  [ $WORLD_SIZE = 2 ] && exec sleep 1000; exit 1";
    let logs = dir.path().join("logs");
    let place = logs.join("r1");
    let first = place.join("attempt_0/1/stdout.log");
    let agent = with_hook(shell(script, dir.path()).workers(2).max_restarts(1).run_id("r1"), {
        move |agent, event| {
            if matches!(event, AgentEvent::Started { pids, .. } if pids.len() == 2) {
                assert_eq!(written(&first), "out 0 1 of 2");
                agent.resize(1).unwrap();
            }
        }
    });
    let result = agent.run().unwrap();
    assert_eq!(result.logs.as_deref(), Some(fs::canonicalize(&place).unwrap().as_path()));
    for attempt in 0..2 {
        let attempt_dir = place.join(format!("attempt_{attempt}"));
        assert_eq!(written(&attempt_dir.join("0/stdout.log")), format!("out {attempt} 0 of 1"));
        assert_eq!(written(&attempt_dir.join("0/stderr.log")), "err 0");
        assert!(!attempt_dir.join("1").exists());
    }
    // Where a worker has left no error, its failure shows the end of what it has written.
    assert_eq!(result.first_failure().unwrap().message.as_deref(), Some("err 0"));
    // Another run of the same name leaves these alone.
    let other = agent.run().unwrap().logs.unwrap();
    assert!(other.ends_with("r1.1") && place.join("attempt_1/0/stdout.log").exists());
}

#[test]
fn r42_a_group_is_stopped_once_by_sigterm_and_then_by_sigkill_with_limits() {
    let _dog = Watchdog::new("");
    let deaf = "trap '' TERM; echo ready > $DIR/ready; exec sleep 1000";
    let dutiful = "trap 'echo bye > $DIR/bye; exit 0' TERM; echo ready > $DIR/ready; sleep 1000 & wait";
    for (script, term, killed) in
        [(deaf, Duration::ZERO, 1), (deaf, Duration::from_millis(20), 1), (dutiful, LONG, 0)]
    {
        let dir = tempdir().unwrap();
        let ready = dir.path().join("ready");
        let told = Told::default();
        let mut hook = told.hook();
        let builder = shell(script, dir.path()).stop_timeouts(term, LONG);
        let agent = with_hook(builder, move |agent, event| {
            hook(event);
            if matches!(event, AgentEvent::Started { .. }) {
                written(&ready);
                agent.request_stop();
            }
        });
        let result = agent.run().unwrap();
        assert_eq!((result.state, result.restarts_left), (GroupState::Stopped, 3));
        assert!(result.results.is_empty() && result.failures.is_empty());
        assert_eq!((told.count("signal 15 was sent to 1"), told.count("SIGKILL")), (1, killed));
        assert_eq!(agent.metrics().killed, killed as u64);
        assert_eq!(dir.path().join("bye").exists(), killed == 0);
    }
}

#[test]
fn r42_after_success_nobody_is_left_to_be_stopped() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let told = Told::default();
    let agent = shell("exit 0", dir.path()).workers(2).on_event(told.hook()).build().unwrap();
    assert_eq!(agent.run().unwrap().state, GroupState::Succeeded);
    assert_eq!(told.count("was sent"), 0);
}

#[test]
fn r45_runs_are_counted_with_and_without_restarts_and_have_a_flakiness() {
    let _dog = Watchdog::new("");
    let after = |n: u32| format!("[ $TORCHELASTIC_RESTART_COUNT = {n} ]");
    // When it succeeds, the budget, and what comes of it.
    for (script, budget, flakiness, field) in [
        (after(0), 3, 0, 0),
        (after(1), 3, 25, 1),
        (after(3), 3, 75, 1),
        ("exit 1".into(), 0, 100, 2),
        ("exit 1".into(), 1, 100, 3),
    ] {
        let dir = tempdir().unwrap();
        let agent = shell(&script, dir.path()).max_restarts(budget).build().unwrap();
        let result = agent.run().unwrap();
        assert_eq!(result.flakiness(), flakiness, "{script}");
        let metrics = agent.metrics();
        assert_eq!((metrics.runs, metrics.flakiness), (1, flakiness));
        let fields = [
            metrics.succeeded_at_once,
            metrics.succeeded_after_restarts,
            metrics.failed_at_once,
            metrics.failed_after_restarts,
        ];
        assert_eq!(fields.iter().sum::<u64>(), 1);
        assert_eq!(fields[field], 1, "{script}: {metrics:?}");
        assert_eq!(metrics.restarts, u64::from(result.restarts));
    }
}
