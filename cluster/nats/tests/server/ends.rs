//! Starts that are given up or fail, and ends: nothing of the job stays on the server, and the next start of it need not wait.

use std::cell::RefCell;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use forebear::sync::Event;
use forebear::{CancelReason, Request, Runtime, no_suspend};
use forebear_cluster::{ClusterCoordinator, ClusterError};
use forebear_cluster_nats::Nats;
use futures_util::{StreamExt, TryStreamExt};

use crate::support::process::{Process, USER};
use crate::support::sieve::Sieve;
use crate::support::{Server, job, shared_port, shared_url, token, until};
use crate::{ADD, AS_WORKER, LONG, engine, start};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Does that with the streams of the shared server.
fn shared<T>(work: impl AsyncFnOnce(Context) -> T) -> T {
    at(&shared_url(), ConnectOptions::with_token(token()), work)
}

fn at<T>(url: &str, options: ConnectOptions, work: impl AsyncFnOnce(Context) -> T) -> T {
    block_on(async { work(async_nats::jetstream::new(options.connect(url).await.unwrap())).await })
}

async fn streams_in(context: Context, job: &str) -> Vec<String> {
    let names = context.stream_names().filter(|name| {
        let is_its = name.as_ref().is_ok_and(|name| name.contains(&format!("FB_{job}_")));
        std::future::ready(is_its)
    });
    names.try_collect().await.unwrap()
}

/// The streams of a job on the shared server.
fn streams(job: &str) -> Vec<String> {
    shared(async |context| streams_in(context, job).await)
}

/// The lock of a coordinator that is dead, for a minute.
fn leave_a_lock(job: &str) {
    let bucket = format!("FB_{job}_META");
    shared(async |context| {
        let config = Config {
            name: format!("KV_{bucket}"),
            subjects: vec![format!("$KV.{bucket}.>")],
            max_messages_per_subject: 1,
            max_age: LONG,
            allow_rollup: true,
            deny_delete: true,
            ..Config::default()
        };
        context.create_stream(config).await.unwrap();
        let sent = context.publish(format!("$KV.{bucket}.coordinator"), "the dead".into()).await.unwrap();
        sent.await.unwrap();
    });
}

fn remove_the_lock(job: &str) {
    shared(async |context| context.delete_stream(format!("KV_FB_{job}_META")).await.unwrap());
}

/// Before the shared server, and how often a start of the job has tried to take its lock.
fn watched(job: &str) -> (Sieve, Arc<AtomicUsize>) {
    let (sieve, tries) = (Sieve::before(shared_port()), Arc::new(AtomicUsize::new(0)));
    let (its, lock) = (tries.clone(), format!("$KV.FB_{job}_META.coordinator"));
    sieve.lose(move |message| {
        its.fetch_add(usize::from(message.contains(&lock)), Ordering::Relaxed);
        false
    });
    (sieve, tries)
}

/// Starts in a request that is cancelled when that holds, and waits until the start has returned.
fn cancelled_start(engine: Nats, when: impl Fn() -> bool) {
    let (send, returned) = mpsc::channel();
    let request = forebear::spawn(move || send.send(start(engine).min_workers(0).start().map(drop)));
    request.submit();
    until(when);
    request.cancel();
    let answer = returned.recv().unwrap();
    assert!(matches!(answer, Err(ClusterError::Cancelled)), "{answer:?}");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_that_is_cancelled_while_it_waits_for_the_lock_ends_and_does_not_take_it_later() {
    let job = job();
    leave_a_lock(&job);
    let (sieve, tries) = watched(&job);
    cancelled_start(engine(&sieve.url(), &job, LONG), || tries.load(Ordering::Relaxed) > 1);
    until(|| sieve.is_unused());
    assert_eq!(streams(&job), [format!("KV_FB_{job}_META")], "what another coordinator has left stays");
    remove_the_lock(&job);
}

/// It has the lock, and makes the streams, or the server has not said yet that it has the lock.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_that_is_cancelled_while_it_makes_its_streams_leaves_nothing_and_the_next_one_begins_at_once() {
    for [kept, whose] in [["stream_create_response", "_TASKS"], ["\"stream\":\"KV_", "_META"]] {
        let job = job();
        let sieve = Sieve::before(shared_port());
        let (whose, mut first) = (format!("FB_{job}{whose}\""), true);
        sieve.keep(move |message| {
            let is_it = first && message.contains(kept) && message.contains(&whose);
            first &= !is_it;
            is_it
        });
        cancelled_start(engine(&sieve.url(), &job, LONG), || sieve.kept() == 1);
        assert_eq!(streams(&job), [""; 0], "after {kept}");
        let begun = Instant::now();
        start(engine(&shared_url(), &job, LONG)).min_workers(0).start().unwrap();
        assert!(begun.elapsed() < LONG / 2, "there was a lock");
        assert_eq!(streams(&job), [""; 0], "the last handle was dropped");
    }
}

