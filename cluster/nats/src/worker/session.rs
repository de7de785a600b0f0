//! [`Session`]: a worker while it is a member of a job. The head of [`worker`](super) has the rules.
//!
//! A session receives everything by one channel: orders, messages that a slot has taken, reports of tasks,
//! confirmations. It handles all that is there before it sends. So the claims of messages that arrived together are one
//! message to the coordinator, and tasks that end together are one record.

use std::collections::HashMap;
use std::mem;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::AckKind;
use async_nats::{Client, Subject};
use forebear::Runtime;
use forebear_cluster::engine::{Answer, Order, Report, TaskId};
use forebear_cluster::worker::Node;
use forebear_cluster::{FailureKind, Tasks};
use futures_util::StreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::slots::take;
use super::{Line, Outside, WorkerOptions};
use crate::objects::Objects;
use crate::store::{Delivery, Store, Unsent, until};
use crate::wire::{
    Claim, Down, INLINE, Names, Parcel, Record, Stage, TaskEnd, Terms, Times, Unrecorded, Up, What, decode,
    encode,
};

/// So much is followed before the session speaks, also if more has come meanwhile.
const TURNS: usize = 256;

/// A message whose task is recorded is acknowledged after so long, also if nothing is said before. It is far less than the server waits for that.
const HELD: Duration = Duration::from_millis(5);

/// Ends that the server does not record take so many bytes in what is said, or it is one alone.
const UNRECORDED: usize = 64 << 10;

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has left.
    Left,
    /// It may join anew.
    Lost,
    /// The server refuses what each worker needs, in these words.
    Barred(String),
}

/// What a session hears.
pub(super) enum News {
    Down(Vec<Down>),
    Pulse(u64),
    Taken(Delivery, Parcel, OwnedSemaphorePermit),
    Report(Report),
    /// The ends of these are recorded, under that number. Their messages can be acknowledged.
    Recorded(Vec<Key>, Vec<Subject>, u64),
    /// The server has refused to record these for too long, and says why.
    Unrecorded(Vec<(Key, TaskEnd)>, String),
    Connected,
    /// The server refuses what each worker needs, in these words.
    Barred(String),
}

/// A task's copy.
type Key = (TaskId, u32);

pub(super) struct Session {
    client: Client,
    names: Names,
    store: Store,
    terms: Terms,
    node: Arc<Node>,
    news: UnboundedSender<News>,
    hears: UnboundedReceiver<News>,
    beat: u64,
    applied: u64,
    stage: Stage,
    after: u64,
    held: HashMap<Key, Held>,
    progress: HashMap<TaskId, u32>,
    dumps: Vec<(u64, String)>,
    /// What is to be said: messages that are claimed, ends that are to be recorded, that something has changed, that orders are missing.
    claims: Vec<Claim>,
    ends: Vec<(Key, Subject, TaskEnd)>,
    /// Ends that the server does not record. The coordinator is told by what is said.
    unrecorded: HashMap<Key, TaskEnd>,
    changed: bool,
    again: bool,
    /// Messages that are to be acknowledged: with what is said or recorded next, or at that time.
    done: Vec<Subject>,
    done_due: Option<Instant>,
    /// So many records were written.
    records: u64,
    /// So many tasks have given their slots back, and are not recorded: at most as many as there are slots.
    recording: usize,
    /// What the slots wait for, and how many there are. They take messages from when the member is ready.
    slots: (Arc<Semaphore>, usize),
    /// The tasks that listen and take. They end with the session.
    parts: tokio::task::JoinSet<()>,
    pulse: Instant,
    ticked: Instant,
}

/// A message that has been taken from the queue.
struct Held {
    delivery: Delivery,
    parcel: Parcel,
    /// Given back when the slot is free. `None`: its task has a result, which is being recorded.
    permit: Option<OwnedSemaphorePermit>,
    attempt: Option<u32>,
    cancelled: Option<Instant>,
    /// When its own time is over. `None`: it has as much as it wants.
    due: Option<Instant>,
}

