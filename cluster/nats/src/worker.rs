//! The worker's side: [`run`] makes a program a worker of a job, [`entry`] one that the coordinator has started.
//!
//! # A session
//!
//! A worker asks to join, and is a *member* until it leaves or is lost. A session is what happens in between. One thread, with a small tokio runtime, has the session; the tasks run on forebear's
//! runtime, so one that computes for long never holds up a beat.
//!
//! ```text
//!   message taken --claim--> claimed --Start--> running --Answer--> recording --recorded--> acknowledged
//!                               +-------Later, Drop: given back, taken out
//! ```
//!
//! * A *slot* takes one message from the queue, and the next one when the record of its task is on the server's disk list. Nothing is taken in advance, so nothing waits behind a long task.
//! * A message that is held is kept by progress acknowledgements, one in each beat. It is acknowledged after its record is stored: what dies in between is run again.
//! * *Orders* are followed in their numbers. After a gap the session asks for what is missing.
//!
//! # When a session is lost
//!
//! The coordinator may be dead, or take this worker for dead. So a session ends itself when it has heard no pulse of the coordinator for a lease, or when it finds that it stood still for a lease: it cancels all that runs, waits until it has ended,
//! and asks to join anew. A task that does not heed a cancel within the grace ends the process: nothing else makes sure that it does not run on.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{AckKind, Message};
use forebear::Runtime;
use forebear_cluster::engine::{Order, Report, TaskId, start_error};
use forebear_cluster::worker::Node;
use forebear_cluster::{ClusterError, Tasks};
use futures_util::StreamExt;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::{Access, Tls, Who};
use crate::launch::handover;
use crate::nats::random;
use crate::objects::Objects;
use crate::store::{PAUSE, Store};
use crate::wire::{
    Claim, Down, Hello, Names, Parcel, Record, Stage, Terms, Up, Welcome, What, decode, encode,
};

/// A worker of a job: which server, as whom, and how much it runs at once.
///
/// ```
/// use forebear_cluster_nats::worker::WorkerOptions;
/// use std::time::Duration;
///
/// let options = WorkerOptions::new("tls://queue.example.org", "render")
///     .credentials("/etc/render/worker.creds")
///     .slots(4)
///     .patience(Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct WorkerOptions {
    access: Access,
    job: String,
    name: Option<String>,
    slots: u32,
    patience: Duration,
    cache: u64,
    launch: Option<u64>,
}

impl WorkerOptions {
    /// A worker for the job of this name on that server; see [`Nats::new`](crate::Nats::new).
    pub fn new(server: &str, job: &str) -> WorkerOptions {
        WorkerOptions {
            access: Access::new(server),
            job: job.to_owned(),
            name: None,
            slots: 1,
            patience: Duration::from_secs(60),
            cache: 256 << 20,
            launch: None,
        }
    }

    /// Its name. It is another one each time if not told otherwise. A worker that joins under the name of another one takes its place.
    pub fn name(mut self, name: &str) -> WorkerOptions {
        self.name = Some(name.to_owned());
        self
    }

    /// It runs so many tasks at once. 1 if not told otherwise, and at least.
    pub fn slots(mut self, slots: usize) -> WorkerOptions {
        self.slots = u32::try_from(slots.max(1)).unwrap_or(u32::MAX);
        self
    }

    /// It asks for so long whether there is a coordinator, at the start and when it has lost it. Then it ends. 60 s if not told otherwise.
    pub fn patience(mut self, patience: Duration) -> WorkerOptions {
        self.patience = patience;
        self
    }

    /// It keeps so many bytes of [`Stored`](forebear_cluster::Stored) values that it has read. 256 MiB if not told otherwise.
    pub fn cache(mut self, bytes: u64) -> WorkerOptions {
        self.cache = bytes;
        self
    }

    /// Authenticates by a token.
    pub fn token(mut self, token: &str) -> WorkerOptions {
        self.access.who = Who::Token(token.to_owned());
        self
    }

    /// Authenticates by a name and a password.
    pub fn user(mut self, name: &str, password: &str) -> WorkerOptions {
        self.access.who = Who::User { name: name.to_owned(), password: password.to_owned() };
        self
    }

