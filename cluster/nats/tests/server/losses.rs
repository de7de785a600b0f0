//! A server that dies, comes back, or has lost what it had.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use forebear_cluster::{ClusterCoordinator, ClusterError, FailureKind, FetchError, RemoteValue};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::messages::objects;
use crate::support::sieve::Sieve;
use crate::support::{Server, job, shared_port, shared_url, token, until};
use crate::{ADD, AS_WORKER, BYTES, GATE, LEASE, LOG, LONG, REVERSE, engine, files, pid_in, start};

#[test]
#[ignore = "needs a server: ci/nats"]
fn r58_a_server_that_is_killed_and_comes_back_loses_nothing() {
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
fn r57_the_loss_of_the_server_is_raised_until_it_is_back() {
    let mut server = Server::start();
    let (_dir, begun, gate) = files();
    let engine = engine(&server.url(), &job(), LONG).workers(1).unavailable_after(Duration::from_millis(100));
    let cluster = start(engine).start().unwrap();
    let large = cluster.schedule(&REVERSE, vec![7; 1 << 20]).unwrap();
    cluster.join().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let waits = value.clone();
    let fetch = forebear::spawn(move || waits.fetch());
    fetch.submit();
    server.kill();
    // A fetch gets the same error as the other calls, also one that reads from the store.
    let fetched = fetch.take().unwrap();
    assert!(matches!(fetched, Err(FetchError::Unavailable { .. })), "{fetched:?}");
    let fetched = large.fetch();
    assert!(matches!(fetched, Err(FetchError::Unavailable { .. })), "{:?}", fetched.map(|value| value.len()));
    let is_away = |error: &ClusterError| matches!(error, ClusterError::Unavailable { .. });
    assert!(is_away(&cluster.join().unwrap_err()));
    assert!(is_away(&cluster.done().unwrap_err()));
    assert!(is_away(&cluster.schedule(&ADD, (1, 2)).unwrap_err()));
    server.restart();
    until(|| cluster.done().is_ok());
    fs::write(gate, "").unwrap();
    cluster.join().unwrap();
    assert_eq!(value.fetch().unwrap().1, 1, "what ran went on");
    assert_eq!(large.fetch().unwrap().len(), 1 << 20);
    assert_eq!(cluster.metrics().scheduled, 2);
}

/// Its worker has died just before, and cannot come back without the server.
#[test]
#[ignore = "needs a server: ci/nats"]
fn r60_the_loss_of_the_server_while_a_worker_comes_back_is_raised() {
    let mut server = Server::start();
    let (_dir, begun, gate) = files();
    let engine = engine(&server.url(), &job(), LONG).workers(1).on_warning(|_| {});
    let cluster = start(engine.unavailable_after(Duration::from_millis(100))).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    server.kill();
    let raised = cluster.join().unwrap_err();
    assert!(matches!(raised, ClusterError::Unavailable { .. }), "{raised}");
    server.restart();
    fs::write(gate, "").unwrap();
    until(|| cluster.done().is_ok());
    let (second, attempt) = value.fetch().unwrap();
    assert!(second != first && attempt == 2);
    cluster.join().unwrap();
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

/// The server stands still while a large result is read. What the first fetches have begun to read, the later ones take up.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_fetch_with_a_time_limit_gives_up_while_the_server_says_nothing_and_a_later_one_gets_the_value() {
    let server = Server::start();
    let engine = engine(&server.url(), &job(), LONG).workers(1).unavailable_after(Duration::from_secs(5));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    cluster.join().unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(100)] {
        server.signal(Signal::STOP);
        let fetched = value.fetch_timeout(limit).map(|value| value.len());
        server.signal(Signal::CONT);
        assert!(matches!(fetched, Err(FetchError::TimedOut)), "{fetched:?}");
        // Each of these has less time than a read takes.
        until(|| match value.fetch_timeout(Duration::ZERO) {
            Ok(bytes) => bytes == [7; 1 << 20],
            Err(FetchError::TimedOut) => false,
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(value.fetch().unwrap().len(), 1 << 20);
}

/// The results of tasks, whose handles are dropped while there is no server.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_is_dropped_while_the_server_is_away_is_deleted_when_it_is_back() {
    let (mut server, job) = (Server::start(), job());
    let engine = engine(&server.url(), &job, LONG).workers(1).unavailable_after(Duration::from_secs(3));
    let cluster = start(engine).start().unwrap();
    let mut values: Vec<_> = (0..5).map(|_| cluster.schedule(&BYTES, 1 << 20).unwrap()).collect();
    cluster.join().unwrap();
    assert_eq!(objects(&server.url(), &job), 5);
    let kept = values.pop().unwrap();
    server.kill();
    drop(values);
    // By then each deletion was tried, without success.
    until(|| matches!(cluster.done(), Err(ClusterError::Unavailable { .. })));
    server.restart();
    until(|| cluster.done().is_ok());
    until(|| objects(&server.url(), &job) == 1);
    assert_eq!(kept.fetch().unwrap(), [7; 1 << 20]);
    drop(kept);
    until(|| objects(&server.url(), &job) == 0);
    cluster.join().unwrap();
}

/// Somebody fills the room that becomes free.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_lock_that_the_server_does_not_renew_is_raised_with_the_servers_words() {
    let (server, job) = (small_server(), job());
    let engine = engine(&server.url(), &job, LEASE).unavailable_after(Duration::from_millis(1));
    let cluster = start(engine).min_workers(0).start().unwrap();
    until(|| {
        fill(&server.url(), &job);
        match cluster.done() {
            Err(ClusterError::Unavailable { reason, .. }) if reason.contains("lock") => {
                assert!(reason.contains("cannot be renewed: ") && reason.contains("resource"), "{reason}");
                true
            }
            _ => false,
        }
    });
}

/// A server whose store takes 8 MiB.
fn small_server() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let limits = format!(
        "jetstream {{ store_dir: \"{}/store\", max_file_store: 8388608 }}\nauthorization {{ token: \"{}\" }}",
        dir.path().display(),
        token()
    );
    Server::start_as(dir, limits)
}

