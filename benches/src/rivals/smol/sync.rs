//! async-lock and async-channel.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use async_channel::{Receiver, Sender, bounded};
use async_executor::Executor;
use async_lock::Mutex;
use futures_lite::future::{block_on, yield_now};

use super::{spawn, sum};
use crate::load::Across;
use crate::rival::Run;

pub(super) async fn alone(n: u64) -> Run {
    let number = Mutex::new(0);
    Run::timed_async(async {
        for _ in 0..n {
            *black_box(&number).lock().await += 1;
        }
        *number.lock().await
    })
    .await
}

/// With `yields` the lock is held across one.
pub(super) async fn contended(tasks: u64, each: u64, yields: bool) -> Run {
    let number = Arc::new(Mutex::new(0));
    let add = |number: Arc<Mutex<u64>>| async move {
        for _ in 0..each {
            let mut number = number.lock().await;
            if yields {
                yield_now().await;
            }
            *number += 1;
        }
        0
    };
    Run::timed_async(async {
        let none = sum((0..tasks).map(|_| spawn(add(number.clone()))).collect()).await;
        *number.lock().await + none
    })
    .await
}

async fn serve(n: u64, tokens: Receiver<u64>, back: Sender<u64>) {
    for _ in 0..n {
        let token = tokens.recv().await.expect("somebody sends");
        back.send(token).await.expect("somebody receives");
    }
}

async fn play(n: u64, there: &Sender<u64>, back: &Receiver<u64>) -> u64 {
    let mut sum = 0;
    for _ in 0..n {
        there.send(1).await.expect("somebody receives");
        sum += back.recv().await.expect("somebody sends");
    }
    sum
}

pub(super) async fn ping_pong(n: u64) -> Run {
    let ((there, tokens), (back, returns)) = (bounded(1), bounded(1));
    let other = spawn(serve(n, tokens, back));
    let run = Run::timed_async(play(n, &there, &returns)).await;
    other.await;
    run
}

/// An executor of one thread for each side.
pub(super) fn ping_pong_across(n: u64, across: Across) -> Run {
    let ((there, tokens), (back, returns)) = (bounded(1), bounded(1));
    let over = Arc::<AtomicBool>::default();
    thread::scope(|scope| {
        scope.spawn(|| on_its_own(across, &over, serve(n + 1, tokens, back)));
        let run = async move {
            play(1, &there, &returns).await;
            Run::timed_async(play(n, &there, &returns)).await
        };
        scope.spawn(|| on_its_own(across, &over, run)).join().expect("a thread panicked")
    })
}

fn on_its_own<T: Send + 'static>(
    across: Across,
    over: &Arc<AtomicBool>,
    side: impl Future<Output = T> + Send + 'static,
) -> T {
    let executor = Executor::new();
    if across == Across::Awake {
        let over = over.clone();
        let round = async move {
            while !over.load(Relaxed) {
                yield_now().await;
            }
        };
        executor.spawn(round).detach();
    }
    let done = block_on(executor.run(executor.spawn(side)));
    over.store(true, Relaxed);
    done
}

pub(super) async fn mpsc(senders: u64, each: u64, capacity: usize) -> Run {
    let (sender, receiver) = bounded(capacity);
    let send = |sender: Sender<u64>| async move {
        for _ in 0..each {
            sender.send(1).await.expect("somebody receives");
        }
        0
    };
    Run::timed_async(async move {
        let senders: Vec<_> = (0..senders).map(|_| spawn(send(sender.clone()))).collect();
        drop(sender);
        let mut items = 0;
        while let Ok(item) = receiver.recv().await {
            items += item;
        }
        items + sum(senders).await
    })
    .await
}

pub(super) async fn oneshots(n: u64, spawned: bool) -> Run {
    Run::timed_async(async move {
        let mut items = 0;
        for _ in 0..n {
            let (sender, receiver) = bounded(1);
            if spawned {
                let other = spawn(async move { sender.send(1).await.expect("somebody receives") });
                items += receiver.recv().await.expect("somebody sends");
                other.await;
            } else {
                black_box(sender).send(1).await.expect("somebody receives");
                items += receiver.recv().await.expect("it is there");
            }
        }
        items
    })
    .await
}
