//! tokio's own locks and channels.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Barrier, Mutex, Semaphore, oneshot};
use tokio::task::{spawn, yield_now};

use super::sum;
use crate::load::{Across, Contenders, Handed};
use crate::rival::Run;
use crate::work::contend::{Contest, Locked, is_thread, spin};

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

async fn hold_in_turn(n: u64, only: Arc<Semaphore>) -> u64 {
    for _ in 0..n {
        let _permit = only.acquire().await.expect("nobody closes it");
        spin();
    }
    n
}

async fn meet(n: u64, barrier: Arc<Barrier>) -> u64 {
    let mut led = 0;
    for _ in 0..n {
        led += u64::from(barrier.wait().await.is_leader());
    }
    led
}

/// Its bounded channel blocks threads, too, if they are not tokio's.
pub(super) fn hand_over(runtime: &Runtime, n: u64, of: Handed) -> Option<Run> {
    Some(match of {
        Handed::Permit => {
            let only = Arc::new(Semaphore::new(1));
            let hold = || runtime.spawn(hold_in_turn(n / 2, only.clone()));
            Run::timed(|| runtime.block_on(sum(vec![hold(), hold()])))
        }
        Handed::Turn => {
            let barrier = Arc::new(Barrier::new(2));
            let meet = || runtime.spawn(meet(n, barrier.clone()));
            Run::timed(|| runtime.block_on(sum(vec![meet(), meet()])))
        }
        Handed::Item(capacity) => {
            let (sender, mut receiver) = channel(capacity);
            Run::timed(|| {
                thread::spawn(move || {
                    (0..n).for_each(|_| sender.blocking_send(1).expect("somebody receives"));
                });
                std::iter::from_fn(|| receiver.blocking_recv()).sum()
            })
        }
    })
}

/// Its lock blocks threads, too, if they are not tokio's.
impl Locked for Mutex<u64> {
    #[inline(always)]
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.blocking_lock());
    }
}

async fn take_part(contest: &Contest, lock: &Mutex<u64>) {
    contest.arrive();
    while !contest.is_complete() {
        yield_now().await;
    }
    let mut waits = Vec::new();
    loop {
        let asked = Instant::now();
        let mut number = lock.lock().await;
        if !contest.section(asked, &mut waits, &mut number) {
            break;
        }
        drop(number);
        spin();
    }
    contest.tell(&waits);
}

pub(super) fn contend(runtime: &Runtime, of: Contenders, many: u64, sections: u64) -> Run {
    let shared = Arc::new((Contest::new(many, sections), Mutex::new(0)));
    let (mut threads, mut tasks) = (Vec::new(), Vec::new());
    for n in 0..many {
        let shared = shared.clone();
        if is_thread(of, n) {
            threads.push(thread::spawn(move || shared.0.take_part(&shared.1, thread::yield_now)));
        } else {
            tasks.push(runtime.spawn(async move { take_part(&shared.0, &shared.1).await }));
        }
    }
    tasks.into_iter().for_each(|task| runtime.block_on(task).expect("a task panicked"));
    threads.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
    let (contest, number) = Arc::into_inner(shared).expect("all have gone");
    contest.run(number.into_inner())
}

async fn serve(n: u64, mut tokens: Receiver<u64>, back: Sender<u64>) {
    for _ in 0..n {
        let token = tokens.recv().await.expect("somebody sends");
        back.send(token).await.expect("somebody receives");
    }
}

async fn play(n: u64, there: &Sender<u64>, back: &mut Receiver<u64>) -> u64 {
    let mut sum = 0;
    for _ in 0..n {
        there.send(1).await.expect("somebody receives");
        sum += back.recv().await.expect("somebody sends");
    }
    sum
}

pub(super) async fn ping_pong(n: u64) -> Run {
    let ((there, tokens), (back, mut returns)) = (channel(1), channel(1));
    let other = spawn(serve(n, tokens, back));
    let run = Run::timed_async(play(n, &there, &mut returns)).await;
    other.await.expect("a task panicked");
    run
}

/// A runtime of one thread for each side.
pub(super) fn ping_pong_across(n: u64, across: Across) -> Run {
    let ((there, tokens), (back, mut returns)) = (channel(1), channel(1));
    let over = Arc::<AtomicBool>::default();
    thread::scope(|scope| {
        scope.spawn(|| on_its_own(across, &over, serve(n + 1, tokens, back)));
        let run = async move {
            play(1, &there, &mut returns).await;
            Run::timed_async(play(n, &there, &mut returns)).await
        };
        scope.spawn(|| on_its_own(across, &over, run)).join().expect("a thread panicked")
    })
}

fn on_its_own<T: Send + 'static>(
    across: Across,
    over: &Arc<AtomicBool>,
    side: impl Future<Output = T> + Send + 'static,
) -> T {
    let runtime = Builder::new_current_thread().build().expect("tokio's runtime");
    runtime.block_on(async move {
        if across == Across::Awake {
            let over = over.clone();
            spawn(async move {
                while !over.load(Relaxed) {
                    yield_now().await;
                }
            });
        }
        let done = spawn(side).await.expect("a task panicked");
        over.store(true, Relaxed);
        done
    })
}

pub(super) async fn mpsc(senders: u64, each: u64, capacity: usize) -> Run {
    let (sender, mut receiver) = channel(capacity);
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
        while let Some(item) = receiver.recv().await {
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
            let (sender, receiver) = oneshot::channel();
            if spawned {
                let other = spawn(async move { sender.send(1).expect("somebody receives") });
                items += receiver.await.expect("somebody sends");
                other.await.expect("a task panicked");
            } else {
                black_box(sender).send(1).expect("somebody receives");
                items += receiver.await.expect("it is there");
            }
        }
        items
    })
    .await
}
