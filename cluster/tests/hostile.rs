//! Peers at the socket of a worker process that keep no rule: torn, oversized and foreign frames, answers that are forged or said twice. Each is refused by a typed error or
//! counted, and no task is lost.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use forebear_cluster::engine::{Answer, Order, Report, TaskId};
use forebear_cluster::{ClusterCoordinator, ClusterError, LocalProcesses, TaskFn, Tasks, tasks, worker};
use rustix::fs::fstat;

const NEXT: TaskFn<u32, u32> = TaskFn::new("next", |_, n| Ok(n + 1));

fn known() -> Tasks {
    tasks![NEXT]
}

#[test]
fn worker_process() {
    worker::entry(known());
}

/// What says to a program that it is a worker.
const MARK: &str = "FOREBEAR_CLUSTER_WORKER";
/// The form of a frame, as `cluster/src/local/frames.rs` has it.
const FORM: [u8; 2] = [b'L', 3];

fn frame(form: [u8; 2], message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32 + 2).to_le_bytes()[..], &form, message].concat()
}

/// A message of a worker: a report.
fn said(report: &Report) -> Vec<u8> {
    frame(FORM, &[&[0], &postcard::to_stdvec(report).unwrap()[..]].concat())
}

/// The next frame, without its length and form.
fn heard(socket: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..2], FORM);
    bytes.split_off(2)
}

/// Waits for a task.
fn task(socket: &mut UnixStream) -> (TaskId, u32, u32) {
    loop {
        let bytes = heard(socket);
        if let Ok(Order::Run { envelope, attempt }) = postcard::from_bytes(&bytes[1..]) {
            return (envelope.task, attempt, postcard::from_bytes(&envelope.args).unwrap());
        }
    }
}

fn answer(task: TaskId, attempt: u32, result: u32) -> Vec<u8> {
    let answer = Answer::Done(postcard::to_stdvec(&result).unwrap().into());
    said(&Report::Answer { task, attempt, answer, ran: Default::default() })
}

fn id(number: u64) -> TaskId {
    postcard::from_bytes(&postcard::to_stdvec(&number).unwrap()).unwrap()
}

type Deed = fn(&mut UnixStream);

/// What a worker does that has a task, if not told otherwise; it is killed for it, or ends.
const DEEDS: [Deed; 7] = [
    // Before it is ready.
    |socket| socket.write_all(&frame(FORM, &[99])).unwrap(),
    // Torn, and dead.
    |socket| {
        let (task, attempt, _) = ready(socket);
        socket.write_all(&answer(task, attempt, 0)[..7]).unwrap();
        std::process::exit(0);
    },
    // A length that nobody has.
    |socket| {
        ready(socket);
        socket.write_all(&u32::MAX.to_le_bytes()).unwrap();
    },
    // Something behind the message.
    |socket| {
        let (task, attempt, _) = ready(socket);
        let mut longer = answer(task, attempt, 0);
        longer.push(0);
        longer[0] += 1;
        socket.write_all(&longer).unwrap();
    },
    // No message of a cluster.
    |socket| {
        ready(socket);
        socket.write_all(&frame([b'?', 1], &[0, 0])).unwrap();
    },
    // A type that there is not.
    |socket| {
        ready(socket);
        socket.write_all(&frame(FORM, &[0, 77, 1, 2, 3])).unwrap();
    },
    // Forged, and said again; between them what is right.
    |socket| {
        let (task, attempt, n) = ready(socket);
        let wrong = [
            answer(id(1 << 40), 1, 0),
            answer(task, attempt + 1, 0),
            answer(task, 0, 0),
            said(&Report::Progress { task: id(1 << 41), thousandths: 7 }),
        ];
        wrong.iter().for_each(|one| socket.write_all(one).unwrap());
        (0..3).for_each(|_| socket.write_all(&answer(task, attempt, n + 1)).unwrap());
        (0..3).for_each(|_| socket.write_all(&said(&Report::Ready)).unwrap());
        // What it is given after that, it gives back by its death.
        self::task(socket);
        std::process::exit(1);
    },
];

/// It says that it is ready, and is given a task.
fn ready(socket: &mut UnixStream) -> (TaskId, u32, u32) {
    socket.write_all(&said(&Report::Ready)).unwrap();
    task(socket)
}

