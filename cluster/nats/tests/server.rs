//! What belongs to the engine over NATS alone: deaths that no process sees, servers that die and come back, wrong credentials, hostile messages, large values. `ci/nats` runs it; without a server each
//! test is ignored, by name.

#[path = "../../tests/restart/check.rs"]
mod check;
#[path = "../../tests/restart/job.rs"]
mod job;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::Duration;

use forebear::time::sleep;
use forebear_cluster::engine::WorkerState;
use forebear_cluster::{
    ClusterCoordinator, ClusterCoordinatorBuilder, ClusterError, FailureKind, FetchError, PerWorker,
    ResourceFn, TaskFn, TaskOptions, Tasks, tasks,
};
use forebear_cluster_nats::worker;
use forebear_cluster_nats::{Nats, NatsControl};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::process::{Process, USER};
use crate::support::{Server, job, shared_url, token, until};

const ADD: TaskFn<(u32, u32), u32> = TaskFn::new("add", |_, (a, b)| Ok(a + b));

/// Adds a line to a file.
const LOG: TaskFn<(PathBuf, u32), u32> = TaskFn::new("log", |_, (file, n)| {
    use std::io::Write;
    fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(format!("{n}\n").as_bytes())?;
    Ok(n)
});

/// Writes its process id into the first file, waits for the second one, and returns the id and the attempt.
const GATE: TaskFn<(PathBuf, PathBuf), (u32, u32)> = TaskFn::new("gate", |ctx, (begun, gate)| {
    fs::write(begun.with_extension("new"), process::id().to_string())?;
    fs::rename(begun.with_extension("new"), begun)?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    Ok((process::id(), ctx.attempt()))
});

/// Never ends, and never asks whether it is cancelled.
const STUCK: TaskFn<PathBuf, ()> = TaskFn::new("stuck", |_, begun| {
    fs::write(begun, "")?;
    loop {
        std::hint::spin_loop();
    }
});

/// Ends its process by that status, or by an abort.
const EXIT: TaskFn<i32, ()> =
    TaskFn::new("exit", |_, status| if status < 0 { process::abort() } else { process::exit(status) });

const REVERSE: TaskFn<Vec<u8>, Vec<u8>> = TaskFn::new("reverse", |_, mut bytes| {
    bytes.reverse();
    Ok(bytes)
});

const AS_WORKER: [&str; 3] = ["worker_process", "--exact", "--nocapture"];

/// Keeps what it was given.
const TABLE: ResourceFn<Vec<u8>, Vec<u8>> = ResourceFn::new("table", |_, table| Ok(table));
const LENGTH: TaskFn<PerWorker<Vec<u8>>, usize> =
    TaskFn::new("length", |ctx, table| Ok(ctx.local(&table)?.len()));

fn known() -> Tasks {
    tasks![ADD, LOG, GATE, STUCK, REVERSE, TABLE, LENGTH, EXIT]
}

/// What the workers run that the coordinator starts: this program, with this test alone.
#[test]
fn worker_process() {
    worker::entry(known());
}

/// A worker from elsewhere.
#[test]
fn lone_worker() {
    let strange = std::env::var_os("FOREBEAR_TEST_STRANGE").is_some();
    support::process::lone_worker(if strange { tasks![ADD] } else { known() });
}

/// A coordinator that is killed.
#[test]
fn coordinator_process() {
    let Ok(url) = std::env::var("FOREBEAR_TEST_COORDINATE") else { return };
    let [job, begun] = ["FOREBEAR_TEST_JOB", "FOREBEAR_TEST_BEGUN"].map(|name| std::env::var(name).unwrap());
    let cluster = start(engine(&url, &job, LEASE).workers(1)).start().unwrap();
    let _value = cluster.schedule(&GATE, (begun.into(), "/no/such/gate".into())).unwrap();
    cluster.join().unwrap();
}

