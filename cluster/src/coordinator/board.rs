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
//! * Only events of the engine change a task after that: [`Board::on_events`]. What is no task any more is passed over, so a double answer does no harm.
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
//! * While it is *failing*, nothing is scheduled: `schedule` waits, and `join`, too. `done` answers false. A task that fails now fails its `fetch`, and nothing raises that.
//! * When the engine says that it is *drained*, what is listed of earlier generations is cancelled, and the failure is *due*. Nothing runs.
//! * The next call takes it. Of two that wait, one gets it; for the other one all is over.
//!
//! # When the engine is away
//!
//! While the engine says that it cannot carry tasks, each call is answered [`ClusterError::Unavailable`], but a failure that is due comes first. Nothing else changes: tasks stay listed, and are
//! waited for again when the engine is back. Who waits for a value is woken by its slot, and asks the board.
//!
//! # Limits
//!
//! The limits count what is queued, in tasks and bytes. A task that starts makes room. One that is returned needs none: the limit is exceeded then, so a
//! worker's death waits for nobody, even if all die at once. A `schedule` that waits holds no lock.

#[path = "board/state.rs"]
mod state;
#[path = "board/table.rs"]
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebear::sync::Event as Wake;
use forebear::{RequestId, TimeoutError};

use self::table::TaskTable;
use super::journal::Wanted;
use super::{Metrics, Shared, Stall, StalledTask};
use crate::engine::{Event, ObjectId, ResourceId, TaskId, WorkerId, WorkerStatus};
use crate::error::{ClusterError, TaskFailure};
use crate::remote::{RemoteState, Slot};
use crate::shim::atomic::{AtomicU64, Ordering};
use crate::shim::{Mutex, MutexGuard};
use crate::stored::Kept;

pub(crate) struct Board {
    limit: Limit,
    /// Whose board this is.
    shared: Weak<Shared>,
    state: Mutex<BoardState>,
    /// What fetches count, without the lock.
    pub(crate) fetches: Fetches,
}

/// How many values were fetched, in how much time, and so many bytes were read from the store.
#[derive(Default)]
pub(crate) struct Fetches {
    fetched: AtomicU64,
    nanos: AtomicU64,
    read: AtomicU64,
}

impl Fetches {
    /// A value was fetched, in so much time.
    pub(crate) fn fetched(&self, took: Duration) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// So many bytes were read from the store.
    pub(crate) fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) tasks: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct BoardState {
    next: u64,
    pub(crate) generation: u64,
    tasks: TaskTable<BoardEntry>,
    queued: usize,
    queued_bytes: usize,
    latch: Latch,
    workers: BTreeMap<WorkerId, WorkerStatus>,
    /// Those that are gone, in that order. One that has come back since is passed over.
    gone: VecDeque<WorkerId>,
    /// The engine cannot carry tasks: since when, and why.
    away: Option<(Instant, String)>,
    /// What nobody holds any more, and the first task that cannot use each.
    unheld: Vec<(TaskId, Unheld)>,
    closed: bool,
    ending: Ending,
    waiters: Vec<Waiter>,
    metrics: Metrics,
    /// Empty between two events, and kept for the memory.
    settled: Vec<Settled>,
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
    /// Under which key its result is kept.
    pub(super) kept: Option<Wanted>,
}

/// Which failures of a task begin a new generation and are raised. The others are told by its value alone.
#[derive(Clone, Copy)]
pub(crate) enum Raises {
    Always,
    /// All but the end of its time: that is the deadline of the request that has scheduled it.
    ButTimeOut,
    Never,
}

