//! The engine's thread: it carries between the coordinator, the [`Ledger`] and the server.
//!
//! # The tasks of the thread
//!
//! One thread has a small tokio runtime. On it run:
//!
//! * The *loop*, which owns the ledger. It takes the coordinator's wishes before all else: what an event has the coordinator ask for is followed before the next message is looked at.
//!   What it has for a member gathers until no message is there to be looked at, and then travels as one. After that the coordinator is told what has gathered for it, all together.
//!   What may cancel something is told at once, with all that has gathered before it.
//! * The *publisher*, which sends tasks into the queue in their order, those together that are there together. Another task waits for the server's answers, one for the first and one for the last of
//!   these, and sends again what the server may not have. If it has that, the ledger drops what comes twice.
//! * The *reader* of the stream of results. It acknowledges
//!   what it has handed over, many records together; what it has handed over twice is dropped by the ledger.
//! * Two listeners, for requests to join and for what members say.
//!
//! The coordinator's side, [`NatsLink`], puts wishes into a channel without a limit, and never waits.
//!
//! # When this process stands still
//!
//! The lock of the job expires a lease after its last renewal, and another coordinator may take the job. So this one says, publishes and reads nothing from a lease after the last renewal that
//! the server has confirmed, until the next one ([`Held`]). If another one has the lock, the thread ends.
//!
//! # How the thread ends
//!
//! The coordinator closes the engine, or drops the [`NatsLink`]. Workers are told to leave, and have the grace for it. Then the thread removes the streams, with the lock last, and tells those who wait
//! in [`Link::wait_closed`]; see `thread`. What could make a stream again ends before: the look at the streams, and what renews the lock.
//!
//! # When the connection breaks
//!
//! The client connects again by itself. Meanwhile silence counts for nobody's death, and what is to be recorded waits. Then the loop looks whether the streams are there and hold what they should:
//! a server may have come back with an empty store. Objects that could not be deleted meanwhile are deleted after a look that has succeeded. It also looks every two seconds, since a power cut
//! may lose what the server has confirmed. If it cannot look, the server counts as [`Away`], as without a connection: after `unavailable_after` the engine tells the coordinator. A consumer that passes messages over is made anew, and so is one that says nothing for too long while its stream does. A stream that takes nothing for too long elects another leader. If the queue has fewer messages than tasks, what is queued is published again, as the next copy. If a worker has a task no more, and its record is not there, that
//! task is run again.

mod away;
mod parts;
mod thread;

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::Client;
use forebear::TimeoutError;
use forebear_cluster::engine::{
    Answer, Envelope, Event, EventSink, Job, Life, Link, ObjectStore, Resource, ResourceId, TaskId, WorkerId,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::away::Away;
use self::parts::{Begun, Held, Outgoing, publish};
use self::thread::Unwanted;
pub(crate) use self::thread::{FAREWELL, Progress, Wanted, start};
use crate::access::Access;
use crate::launch::{Again, Ended, Launcher};
use crate::ledger::{Act, Ledger};
use crate::objects::Objects;
use crate::store::{Looks, PAUSE, Store};
use crate::wire::{Down, Hello, INLINE, Names, Record, Times, Up, encode};

/// After so many turns of the loop the members are sent what there is for them, also if more has come meanwhile.
const TURNS: usize = 64;

/// What the coordinator wants.
pub(crate) enum Wish {
    Submit(Envelope),
    Cancel(TaskId),
    CancelBefore(u64),
    Make(Resource),
    Free(ResourceId),
    Dump(u64, Vec<WorkerId>),
    /// The program kills a process that this one has started.
    Killed(u64),
    /// A process that this one has started has ended. `again`: if nobody wanted that.
    Died {
        launch: u64,
        again: Option<Again>,
    },
    Close,
}

/// What comes from the server.
enum News {
    Hello(Hello, String),
    /// A request to join of another version.
    Foreign(u8, String),
    Up(Up),
    Record(u64, Option<Record>),
    Connected(bool),
    /// The lock of the job could not be renewed, and why.
    Unrenewed(String),
    /// Another coordinator has taken the job.
    Ousted,
    /// The server has refused tasks for too long, and says why.
    Refused(String),
    /// The server has refused the arguments of this copy of a task for too long, and says why.
    Unstored(TaskId, u32, String),
    /// These copies of tasks are in the queue.
    Published(Vec<(TaskId, u32)>),
    /// The number of the newest record, asked for a member.
    Newest(u64, u64),
    /// The streams were looked at.
    Checked(Looks),
    /// The streams could not be looked at, and why.
    Unseen(String),
    Dropped,
}

/// What the engine is made of.
pub(crate) struct Plan {
    pub(crate) access: Access,
    pub(crate) names: Names,
    pub(crate) times: Times,
    pub(crate) replicas: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    pub(crate) epoch: u64,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) dropped: Arc<AtomicU64>,
}

