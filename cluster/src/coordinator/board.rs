//! What the handles of a coordinator share: the tasks that have not ended, the error latch, the limits.
//!
//! # The states of a task
//!
//! ```text
//!            +-------------------------- Returned ----------------------+
//!            v                                                          |
//!   schedule --> queued --Started--> leased --Ended--> done, failed, cancelled
//!                  |                                        ^
//!                  +---- Ended, Drained, shutdown ----------+
//! ```
//!
//! The board lists the tasks that are *queued* and *leased*. One that is *done*, *failed* or *cancelled* is listed no more; its value lives in the
//! [slot](crate::remote) for as long as somebody holds the `RemoteValue`. So a result outlives its worker, and a value that nobody holds is freed.
//!
//! # Who may change what
//!
//! * `schedule` adds a task, and tells the engine without the lock.
//! * Only events of the engine change a task after that: [`Board::on_event`]. What is no task any more is passed over, so a double answer does no harm.
//! * A cancel by the user changes nothing here but `cancelling`: the engine's answer ends the task.
//! * Each change wakes those waiters whose condition holds now. A waiter looks again.
//!
//! What has to be done without the lock is returned as a list of [`Then`].
//!
//! # The error latch
//!
//! ```text
//!   clear --first failure--> failing --Drained--> due --schedule, join or done raises it--> clear
//! ```
//!
//! * The first failure of a task of this generation that nobody has cancelled begins a new *generation*, and has the engine cancel those before it. All that was
//!   scheduled belongs to those.
//! * While it is *failing*, nothing is scheduled: `schedule` waits, and `join`, too. `done` answers false. What fails now is told to who fetches it, and raised by nobody.
//! * When the engine says that it is *drained*, what is listed of earlier generations is cancelled, and the failure is *due*. Nothing runs.
//! * The next call takes it. Of two that wait, one gets it; for the other one all is over.
//!
//! # When the engine is away
//!
//! While the engine says that it cannot carry tasks, each call is answered [`ClusterError::Unavailable`], but a failure that is due comes first. Nothing else changes: tasks stay listed, and are
//! waited for again when the engine is back.
//!
//! # Limits
//!
//! The limits count what is queued, in tasks and bytes. A task that starts makes room. One that is returned needs none: the limit is exceeded then, so a
//! worker's death waits for nobody, even if all die at once. A `schedule` that waits holds no lock.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebear::sync::Event as Wake;
use forebear::{RequestId, TimeoutError};

use super::{Metrics, Shared, Stall, StalledTask};
use crate::engine::{Answer, Event, ObjectId, ResourceId, TaskId, WorkerId, WorkerState, WorkerStatus};
use crate::error::{ClusterError, FailureKind, TaskFailure};
use crate::remote::{RemoteState, Slot};
use crate::stored::Kept;

pub(crate) struct Board {
    limit: Limit,
    /// Whose board this is.
    shared: Weak<Shared>,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) tasks: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct State {
    next: u64,
    pub(crate) generation: u64,
    tasks: BTreeMap<TaskId, Entry>,
    queued: usize,
    queued_bytes: usize,
    latch: Latch,
    workers: BTreeMap<WorkerId, WorkerStatus>,
    /// The engine cannot carry tasks: since when, and why.
    away: Option<(Instant, String)>,
    /// What nobody holds any more, and the first task that cannot use each.
    unheld: Vec<(TaskId, Unheld)>,
    closed: bool,
    ending: Ending,
    waiters: Vec<Waiter>,
    metrics: Metrics,
}

/// A shutdown.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    No,
    /// Waits until what is before this generation is drained.
    Draining(u64),
    Drained,
}

enum Latch {
    Clear,
    /// Waits until what is before this generation is drained.
    Failing(TaskFailure, u64),
    Due(TaskFailure),
}

/// A task that is to be listed.
pub(crate) struct Listing {
    pub(crate) name: Arc<str>,
    /// The size of its arguments.
    pub(crate) bytes: usize,
    pub(crate) slot: Weak<Slot>,
    pub(crate) raises: Raises,
    /// The request that schedules it.
    pub(crate) by: Option<RequestId>,
}

