//! Tasks that are aborted, and the nearest to callbacks: a second task that awaits the first.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinHandle, JoinSet, spawn, yield_now};
use tokio::time::sleep;

use crate::load::Stand;
use crate::rival::Run;
use crate::work::{self, Over};

/// Waits for the gate until it is aborted, which drops the future and its captures.
async fn stand(gate: Arc<Notify>, parked: Arc<AtomicU64>, over: Over) {
    let mut opened = std::pin::pin!(gate.notified());
    opened.as_mut().enable();
    parked.fetch_add(1, AcqRel);
    opened.await;
    over.forget();
}

async fn all_parked(parked: &AtomicU64, n: u64) {
    while parked.load(Acquire) < n {
        yield_now().await;
    }
}

/// `JoinSet::shutdown`: aborts all, and waits for all.
pub(super) async fn cancel_all(suspended: u64, queued: u64) -> Run {
    let (gate, over, parked) = (Arc::new(Notify::new()), Over::counter(), Arc::new(AtomicU64::new(0)));
    let mut set = JoinSet::new();
    for _ in 0..suspended {
        set.spawn(stand(gate.clone(), parked.clone(), Over::new(&over)));
    }
    all_parked(&parked, suspended).await;
    for _ in 0..queued {
        set.spawn(stand(gate.clone(), parked.clone(), Over::new(&over)));
    }
    let start = Instant::now();
    set.shutdown().await;
    Run { elapsed: start.elapsed(), value: over.load(Relaxed), figures: Vec::new() }
}

/// What the tasks of [`cancel_at`] wait for.
struct Standing {
    lock: Mutex<()>,
    /// Full, and never received from.
    channel: (Sender<u8>, Receiver<u8>),
    parked: AtomicU64,
}

/// Waits there until it is aborted.
async fn stand_at(standing: Arc<Standing>, stand: Stand, over: Over) {
    standing.parked.fetch_add(1, AcqRel);
    match stand {
        Stand::Checks => loop {
            yield_now().await;
        },
        Stand::Lock => drop(standing.lock.lock().await),
        Stand::Channel => standing.channel.0.send(1).await.expect("somebody receives"),
        Stand::Sleep => sleep(Duration::from_secs(3600)).await,
    }
    over.forget();
}

/// `JoinSet::shutdown` of tasks that are all in the same kind of wait.
pub(super) async fn cancel_at(n: u64, stand: Stand) -> Run {
    let over = Over::counter();
    let standing =
        Arc::new(Standing { lock: Mutex::new(()), channel: channel(1), parked: AtomicU64::new(0) });
    standing.channel.0.send(0).await.expect("there is room");
    let guard = standing.lock.lock().await;
    let mut set = JoinSet::new();
    for _ in 0..n {
        set.spawn(stand_at(standing.clone(), stand, Over::new(&over)));
    }
    all_parked(&standing.parked, n).await;
    let start = Instant::now();
    set.shutdown().await;
    let elapsed = start.elapsed();
    drop(guard);
    Run { elapsed, value: over.load(Relaxed), figures: Vec::new() }
}

/// `AbortHandle::abort`, then the join handle.
pub(super) async fn cancel_some(among: u64, victims: u64) -> Run {
    let (gate, over, parked) = (Arc::new(Notify::new()), Over::counter(), Arc::new(AtomicU64::new(0)));
    let mut crowd: Vec<JoinHandle<()>> =
        (0..among).map(|_| spawn(stand(gate.clone(), parked.clone(), Over::new(&over)))).collect();
    all_parked(&parked, among).await;
    let apart = (among / victims) as usize;
    let start = Instant::now();
    for victim in crowd.iter_mut().step_by(apart).take(victims as usize) {
        victim.abort_handle().abort();
        victim.await.expect_err("it is aborted");
    }
    let run = Run { elapsed: start.elapsed(), value: over.load(Relaxed), figures: Vec::new() };
    gate.notify_waiters();
    for task in crowd.into_iter().filter(|task| !task.is_finished()) {
        task.await.expect("only the victims are aborted");
    }
    run
}

/// A task, and a second one that awaits it and calls boxed closures with its value.
pub(super) async fn callbacks(n: u64, each: u64) -> Run {
    let sum = Arc::new(AtomicU64::new(0));
    Run::timed_async(async {
        let mut values = 0;
        for i in 0..n {
            let calls: Vec<Box<dyn FnOnce(u64) + Send>> = (0..each)
                .map(|_| {
                    let sum = sum.clone();
                    Box::new(move |value| _ = sum.fetch_add(value, Relaxed)) as Box<dyn FnOnce(u64) + Send>
                })
                .collect();
            let task = spawn(async move { work::one(i) });
            let told = spawn(async move {
                let value = task.await.expect("a task panicked");
                calls.into_iter().for_each(|call| call(value));
                value
            });
            values += told.await.expect("a task panicked");
        }
        values + sum.load(Relaxed)
    })
    .await
}