impl Session {
    pub(super) async fn begin(
        line: &Line,
        names: &Names,
        tasks: &Tasks,
        runtime: &Runtime,
        options: &WorkerOptions,
        terms: Terms,
    ) -> Result<Session, String> {
        let Line { client, connections, complaints } = line;
        complaints.forget_refusals();
        let mut connections = connections.clone();
        let (news, hears) = unbounded_channel();
        let text = |error: async_nats::SubscribeError| error.to_string();
        let mut down = client.subscribe(names.down(terms.epoch, terms.member)).await.map_err(text)?;
        let mut pulses = client.subscribe(names.pulse()).await.map_err(text)?;
        let store = Store::of_worker(client, names, terms.times.patience);
        let mut parts = tokio::task::JoinSet::new();
        let to = news.clone();
        parts.spawn(async move {
            while let Some(message) = down.next().await {
                if let Ok(downs) = decode(&message.payload) {
                    let _ = to.send(News::Down(downs));
                }
            }
        });
        let to = news.clone();
        parts.spawn(async move {
            while let Some(message) = pulses.next().await {
                if let Ok(epoch) = <[u8; 8]>::try_from(&*message.payload) {
                    let _ = to.send(News::Pulse(u64::from_le_bytes(epoch)));
                }
            }
        });
        let to = news.clone();
        connections.mark_unchanged();
        let mut changes = connections.clone();
        parts.spawn(async move {
            while changes.changed().await.is_ok() {
                let _ = to.send(News::Connected);
            }
        });
        let free = Arc::new(Semaphore::new(0));
        parts.spawn(take(store.clone(), terms.epoch, free.clone(), connections, news.clone()));
        let (to, its, complaints) = (news.clone(), names.clone(), complaints.clone());
        parts.spawn(async move { _ = to.send(News::Barred(complaints.bars_worker(&its).await)) });
        let to = news.clone();
        let report = move |report| _ = to.send(News::Report(report));
        let node = Node::new(terms.id.clone(), terms.index as usize, tasks.clone(), runtime.clone(), report)
            .with_store(Objects::here(&store), options.cache);
        let now = Instant::now();
        Ok(Session {
            client: client.clone(),
            names: names.clone(),
            store,
            terms,
            node: Arc::new(node),
            news,
            hears,
            beat: 0,
            applied: 0,
            stage: Stage::Starting,
            after: 0,
            held: HashMap::new(),
            progress: HashMap::new(),
            dumps: Vec::new(),
            claims: Vec::new(),
            ends: Vec::new(),
            unrecorded: HashMap::new(),
            changed: false,
            again: false,
            done: Vec::new(),
            done_due: None,
            records: 0,
            recording: 0,
            slots: (free, options.slots as usize),
            parts,
            pulse: now,
            ticked: now,
        })
    }

    pub(super) async fn run(mut self, outside: &mut watch::Receiver<Outside>) -> End {
        let mut ticks = tokio::time::interval(self.terms.times.beat);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let _ = self.client.flush().await;
        let mut end = None;
        while end.is_none() {
            let wanted = *outside.borrow_and_update();
            end = match wanted {
                Outside::Work => None,
                Outside::Drain => self.drain().await,
                Outside::Leave => Some(End::Left),
            };
            if end.is_some() {
                break;
            }
            end = tokio::select! {
                biased;
                _ = ticks.tick() => self.tick().await,
                () = until(self.done_due) => {
                    self.acknowledge().await;
                    None
                }
                Some(news) = self.hears.recv() => self.hear(news).await,
                _ = outside.changed() => None,
            };
        }
        self.finish(end.unwrap_or(End::Left)).await
    }

    /// Follows what is there, and then speaks.
    async fn hear(&mut self, first: News) -> Option<End> {
        let (mut next, mut turns) = (Some(first), 0);
        while let Some(news) = next.take() {
            if let Some(end) = self.news(news).await {
                return Some(end);
            }
            turns += 1;
            if turns < TURNS {
                next = self.hears.try_recv().ok();
            }
        }
        self.settle().await;
        None
    }