/// A coordinator that is killed and started again.
#[test]
fn restarted_coordinator() {
    let Ok(url) = std::env::var("FOREBEAR_TEST_RESTART") else { return };
    let [job, dir] = ["FOREBEAR_TEST_JOB", "FOREBEAR_TEST_DIR"].map(|name| std::env::var(name).unwrap());
    let engine = Nats::new(&url, &job).token(&token()).lease(LEASE).workers(2);
    job::run(dir.as_ref(), engine.args(["restarted_worker", "--exact", "--nocapture"]));
}

#[test]
fn restarted_worker() {
    worker::entry(job::known());
}

/// A lease that tests wait for.
const LEASE: Duration = Duration::from_millis(1_500);
/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(60);

fn engine(url: &str, job: &str, lease: Duration) -> Nats {
    Nats::new(url, job).token(&token()).lease(lease).args(AS_WORKER)
}

fn start(engine: Nats) -> ClusterCoordinatorBuilder {
    ClusterCoordinator::builder(engine).tasks(known())
}

fn state(cluster: &ClusterCoordinator, name: &str) -> Option<WorkerState> {
    cluster.workers().iter().find(|worker| worker.id.name() == name).map(|worker| worker.state)
}

fn pid_in(file: &Path) -> u32 {
    until(|| file.exists());
    fs::read_to_string(file).unwrap().parse().unwrap()
}

fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// A directory, and two files in it that are not there.
fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let [begun, gate] = ["begun", "gate"].map(|name| dir.path().join(name));
    (dir, begun, gate)
}