struct BoardEntry {
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
        let state = BoardState {
            next: 0,
            generation: 0,
            tasks: TaskTable::default(),
            queued: 0,
            queued_bytes: 0,
            latch: Latch::Clear,
            workers: BTreeMap::new(),
            gone: VecDeque::new(),
            away: None,
            unheld: Vec::new(),
            closed: false,
            ending: Ending::No,
            waiters: Vec::new(),
            metrics: Metrics::default(),
            settled: Vec::new(),
        };
        Board { limit, shared, state: Mutex::new(state), fetches: Fetches::default() }
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until that holds, and then calls `f` under the same lock. A failure that is due, and the end, come first.
    ///
    /// Suspends. A cancellation point.
    pub(crate) fn wait<T>(
        &self,
        until: Until,
        end: Option<Duration>,
        f: impl FnOnce(&mut BoardState) -> T,
    ) -> Result<T, Unmet> {
        let end = end.map(|timeout| forebear::time::now().checked_add(timeout));
        let mut waits: Option<Arc<Wake>> = None;
        let answer = loop {
            #[cfg(not(mutant = "board_resets_late"))]
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
            #[cfg(mutant = "board_resets_late")]
            wake.reset();
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
        f: impl FnOnce(&mut BoardState) -> T,
    ) -> Result<Option<T>, ClusterError> {
        let mut state = self.lock();
        let holds = state.look(until, self.limit)?;
        Ok(holds.then(|| f(&mut state)))
    }

    /// Whether the engine can carry tasks.
    pub(crate) fn check_away(&self) -> Result<(), ClusterError> {
        self.lock().check_away()
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

    /// Events of the engine, in their order. Those that are told together take the lock once, and wake each waiter once.
    pub(crate) fn on_events(&self, events: impl IntoIterator<Item = Event>) -> Vec<Then> {
        let (mut then, now) = (Vec::new(), Instant::now());
        let mut state = self.lock();
        let was_away = state.away.is_some();
        let mut settled = mem::take(&mut state.settled);
        events.into_iter().for_each(|event| state.take(event, now, &mut settled, &mut then));
        state.free_unheld(&mut then);
        // Under the lock: a waiter that wakes finds the slots as they are now.
        let mut slots = self.settle(settled.drain(..), &mut then);
        state.settled = settled;
        if state.away.is_some() != was_away {
            slots.extend(state.tell_away(!was_away));
        }
        state.wake(self.limit);
        drop(state);
        // The last handle of a slot may drop an object, which takes the lock.
        drop(slots);
        then
    }

    /// Tells slots what they are, and hands them back, each with whether it is over: they must not be dropped under the lock.
    fn settle(
        &self,
        settled: impl IntoIterator<Item = Settled>,
        then: &mut Vec<Then>,
    ) -> Vec<(Arc<Slot>, bool)> {
        let mut slots = Vec::new();
        for (slot, state, object) in settled {
            let Some(slot) = slot.upgrade() else {
                then.extend(object.map(Then::Delete));
                continue;
            };
            if let (Some(object), RemoteState::Stored { bytes }) = (object, &state) {
                slot.keep(Arc::new(Kept { shared: self.shared.clone(), object, bytes: *bytes }));
            }
            let is_over = state.is_over();
            slot.set(state);
            slots.push((slot, is_over));
        }
        // The last first: who fetches one value after the other is woken when all of these are there.
        slots.iter().rev().filter(|(_, is_over)| *is_over).for_each(|(slot, _)| slot.tell());
        slots
    }

    /// Under which key the result of a task is kept that has not ended.
    pub(super) fn kept_as(&self, task: TaskId) -> Option<Wanted> {
        self.lock().tasks.get(task)?.task.kept.clone()
    }

    /// A task is to be cancelled. `false`: it has ended.
    pub(crate) fn cancelling(&self, task: TaskId) -> bool {
        let mut state = self.lock();
        state.tasks.get_mut(task).map(|entry| entry.cancelling = true).is_some()
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
        (state.tasks.from(first))
            .take_while(|(task, _)| *task < cut)
            .filter(|(_, entry)| entry.task.by == Some(by) && !entry.task.is_wanted())
            .map(|(task, _)| task)
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
        for (worker, ..) in
            state.tasks.iter().map(|(_, entry)| entry).filter_map(|entry| entry.leased.as_ref())
        {
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
        let Fetches { fetched, nanos, read } = &self.fetches;
        let [fetched, nanos, read] = [fetched, nanos, read].map(|count| count.load(Ordering::Relaxed));
        let fetching = Duration::from_nanos(nanos);
        Metrics { queued, running, fetched, fetching, read, ..state.metrics }
    }

    /// So many tasks have ended, and what there is beside those.
    pub(crate) fn stall(&self) -> (u64, Stall) {
        let workers = self.workers();
        let state = self.lock();
        let ran = |entry: &BoardEntry| {
            let (worker, attempt, begun) = entry.leased.clone()?;
            Some(StalledTask { name: entry.task.name.clone(), worker, attempt, ran: begun.elapsed() })
        };
        let mut running: Vec<StalledTask> =
            state.tasks.iter().map(|(_, entry)| entry).filter_map(ran).collect();
        running.sort_by_key(|task| Reverse(task.ran));
        let ended = state.metrics.done + state.metrics.failed + state.metrics.cancelled;
        (ended, Stall { periods: 0, queued: state.queued, running, workers, dumps: Vec::new() })
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

    /// All is over. Waiters get `Closed`.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queued = 0;
        state.queued_bytes = 0;
        state.metrics.cancelled += state.tasks.len() as u64;
        let settled = state.tasks.take().map(|entry| (entry.task.slot, RemoteState::Closed, None));
        let slots = self.settle(settled, &mut Vec::new());
        state.workers.clear();
        state.gone.clear();
        state.wake(self.limit);
        drop(state);
        drop(slots);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "board/tests.rs"]
mod tests;
