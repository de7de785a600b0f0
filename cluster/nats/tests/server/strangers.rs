//! Peers without the right credentials, with other tasks, or hostile ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear_cluster::engine::WorkerState;
use forebear_cluster::{ClusterError, TaskCtx, TaskFn, Tasks};
use forebear_cluster_nats::worker::{self, WorkerOptions};
use forebear_cluster_nats::{Nats, NatsControl};

use crate::support::process::{Process, USER};
use crate::support::{Server, job, shared_url, token, until};
use crate::{ADD, AS_WORKER, GATE, LONG, engine, files, pid_in, start, state};

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

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_program_that_cannot_be_started_is_named() {
    let says = |program: &str| {
        let engine = Nats::new(&shared_url(), &job()).token(&token()).program(program).workers(1);
        start(engine).start().unwrap_err().to_string()
    };
    let missing = says("/no/such/program");
    assert!(missing.contains("/no/such/program"), "{missing}");
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
        fs::read_to_string(&error).is_ok_and(|text| text.contains("does not know the coordinator's `build`"))
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

/// Bytes of another version, of which nothing but that is known.
const FOREIGN: &[u8] = b"F\x63what it says is not known here";

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_of_another_version_is_told_so_and_the_coordinator_warns_once() {
    let (job, warnings) = (job(), Warnings::default());
    let engine = engine(&shared_url(), &job, LONG).on_warning(warnings.hook());
    let control = engine.control();
    let cluster = start(engine).min_workers(0).start().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        for _ in 0..3 {
            let answer = client.request(format!("fb.{job}.hello"), FOREIGN.into()).await.unwrap();
            // These two bytes mean the same to workers of all versions.
            assert_eq!(answer.payload[..2], [b'F', 8]);
        }
    });
    let warned = warnings.all();
    assert!(
        matches!(&warned[..], [one] if one.contains("it has version 99 of the messages, and this coordinator 8")),
        "{warned:?}"
    );
    until(|| control.dropped() == 3);
    assert!(cluster.workers().is_empty());
}

/// How a worker ends whose request to join is answered by these bytes.
fn answered(bytes: &'static [u8]) -> String {
    let (job, (_dir, said)) = (job(), said());
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut worker = tokio.block_on(async {
        use futures_util::StreamExt;
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        let mut hellos = client.subscribe(format!("fb.{job}.hello")).await.unwrap();
        client.flush().await.unwrap();
        let worker = impatient(&job, "worker", &said);
        let hello = hellos.next().await.unwrap();
        client.publish(hello.reply.unwrap(), bytes.into()).await.unwrap();
        client.flush().await.unwrap();
        worker
    });
    worker.0.wait().unwrap();
    fs::read_to_string(&said).unwrap()
}

/// An answer that lets a worker join: as the first member, of a run with the number 1. Its lease is a minute, its grace and its patience a second, and its beat is zero.
const BEATLESS: &[u8] = &[b'F', 8, 0, 1, 1, 1, b'w', 1, 0, 60, 0, 0, 0, 1, 0, 1, 0];

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_that_is_told_to_beat_without_a_pause_says_so_and_does_not_panic() {
    let error = answered(BEATLESS);
    assert!(error.contains("the coordinator's answer cannot be followed: it names a beat of 0ns"), "{error}");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_says_which_version_a_coordinator_has_that_it_does_not_understand() {
    let error = answered(FOREIGN);
    assert!(error.contains("the coordinator has version 99 of the messages, and this worker 8"), "{error}");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_whose_tasks_no_message_takes_says_so_at_once() {
    fn nothing(_: &TaskCtx, (): ()) -> Result<(), forebear::Error> {
        Ok(())
    }
    let mut tasks = Tasks::default();
    for n in 0..6_000 {
        let name: &'static str = format!("{n} {}", "x".repeat(200)).leak();
        tasks = tasks.with(TaskFn::new(name, nothing));
    }
    let options = WorkerOptions::new(&shared_url(), &job()).token(&token());
    let error = worker::run(options, tasks).unwrap_err().to_string();
    assert!(error.contains("6000 tasks") && error.contains("max_payload"), "{error}");
}

/// What an engine has warned of.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn hook(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let all = self.0.clone();
        move |text| all.lock().unwrap().push(text.to_owned())
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A flag was copied to two machines. The second worker ends with the cause, and may come when the first one was killed: long before its lease has ended.
#[test]
#[ignore = "needs a server: ci/nats"]
fn of_two_workers_of_one_name_the_first_works_and_the_second_says_why_it_does_not() {
    let (job, (_dir, said), warnings) = (job(), said(), Warnings::default());
    let engine = engine(&shared_url(), &job, LONG).on_warning(warnings.hook());
    let cluster = start(engine).min_workers(0).start().unwrap();
    let first = Process::worker(&shared_url(), &job, "twin");
    until(|| state(&cluster, "twin") == Some(WorkerState::Ready));
    let mut second = impatient(&job, "twin", &said);
    for n in 0..200 {
        assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
    }
    second.0.wait().unwrap();
    let error = fs::read_to_string(&said).unwrap();
    assert!(error.contains("another process is a worker named `twin`"), "{error}");
    let warned = warnings.all();
    assert!(
        matches!(&warned[..], [one] if one.contains("two processes are workers named `twin`")),
        "{warned:?}"
    );
    let incarnations = || cluster.workers().iter().map(|worker| worker.id.incarnation()).collect::<Vec<_>>();
    assert_eq!((incarnations(), cluster.metrics().returned), (vec![1], 0));
    drop(first);
    let _third = Process::worker(&shared_url(), &job, "twin");
    until(|| incarnations() == [2] && state(&cluster, "twin") == Some(WorkerState::Ready));
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    assert_eq!(warnings.all().len(), 1);
}

/// One is there, and the other one is not started for as long as this test runs.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_from_elsewhere_with_the_name_of_one_that_the_coordinator_starts_is_refused_at_once() {
    let (job, warnings) = (job(), Warnings::default());
    let engine = engine(&shared_url(), &job, LONG).workers(2).start_delay(LONG, LONG);
    let cluster = start(engine.on_warning(warnings.hook())).start().unwrap();
    for name in ["worker-0", "worker-1"] {
        let (_dir, said) = said();
        impatient(&job, name, &said).0.wait().unwrap();
        let error = fs::read_to_string(&said).unwrap();
        assert!(
            error.contains(&format!("the coordinator's process starts the worker named `{name}` itself")),
            "{error}"
        );
    }
    let names: Vec<String> = cluster.workers().iter().map(|worker| worker.id.to_string()).collect();
    assert_eq!(names, ["worker-0 (1)"]);
    assert_eq!(warnings.all().len(), 2);
    let _other = Process::worker(&shared_url(), &job, "other");
    until(|| state(&cluster, "other") == Some(WorkerState::Ready));
}

/// The file into which a worker writes why it has ended.
fn said() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("said");
    (dir, file)
}

/// A worker that waits for some seconds, and writes into that file why it has ended.
fn impatient(job: &str, name: &str, said: &Path) -> Process {
    let url = shared_url();
    let settings =
        [("URL", &*url), ("JOB", job), ("NAME", name), ("PATIENCE", "4"), ("ERROR", said.to_str().unwrap())];
    Process::start("lone_worker", &settings)
}