/// A cluster with two workers from elsewhere, of which the first runs a task that waits for its gate.
fn with_strangers(
    begun: &Path,
    gate: &Path,
) -> (ClusterCoordinator, [Process; 2], forebear_cluster::RemoteValue<(u32, u32)>) {
    let job = job();
    let cluster = start(engine(&shared_url(), &job, LEASE)).min_workers(0).start().unwrap();
    let first = Process::worker(&shared_url(), &job, "first");
    until(|| state(&cluster, "first") == Some(WorkerState::Ready));
    let value = cluster.schedule(&GATE, (begun.into(), gate.into())).unwrap();
    assert_eq!(pid_in(begun), first.0.id());
    let second = Process::worker(&shared_url(), &job, "second");
    until(|| state(&cluster, "second") == Some(WorkerState::Ready));
    (cluster, [first, second], value)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_nobody_sees_die_is_gone_after_its_lease() {
    let (_dir, begun, gate) = files();
    let (cluster, [first, second], value) = with_strangers(&begun, &gate);
    fs::remove_file(&begun).unwrap();
    first.signal(Signal::KILL);
    assert_eq!(pid_in(&begun), second.0.id());
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second.0.id(), 2));
    assert_eq!(state(&cluster, "first"), Some(WorkerState::Gone));
    assert_eq!(cluster.metrics().returned, 1);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_stands_still_loses_its_tasks_and_joins_anew() {
    let (_dir, begun, gate) = files();
    let (cluster, [first, second], value) = with_strangers(&begun, &gate);
    fs::remove_file(&begun).unwrap();
    first.signal(Signal::STOP);
    assert_eq!(pid_in(&begun), second.0.id());
    until(|| state(&cluster, "first") == Some(WorkerState::Gone));
    // What it says when it goes on counts for nothing.
    first.signal(Signal::CONT);
    until(|| state(&cluster, "first") == Some(WorkerState::Ready));
    let workers = cluster.workers();
    assert_eq!(workers.iter().find(|worker| worker.id.name() == "first").unwrap().id.incarnation(), 2);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second.0.id(), 2));
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn workers_end_with_their_coordinator_and_its_job_can_start_again() {
    let (_dir, begun, _gate) = files();
    let (job, url, begun_text) = (job(), shared_url(), begun.to_str().unwrap().to_owned());
    let settings = [("COORDINATE", &*url), ("JOB", &*job), ("BEGUN", &*begun_text)];
    let coordinator = Process::start("coordinator_process", &settings);
    let pid = pid_in(&begun);
    // While it runs, nobody else coordinates this job.
    let refused = start(engine(&url, &job, LEASE)).min_workers(0).start();
    assert!(
        matches!(refused, Err(ClusterError::Start { message, .. }) if message.contains("another coordinator"))
    );
    drop(coordinator);
    until(|| is_dead(pid));
    // Its queue is dropped, and its worker's lock has expired.
    let cluster = start(engine(&url, &job, LEASE).workers(1)).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    cluster.join().unwrap();
    assert_eq!(cluster.metrics().scheduled, 1);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_server_that_is_killed_and_comes_back_loses_nothing() {
    let mut server = Server::start();
    let (dir, begun, gate) = files();
    let log = dir.path().join("log");
    let cluster = start(engine(&server.url(), &job(), LONG).workers(2)).min_workers(2).start().unwrap();
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let values: Vec<_> = (0..400).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()).collect();
    until(|| fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 20));
    server.kill();
    // Work goes on to be scheduled meanwhile.
    let later: Vec<_> = (400..500).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()).collect();
    server.restart();
    fs::write(gate, "").unwrap();
    cluster.join().unwrap();
    assert_eq!(held.fetch().unwrap().1, 1, "the task that ran went on");
    let mut all = cluster.fetch(values).unwrap();
    all.extend(cluster.fetch(later).unwrap());
    assert_eq!(all, (0..500).collect::<Vec<_>>());
    let mut lines: Vec<u32> =
        fs::read_to_string(&log).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, all, "no worker died, so each ran once");
    assert_eq!(cluster.metrics().returned, 0);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn the_loss_of_the_server_is_raised_until_it_is_back() {
    let mut server = Server::start();
    let (_dir, begun, gate) = files();
    let engine = engine(&server.url(), &job(), LONG).workers(1).unavailable_after(Duration::from_millis(100));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    server.kill();
    let is_away = |error: &ClusterError| matches!(error, ClusterError::Unavailable { .. });
    assert!(is_away(&cluster.join().unwrap_err()));
    assert!(is_away(&cluster.done().unwrap_err()));
    assert!(is_away(&cluster.schedule(&ADD, (1, 2)).unwrap_err()));
    server.restart();
    until(|| cluster.done().is_ok());
    fs::write(gate, "").unwrap();
    cluster.join().unwrap();
    assert_eq!(value.fetch().unwrap().1, 1, "what ran went on");
    assert_eq!(cluster.metrics().scheduled, 1);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_server_that_has_lost_its_store_is_given_the_queue_again() {
    let mut server = Server::start();
    let (_dir, begun, gate) = files();
    let cluster = start(engine(&server.url(), &job(), LONG).workers(1)).start().unwrap();
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let values: Vec<_> = (0..20).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    server.kill();
    server.forget();
    server.restart();
    fs::write(gate, "").unwrap();
    assert_eq!(cluster.fetch(values).unwrap(), (1..=20).collect::<Vec<_>>());
    held.fetch().unwrap();
    cluster.join().unwrap();
}

/// A server that is killed in the moment in which a stream becomes empty has removed the file of its messages, and has not made the next one. It begins the stream anew, and its consumer
/// waits where it was.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_stream_that_a_killed_server_begins_anew_is_read_from_its_beginning() {
    for streams in [&["RESULTS"][..], &["TASKS"], &["TASKS", "RESULTS"]] {
        let (mut server, job) = (Server::start(), job());
        let cluster = start(engine(&server.url(), &job, LONG).workers(2)).min_workers(2).start().unwrap();
        let run = |numbers: std::ops::Range<u32>| {
            let values: Vec<_> = numbers.map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
            cluster.fetch(values).unwrap()
        };
        assert_eq!(run(0..50), (1..51).collect::<Vec<_>>());
        server.end();
        for stream in streams {
            server.empty(&format!("FB_{job}_{stream}"));
        }
        server.restart();
        assert_eq!(run(50..60), (51..61).collect::<Vec<_>>(), "{streams:?}");
        cluster.join().unwrap();
    }
}

