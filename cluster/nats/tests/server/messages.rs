//! What is too large for a message, and what shares one.

use std::fs;
use std::time::Duration;

use forebear_cluster::engine::MAX_SLOTS;
use forebear_cluster::{ClusterCoordinator, ClusterError, RemoteValue};
use forebear_cluster_nats::NatsControl;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::sieve::Sieve;
use crate::support::{job, shared_port, shared_url, token, until};
use crate::{ADD, BYTES, GATE, LENGTH, LOG, LONG, REVERSE, TABLE, engine, files, pid_in, start};

#[test]
#[ignore = "needs a server: ci/nats"]
fn values_larger_than_a_message_go_through_the_store() {
    let cluster = start(engine(&shared_url(), &job(), LONG).workers(1)).start().unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let back = cluster.schedule(&REVERSE, bytes.clone()).unwrap().fetch().unwrap();
    assert!(back.iter().rev().eq(&bytes));
}

/// How many objects a job has.
pub(crate) fn objects(url: &str, job: &str) -> usize {
    chunks(url, job).len()
}

/// The objects of a job. Each has its bytes under a subject of its own, until it is removed; to list these takes the server one message, and a
/// listing of entries a consumer.
pub(crate) fn chunks(url: &str, job: &str) -> Vec<String> {
    use futures_util::TryStreamExt;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(url).await.unwrap();
        let bucket = format!("FB_{job}_BLOBS");
        let stream =
            async_nats::jetstream::new(client).get_stream_no_info(format!("OBJ_{bucket}")).await.unwrap();
        let chunks = stream.info_with_subjects(format!("$O.{bucket}.C.>")).await.unwrap();
        let subjects: Vec<_> = chunks.try_collect().await.unwrap();
        subjects.into_iter().map(|(subject, _)| subject).collect()
    })
}

/// So many consumers a stream has.
fn consumers(url: &str, stream: &str) -> usize {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(url).await.unwrap();
        let stream = async_nats::jetstream::new(client).get_stream(stream).await.unwrap();
        stream.cached_info().state.consumer_count
    })
}

/// A chunk that comes late.
pub(crate) fn add_chunk(subject: String) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        let context = async_nats::jetstream::new(client);
        context.publish(subject, vec![7; 1 << 10].into()).await.unwrap().await.unwrap();
    });
}

/// If a message puts a chunk of an object of that job.
pub(crate) fn is_chunk(message: &str, job: &str) -> bool {
    let subject = format!("PUB $O.FB_{job}_BLOBS.C.");
    message.strip_prefix('H').unwrap_or(message).starts_with(&subject)
}

/// A job whose only worker has put a part of an object.
struct Interrupted {
    job: String,
    sieve: Sieve,
    control: NatsControl,
    cluster: ClusterCoordinator,
    value: RemoteValue<Vec<u8>>,
}

/// Messages of the worker get lost from its third chunk on, so it has put two.
fn interrupted() -> Interrupted {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let engine = engine(&sieve.url(), &job, LONG).workers(1);
    let control = engine.control();
    let cluster = start(engine).start().unwrap();
    let (its, mut seen) = (job.clone(), 0);
    sieve.lose(move |message| {
        seen += usize::from(is_chunk(message, &its));
        seen > 2
    });
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    until(|| objects(&shared_url(), &job) == 1);
    Interrupted { job, sieve, control, cluster, value }
}

/// The worker is killed. Then a third chunk comes, which its network had.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_a_worker_that_is_killed_has_put_in_part_is_purged_while_the_job_goes_on() {
    let Interrupted { job, sieve, control, cluster, value } = interrupted();
    let subject = chunks(&shared_url(), &job).remove(0);
    control.kill("worker-0");
    sieve.lose(|_| false);
    until(|| objects(&shared_url(), &job) == 0);
    add_chunk(subject);
    until(|| objects(&shared_url(), &job) == 0);
    control.add("worker-0").unwrap();
    assert_eq!(value.fetch().unwrap(), vec![7; 1 << 20]);
    drop(value);
    until(|| objects(&shared_url(), &job) == 0);
    cluster.join().unwrap();
}

/// The coordinator deletes what the attempt has put when it forgets the attempt, and when the ledger does so. The server hears neither of these. Nor does it later
/// hear what asks for more than the first page of a list of chunks.
#[test]
#[ignore = "needs a server: ci/nats"]
fn what_a_worker_that_is_killed_has_put_in_part_is_purged_when_the_server_hears_it() {
    let Interrupted { job, sieve, control, cluster, value } = interrupted();
    let (asks, mut asked) = (format!("STREAM.INFO.OBJ_FB_{job}_"), 0);
    sieve.lose(move |message| {
        let is_first = message.contains("\"offset\":0,");
        asked += usize::from(message.contains(&asks) && is_first);
        message.contains(&asks) && (asked <= 2 || !is_first)
    });
    control.kill("worker-0");
    until(|| objects(&shared_url(), &job) == 0);
    value.cancel();
    cluster.join().unwrap();
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
    until(|| objects(&shared_url(), &job) == 3);
    dropped.cancel();
    until(|| objects(&shared_url(), &job) == 2);
    fs::write(gate, "").unwrap();
    held.fetch().unwrap();
    for (n, value) in (0..).zip(values) {
        assert_eq!(value.fetch().unwrap(), vec![n; 1 << 20]);
    }
    until(|| objects(&shared_url(), &job) == 0);
}

