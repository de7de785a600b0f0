//! Dumps: what every live request of a runtime is doing, and whom it waits for.
//!
//! [`Runtime::dump`](crate::Runtime::dump) makes one, while the runtime goes on. There is no registry of requests: a dump looks where
//! requests stand.
//!
//! `docs/dumps.md` in the repository shows how to read the text. The head of the module `sight` says how a dump is made.

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::time::Duration;

use forebear_context::context::Context;
pub use forebear_context::context::Reason;
use forebear_context::error::SourceLocation;
use forebear_context::lineage::Priority;
use forebear_context::shim::Arc;
use forebear_context::shim::thread;
use forebear_context::shim::time;
use forebear_pool::WorkerState;

mod sight;
mod text;

use self::sight::{Certainty, StackPlace};
pub(crate) use self::sight::{ON_THE_SAME_STACK, Seen};
use crate::api::any::{RequestId, State};
use crate::foreign;
use crate::record::fiber;
use crate::record::reclaim;
use crate::schedule::worker::{HasWorkers, Worker};
use crate::shared::Shared;
use crate::shared::post::DumpAnswer;
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::state::inquiry::Inquiry;

/// How long a dump waits for a worker to come to a scheduling point.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long it sleeps between two looks whether all have answered.
const NAP: Duration = Duration::from_micros(500);
/// More private requests than these are not counted from outside.
const MOST_COUNTED: usize = 1 << 20;

/// What a runtime is doing, as [`Runtime::dump`](crate::Runtime::dump) has found it. `Display` writes it as text, a line for each
/// worker, request and thread.
///
/// ```
/// use forebear::dump::Dump;
/// use forebear::{Request, Runtime};
///
/// let runtime = Runtime::builder().seeded(1).name("app").build()?;
/// let (id, dump): (_, Dump) = runtime.run(|| {
///     let load = Request::builder().name("load").spawn(|| 5);
///     (load.id(), runtime.dump())
/// });
/// assert_eq!(dump.runtime, "app");
/// assert_eq!(dump.find("load").map(|load| load.id), Some(id));
/// assert_eq!(dump.request(id).map(|load| load.name.as_str()), Some("load"));
/// assert!(dump.to_string().contains("load"));
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dump {
    /// The name of the runtime.
    pub runtime: String,
    /// The workers, by number. Empty in the synchronous and in the seeded mode.
    pub workers: Vec<WorkerInfo>,
    /// The live requests: generation by generation, and within one by age, those of more urgent and of older roots first. An arm of a
    /// join that another worker runs is an entry of its own.
    pub requests: Vec<RequestInfo>,
    /// The plain threads that wait for something of this runtime, in the order of their names.
    pub threads: Vec<ThreadInfo>,
}

/// A worker, in a [`Dump`].
///
/// ```
/// use forebear::Runtime;
/// use forebear::dump::WorkerInfo;
///
/// let runtime = Runtime::builder().workers(2).build()?;
/// let workers: Vec<WorkerInfo> = runtime.dump().workers;
/// assert_eq!(workers.iter().map(|worker| worker.index).collect::<Vec<_>>(), [0, 1]);
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its number.
    pub index: usize,
    /// What it was doing when the dump began.
    pub state: WorkerState,
    /// Whether it came to a scheduling point in time (10 ms). If not, what is private to it is counted and not listed.
    pub answered: bool,
    /// The request that runs on it.
    pub runs: Option<RequestId>,
    /// How many requests are private to it: submitted on it, not started, and not offered to other workers yet.
    pub private: usize,
}