    /// Authenticates by a file with a JWT and a key.
    pub fn credentials(mut self, file: impl AsRef<Path>) -> WorkerOptions {
        self.access.who = Who::File(file.as_ref().to_owned());
        self
    }

    /// Connects by TLS. The server's certificate is signed by what is in that file.
    pub fn tls(mut self, authority: impl AsRef<Path>) -> WorkerOptions {
        self.access.tls = Some(Tls { authority: authority.as_ref().to_owned(), own: None });
        self
    }

    /// Connects without credentials to another machine, too. Whoever reaches that server can run the program's tasks.
    pub fn without_authentication(mut self) -> WorkerOptions {
        self.access.open = true;
        self
    }
}

/// Runs tasks of a job until the coordinator ends it, this process is asked to leave, or there is no coordinator for as long as the [patience](WorkerOptions::patience) says.
///
/// The tasks run on the runtime of the thread that calls this. SIGTERM has the worker end what it has and leave; a second one ends the process at once. A task that does not heed a cancel within
/// the coordinator's grace ends the process, too. Blocks the thread: do not call it in a request.
///
/// ```no_run
/// use forebear_cluster::{ClusterError, TaskFn, tasks};
/// use forebear_cluster_nats::worker::{self, WorkerOptions};
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn main() -> Result<(), ClusterError> {
///     worker::run(WorkerOptions::new("nats://127.0.0.1:4222", "squares"), tasks![SQUARE])
/// }
/// ```
///
/// # Errors
///
/// [`ClusterError::Start`]: no connection, no coordinator, or it has refused this worker, for instance since it has other tasks.
pub fn run(options: WorkerOptions, tasks: Tasks) -> Result<(), ClusterError> {
    let (tell, outside) = watch::channel(Outside::Work);
    let mut signals = Signals::new([SIGTERM]).map_err(start_error)?;
    let handle = signals.handle();
    let thread = thread::Builder::new().name("cluster: signals".into()).spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 {
                process::exit(128 + signal);
            }
            tell.send_modify(|now| *now = Outside::Drain);
        }
    });
    thread.map_err(start_error)?;
    let ended = follow(options, tasks, outside);
    handle.close();
    ended
}

/// Makes this process a worker, if a coordinator has started it as one (see [`Nats::workers`](crate::Nats::workers)): then it does not return. In any other process this does nothing.
///
/// The first line of `main`, before threads and before a runtime. SIGTERM has the worker end what it has and leave; a second one ends it at once.
///
/// ```
/// use forebear_cluster::{TaskFn, tasks};
/// use forebear_cluster_nats::worker;
///
/// const SQUARE: TaskFn<u64, u64> = TaskFn::new("square", |_, n| Ok(n * n));
///
/// fn main() {
///     worker::entry(tasks![SQUARE]);
///     println!("this is no worker");
/// }
/// ```
pub fn entry(tasks: Tasks) {
    let Some(told) = handover() else { return };
    let ended = told.map_err(start_error).and_then(|(told, mut socket)| {
        let grace = told.grace;
        let (tell, outside) = watch::channel(Outside::Work);
        let (drain, mut signals) = (tell.clone(), Signals::new([SIGTERM]).map_err(start_error)?);
        let thread = thread::Builder::new().name("cluster: signals".into()).spawn(move || {
            for (n, signal) in signals.forever().enumerate() {
                if n > 0 {
                    process::exit(128 + signal);
                }
                drain.send_modify(|now| *now = (*now).max(Outside::Drain));
            }
        });
        thread.map_err(start_error)?;
        // The socket ends when the coordinator lets this worker go, or is dead.
        let thread = thread::Builder::new().name("cluster: socket".into()).spawn(move || {
            let _ = socket.read(&mut [0]);
            tell.send_modify(|now| *now = Outside::Leave);
            // What heeds no cancel ends with the process.
            let (_open, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(grace);
            process::exit(0);
        });
        thread.map_err(start_error)?;
        let options = WorkerOptions {
            access: told.access,
            job: told.job,
            name: Some(told.name),
            slots: told.slots,
            patience: Duration::from_secs(60),
            cache: told.cache,
            launch: Some(told.launch),
        };
        follow(options, tasks, outside)?;
        let _ = Runtime::current().finish(grace);
        Ok(())
    });
    match ended {
        Ok(()) => process::exit(0),
        Err(error) => {
            eprintln!("forebear-cluster: a worker cannot continue: {error}");
            process::exit(1)
        }
    }
}

/// What the outside wants of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outside {
    Work,
    /// To end what it has, and to leave.
    Drain,
    /// To cancel all, and to leave.
    Leave,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has left.
    Left,
    /// It may join anew.
    Lost,
}

