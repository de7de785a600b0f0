//! The order in which the engine follows what it reads.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebear::Error;
use forebear::time::sleep;
use forebear_cluster::engine::{Engine, Event, EventSink, Job, Link};
use forebear_cluster::{ClusterError, FetchError, TaskFn};
use futures_util::StreamExt;

use crate::support::sieve::Sieve;
use crate::support::{job, shared_port, shared_url, token, until};
use crate::{ClusterCoordinator, LOG, LONG, dying, engine, files, known, pid_in};

/// Fails when the second file is there.
pub(crate) const FAIL: TaskFn<(PathBuf, PathBuf), ()> = TaskFn::new("fail", |_, (begun, gate)| {
    dying::say(&begun)?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    Err(Error::other("no"))
});

/// An engine that counts what it says has begun.
struct Counted<E>(E, Arc<AtomicUsize>);

impl<E: Engine> Engine for Counted<E> {
    fn start(self: Box<Self>, mut job: Job) -> Result<Box<dyn Link>, ClusterError> {
        let (events, begun) = (job.events, self.1);
        job.events = EventSink::new(move |event| {
            if let Event::Started { .. } = event {
                begun.fetch_add(1, Ordering::Relaxed);
            }
            events.tell(event);
        });
        Box::new(self.0).start(job)
    }
}

/// How many tasks the server has, and how many of these no worker has taken.
fn queue(job: &str) -> (u64, u64) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
        let stream = async_nats::jetstream::new(client).get_stream(format!("FB_{job}_TASKS")).await.unwrap();
        let mut consumers = stream.consumers();
        let consumer = consumers.next().await.unwrap().unwrap();
        (stream.cached_info().state.messages, consumer.num_pending)
    })
}

/// The record of the failure is kept back until the engine has the claim of the task behind it. So the claim waits for the record, and the engine has both when it reads that.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_failure_cancels_the_queue_before_a_claim_that_is_there_with_it_is_granted() {
    let (job, sieve, begun) = (job(), Sieve::before(shared_port()), Arc::new(AtomicUsize::new(0)));
    let counted = Counted(engine(&sieve.url(), &job, LONG).workers(1), begun.clone());
    let cluster = ClusterCoordinator::builder(counted).tasks(known()).start().unwrap();
    let (dir, fails, fail) = files();
    let ran = dir.path().join("ran");
    let failing = cluster.schedule(&FAIL, (fails.clone(), fail.clone())).unwrap();
    pid_in(&fails);
    let behind = cluster.schedule(&LOG, (ran.clone(), 1)).unwrap();
    until(|| queue(&job) == (2, 1));
    // A message of the stream of results says to whom it is acknowledged.
    let record = format!("$JS.ACK.FB_{job}_RESULTS.");
    sieve.keep(move |message| message.contains(&record));
    fs::write(fail, "").unwrap();
    until(|| sieve.kept() > 0 && queue(&job).1 == 0);
    // What the worker says now comes behind its claim.
    let dumps = cluster.dump(Duration::from_secs(60)).unwrap();
    assert!(dumps.iter().all(|dump| dump.text.is_some()), "{dumps:?}");
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    sieve.release();
    assert!(matches!(cluster.join(), Err(ClusterError::Task(failure)) if failure.to_string().contains("no")));
    assert!(matches!(failing.fetch(), Err(FetchError::Task(_))));
    assert!(matches!(behind.fetch(), Err(FetchError::Dropped)));
    assert_eq!(begun.load(Ordering::Relaxed), 1, "what was behind it has begun");
    assert_eq!(cluster.schedule(&LOG, (ran.clone(), 2)).unwrap().fetch().unwrap(), 2);
    assert_eq!(fs::read_to_string(ran).unwrap(), "2\n");
}