pub(crate) struct NatsLink {
    pub(crate) wishes: UnboundedSender<Wish>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) progress: Arc<Progress>,
    /// The engine closes with the link.
    pub(crate) _wanted: Wanted,
}

impl NatsLink {
    fn wish(&self, wish: Wish) {
        // The thread has ended: the cluster was closed.
        let _ = self.wishes.send(wish);
    }
}

impl Link for NatsLink {
    fn submit(&self, envelope: Envelope) {
        self.wish(Wish::Submit(envelope));
    }

    fn cancel(&self, task: TaskId) {
        self.wish(Wish::Cancel(task));
    }

    fn cancel_before(&self, generation: u64) {
        self.wish(Wish::CancelBefore(generation));
    }

    fn make(&self, resource: Resource) {
        self.wish(Wish::Make(resource));
    }

    /// They travel in an order.
    fn resource_limit(&self) -> usize {
        INLINE
    }

    fn free(&self, resource: ResourceId) {
        self.wish(Wish::Free(resource));
    }

    fn dump(&self, inquiry: u64, workers: &[WorkerId]) {
        self.wish(Wish::Dump(inquiry, workers.to_vec()));
    }

    fn close(&self) {
        self.wish(Wish::Close);
    }

    /// The thread has told the workers to leave, and has removed the streams.
    fn wait_closed(&self, timeout: Duration) -> Result<(), TimeoutError> {
        self.progress.wait_ended(timeout)
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        self.objects.clone()
    }
}

/// Nothing that comes of it makes a difference to what the engine does next: no task is cancelled for it.
fn can_wait(event: &Event) -> bool {
    match event {
        Event::Started { .. } | Event::Progress { .. } => true,
        Event::Ended { answer, .. } => matches!(answer, Answer::Done(_) | Answer::Stored { .. }),
        _ => false,
    }
}

/// What the loop owns.
struct Engine {
    plan: Plan,
    events: EventSink,
    ledger: Ledger,
    store: Store,
    client: Client,
    sender: UnboundedSender<News>,
    checked: Arc<watch::Sender<u64>>,
    outgoing: UnboundedSender<Outgoing>,
    /// What is to be sent to members, by their numbers.
    downs: BTreeMap<u64, Vec<Down>>,
    /// What the coordinator is to be told, in order.
    told: Vec<Event>,
    /// Some of that cannot wait.
    urgent: bool,
    /// The tasks whose arguments are objects, with their generations.
    large: HashMap<TaskId, u64>,
    connected: bool,
    away: Option<Away>,
    /// Why the coordinator was told that the server is away, while it is so.
    lost: watch::Sender<Option<String>>,
    /// When it broke the last time.
    broke: Option<Instant>,
    /// The streams were made or seen since the last connection.
    made: bool,
    checking: bool,
    /// The newest look at the streams.
    check: Option<JoinHandle<()>>,
    /// What deletes objects that could not be deleted before.
    clears: Option<JoinHandle<()>>,
    checked_at: Instant,
    /// The last tick.
    ticked: Instant,
    looks: Option<Looks>,
    /// The last look has found too few messages.
    short: bool,
    /// The coordinator was told that the server refuses tasks, and none was published since.
    refused: bool,
    held: Held,
    /// Why the newest renewal of the lock that has failed did.
    unrenewed: String,
    /// What renews the lock.
    holder: JoinHandle<()>,
    ousted: bool,
    /// The coordinator has closed the engine.
    closed: bool,
    /// When the workers have to have left. `None`: not before they have.
    end: Option<Instant>,
}

