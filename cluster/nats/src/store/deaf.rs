//! What a job does about a stream that has a leader and takes no messages.
//!
//! After servers of a cluster died or stood still, version 2.9 now and then has a leader for a stream that does not listen to the stream's subjects. The server answers each
//! message there that nobody responds, without end, while the stream and its consumers answer every other request. Tasks then run, and no worker can record
//! their results. Another leader does listen, so the stream elects one. Nothing is lost by that.
//!
//! Each look at the streams therefore has a *probe* for each: a message that says it is meant for another stream. A leader that listens refuses it, and stores nothing.
//! The streams of the lock and of the objects have no probe.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_STREAM;
use bytes::Bytes;

use super::Store;

/// So long a probe waits for its answer.
const PROBE: Duration = Duration::from_secs(1);

/// A stream that takes nothing for so long elects another leader, and again after as long.
const DEAF: Duration = Duration::from_secs(8);

/// No stream of a job has this name.
const NONE: &str = "NONE";

/// Since when the queue and the stream of results take no messages.
pub(crate) type Deaf = [Option<Instant>; 2];

impl Store {
    /// Probes both streams. One that has been deaf for too long elects another leader.
    pub(super) async fn probe(&self, mut deaf: Deaf) -> Deaf {
        let names = &self.names;
        let streams = [(names.queue_stream(), names.task(0)), (names.result_stream(), names.result())];
        let [queue, results] = streams.each_ref().map(|(_, subject)| self.takes(subject));
        let takes = tokio::join!(queue, results);
        for ((since, takes), (stream, _)) in deaf.iter_mut().zip([takes.0, takes.1]).zip(&streams) {
            if takes {
                *since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() >= DEAF {
                // A server that is alone refuses that.
                let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
                let _ = tokio::time::timeout(PROBE, self.client.request(subject, Bytes::new())).await;
                *since = None;
            }
        }
        deaf
    }

    /// Whether somebody takes, or refuses, what is published there.
    async fn takes(&self, subject: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_STREAM, NONE);
        let asked = self.client.request_with_headers(subject.to_owned(), headers, Bytes::new());
        matches!(tokio::time::timeout(PROBE, asked).await, Ok(Ok(_)))
    }
}
