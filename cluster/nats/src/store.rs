//! What a job keeps on the server: the streams of tasks and of results, the consumers that read them, the objects, and the lock of the coordinator.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::object_store::{GetErrorKind, ObjectStore};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, State, StorageType, Stream};
use async_nats::jetstream::{self, Context, kv};
use bytes::Bytes;
use tokio::io::AsyncReadExt;

use crate::wire::{Names, Times};

/// The consumer of the workers, and that of the coordinator.
const WORKERS: &str = "workers";
const COORDINATOR: &str = "coordinator";

/// Between two tries to send something.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// An object of which nothing comes for so long is asked for again.
const STALL: Duration = Duration::from_secs(5);

/// What a job keeps on the server.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) context: Context,
    names: Names,
    replicas: usize,
}

/// The lock of a job: an entry that its coordinator renews. It expires a lease after the last time.
pub(crate) struct Lock {
    entries: kv::Store,
    value: Bytes,
    revision: u64,
}

/// The key of the lock.
const HOLDER: &str = "coordinator";

/// A message that is to be recorded: it is sent again under its id until the server has it.
pub(crate) struct Recording {
    subject: String,
    id: String,
    payload: Bytes,
    sent: Option<PublishAckFuture>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Store {
    pub(crate) fn new(client: &async_nats::Client, names: &Names, replicas: usize) -> Store {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(Duration::from_secs(2));
        Store { context, names: names.clone(), replicas }
    }

    fn config(&self, name: String, subjects: Vec<String>) -> Config {
        Config {
            name,
            subjects,
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            num_replicas: self.replicas,
            duplicate_window: Duration::from_secs(120),
            ..Config::default()
        }
    }

    /// Makes what is not there yet. `fresh`: drops what an earlier run has left.
    pub(crate) async fn ensure(&self, times: &Times, fresh: bool) -> Result<(), String> {
        let queue = self.config(self.names.queue_stream(), vec![self.names.all_tasks()]);
        let results = self.config(self.names.result_stream(), vec![self.names.result()]);
        let objects = Config {
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::New,
            allow_rollup: true,
            allow_direct: true,
            duplicate_window: Duration::ZERO,
            ..self.config(
                format!("OBJ_{}", self.names.bucket()),
                vec![format!("$O.{}.C.>", self.names.bucket()), format!("$O.{}.M.>", self.names.bucket())],
            )
        };
        for config in [queue, results, objects] {
            if fresh {
                // That it is not there is no error.
                let _ = self.context.delete_stream(&config.name).await;
            }
            self.stream(config).await?;
        }
        let queue = self.context.get_stream(self.names.queue_stream()).await.map_err(text)?;
        let consumer = |name: &str, ack_wait| pull::Config {
            durable_name: Some(name.into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            max_deliver: -1,
            max_ack_pending: -1,
            max_waiting: 1 << 14,
            ..pull::Config::default()
        };
        queue.get_or_create_consumer(WORKERS, consumer(WORKERS, times.ack_wait())).await.map_err(text)?;
        let results = self.context.get_stream(self.names.result_stream()).await.map_err(text)?;
        let reading = consumer(COORDINATOR, Duration::from_secs(1));
        results.get_or_create_consumer(COORDINATOR, reading).await.map_err(text)?;
        Ok(())
    }

    /// Makes a stream, if it is not there.
    async fn stream(&self, config: Config) -> Result<Stream, String> {
        let mut tries = 0;
        loop {
            match self.context.get_or_create_stream(config.clone()).await {
                Ok(stream) => return Ok(stream),
                // Version 2.9 fails now and then to make the first streams of its store if two are made at once.
                Err(_) if tries < 5 => tries += 1,
                Err(error) => return Err(text(error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes the lock. Waits for a lease if there is an entry: its coordinator is dead if it does not renew it meanwhile.
    pub(crate) async fn lock(&self, epoch: u64, times: &Times) -> Result<Lock, String> {
        let bucket = self.names.lock_bucket();
        // `create_key_value` asks for the account first, and cannot read the answer of version 2.9.
        let config = Config {
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            max_messages_per_subject: 1,
            max_age: times.lease,
            duplicate_window: times.lease,
            ..self.config(format!("KV_{bucket}"), vec![format!("$KV.{bucket}.>")])
        };
        // Another run may have had another lease.
        if self.stream(config.clone()).await?.cached_info().config.max_age != times.lease {
            self.context.update_stream(config).await.map_err(text)?;
        }
        let entries = self.context.get_key_value(&bucket).await.map_err(text)?;
        let value = Bytes::copy_from_slice(&epoch.to_le_bytes());
        let (begun, mut first) = (Instant::now(), None);
        loop {
            if let Ok(revision) = entries.create(HOLDER, value.clone()).await {
                return Ok(Lock { entries, value, revision });
            }
            if let Ok(Some(entry)) = entries.entry(HOLDER).await
                && entry.revision != *first.get_or_insert(entry.revision)
            {
                return Err("another coordinator of this job runs: end it, or name another job".into());
            }
            if begun.elapsed() > times.lease * 2 + Duration::from_secs(5) {
                return Err("the lock of the job could not be taken".into());
            }
            tokio::time::sleep(times.beat / 2).await;
        }
    }

    /// Drops all.
    pub(crate) async fn remove(&self) {
        let objects = format!("OBJ_{}", self.names.bucket());
        let lock = format!("KV_{}", self.names.lock_bucket());
        for stream in [self.names.queue_stream(), self.names.result_stream(), objects, lock] {
            let _ = self.context.delete_stream(stream).await;
        }
    }

    pub(crate) async fn queue(&self) -> Result<Stream, String> {
        self.context.get_stream(self.names.queue_stream()).await.map_err(text)
    }

    /// So many messages are in the queue; the newest number of the stream of results; and so many records are there that are not acknowledged.
    pub(crate) async fn state(&self) -> Result<(u64, u64, u64), String> {
        let queue = self.queue().await?.get_info().await.map_err(text)?;
        let results = self.records().await?;
        Ok((queue.state.messages, results.last_sequence, results.messages))
    }

    /// The number of the newest record.
    pub(crate) async fn newest(&self) -> Result<u64, String> {
        Ok(self.records().await?.last_sequence)
    }

    async fn records(&self) -> Result<State, String> {
        let results = self.context.get_stream_no_info(self.names.result_stream()).await.map_err(text)?;
        Ok(results.get_info().await.map_err(text)?.state)
    }

    pub(crate) async fn workers(&self) -> Result<PullConsumer, String> {
        self.context.get_consumer_from_stream(WORKERS, self.names.queue_stream()).await.map_err(text)
    }

    pub(crate) async fn results(&self) -> Result<PullConsumer, String> {
        self.context.get_consumer_from_stream(COORDINATOR, self.names.result_stream()).await.map_err(text)
    }

    /// Sends a message that is to be recorded. Messages are recorded in the order of these calls, unless the connection breaks.
    pub(crate) async fn send(&self, subject: String, id: String, payload: Vec<u8>) -> Recording {
        let mut recording = Recording { subject, id, payload: payload.into(), sent: None };
        recording.sent = recording.send(&self.context).await;
        recording
    }

    async fn objects(&self) -> Result<ObjectStore, String> {
        self.context.get_object_store(self.names.bucket()).await.map_err(text)
    }

    /// Puts an object, until that succeeds.
    pub(crate) async fn put(&self, name: &str, bytes: &[u8]) {
        loop {
            let put = async {
                let objects = self.objects().await?;
                objects.put(name, &mut &*bytes).await.map_err(text)
            };
            if put.await.is_ok() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads an object, until that succeeds. `None`: the server says that it is not there.
    pub(crate) async fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut missing = 0;
        // A server that has just come back may not have read all that it has stored.
        while missing < 3 {
            match self.try_get(name).await {
                Ok(Some(bytes)) => return Some(bytes),
                Ok(None) => missing += 1,
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
        None
    }

    async fn try_get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let mut object = match self.objects().await?.get(name).await {
            Ok(object) => object,
            Err(error) if error.kind() == GetErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(text(error)),
        };
        let (mut bytes, mut piece) = (Vec::with_capacity(object.info().size), vec![0; 128 << 10]);
        loop {
            // What a server had begun to send before it died does not come.
            let read = tokio::time::timeout(STALL, object.read(&mut piece)).await.map_err(text)?;
            match read.map_err(text)? {
                0 => return Ok(Some(bytes)),
                read => bytes.extend_from_slice(&piece[..read]),
            }
        }
    }

    /// Deletes an object. One that stays goes with the job.
    pub(crate) async fn delete(&self, name: &str) {
        if let Ok(objects) = self.objects().await {
            let _ = objects.delete(name).await;
        }
    }
}

impl Lock {
    /// Renews it. `false`: another coordinator has it.
    pub(crate) async fn renew(&mut self) -> bool {
        if let Ok(revision) = self.entries.update(HOLDER, self.value.clone(), self.revision).await {
            self.revision = revision;
            return true;
        }
        match self.entries.entry(HOLDER).await {
            Ok(Some(entry)) if entry.value == self.value => self.revision = entry.revision,
            Ok(Some(entry)) if entry.operation == kv::Operation::Put => return false,
            // It has expired, while there was no connection.
            Ok(_) => {
                if let Ok(revision) = self.entries.create(HOLDER, self.value.clone()).await {
                    self.revision = revision;
                }
            }
            Err(_) => {}
        }
        true
    }
}

impl Recording {
    async fn send(&self, context: &Context) -> Option<PublishAckFuture> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", self.id.as_str());
        context.publish_with_headers(self.subject.clone(), headers, self.payload.clone()).await.ok()
    }

    /// Waits until the server has it, and says its number.
    pub(crate) async fn recorded(mut self, context: &Context) -> u64 {
        loop {
            if let Some(sent) = self.sent.take()
                && let Ok(ack) = sent.await
            {
                return ack.sequence;
            }
            tokio::time::sleep(PAUSE).await;
            self.sent = self.send(context).await;
        }
    }
}