/// A request, in a [`Dump`].
///
/// ```
/// use forebear::dump::RequestInfo;
/// use forebear::{Priority, Request, Runtime, State};
///
/// let runtime = Runtime::builder().seeded(1).build()?;
/// let load: RequestInfo = runtime.run(|| {
///     let load = Request::builder().name("load").priority(Priority::URGENT).spawn(|| 5);
///     let dump = runtime.dump();
///     drop(load);
///     dump.find("load").cloned().unwrap()
/// });
/// assert_eq!((load.state, load.priority), (State::Queued, Priority::URGENT));
/// assert!(load.made_at.is_some() && load.parent.is_some() && load.waits_for.is_none());
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Its number, as [`Request::id`](crate::Request::id) answers it.
    pub id: RequestId,
    /// The name it was given, else the type of its closure, in full.
    pub name: String,
    /// This is an arm of a `join` that the request has called, and that another worker has taken.
    pub is_arm: bool,
    /// Where it was made: known of requests that a builder has given a name or a deadline.
    pub made_at: Option<SourceLocation>,
    /// What it is doing. One that waits is [`State::Suspended`]; one that has been woken, and waits for its turn, is [`State::Running`].
    pub state: State,
    /// It was cancelled, and has not ended.
    pub is_cancelled: bool,
    /// The worker that it runs on, or that it is private to.
    pub worker: Option<usize>,
    /// The name of the plain thread that it runs on.
    pub thread: Option<String>,
    /// The request that made it.
    pub parent: Option<RequestId>,
    /// Its priority.
    pub priority: Priority,
    /// The priority of the most urgent request that waits for it, if that is more urgent than it is itself.
    pub raised_to: Option<Priority>,
    /// What it waits for, if it is suspended.
    pub waits_for: Option<WaitInfo>,
}

/// A wait, in a [`Dump`].
///
/// ```
/// use forebear::dump::{Reason, WaitInfo};
/// use forebear::{Request, Runtime, yield_now};
///
/// let runtime = Runtime::builder().seeded(1).build()?;
/// let wait: WaitInfo = runtime.run(|| {
///     let (completer, answer) = Request::completer("network 7");
///     let load = Request::builder().name("load").spawn(move || answer.take());
///     let wait = loop {
///         yield_now().unwrap(); // until `load` waits
///         if let Some(wait) = runtime.dump().find("load").and_then(|load| load.waits_for.clone()) {
///             break wait;
///         }
///     };
///     completer.complete(7).unwrap();
///     load.take().unwrap().unwrap();
///     wait
/// });
/// assert_eq!((wait.reason, wait.what.as_str()), (Reason::Request, "request `network 7`"));
/// assert_eq!(wait.owners[0].name(), "network 7");
/// # Ok::<(), forebear::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitInfo {
    /// The kind of wait.
    pub reason: Reason,
    /// What is waited for, in words: the kind, the name, and for locks the place of the call. ``a Mutex "cache" (src/cache.rs:12)``,
    /// ``request `load` ``.
    pub what: String,
    /// Who holds it, or is to bring it about, as far as that is known: the request that is waited for, the jobs of the scope that are
    /// left, the holder of the lock, the readers of the reader-writer lock. Of channels, events and the like nobody is known.
    pub owners: Vec<Party>,
    /// For how long at most it has gone on: since its worker last read the clock before that, which an idle worker does often, and a busy
    /// one seldom. `None` for plain threads, and for a wait for a request that runs on the waiter's own stack.
    pub since: Option<Duration>,
}

/// A request or a thread that holds what another one waits for, or has to provide it.
///
/// ```
/// use forebear::dump::Party;
///
/// fn line(party: &Party) -> String {
///     match party {
///         Party::Request { id, name, .. } => format!("{id} {name}"),
///         other => other.name().to_owned(), // a plain thread
///     }
/// }
/// # let _: fn(&Party) -> String = line;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Party {
    /// A request.
    #[non_exhaustive]
    Request {
        /// Its number.
        id: RequestId,
        /// Its name.
        name: String,
    },
    /// A request of another runtime, or a plain thread.
    #[non_exhaustive]
    Other {
        /// Its name.
        name: String,
    },
}

impl Party {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Party::Request { name, .. } | Party::Other { name } => name,
        }
    }
}

