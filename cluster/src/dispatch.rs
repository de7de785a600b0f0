//! [`Dispatcher`]: the queue of the engines whose coordinator hands the tasks out itself.
//!
//! # The states of a task
//!
//! ```text
//!   submit --> queued --a free slot--> leased --Answer--> ended
//!                ^                        |
//!                +----- worker gone ------+--too often--> ended (Poisoned)
//! ```
//!
//! * *Queued.* In `queue`, or dropped by `cancel_before`.
//! * *Leased.* In the `running` of its worker. Only the answer of that worker, and its going, end a lease.
//! * *Suspect.* As many workers have died with it as may, and in the last one it was not alone. It is leased once more, to a worker that has nothing else: see [`Alone`].
//! * *Orphaned.* A worker was declared gone, and its request has not ended: in the `orphans` of that worker. The task itself is queued again, or has
//!   ended. An orphan counts for `Drained`, since something runs. Its answer tells nothing else.
//!
//! # Who may change what
//!
//! All state is under one lock. A caller that changes it puts what has to be done outside, orders and events, into the [`outbox`], in order, and one caller at a time sends that without the lock. Tasks are handed out when the outbox is empty, or has nothing but good ends: so a failure that has happened before is told, and has cancelled the queue. An order or an event that makes for further messages adds to the outbox, and does not recurse.
//!
//! Nobody waits here. A task that goes back needs no room.

#[path = "dispatch/outbox.rs"]
mod outbox;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use self::outbox::{Batch, Message};
use crate::by_task::ByTask;
use crate::engine::{
    Answer, Envelope, Event, EventSink, Order, Report, Resource, ResourceId, TaskId, WorkerId, WorkerState,
    WorkerStatus,
};
use crate::error::FailureKind;
use crate::shim::{Mutex, MutexGuard};

/// The way to a worker.
pub(crate) trait Port: Send + Sync {
    /// Carries an order, at the latest with the next [`flush`](Self::flush). Does not wait.
    fn order(&self, order: Order);
    /// There are no more orders for now. Does not wait.
    fn flush(&self) {}
    /// Ends the worker. Does not wait.
    fn stop(&self);
}

pub(crate) struct Dispatcher {
    events: EventSink,
    state: Mutex<DispatchState>,
}

#[derive(Default)]
struct DispatchState {
    queue: VecDeque<Queued>,
    workers: BTreeMap<WorkerId, Worker>,
    /// One entry for each free slot of a worker that is ready, the longest free first. Those of workers that are not ready any more are passed over.
    free: VecDeque<WorkerId>,
    resources: BTreeMap<ResourceId, Resource>,
    /// Tasks of generations before this one are dropped.
    floor: u64,
    /// The floor has risen, and that nothing below it runs has not been told.
    draining: bool,
    closed: bool,
    outbox: VecDeque<Message>,
    /// Somebody empties the outbox.
    sending: bool,
    /// The outbox has been put off for orders.
    put_off: bool,
    spare: Batch,
    /// Empty between two calls, and kept for the memory.
    orders: VecDeque<Message>,
    /// Reports that were dropped.
    dropped: u64,
}

struct Queued {
    envelope: Envelope,
    /// So many workers have had it.
    attempts: u32,
    /// So many workers have died with it.
    deaths: u32,
    due: Option<Instant>,
}

impl Queued {
    /// It is not judged before it has run alone.
    fn is_suspect(&self) -> bool {
        self.deaths > 0 && self.deaths >= self.envelope.max_attempts
    }
}

struct Worker {
    port: Arc<dyn Port>,
    slots: usize,
    state: WorkerState,
    running: ByTask<Leased>,
    orphans: HashSet<(TaskId, u32)>,
    alone: Alone,
}

/// Whether a worker of several slots is kept for one task. It is given no other one then.
enum Alone {
    No,
    /// This task waits until the worker has ended what it has.
    Waits(Box<Queued>),
    /// It runs.
    Runs,
}

