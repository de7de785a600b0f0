//! What a job keeps on the server: the streams of tasks and of results, the consumers that read them, and the objects. `lock`: which coordinator has the job.

mod deaf;
mod election;
mod left;
mod lock;
mod objects;
mod purge;
mod refused;

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, State, StorageType, Stream};
use async_nats::jetstream::{self, AckKind, Context, kv};
use async_nats::{Client, HeaderMap, Subject, Subscriber};
use bytes::Bytes;

pub(crate) use self::deaf::Deaf;
pub(crate) use self::election::{Silent, while_electing};
use self::left::Left;
pub(crate) use self::lock::{Lock, Renewal};
use self::refused::Refused;
use crate::wire::{Names, Times};

/// The consumer of the workers, and that of the coordinator.
const WORKERS: &str = "workers";
const COORDINATOR: &str = "coordinator";

/// Between two tries to send something.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// So long the client waits for the answer to a request.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

/// How far a stream is, and the consumer that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    /// So many messages it has.
    pub(crate) messages: u64,
    /// The number of its newest message.
    pub(crate) newest: u64,
    /// So many of its messages the consumer hands out, or has handed out and waits for their acknowledgements.
    handed: u64,
    /// The newest message that the consumer has handed out.
    delivered: u64,
}

/// How far the queue is, and the stream of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looks {
    pub(crate) queue: Looked,
    pub(crate) results: Looked,
    deaf: [Deaf; 3],
}

impl Looked {
    /// The consumer passes messages over, and will continue to. It is beyond the end of the stream, or each check found
    /// more messages than it knows of, and nothing has moved in between.
    ///
    /// A server may be killed at the moment when a stream becomes empty. After a restart it gives the next message the
    /// number 1, and its consumers stay where they were. Messages whose deletion the server had not written return,
    /// too, behind a consumer that has already passed them.
    fn passes_over(&self, before: Option<Looked>) -> bool {
        self.delivered > self.newest || self.messages > self.handed && before == Some(*self)
    }
}

/// What a job keeps on the server.
#[derive(Clone)]
pub(crate) struct Store {
    client: Client,
    pub(crate) context: Context,
    names: Names,
    replicas: usize,
    /// What the server refuses for so long is told.
    patience: Duration,
    /// A coordinator makes streams, and tells that one is not there. A worker waits for it: its coordinator makes the stream, or tells that it cannot, and the session ends without a coordinator.
    makes: bool,
    /// Objects that could not be deleted.
    left: Left,
}

/// A message that is to be recorded: it is sent again under its id until the server has it.
pub(crate) struct Recording {
    message: Unsent,
    sent: Option<Result<PublishAckFuture, String>>,
}

/// A message that is to be recorded, before it is sent.
pub(crate) struct Unsent {
    subject: String,
    id: String,
    payload: Bytes,
}

/// Messages of one stream that were sent together. The server is asked to confirm the first and the last of them.
///
/// Their numbers say whether it has those between: a stream numbers what it stores without gaps, and one writer alone sends into it. If the numbers do not say so, each message is sent
/// again by itself, until the server has it.
///
/// Only what is sent again has its id: an id takes the server time, and memory for as long as it looks for duplicates. So the stream may have a message twice, and not more often. What
/// reads the stream has to expect that.
pub(crate) struct Group {
    messages: Vec<Unsent>,
    first: Option<PublishAckFuture>,
    /// If there are several.
    last: Option<PublishAckFuture>,
}

/// How a consumer has handed a message out: to which subject it is acknowledged, and its number in its stream.
pub(crate) struct Delivery {
    pub(crate) reply: Subject,
    pub(crate) sequence: u64,
}

impl Delivery {
    /// `None`: this is no subject of a consumer. The client has a type for such messages, too, each of which has all that a connection has.
    pub(crate) fn new(reply: Subject) -> Option<Delivery> {
        let words: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        // Stream, consumer, how often, the number in the stream, that of the consumer, when, how many wait. Newer servers say the domain and the account before that.
        let sequence = match words.len() {
            7 => words[3],
            9.. => words[5],
            _ => return None,
        };
        let sequence = sequence.parse().ok()?;
        Some(Delivery { reply, sequence })
    }
}

