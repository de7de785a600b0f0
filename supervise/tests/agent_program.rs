//! The program `forebear-agent`: its command line, signals to it, and its death.
#![cfg(target_os = "linux")]

mod agent_support;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use agent_support::{FOREBEAR_AGENT, Process, ignored, written};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};
use support::Watchdog;
use tempfile::tempdir;

/// The program, with workers that are this script, in a directory of the test.
fn program(dir: &Path, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(FOREBEAR_AGENT);
    command.args(["--backoff", "0"]).args(options).args(["--", "sh", "-c", script]);
    // One that is killed leaves what it has in the temporary directory.
    command.env("DIR", dir).env("TMPDIR", dir).env_remove("TORCHELASTIC_ERROR_FILE").stdin(Stdio::null());
    command
}

/// It is killed if the test fails: its workers end with it.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn r42_the_time_to_stop_may_be_zero_and_not_negative_and_comes_from_an_option_or_the_environment() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // Worker 0 is deaf to SIGTERM, and worker 1 fails when that is so.
    let script = "[ $RANK = 1 ] && { until [ -e $DIR/deaf ]; do :; done; exit 1; }; \
                  trap '' TERM; echo > $DIR/deaf; exec sleep 1000";
    let options = ["--nproc=2", "--max-restarts", "0"];
    let given = [&options[..], &["--stop-timeout", "0"]].concat();
    let given = program(dir.path(), &given, script).output().unwrap();
    let other = tempdir().unwrap();
    let mut inherited = program(other.path(), &options, script);
    let inherited = inherited.env("FOREBEAR_AGENT_STOP_TIMEOUT", "0.01").output().unwrap();
    for output in [given, inherited] {
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains("1 workers have not ended in time"), "{}", text(&output));
    }
    let refused = program(dir.path(), &["--stop-timeout", "-1"], "exit 0").output().unwrap();
    let refused_too =
        program(dir.path(), &[], "exit 0").env("FOREBEAR_AGENT_STOP_TIMEOUT", "-0.5").output().unwrap();
    for output in [refused, refused_too] {
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains("is no number of seconds from 0 on"), "{}", text(&output));
    }
}

#[test]
fn r46_a_signal_to_the_agent_is_passed_on_to_the_workers_and_ends_it_when_they_have_ended() {
    let _dog = Watchdog::new("");
    let script = "for S in INT TERM HUP QUIT; do trap \"echo $S > $DIR/heard_$RANK; exit 0\" $S; done; \
                  echo $$ > $DIR/$RANK; sleep 1000 & wait";
    for (name, signal) in
        [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)]
    {
        if ignored(signal.as_raw()) {
            println!("SIG{name} is ignored here, and stays so");
            continue;
        }
        let dir = tempdir().unwrap();
        let mut agent = Running::start(&mut program(dir.path(), &["--nproc", "2"], script));
        let workers = ["0", "1"].map(|rank| Process::of(&dir.path().join(rank)));
        agent.send(signal);
        assert_eq!(agent.0.wait().unwrap().signal(), Some(signal.as_raw()));
        workers.iter().for_each(Process::ended);
        for rank in 0..2 {
            assert_eq!(written(&dir.path().join(format!("heard_{rank}"))), name);
        }
    }
}

#[test]
fn r46_a_second_signal_does_not_wait_for_workers_that_do_not_end() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "trap 'echo > $DIR/heard' TERM; echo $$ > $DIR/worker; while :; do sleep 1000 & wait; done";
    let mut agent = Running::start(&mut program(dir.path(), &["--stop-timeout", "1000"], script));
    let worker = Process::of(&dir.path().join("worker"));
    agent.send(Signal::TERM);
    while !dir.path().join("heard").exists() {
        std::thread::yield_now();
    }
    agent.send(Signal::TERM);
    assert_eq!(agent.0.wait().unwrap().signal(), Some(15));
    worker.ended();
}