/// Sessions, until the worker has left.
fn follow(
    options: WorkerOptions,
    tasks: Tasks,
    outside: watch::Receiver<Outside>,
) -> Result<(), ClusterError> {
    let names = Names::new(&options.job)
        .ok_or_else(|| start_error(format_args!("`{}` is no name of a job", options.job)))?;
    let runtime = Runtime::current();
    let thread = thread::Builder::new().name("cluster: nats".into()).spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tokio = tokio.map_err(|error| error.to_string())?;
        tokio.block_on(sessions(&options, &names, &tasks, &runtime, outside))
    });
    match thread.map_err(start_error)?.join() {
        Ok(ended) => ended.map_err(start_error),
        Err(_) => Err(start_error("the thread of the worker has panicked")),
    }
}

async fn sessions(
    options: &WorkerOptions,
    names: &Names,
    tasks: &Tasks,
    runtime: &Runtime,
    mut outside: watch::Receiver<Outside>,
) -> Result<(), String> {
    let (reconnected, connections) = watch::channel(0_u64);
    let on_event = move |event| {
        if matches!(event, async_nats::Event::Connected) {
            reconnected.send_modify(|times| *times += 1);
        }
    };
    let client = options.access.connect(Duration::from_secs(5), on_event).await?;
    loop {
        let Some(terms) = join(&client, options, names, tasks, &mut outside).await? else { return Ok(()) };
        let session =
            Session::begin(&client, names, tasks, runtime, options, terms, connections.clone()).await?;
        if session.run(&mut outside).await == End::Left {
            return Ok(());
        }
    }
}

/// Asks to join. `None`: it is to leave instead.
async fn join(
    client: &Client,
    options: &WorkerOptions,
    names: &Names,
    tasks: &Tasks,
    outside: &mut watch::Receiver<Outside>,
) -> Result<Option<Terms>, String> {
    let nonce = random();
    let hello = Hello {
        name: options.name.clone().unwrap_or_else(|| format!("worker-{nonce:016x}")),
        slots: options.slots,
        launch: options.launch,
        nonce,
        tasks: tasks.signatures().map(|(name, types)| (name.to_owned(), types.to_owned())).collect(),
    };
    let bytes = encode(&hello)?;
    let begun = Instant::now();
    while *outside.borrow() == Outside::Work {
        let asked =
            async_nats::Request::new().payload(bytes.clone().into()).timeout(Some(Duration::from_secs(1)));
        let pause = match client.send_request(names.hello(), asked).await {
            Ok(answer) => match decode::<Welcome>(&answer.payload) {
                Ok(Welcome::Come(terms)) => return Ok(Some(terms)),
                Ok(Welcome::Refused { why }) => {
                    return Err(format!("the coordinator has refused this worker: {why}"));
                }
                Err(refused) => return Err(format!("the coordinator's answer cannot be read: {refused}")),
            },
            Err(_) => PAUSE,
        };
        if begun.elapsed() > options.patience {
            return Err(format!(
                "no coordinator of the job `{}` has answered in {:?}",
                options.job, options.patience
            ));
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = outside.changed() => if changed.is_err() { return Ok(None) },
        }
    }
    Ok(None)
}

/// What a session hears.
enum News {
    Down(Down),
    Pulse(u64),
    Taken(Box<Message>, Parcel, OwnedSemaphorePermit),
    Report(Report),
    Recorded(Key, u64),
    Connected,
}

/// A task's copy.
type Key = (TaskId, u32);

struct Session {
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
    /// What the slots wait for, and how many there are. They take messages from when the member is ready.
    slots: (Arc<Semaphore>, usize),
    /// The tasks that listen and take. They end with the session.
    parts: tokio::task::JoinSet<()>,
    pulse: Instant,
    ticked: Instant,
}