/// Which failures of a task begin a new generation and are raised. The others are told by its value alone.
#[derive(Clone, Copy)]
pub(crate) enum Raises {
    Always,
    /// All but the end of its time: that is the deadline of who has scheduled it.
    ButTimeOut,
    Never,
}

struct Entry {
    task: Listing,
    generation: u64,
    /// The worker, the attempt, and when it began, if it is leased.
    leased: Option<(WorkerId, u32, Instant)>,
    /// Somebody has cancelled it.
    cancelling: bool,
}

struct Waiter {
    until: Until,
    wake: Arc<Wake>,
}

/// What a caller waits for. The latch comes before it.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// There is room for so many bytes.
    Room(usize),
    /// No task before this one is listed.
    Over(TaskId),
    /// No error is about to be raised.
    Settled,
    /// So many workers are ready.
    Workers(usize),
    /// The shutdown's drain.
    Ended,
}

/// What is to be done without the lock.
pub(crate) enum Then {
    CancelBefore(u64),
    Free(ResourceId),
    Delete(ObjectId),
    /// What this attempt may have stored is of no use.
    DeleteResult(TaskId, u32),
}

/// What is dropped when nobody holds it, and all tasks have ended that may have its token.
#[derive(Clone, Copy)]
pub(crate) enum Unheld {
    Resource(ResourceId),
    Object(ObjectId),
}

/// Why a wait ended without what it was for.
pub(crate) enum Unmet {
    Error(ClusterError),
    TimedOut,
}

/// What becomes of a slot.
type Settled = (Weak<Slot>, RemoteState, Option<ObjectId>);