/// An account may have few consumers, and the server keeps one for half a minute that nobody uses any more.
#[test]
#[ignore = "needs a server: ci/nats"]
fn to_read_an_object_takes_no_consumer() {
    let job = job();
    let cluster = start(engine(&shared_url(), &job, LONG).workers(1)).start().unwrap();
    for n in 0..4 {
        let value = cluster.schedule(&REVERSE, vec![n; 1 << 20]).unwrap();
        assert_eq!(value.fetch().unwrap(), vec![n; 1 << 20]);
        assert_eq!(consumers(&shared_url(), &format!("OBJ_FB_{job}_BLOBS")), 0);
    }
}

/// A server before 2.9.15 is asked which messages an object has. It may not answer, for instance if they are deleted by somebody else at that moment.
#[test]
#[ignore = "needs a server: ci/nats"]
fn an_object_is_deleted_also_if_the_server_does_not_say_which_messages_it_has() {
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1)).start().unwrap();
    let value = cluster.schedule(&BYTES, 1 << 20).unwrap();
    assert_eq!(value.fetch().unwrap(), vec![7; 1 << 20]);
    let asks = format!("$JS.API.CONSUMER.MSG.NEXT.OBJ_FB_{job}_");
    sieve.lose(move |message| message.contains(&asks));
    drop(value);
    until(|| objects(&shared_url(), &job) == 0);
    cluster.join().unwrap();
}

/// A worker may have had many tasks that put nothing.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_comes_back_and_has_put_nothing_has_nothing_purged() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let (job, sieve, (_dir, begun, gate)) = (job(), Sieve::before(shared_port()), files());
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1)).start().unwrap();
    let value = cluster.schedule(&GATE, (begun.clone(), gate.clone())).unwrap();
    let first = pid_in(&begun);
    let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
    let (counted, objects) = (counts.clone(), format!("OBJ_FB_{job}_BLOBS"));
    sieve.lose(move |message| {
        for (count, question) in counted.iter().zip(["STREAM.INFO", "STREAM.PURGE"]) {
            let asks = message.contains(&format!("$JS.API.{question}.{objects}"));
            count.fetch_add(asks.into(), Ordering::Relaxed);
        }
        false
    });
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    fs::write(gate, "").unwrap();
    assert_eq!(value.fetch().unwrap().1, 2);
    let [looks, purges] = &*counts;
    // Two when the coordinator forgets the attempt, and two each when the ledger does so, and some time after.
    until(|| looks.load(Ordering::Relaxed) + purges.load(Ordering::Relaxed) >= 6);
    assert_eq!(purges.load(Ordering::Relaxed), 0);
    cluster.join().unwrap();
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

/// Claims, orders and ends that are there at the same time travel together. The server is asked for what it knows of the queue now and then, and not for each task. Nor does it confirm each task by itself.
#[test]
#[ignore = "needs a server: ci/nats"]
fn tasks_that_are_under_way_together_share_messages() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::StreamExt;

    const TASKS: u32 = 2_000;
    let job = job();
    let sieve = Sieve::before(shared_port());
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).slots(16)).start().unwrap();
    let counts = Arc::new([const { AtomicU64::new(0) }; 2]);
    let (counted, (listens, is_listening)) = (counts.clone(), std::sync::mpsc::channel());
    let subjects = [
        (0_usize, format!("fb.{job}.up")),
        (0, format!("fb.{job}.down.>")),
        (0, format!("fb.{job}.result")),
        (1, format!("$JS.API.STREAM.INFO.FB_{job}_TASKS")),
    ];
    let (confirmations, task) = (Arc::new(AtomicU64::new(0)), format!("fb.{job}.task."));
    let asked = confirmations.clone();
    sieve.lose(move |message| {
        let asks = is_task(message, &task) == Some(true);
        asked.fetch_add(asks.into(), Ordering::Relaxed);
        false
    });
    std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
            let mut all = Vec::new();
            for (count, subject) in subjects {
                all.push(client.subscribe(subject).await.unwrap().map(move |_| count));
            }
            client.flush().await.unwrap();
            listens.send(()).unwrap();
            let mut all = futures_util::stream::select_all(all);
            while let Some(count) = all.next().await {
                counted[count].fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    is_listening.recv().unwrap();
    let values: Vec<_> = (0..TASKS).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    let sums: Vec<u32> = cluster.fetch(values).unwrap();
    assert!(sums.into_iter().eq(1..=TASKS));
    // By itself each task has a claim, an order to start, and a record.
    let [messages, questions] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(messages < u64::from(2 * TASKS), "{messages} messages for {TASKS} tasks");
    assert!(questions < u64::from(TASKS / 10), "{questions} questions for {TASKS} tasks");
    let confirmations = confirmations.load(Ordering::Relaxed);
    assert!(confirmations < u64::from(TASKS / 2), "{confirmations} confirmations of {TASKS} tasks");
}