/// A message that has been taken from the queue.
struct Held {
    message: Arc<Message>,
    parcel: Parcel,
    sequence: u64,
    /// Given back when the slot is free.
    _permit: OwnedSemaphorePermit,
    attempt: Option<u32>,
    cancelled: Option<Instant>,
}

impl Session {
    async fn begin(
        client: &Client,
        names: &Names,
        tasks: &Tasks,
        runtime: &Runtime,
        options: &WorkerOptions,
        terms: Terms,
        mut connections: watch::Receiver<u64>,
    ) -> Result<Session, String> {
        let (news, hears) = unbounded_channel();
        let text = |error: async_nats::SubscribeError| error.to_string();
        let mut down = client.subscribe(names.down(terms.epoch, terms.member)).await.map_err(text)?;
        let mut pulses = client.subscribe(names.pulse()).await.map_err(text)?;
        let store = Store::new(client, names, 1);
        let mut parts = tokio::task::JoinSet::new();
        let to = news.clone();
        parts.spawn(async move {
            while let Some(message) = down.next().await {
                if let Ok(down) = decode(&message.payload) {
                    let _ = to.send(News::Down(down));
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
        for _ in 0..options.slots {
            parts.spawn(take(store.clone(), terms.epoch, free.clone(), connections.clone(), news.clone()));
        }
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
            slots: (free, options.slots as usize),
            parts,
            pulse: now,
            ticked: now,
        })
    }

    async fn run(mut self, outside: &mut watch::Receiver<Outside>) -> End {
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
                Some(news) = self.hears.recv() => self.news(news).await,
                _ = outside.changed() => None,
            };
        }
        self.finish(end.unwrap_or(End::Left)).await
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
        if end == End::Left {
            for held in self.held.values() {
                let _ = held.message.ack_with(AckKind::Nak(None)).await;
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
        let late =
            |held: &Held| held.cancelled.is_some_and(|at| now.duration_since(at) > self.terms.times.grace);
        if self.held.values().any(late) {
            process::exit(1);
        }
        for held in self.held.values() {
            let _ = held.message.ack_with(AckKind::Progress).await;
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
            News::Down(down) => return self.down(down).await,
            News::Pulse(epoch) if epoch == self.terms.epoch => self.pulse = Instant::now(),
            // Another coordinator has taken the job over.
            News::Pulse(_) => return Some(End::Lost),
            News::Taken(message, parcel, permit) => self.taken(*message, parcel, permit).await,
            News::Report(report) => self.report(report).await,
            News::Recorded(key, sequence) => {
                self.after = self.after.max(sequence);
                self.held.remove(&key);
            }
            News::Connected => self.say(true, Vec::new()).await,
        }
        None
    }

    async fn down(&mut self, down: Down) -> Option<End> {
        match down.number {
            0 => return (down.what == What::Gone).then_some(End::Lost),
            number if number <= self.applied => return None,
            number if number > self.applied + 1 => {
                self.say(true, Vec::new()).await;
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
                    let mut envelope = held.parcel.envelope.clone();
                    envelope.time_left = time_left;
                    self.node.order(Order::Run { envelope, attempt });
                }
            }
            What::Later { task, copy } => {
                let delay = (self.stage == Stage::Ready).then_some(self.terms.times.lease);
                if let Some(held) = self.held.remove(&(task, copy)) {
                    let _ = held.message.ack_with(AckKind::Nak(delay)).await;
                }
            }
            What::Drop { task, copy } => {
                if let Some(held) = self.held.remove(&(task, copy)) {
                    let _ = held.message.ack_with(AckKind::Term).await;
                }
            }
            What::Forget => self.after = 0,
            What::Stop => return Some(End::Left),
            What::Gone => return Some(End::Lost),
        }
        None
    }

    async fn taken(&mut self, message: Message, parcel: Parcel, permit: OwnedSemaphorePermit) {
        if self.stage != Stage::Ready {
            let _ = message.ack_with(AckKind::Nak(None)).await;
            return;
        }
        let Ok(sequence) = message.info().map(|info| info.stream_sequence) else { return };
        let key = (parcel.envelope.task, parcel.copy);
        let message = Arc::new(message);
        match self.held.get_mut(&key) {
            // The server has handed it out again; an acknowledgement of either counts.
            Some(held) => held.message = message,
            None => {
                let held =
                    Held { message, parcel, sequence, _permit: permit, attempt: None, cancelled: None };
                let claim = held.claim(key);
                self.held.insert(key, held);
                self.say(false, vec![claim]).await;
            }
        }
    }

    async fn report(&mut self, report: Report) {
        match report {
            Report::Ready if self.stage == Stage::Starting => {
                self.stage = Stage::Ready;
                self.slots.0.add_permits(self.slots.1);
                self.say(false, Vec::new()).await;
            }
            Report::Progress { task, thousandths } => {
                self.progress.insert(task, thousandths);
                self.say(false, Vec::new()).await;
            }
            Report::Answer { task, attempt, answer, ran } => {
                let its = |(key, held): (&Key, &Held)| {
                    (key.0 == task && held.attempt == Some(attempt)).then(|| (*key, held.message.clone()))
                };
                let Some((key, message)) = self.held.iter().find_map(its) else { return };
                // It has ended: no cancel is late.
                if let Some(held) = self.held.get_mut(&key) {
                    held.cancelled = None;
                }
                let (epoch, member) = (self.terms.epoch, self.terms.member);
                let record = Record { epoch, member, task, attempt, answer, ran };
                let (store, names, news) = (self.store.clone(), self.names.clone(), self.news.clone());
                tokio::spawn(async move {
                    let sequence = write(&store, &names, record).await;
                    let _ = news.send(News::Recorded(key, sequence));
                    // If that is lost, the coordinator drops the message when it turns up again.
                    let _ = message.ack().await;
                });
            }
            _ => {}
        }
    }
}

impl Held {
    fn claim(&self, (task, copy): Key) -> Claim {
        Claim { task, copy, sequence: self.sequence }
    }
}

/// Has the end of a task recorded, and says the record's number.
async fn write(store: &Store, names: &Names, record: Record) -> u64 {
    let id = format!("{}.{}.{}.{}", record.epoch, record.member, record.task, record.attempt);
    let payload = encode(&record).unwrap_or_default();
    store.send(names.result(), id, payload).await.recorded(&store.context).await
}

/// One slot: takes a message whenever it is free.
async fn take(
    store: Store,
    epoch: u64,
    free: Arc<Semaphore>,
    mut connections: watch::Receiver<u64>,
    news: UnboundedSender<News>,
) {
    // Asked for once: to look it up takes a request to the server.
    let mut consumer = None;
    while let Ok(permit) = free.clone().acquire_owned().await {
        connections.mark_unchanged();
        // What was asked for before a connection broke may have been forgotten.
        let taken = tokio::select! {
            taken = take_one(&store, &mut consumer, epoch) => taken,
            _ = connections.changed() => {
                consumer = None;
                None
            }
        };
        match taken {
            Some((message, parcel)) => _ = news.send(News::Taken(Box::new(message), parcel, permit)),
            None => drop(permit),
        }
    }
}

/// `None`: there was none, for a while.
async fn take_one(
    store: &Store,
    consumer: &mut Option<PullConsumer>,
    epoch: u64,
) -> Option<(Message, Parcel)> {
    let batch = async {
        let workers = match consumer {
            Some(workers) => workers,
            None => consumer.insert(store.workers().await?),
        };
        let batch = workers.batch().max_messages(1).expires(Duration::from_secs(5));
        batch.messages().await.map_err(|error| error.to_string())
    };
    let Ok(mut batch) = batch.await else {
        *consumer = None;
        tokio::time::sleep(PAUSE).await;
        return None;
    };
    let message = match batch.next().await {
        Some(Ok(message)) => message,
        ended => {
            *consumer = None;
            if ended.is_some() {
                tokio::time::sleep(PAUSE).await;
            }
            return None;
        }
    };
    match decode::<Parcel>(&message.payload) {
        Ok(mut parcel) if parcel.epoch == epoch => {
            if let Some(object) = parcel.object.take() {
                // Without it the task fails: its arguments cannot be decoded.
                let bytes = store.get(&object).await.unwrap_or_default();
                parcel.envelope.args = bytes.into();
            }
            Some((message, parcel))
        }
        // Of another run, or of somebody else.
        _ => {
            let _ = message.ack_with(AckKind::Term).await;
            None
        }
    }
}