impl Board {
    pub(crate) fn new(limit: Limit, shared: Weak<Shared>) -> Board {
        let state = State {
            next: 0,
            generation: 0,
            tasks: BTreeMap::new(),
            queued: 0,
            queued_bytes: 0,
            latch: Latch::Clear,
            workers: BTreeMap::new(),
            away: None,
            unheld: Vec::new(),
            closed: false,
            ending: Ending::No,
            waiters: Vec::new(),
            metrics: Metrics::default(),
        };
        Board { limit, shared, state: Mutex::new(state) }
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until that holds, and then calls `f` under the same lock. A failure that is due, and the end, come first.
    ///
    /// Suspends. A cancellation point.
    pub(crate) fn wait<T>(
        &self,
        until: Until,
        end: Option<Duration>,
        f: impl FnOnce(&mut State) -> T,
    ) -> Result<T, Unmet> {
        let end = end.map(|timeout| forebear::time::now().checked_add(timeout));
        let mut waits: Option<Arc<Wake>> = None;
        let answer = loop {
            if let Some(wake) = &waits {
                wake.reset();
            }
            let mut state = self.lock();
            match state.look(until, self.limit) {
                Err(error) => break Err(Unmet::Error(error)),
                Ok(true) => {
                    state.forget(waits.as_ref());
                    return Ok(f(&mut state));
                }
                Ok(false) => {}
            }
            let wake = waits.get_or_insert_with(|| {
                let wake = Arc::new(Wake::new());
                state.waiters.push(Waiter { until, wake: wake.clone() });
                wake
            });
            drop(state);
            let waited = match end {
                None | Some(None) => wake.wait().map_err(|_| TimeoutError::Cancelled),
                Some(Some(end)) => wake.wait_timeout(end.saturating_duration_since(forebear::time::now())),
            };
            match waited {
                Ok(()) => {}
                Err(TimeoutError::TimedOut) => break Err(Unmet::TimedOut),
                Err(TimeoutError::Cancelled) => break Err(Unmet::Error(ClusterError::Cancelled)),
            }
        };
        self.lock().forget(waits.as_ref());
        answer
    }

    /// The same, without waiting: `None` if one would have to wait.
    pub(crate) fn try_now<T>(
        &self,
        until: Until,
        f: impl FnOnce(&mut State) -> T,
    ) -> Result<Option<T>, ClusterError> {
        let mut state = self.lock();
        let holds = state.look(until, self.limit)?;
        Ok(holds.then(|| f(&mut state)))
    }

    /// No shutdown has begun.
    pub(crate) fn is_open(&self) -> bool {
        let state = self.lock();
        !state.closed && state.ending == Ending::No
    }

    /// The first task that is not scheduled yet.
    pub(crate) fn next(&self) -> TaskId {
        TaskId(self.lock().next)
    }

    /// An event of the engine.
    pub(crate) fn on_event(&self, event: Event) -> Vec<Then> {
        let (mut settled, mut then) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        match event {
            Event::Started { task, worker, attempt } => state.started(task, worker, attempt, &mut settled),
            Event::Returned { task } => state.returned(task, &mut settled, &mut then),
            Event::Progress { task, thousandths } => {
                if let Some(slot) = state.tasks.get(&task).and_then(|entry| entry.task.slot.upgrade()) {
                    slot.set_progress(f64::from(thousandths) / 1_000.0);
                }
            }
            Event::Ended { task, worker, attempt, answer, ran } => {
                state.metrics.ran += ran;
                state.ended(task, worker, attempt, answer, &mut settled, &mut then);
            }
            Event::Worker(status) => {
                // Of each name the newest incarnation is kept, also when it is gone.
                let of_name = |id: &WorkerId| id.name() == status.id.name();
                if !state.workers.keys().any(|id| of_name(id) && *id > status.id) {
                    state.workers.retain(|id, _| !of_name(id));
                    state.workers.insert(status.id.clone(), status);
                }
            }
            Event::Drained { before } => state.drained(before, &mut settled),
            Event::Unavailable { reason } => {
                let since = state.away.as_ref().map_or_else(Instant::now, |(since, _)| *since);
                state.away = Some((since, reason));
            }
            Event::Available => state.away = None,
        }
        state.free_unheld(&mut then);
        // Under the lock: who is woken finds the slots as they are now.
        let slots = self.settle(settled, &mut then);
        state.wake(self.limit);
        drop(state);
        // The last handle of a slot may drop an object, which takes the lock.
        drop(slots);
        then
    }

    /// Tells slots what they are, and hands them back: they must not be dropped under the lock.
    fn settle(&self, settled: Vec<Settled>, then: &mut Vec<Then>) -> Vec<Arc<Slot>> {
        let mut slots = Vec::with_capacity(settled.len());
        for (slot, state, object) in settled {
            match (slot.upgrade(), object, &state) {
                (Some(slot), Some(object), RemoteState::Stored { bytes }) => {
                    slot.keep(Arc::new(Kept { shared: self.shared.clone(), object, bytes: *bytes }));
                    slot.set(state);
                    slots.push(slot);
                }
                (Some(slot), ..) => {
                    slot.set(state);
                    slots.push(slot);
                }
                (None, object, _) => then.extend(object.map(Then::Delete)),
            }
        }
        slots
    }

    /// A task is to be cancelled. `false`: it has ended.
    pub(crate) fn cancelling(&self, task: TaskId) -> bool {
        let mut state = self.lock();
        state.tasks.get_mut(&task).map(|entry| entry.cancelling = true).is_some()
    }

    /// Whether a join waits for it.
    pub(crate) fn is_joined(&self, task: TaskId) -> bool {
        let state = self.lock();
        state.waiters.iter().any(|waiter| matches!(waiter.until, Until::Over(cut) if task < cut))
    }

    /// The tasks before `cut` that this request has scheduled and that nobody else can want: there is at most one handle, nobody fetches it, and no join waits for it.
    pub(crate) fn unwanted_without(&self, cut: TaskId, by: RequestId) -> Vec<TaskId> {
        let state = self.lock();
        let joined = (state.waiters.iter())
            .filter_map(|waiter| if let Until::Over(cut) = waiter.until { Some(cut) } else { None })
            .max();
        let first = joined.unwrap_or(TaskId(0));
        (state.tasks.range(first..cut.max(first)))
            .filter(|(_, entry)| entry.task.by == Some(by) && !entry.task.is_wanted())
            .map(|(task, _)| *task)
            .collect()
    }

    /// Nobody holds this any more. It is dropped when the tasks have ended that may have its token.
    pub(crate) fn unhold(&self, unheld: Unheld) -> Vec<Then> {
        let mut then = Vec::new();
        let mut state = self.lock();
        let cut = TaskId(state.next);
        state.unheld.push((cut, unheld));
        state.free_unheld(&mut then);
        then
    }

    /// The workers, with how many tasks each has.
    pub(crate) fn workers(&self) -> Vec<WorkerStatus> {
        let state = self.lock();
        let mut workers: Vec<WorkerStatus> = state.workers.values().cloned().collect();
        let mut running: BTreeMap<&WorkerId, usize> = BTreeMap::new();
        for (worker, ..) in state.tasks.values().filter_map(|entry| entry.leased.as_ref()) {
            *running.entry(worker).or_default() += 1;
        }
        for worker in &mut workers {
            // A worker may be given the next task a moment before the coordinator reads of the end of the last one.
            worker.running = running.get(&worker.id).copied().unwrap_or(0).min(worker.slots);
        }
        workers
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let state = self.lock();
        let (queued, running) = (state.queued, state.tasks.len() - state.queued);
        Metrics { queued, running, ..state.metrics }
    }

    /// So many tasks have ended, and what there is beside those.
    pub(crate) fn stall(&self) -> (u64, Stall) {
        let workers = self.workers();
        let state = self.lock();
        let ran = |entry: &Entry| {
            let (worker, attempt, begun) = entry.leased.clone()?;
            Some(StalledTask { name: entry.task.name.clone(), worker, attempt, ran: begun.elapsed() })
        };
        let mut running: Vec<StalledTask> = state.tasks.values().filter_map(ran).collect();
        running.sort_by_key(|task| Reverse(task.ran));
        let ended = state.metrics.done + state.metrics.failed + state.metrics.cancelled;
        (ended, Stall { periods: 0, queued: state.queued, running, workers })
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Metrics)) {
        count(&mut self.lock().metrics);
    }