/// Acknowledgements wait for one another. The last ones do not wait for more tasks, nor for what the server sends again.
#[test]
#[ignore = "needs a server: ci/nats"]
fn the_streams_become_empty_when_no_more_tasks_come() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let (job, sieve, records) = (job(), Sieve::before(shared_port()), Arc::new(AtomicU32::new(0)));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).slots(4)).start().unwrap();
    // A message of the stream of results says to whom it is acknowledged.
    let (record, counted) = (format!("$JS.ACK.FB_{job}_RESULTS."), records.clone());
    sieve.keep(move |message| {
        counted.fetch_add(message.contains(&record).into(), Ordering::Relaxed);
        false
    });
    let values: Vec<_> = (0..10).map(|n| cluster.schedule(&ADD, (n, 1)).unwrap()).collect();
    assert!(cluster.fetch(values).unwrap().into_iter().eq(1..=10));
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let messages = |stream: &str| {
        tokio.block_on(async {
            let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
            let context = async_nats::jetstream::new(client);
            context.get_stream(format!("FB_{job}_{stream}")).await.unwrap().cached_info().state.messages
        })
    };
    until(|| messages("TASKS") == 0);
    until(|| messages("RESULTS") == 0);
    // 64 are acknowledged together. A machine that stands still for a second gets these ten again.
    let records = records.load(Ordering::Relaxed);
    assert!((1..64).contains(&records), "{records} records for 10 tasks");
}

/// Of tasks that are sent together the server confirms the first and the last. One between these that does not get there is sent again, with the others, which the queue then has twice. Each runs once.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_task_that_gets_lost_among_others_on_its_way_into_the_queue_is_sent_again() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    const TASKS: u32 = 500;
    let (job, sieve) = (job(), Sieve::before(shared_port()));
    let [unconfirmed, first] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let cluster = start(engine(&sieve.url(), &job, LONG).workers(1).slots(16)).start().unwrap();
    let (task, seen, counted) = (format!("fb.{job}.task."), unconfirmed.clone(), first.clone());
    sieve.lose(move |message| {
        let Some(asks) = is_task(message, &task) else { return false };
        // What is sent again has an id.
        counted.fetch_add((!message.contains("Nats-Msg-Id: ")).into(), Ordering::Relaxed);
        !asks && seen.fetch_add(1, Ordering::Relaxed) % 10 == 0
    });
    let (dir, ..) = files();
    let log = dir.path().join("log");
    let values: Vec<_> = (0..TASKS).map(|n| cluster.schedule(&LOG, (log.clone(), n)).unwrap()).collect();
    assert!(cluster.join_timeout(Duration::from_secs(120)).unwrap(), "some tasks do not run");
    assert!(cluster.fetch(values).unwrap().into_iter().eq(0..TASKS));
    let mut ran: Vec<u32> =
        fs::read_to_string(log).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    ran.sort_unstable();
    assert!(ran.into_iter().eq(0..TASKS), "each has run once");
    assert!(unconfirmed.load(Ordering::Relaxed) > 0, "no tasks were sent together");
    // A look at the queue would have found it, too, some seconds later, and have had all sent as new copies.
    assert_eq!(first.load(Ordering::Relaxed), TASKS);
}

/// If a message of a client brings a task into the queue, whether it asks for a confirmation: then it names a subject for that, too.
fn is_task(message: &str, subject: &str) -> Option<bool> {
    let words: Vec<_> = message.lines().next()?.split_ascii_whitespace().collect();
    // A subject, one for the answer if it asks, and the lengths of the headers, if any, and of all.
    let lengths = match *words.first()? {
        "PUB" => 1,
        "HPUB" => 2,
        _ => return None,
    };
    words.get(1)?.starts_with(subject).then_some(words.len() == 3 + lengths)
}

#[test]
#[ignore = "needs a server: ci/nats"]
fn a_worker_of_more_slots_than_there_may_be_has_the_most() {
    let engine = engine(&shared_url(), &job(), LONG).workers(1).slots(usize::MAX);
    let cluster = start(engine).start().unwrap();
    assert_eq!(cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    assert_eq!(cluster.workers()[0].slots, MAX_SLOTS);
}