/// A plain thread that is blocked, in a [`Dump`].
///
/// ```
/// use forebear::dump::{Reason, ThreadInfo};
/// use forebear::{Request, Runtime};
///
/// let runtime = Runtime::builder().workers(1).build()?;
/// let (completer, answer) = runtime.enter(|| Request::<u32>::completer("network 7"));
/// let waiter = std::thread::Builder::new().name("main loop".into()).spawn(move || answer.take())?;
/// let found: ThreadInfo = loop {
///     if let Some(found) = runtime.dump().threads.pop() {
///         break found;
///     }
/// };
/// assert_eq!((found.name.as_str(), found.waits_for.reason), ("main loop", Reason::Request));
/// completer.complete(7).unwrap();
/// assert_eq!(waiter.join().unwrap()?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub waits_for: WaitInfo,
}

impl Dump {
    /// The first request of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&RequestInfo> {
        self.requests.iter().find(|request| request.name == name)
    }

    /// The request of this number.
    #[must_use]
    pub fn request(&self, id: RequestId) -> Option<&RequestInfo> {
        self.requests.iter().find(|request| request.id == id)
    }
}

/// What a worker answers. Addresses in it are numbers, to be compared.
pub(crate) struct WorkerAnswer {
    seen: Vec<Seen>,
    private: usize,
    runs: Option<RequestId>,
}

/// Answers those who have asked this worker. On the worker's thread.
#[cold]
#[inline(never)]
pub(crate) fn answer_all(record: &WorkerRecord) {
    let worker = Worker::of(record);
    for inquiry in worker.post.asked.take() {
        inquiry.answer(worker.index, || Box::new(on_thread_stack(|| see_own(worker))));
    }
}

/// Calls `f` where there is room for it: a request's stack may be small, and nearly full.
fn on_thread_stack<R>(f: impl FnOnce() -> R) -> R {
    let Some(fiber) = fiber::get().filter(|fiber| fiber.has_worker()) else { return f() };
    let (mut f, mut answer) = (Some(f), None);
    // SAFETY: F2: this is the fiber's stack. What is called neither suspends nor unwinds.
    unsafe { fiber.context().switch().on_thread_stack(&mut || answer = f.take().map(|f| f())) };
    match answer {
        Some(answer) => answer,
        None => unreachable!("it was called"),
    }
}

fn see_own(worker: &Worker) -> WorkerAnswer {
    worker.note_time();
    let mut seen = Vec::new();
    let here = fiber::get().filter(|fiber| worker.owns(fiber));
    let runs = here.and_then(|fiber| fiber.request()).map(|top| crate::api::any::id_of(top.identity()));
    let place = StackPlace::of_worker(worker, worker.shared());
    worker.post.each_coroutine(|coroutine| {
        // SAFETY: K5: the list is locked.
        let coroutine = unsafe { coroutine.as_ref() };
        sight::see_stack(&coroutine.fiber, &place, true, &mut seen);
        // SAFETY: claimed, with the runner's link, and the worker's own.
        if let Some(pending) = unsafe { coroutine.pending.get().as_ref() } {
            seen.push(sight::see_unstarted(pending, &place));
        }
    });
    let mut private = 0;
    worker.list.each(|listed| {
        if sight::is_live_entry(listed) {
            private += 1;
            sight::see_unstarted_and_blocked(listed, &place, &mut seen);
        }
    });
    worker.put_aside.each(|claimed| seen.push(sight::see_unstarted(claimed, &place)));
    WorkerAnswer { seen, private, runs }
}