    /// Begins a shutdown: everything is cancelled. `None` if it has begun before.
    pub(crate) fn begin_end(&self) -> Option<Then> {
        let mut state = self.lock();
        if state.ending != Ending::No || state.closed {
            return None;
        }
        state.generation += 1;
        state.ending = Ending::Draining(state.generation);
        Some(Then::CancelBefore(state.generation))
    }

    /// All is over. Who waits is answered `Closed`.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queued = 0;
        state.queued_bytes = 0;
        let tasks = mem::take(&mut state.tasks);
        state.metrics.cancelled += tasks.len() as u64;
        let settled = tasks.into_values().map(|entry| (entry.task.slot, RemoteState::Closed, None)).collect();
        let slots = self.settle(settled, &mut Vec::new());
        state.workers.clear();
        state.wake(self.limit);
        drop(state);
        drop(slots);
    }
}

impl State {
    /// Whether the condition holds. A failure that is due is raised by this.
    fn look(&mut self, until: Until, limit: Limit) -> Result<bool, ClusterError> {
        if let Until::Ended = until {
            let ended = self.holds(until, limit);
            return if ended { Ok(true) } else { self.check_away().map(|()| false) };
        }
        if self.closed || self.ending != Ending::No {
            return Err(ClusterError::Closed);
        }
        match mem::replace(&mut self.latch, Latch::Clear) {
            Latch::Due(failure) => Err(ClusterError::Task(failure)),
            latch => {
                self.latch = latch;
                self.check_away()?;
                Ok(self.holds(until, limit))
            }
        }
    }

    fn check_away(&self) -> Result<(), ClusterError> {
        match self.away.clone() {
            Some((since, reason)) => Err(ClusterError::Unavailable { since, reason }),
            None => Ok(()),
        }
    }