impl Alone {
    fn waits_for(&self, task: TaskId) -> bool {
        matches!(self, Alone::Waits(queued) if queued.envelope.task == task)
    }
}

struct Leased {
    queued: Queued,
    cancelled: bool,
}

/// How a worker has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// It has died, and what it ran with it.
    Died,
    /// The program has killed it by its control, so no task can be to blame.
    Killed,
    /// It counts as dead. What it runs has not ended, and will answer.
    RunsOn,
}

impl Dispatcher {
    pub(crate) fn new(events: EventSink) -> Dispatcher {
        Dispatcher { events, state: Mutex::new(DispatchState::default()) }
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, DispatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submit(&self, envelope: Envelope) {
        let due = envelope.time_left.and_then(|left| Instant::now().checked_add(left));
        self.change(|state| {
            if envelope.generation >= state.floor && !state.closed {
                state.queue.push_back(Queued { envelope, attempts: 0, deaths: 0, due });
            }
        });
    }

    pub(crate) fn cancel(&self, task: TaskId) {
        self.change(|state| {
            if let Some(at) = state.place_of(task) {
                let attempts = state.queue.remove(at).map_or(0, |queued| queued.attempts);
                return state.end(task, None, attempts, Answer::Cancelled, Duration::ZERO);
            }
            if let Some(queued) = state.give_up_waiting(|alone| alone.waits_for(task)).pop() {
                return state.end(task, None, queued.attempts, Answer::Cancelled, Duration::ZERO);
            }
            for worker in state.workers.values_mut() {
                if let Some(leased) = worker.running.get_mut(&task) {
                    leased.cancelled = true;
                    state.outbox.push_back(Message::Order(worker.port.clone(), Order::Cancel(task)));
                }
            }
        });
    }

    pub(crate) fn cancel_before(&self, generation: u64) {
        self.change(|state| {
            state.floor = state.floor.max(generation);
            state.draining = true;
            let floor = state.floor;
            state.queue.retain(|queued| queued.envelope.generation >= floor);
            let is_old =
                |alone: &Alone| matches!(alone, Alone::Waits(queued) if queued.envelope.generation < floor);
            state.give_up_waiting(is_old);
            for worker in state.workers.values_mut() {
                for (task, leased) in &mut worker.running {
                    if leased.queued.envelope.generation < floor {
                        leased.cancelled = true;
                        state.outbox.push_back(Message::Order(worker.port.clone(), Order::Cancel(*task)));
                    }
                }
            }
        });
    }

    pub(crate) fn make(&self, resource: Resource) {
        self.change(|state| {
            state.resources.insert(resource.id, resource.clone());
            for worker in state.workers.values().filter(|worker| worker.state != WorkerState::Gone) {
                state.outbox.push_back(Message::Order(worker.port.clone(), Order::Make(resource.clone())));
            }
        });
    }

    pub(crate) fn free(&self, id: ResourceId) {
        self.change(|state| {
            state.resources.remove(&id);
            for worker in state.workers.values().filter(|worker| worker.state != WorkerState::Gone) {
                state.outbox.push_back(Message::Order(worker.port.clone(), Order::Free(id)));
            }
        });
    }

    /// These workers are to say what they do.
    pub(crate) fn dump(&self, inquiry: u64, workers: &[WorkerId]) {
        self.change(|state| {
            for id in workers {
                let worker = state.workers.get(id).filter(|worker| worker.state != WorkerState::Gone);
                if let Some(worker) = worker {
                    let port = worker.port.clone();
                    state.outbox.push_back(Message::Order(port, Order::Dump { inquiry }));
                }
            }
        });
    }

    /// A worker has come. The resources are its first orders.
    pub(crate) fn join(&self, id: WorkerId, slots: usize, port: Arc<dyn Port>) {
        self.change(|state| {
            if state.closed {
                return state.outbox.push_back(Message::Stop(port));
            }
            let (running, orphans) = (ByTask::default(), HashSet::new());
            let (state_of, alone) = (WorkerState::Starting, Alone::No);
            let worker = Worker { port: port.clone(), slots, state: state_of, running, orphans, alone };
            state.workers.insert(id.clone(), worker);
            // Before its orders: events name only workers that the coordinator knows.
            state.tell_worker(&id);
            let orders = state.resources.values().cloned().map(Order::Make).chain([Order::Begin]);
            state.outbox.extend(orders.map(|order| Message::Order(port.clone(), order)));
        });
    }

    /// A worker is to end what it has, and then to leave.
    pub(crate) fn drain(&self, id: &WorkerId) {
        self.change(|state| state.drain(id));
    }

    /// A worker is gone: its tasks go back.
    pub(crate) fn gone(&self, id: &WorkerId, how: Going) {
        self.change(|state| {
            let Some(worker) = state.workers.get_mut(id) else { return };
            if worker.state == WorkerState::Gone {
                return;
            }
            worker.state = WorkerState::Gone;
            state.outbox.push_back(Message::Stop(worker.port.clone()));
            let mut leases: Vec<Leased> = mem::take(&mut worker.running).into_values().collect();
            if how == Going::RunsOn {
                let orphans =
                    leases.iter().map(|leased| (leased.queued.envelope.task, leased.queued.attempts));
                worker.orphans.extend(orphans);
            }
            leases.sort_by_key(|leased| leased.queued.envelope.task);
            if let Alone::Waits(queued) = mem::replace(&mut worker.alone, Alone::No) {
                // It has not begun.
                state.queue.push_front(*queued);
            }
            let (died, alone) = (how != Going::Killed, leases.len() == 1);
            leases.into_iter().for_each(|leased| state.put_back(id, leased, died, alone));
            state.tell_worker(id);
            state.forget_if_over(id);
        });
    }

    pub(crate) fn report(&self, id: &WorkerId, report: Report) {
        self.reports(id, [report]);
    }

    /// What a worker has said, in its order.
    pub(crate) fn reports(&self, id: &WorkerId, reports: impl IntoIterator<Item = Report>) {
        self.change(|state| reports.into_iter().for_each(|report| state.reported(id, report)));
    }

    /// A worker has said what cannot be read.
    pub(crate) fn dropped(&self) {
        self.lock().dropped += 1;
    }

    /// So many reports were dropped so far.
    pub(crate) fn count_dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Tells the coordinator something that concerns no task.
    pub(crate) fn tell(&self, event: Event) {
        self.change(|state| state.outbox.push_back(Message::Event(event)));
    }

    /// It has not been closed.
    pub(crate) fn is_open(&self) -> bool {
        !self.lock().closed
    }

    pub(crate) fn close(&self) {
        self.change(|state| {
            state.closed = true;
            state.queue.clear();
            state.workers.values_mut().for_each(|worker| worker.alone = Alone::No);
            state.resources.clear();
            for worker in state.workers.values().filter(|worker| worker.state != WorkerState::Gone) {
                state.outbox.push_back(Message::Stop(worker.port.clone()));
            }
        });
    }
}

impl DispatchState {
    /// Where the task stands in the queue. Tasks enter it in the order of their numbers, but for those that a worker has given back.
    fn place_of(&self, task: TaskId) -> Option<usize> {
        let found = self.queue.binary_search_by_key(&task, |queued| queued.envelope.task).ok();
        found.or_else(|| {
            let runs = self.workers.values().any(|worker| worker.running.contains_key(&task));
            if runs { None } else { self.queue.iter().rposition(|queued| queued.envelope.task == task) }
        })
    }

