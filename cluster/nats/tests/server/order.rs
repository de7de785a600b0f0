//! The order in which the engine follows what it reads.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{fs, thread};

use forebear::Error;
use forebear::time::sleep;
use forebear_cluster::engine::{Engine, Event, EventSink, Job, Link};
use forebear_cluster::{ClusterError, FetchError, TaskFn};
use futures_util::StreamExt;

use crate::support::{job, shared_url, token, until};
use crate::{ClusterCoordinator, LOG, LONG, dying, engine, files, known, pid_in};

/// Fails when the second file is there.
pub(crate) const FAIL: TaskFn<(PathBuf, PathBuf), ()> = TaskFn::new("fail", |_, (begun, gate)| {
    dying::say(&begun)?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    Err(Error::other("no"))
});

/// Reports progress when the second file is there, and ends when it is cancelled.
pub(crate) const TELL: TaskFn<(PathBuf, PathBuf), ()> = TaskFn::new("tell", |ctx, (begun, gate)| {
    dying::say(&begun)?;
    while !gate.exists() {
        sleep(Duration::from_millis(1))?;
    }
    ctx.progress(0.5);
    Ok(sleep(Duration::MAX)?)
});

/// Whether the engine's thread is to wait where it tells of progress, and whether it does.
#[derive(Default)]
struct Hold {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Hold {
    fn here(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 = true;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn wait(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !state.1).unwrap());
    }

    fn set(&self, hold: bool) {
        self.state.lock().unwrap().0 = hold;
        self.changed.notify_all();
    }
}

/// An engine whose thread can be held.
struct Held<E>(E, Arc<Hold>);

impl<E: Engine> Engine for Held<E> {
    fn start(self: Box<Self>, mut job: Job) -> Result<Box<dyn Link>, ClusterError> {
        let (events, hold) = (job.events, self.1);
        job.events = EventSink::new(move |event| {
            if let Event::Progress { .. } = event {
                hold.here();
            }
            events.tell(event);
        });
        Box::new(self.0).start(job)
    }
}

/// Says how often a message has come to this subject, from now on.
fn count(subject: String) -> impl Fn() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};

    let (count, (listens, is_listening)) = (Arc::new(AtomicU64::new(0)), std::sync::mpsc::channel());
    let counted = count.clone();
    thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            let client = async_nats::ConnectOptions::with_token(token()).connect(shared_url()).await.unwrap();
            let mut messages = client.subscribe(subject).await.unwrap();
            client.flush().await.unwrap();
            listens.send(()).unwrap();
            while messages.next().await.is_some() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    is_listening.recv().unwrap();
    move || count.load(Ordering::Relaxed)
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

/// The engine is held while a task fails and its worker takes the next one. So it finds both messages when it goes on: that of the failure, and the claim of the next task.
#[test]
#[ignore = "needs a server: ci/nats"]
fn a_failure_cancels_the_queue_before_a_claim_that_is_there_with_it_is_granted() {
    let (job, hold) = (job(), Arc::new(Hold::default()));
    let local = Held(engine(&shared_url(), &job, LONG).workers(2), hold.clone());
    let cluster = ClusterCoordinator::builder(local).tasks(known()).min_workers(2).start().unwrap();
    let (dir, begun, gate) = files();
    let [fails, fail, ran] = ["fails", "fail", "ran"].map(|name| dir.path().join(name));
    let tells = cluster.schedule(&TELL, (begun.clone(), gate.clone())).unwrap();
    let failing = cluster.schedule(&FAIL, (fails.clone(), fail.clone())).unwrap();
    assert_ne!(pid_in(&begun), pid_in(&fails));
    let behind = cluster.schedule(&LOG, (ran.clone(), 1)).unwrap();
    until(|| queue(&job) == (3, 1));
    hold.set(true);
    fs::write(gate, "").unwrap();
    hold.wait();
    fs::write(fail, "").unwrap();
    until(|| queue(&job).1 == 0);
    // The claim is sent before its worker beats once more. Both workers beat.
    let beats = count(format!("fb.{job}.up"));
    until(|| beats() >= 4);
    hold.set(false);
    assert!(matches!(cluster.join(), Err(ClusterError::Task(failure)) if failure.to_string().contains("no")));
    assert!(matches!(failing.fetch(), Err(FetchError::Task(_))));
    assert!(matches!(tells.fetch(), Err(FetchError::Dropped)));
    assert!(matches!(behind.fetch(), Err(FetchError::Dropped)));
    assert_eq!(cluster.schedule(&LOG, (ran.clone(), 2)).unwrap().fetch().unwrap(), 2);
    assert_eq!(fs::read_to_string(ran).unwrap(), "2\n");
}