    fn holds(&self, until: Until, limit: Limit) -> bool {
        if let Until::Ended = until {
            return self.closed || self.ending == Ending::Drained;
        }
        if let Latch::Failing(..) = self.latch {
            return false;
        }
        match until {
            Until::Room(bytes) => {
                self.queued < limit.tasks && self.queued_bytes.saturating_add(bytes) <= limit.bytes
            }
            Until::Over(cut) => self.first().is_none_or(|first| first >= cut),
            Until::Workers(wanted) => {
                let ready = self.workers.values().filter(|worker| worker.state == WorkerState::Ready);
                ready.count() >= wanted
            }
            Until::Settled => true,
            Until::Ended => false,
        }
    }

    fn first(&self) -> Option<TaskId> {
        self.tasks.first_key_value().map(|(task, _)| *task)
    }

    fn wake(&self, limit: Limit) {
        let due = self.closed
            || self.ending != Ending::No
            || self.away.is_some()
            || matches!(self.latch, Latch::Due(_));
        for waiter in &self.waiters {
            if due || self.holds(waiter.until, limit) {
                waiter.wake.set();
            }
        }
    }

    fn forget(&mut self, wake: Option<&Arc<Wake>>) {
        if let Some(wake) = wake {
            self.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.wake, wake));
        }
    }

    /// Lists a task.
    pub(crate) fn add(&mut self, listing: Listing) -> TaskId {
        let task = TaskId(self.next);
        self.next += 1;
        self.queued += 1;
        self.queued_bytes += listing.bytes;
        self.metrics.scheduled += 1;
        let generation = self.generation;
        self.tasks.insert(task, Entry { task: listing, generation, leased: None, cancelling: false });
        task
    }

    fn unqueue(&mut self, bytes: usize) {
        self.queued -= 1;
        self.queued_bytes -= bytes;
    }

    fn started(&mut self, task: TaskId, worker: WorkerId, attempt: u32, settled: &mut Vec<Settled>) {
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        let (bytes, was) =
            (entry.task.bytes, entry.leased.replace((worker.clone(), attempt, Instant::now())));
        settled.push((
            entry.task.slot.clone(),
            RemoteState::Running { worker, attempt, progress: 0.0 },
            None,
        ));
        if was.is_none() {
            self.unqueue(bytes);
        }
    }

    fn returned(&mut self, task: TaskId, settled: &mut Vec<Settled>, then: &mut Vec<Then>) {
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        if let Some((_, attempt, _)) = entry.leased.take() {
            then.push(Then::DeleteResult(task, attempt));
            self.queued += 1;
            self.queued_bytes += entry.task.bytes;
            self.metrics.returned += 1;
            settled.push((entry.task.slot.clone(), RemoteState::Queued, None));
        }
    }

    fn remove(&mut self, task: TaskId) -> Option<Entry> {
        let entry = self.tasks.remove(&task)?;
        if entry.leased.is_none() {
            self.unqueue(entry.task.bytes);
        }
        Some(entry)
    }

    fn ended(
        &mut self,
        task: TaskId,
        worker: Option<WorkerId>,
        attempt: u32,
        answer: Answer,
        settled: &mut Vec<Settled>,
        then: &mut Vec<Then>,
    ) {
        let Some(entry) = self.remove(task) else { return };
        let mut stored = None;
        let state = match answer {
            Answer::Done(value) => {
                self.metrics.done += 1;
                RemoteState::Done(value)
            }
            Answer::Stored { object, bytes } => {
                self.metrics.done += 1;
                stored = Some(object);
                RemoteState::Stored { bytes }
            }
            Answer::Cancelled => {
                self.metrics.cancelled += 1;
                self.cancelled()
            }
            Answer::Failed(kind) => {
                self.metrics.failed += 1;
                let raises = match entry.task.raises {
                    Raises::Always => true,
                    Raises::ButTimeOut => kind != FailureKind::TimedOut,
                    Raises::Never => false,
                };
                let failure = TaskFailure::new(entry.task.name, worker, attempt, kind);
                let counts = raises && !entry.cancelling && entry.generation == self.generation;
                if counts && matches!(self.latch, Latch::Clear) {
                    self.generation += 1;
                    self.latch = Latch::Failing(failure.clone(), self.generation);
                    then.push(Then::CancelBefore(self.generation));
                }
                RemoteState::Failed(failure)
            }
        };
        settled.push((entry.task.slot, state, stored));
    }

    fn drained(&mut self, before: u64, settled: &mut Vec<Settled>) {
        let is_old = |entry: &Entry| entry.generation < before;
        let old: Vec<TaskId> =
            self.tasks.iter().filter(|(_, entry)| is_old(entry)).map(|(task, _)| *task).collect();
        for task in old {
            if let Some(entry) = self.remove(task) {
                self.metrics.cancelled += 1;
                settled.push((entry.task.slot, self.cancelled(), None));
            }
        }
        self.latch = match mem::replace(&mut self.latch, Latch::Clear) {
            Latch::Failing(failure, generation) if generation <= before => Latch::Due(failure),
            latch => latch,
        };
        if matches!(self.ending, Ending::Draining(generation) if generation <= before) {
            self.ending = Ending::Drained;
        }
    }

    /// What a value is whose task was cancelled.
    fn cancelled(&self) -> RemoteState {
        if self.ending == Ending::No { RemoteState::Dropped } else { RemoteState::Closed }
    }

    fn free_unheld(&mut self, then: &mut Vec<Then>) {
        let first = self.first();
        let is_free = |cut: TaskId| first.is_none_or(|first| first >= cut);
        self.unheld.retain(|(cut, unheld)| {
            let free = is_free(*cut);
            if free {
                then.push(match *unheld {
                    Unheld::Resource(resource) => Then::Free(resource),
                    Unheld::Object(object) => Then::Delete(object),
                });
            }
            !free
        });
    }
}