#[test]
fn r46_a_signal_that_is_ignored_stays_so() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "trap 'echo TERM > $DIR/heard; exit 0' TERM; echo $$ > $DIR/worker; sleep 1000 & wait";
    let inner = program(dir.path(), &[], script);
    // As `nohup` does.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    let mut agent = Running::start(command.env("DIR", dir.path()));
    let worker = Process::of(&dir.path().join("worker"));
    agent.send(Signal::HUP);
    agent.send(Signal::TERM);
    assert_eq!(agent.0.wait().unwrap().signal(), Some(15));
    worker.ended();
    assert_eq!(written(&dir.path().join("heard")), "TERM");
}

/// As daemons do that want no zombies. What such a program starts begins with that.
#[test]
fn an_agent_whose_parent_ignores_the_ends_of_children_sees_those_of_its_workers() {
    const TEST: &str = "an_agent_whose_parent_ignores_the_ends_of_children_sees_those_of_its_workers";
    let _dog = Watchdog::new("");
    let may = Command::new("env").args(["--ignore-signal=CHLD", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: {TEST}: this `env` sets no signals");
        return;
    }
    let dir = tempdir().unwrap();
    for (script, code) in [("exit 0", 0), ("exit 3", 1)] {
        let inner = program(dir.path(), &["--max-restarts", "1"], script);
        let mut command = Command::new("env");
        command.arg("--ignore-signal=CHLD").arg(inner.get_program()).args(inner.get_args());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    }
}

#[test]
fn workers_end_with_an_agent_that_is_killed() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let script = "trap '' TERM INT HUP; echo $$ > $DIR/$RANK; exec sleep 1000";
    let agent = Running::start(&mut program(dir.path(), &["--nproc", "3"], script));
    let workers = ["0", "1", "2"].map(|rank| Process::of(&dir.path().join(rank)));
    drop(agent);
    workers.iter().for_each(Process::ended);
}

/// What the kernel says of a process: its state, its parent, its group, and more.
fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// The processes of a group, also those that were not reaped.
fn group(leader: i32) -> Vec<i32> {
    let of = |pid: i32| stat(pid)?.split(' ').nth(2)?.parse::<i32>().ok();
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| of(*pid) == Some(leader)).collect()
}

#[test]
fn what_workers_have_forked_ends_with_an_agent_that_is_killed() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // The child ignores what can be ignored, and the whole group is sent that first.
    let script = "trap '' TERM INT HUP QUIT USR1 ALRM TSTP TTOU; for S in TERM INT HUP QUIT USR1 ALRM TSTP TTOU; do kill -$S 0; done; \
                  sh -c 'echo $$ > $DIR/child_$RANK; exec sleep 1000' & until [ -s $DIR/child_$RANK ]; do :; done; \
                  echo $$ > $DIR/$RANK; exec sleep 1000";
    let agent = Running::start(&mut program(dir.path(), &["--nproc", "2"], script));
    let workers = ["0", "1"].map(|rank| written(&dir.path().join(rank)).parse().unwrap());
    let all: Vec<_> = workers.iter().flat_map(|leader| group(*leader)).collect();
    assert_eq!(all.len(), 2 * 3, "the worker, what it has forked, and the guard");
    let all: Vec<_> = all.into_iter().map(Process::open).collect();
    drop(agent);
    all.iter().for_each(Process::ended);
}

/// The kernel itself continues a stopped group that has lost its last parent in its session. This test takes that parent's place, as a service manager may.
#[test]
fn a_group_that_was_stopped_ends_with_an_agent_that_is_killed() {
    const TEST: &str = "a_group_that_was_stopped_ends_with_an_agent_that_is_killed";
    let _dog = Watchdog::new("");
    if !support::is_child(TEST) {
        let (ok, said) = support::again_in_child(TEST, ("ADOPTS", "1"), "");
        assert!(ok, "{said}");
        return;
    }
    set_child_subreaper(Some(getpid())).unwrap();
    let dir = tempdir().unwrap();
    let script = "sh -c 'echo $$ > $DIR/child; exec sleep 1000' & until [ -s $DIR/child ]; do :; done; \
                  echo $$ > $DIR/worker; exec sleep 1000";
    let agent = Running::start(&mut program(dir.path(), &[], script));
    let leader = written(&dir.path().join("worker")).parse().unwrap();
    let members = group(leader);
    assert_eq!(members.len(), 3, "the worker, what it has forked, and the guard");
    let all: Vec<_> = members.iter().map(|pid| Process::open(*pid)).collect();
    kill_process_group(Pid::from_raw(leader).unwrap(), Signal::STOP).unwrap();
    let stopped = |pid: &i32| stat(*pid).is_some_and(|fields| fields.starts_with('T'));
    support::until(|| members.iter().all(stopped));
    drop(agent);
    all.iter().for_each(Process::ended);
}