fn consumer(name: &str, ack_wait: Duration) -> pull::Config {
    pull::Config {
        durable_name: Some(name.into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        max_deliver: -1,
        max_ack_pending: -1,
        max_waiting: 1 << 14,
        ..pull::Config::default()
    }
}

/// Waits until then. `None`: for ever.
pub(crate) async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Store {
    /// `patience`: what the server refuses for so long is told.
    pub(crate) fn new(client: &Client, names: &Names, replicas: usize, patience: Duration) -> Store {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        Store {
            client: client.clone(),
            context,
            names: names.clone(),
            replicas,
            patience,
            makes: true,
            left: Left::default(),
        }
    }

    /// The same for a worker, which makes no streams.
    pub(crate) fn of_worker(client: &Client, names: &Names, patience: Duration) -> Store {
        Store { makes: false, ..Store::new(client, names, 1, patience) }
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
        for (stream, name, ack_wait) in self.consumers(times) {
            let stream = self.context.get_stream(stream).await.map_err(text)?;
            stream.get_or_create_consumer(name, consumer(name, ack_wait)).await.map_err(text)?;
        }
        Ok(())
    }

    /// The streams that are read, their consumers, and how long those wait for acknowledgements.
    fn consumers(&self, times: &Times) -> [(String, &'static str, Duration); 2] {
        [
            (self.names.queue_stream(), WORKERS, times.ack_wait()),
            (self.names.result_stream(), COORDINATOR, Duration::from_secs(1)),
        ]
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

    /// The bucket of a group of this name.
    pub(crate) async fn group(&self) -> Result<kv::Store, String> {
        let bucket = self.names.group_bucket();
        self.stream(Config {
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::New,
            allow_rollup: true,
            deny_delete: true,
            max_messages_per_subject: 1,
            ..self.config(format!("KV_{bucket}"), vec![format!("$KV.{bucket}.>")])
        })
        .await?;
        self.context.get_key_value(&bucket).await.map_err(text)
    }

    /// Drops it.
    pub(crate) async fn remove_group(&self) {
        let _ = self.context.delete_stream(format!("KV_{}", self.names.group_bucket())).await;
    }

    /// The queue. The server is not asked whether it is there.
    pub(crate) async fn queue(&self) -> Result<Stream<()>, String> {
        self.context.get_stream_no_info(self.names.queue_stream()).await.map_err(text)
    }

    /// Looks how far the streams and their consumers are. A consumer that passes messages over is made anew, from the beginning of its stream: then there is a message that comes twice, and none that does not
    /// come. `true`: that was done.
    pub(crate) async fn look(&self, times: &Times, before: Option<Looks>) -> Result<(Looks, bool), String> {
        let [queue, results] = self.consumers(times);
        let (queue, again) = self.look_at(queue, before.map(|before| before.queue)).await?;
        let (results, too) = self.look_at(results, before.map(|before| before.results)).await?;
        let deaf = self.probe(before.map(|before| before.deaf).unwrap_or_default()).await;
        Ok((Looks { queue, results, deaf }, again || too))
    }

    async fn look_at(
        &self,
        (stream, name, ack_wait): (String, &str, Duration),
        before: Option<Looked>,
    ) -> Result<(Looked, bool), String> {
        // The consumer first: it does not come to the end of a stream that has grown meanwhile.
        let reader: PullConsumer =
            self.context.get_consumer_from_stream(name, &stream).await.map_err(text)?;
        let info = reader.cached_info();
        let state = self.context.get_stream_no_info(&stream).await.map_err(text)?;
        let state = state.get_info().await.map_err(text)?.state;
        let looked = Looked {
            messages: state.messages,
            newest: state.last_sequence,
            handed: info.num_pending + info.num_ack_pending as u64,
            delivered: info.delivered.stream_sequence,
        };
        let again = looked.passes_over(before);
        if again {
            self.context.delete_consumer_from_stream(name, &stream).await.map_err(text)?;
            let made = self.context.create_consumer_on_stream(consumer(name, ack_wait), &stream).await;
            made.map_err(text)?;
        }
        Ok((looked, again))
    }

    /// The number of the newest record.
    pub(crate) async fn newest(&self) -> Result<u64, String> {
        Ok(self.records().await?.last_sequence)
    }

    async fn records(&self) -> Result<State, String> {
        let results = self.context.get_stream_no_info(self.names.result_stream()).await.map_err(text)?;
        Ok(results.get_info().await.map_err(text)?.state)
    }

    /// Where messages of the queue come that are [asked](Self::ask) for.
    pub(crate) async fn inbox(&self) -> Result<(String, Subscriber), String> {
        let inbox = self.client.new_inbox();
        let messages = self.client.subscribe(inbox.clone()).await.map_err(text)?;
        Ok((inbox, messages))
    }

    /// Asks for so many messages of the queue. The server keeps that in mind for so long.
    pub(crate) async fn ask(&self, inbox: &str, messages: usize, expires: Duration) -> Result<(), String> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{WORKERS}", self.names.queue_stream());
        let request = format!("{{\"batch\":{messages},\"expires\":{}}}", expires.as_nanos());
        self.client.publish_with_reply(subject, inbox.to_owned(), request.into()).await.map_err(text)
    }

    /// Acknowledges a message that a consumer has handed out. What is lost of that comes again.
    pub(crate) async fn acknowledge(&self, reply: Subject, kind: AckKind) {
        let _ = self.client.publish(reply, kind.into()).await;
    }

    pub(crate) async fn results(&self) -> Result<PullConsumer, String> {
        self.context.get_consumer_from_stream(COORDINATOR, self.names.result_stream()).await.map_err(text)
    }

    /// Sends a message that is to be recorded. Messages are recorded in the order of these calls, unless the connection breaks.
    pub(crate) async fn send(&self, message: Unsent) -> Recording {
        let sent = Some(message.send(&self.context).await);
        Recording { message, sent }
    }

    /// Sends messages of one stream, of which this is the only writer. They are recorded in their order, and behind those of earlier calls, unless the connection breaks.
    pub(crate) async fn send_all(&self, messages: Vec<Unsent>) -> Group {
        let (mut first, mut last) = (None, None);
        for (n, message) in messages.iter().enumerate() {
            match n {
                0 => first = message.send_first(&self.context).await,
                _ if n + 1 == messages.len() => last = message.send_first(&self.context).await,
                _ => message.send_unconfirmed(&self.client).await,
            }
        }
        Group { messages, first, last }
    }
}

impl Unsent {
    pub(crate) fn new(subject: String, id: String, payload: Vec<u8>) -> Unsent {
        Unsent { subject, id, payload: payload.into() }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", self.id.as_str());
        headers
    }

    async fn send(&self, context: &Context) -> Result<PublishAckFuture, String> {
        let (subject, payload) = (self.subject.clone(), self.payload.clone());
        context.publish_with_headers(subject, self.headers(), payload).await.map_err(text)
    }

    /// Sends it for the first time, without its id.
    async fn send_first(&self, context: &Context) -> Option<PublishAckFuture> {
        context.publish(self.subject.clone(), self.payload.clone()).await.ok()
    }

    /// The same. The server is not asked to confirm it: what does not get there is missed when the group is confirmed.
    async fn send_unconfirmed(&self, client: &Client) {
        let _ = client.publish(self.subject.clone(), self.payload.clone()).await;
    }
}

impl Recording {
    /// Waits until the server has it. What the server says is told again and again if that refuses it for too long.
    pub(crate) async fn recorded(mut self, store: &Store, tell: impl Fn(String)) {
        let mut refused = Refused::default();
        while let Err(why) = self.recorded_or_refused(store, &mut refused).await {
            tell(why);
        }
    }

    /// Waits until the server has it, and says its number. The error is the server's, if that refuses it for too long.
    pub(crate) async fn number(mut self, store: &Store) -> Result<u64, String> {
        self.recorded_or_refused(store, &mut Refused::default()).await
    }

    async fn recorded_or_refused(&mut self, store: &Store, refused: &mut Refused) -> Result<u64, String> {
        loop {
            let sent = match self.sent.take() {
                Some(sent) => sent,
                None => {
                    tokio::time::sleep(PAUSE).await;
                    self.message.send(&store.context).await
                }
            };
            let answer = match sent {
                Ok(sent) => sent.await.map_err(text),
                Err(why) => Err(why),
            };
            match answer {
                Ok(ack) => return Ok(ack.sequence),
                Err(why) if store.is_refused(refused, &why) => return Err(why),
                Err(_) => {}
            }
        }
    }
}

impl Group {
    /// Waits until the server has all of them. As for one.
    pub(crate) async fn recorded(self, store: &Store, tell: impl Fn(String)) {
        let Group { messages, first, last } = self;
        if are_recorded(messages.len(), first, last).await {
            return;
        }
        let mut again = Vec::new();
        for message in messages {
            again.push(store.send(message).await);
        }
        for recording in again {
            recording.recorded(store, &tell).await;
        }
    }
}

/// Whether the server says that it has so many messages.
async fn are_recorded(
    messages: usize,
    first: Option<PublishAckFuture>,
    last: Option<PublishAckFuture>,
) -> bool {
    let Some(first) = number(first).await else { return false };
    messages == 1 || number(last).await.is_some_and(|last| are_consecutive(first, last, messages))
}

/// The number of a message, if the server confirms it.
async fn number(sent: Option<PublishAckFuture>) -> Option<u64> {
    sent?.await.ok().map(|ack| ack.sequence)
}

/// Whether so many messages have these numbers, from the first to the last.
fn are_consecutive(first: u64, last: u64, messages: usize) -> bool {
    last.checked_sub(first).is_some_and(|more| more + 1 == messages as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_message_is_read_from_where_it_is_acknowledged() {
        let number = |reply: &str| Delivery::new(reply.into()).map(|delivery| delivery.sequence);
        assert_eq!(number("$JS.ACK.FB_a_TASKS.workers.1.37.40.1700000000000000000.12"), Some(37));
        assert_eq!(number("$JS.ACK._.hash.FB_a_TASKS.workers.1.37.40.1700000000000000000.12"), Some(37));
        assert_eq!(
            number("$JS.ACK._.hash.FB_a_TASKS.workers.1.37.40.1700000000000000000.12.token"),
            Some(37)
        );
        for other in ["_INBOX.a.b", "$JS.ACK.FB_a_TASKS.workers.1.37", "$JS.ACK.a.b.1.x.1.1.1"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn only_numbers_without_a_gap_say_that_all_messages_are_there() {
        assert!(are_consecutive(1, 2, 2) && are_consecutive(7, 70, 64));
        // One is missing. One was there before. The stream has begun anew.
        assert!(!are_consecutive(1, 2, 3) && !are_consecutive(1, 9, 3) && !are_consecutive(9, 2, 3));
    }
}
