//! async-io's timers, whose reactor is driven by a thread of its own.

use std::pin::pin;

use async_channel::{Receiver, Sender, bounded};
use async_io::Timer;
use futures_lite::future::{or, poll_once};

use super::{spawn, sum};
use crate::rival::Run;
use crate::work::{self, HOUR};

async fn timers_of_one(each: u64, standing: bool) -> u64 {
    if standing {
        let mut all = Vec::with_capacity(each as usize);
        for i in 0..each {
            let mut one = Timer::after(work::far(i));
            assert!(poll_once(&mut one).await.is_none(), "it is an hour off");
            all.push(one);
        }
    } else {
        for i in 0..each {
            let one = pin!(Timer::after(work::far(i)));
            assert!(poll_once(one).await.is_none(), "it is an hour off");
        }
    }
    each
}

pub(super) async fn timers(tasks: u64, each: u64, standing: bool) -> Run {
    Run::timed_async(async { sum((0..tasks).map(|_| spawn(timers_of_one(each, standing))).collect()).await })
        .await
}

async fn receive(tokens: &Receiver<u64>) -> u64 {
    let late = async {
        Timer::after(HOUR).await;
        None
    };
    or(async { tokens.recv().await.ok() }, late).await.expect("somebody sends in time")
}

pub(super) async fn met(n: u64) -> Run {
    let ((there, tokens), (back, returns)): ((Sender<u64>, _), (Sender<u64>, _)) = (bounded(1), bounded(1));
    let other = spawn(async move {
        for _ in 0..n {
            let token = receive(&tokens).await;
            back.send(token).await.expect("somebody receives");
        }
    });
    let run = Run::timed_async(async {
        let mut sum = 0;
        for _ in 0..n {
            there.send(1).await.expect("somebody receives");
            sum += receive(&returns).await;
        }
        sum
    });
    let run = run.await;
    other.await;
    run
}

pub(super) async fn sleepers(n: u64, spread_ms: u64) -> Run {
    let due = work::instants(n, spread_ms);
    let sleeper = |due| async move {
        Timer::at(due).await;
        work::lateness(due)
    };
    let tasks: Vec<_> = due.iter().map(|due| spawn(sleeper(*due))).collect();
    let mut late = Vec::with_capacity(tasks.len());
    for task in tasks.into_iter().rev() {
        late.push(task.await);
    }
    work::late(&due, late)
}
