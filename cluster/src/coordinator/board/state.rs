//! What events do to the tasks on the board, and whether what a waiter waits for holds. All of it is under the board's lock.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use forebear::sync::Event as Wake;

use super::{BoardEntry, BoardState, Ending, Latch, Limit, Listing, Raises, Settled, Then, Unheld, Until};
use crate::engine::{Answer, Event, GONE, TaskId, WorkerId, WorkerState};
use crate::error::{ClusterError, FailureKind, TaskFailure};
use crate::remote::{RemoteState, Slot};

impl BoardState {
    /// Whether the condition holds. A failure that is due is raised by this.
    pub(super) fn look(&mut self, until: Until, limit: Limit) -> Result<bool, ClusterError> {
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

    pub(super) fn check_away(&self) -> Result<(), ClusterError> {
        match self.away.clone() {
            Some((since, reason)) => Err(ClusterError::Unavailable { since, reason }),
            None => Ok(()),
        }
    }

    /// The engine is away, or back: wakes those who wait for values, or lets them wait again. The slots are handed back, as by [`settle`](super::Board::settle).
    pub(super) fn tell_away(&self, away: bool) -> Vec<(Arc<Slot>, bool)> {
        let slots = self.tasks.iter().filter_map(|(_, entry)| Some((entry.task.slot.upgrade()?, false)));
        slots.inspect(|(slot, _)| slot.tell_away(away)).collect()
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
        self.tasks.first()
    }

    pub(super) fn wake(&self, limit: Limit) {
        let due = self.closed
            || self.ending != Ending::No
            || self.away.is_some()
            || matches!(self.latch, Latch::Due(_));
        for waiter in &self.waiters {
            #[cfg(mutant = "room_wakes_nobody")]
            if let Until::Room(_) = waiter.until {
                continue;
            }
            if due || self.holds(waiter.until, limit) {
                waiter.wake.set();
            }
        }
    }

    pub(super) fn forget(&mut self, wake: Option<&Arc<Wake>>) {
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
        self.tasks.insert(task, BoardEntry { task: listing, generation, leased: None, cancelling: false });
        task
    }

    /// A number for a task that is not scheduled, since its result was kept.
    pub(in crate::coordinator) fn found(&mut self) -> TaskId {
        let task = TaskId(self.next);
        self.next += 1;
        self.metrics.kept += 1;
        task
    }

    fn unqueue(&mut self, bytes: usize) {
        self.queued -= 1;
        self.queued_bytes -= bytes;
    }

    /// What an event of the engine changes.
    pub(super) fn take(
        &mut self,
        event: Event,
        now: Instant,
        settled: &mut Vec<Settled>,
        then: &mut Vec<Then>,
    ) {
        match event {
            Event::Started { task, worker, attempt } => self.started(task, worker, attempt, now, settled),
            Event::Returned { task } => self.returned(task, settled, then),
            Event::Progress { task, thousandths } => {
                let entry = self.tasks.get(task);
                if let Some((entry, (worker, attempt, _))) = entry.and_then(|e| Some((e, e.leased.clone()?)))
                {
                    let progress = f64::from(thousandths.min(1_000)) / 1_000.0;
                    let running = RemoteState::Running { worker, attempt, progress };
                    settled.push((entry.task.slot.clone(), running, None));
                }
            }
            Event::Ended { task, worker, attempt, answer, ran } => {
                // What a worker says may be anything.
                self.metrics.ran = self.metrics.ran.saturating_add(ran);
                self.ended(task, worker, attempt, answer, settled, then);
            }
            Event::Worker(status) => {
                // Of each name the newest incarnation is kept, also when it is gone.
                let of_name = |id: &WorkerId| id.name() == status.id.name();
                if !self.workers.keys().any(|id| of_name(id) && *id > status.id) {
                    self.workers.retain(|id, _| !of_name(id));
                    if status.state == WorkerState::Gone {
                        self.gone.push_back(status.id.clone());
                    }
                    self.workers.insert(status.id.clone(), status);
                    self.forget_gone();
                }
            }
            Event::Drained { before } => self.drained(before, settled),
            Event::Unavailable { reason } => {
                let since = self.away.as_ref().map_or(now, |(since, _)| *since);
                self.away = Some((since, reason));
            }
            Event::Available => self.away = None,
            // The inquiries take it.
            Event::Dump { .. } => {}
        }
    }

    /// Of the workers that are gone the newest stay.
    fn forget_gone(&mut self) {
        while self.gone.len() > GONE {
            let Some(oldest) = self.gone.pop_front() else { return };
            // One that has come back is another incarnation.
            self.workers.remove(&oldest);
        }
    }

    fn started(
        &mut self,
        task: TaskId,
        worker: WorkerId,
        attempt: u32,
        now: Instant,
        settled: &mut Vec<Settled>,
    ) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        let (bytes, was) = (entry.task.bytes, entry.leased.replace((worker.clone(), attempt, now)));
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
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if let Some((_, attempt, _)) = entry.leased.take() {
            then.push(Then::DeleteResult(task, attempt));
            self.queued += 1;
            self.queued_bytes += entry.task.bytes;
            self.metrics.returned += 1;
            settled.push((entry.task.slot.clone(), RemoteState::Queued, None));
        }
    }

    fn remove(&mut self, task: TaskId) -> Option<BoardEntry> {
        let entry = self.tasks.remove(task)?;
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
        let is_old = |entry: &BoardEntry| entry.generation < before;
        let old: Vec<TaskId> =
            self.tasks.iter().filter(|(_, entry)| is_old(entry)).map(|(task, _)| task).collect();
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

    pub(super) fn free_unheld(&mut self, then: &mut Vec<Then>) {
        if self.unheld.is_empty() {
            return;
        }
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
    pub(super) fn is_wanted(&self) -> bool {
        // The slot of a listed task holds no object, so it may be dropped under the lock.
        self.slot.upgrade().is_some_and(|slot| slot.is_wanted())
    }
}