    /// Says what there is to say, and has recorded what has ended.
    async fn settle(&mut self) {
        let (claims, again) = (mem::take(&mut self.claims), mem::take(&mut self.again));
        let speaks = mem::take(&mut self.changed) || again || !claims.is_empty();
        if speaks {
            self.say(again, claims).await;
        }
        if speaks || !self.ends.is_empty() {
            self.acknowledge().await;
        } else if !self.done.is_empty() && self.done_due.is_none() {
            self.done_due = Some(Instant::now() + HELD);
        }
        let (mut ends, mut bytes) = (Vec::new(), 0);
        for one in mem::take(&mut self.ends) {
            let size = match &one.2.answer {
                Answer::Done(value) => value.len(),
                // Its texts may be long.
                Answer::Failed(_) => INLINE,
                _ => 0,
            };
            if bytes + size > INLINE && !ends.is_empty() {
                self.record(mem::take(&mut ends));
                bytes = 0;
            }
            bytes += size;
            ends.push(one);
        }
        if !ends.is_empty() {
            self.record(ends);
        }
    }

    /// Acknowledges the messages of what is recorded. If that is lost, the coordinator drops a message when it turns up again.
    async fn acknowledge(&mut self) {
        self.done_due = None;
        for reply in self.done.drain(..) {
            self.store.acknowledge(reply, AckKind::Ack).await;
        }
    }

    /// Has these ends recorded. Then their messages can be acknowledged.
    fn record(&mut self, ends: Vec<(Key, Subject, TaskEnd)>) {
        self.records += 1;
        let (epoch, member) = (self.terms.epoch, self.terms.member);
        let id = format!("{epoch}.{member}.{}", self.records);
        let (mut keys, mut replies, mut its) = (Vec::new(), Vec::new(), Vec::new());
        for (key, reply, end) in ends {
            keys.push(key);
            replies.push(reply);
            its.push(end);
        }
        let record = Record { epoch, member, ends: its };
        let payload = encode(&record).unwrap_or_default();
        let (store, subject, news) = (self.store.clone(), self.names.result(), self.news.clone());
        tokio::spawn(async move {
            let message = Unsent::new(subject, id, payload);
            let _ = news.send(match store.send(message).await.number(&store).await {
                Ok(sequence) => News::Recorded(keys, replies, sequence),
                Err(why) => News::Unrecorded(keys.into_iter().zip(record.ends).collect(), why),
            });
        });
    }

