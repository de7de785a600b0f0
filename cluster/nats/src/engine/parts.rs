//! The tasks beside the loop: what connects, listens, reads, publishes, and holds the lock. The head of [`engine`](super) names them.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State as Connection;
use async_nats::jetstream::AckKind;
use async_nats::{Client, Subject};
use forebear_cluster::engine::{Refused, TaskId};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

use super::{News, Plan, Unwanted};
use crate::access::ONE_TRY;
use crate::complaints::Complaints;
use crate::store::{Deaf, Delivery, Group, Lock, PAUSE, Renewal, Store, Unsent, until, while_electing};
use crate::wire::{Hello, INLINE, Names, Parcel, Record, Times, Up, decode, encode};

/// So many tasks may be on their way into the queue.
const WINDOW: usize = 256;
/// So many are sent together at most: a quarter, so that others are on their way while these are confirmed.
const GROUP: usize = WINDOW / 4;

/// So many records are acknowledged together.
const TOGETHER: usize = 64;
/// A record is acknowledged after so long, also if no other has come. The server would send it again after five times that.
const HELD: Duration = Duration::from_millis(200);

/// Why a start ends that nobody waits for.
const GIVEN_UP: &str = "the start was cancelled";

/// So long a start that has failed removes what it has made.
const REMOVE: Duration = Duration::from_secs(5);

/// What the publisher sends.
pub(super) enum Outgoing {
    Task(Parcel, Option<u64>),
    Purge(u64),
    /// The task is over: its arguments are deleted.
    Forget(TaskId),
}

pub(super) struct Begun {
    pub(super) store: Store,
    pub(super) client: Client,
    pub(super) news: UnboundedReceiver<News>,
    pub(super) sender: UnboundedSender<News>,
    pub(super) checked: watch::Sender<u64>,
    pub(super) held: Held,
    /// What renews the lock.
    pub(super) holder: JoinHandle<()>,
}

/// Whether this coordinator has the lock of the job. Without it, it says and publishes nothing: what is on the server may be a successor's.
#[derive(Clone)]
pub(super) struct Held {
    /// When the newest renewal began that the server has confirmed. `None`: another coordinator has the lock.
    renewed: watch::Receiver<Option<Instant>>,
    lease: Duration,
}

impl Held {
    /// It was renewed within the last lease, so nobody else can have it.
    pub(super) fn is_sure(&self) -> bool {
        self.renewed.borrow().is_some_and(|at| at.elapsed() < self.lease)
    }

    /// Waits until that is so. `false`: another coordinator has it.
    pub(super) async fn sure(&mut self) -> bool {
        while !self.is_sure() {
            let lost = self.renewed.borrow_and_update().is_none();
            if lost || self.renewed.changed().await.is_err() {
                return false;
            }
        }
        true
    }
}

/// Connects, and makes what the job keeps on the server. If that fails, or nobody wants it any more, what this has made is removed again.
pub(super) async fn begin(plan: &Plan, unwanted: &mut Unwanted) -> Result<Begun, String> {
    let (sender, news) = unbounded_channel();
    let events = sender.clone();
    let complaints = Complaints::default();
    let hears = complaints.clone();
    let on_event = move |event| {
        hears.hear(&event);
        match event {
            async_nats::Event::Connected => _ = events.send(News::Connected(true)),
            async_nats::Event::Disconnected => _ = events.send(News::Connected(false)),
            _ => {}
        }
    };
    let client = tokio::select! {
        client = plan.access.connect(plan.connect_timeout, plan.connect_timeout.min(ONE_TRY), on_event) => client?,
        _ = &mut *unwanted => return Err(GIVEN_UP.into()),
    };
    let store = Store::new(&client, &plan.names, plan.replicas, plan.unavailable_after);
    let made = tokio::select! {
        lock = make(plan, &store) => lock.map_err(|why| complaints.beside(why)),
        _ = unwanted => Err(GIVEN_UP.into()),
    };
    let begun = match made {
        Ok(lock) => listen_and_hold(plan, client.clone(), store.clone(), lock, (sender, news)).await,
        Err(why) => Err(why),
    };
    if begun.is_err() && client.connection_state() == Connection::Connected {
        let _ = tokio::time::timeout(REMOVE, take_back(plan, &store)).await;
    }
    begun
}