impl Listing {
    /// Somebody fetches its value, or there are several handles of it.
    fn is_wanted(&self) -> bool {
        // The slot of a listed task holds no object, so it may be dropped under the lock.
        self.slot.upgrade().is_some_and(|slot| slot.is_wanted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(tasks: usize) -> Board {
        Board::new(Limit { tasks, bytes: 100 }, Weak::new())
    }

    fn add(board: &Board, slot: &Arc<Slot>) -> TaskId {
        add_as(board, slot, Raises::Always)
    }

    fn add_as(board: &Board, slot: &Arc<Slot>, raises: Raises) -> TaskId {
        let slot = Arc::downgrade(slot);
        let listing = Listing { name: "task".into(), bytes: 1, slot, raises, by: None };
        board.try_now(Until::Room(1), |state| state.add(listing)).unwrap().unwrap()
    }

    fn ended(task: TaskId, answer: Answer) -> Event {
        Event::Ended { task, worker: None, attempt: 1, answer, ran: Duration::ZERO }
    }

    fn failed() -> Answer {
        Answer::Failed(crate::FailureKind::TimedOut)
    }

    #[test]
    fn r30_a_result_that_nobody_holds_is_freed() {
        let (board, slot) = (board(9), Arc::new(Slot::new(None)));
        let task = add(&board, &slot);
        let weak = Arc::downgrade(&slot);
        drop(slot);
        let bytes: Arc<[u8]> = Arc::from([1_u8, 2]);
        board.on_event(ended(task, Answer::Done(bytes.clone())));
        assert!(weak.upgrade().is_none());
        assert_eq!(Arc::strong_count(&bytes), 1);
    }

    #[test]
    fn r22_events_of_tasks_that_are_no_tasks_any_more_change_nothing() {
        let (board, slot) = (board(1), Arc::new(Slot::new(None)));
        let task = add(&board, &slot);
        let worker = WorkerId::new("worker", 1);
        board.on_event(Event::Started { task, worker: worker.clone(), attempt: 1 });
        board.on_event(ended(task, Answer::Done(Arc::from([]))));
        for _ in 0..2 {
            assert!(board.on_event(ended(task, failed())).is_empty());
            assert!(board.on_event(Event::Returned { task }).is_empty());
            board.on_event(Event::Started { task, worker: worker.clone(), attempt: 2 });
        }
        let metrics = board.metrics();
        assert_eq!((metrics.done, metrics.failed, metrics.queued, metrics.running), (1, 0, 0, 0));
        assert_eq!(board.try_now(Until::Over(TaskId(u64::MAX)), |_| ()).unwrap(), Some(()));
    }

    #[test]
    fn a_failure_is_raised_after_the_drain_and_not_before() {
        let (board, slots) = (board(9), [(); 3].map(|()| Arc::new(Slot::new(None))));
        let tasks = slots.each_ref().map(|slot| add(&board, slot));
        let then = board.on_event(ended(tasks[0], failed()));
        assert!(matches!(then[..], [Then::CancelBefore(1)]));
        let look = || board.try_now(Until::Settled, |_| ());
        assert_eq!(look().unwrap(), None);
        // Another one fails meanwhile.
        assert!(board.on_event(ended(tasks[1], failed())).is_empty());
        assert_eq!(look().unwrap(), None);
        board.on_event(Event::Drained { before: 1 });
        assert!(matches!(look(), Err(ClusterError::Task(_))));
        assert_eq!(look().unwrap(), Some(()), "once");
        // What was drained and answers late is no failure of the new generation.
        assert!(board.on_event(ended(tasks[2], failed())).is_empty());
        assert_eq!(look().unwrap(), Some(()));
    }

    #[test]
    fn a_time_out_that_was_inherited_is_raised_by_nobody_and_other_failures_are() {
        let (board, slot) = (board(9), Arc::new(Slot::new(None)));
        let look = |board: &Board| board.try_now(Until::Settled, |_| ()).unwrap();
        for raises in [Raises::ButTimeOut, Raises::Never] {
            let task = add_as(&board, &slot, raises);
            assert!(board.on_event(ended(task, failed())).is_empty());
            assert_eq!(look(&board), Some(()));
        }
        let task = add_as(&board, &slot, Raises::Never);
        let other = || Answer::Failed(crate::FailureKind::NotRegistered);
        assert!(board.on_event(ended(task, other())).is_empty());
        let task = add_as(&board, &slot, Raises::ButTimeOut);
        assert!(matches!(board.on_event(ended(task, other()))[..], [Then::CancelBefore(1)]));
    }

    #[test]
    fn each_call_says_that_the_engine_is_away_until_it_is_back() {
        let (board, slot) = (board(9), Arc::new(Slot::new(None)));
        let task = add(&board, &slot);
        board.on_event(Event::Unavailable { reason: "gone".into() });
        for until in [Until::Room(1), Until::Over(TaskId(9)), Until::Settled] {
            for _ in 0..2 {
                let look = board.try_now(until, |_| ());
                assert!(matches!(look, Err(ClusterError::Unavailable { reason, .. }) if reason == "gone"));
            }
        }
        // An error that is due is the cause of more than that, and is told first.
        board.on_event(ended(task, failed()));
        board.on_event(Event::Drained { before: 1 });
        assert!(matches!(board.try_now(Until::Settled, |_| ()), Err(ClusterError::Task(_))));
        board.on_event(Event::Available);
        assert_eq!(board.try_now(Until::Over(TaskId(9)), |_| ()).unwrap(), Some(()));
    }

    #[test]
    fn what_comes_back_needs_no_room() {
        let (board, slots) = (board(1), [(); 2].map(|()| Arc::new(Slot::new(None))));
        let first = add(&board, &slots[0]);
        let worker = WorkerId::new("worker", 1);
        board.on_event(Event::Started { task: first, worker, attempt: 1 });
        add(&board, &slots[1]);
        board.on_event(Event::Returned { task: first });
        assert_eq!(board.metrics().queued, 2);
        assert_eq!(board.try_now(Until::Room(1), |_| ()).unwrap(), None);
    }
}
