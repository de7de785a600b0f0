//! tokio's time, on a runtime of its own: the others are without that driver.

use std::pin::pin;

use futures_lite::future::poll_once;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{spawn, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Tokio, parts, sum};
use crate::rival::Run;
use crate::work::{self, HOUR};

async fn timers(each: u64, standing: bool) -> u64 {
    if standing {
        let mut all = Vec::with_capacity(each as usize);
        for i in 0..each {
            let mut one = Box::pin(sleep(work::far(i)));
            assert!(poll_once(&mut one).await.is_none(), "it is an hour off");
            all.push(one);
        }
    } else {
        for i in 0..each {
            let one = pin!(sleep(work::far(i)));
            assert!(poll_once(one).await.is_none(), "it is an hour off");
        }
    }
    each
}

async fn receive(tokens: &mut Receiver<u64>) -> u64 {
    timeout(HOUR, tokens.recv()).await.expect("in time").expect("somebody sends")
}

async fn serve(n: u64, mut tokens: Receiver<u64>, back: Sender<u64>) {
    for _ in 0..n {
        let token = receive(&mut tokens).await;
        back.send(token).await.expect("somebody receives");
    }
}

async fn met(n: u64) -> Run {
    let ((there, tokens), (back, mut returns)) = (channel(1), channel(1));
    let other = spawn(serve(n, tokens, back));
    let run = Run::timed_async(async {
        let mut sum = 0;
        for _ in 0..n {
            there.send(1).await.expect("somebody receives");
            sum += receive(&mut returns).await;
        }
        sum
    });
    let run = run.await;
    other.await.expect("a task panicked");
    run
}

impl Tokio {
    pub(super) fn timers(&self, tasks: u64, each: u64, standing: bool) -> Run {
        let all = async move { sum((0..tasks).map(|_| spawn(timers(each, standing))).collect()).await };
        self.with_time().inside(Run::timed_async(all))
    }

    pub(super) fn met(&self, n: u64) -> Run {
        self.with_time().inside(met(n))
    }

    pub(super) fn sleepers(&self, n: u64, spread_ms: u64) -> Run {
        self.with_time().inside(async move {
            let due = work::instants(n, spread_ms);
            let sleeper = |due| async move {
                sleep_until(Instant::from_std(due)).await;
                work::lateness(due)
            };
            let tasks: Vec<_> = due.iter().map(|due| spawn(sleeper(*due))).collect();
            let mut late = Vec::with_capacity(tasks.len());
            for task in tasks.into_iter().rev() {
                late.push(task.await.expect("a task panicked"));
            }
            work::late(&due, late)
        })
    }

    /// The tree is a task that spawns tasks; or as many calls of `spawn_blocking` as there are workers, each of which computes its share of the leaves.
    pub(super) fn urgent(&self, n: u64, spread_ms: u64, (leaves, micros): (u64, u64), apart: bool) -> Run {
        let workers = self.workers as u64;
        self.with_time().inside(async move {
            let due = work::instants(n, spread_ms);
            let sleeper = |due| async move {
                sleep_until(Instant::from_std(due)).await;
                work::lateness(due)
            };
            let tasks: Vec<_> = due.iter().map(|due| spawn(sleeper(*due))).collect();
            let tree = async move {
                if !apart {
                    return parts(leaves, micros).await;
                }
                let share = move |i: u64| leaves * (i + 1) / workers - leaves * i / workers;
                let block = move |i| spawn_blocking(move || (0..share(i)).map(|_| work::leaf(micros)).sum());
                sum((0..workers).map(block).collect()).await
            };
            let run = spawn(Run::timed_async(tree)).await.expect("a task panicked");
            let mut late = Vec::with_capacity(tasks.len());
            for task in tasks {
                late.push(task.await.expect("a task panicked"));
            }
            work::beside(run, &due, late)
        })
    }
}
