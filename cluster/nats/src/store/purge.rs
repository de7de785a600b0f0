//! Purges what is under a subject of the objects, so that the server counts its room as free.
//!
//! A server before 2.9.15 removes what is purged by a subject, and still counts it as used: a purge of a whole stream and the deletion of a single message count, a purge by a subject does not
//! (its change 3876). Such a server would refuse all messages, until it is started again, when what was purged so far and what is there reach its limit. So messages are deleted there one by one.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use futures_util::StreamExt;
use futures_util::future::join_all;

use super::{Store, text};

/// So many messages are deleted together.
const TOGETHER: u64 = 64;

/// So long the server may take to purge what is under a subject.
const PURGE: Duration = Duration::from_secs(10);

/// So long the server may take to say which messages there are, of those that it is asked for together.
const ANSWER: Duration = Duration::from_secs(1);

/// So long it may take to delete messages one by one.
const LISTING: Duration = Duration::from_secs(20);

/// Whether a server of this version counts as free what is purged by a subject.
fn counts_purges(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    match (next(), next(), next()) {
        (Some(major), Some(minor), Some(patch)) => (major, minor, patch) >= (2, 9, 15),
        // It is not known. A server of today does.
        _ => true,
    }
}

impl Store {
    /// Purges what is under that subject. After an error something may stay, since the server has not done that in time.
    pub(super) async fn purge_objects(&self, subject: &str) -> Result<(), String> {
        let stream = format!("OBJ_{}", self.names.bucket());
        if !counts_purges(&self.client.server_info().version) {
            // What it leaves is purged all the same. It gets no answer about messages that somebody else deletes at the same time.
            let _ = tokio::time::timeout(LISTING, self.delete_each(&stream, subject)).await;
        }
        let purge = async {
            let stream = self.context.get_stream_no_info(&stream).await.map_err(text)?;
            stream.purge().filter(subject).await.map_err(text).map(drop)
        };
        tokio::time::timeout(PURGE, purge).await.map_err(text)?
    }

    /// Whether there is something under that subject.
    pub(super) async fn has_objects(&self, subject: &str) -> Result<bool, String> {
        let stream = self.context.get_stream_no_info(format!("OBJ_{}", self.names.bucket())).await;
        let mut subjects = stream.map_err(text)?.info_with_subjects(subject).await.map_err(text)?;
        // The first item is the answer. For another one the client asks the server for the next page, and its stream panics if it is polled again after that has failed.
        Ok(subjects.next().await.transpose().map_err(text)?.is_some())
    }

    /// Deletes the messages under that subject by their numbers. A consumer tells these, without what is in the messages.
    async fn delete_each(&self, stream: &str, subject: &str) -> Result<(), String> {
        let config = pull::Config {
            filter_subject: subject.to_owned(),
            headers_only: true,
            // A full store has room for it then.
            memory_storage: true,
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: -1,
            inactive_threshold: PURGE,
            ..pull::Config::default()
        };
        let made: Result<PullConsumer, _> = self.context.create_consumer_on_stream(config, stream).await;
        let consumer = made.map_err(text)?;
        let mut left = consumer.cached_info().num_pending;
        while left > 0 {
            let together = left.min(TOGETHER);
            let asked = consumer.fetch().max_messages(together as usize).expires(ANSWER);
            let messages = asked.messages().await.map_err(text)?;
            let messages: Vec<_> = messages.collect().await;
            if messages.is_empty() {
                break;
            }
            left = left.saturating_sub(messages.len() as u64);
            let numbers = messages.iter().flatten().filter_map(|message| message.info().ok());
            join_all(numbers.map(|info| self.delete_message(stream, info.stream_sequence))).await;
        }
        let name = &consumer.cached_info().name;
        self.context.delete_consumer_from_stream(name, stream).await.map_err(text).map(drop)
    }

    async fn delete_message(&self, stream: &str, number: u64) {
        let subject = format!("$JS.API.STREAM.MSG.DELETE.{stream}");
        // A client's own function has the server write over the message, too.
        let request = format!("{{\"seq\":{number},\"no_erase\":true}}");
        let _ = self.client.request(subject, request.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_2_9_15_do_not_count_what_is_purged_by_a_subject() {
        for version in ["2.9.10", "2.9.14", "2.8.99", "1.4.1"] {
            assert!(!counts_purges(version), "{version}");
        }
        for version in ["2.9.15", "2.9.25", "2.10.0-RC.1", "2.12.1", "3.0.0", "", "dev"] {
            assert!(counts_purges(version), "{version}");
        }
    }
}
