//! [`Lock`]: which coordinator has a job, and the removal of what that one keeps on the server.
//!
//! The lock is an entry of the bucket `FB_J_META`. Its coordinator renews it, and it expires a lease after the last time. The coordinator that has it removes the streams of the job at the end, and the bucket
//! last. Until then another coordinator waits. So one that finds no bucket, or whose bucket goes while it waits, makes it again.

use std::error::Error;
use std::time::{Duration, Instant};

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use bytes::Bytes;

use super::{PAUSE, Store, text};
use crate::wire::Times;

/// The key of the lock.
pub(super) const HOLDER: &str = "coordinator";

/// Beyond two leases, so long a start waits for the lock.
const SPARE: Duration = Duration::from_secs(5);

/// The lock of a job: an entry that its coordinator renews. It expires a lease after the last time.
pub(crate) struct Lock {
    entries: kv::Store,
    value: Bytes,
    revision: u64,
    /// It does not expire before a lease after this.
    pub(crate) renewed: Instant,
}

/// What a renewal of the lock has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Held,
    /// The server has not said, or has refused the renewal: why.
    Unknown(String),
    /// Another coordinator has it.
    Lost,
}

impl Store {
    /// The bucket of the lock. It is made if it is not there.
    async fn lock_bucket(&self, times: &Times) -> Result<kv::Store, String> {
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
        self.context.get_key_value(&bucket).await.map_err(text)
    }

    /// The same. Another coordinator that has just ended may remove it between two of the requests: then it is made again.
    async fn opened_lock_bucket(&self, times: &Times) -> Result<kv::Store, String> {
        let mut tries = 0;
        loop {
            match self.lock_bucket(times).await {
                Err(why) if tries < 5 && is_missing(&why) => tries += 1,
                opened => return opened,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes the lock. Waits for a lease if there is an entry: its coordinator is dead if it does not renew it meanwhile.
    pub(crate) async fn lock(&self, epoch: u64, times: &Times) -> Result<Lock, String> {
        let mut entries = self.opened_lock_bucket(times).await?;
        let value = value_of(epoch);
        let (begun, mut first) = (Instant::now(), None);
        let limit = times.lease.saturating_mul(2).saturating_add(SPARE);
        loop {
            let renewed = Instant::now();
            let mut why = match entries.create(HOLDER, value.clone()).await {
                Ok(revision) => return Ok(Lock { entries, value, revision, renewed }),
                Err(error) => text(error),
            };
            match entries.entry(HOLDER).await {
                // The answer to an earlier try was lost.
                Ok(Some(entry)) if entry.value == value => {
                    return Ok(Lock { entries, value, revision: entry.revision, renewed: begun });
                }
                Ok(Some(entry)) if entry.revision != *first.get_or_insert(entry.revision) => {
                    return Err("another coordinator of this job runs: end it, or name another job".into());
                }
                Ok(_) => {}
                // The other coordinator has removed the bucket, or the server has come back with an empty store.
                Err(error) => {
                    why = text(error);
                    match self.lock_bucket(times).await {
                        Ok(opened) => entries = opened,
                        Err(error) => why = error,
                    }
                }
            }
            if begun.elapsed() > limit {
                return Err(format!(
                    "the lock of the job could not be taken for {limit:?}, try again or name another job: {why}"
                ));
            }
            tokio::time::sleep(times.beat / 2).await;
        }
    }

    /// Takes the lock if nobody has it, without a wait. For a start that is given up in the middle, and may have it or not.
    pub(crate) async fn lock_at_once(&self, epoch: u64) -> Option<Lock> {
        let entries = self.context.get_key_value(self.names.lock_bucket()).await.ok()?;
        let (value, renewed) = (value_of(epoch), Instant::now());
        if let Ok(revision) = entries.create(HOLDER, value.clone()).await {
            return Some(Lock { entries, value, revision, renewed });
        }
        let entry = entries.entry(HOLDER).await.ok()??;
        (entry.value == value).then_some(Lock { entries, value, revision: entry.revision, renewed })
    }

    /// Drops the queue, the results and the objects, one by one while the lock is `held`. `false`: it is not any more.
    pub(crate) async fn remove_streams(&self, mut held: impl AsyncFnMut() -> bool) -> bool {
        let objects = format!("OBJ_{}", self.names.bucket());
        for stream in [self.names.queue_stream(), self.names.result_stream(), objects] {
            if !held().await {
                return false;
            }
            let _ = self.context.delete_stream(stream).await;
        }
        held().await
    }

    /// Drops the bucket of the lock, when nothing else is there any more and nobody renews it.
    pub(crate) async fn remove_lock(&self) {
        let _ = self.context.delete_stream(format!("KV_{}", self.names.lock_bucket())).await;
    }
}

impl Lock {
    /// Renews it.
    pub(crate) async fn renew(&mut self, store: &Store, times: &Times) -> Renewal {
        let begun = Instant::now();
        let renewed = self.entries.update(HOLDER, self.value.clone(), self.revision).await.map_err(words);
        let renewed = match renewed {
            Ok(revision) => Ok(revision),
            Err(why) => match self.entries.entry(HOLDER).await {
                Ok(Some(entry)) if entry.value == self.value => {
                    self.revision = entry.revision;
                    Err(why)
                }
                Ok(Some(entry)) if entry.operation == kv::Operation::Put => return Renewal::Lost,
                // It has expired, while there was no connection.
                Ok(_) => self.entries.create(HOLDER, self.value.clone()).await.map_err(words),
                // The server may have come back with an empty store.
                Err(_) => {
                    if let Ok(entries) = store.lock_bucket(times).await {
                        self.entries = entries;
                    }
                    Err(why)
                }
            },
        };
        match renewed {
            Ok(revision) => {
                (self.revision, self.renewed) = (revision, begun);
                Renewal::Held
            }
            Err(why) => Renewal::Unknown(why),
        }
    }
}

/// What the server has said. What the client says of its own about an update speaks of an entry that it cannot get.
fn words(error: impl Error + 'static) -> String {
    let mut its: &dyn Error = &error;
    while let Some(source) = its.source() {
        its = source;
    }
    its.to_string()
}

fn value_of(epoch: u64) -> Bytes {
    Bytes::copy_from_slice(&epoch.to_le_bytes())
}

/// By the texts of the code 10059.
fn is_missing(why: &str) -> bool {
    why.contains("stream not found")
}