    /// Cancels what runs, and waits until it has ended.
    async fn finish(mut self, end: End) -> End {
        self.node.stop();
        let begun = Instant::now();
        while !self.node.is_idle() {
            if begun.elapsed() > self.terms.times.grace {
                process::exit(1);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.parts.abort_all();
        self.acknowledge().await;
        if end != End::Lost {
            for held in self.held.values() {
                self.store.acknowledge(held.delivery.reply.clone(), AckKind::Nak(None)).await;
            }
            self.stage = Stage::Left;
            self.say(false, Vec::new()).await;
            let _ = tokio::time::timeout(Duration::from_secs(1), self.client.flush()).await;
        }
        end
    }

    async fn drain(&mut self) -> Option<End> {
        if self.stage != Stage::Draining {
            self.stage = Stage::Draining;
            self.slots.0.close();
            self.say(false, Vec::new()).await;
        }
        self.held.is_empty().then_some(End::Left)
    }

    async fn tick(&mut self) -> Option<End> {
        let (now, lease) = (Instant::now(), self.terms.times.lease);
        let stood = now.duration_since(self.ticked);
        self.ticked = now;
        if stood > lease || now.duration_since(self.pulse) > lease {
            return Some(End::Lost);
        }
        if self.held.values().any(|held| held.is_late(now, self.terms.times.grace)) {
            process::exit(1);
        }
        for held in self.held.values() {
            self.store.acknowledge(held.delivery.reply.clone(), AckKind::Progress).await;
        }
        let claims =
            self.held.iter().filter(|(_, held)| held.attempt.is_none()).map(|(key, held)| held.claim(*key));
        let claims = claims.collect();
        self.say(true, claims).await;
        None
    }

    async fn say(&mut self, again: bool, claims: Vec<Claim>) {
        self.beat += 1;
        let up = Up {
            epoch: self.terms.epoch,
            member: self.terms.member,
            beat: self.beat,
            applied: self.applied,
            again,
            stage: self.stage,
            after: self.after,
            claims,
            progress: self.progress.drain().collect(),
            // One is as long as a message may be that has claims, too.
            dumps: self.dumps.pop().into_iter().collect(),
            unrecorded: if again { self.unrecorded() } else { Vec::new() },
            holds: again.then(|| {
                self.held
                    .iter()
                    .filter(|(_, held)| held.attempt.is_some())
                    .map(|((task, _), _)| *task)
                    .collect()
            }),
        };
        if let Ok(bytes) = encode(&up) {
            let _ = self.client.publish(self.names.up(), bytes.into()).await;
        }
    }

    async fn news(&mut self, news: News) -> Option<End> {
        match news {
            News::Down(downs) => {
                for down in downs {
                    if let Some(end) = self.down(down).await {
                        return Some(end);
                    }
                }
            }
            News::Pulse(epoch) if epoch == self.terms.epoch => self.pulse = Instant::now(),
            News::Pulse(_) if is_successor(self.pulse.elapsed(), &self.terms.times) => {
                return Some(End::Lost);
            }
            News::Pulse(_) => {}
            News::Taken(delivery, parcel, permit) => self.taken(delivery, parcel, permit).await,
            News::Report(report) => self.report(report),
            News::Recorded(keys, replies, sequence) => {
                self.done.extend(replies);
                self.after = self.after.max(sequence);
                keys.into_iter().for_each(|key| _ = self.let_go(key));
            }
            News::Unrecorded(ends, why) => {
                for (key, end) in ends {
                    self.unrecorded.insert(key, self.refused(end, &why));
                }
                self.again = true;
            }
            News::Connected => self.again = true,
            News::Barred(why) => return Some(End::Barred(why)),
        }
        None
    }

    /// What becomes of the end of a task that the server does not record: a result is lost, and a failure is told if it is short.
    fn refused(&self, end: TaskEnd, why: &str) -> TaskEnd {
        let lost = |message| Answer::Failed(FailureKind::Store { message });
        let answer = match end.answer {
            Answer::Stored { object, .. } => {
                let store = self.store.clone();
                tokio::spawn(async move { store.delete_when_there(&object.to_string()).await });
                lost(format!("the server does not take the result: {why}"))
            }
            Answer::Done(_) => lost(format!("the server does not take the result: {why}")),
            Answer::Failed(kind) if encode(&kind).is_ok_and(|bytes| bytes.len() > UNRECORDED) => {
                lost(format!("it failed, and the server does not take why: {why}"))
            }
            other => other,
        };
        TaskEnd { answer, ..end }
    }

    /// As many of those ends as are said together.
    fn unrecorded(&self) -> Vec<Unrecorded> {
        let (mut bytes, mut said) = (0, Vec::new());
        for ((_, copy), end) in &self.unrecorded {
            bytes += encode(end).map_or(0, |bytes| bytes.len());
            if bytes > UNRECORDED && !said.is_empty() {
                break;
            }
            said.push(Unrecorded { copy: *copy, end: end.clone() });
        }
        said
    }

    async fn down(&mut self, down: Down) -> Option<End> {
        match down.number {
            0 => return (down.what == What::Gone).then_some(End::Lost),
            number if number <= self.applied => return None,
            number if number > self.applied + 1 => {
                self.again = true;
                return None;
            }
            number => self.applied = number,
        }
        match down.what {
            What::Order(order) => {
                if let Order::Cancel(task) = &order {
                    let its = self.held.iter_mut().filter(|((held, _), _)| held == task);
                    its.for_each(|(_, held)| held.cancelled = Some(Instant::now()));
                }
                self.node.order(order);
            }
            What::Start { task, copy, attempt, time_left } => {
                if let Some(held) = self.held.get_mut(&(task, copy)) {
                    held.attempt = Some(attempt);
                    held.due = time_left.and_then(|left| Instant::now().checked_add(left));
                    let mut envelope = held.parcel.envelope.clone();
                    envelope.time_left = time_left;
                    self.node.order(Order::Run { envelope, attempt });
                }
            }
            What::Later { task, copy } => {
                let delay = (self.stage == Stage::Ready).then_some(self.terms.times.lease);
                if let Some(held) = self.let_go((task, copy)) {
                    self.store.acknowledge(held.delivery.reply, AckKind::Nak(delay)).await;
                }
            }
            What::Drop { task, copy } => {
                if let Some(held) = self.let_go((task, copy)) {
                    self.store.acknowledge(held.delivery.reply, AckKind::Term).await;
                }
            }
            What::Forget => self.after = 0,
            What::Stop => return Some(End::Left),
            What::Gone => return Some(End::Lost),
        }
        None
    }

    /// A message is held no more.
    fn let_go(&mut self, key: Key) -> Option<Held> {
        self.unrecorded.remove(&key);
        let held = self.held.remove(&key)?;
        self.recording -= usize::from(held.permit.is_none());
        Some(held)
    }

    async fn taken(&mut self, delivery: Delivery, parcel: Parcel, permit: OwnedSemaphorePermit) {
        if self.stage != Stage::Ready {
            return self.store.acknowledge(delivery.reply, AckKind::Nak(None)).await;
        }
        let key = (parcel.envelope.task, parcel.copy);
        match self.held.get_mut(&key) {
            // The server has handed it out again; an acknowledgement of either counts.
            Some(held) => held.delivery = delivery,
            None => {
                let held = Held {
                    delivery,
                    parcel,
                    permit: Some(permit),
                    attempt: None,
                    cancelled: None,
                    due: None,
                };
                let claim = held.claim(key);
                self.held.insert(key, held);
                self.claims.push(claim);
            }
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Ready if self.stage == Stage::Starting => {
                self.stage = Stage::Ready;
                self.slots.0.add_permits(self.slots.1);
                self.changed = true;
            }
            Report::Progress { task, thousandths } => {
                self.progress.insert(task, thousandths);
                self.changed = true;
            }
            Report::Dump { inquiry, text } => {
                self.dumps.push((inquiry, text));
                self.changed = true;
            }
            Report::Answer { task, attempt, answer, ran } => {
                let its = |(key, held): (&Key, &Held)| {
                    (key.0 == task && held.attempt == Some(attempt))
                        .then(|| (*key, held.delivery.reply.clone()))
                };
                let Some((key, reply)) = self.held.iter().find_map(its) else { return };
                // A failure keeps its slot until the coordinator can read of it, and cancel what is queued.
                let free = matches!(answer, Answer::Done(_) | Answer::Stored { .. })
                    && self.recording < self.slots.1;
                if let Some(held) = self.held.get_mut(&key) {
                    // It has ended, so it is not late.
                    (held.cancelled, held.due) = (None, None);
                    if free {
                        self.recording += usize::from(held.permit.take().is_some());
                    }
                }
                self.ends.push((key, reply, TaskEnd { task, attempt, answer, ran }));
            }
            _ => {}
        }
    }
}

/// Whether the pulse of another coordinator is that of one that has taken the job over: so long the own one has been silent.
///
/// A coordinator takes the job when the lock has not been renewed for a lease, so the own one has then missed several beats. One that has lost the job and does not know it yet
/// may say something while the own one is there.
fn is_successor(silent: Duration, times: &Times) -> bool {
    silent > times.beat.saturating_mul(3)
}

impl Held {
    fn claim(&self, (task, copy): Key) -> Claim {
        Claim { task, copy, sequence: self.delivery.sequence }
    }

    /// Its task runs, although the grace has passed since its cancel, or since the end of its own time.
    fn is_late(&self, now: Instant, grace: Duration) -> bool {
        let over = |since: Option<Instant>| since.is_some_and(|at| now.saturating_duration_since(at) > grace);
        over(self.cancelled) || over(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_pulse_ends_no_session_whose_coordinator_speaks() {
        let times = Times::new(Duration::from_secs(6), Duration::from_secs(1));
        assert!(!is_successor(Duration::ZERO, &times) && !is_successor(times.beat * 2, &times));
        assert!(is_successor(times.beat * 4, &times) && is_successor(times.lease, &times));
    }
}