/// What a killed server has not written down about a consumer, or somebody has deleted.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_consumer_that_is_gone_or_passes_messages_over_is_made_anew() {
    use async_nats::jetstream::consumer::{AckPolicy, pull};
    let (url, job) = (shared_url(), job());
    let cluster = start(engine(&url, &job, LONG).workers(1)).start().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (stream, name, deaf) in
        [("TASKS", "workers", false), ("RESULTS", "coordinator", false), ("TASKS", "workers", true)]
    {
        tokio.block_on(async {
            let client = async_nats::ConnectOptions::with_token(token()).connect(&url).await.unwrap();
            let stream = async_nats::jetstream::new(client).get_stream(format!("FB_{job}_{stream}")).await;
            let stream = stream.unwrap();
            stream.delete_consumer(name).await.unwrap();
            if deaf {
                let config = pull::Config {
                    durable_name: Some(name.into()),
                    ack_policy: AckPolicy::Explicit,
                    filter_subject: format!("fb.{job}.task.none"),
                    ..pull::Config::default()
                };
                stream.create_consumer(config).await.unwrap();
            }
        });
        for n in 0..5 {
            assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
        }
    }
    cluster.join().unwrap();
}

/// A worker that cannot reach the server ends and is started again, however long the server is away.
#[test]
#[ignore = "needs a server: ci/nats"]
fn ends_of_workers_while_the_server_is_away_do_not_use_up_their_restarts() {
    let mut server = Server::start();
    let (dir, begun, gate) = files();
    let starts = dir.path().join("starts");
    let (said, heard) = std::sync::mpsc::channel();
    let hook = move |text: &str| said.send(text.to_owned()).unwrap();
    let program = std::env::current_exe().unwrap();
    let script = format!("echo >>{}; exec {} \"$@\"", starts.display(), program.display());
    let engine = engine(&server.url(), &job(), LONG).workers(1).restarts(1).on_warning(hook);
    let engine = engine.program("sh").args(["-c", &*script, "worker"].iter().chain(&AS_WORKER));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    server.kill();
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    let count = || fs::read_to_string(&starts).unwrap().lines().count();
    until(|| heard.try_recv().map_or(count() > 4, |said| panic!("{said}")));
    server.restart();
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 2);
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn values_larger_than_a_message_go_through_the_store() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).start().unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let back = cluster.schedule(&REVERSE, bytes.clone()).unwrap().fetch().unwrap();
    assert!(back.iter().rev().eq(&bytes));
}

/// How many objects a job has. Each has its bytes under a subject of its own, until it is removed; to count these takes the server one message, and a
/// listing a consumer.
fn objects(job: &str) -> usize {
    use futures_util::TryStreamExt;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        let bucket = format!("FB_{job}_BLOBS");
        let stream =
            async_nats::jetstream::new(client).get_stream_no_info(format!("OBJ_{bucket}")).await.unwrap();
        let chunks = stream.info_with_subjects(format!("$O.{bucket}.C.>")).await.unwrap();
        let subjects: Vec<_> = chunks.try_collect().await.unwrap();
        subjects.len()
    })
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn large_arguments_are_kept_while_a_task_needs_them_and_freed_when_it_is_over() {
    let (job, (_dir, begun, gate)) = (job(), files());
    let cluster = start(engine(&shared_url(), &job, LONG).workers(1)).start().unwrap();
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let values: Vec<_> = (0..2).map(|n| cluster.schedule(&REVERSE, vec![n; 1 << 20]).unwrap()).collect();
    let dropped = cluster.schedule(&REVERSE, vec![9; 1 << 20]).unwrap();
    until(|| objects(&job) == 3);
    dropped.cancel();
    until(|| objects(&job) == 2);
    fs::write(gate, "").unwrap();
    held.fetch().unwrap();
    for (n, value) in (0..).zip(values) {
        assert_eq!(value.fetch().unwrap(), vec![n; 1 << 20]);
    }
    until(|| objects(&job) == 0);
}

