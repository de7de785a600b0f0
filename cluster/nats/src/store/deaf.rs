//! What a job does about a stream that has a leader and takes no messages.
//!
//! After servers of a cluster died or stood still, version 2.9 now and then has a leader for a stream that does not listen to the stream's subjects. The server answers each
//! message there that nobody responds, without end, while the stream and its consumers answer every other request. Tasks then run, and no worker can record
//! their results. Another leader does listen, so the stream elects one. Nothing is lost by that.
//!
//! A *probe* finds such a stream: a message that says it is meant for another stream. A leader that listens refuses it, and stores nothing. Each look at the streams probes the
//! queue, the results and the objects. Nobody looks while the lock of the job is not held, so the lock's own stream is probed by who renews it, after each renewal that failed.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::header::NATS_EXPECTED_STREAM;
use bytes::Bytes;

use super::Store;
use super::lock::HOLDER;

/// So long a probe waits for its answer.
const PROBE: Duration = Duration::from_secs(1);

/// A stream that takes nothing for so long elects another leader, and again after as long.
const DEAF: Duration = Duration::from_secs(8);

/// No stream of a job has this name.
const NONE: &str = "NONE";

/// No object of a job has this name.
const NO_OBJECT: &str = "none";

/// Since when a stream takes no messages, as far as probes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deaf(Option<Instant>);

impl Deaf {
    /// Notes what a probe has found. `true`: the stream is to elect another leader.
    fn is_lasting(&mut self, takes: bool, now: Instant) -> bool {
        if takes {
            self.0 = None;
            return false;
        }
        let lasts = now.duration_since(*self.0.get_or_insert(now)) >= DEAF;
        if lasts {
            self.0 = None;
        }
        lasts
    }
}

impl Store {
    /// Probes the streams of tasks, results and objects. One that has been deaf for too long elects another leader.
    pub(super) async fn probe(&self, [mut queue, mut results, mut objects]: [Deaf; 3]) -> [Deaf; 3] {
        let names = &self.names;
        tokio::join!(
            self.probe_one(&mut queue, names.queue_stream(), names.task(0)),
            self.probe_one(&mut results, names.result_stream(), names.result()),
            self.probe_one(&mut objects, format!("OBJ_{}", names.bucket()), self.entry(NO_OBJECT)),
        );
        [queue, results, objects]
    }

    /// The same for the stream of the lock.
    pub(crate) async fn probe_lock(&self, deaf: &mut Deaf) {
        let bucket = self.names.lock_bucket();
        self.probe_one(deaf, format!("KV_{bucket}"), format!("$KV.{bucket}.{HOLDER}")).await;
    }

    async fn probe_one(&self, deaf: &mut Deaf, stream: String, subject: String) {
        let takes = self.takes(subject).await;
        if self.client.connection_state() != State::Connected {
            // Then the stream has not been asked.
            *deaf = Deaf::default();
        } else if deaf.is_lasting(takes, Instant::now()) {
            // A server that is alone refuses that.
            let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
            let _ = tokio::time::timeout(PROBE, self.client.request(subject, Bytes::new())).await;
        }
    }

    /// Whether somebody takes, or refuses, what is published there.
    async fn takes(&self, subject: String) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_STREAM, NONE);
        let asked = self.client.request_with_headers(subject, headers, Bytes::new());
        matches!(tokio::time::timeout(PROBE, asked).await, Ok(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_elects_another_leader_when_it_has_taken_nothing_for_long_and_again_after_as_long() {
        let (begun, mut deaf) = (Instant::now(), Deaf::default());
        let elects: Vec<u64> = (0..=3 * DEAF.as_secs())
            .filter(|&second| deaf.is_lasting(false, begun + Duration::from_secs(second)))
            .collect();
        let second = DEAF.as_secs();
        assert_eq!(
            elects,
            [second, 2 * second + 1],
            "the next spell begins with the probe after the election"
        );
    }

    #[test]
    fn a_stream_that_takes_one_message_between_is_not_deaf() {
        let (begun, mut deaf) = (Instant::now(), Deaf::default());
        for second in 0..4 * DEAF.as_secs() {
            let takes = second % DEAF.as_secs() == 0;
            assert!(!deaf.is_lasting(takes, begun + Duration::from_secs(second)), "after {second} s");
        }
    }
}