    /// Takes away those suspects that wait for a worker to be empty, and frees their workers.
    fn give_up_waiting(&mut self, is_it: impl Fn(&Alone) -> bool) -> Vec<Queued> {
        let mut given_up = Vec::new();
        let its: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, worker)| is_it(&worker.alone))
            .map(|(id, _)| id.clone())
            .collect();
        for id in its {
            let worker = self.workers.get_mut(&id);
            if let Some(Alone::Waits(queued)) =
                worker.map(|worker| mem::replace(&mut worker.alone, Alone::No))
            {
                given_up.push(*queued);
            }
            self.free_all(&id);
        }
        given_up
    }

    /// All slots of a worker are free that run nothing. They are the first ones.
    fn free_all(&mut self, id: &WorkerId) {
        self.free.retain(|free| free != id);
        if let Some(worker) = self.workers.get(id).filter(|worker| worker.state == WorkerState::Ready) {
            for _ in worker.running.len()..worker.slots {
                self.free.push_front(id.clone());
            }
        }
    }

    fn reported(&mut self, id: &WorkerId, report: Report) {
        match report {
            Report::Ready => {
                let Some(worker) = self.workers.get_mut(id) else { return };
                if worker.state == WorkerState::Starting {
                    worker.state = WorkerState::Ready;
                    self.free.extend((0..worker.slots).map(|_| id.clone()));
                    self.tell_worker(id);
                }
            }
            Report::Draining => self.drain(id),
            Report::Progress { task, thousandths } => {
                if self.workers.get(id).is_some_and(|worker| worker.running.contains_key(&task)) {
                    self.outbox.push_back(Message::Event(Event::Progress { task, thousandths }));
                } else {
                    self.dropped += 1;
                }
            }
            Report::Dump { inquiry, text } => {
                if self.workers.contains_key(id) {
                    let event = Event::Dump { worker: id.clone(), inquiry, text };
                    self.outbox.push_back(Message::Event(event));
                } else {
                    self.dropped += 1;
                }
            }
            Report::Answer { task, attempt, answer, ran } => self.answered(id, task, attempt, answer, ran),
        }
    }

    fn end(&mut self, task: TaskId, worker: Option<WorkerId>, attempt: u32, answer: Answer, ran: Duration) {
        self.outbox.push_back(Message::Event(Event::Ended { task, worker, attempt, answer, ran }));
    }

    fn tell_worker(&mut self, id: &WorkerId) {
        if let Some(worker) = self.workers.get(id) {
            let (slots, running) = (worker.slots, worker.running.len());
            let status = WorkerStatus { id: id.clone(), state: worker.state, slots, running };
            self.outbox.push_back(Message::Event(Event::Worker(status)));
        }
    }

    /// Leases tasks to free slots, as long as there are both. The events of all of them come first, and then the orders.
    fn hand_out(&mut self) {
        let mut orders = mem::take(&mut self.orders);
        while !self.queue.is_empty() {
            let Some(id) = self.free.pop_front() else { break };
            let is_open = |worker: &&mut Worker| {
                worker.state == WorkerState::Ready && matches!(worker.alone, Alone::No)
            };
            let Some(worker) = self.workers.get_mut(&id).filter(is_open) else { continue };
            let Some(mut queued) = self.queue.pop_front() else { break };
            if queued.is_suspect() && worker.slots > 1 {
                if !worker.running.is_empty() {
                    worker.alone = Alone::Waits(Box::new(queued));
                    continue;
                }
                worker.alone = Alone::Runs;
            }
            queued.attempts += 1;
            queued.envelope.time_left = queued.due.map(|due| due.saturating_duration_since(Instant::now()));
            let (task, attempt) = (queued.envelope.task, queued.attempts);
            let order = Order::Run { envelope: queued.envelope.clone(), attempt };
            worker.running.insert(task, Leased { queued, cancelled: false });
            orders.push_back(Message::Order(worker.port.clone(), order));
            self.outbox.push_back(Message::Event(Event::Started { task, worker: id, attempt }));
        }
        self.outbox.append(&mut orders);
        self.orders = orders;
    }

    fn answered(&mut self, id: &WorkerId, task: TaskId, attempt: u32, answer: Answer, ran: Duration) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if !worker.orphans.is_empty() && worker.orphans.remove(&(task, attempt)) {
            return self.forget_if_over(id);
        }
        let Entry::Occupied(leased) = worker.running.entry(task) else {
            self.dropped += 1;
            return;
        };
        if leased.get().queued.attempts != attempt {
            self.dropped += 1;
            return;
        }
        #[cfg(not(mutant = "answer_keeps_its_lease"))]
        leased.remove();
        let state = worker.state;
        if state == WorkerState::Ready {
            match mem::replace(&mut worker.alone, Alone::No) {
                Alone::No => self.free.push_back(id.clone()),
                Alone::Waits(queued) if !worker.running.is_empty() => worker.alone = Alone::Waits(queued),
                Alone::Waits(queued) => {
                    self.queue.push_front(*queued);
                    self.free_all(id);
                }
                Alone::Runs => self.free_all(id),
            }
        }
        self.end(task, Some(id.clone()), attempt, answer, ran);
        if state == WorkerState::Draining {
            self.leave_if_drained(id);
        }
    }

    /// The worker of this lease is gone. `died`: that counts as a death. `alone`: it had no other one.
    fn put_back(&mut self, id: &WorkerId, leased: Leased, died: bool, alone: bool) {
        let Leased { mut queued, cancelled } = leased;
        let (task, attempts) = (queued.envelope.task, queued.attempts);
        queued.deaths += u32::from(died);
        if cancelled {
            self.end(task, Some(id.clone()), attempts, Answer::Cancelled, Duration::ZERO);
        } else if queued.due.is_some_and(|due| due <= Instant::now()) {
            // Another worker would only say so.
            let answer = Answer::Failed(FailureKind::TimedOut);
            self.end(task, Some(id.clone()), attempts, answer, Duration::ZERO);
        } else if died && alone && queued.is_suspect() {
            let answer = Answer::Failed(FailureKind::Poisoned { attempts: queued.deaths });
            self.end(task, None, attempts, answer, Duration::ZERO);
        } else {
            self.outbox.push_back(Message::Event(Event::Returned { task }));
            self.queue.push_back(queued);
        }
    }

    fn drain(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.state != WorkerState::Gone {
            worker.state = WorkerState::Draining;
            if let Alone::Waits(queued) = mem::replace(&mut worker.alone, Alone::No) {
                self.queue.push_front(*queued);
            }
            self.tell_worker(id);
            self.leave_if_drained(id);
        }
    }

    fn leave_if_drained(&mut self, id: &WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.state == WorkerState::Draining && worker.running.is_empty() {
            worker.state = WorkerState::Gone;
            self.outbox.push_back(Message::Stop(worker.port.clone()));
            self.tell_worker(id);
            self.forget_if_over(id);
        }
    }

    /// A worker that is gone is kept for what of it still runs.
    fn forget_if_over(&mut self, id: &WorkerId) {
        let over = |worker: &Worker| worker.state == WorkerState::Gone && worker.orphans.is_empty();
        if self.workers.get(id).is_some_and(over) {
            self.workers.remove(id);
        }
    }

    fn tell_drained(&mut self) {
        let floor = self.floor;
        #[cfg(not(mutant = "drained_while_it_runs"))]
        let is_old = |leased: &Leased| leased.queued.envelope.generation < floor;
        #[cfg(mutant = "drained_while_it_runs")]
        let is_old = |_: &Leased| false;
        let runs = |worker: &Worker| !worker.orphans.is_empty() || worker.running.values().any(is_old);
        if self.draining && !self.workers.values().any(runs) {
            self.draining = false;
            self.outbox.push_back(Message::Event(Event::Drained { before: floor }));
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "dispatch/tests.rs"]
mod tests;