#[test]
fn when_an_attempt_is_over_nothing_is_left_of_the_guards() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // The agent restarts once; then its own process shows what children it has.
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && { echo $$ > $DIR/first; until [ -e $DIR/seen ]; do :; done; exit 1; }; \
                  echo $$ > $DIR/second; exec sleep 1000";
    let agent = Running::start(&mut program(dir.path(), &[], script));
    let first = written(&dir.path().join("first")).parse().unwrap();
    let before = group(first);
    assert_eq!(before.len(), 2, "the worker and the guard");
    std::fs::write(dir.path().join("seen"), "").unwrap();
    let second: i32 = written(&dir.path().join("second")).parse().unwrap();
    let agents = agent.0.id();
    let children = std::fs::read_dir(format!("/proc/{agents}/task")).unwrap().flat_map(|task| {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).collect::<Vec<_>>()
    });
    let (mut children, mut expected) = (children.collect::<Vec<_>>(), group(second));
    children.sort_unstable();
    expected.sort_unstable();
    assert_eq!((children, group(first)), (expected, Vec::new()));
}

#[test]
fn what_a_killed_agent_leaves_in_the_temporary_directory_goes_with_the_next_one() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let left = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().unwrap())
            .filter(|name| name.starts_with("forebear"))
            .collect();
        names.sort();
        names
    };
    let start = |name: &str| {
        let script = format!("echo $$ > $DIR/{name}; exec sleep 1000");
        let agent = Running::start(program(dir.path(), &[], &script).env_remove("XDG_RUNTIME_DIR"));
        written(&dir.path().join(name));
        agent
    };
    let lives = start("lives");
    let of_the_living = left();
    assert_eq!(
        of_the_living.len(),
        2,
        "the socket of the timers, and the files of the run: {of_the_living:?}"
    );
    drop(start("killed"));
    assert_eq!(left().len(), 4);
    let mut next = start("next");
    assert_eq!(left().len(), 4, "those of the two that live");
    assert!(of_the_living.iter().all(|name| left().contains(name)));
    next.send(Signal::TERM);
    next.0.wait().unwrap();
    assert_eq!(left(), of_the_living);
    drop(lives);
}

#[test]
fn a_launcher_whose_parent_is_not_its_agent_starts_nothing() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    // As if the agent had ended before the launcher could ask to end with it, or before there was a guard.
    let (ran, agent) = (dir.path().join("ran"), std::process::id());
    for (parent, sent_on, runs) in [(agent + 1, true, false), (agent, false, false), (agent, true, true)] {
        let mut launcher = Command::new(FOREBEAR_AGENT);
        launcher.args(["sh", "-c", "echo > $DIR/ran"]).env("DIR", dir.path());
        launcher.env("FOREBEAR_AGENT_LAUNCH", parent.to_string());
        // Where it says that it is ready, and is sent on.
        let (mut agents, its) = UnixStream::pair().unwrap();
        launcher.stdin(OwnedFd::from(its));
        if sent_on {
            agents.write_all(b"G").unwrap();
        }
        agents.shutdown(Shutdown::Write).unwrap();
        let code = launcher.status().unwrap().code();
        assert_eq!((code, ran.exists()), (Some(if runs { 0 } else { 127 }), runs));
    }
}

