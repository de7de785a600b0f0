//! The bare transport of `Nats`: publish with JetStream's acknowledgement, and a pull consumer, by the client that the engine uses.
//!
//! The scheduling process publishes n messages to a stream of files with work-queue retention; at most 256 wait for their acknowledgements. Two worker processes read it by one durable pull consumer, and ask for 16 messages at
//! once. For each message a worker sends a result, and acknowledges the message after that. The clock stops when the scheduling process has all results. There are two candidates:
//!
//! * *JetStream*: results travel by core NATS. One that its reader misses is lost.
//! * *JetStream, results kept*: results go into a second stream, as the engine's do. The worker waits for that stream's acknowledgement before its own, and the scheduling process reads it by a pull consumer and acknowledges.
//!
//! Neither counts attempts, grants tasks, or knows whether a worker lives.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::Semaphore;

use crate::Whether;
use crate::candidates::{SLOTS, WORKERS};
use crate::engines::server;
use crate::figures::{percentile, print, rate};

/// A result that does not come.
const LOST: Duration = Duration::from_secs(30);
/// The engine's window, too.
const WINDOW: usize = 256;

fn block_on<T>(f: impl Future<Output = Whether<T>>) -> Whether<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(f)
}

async fn connect() -> Whether<(Client, Context)> {
    let (url, token) = server()?;
    let client = ConnectOptions::with_token(token).connect(url).await?;
    Ok((client.clone(), jetstream::new(client)))
}

/// A stream that is a queue, and its one consumer.
async fn queue(context: &Context, name: &str, subject: String) -> Whether<PullConsumer> {
    let config = Config {
        name: name.to_owned(),
        subjects: vec![subject],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        ..Config::default()
    };
    let consumer = pull::Config {
        durable_name: Some("all".into()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    Ok(context.create_stream(config).await?.create_consumer(consumer).await?)
}

/// A worker process, until it is killed.
pub(crate) fn consume(prefix: &str, kept: bool) -> Whether<()> {
    block_on(async {
        let (client, context) = connect().await?;
        let consumer: PullConsumer =
            context.get_consumer_from_stream("all", format!("{prefix}_TASKS")).await?;
        client.publish(format!("{prefix}.ready"), Bytes::new()).await?;
        client.flush().await?;
        let mut messages = consumer.stream().max_messages_per_batch(SLOTS).messages().await?;
        let result = format!("{prefix}.result");
        while let Some(message) = messages.next().await {
            let message = message?;
            if !kept {
                client.publish(result.clone(), message.payload.clone()).await?;
                message.ack().await?;
                continue;
            }
            let stored = context.publish(result.clone(), message.payload.clone()).await?;
            tokio::spawn(async move {
                if stored.await.is_ok() {
                    let _ = message.ack().await;
                }
            });
        }
        Ok(())
    })
}

/// Where results come from.
enum Results {
    Core(Subscriber),
    Kept(Box<pull::Stream>),
}

impl Results {
    async fn next(&mut self) -> Whether<()> {
        match self {
            Results::Core(subscriber) => {
                tokio::time::timeout(LOST, subscriber.next()).await?.ok_or("no more results")?;
            }
            Results::Kept(messages) => {
                let message =
                    tokio::time::timeout(LOST, messages.next()).await?.ok_or("no more results")??;
                message.ack().await?;
            }
        }
        Ok(())
    }
}

/// The scheduling side.
struct Bench {
    context: Context,
    prefix: String,
    results: Results,
    workers: Vec<Child>,
}

impl Bench {
    async fn start(kept: bool) -> Whether<Bench> {
        let prefix = format!("BARE{}", std::process::id());
        let (client, context) = connect().await?;
        let mut ready = client.subscribe(format!("{prefix}.ready")).await?;
        queue(&context, &format!("{prefix}_TASKS"), format!("{prefix}.task")).await?;
        let result = format!("{prefix}.result");
        let results = if kept {
            let consumer = queue(&context, &format!("{prefix}_RESULTS"), result).await?;
            Results::Kept(Box::new(consumer.messages().await?))
        } else {
            Results::Core(client.subscribe(result).await?)
        };
        client.flush().await?;
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            let mut command = Command::new(std::env::current_exe()?);
            let kept = if kept { "kept" } else { "not kept" };
            workers.push(command.args(["consume", &prefix, kept]).spawn()?);
        }
        for _ in 0..WORKERS {
            tokio::time::timeout(LOST, ready.next()).await?;
        }
        Ok(Bench { context, prefix, results, workers })
    }

    /// Publishes n messages, and takes as many results.
    async fn send(&mut self, n: u64) -> Whether<()> {
        let (context, subject) = (self.context.clone(), format!("{}.task", self.prefix));
        let publisher = tokio::spawn(async move {
            let window = Arc::new(Semaphore::new(WINDOW));
            for i in 0..n {
                let permit = window.clone().acquire_owned().await?;
                let sent = context.publish(subject.clone(), i.to_le_bytes().to_vec().into()).await?;
                tokio::spawn(async move {
                    let _ = sent.await;
                    drop(permit);
                });
            }
            Whether::Ok(())
        });
        for _ in 0..n {
            self.results.next().await?;
        }
        publisher.await?
    }

    async fn end(mut self) -> Whether<()> {
        for worker in &mut self.workers {
            worker.kill()?;
            worker.wait()?;
        }
        for stream in ["TASKS", "RESULTS"] {
            let _ = self.context.delete_stream(format!("{}_{stream}", self.prefix)).await;
        }
        Ok(())
    }
}

pub(crate) fn many(n: u64, kept: bool) -> Whether<()> {
    block_on(async {
        let mut bench = Bench::start(kept).await?;
        bench.send(n / 10).await?;
        let begun = Instant::now();
        let done = bench.send(n).await;
        print("a second", rate(n, begun.elapsed()));
        bench.end().await?;
        done
    })
}

pub(crate) fn alone(n: u64, kept: bool) -> Whether<()> {
    block_on(async {
        let mut bench = Bench::start(kept).await?;
        let mut all = Vec::new();
        for i in 0..n {
            let begun = Instant::now();
            bench.send(1).await?;
            if i >= n / 10 {
                all.push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
        print("p50 us", percentile(&mut all, 50));
        print("p99 us", percentile(&mut all, 99));
        bench.end().await
    })
}