impl Engine {
    fn new(
        plan: Plan,
        job: Job,
        begun: Begun,
        lost: watch::Sender<Option<String>>,
    ) -> (Engine, UnboundedReceiver<News>) {
        let Begun { store, client, news, sender, checked, held, holder } = begun;
        let known = job.tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned()));
        let ledger = Ledger::new(plan.epoch, plan.times, known.collect());
        let (outgoing, queue) = unbounded_channel();
        tokio::spawn(publish(store.clone(), plan.names.clone(), held.clone(), queue, sender.clone()));
        let engine = Engine {
            plan,
            events: job.events,
            ledger,
            store,
            client,
            sender,
            checked: Arc::new(checked),
            outgoing,
            downs: BTreeMap::new(),
            told: Vec::new(),
            urgent: false,
            large: HashMap::new(),
            connected: true,
            away: None,
            lost,
            broke: None,
            made: true,
            checking: false,
            check: None,
            clears: None,
            checked_at: Instant::now(),
            ticked: Instant::now(),
            looks: None,
            short: false,
            refused: false,
            held,
            unrenewed: "no answer".into(),
            holder,
            ousted: false,
            closed: false,
            end: None,
        };
        (engine, news)
    }

    async fn run(
        mut self,
        mut wishes: UnboundedReceiver<Wish>,
        mut news: UnboundedReceiver<News>,
        mut unwanted: Unwanted,
        progress: &Progress,
    ) {
        let mut ticks = tokio::time::interval(self.plan.times.beat);
        let mut turns = 0;
        while !self.is_over(Instant::now()) {
            tokio::select! {
                biased;
                Some(wish) = wishes.recv() => self.wish(wish),
                _ = &mut unwanted, if !self.closed => self.close(),
                Some(one) = news.recv() => self.news(one),
                _ = ticks.tick() => self.tick().await,
            }
            self.act(&mut wishes).await;
            if self.closed && self.away.as_ref().is_some_and(|away| away.told) {
                // Nobody waits for a server that is away. If it comes back in time, the workers still are told.
                progress.ended();
            }
            turns += 1;
            if turns == TURNS || wishes.is_empty() && news.is_empty() {
                turns = 0;
                self.send_downs().await;
                self.tell();
            }
        }
        self.send_downs().await;
        self.tell();
        // What is on its way to workers goes out before the connection is dropped.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.client.flush()).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), self.remove()).await;
        self.plan.launcher.release_all();
    }

    /// Another coordinator has the job, or this one is closed, and the workers have left, or had the time for it.
    fn is_over(&self, now: Instant) -> bool {
        self.ousted || self.ledger.is_over() || self.end.is_some_and(|end| now >= end)
    }

    /// Removes what the job has on the server. What would make something of that again ends before: the look at the streams, and last what renews the lock.
    async fn remove(&mut self) {
        for task in [self.check.take(), self.clears.take()].into_iter().flatten() {
            task.abort();
            let _ = task.await;
        }
        let held = self.held.clone();
        if !self.store.remove_streams(async || held.clone().sure().await).await {
            return;
        }
        self.holder.abort();
        let _ = (&mut self.holder).await;
        if self.held.is_sure() {
            self.store.remove_lock().await;
        }
    }

    /// All tasks are cancelled, and the workers leave.
    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.end = Instant::now().checked_add(self.plan.times.grace);
            self.ledger.close();
            self.plan.launcher.release_all();
        }
    }

    fn wish(&mut self, wish: Wish) {
        let now = Instant::now();
        match wish {
            Wish::Submit(envelope) => {
                if envelope.args.len() > INLINE {
                    self.large.insert(envelope.task, envelope.generation);
                }
                self.ledger.submit(envelope, now);
            }
            Wish::Cancel(task) => self.ledger.cancel(task),
            Wish::CancelBefore(generation) => self.ledger.cancel_before(generation),
            Wish::Make(resource) => self.ledger.make(resource),
            Wish::Free(resource) => self.ledger.free(resource),
            Wish::Dump(inquiry, workers) => self.ledger.dump(inquiry, &workers),
            Wish::Killed(launch) => self.ledger.killed(launch),
            Wish::Died { launch, again } => {
                let past = self.ledger.died(launch, now);
                if let Some(Again { name, begun, how }) = again {
                    let alone = self.away.is_some() || self.broke.is_some_and(|at| at > begun);
                    let ready = past.ready.then(|| now.saturating_duration_since(begun));
                    let life = Life { ready, finished: past.finished, busy: past.busy, alone, how };
                    self.plan.launcher.start_again(name, Ended::Lived(life));
                }
            }
            Wish::Close => self.close(),
        }
    }

    fn news(&mut self, news: News) {
        let now = Instant::now();
        match news {
            News::Hello(hello, reply) => {
                let kept = self.plan.launcher.keeps(&hello.name);
                self.ledger.hello(hello, reply, kept, now);
            }
            News::Foreign(version, reply) => self.ledger.foreign(version, reply),
            News::Up(up) => self.ledger.up(up, now),
            News::Record(sequence, record) => self.ledger.record(sequence, record),
            News::Connected(connected) => {
                self.connected = connected;
                if !connected {
                    self.broke = Some(now);
                    self.is_away(now, "there is no connection".into());
                }
                // Each member has its lease anew.
                self.ledger.tick(now, false);
                self.made = false;
            }
            News::Unrenewed(why) => self.unrenewed = why,
            // What is on the server is another run's now. The thread ends, and with it all that says, reads or publishes something. The coordinator is told nothing after this.
            News::Ousted => {
                self.ousted = true;
                let reason = "a newer coordinator has taken the job over: shut this one down".into();
                self.gather(Event::Unavailable { reason });
            }
            News::Refused(why) => {
                self.refused = true;
                self.gather(Event::Unavailable { reason: format!("the server refuses tasks: {why}") });
            }
            News::Unstored(task, copy, why) => self.ledger.unstored(task, copy, &why),
            News::Published(copies) => {
                if mem::take(&mut self.refused) && self.away.is_none() {
                    self.gather(Event::Available);
                }
                copies.into_iter().for_each(|(task, copy)| self.ledger.published(task, copy));
            }
            News::Newest(member, number) => self.ledger.newest(member, number),
            News::Checked(looks) => {
                self.checking = false;
                self.looks = Some(looks);
                // The server is there, and the streams, too.
                if self.connected && self.away.take().is_some_and(|away| away.told) {
                    let _ = self.lost.send(None);
                    if !self.refused {
                        self.gather(Event::Available);
                    }
                }
                self.clear();
                self.ledger.check_results(looks.results.newest, looks.results.messages);
                // Twice in a row: the first time, a message may have been taken between the two counts.
                let short = looks.queue.messages < self.ledger.queued();
                if short && mem::replace(&mut self.short, true) {
                    self.short = false;
                    self.ledger.lost();
                } else {
                    self.short = short;
                }
            }
            News::Unseen(why) => {
                if self.connected {
                    self.is_away(now, format!("the streams of the job cannot be read: {why}"));
                }
            }
            News::Dropped => _ = self.plan.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        self.ledger.tick(now, self.connected);
        self.tell_of_away(now);
        self.check();
        self.plan.dropped.fetch_add(self.ledger.take_dropped(), Ordering::Relaxed);
        let pulse = self.plan.epoch.to_le_bytes().to_vec();
        self.say(self.plan.names.pulse(), pulse).await;
    }

    /// Does what the ledger wants, and what the coordinator wants of that.
    async fn act(&mut self, wishes: &mut UnboundedReceiver<Wish>) {
        loop {
            for act in self.ledger.take() {
                self.follow(act).await;
            }
            // What is wished for that is followed before all else.
            if self.urgent {
                self.tell();
            }
            match wishes.try_recv() {
                Ok(wish) => self.wish(wish),
                Err(_) => {
                    self.ledger.settle(Instant::now());
                    let acts = self.ledger.take();
                    if acts.is_empty() {
                        return;
                    }
                    for act in acts {
                        self.follow(act).await;
                    }
                }
            }
        }
    }

    /// Says something that may be lost. Nothing is said while there is no connection: the client would keep it, and wait when it has too much. Nor while
    /// another coordinator may have the lock.
    async fn say(&self, subject: String, bytes: Vec<u8>) {
        if self.connected && self.held.is_sure() {
            let _ = self.client.publish(subject, bytes.into()).await;
        }
    }

    /// Sends what has gathered for members: one message for each, or several if it is long.
    async fn send_downs(&mut self) {
        for (member, downs) in mem::take(&mut self.downs) {
            let mut rest = vec![downs];
            while let Some(mut downs) = rest.pop() {
                match encode(&downs) {
                    Ok(bytes) if bytes.len() <= INLINE || downs.len() == 1 => {
                        self.say(self.plan.names.down(self.plan.epoch, member), bytes).await;
                    }
                    Ok(_) => {
                        let later = downs.split_off(downs.len() / 2);
                        rest.extend([later, downs]);
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// The coordinator is to be told this.
    fn gather(&mut self, event: Event) {
        self.urgent |= !can_wait(&event);
        self.told.push(event);
    }

    /// Tells the coordinator what has gathered.
    fn tell(&mut self) {
        self.urgent = false;
        if !self.told.is_empty() {
            self.events.tell_all(self.told.drain(..));
        }
    }

    /// The arguments of tasks that are over are not needed any more.
    fn forget(&mut self, event: &Event) {
        let outgoing = &self.outgoing;
        let drop = |task: TaskId| _ = outgoing.send(Outgoing::Forget(task));
        match event {
            Event::Ended { task, .. } => _ = self.large.remove(task).map(|_| drop(*task)),
            Event::Drained { before } => self.large.retain(|task, generation| {
                let over = *generation < *before;
                if over {
                    drop(*task);
                }
                !over
            }),
            _ => {}
        }
    }

    async fn follow(&mut self, act: Act) {
        match act {
            Act::Tell(event) => {
                self.forget(&event);
                self.gather(event);
            }
            Act::Publish { parcel, older } => _ = self.outgoing.send(Outgoing::Task(parcel, older)),
            Act::Purge(generation) => _ = self.outgoing.send(Outgoing::Purge(generation)),
            Act::Discard(object) => {
                let store = self.store.clone();
                tokio::spawn(async move { store.discard(&object.to_string()).await });
            }
            Act::Send { member, down } => self.downs.entry(member).or_default().push(down),
            Act::AskNewest { member } => {
                let (store, news) = (self.store.clone(), self.sender.clone());
                tokio::spawn(async move {
                    let number = loop {
                        match store.newest().await {
                            Ok(number) => break number,
                            Err(_) => tokio::time::sleep(PAUSE).await,
                        }
                    };
                    let _ = news.send(News::Newest(member, number));
                });
            }
            Act::Reply { to, welcome } => {
                if let Ok(bytes) = encode(&welcome) {
                    self.say(to, bytes).await;
                }
            }
            Act::Release { launch } => self.plan.launcher.release(launch),
            Act::Replace { launch } => self.plan.launcher.replace(launch),
            Act::Warn(text) => self.plan.launcher.warn(text),
        }
    }
}