/// A program that ends right after its coordinator.
#[test]
fn brief_coordinator() {
    let Ok(job) = std::env::var("FOREBEAR_TEST_BRIEF") else { return };
    let cluster = start(engine(&shared_url(), &job, LONG)).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (2, 3)).unwrap().fetch().unwrap(), 5);
    if std::env::var_os("FOREBEAR_TEST_SHUTDOWN").is_some() {
        cluster.shutdown().unwrap();
    } else {
        drop(cluster);
    }
    exit(0);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_program_that_ends_with_its_coordinator_leaves_nothing_and_its_workers_elsewhere_leave() {
    for mode in ["DROP", "SHUTDOWN"] {
        let (job, dir) = (job(), tempfile::tempdir().unwrap());
        let (url, error) = (shared_url(), dir.path().join("error"));
        let settings = [("URL", &*url), ("JOB", &*job), ("NAME", "far"), ("ERROR", error.to_str().unwrap())];
        let mut worker = Process::start("lone_worker", &settings);
        let mut program = Process::start("ends::brief_coordinator", &[("BRIEF", &*job), (mode, "yes")]);
        assert!(program.0.wait().unwrap().success(), "{mode}");
        assert_eq!(streams(&job), [""; 0], "{mode}");
        let begun = Instant::now();
        assert!(worker.0.wait().unwrap().success(), "{mode}");
        assert!(begun.elapsed() < LONG / 2 && !error.exists(), "{mode}: it was not told to leave");
        start(engine(&url, &job, LONG)).min_workers(0).start().unwrap();
        assert!(begun.elapsed() < LONG / 2, "{mode}: there was a lock");
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_right_after_a_shutdown_begins_at_once() {
    let job = job();
    let begun = Instant::now();
    for _ in 0..10 {
        let cluster = start(engine(&shared_url(), &job, LONG)).min_workers(0).start().unwrap();
        cluster.shutdown().unwrap();
        assert_eq!(streams(&job), [""; 0]);
        cluster.shutdown().unwrap();
    }
    assert!(begun.elapsed() < LONG / 2);
}

/// As a coordinator does that ends meanwhile: while the start waits for its lock, and just when the start has found its bucket.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_whose_bucket_of_the_lock_is_removed_makes_it_again_and_begins() {
    for early in [false, true] {
        let (job, begun) = (job(), Instant::now());
        leave_a_lock(&job);
        let (sieve, tries) = watched(&job);
        if early {
            let (bucket, mut first) = (format!("KV_FB_{job}_META\""), true);
            sieve.keep(move |message| {
                let is_it = first && message.contains("stream_info_response") && message.contains(&bucket);
                first &= !is_it;
                is_it
            });
        }
        let engine = engine(&sieve.url(), &job, LONG);
        let request = forebear::spawn(move || start(engine).min_workers(0).start().map(drop));
        request.submit();
        until(|| if early { sieve.kept() == 1 } else { tries.load(Ordering::Relaxed) > 1 });
        remove_the_lock(&job);
        sieve.release();
        request.take().unwrap().unwrap();
        assert!(begun.elapsed() < LONG / 2, "early: {early}");
        assert_eq!(streams(&job), [""; 0]);
    }
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn durations_without_a_limit_are_no_error_and_nothing_stays() {
    let (job, max) = (job(), Duration::MAX);
    let engine = engine(&shared_url(), &job, max).connect_timeout(max).cancel_grace(max);
    let engine = engine.unavailable_after(max).start_delay(max, Duration::ZERO).workers(2);
    let cluster = start(engine).min_workers(2).start_timeout(max).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (2, 3)).unwrap().fetch().unwrap(), 5);
    cluster.shutdown().unwrap();
    assert_eq!(streams(&job), [""; 0]);
}

/// The account may have three streams, and a job has four.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_that_fails_leaves_nothing_and_the_next_one_fails_at_once() {
    let access = format!(
        "accounts {{ few {{ jetstream {{ max_streams: 3 }}, users: [ {{ user: \"{}\", password: \"{}\" }} ] }} }}",
        USER.0, USER.1
    );
    let server = Server::start_as(tempfile::tempdir().unwrap(), access);
    let (job, begun) = (job(), Instant::now());
    for _ in 0..2 {
        let engine = Nats::new(&server.url(), &job).user(USER.0, USER.1).lease(LONG);
        let refused = start(engine).min_workers(0).start();
        assert!(
            matches!(&refused, Err(ClusterError::Start { message, .. }) if message.contains("maximum number of streams")),
            "{refused:?}"
        );
        let options = ConnectOptions::with_user_and_password(USER.0.into(), USER.1.into());
        let left = at(&server.url(), options, async |context| streams_in(context, &job).await);
        assert_eq!(left, [""; 0]);
    }
    assert!(begun.elapsed() < LONG / 2);
}