/// Looks at all there is. `states` are those of the workers.
pub(crate) fn take(shared: &Arc<Shared>, states: &[WorkerState]) -> Dump {
    reclaim::read_section(|| {
        let mut seen = Vec::new();
        sight::see_shared_queues(shared, &mut seen);
        let answers = ask_all(shared);
        let mut threads = Vec::new();
        sight::see_foreign(shared, &mut seen, &mut threads);
        let mut workers = Vec::new();
        for (worker, answer) in shared.workers().iter().zip(answers) {
            let answered = answer.is_some();
            let answer = answer.unwrap_or_else(|| see_from_outside(worker));
            seen.extend(answer.seen);
            if shared.driven.is_none() {
                let state = states.get(worker.index).copied().unwrap_or(WorkerState::Stopped);
                let (index, runs, private) = (worker.index, answer.runs, answer.private);
                workers.push(WorkerInfo { index, state, answered, runs, private });
            }
        }
        sight::see_shared_queues(shared, &mut seen);
        let mut seen = sort(distinct(seen));
        name_owners(&mut seen, &mut threads);
        let requests = seen.into_iter().map(|seen| seen.info).collect();
        Dump { runtime: shared.name.clone(), workers, requests, threads: sight::thread_infos(threads) }
    })
}

/// Asks all workers, and waits for as long as they have to answer. `None` for one that has not.
fn ask_all(shared: &Arc<Shared>) -> Vec<Option<WorkerAnswer>> {
    let workers = shared.workers();
    let inquiry = Inquiry::<DumpAnswer>::new(workers.len());
    let own = own_worker(shared);
    let gone = shared.ending.gone();
    for worker in workers {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, worker));
        let has_nobody = match &shared.driven {
            Some(driven) => !driven.is_taken(worker.index),
            None => gone.get(worker.index).copied().unwrap_or(false),
        };
        if is_own {
            inquiry.answer(worker.index, || Box::new(on_thread_stack(|| see_own(worker))));
        } else if has_nobody {
            // Nothing of it can go on, so nothing stands there.
            inquiry
                .answer(worker.index, || Box::new(WorkerAnswer { seen: Vec::new(), private: 0, runs: None }));
        } else {
            worker.post.asked.ask(&inquiry, &worker.post.attention);
            shared.wake(worker.index);
        }
    }
    let end = time::now() + PATIENCE;
    while !inquiry.is_complete() {
        if let Some(own) = own {
            // Who asks may be asked at the same time.
            own.answer_dumps();
        }
        if time::now() >= end && !inquiry.stop() {
            break;
        }
        thread::park_timeout(NAP);
    }
    workers
        .iter()
        .map(|worker| {
            worker.post.asked.withdraw(&inquiry);
            inquiry.take(worker.index)?.downcast().ok().map(|answer| *answer)
        })
        .collect()
}

/// The worker of the runtime whose thread this is, or whose seat this thread has.
fn own_worker(shared: &Arc<Shared>) -> Option<&Worker> {
    let on_coroutine = fiber::get().and_then(|fiber| fiber.worker_record());
    let index = match on_coroutine {
        Some(worker) => std::ptr::eq(worker.shared(), &**shared).then_some(worker.index),
        None => foreign::seat_taken(shared),
    };
    index.map(|index| &shared.workers()[index])
}

/// A worker that has come to no scheduling point.
fn see_from_outside(worker: &Worker) -> WorkerAnswer {
    let mut seen = Vec::new();
    let place = StackPlace::of_worker(worker, worker.shared());
    let current = worker.post.current();
    let mut runs = None;
    worker.post.each_coroutine(|coroutine| {
        // SAFETY: K5: the list is locked.
        let fiber = unsafe { &coroutine.as_ref().fiber };
        let before = seen.len();
        sight::see_stack(fiber, &place, false, &mut seen);
        if std::ptr::eq(fiber, current) {
            runs = seen.get(before).map(|top: &Seen| top.info.id);
        }
    });
    // SAFETY: by a thread that looks.
    let private = unsafe { worker.list.count_from_outside(MOST_COUNTED) };
    WorkerAnswer { seen, private, runs }
}