/// A worker that does the next of the deeds; one that comes after all of them works.
#[test]
fn hostile_worker() {
    let dir = std::env::args().nth(2).map(PathBuf::from);
    let Some(dir) = dir.filter(|_| std::env::var_os(MARK).is_some()) else { return };
    let next = (0..).find(|n: &usize| File::create_new(dir.join(n.to_string())).is_ok()).unwrap();
    let Some(deed) = DEEDS.get(next) else { return worker::entry(known()) };
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    heard(&mut socket);
    deed(&mut socket);
    // It waits for its death.
    let _ = socket.read_to_end(&mut Vec::new());
}

#[test]
fn what_hostile_workers_say_is_refused_or_counted_and_no_task_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let list = warnings.clone();
    let engine = LocalProcesses::new(1)
        .args(["hostile_worker", dir.path().to_str().unwrap(), "--exact", "--nocapture"])
        .on_warning(move |text| list.lock().unwrap().push(text.to_owned()));
    let control = engine.control();
    let builder = ClusterCoordinator::builder(engine).tasks(known()).max_attempts(100);
    let cluster = builder.min_workers(0).start().unwrap();
    let values: Vec<_> = (0..30).map(|n| cluster.schedule(&NEXT, n).unwrap()).collect();
    assert_eq!(cluster.fetch(values).unwrap(), (1..=30).collect::<Vec<_>>());
    cluster.join().unwrap();
    assert!(fs::exists(dir.path().join(DEEDS.len().to_string())).unwrap(), "not all deeds were done");
    assert_eq!(cluster.metrics().returned, 6, "each but the first had a task when it ended");
    // Five that cannot be read, four that are forged, and two that are said again.
    assert_eq!(control.dropped(), 11);
    let warnings = warnings.lock().unwrap();
    let of = |what: &str| warnings.iter().filter(|text| text.contains(what)).count();
    assert_eq!(of("is killed for what it has said"), 5, "{warnings:?}");
    assert_eq!(
        (of("torn or garbage"), of("too long"), of("no message of a cluster")),
        (3, 1, 1),
        "{warnings:?}"
    );
}

/// A worker of another version.
#[test]
fn foreign_worker() {
    if std::env::var_os(MARK).is_some() {
        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        heard(&mut socket);
        socket.write_all(&frame([b'L', 9], &[1, 2, 3])).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    }
}

#[test]
fn a_worker_of_another_version_is_refused_and_the_start_says_which() {
    let engine = LocalProcesses::new(1).args(["foreign_worker", "--exact", "--nocapture"]).on_warning(|_| {});
    let refused = ClusterCoordinator::builder(engine).tasks(known()).start();
    let Err(ClusterError::Start { message, .. }) = refused else { panic!("no worker can work") };
    assert!(message.contains("it has version 9, this program 3"), "{message}");
}

/// A worker whose coordinator says this and no more: what it says, and how it ends.
fn worker_that_hears(bytes: &[u8]) -> (Vec<u8>, Output) {
    let (mut mine, its) = UnixStream::pair().unwrap();
    let worker = Command::new(std::env::current_exe().unwrap())
        .args(["worker_process", "--exact", "--nocapture"])
        .env(MARK, fstat(&its).unwrap().st_ino.to_string())
        .stdin(Stdio::from(OwnedFd::from(its)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    mine.write_all(bytes).unwrap();
    mine.shutdown(std::net::Shutdown::Write).unwrap();
    let output = worker.wait_with_output().unwrap();
    let mut said = Vec::new();
    mine.read_to_end(&mut said).unwrap();
    (said, output)
}

#[test]
fn a_worker_ends_with_an_error_by_a_coordinator_that_it_does_not_understand() {
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let (said, output) = worker_that_hears(&frame([b'L', 9], &[1, 2, 3]));
    assert!(text(&output).contains("it has version 9, this program 3"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said).contains("it has version 9"), "the coordinator is told");
    for bad in
        [frame(FORM, &[]), frame([b'?', 1], &[1]), u32::MAX.to_le_bytes().to_vec(), vec![9, 0, 0, 0, b'L']]
    {
        let (_, output) = worker_that_hears(&bad);
        assert_eq!(output.status.code(), Some(1), "{bad:?}: {}", text(&output));
        assert!(text(&output).contains("a worker cannot continue"), "{}", text(&output));
    }
}
