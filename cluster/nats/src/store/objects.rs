//! The objects of a job: values that are too large for a message.
//!
//! An object is some *chunks*, messages under one subject of their own, and an entry under its name that says which subject that is. That is the form that all clients of NATS know. This crate
//! writes it itself: a client's own function to put an object does not say which chunks it has written when it fails, and those would stay until the job ends. It reads it itself, too: a
//! client's own function makes a consumer for each read, which the server keeps for half a minute, and an account may have few. The entry has a header with a [`Listing`] of the chunks for that.
//! The subject of the chunks begins with the name of the object. So a member that knows that nobody needs an object deletes it by its name, also if its writer has died before the entry was there.

mod listing;

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::RawMessageErrorKind;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use self::listing::Listing;
use super::{PAUSE, Refused, Store, text};
use crate::nats::random;

/// The header of an entry that has the [`Listing`].
const CHUNKS: &str = "Forebear-Chunks";

/// So many chunks are asked for at a time.
const AT_ONCE: usize = 8;

/// No more bytes are reserved before they have come.
const RESERVED: usize = 16 << 20;

/// A chunk that does not come for so long is asked for again, with the whole object.
const STALL: Duration = Duration::from_secs(5);

/// A chunk has so many bytes at most.
const CHUNK: usize = 128 << 10;

/// What a process had sent when it died has come after so long.
const LATE: Duration = Duration::from_secs(2);

/// Chunks of an object that is being put, of all tries. They are purged when this is dropped before the object is there: also if the put is cancelled.
struct Chunks {
    store: Store,
    subject: String,
    kept: bool,
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (store, subject) = (self.store.clone(), std::mem::take(&mut self.subject));
        // Without the runtime the engine has ended, and the job's objects go with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // The connection may be broken, and the client sends what it has kept when there is one again.
                while store.purge_objects(&subject).await.is_err() {
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }
}

impl Store {
    /// Puts an object, until that succeeds. The error is the server's, if that refuses it for too long. Then nothing of it stays, if the server purges it in time.
    pub(crate) async fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let mut refused = Refused::default();
        let mut chunks = Chunks { store: self.clone(), subject: self.chunks(name), kept: false };
        loop {
            // Another number each time: a chunk of an earlier try may come late.
            let number = format!("{}.{:016x}", URL_SAFE.encode(name), random());
            let subject = format!("$O.{}.C.{number}", self.names.bucket());
            match self.try_put(name, bytes, &number, &subject).await {
                Ok(()) => {
                    chunks.kept = true;
                    return Ok(());
                }
                Err(why) => {
                    // What is there takes the room that the next try needs. That one has other chunks: a purge may come late, too.
                    let _ = self.purge_objects(&subject).await;
                    if self.is_refused(&mut refused, &why) {
                        chunks.kept = self.purge_objects(&chunks.subject).await.is_ok();
                        // The server may have its entry, and not have said so.
                        let _ = self.purge_objects(&self.entry(name)).await;
                        return Err(why);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_put(&self, name: &str, bytes: &[u8], number: &str, subject: &str) -> Result<(), String> {
        let mut listing = Listing::of(bytes);
        for chunk in bytes.chunks(CHUNK) {
            let chunk = Bytes::copy_from_slice(chunk);
            let sent = self.context.publish(subject.to_owned(), chunk).await.map_err(text)?;
            listing.note(sent.await.map_err(text)?.sequence);
        }
        let bucket = self.names.bucket();
        // No name of ours has a character that JSON would write in another way.
        let entry = format!(
            "{{\"name\":\"{name}\",\"bucket\":\"{bucket}\",\"nuid\":\"{number}\",\"size\":{},\"chunks\":{},\"digest\":\"SHA-256={}\",\"options\":{{\"max_chunk_size\":{CHUNK}}}}}",
            listing.size,
            listing.chunks(),
            listing.digest,
        );
        let mut headers = HeaderMap::new();
        headers.insert(CHUNKS, listing.to_string());
        headers.insert("Nats-Rollup", "sub");
        let sent =
            self.context.publish_with_headers(self.entry(name), headers, entry.into()).await.map_err(text)?;
        sent.await.map_err(text).map(drop)
    }

    /// The subject of the entry of an object.
    pub(super) fn entry(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.names.bucket(), URL_SAFE.encode(name))
    }

    /// The subjects of the chunks of an object, of all tries to put it.
    fn chunks(&self, name: &str) -> String {
        format!("$O.{}.C.{}.*", self.names.bucket(), URL_SAFE.encode(name))
    }

    /// Reads an object, until that succeeds. `None`: the server says that it is not there. The error is the server's, if that refuses it for too long.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let (mut missing, mut refused) = (0, Refused::default());
        // A server that has just come back may not have read all that it has stored.
        while missing < 3 {
            match self.try_get(name).await {
                Ok(Some(bytes)) => return Ok(Some(bytes)),
                Ok(None) => missing += 1,
                Err(why) if self.is_refused(&mut refused, &why) => return Err(why),
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(None)
    }

    async fn try_get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let stream = self.context.get_stream_no_info(format!("OBJ_{}", self.names.bucket())).await;
        let stream = stream.map_err(text)?;
        // By the stream's leader, which knows what was put last.
        let entry = match stream.get_last_raw_message_by_subject(&self.entry(name)).await {
            Ok(entry) => entry,
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => return Err(text(error)),
        };
        let listing = entry.headers.get(CHUNKS).and_then(|listing| Listing::read(listing.as_str()));
        let listing =
            listing.ok_or_else(|| format!("the entry of the object {name} does not say where it is"))?;
        let mut chunks = stream::iter(listing.numbers())
            .map(async |number| {
                // What a server had begun to send before it died does not come.
                tokio::time::timeout(STALL, stream.direct_get(number)).await.map_err(text)?.map_err(text)
            })
            .buffered(AT_ONCE);
        let mut bytes = Vec::with_capacity(listing.size.min(RESERVED));
        while let Some(chunk) = chunks.next().await {
            bytes.extend_from_slice(&chunk?.payload);
        }
        if !listing.is_of(&bytes) {
            return Err(format!("the object {name} is not what was put"));
        }
        Ok(Some(bytes))
    }

    /// Deletes an object, or what there is of it. If that fails the coordinator repeats it when the server is there. A client's own function writes that the object is deleted, for which a full store has no room.
    pub(crate) async fn delete(&self, name: &str) {
        if self.try_delete(name).await.is_err() {
            self.left.note(name);
        }
    }

    pub(super) async fn try_delete(&self, name: &str) -> Result<(), String> {
        let (entry, chunks) = (self.entry(name), self.chunks(name));
        // Of most attempts that have no result, nothing is there. To look costs less than a purge.
        if !self.has_objects(&chunks).await? && !self.has_objects(&entry).await? {
            return Ok(());
        }
        self.purge_objects(&entry).await?;
        self.purge_objects(&chunks).await
    }

    /// Deletes an object of this job's own, when the server is there.
    pub(crate) async fn delete_when_there(&self, name: &str) {
        while self.try_delete(name).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Deletes an object whose writer is dead, when the server is there. A chunk that the dead process had handed to its network comes later than the news of its death: so this is done a second time.
    pub(crate) async fn discard(&self, name: &str) {
        for after in [Duration::ZERO, LATE] {
            tokio::time::sleep(after).await;
            self.delete_when_there(name).await;
        }
    }
}