/// Takes the lock, and makes the streams.
async fn make(plan: &Plan, store: &Store) -> Result<Lock, String> {
    let mut lock =
        while_electing(plan.unavailable_after, async || store.lock(plan.epoch, &plan.times).await).await?;
    let mut tries = 0;
    let make = async || {
        tries += 1;
        // The last try may have taken longer than a lease.
        if tries > 1 {
            match lock.renew(store, &plan.times).await {
                Renewal::Held => {}
                // By the words "timed out" `while_electing` tries again, whatever the server has said.
                Renewal::Unknown(why) => {
                    return Err(format!(
                        "the renewals of the lock have timed out, the newest one with: {why}"
                    ));
                }
                Renewal::Lost => return Err("another coordinator has taken the job".into()),
            }
        }
        store.ensure(&plan.times, true).await
    };
    let made = while_electing(plan.unavailable_after, make).await;
    made.map_err(|why| format!("the streams of the job: {why}"))?;
    Ok(lock)
}

/// Removes what a start has made that has failed, or was given up at any point: if this coordinator has the lock, or nobody has it. What is there is another one's otherwise.
async fn take_back(plan: &Plan, store: &Store) {
    let Some(mut lock) = store.lock_at_once(plan.epoch).await else { return };
    let held = async || {
        lock.renewed.elapsed() < plan.times.lease / 2 || lock.renew(store, &plan.times).await == Renewal::Held
    };
    if store.remove_streams(held).await {
        store.remove_lock().await;
    }
}

/// Listens to members, reads the results, and renews the lock from now on.
async fn listen_and_hold(
    plan: &Plan,
    client: Client,
    store: Store,
    lock: Lock,
    (sender, news): (UnboundedSender<News>, UnboundedReceiver<News>),
) -> Result<Begun, String> {
    let hellos = client.subscribe(plan.names.hello()).await.map_err(|error| error.to_string())?;
    let ups = client.subscribe(plan.names.up()).await.map_err(|error| error.to_string())?;
    client.flush().await.map_err(|error| error.to_string())?;
    tokio::spawn(listen(hellos, sender.clone(), |message| {
        let reply = message.reply?.to_string();
        match decode::<Hello>(&message.payload) {
            Ok(hello) => Some(News::Hello(hello, reply)),
            Err(Refused::Version { theirs, .. }) => Some(News::Foreign(theirs, reply)),
            Err(_) => None,
        }
    }));
    tokio::spawn(listen(ups, sender.clone(), |message| decode::<Up>(&message.payload).ok().map(News::Up)));
    let (checked, checks) = watch::channel(0);
    let (renewals, renewed) = watch::channel(Some(lock.renewed));
    let held = Held { renewed, lease: plan.times.lease };
    tokio::spawn(read(store.clone(), held.clone(), checks, sender.clone()));
    let holder = tokio::spawn(hold(lock, store.clone(), plan.times, renewals, sender.clone()));
    Ok(Begun { store, client, news, sender, checked, held, holder })
}

/// Renews the lock of the job, until another coordinator has it.
async fn hold(
    mut lock: Lock,
    store: Store,
    times: Times,
    renewals: watch::Sender<Option<Instant>>,
    news: UnboundedSender<News>,
) {
    let (mut ticks, mut deaf) = (tokio::time::interval(times.beat), Deaf::default());
    loop {
        ticks.tick().await;
        match lock.renew(&store, &times).await {
            Renewal::Held => {
                deaf = Deaf::default();
                let _ = renewals.send(Some(lock.renewed));
            }
            Renewal::Unknown(why) => {
                let _ = news.send(News::Unrenewed(why));
                store.probe_lock(&mut deaf).await;
            }
            Renewal::Lost => {
                let _ = renewals.send(None);
                let _ = news.send(News::Ousted);
                return;
            }
        }
    }
}

async fn listen(
    mut messages: async_nats::Subscriber,
    news: UnboundedSender<News>,
    take: impl Fn(async_nats::Message) -> Option<News>,
) {
    while let Some(message) = messages.next().await {
        if news.send(take(message).unwrap_or(News::Dropped)).is_err() {
            return;
        }
    }
}