/// Publishes into the objects of a job until the server has no room for the smallest message.
fn fill(url: &str, job: &str) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(url).await.unwrap();
        let context = async_nats::jetstream::new(client);
        for size in [100_000, 1_000, 0] {
            let subject = format!("$O.FB_{job}_BLOBS.C.fill");
            while context.publish(subject.clone(), vec![7; size].into()).await.unwrap().await.is_ok() {}
        }
    });
}

/// The server has refused what belongs to this task, and its error says so.
fn fails<T: DeserializeOwned>(cluster: &ClusterCoordinator, value: RemoteValue<T>, says: &str) {
    let fetched = value.fetch_timeout(Duration::from_secs(60)).map(drop);
    let Err(FetchError::Task(failure)) = fetched else { panic!("{says}: {fetched:?}") };
    let text = failure.to_string();
    assert!(matches!(failure.kind(), FailureKind::Store { .. }) && text.contains(says), "{text}");
    assert!(text.contains("resource"), "the server's words: {text}");
    assert!(matches!(cluster.join(), Err(ClusterError::Task(_))));
}

/// A result or arguments for which there is no room: the task fails. Nothing of what was refused stays.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_whose_arguments_or_result_the_server_refuses_fails_and_nothing_of_that_stays() {
    let (server, job) = (small_server(), job());
    let engine = engine(&server.url(), &job, LONG).workers(1).unavailable_after(Duration::from_millis(300));
    let cluster = start(engine).start().unwrap();
    fails(&cluster, cluster.schedule(&BYTES, 16 << 20).unwrap(), "could not be kept");
    fails(&cluster, cluster.schedule(&REVERSE, vec![7; 16 << 20]).unwrap(), "does not take the arguments");
    assert!(cluster.put(&vec![7_u8; 16 << 20]).is_err());
    assert_eq!(objects(&server.url(), &job), 0, "what was put in part is purged");
}