#[test]
fn nobody_who_reads_the_output_of_a_flood_holds_up_the_end() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let mut command = program(dir.path(), &["--quiet"], "echo $$ > $DIR/worker; exec cat /dev/zero");
    // The pipe is full soon, and nobody reads it.
    let mut agent = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let worker = Process::of(&dir.path().join("worker"));
    agent.send(Signal::TERM);
    assert_eq!(agent.0.wait().unwrap().signal(), Some(15));
    worker.ended();
}

/// What stands behind its output is gone: a device that takes nothing, or a pipe that nobody reads.
#[test]
fn an_output_that_takes_nothing_changes_no_exit_code() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let unread = || Stdio::from(OwnedFd::from(UnixStream::pair().unwrap().0));
    for output in [&full as &dyn Fn() -> Stdio, &unread] {
        for (script, code) in [("exit 3", 1), ("exit 0", 0)] {
            let mut command = program(dir.path(), &["--max-restarts", "1"], script);
            let status = command.stdout(output()).stderr(output()).status().unwrap();
            assert_eq!(status.code(), Some(code), "{script}");
        }
        for (argument, code) in [("--help", 0), ("--version", 0), ("--what", 2)] {
            let mut command = Command::new(FOREBEAR_AGENT);
            let status = command.arg(argument).stdout(output()).stderr(output()).status().unwrap();
            assert_eq!(status.code(), Some(code), "{argument}");
        }
    }
}

#[test]
fn the_command_line_says_what_is_wrong_with_it() {
    let _dog = Watchdog::new("");
    for (arguments, part) in [
        (&[][..], "no program is given"),
        (&["--"][..], "no program is given"),
        (&["--nproc"][..], "--nproc needs a value"),
        (&["--nproc", "x", "true"][..], "no number from 0 on"),
        (&["--nproc", "0", "true"][..], "0 workers: there must be from 1 to 65536"),
        (&["--quiet=yes", "true"][..], "takes no value"),
        (&["--nproc", "4000000000", "true"][..], "there must be from 1 to 65536"),
        (&["--what", "true"][..], "there is no option --what"),
        (&["--backoff", "nan", "true"][..], "no number of seconds"),
        (&["/no/such/program"][..], "could not be started from /no/such/program: No such file"),
    ] {
        let output = Command::new(FOREBEAR_AGENT).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
    }
    let help = Command::new(FOREBEAR_AGENT).arg("--help").output().unwrap();
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("usage: forebear-agent"));
}

#[test]
fn all_options_come_to_the_workers_and_the_first_failure_to_its_file() {
    let _dog = Watchdog::new("");
    let dir = tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (logs, error_file, place) = (path("logs"), path("error.json"), path(""));
    let options = [
        "--nproc=2",
        "--max-restarts=1",
        "--refill-after=1000",
        "--max-backoff=0",
        "--kill-timeout=5",
        "--start-timeout=60",
        "--run-id=seven",
        "--role=reader",
        "--no-timers",
        "--log-dir",
        &logs,
        "--error-file",
        &error_file,
        "--current-dir",
        &place,
    ];
    let script = "echo $ROLE_NAME $TORCHELASTIC_RUN_ID $TORCHELASTIC_MAX_RESTARTS ${FOREBEAR_TIMERS:-none}; pwd > here; \
                  echo why > $TORCHELASTIC_ERROR_FILE; exit 4";
    let output = program(dir.path(), &options, script).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the first failure: worker "), "{}", text(&output));
    assert!(text(&output).contains("has ended with exit code 4: why"), "{}", text(&output));
    assert!(std::fs::read_to_string(&error_file).unwrap().contains("\"errorCode\": 4"));
    assert!(dir.path().join("here").exists());
    for attempt in 0..2 {
        let ranks =
            ["0", "1"].map(|rank| dir.path().join(format!("logs/seven/attempt_{attempt}/{rank}/stdout.log")));
        // One of both may have been stopped before it came so far.
        assert!(
            ranks.iter().any(|log| {
                std::fs::read_to_string(log).is_ok_and(|text| text == "reader seven 1 none\n")
            })
        );
    }
}