/// A cluster whose server is dead. A drop of it cannot tell its workers, and waits as long as it may.
fn cut_off(unavailable_after: Duration) -> (Server, ClusterCoordinator) {
    let mut server = Server::start();
    let engine = Nats::new(&server.url(), &job()).token(&token()).lease(LONG).cancel_grace(Duration::MAX);
    let engine = engine.unavailable_after(unavailable_after).args(AS_WORKER).workers(1);
    let cluster = start(engine).start().unwrap();
    server.kill();
    (server, cluster)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_without_a_server_waits_for_seconds_at_most_and_in_a_request_others_run_meanwhile() {
    let (_server, cluster) = cut_off(Duration::MAX);
    let begun = Instant::now();
    drop(cluster);
    assert!(begun.elapsed() < LONG / 4);
    let (_server, cluster) = cut_off(Duration::MAX);
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let ran = runtime.spawn(move || {
        let ran = Arc::new(AtomicBool::new(false));
        let its = ran.clone();
        let other = forebear::spawn(move || its.store(true, Ordering::Release));
        other.submit();
        drop(cluster);
        ran.load(Ordering::Acquire)
    });
    // Not on the stack of this thread, which may block.
    until(|| ran.is_done());
    assert!(ran.take().unwrap(), "the drop has blocked the only worker");
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_shutdown_whose_server_dies_waits_no_longer_than_the_server_may_be_away() {
    let (_server, cluster) = cut_off(Duration::from_millis(100));
    let begun = Instant::now();
    let answer = cluster.shutdown();
    assert!(matches!(answer, Ok(()) | Err(ClusterError::Unavailable { .. })), "{answer:?}");
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_does_not_wait_where_a_request_unwinds_or_must_not_suspend() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (_server, cluster) = cut_off(Duration::MAX);
    let (gate, waits) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let (opens, its) = (gate.clone(), waits.clone());
    let other = runtime.spawn(move || {
        its.set();
        gate.wait()
    });
    // Another request of the only worker has begun. It would have to go on while this one unwinds.
    let panics = runtime.spawn(move || {
        let _cluster = cluster;
        waits.wait().unwrap();
        panic!("the request of this test");
    });
    // Not on the stack of this thread, which may block.
    until(|| panics.is_done());
    assert!(panics.take().is_err_and(|error: forebear::WaitError| !error.is_cancelled()));
    opens.set();
    other.take().unwrap().unwrap();
    let (_server, cluster) = cut_off(Duration::MAX);
    runtime.spawn(move || no_suspend("this test", || drop(cluster))).take().unwrap();
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_start_that_finds_too_few_workers_leaves_nothing() {
    let job = job();
    let few = start(engine(&shared_url(), &job, LONG)).start_timeout(Duration::from_millis(10)).start();
    assert!(matches!(few, Err(ClusterError::Start { .. })));
    assert_eq!(streams(&job), [""; 0]);
    let engine = engine(&shared_url(), &job, LONG).program("/no/such/program").workers(1);
    assert!(matches!(start(engine).start(), Err(ClusterError::Start { .. })));
    assert_eq!(streams(&job), [""; 0]);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_in_a_request_that_is_cancelled_leaves_nothing() {
    let (job, (send, dropped)) = (job(), mpsc::channel());
    let engine = engine(&shared_url(), &job, LONG);
    let request = forebear::spawn(move || {
        let cluster = start(engine).min_workers(0).start().unwrap();
        Request::current().unwrap().abort(CancelReason::Asked);
        drop(cluster);
        send.send(()).unwrap();
    });
    request.submit();
    dropped.recv().unwrap();
    assert_eq!(streams(&job), [""; 0]);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_drop_as_a_thread_ends_leaves_nothing() {
    thread_local!(static LAST: RefCell<Option<ClusterCoordinator>> = const { RefCell::new(None) });
    let job = job();
    let engine = engine(&shared_url(), &job, LONG);
    let thread = thread::spawn(move || {
        LAST.set(Some(start(engine).min_workers(0).start().unwrap()));
    });
    thread.join().unwrap();
    assert_eq!(streams(&job), [""; 0]);
}