/// Large values pass through a store that has room for two of them, and what was refused meanwhile is forgotten: the server counts room as free when it is.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_store_that_was_full_takes_again_what_there_is_room_for() {
    let (server, job) = (small_server(), job());
    let engine = engine(&server.url(), &job, LONG).workers(1).unavailable_after(Duration::from_millis(300));
    let cluster = start(engine).start().unwrap();
    for round in 0..3 {
        fails(&cluster, cluster.schedule(&BYTES, 9 << 20).unwrap(), "could not be kept");
        assert!(cluster.put(&vec![7_u8; 9 << 20]).is_err());
        let value = cluster.schedule(&REVERSE, vec![round; 2 << 20]).unwrap();
        assert_eq!(value.fetch_timeout(Duration::from_secs(60)).unwrap(), vec![round; 2 << 20]);
        drop(value);
        until(|| objects(&server.url(), &job) == 0);
    }
    cluster.join().unwrap();
}

/// The store becomes full while a task runs: there is no room for the record of its end.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_whose_record_the_server_refuses_fails_with_the_servers_words() {
    let (server, job, (_dir, begun, gate)) = (small_server(), job(), files());
    let engine = engine(&server.url(), &job, LONG).workers(1).unavailable_after(Duration::from_millis(300));
    let cluster = start(engine).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    fill(&server.url(), &job);
    fs::write(gate, "").unwrap();
    fails(&cluster, value, "does not take the result");
}

/// Somebody deletes the stream of results, or servers that are a cluster have no leader for it. The coordinator makes it again, and the worker waits for that: its task does not fail.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_result_waits_for_a_stream_that_is_not_there() {
    let (job, url) = (job(), shared_url());
    let engine = engine(&url, &job, LONG).workers(1).unavailable_after(Duration::from_millis(1));
    let cluster = start(engine).start().unwrap();
    for _ in 0..3 {
        let (_dir, begun, gate) = files();
        let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
        pid_in(&begun);
        with_streams(&url, async |streams| _ = streams.delete_stream(format!("FB_{job}_RESULTS")).await);
        fs::write(gate, "").unwrap();
        until(|| cluster.join().is_ok());
        assert_eq!(value.fetch().unwrap().1, 1);
    }
}

/// The stream of results is not there, and cannot be made, since another one has its subject.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_stream_that_cannot_be_read_or_made_is_raised_until_it_can() {
    let (job, url) = (job(), shared_url());
    let engine = engine(&url, &job, LONG).workers(1).unavailable_after(Duration::from_millis(100));
    let cluster = start(engine).start().unwrap();
    let (_dir, begun, gate) = files();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    pid_in(&begun);
    let other = format!("{job}_other");
    with_streams(&url, async |streams| {
        let its = streams.get_stream(format!("FB_{job}_RESULTS")).await.unwrap();
        let subjects = its.cached_info().config.subjects.clone();
        // The coordinator may be the first to make it again.
        loop {
            let _ = streams.delete_stream(format!("FB_{job}_RESULTS")).await;
            let config = Config { name: other.clone(), subjects: subjects.clone(), ..Config::default() };
            if streams.create_stream(config).await.is_ok() {
                return;
            }
        }
    });
    let raised = cluster.join().unwrap_err();
    let ClusterError::Unavailable { reason, .. } = &raised else { panic!("{raised}") };
    assert!(reason.contains("cannot be read") && reason.contains("overlap"), "{reason}");
    with_streams(&url, async |streams| _ = streams.delete_stream(&other).await.unwrap());
    until(|| cluster.done().is_ok());
    fs::write(gate, "").unwrap();
    cluster.join().unwrap();
    assert_eq!(value.fetch().unwrap().1, 1, "what ran went on");
}

/// With the streams of that server.
fn with_streams(url: &str, f: impl AsyncFnOnce(&Context)) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(url).await.unwrap();
        f(&async_nats::jetstream::new(client)).await;
    });
}

