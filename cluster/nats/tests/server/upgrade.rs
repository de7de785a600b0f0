//! Workers that are replaced by those of another build while a job runs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use forebear_cluster::TaskFn;
use forebear_cluster::engine::WorkerState;
use rustix::process::Signal;

use crate::support::process::Process;
use crate::support::{job, shared_url, token, until};
use crate::{GATE, LONG, engine, files, pid_in, start, state};

#[path = "../../examples/forebear_worker/tasks.rs"]
mod tasks;

/// Which build of the program its worker has.
pub(crate) const BUILD: TaskFn<(), u32> =
    TaskFn::new("build", |_, ()| Ok(std::env::var("FOREBEAR_TEST_BUILD")?.parse()?));

/// A task that the coordinator does not know, which was built earlier.
pub(crate) const NEWEST: TaskFn<(), ()> = TaskFn::new("newest", |_, ()| Ok(()));

/// [`BUILD`] after a change of its types.
pub(crate) const CHANGED: TaskFn<(), u64> = TaskFn::new("build", |_, ()| Ok(0));

fn worker(job: &str, name: &str, more: &[(&str, &str)]) -> Process {
    let url = shared_url();
    let settings = [("URL", &*url), ("JOB", job), ("NAME", name)];
    Process::start("lone_worker", &[&settings, more].concat())
}

/// The new build has one more task, and computes another result. The old worker drains, as `systemctl stop` asks it.
#[test]
#[ignore = "needs a server: ci/nats"]
fn workers_are_upgraded_one_by_one_while_the_job_goes_on() {
    let (job, (dir, begun, gate)) = (job(), files());
    let cluster = start(engine(&shared_url(), &job, LONG)).min_workers(0).start().unwrap();
    let mut old = worker(&job, "old", &[("BUILD", "1")]);
    assert_eq!(cluster.schedule(&BUILD, ()).unwrap().fetch().unwrap(), 1);
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    assert_eq!(pid_in(&begun), old.0.id());
    let queued: Vec<_> = (0..20).map(|_| cluster.schedule(&BUILD, ()).unwrap()).collect();
    // Its types are others: it is refused, by the name of its task.
    let error = dir.path().join("error");
    let mut changed = worker(&job, "changed", &[("CHANGED", "yes"), ("ERROR", error.to_str().unwrap())]);
    changed.0.wait().unwrap();
    let error = fs::read_to_string(error).unwrap();
    assert!(error.contains("its `build` is `task () -> u64`, the coordinator's `task () -> u32`"), "{error}");
    let _new = worker(&job, "new", &[("BUILD", "2"), ("NEWER", "yes")]);
    until(|| state(&cluster, "new") == Some(WorkerState::Ready));
    assert_eq!(cluster.fetch(queued).unwrap(), [2; 20]);
    old.signal(Signal::TERM);
    until(|| state(&cluster, "old") == Some(WorkerState::Draining));
    fs::write(gate, "").unwrap();
    assert_eq!(held.fetch().unwrap(), (old.0.id(), 1));
    assert!(old.0.wait().unwrap().success());
    until(|| state(&cluster, "old") == Some(WorkerState::Gone));
    assert_eq!(cluster.schedule(&BUILD, ()).unwrap().fetch().unwrap(), 2);
    cluster.join().unwrap();
    assert_eq!((cluster.metrics().returned, cluster.metrics().failed), (0, 0));
    assert!(cluster.workers().iter().all(|worker| worker.id.name() != "changed"));
}

/// The example `forebear_worker`.
fn program(flags: &[&str]) -> Command {
    let tests = std::env::current_exe().unwrap();
    let mut command = Command::new(tests.ancestors().nth(2).unwrap().join("examples/forebear_worker"));
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn files_with(texts: &[(&str, &str)]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let files = texts.iter().map(|(name, text)| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        file
    });
    let files = files.collect();
    (dir, files)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn the_worker_program_works_as_its_flags_say_and_drains_on_sigterm() {
    let (job, url) = (job(), shared_url());
    let (_dir, files) = files_with(&[("token", &format!("{}\n", token()))]);
    let engine = engine(&url, &job, LONG);
    let cluster = forebear_cluster::ClusterCoordinator::builder(engine).tasks(tasks::known());
    let cluster = cluster.min_workers(0).start().unwrap();
    let token = files[0].to_str().unwrap();
    let flags = [
        "--server",
        &url,
        "--job",
        &job,
        "--name",
        "lone",
        "--slots",
        "3",
        "--patience",
        "60",
        "--cache",
        "1",
    ];
    let mut worker = Process(program(&flags).args(["--token-file", token]).spawn().unwrap());
    until(|| state(&cluster, "lone") == Some(WorkerState::Ready));
    assert_eq!(cluster.workers()[0].slots, 3);
    let counts = cluster.schedule(&tasks::LETTERS, "A banana".into()).unwrap().fetch().unwrap();
    assert_eq!((counts[0], counts[1], counts[13]), (4, 1, 2));
    worker.signal(Signal::TERM);
    assert!(worker.0.wait().unwrap().success());
    until(|| state(&cluster, "lone") == Some(WorkerState::Gone));
    cluster.join().unwrap();
}

/// Each says on stderr what is wrong, by 2 if the flags are, and by 1 if the worker cannot work.
#[test]
#[ignore = "needs a server: ci/nats"]
fn the_worker_program_refuses_flags_that_are_wrong_and_says_why() {
    let (_dir, files) = files_with(&[("token", &token()), ("wrong", "wrong")]);
    let [token, wrong] = [0, 1].map(|n| files[n].to_str().unwrap());
    let (url, job) = (shared_url(), job());
    let right = ["--server", &url, "--job", &job];
    let mut cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["--job", &job], 2, "--server"),
        (vec!["--server", &url], 2, "--job"),
        (vec!["--server", "nats://a b", "--job", &job], 1, "the address `nats://a b`"),
        (vec!["--server", "nats://192.0.2.1:4222", "--job", &job], 1, "no credentials"),
        (vec!["--server", &url, "--job", "a.b"], 1, "`a.b` is no name of a job"),
    ];
    let more: [(&[&str], i32, &str); 12] = [
        (&["--slots", "0"], 2, "--slots"),
        (&["--slots", "many"], 2, "--slots"),
        (&["--patience", "-1"], 2, "-1"),
        (&["--cache", "1e9"], 2, "--cache"),
        (&["--user", "me"], 2, "--password-file"),
        (&["--password-file", token], 2, "--user"),
        (&["--token-file", token, "--credentials", token], 2, "cannot be used with"),
        (&["--verbose"], 2, "--verbose"),
        (&["--token-file", "/no/such/file"], 1, "/no/such/file cannot be read"),
        (&["--token-file", wrong], 1, "no connection"),
        (&["--credentials", wrong], 1, "the credentials"),
        (&["--token-file", token, "--patience", "0"], 1, "no coordinator of the job"),
    ];
    cases.extend(more.map(|(flags, code, says)| ([&right, flags].concat(), code, says)));
    for (flags, code, says) in cases {
        let Output { status, stderr, .. } = program(&flags).output().unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{flags:?}: {stderr}");
        assert!(stderr.contains(says), "{flags:?}: {stderr}");
    }
}