/// Reads the stream of results, for as long as somebody takes what it says.
///
/// `checks` counts how often the streams were looked at after a connection, and how often a consumer was made anew. What was asked for before may have been forgotten.
async fn read(store: Store, mut held: Held, mut checks: watch::Receiver<u64>, news: UnboundedSender<News>) {
    while !news.is_closed() && held.sure().await {
        checks.mark_unchanged();
        // Without those from before: the stream may be another one of that name now, with the same numbers.
        let mut done = Done::default();
        let open = async { store.results().await?.messages().await.map_err(|error| error.to_string()) };
        if let Ok(mut records) = open.await {
            loop {
                let record = tokio::select! {
                    biased;
                    record = records.next() => record,
                    // A successor's records have the same numbers.
                    () = until(done.due) => {
                        if !held.is_sure() {
                            break;
                        }
                        acknowledge(&store, done.take(0)).await;
                        continue;
                    }
                    _ = checks.changed() => None,
                };
                let Some(Ok(message)) = record else { break };
                // It may be a successor's. What is not acknowledged comes again.
                if !held.is_sure() {
                    break;
                }
                let message = message.message;
                let Some(delivery) = message.reply.and_then(Delivery::new) else { continue };
                let record = decode::<Record>(&message.payload).ok();
                if news.send(News::Record(delivery.sequence, record)).is_err() {
                    return;
                }
                acknowledge(&store, done.add(delivery.reply, Instant::now())).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn acknowledge(store: &Store, replies: Vec<Subject>) {
    for reply in replies {
        store.acknowledge(reply, AckKind::Ack).await;
    }
}

/// Records that were handed over, and are not acknowledged yet.
///
/// While records come, one of them stays in the stream. When a stream becomes empty, the server truncates and closes its file, and opens it again for the next message. That takes it longer
/// than the message itself.
#[derive(Default)]
struct Done {
    replies: Vec<Subject>,
    /// When all of them are to be acknowledged.
    due: Option<Instant>,
}

impl Done {
    /// Another one was handed over. These are to be acknowledged.
    fn add(&mut self, reply: Subject, now: Instant) -> Vec<Subject> {
        self.replies.push(reply);
        if self.replies.len() < TOGETHER {
            self.due.get_or_insert(now + HELD);
            return Vec::new();
        }
        let acknowledged = self.take(1);
        self.due = Some(now + HELD);
        acknowledged
    }

    /// All but the newest ones, so many.
    fn take(&mut self, but: usize) -> Vec<Subject> {
        self.due = None;
        let newest = self.replies.split_off(self.replies.len().saturating_sub(but));
        mem::replace(&mut self.replies, newest)
    }
}

/// The object with the arguments of a task.
fn args_of(task: TaskId) -> String {
    format!("args.{task}")
}

/// A task's copy that goes into the queue, and the message that is deleted when it is there.
struct Queued {
    task: TaskId,
    copy: u32,
    older: Option<u64>,
}

/// Tasks that were sent together, with their places in the window.
struct Sent {
    group: Group,
    tasks: Vec<Queued>,
    places: OwnedSemaphorePermit,
}

/// Tasks that are to be sent together.
#[derive(Default)]
struct Waiting {
    messages: Vec<Unsent>,
    tasks: Vec<Queued>,
    places: Option<OwnedSemaphorePermit>,
}

impl Waiting {
    fn add(&mut self, message: Unsent, task: Queued, place: OwnedSemaphorePermit) {
        self.messages.push(message);
        self.tasks.push(task);
        match &mut self.places {
            Some(places) => places.merge(place),
            none => *none = Some(place),
        }
    }

    async fn send(&mut self, store: &Store, confirms: &UnboundedSender<Sent>) {
        if let Some(places) = self.places.take() {
            let group = store.send_all(mem::take(&mut self.messages)).await;
            let _ = confirms.send(Sent { group, tasks: mem::take(&mut self.tasks), places });
        }
    }
}

/// Sends what goes into the queue, in its order. Tasks that are there together are sent together.
pub(super) async fn publish(
    store: Store,
    names: Names,
    mut held: Held,
    mut outgoing: UnboundedReceiver<Outgoing>,
    news: UnboundedSender<News>,
) {
    let window = Arc::new(Semaphore::new(WINDOW));
    let (confirms, sent) = unbounded_channel();
    tokio::spawn(confirm(store.clone(), held.clone(), sent, news.clone()));
    let mut waiting = Waiting::default();
    loop {
        let one = match outgoing.try_recv() {
            Ok(one) if waiting.tasks.len() < GROUP => one,
            next => {
                waiting.send(&store, &confirms).await;
                match next {
                    Ok(one) => one,
                    Err(_) => match outgoing.recv().await {
                        Some(one) => one,
                        None => return,
                    },
                }
            }
        };
        if !held.sure().await {
            return;
        }
        match one {
            Outgoing::Task(mut parcel, older) => {
                let place = match window.clone().try_acquire_owned() {
                    Ok(place) => place,
                    // Those that wait have places, too.
                    Err(_) => {
                        waiting.send(&store, &confirms).await;
                        let Ok(place) = window.clone().acquire_owned().await else { return };
                        place
                    }
                };
                let (task, copy) = (parcel.envelope.task, parcel.copy);
                let id = format!("{}.{task}.{copy}", parcel.epoch);
                if parcel.envelope.args.len() > INLINE {
                    waiting.send(&store, &confirms).await;
                    let object = args_of(task);
                    if let Err(why) = store.put(&object, &parcel.envelope.args).await {
                        let _ = news.send(News::Unstored(task, copy, why));
                        continue;
                    }
                    parcel.envelope.args = Arc::from([]);
                    parcel.object = Some(object);
                }
                let Ok(payload) = encode(&parcel) else { continue };
                let message = Unsent::new(names.task(parcel.envelope.generation), id, payload);
                waiting.add(message, Queued { task, copy, older }, place);
            }
            Outgoing::Forget(task) => {
                let store = store.clone();
                tokio::spawn(async move { store.delete(&args_of(task)).await });
            }
            Outgoing::Purge(generation) => {
                waiting.send(&store, &confirms).await;
                if let Ok(queue) = store.queue().await {
                    let _ = queue.purge().filter(names.task(generation)).await;
                }
            }
        }
    }
}

/// Waits until the server has what was sent. Tells of those together that it has confirmed together.
async fn confirm(store: Store, held: Held, mut sent: UnboundedReceiver<Sent>, news: UnboundedSender<News>) {
    let mut waits = FuturesUnordered::new();
    loop {
        let mut published = Vec::new();
        tokio::select! {
            Some(group) = waits.next(), if !waits.is_empty() => published.extend(group),
            one = sent.recv() => match one {
                Some(one) => waits.push(confirmed(&store, held.clone(), one, &news)),
                None if waits.is_empty() => return,
                None => published.extend(waits.next().await.unwrap_or_default()),
            },
        }
        while let Some(Some(group)) = waits.next().now_or_never() {
            published.extend(group);
        }
        if !published.is_empty() {
            let _ = news.send(News::Published(published));
        }
    }
}

/// Waits until the server has them.
async fn confirmed(
    store: &Store,
    mut held: Held,
    sent: Sent,
    news: &UnboundedSender<News>,
) -> Vec<(TaskId, u32)> {
    let Sent { group, tasks, mut places } = sent;
    group.recorded(store, |why| _ = news.send(News::Refused(why))).await;
    // A successor's messages have the same numbers.
    if !held.sure().await {
        return Vec::new();
    }
    for older in tasks.iter().filter_map(|task| task.older) {
        let (store, place) = (store.clone(), places.split(1));
        tokio::spawn(async move {
            if let Ok(queue) = store.queue().await {
                let _ = queue.delete_message(older).await;
            }
            drop(place);
        });
    }
    tasks.into_iter().map(|task| (task.task, task.copy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_acknowledged_together_and_one_stays_while_others_come() {
        let (mut done, now) = (Done::default(), Instant::now());
        let mut acknowledged = 0;
        for n in 1..10 * TOGETHER {
            let replies = done.add("reply".into(), now);
            assert!(replies.is_empty() || replies.len() + 1 == TOGETHER, "{} of {n}", replies.len());
            acknowledged += replies.len();
            assert!(acknowledged < n, "the stream becomes empty");
        }
        assert!(acknowledged > 0);
        acknowledged += done.take(0).len();
        assert_eq!((acknowledged, done.due), (10 * TOGETHER - 1, None));
    }

    #[test]
    fn no_record_waits_longer_for_its_acknowledgement_because_others_come() {
        let (mut done, begun) = (Done::default(), Instant::now());
        for n in 0..TOGETHER - 1 {
            assert!(done.add("reply".into(), begun + Duration::from_millis(n as u64)).is_empty());
        }
        assert_eq!(done.due, Some(begun + HELD));
        // The one that stays waits from now on.
        let now = begun + HELD;
        assert_eq!(done.add("reply".into(), now).len(), TOGETHER - 1);
        assert_eq!(done.due, Some(now + HELD));
    }
}