/// What fills the store is refused with the server's words, and so are tasks for which there is no room.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_does_not_fit_into_the_store_of_the_server_is_an_error_and_does_not_hang() {
    let server = small_server();
    let engine = engine(&server.url(), &job(), LONG).unavailable_after(Duration::from_millis(300));
    let cluster = start(engine).min_workers(0).start().unwrap();
    let put = cluster.put(&vec![7_u8; 16 << 20]).map(|_| ()).unwrap_err();
    assert!(put.to_string().contains("resource"), "{put:?}");
    // It takes what is left.
    let mut values = Vec::new();
    until(|| match cluster.schedule(&REVERSE, vec![7; 100_000]) {
        Ok(value) => {
            values.push(value);
            false
        }
        Err(ClusterError::Unavailable { reason, .. }) => {
            assert!(reason.contains("the server refuses tasks") && reason.contains("resource"), "{reason}");
            true
        }
        Err(error) => panic!("{error}"),
    });
}

/// As if it had no leader: what the consumer of the results is asked stays without an answer, until it is made anew.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_consumer_that_says_nothing_while_its_stream_does_is_made_anew() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).unavailable_after(LONG)).start().unwrap();
    let asked =
        ["INFO", "MSG.NEXT"].map(|what| format!("$JS.API.CONSUMER.{what}.FB_{job}_RESULTS.coordinator"));
    let (anew, mut is_new) = (format!("$JS.API.CONSUMER.DELETE.FB_{job}_RESULTS.coordinator"), false);
    sieve.lose(move |message| {
        is_new |= message.contains(&anew);
        !is_new && asked.iter().any(|asked| message.contains(asked))
    });
    // More records than the consumer was asked for before.
    for n in 0..400 {
        assert_eq!(cluster.schedule(&ADD, (n, 1)).unwrap().fetch().unwrap(), n + 1);
    }
    assert_eq!(cluster.metrics().done, 400);
}

/// As if the leader of a stream did not listen: what is published there is lost until another is elected. All else is answered. Answers whether that was done.
fn deafen(sieve: &Sieve, stream: &str, subject: &str) -> Arc<AtomicBool> {
    let elected = Arc::new(AtomicBool::new(false));
    let (subject, elects, is_other) =
        (subject.to_owned(), format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream} "), elected.clone());
    sieve.lose(move |message| {
        is_other.fetch_or(message.contains(&elects), Ordering::Relaxed);
        // Of the first line: a request may name the subject, too.
        !is_other.load(Ordering::Relaxed)
            && message.lines().next().is_some_and(|line| line.contains("PUB ") && line.contains(&subject))
    });
    elected
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_stream_that_has_a_leader_and_takes_nothing_elects_another() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).unavailable_after(LONG)).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (1, 1)).unwrap().fetch().unwrap(), 2);
    let elected = deafen(&sieve, &format!("FB_{job}_RESULTS"), &format!("fb.{job}.result "));
    assert_eq!(cluster.schedule(&ADD, (2, 1)).unwrap().fetch().unwrap(), 3);
    assert!(elected.load(Ordering::Relaxed));
    assert_eq!(cluster.metrics().done, 2);
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_stream_of_objects_that_has_a_leader_and_takes_nothing_elects_another() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).unavailable_after(LONG)).start().unwrap();
    let elected = deafen(&sieve, &format!("OBJ_FB_{job}_BLOBS"), &format!("$O.FB_{job}_BLOBS."));
    let sent: Vec<u8> = (0..1_u32 << 20).map(|n| n as u8).collect();
    let reversed = cluster.schedule(&REVERSE, sent.clone()).unwrap().fetch().unwrap();
    assert!(elected.load(Ordering::Relaxed));
    assert!(reversed.iter().rev().eq(&sent));
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_stream_of_the_lock_that_has_a_leader_and_takes_nothing_elects_another() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).unavailable_after(LONG)).start().unwrap();
    let elected = deafen(&sieve, &format!("KV_FB_{job}_META"), &format!("$KV.FB_{job}_META."));
    // By then a lease has passed without a renewal, or is about to.
    until(|| elected.load(Ordering::Relaxed));
    assert_eq!(cluster.schedule(&ADD, (2, 1)).unwrap().fetch().unwrap(), 3);
    cluster.done().unwrap();
}
