//! What a job does while servers that are a cluster have no leader for something.
//!
//! Such servers elect a leader for themselves, one for each stream, and one for each consumer. There is none until the servers have found each other, and for some seconds
//! after the death of a leader. A start waits for that, and what is to be recorded is sent again.
//!
//! After the death of a server, version 2.9 now and then elects no leader for a consumer for as long as that server is away, though two of three servers are there, and the stream has a
//! leader. Nothing is lost with a consumer: a new one begins with the first message of its stream. So it is made anew.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::PullConsumer;

use super::{PAUSE, Store, consumer};
use crate::wire::Times;

/// A consumer that has no leader for so long, though its stream has one, is made anew. An election takes up to nine seconds.
const LEADERLESS: Duration = Duration::from_secs(15);

/// Since when each consumer says nothing, though its stream has a leader.
pub(crate) type Silent = [Option<Instant>; 2];

/// Does that again for so long, while servers say that they have no leader, or too few of each other, or say nothing.
pub(crate) async fn while_electing<T>(
    limit: Duration,
    mut work: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match work().await {
            Err(why) if may_be_electing(&why) && begun.elapsed() < limit => {
                tokio::time::sleep(PAUSE * 4).await
            }
            answer => return answer,
        }
    }
}

/// By the texts of the codes 10008 and 10005, and by that of a request without an answer.
fn may_be_electing(why: &str) -> bool {
    ["temporarily unavailable", "no suitable peers", "timed out"].iter().any(|text| why.contains(text))
}

impl Store {
    /// Makes a consumer anew that has said nothing for too long though its stream has a leader. `true`: that was done. Called again and again while a look fails.
    pub(crate) async fn replace_silent(&self, times: &Times, silent: &mut Silent) -> bool {
        let mut replaced = false;
        for ((stream, name, ack_wait), since) in self.consumers(times).into_iter().zip(silent) {
            let reader: Result<PullConsumer, _> = self.context.get_consumer_from_stream(name, &stream).await;
            if reader.is_ok() || self.context.get_stream(&stream).await.is_err() {
                *since = None;
            } else if since.get_or_insert_with(Instant::now).elapsed() >= LEADERLESS {
                // Nobody may answer that, for it is the consumer's leader who does.
                let _ = self.context.delete_consumer_from_stream(name, &stream).await;
                let made = self.context.create_consumer_on_stream(consumer(name, ack_wait), &stream).await;
                if made.is_ok() {
                    (*since, replaced) = (None, true);
                }
            }
        }
        replaced
    }
}