/// A worker that stands still for longer than a lease is replaced, although its process has not died.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_of_this_process_that_stands_still_for_a_lease_is_started_again() {
    let (_dir, begun, gate) = files();
    let engine = engine(&shared_url(), &job(), LEASE).workers(1).cancel_grace(Duration::from_millis(300));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::STOP).unwrap();
    let second = pid_in(&begun);
    assert_ne!(first, second);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second, 2));
    until(|| is_dead(first));
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_heeds_no_cancel_ends_its_worker() {
    let (_dir, begun, _gate) = files();
    let engine = engine(&shared_url(), &job(), LEASE).workers(1).cancel_grace(Duration::from_millis(10));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&STUCK, begun.clone()).unwrap();
    until(|| begun.exists());
    value.cancel();
    assert!(value.fetch().is_err());
    // It is started again, as the next incarnation.
    until(|| cluster.workers().iter().any(|worker| worker.id.incarnation() == 2));
    cluster.join().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r23_workers_are_started_one_after_the_other() {
    let (short, long) = (Duration::from_millis(5), Duration::from_secs(5_000));
    for (each, most, workers) in [(short, long, 3), (long, short, 3), (long, long, 1)] {
        let engine = engine(&shared_url(), &job(), LONG).workers(3).start_delay(each, most);
        let cluster = start(engine).min_workers(workers).start().unwrap();
        assert_eq!(cluster.workers().len(), workers);
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_dies_is_started_again() {
    let (_dir, begun, gate) = files();
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    let second = pid_in(&begun);
    assert_ne!(first, second);
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap(), (second, 2));
    cluster.join().unwrap();
    assert_eq!(cluster.workers()[0].id.incarnation(), 2);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_ends_its_process_is_not_tried_for_ever_and_others_go_on() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).max_attempts(2).start().unwrap();
    for status in [0, 3, -1] {
        let value = cluster.schedule_with(&TaskOptions::new().raise(false), &EXIT, status).unwrap();
        let Err(FetchError::Task(failure)) = value.fetch() else { panic!("it has ended its process") };
        assert_eq!(*failure.kind(), FailureKind::Poisoned { attempts: 2 });
        assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_whose_program_cannot_be_started_for_a_while_comes_back() {
    let (dir, begun, gate) = files();
    let program = dir.path().join("program");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    let engine = engine(&shared_url(), &job(), LONG).workers(1).program(&program).restarts(1_000);
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    fs::remove_file(&begun).unwrap();
    fs::remove_file(&program).unwrap();
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    until(|| state(&cluster, "worker-0") == Some(WorkerState::Gone));
    sleep(Duration::from_millis(20)).unwrap();
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 2);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn r62_a_coordinator_that_is_killed_goes_on_at_its_checkpoint() {
    let (url, job) = (shared_url(), job());
    check::check(|dir| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["restarted_coordinator", "--exact", "--nocapture"]);
        command
            .env("FOREBEAR_TEST_RESTART", &url)
            .env("FOREBEAR_TEST_JOB", &job)
            .env("FOREBEAR_TEST_DIR", dir);
        command
    });
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn without_the_right_credentials_nothing_starts() {
    for engine in [Nats::new(&shared_url(), &job()), Nats::new(&shared_url(), &job()).token("wrong")] {
        let refused = start(engine.connect_timeout(Duration::from_secs(2))).start();
        assert!(
            matches!(refused, Err(ClusterError::Start { message, .. }) if message.contains("connection"))
        );
    }
    let bare = start(Nats::new("nats://192.0.2.1:4222", &job())).start();
    assert!(matches!(bare, Err(ClusterError::Start { message, .. }) if message.contains("no credentials")));
    let named = start(Nats::new(&shared_url(), "a.b")).start();
    assert!(
        matches!(named, Err(ClusterError::Start { message, .. }) if message.contains("no name of a job"))
    );
}

/// Makes an authority and a certificate for loopback that it has signed, in that directory. `false`: there is no `openssl`.
fn certify(dir: &Path) -> bool {
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        command.args(line.split(' ')).current_dir(dir).stderr(Stdio::null()).stdin(Stdio::null());
        command.status().map(|status| assert!(status.success(), "openssl {line}"))
    };
    fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    if openssl(&format!("req -x509 {key} -keyout authority.key -out authority.pem -subj /CN=authority"))
        .is_err()
    {
        return false;
    }
    openssl(
        &format!("req {key} -keyout server.key -out server.csr -subj /CN=server").replace(" -days 2", ""),
    )
    .unwrap();
    openssl("x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -out server.pem -days 2 -extfile names").unwrap();
    true
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn by_tls_and_with_a_password_a_cluster_works_and_with_less_nothing_starts() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if !certify(dir.path()) {
        return eprintln!("SKIPPED: TLS: there is no openssl");
    }
    assert!(certify(other.path()));
    let at = |name: &str| dir.path().join(name);
    let access = format!(
        "tls {{ cert_file: \"{0}/server.pem\", key_file: \"{0}/server.key\" }}\nauthorization {{ users: [ {{ user: \"{1}\", password: \"{2}\" }} ] }}",
        dir.path().display(),
        USER.0,
        USER.1,
    );
    let (authority, job) = (at("authority.pem"), job());
    let server = Server::start_as(dir, access);
    let url = server.url().replace("nats:", "tls:");
    let engine = || Nats::new(&url, &job).lease(LONG).args(AS_WORKER).connect_timeout(Duration::from_secs(5));
    let cluster = start(engine().user(USER.0, USER.1).tls(&authority).workers(1)).start().unwrap();
    let settings =
        [("URL", &*url), ("JOB", &*job), ("NAME", "lone"), ("AUTHORITY", authority.to_str().unwrap())];
    let _lone = Process::start("lone_worker", &settings);
    until(|| state(&cluster, "lone") == Some(WorkerState::Ready));
    for n in 0..20 {
        assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
    }
    cluster.shutdown().unwrap();
    for less in [
        engine().user(USER.0, "another secret").tls(&authority),
        engine().tls(&authority),
        engine().user(USER.0, USER.1).tls(other.path().join("authority.pem")),
        engine().user(USER.0, USER.1),
    ] {
        assert!(matches!(start(less).start(), Err(ClusterError::Start { .. })));
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_with_other_tasks_is_refused_and_says_which() {
    let (job, dir) = (job(), tempfile::tempdir().unwrap());
    let (url, error) = (shared_url(), dir.path().join("error"));
    let _cluster = start(engine(&url, &job, LONG)).min_workers(0).start().unwrap();
    let settings = [
        ("URL", &*url),
        ("JOB", &*job),
        ("NAME", "strange"),
        ("STRANGE", "yes"),
        ("ERROR", error.to_str().unwrap()),
    ];
    let _worker = Process::start("lone_worker", &settings);
    until(|| {
        fs::read_to_string(&error).is_ok_and(|text| text.contains("does not know the coordinator's `exit`"))
    });
}

/// A peer with the credentials can write to the subjects of the job. Messages that are none of this run are dropped and counted, and nothing is lost.
#[test]
#[ignore = "needs a server: ci/nats"]
fn hostile_messages_are_dropped_and_counted() {
    let (job, (_dir, begun, gate)) = (job(), files());
    let engine = engine(&shared_url(), &job, LONG).workers(1);
    let control: NatsControl = engine.control();
    let cluster = start(engine).start().unwrap();
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let subjects: Vec<String> =
        ["hello", "up", "result", "task.0", "task.9", "pulse"].map(|end| format!("fb.{job}.{end}")).into();
    tokio.block_on(async {
        use futures_util::StreamExt;
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        // All that the job says is said once more, whole and torn.
        let mut all = client.subscribe(format!("fb.{job}.>")).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(all.next().await.unwrap());
        }
        for message in &seen {
            client.publish(message.subject.clone(), message.payload.clone()).await.unwrap();
            let torn = message.payload.slice(..message.payload.len() / 2);
            client.publish(message.subject.clone(), torn).await.unwrap();
        }
        for subject in &subjects[..5] {
            for garbage in [
                &b""[..],
                b"F",
                b"F\x63version",
                b"F\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                &[7; 100_000],
            ] {
                client.publish(subject.clone(), bytes::Bytes::copy_from_slice(garbage)).await.unwrap();
            }
        }
        client.publish(subjects[5].clone(), "garbage".into()).await.unwrap();
        client.flush().await.unwrap();
    });
    until(|| control.dropped() >= 15);
    fs::write(gate, "").unwrap();
    assert_eq!(held.fetch().unwrap().1, 1);
    for n in 0..20 {
        assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
    }
    cluster.join().unwrap();
    assert_eq!(cluster.metrics().returned, 0);
}

/// Claims, orders and ends that are there at the same time travel together.
#[test]
#[ignore = "needs a server: ci/nats"]
fn tasks_that_are_under_way_together_share_messages() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::StreamExt;

    const TASKS: u32 = 2_000;
    let job = job();
    let cluster = start(engine(&shared_url(), &job, LONG).workers(1).slots(16)).start().unwrap();
    let messages = Arc::new(AtomicU64::new(0));
    let (counted, (listens, is_listening)) = (messages.clone(), std::sync::mpsc::channel());
    let subjects = ["up", "down.>", "result"].map(|subject| format!("fb.{job}.{subject}"));
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
            let mut all = Vec::new();
            for subject in subjects {
                all.push(client.subscribe(subject).await.unwrap());
            }
            client.flush().await.unwrap();
            listens.send(()).unwrap();
            let mut all = futures_util::stream::select_all(all);
            while all.next().await.is_some() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    is_listening.recv().unwrap();
    let values: Vec<_> = (0..TASKS).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    let sums: Vec<u32> = cluster.fetch(values).unwrap();
    assert!(sums.into_iter().eq(1..=TASKS));
    // By itself each task has a claim, an order to start, and a record.
    let messages = messages.load(Ordering::Relaxed);
    assert!(messages < u64::from(2 * TASKS), "{messages} messages for {TASKS} tasks");
}

/// A worker's first orders may be too much for one message.
#[test]
#[ignore = "needs a server: ci/nats"]
fn resources_with_long_arguments_reach_a_worker_that_comes_later() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).start().unwrap();
    let tables: Vec<_> =
        (1..=8).map(|n| cluster.per_worker(&TABLE, vec![7; (200 << 10) + n]).unwrap()).collect();
    let (_dir, begun, gate) = files();
    let held = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    // The next one gets all of them at once.
    kill_process(Pid::from_raw(pid_in(&begun) as i32).unwrap(), Signal::KILL).unwrap();
    fs::write(gate, "").unwrap();
    assert_eq!(held.fetch().unwrap().1, 2);
    for (n, table) in tables.iter().enumerate() {
        assert_eq!(cluster.schedule(&LENGTH, table.clone()).unwrap().fetch().unwrap(), (200 << 10) + n + 1);
    }
}

/// Otherwise no worker would ever be ready.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_resource_whose_arguments_no_message_takes_is_refused() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).start().unwrap();
    let refused = cluster.per_worker(&TABLE, vec![7; 2 << 20]);
    assert!(matches!(refused, Err(ClusterError::TooLarge { .. })), "{refused:?}");
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}