/// What has started, as it is seen from outside, by worker and from the top of each stack down. Inside [`reclaim::read_section`].
pub(crate) fn started(shared: &Shared) -> Vec<Seen> {
    let mut seen = Vec::new();
    sight::each_stack(shared, |fiber, place| sight::see_stack(fiber, place, false, &mut seen));
    seen.retain(|seen| seen.certainty == Certainty::Started);
    name_owners(&mut seen, &mut Vec::new());
    seen
}

/// The waits of code of the user's that runs outside of any request, on workers' stacks. Inside [`reclaim::read_section`].
pub(crate) fn nameless(shared: &Shared) -> Vec<(usize, WaitInfo)> {
    let mut seen = Vec::new();
    sight::each_stack(shared, |fiber, place| seen.extend(sight::see_nameless(fiber, place)));
    seen
}

/// How many have started and are not over, the arms of joins not counted. Inside [`reclaim::read_section`].
pub(crate) fn count_started(shared: &Shared) -> usize {
    let mut all = 0;
    sight::each_stack(shared, |fiber, place| all += sight::depth(fiber, place));
    all
}

/// What was seen twice once: where it was seen to be farthest on.
fn distinct(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by_key(|seen| std::cmp::Reverse(seen.certainty));
    let mut known = HashSet::new();
    seen.retain(|seen| known.insert((seen.info.id, seen.info.is_arm.then_some(seen.header))));
    seen
}

/// Generation by generation; within one by the parents' order, then by rank.
fn sort(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by_key(|seen| (seen.depth, seen.key, seen.rank, seen.info.id));
    let mut order: HashMap<RequestId, usize> = HashMap::new();
    let mut from = 0;
    while from < seen.len() {
        let depth = seen[from].depth;
        let to = from + seen[from..].partition_point(|seen| seen.depth == depth);
        let parent = |seen: &Seen| {
            seen.info.parent.and_then(|parent| order.get(&parent).copied()).unwrap_or(usize::MAX)
        };
        seen[from..to].sort_by_key(|seen| (seen.key, parent(seen), seen.rank, seen.info.id));
        for (n, seen) in seen[from..to].iter().enumerate() {
            order.entry(seen.info.id).or_insert(from + n);
        }
        from = to;
    }
    seen
}

/// Finds out who holds or owes what is waited for.
fn name_owners(seen: &mut [Seen], threads: &mut Vec<sight::Blocked>) {
    let mut by_context: HashMap<usize, Party> = HashMap::new();
    let mut by_scope: HashMap<usize, Vec<Party>> = HashMap::new();
    let mut by_share: HashMap<usize, Vec<Party>> = HashMap::new();
    for one in seen.iter() {
        let party = one.party();
        if one.context != 0 {
            by_context.insert(one.context, party.clone());
        }
        if one.scope != 0 {
            by_scope.entry(one.scope).or_default().push(party.clone());
        }
        for share in &one.shares {
            by_share.entry(*share).or_default().push(party.clone());
        }
    }
    for one in threads.iter() {
        for share in &one.shares {
            by_share.entry(*share).or_default().push(Party::Other { name: one.info.name.clone() });
        }
    }
    let name = |wait: &sight::Leads, owners: &mut Vec<Party>| {
        if let Some(jobs) = by_scope.get(&wait.scope) {
            owners.extend(jobs.iter().cloned());
        }
        if let Some(readers) = by_share.get(&wait.whole) {
            owners.extend(readers.iter().cloned());
        }
        if let Some(holder) = NonNull::new(std::ptr::with_exposed_provenance_mut::<Context>(wait.holder)) {
            owners.extend(by_context.get(&wait.holder).cloned().or_else(|| sight::stranger(holder)));
        }
    };
    for one in seen.iter_mut() {
        if let Some(wait) = &mut one.info.waits_for {
            name(&one.leads, &mut wait.owners);
        }
    }
    for one in threads.iter_mut() {
        name(&one.leads, &mut one.info.waits_for.owners);
    }
    threads.retain(|one| {
        one.of_runtime || one.info.waits_for.owners.iter().any(|party| matches!(party, Party::Request { .. }))
    });
}
