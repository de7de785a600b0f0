//! Members that are gone: how the ledger finds out, and what becomes of their tasks.

use std::time::{Duration, Instant};

use forebear_cluster::FailureKind;
use forebear_cluster::engine::{Answer, Event, TaskId, WorkerId, WorkerState, WorkerStatus};

use super::{Act, Ledger, Member};

/// What a process has done that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    /// It was ready.
    pub(crate) ready: bool,
    /// It has finished a task.
    pub(crate) finished: bool,
    /// It had tasks in hand.
    pub(crate) busy: bool,
}

/// So many starts of programs that have ended are known. A request to join does not come later than that.
const DEAD: usize = 1 << 10;

impl Ledger {
    /// The process of this start has ended.
    pub(crate) fn died(&mut self, launch: u64) -> Past {
        self.dead.insert(launch);
        if self.dead.len() > DEAD {
            self.dead.pop_first();
        }
        let mut past = Past {
            ready: self.were_ready.remove(&launch),
            finished: self.have_finished.remove(&launch),
            busy: false,
        };
        let its = self.members.iter().find(|(_, member)| member.launch == Some(launch));
        if let Some((number, member)) = its {
            past.finished |= member.finished;
            past.busy = !member.leases.is_empty();
            let number = *number;
            self.leave(number);
        }
        past
    }

    /// A member is to be gone, when all is read that it may have recorded.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if member.leaving.is_none() {
            member.leaving = Some(None);
            self.acts.push(Act::AskNewest { member: number });
        }
    }

    /// The newest record has this number, asked for that member.
    pub(crate) fn newest(&mut self, member: u64, number: u64) {
        if let Some(member) = self.members.get_mut(&member) {
            member.leaving = Some(Some(number));
        }
        self.let_go();
    }

    /// Those are gone whose records are read.
    pub(super) fn let_go(&mut self) {
        let read = self.read;
        let is_read = |member: &Member| matches!(member.leaving, Some(Some(number)) if number <= read);
        let all: Vec<u64> =
            self.members.iter().filter(|(_, m)| is_read(m)).map(|(number, _)| *number).collect();
        all.into_iter().for_each(|member| self.gone(member));
    }

    /// Time has passed. `connected`: the coordinator could hear all that time.
    pub(crate) fn tick(&mut self, now: Instant, connected: bool) {
        let late =
            self.last_tick.is_some_and(|last| now.saturating_duration_since(last) > self.times.lease / 3);
        self.last_tick = Some(now);
        if !connected || late {
            self.members.values_mut().for_each(|member| member.seen = now);
            return;
        }
        let lease = self.times.lease;
        let silent = |member: &Member| now.saturating_duration_since(member.seen) > lease;
        let silent: Vec<u64> =
            self.members.iter().filter(|(_, m)| silent(m)).map(|(number, _)| *number).collect();
        for number in silent {
            if let Some(member) = self.members.get_mut(&number) {
                member.silent = true;
            }
            self.leave(number);
        }
    }

    pub(super) fn gone(&mut self, number: u64) {
        let Some(member) = self.members.remove(&number) else { return };
        self.have_finished
            .extend(member.launch.filter(|launch| member.finished && !self.dead.contains(launch)));
        self.names.go(member.id.name(), member.id.incarnation());
        member.leases.iter().copied().for_each(|task| self.put_back(task, &member.id));
        let status = WorkerStatus::new(member.id, WorkerState::Gone, member.slots);
        self.acts.push(Act::Tell(Event::Worker(status)));
        self.acts.extend(member.launch.map(|launch| match member.silent {
            true => Act::Replace { launch },
            false => Act::Release { launch },
        }));
    }

    /// The worker of its lease is gone.
    pub(super) fn put_back(&mut self, task: TaskId, worker: &WorkerId) {
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        let Some(lease) = entry.lease.take() else { return };
        if let Some(member) = self.members.get_mut(&lease.member) {
            member.leases.remove(&task);
        }
        let attempts = entry.attempts;
        if lease.cancelled || self.closed {
            self.end(task, Some(worker.clone()), attempts, Answer::Cancelled, Duration::ZERO);
        } else if attempts >= entry.envelope.max_attempts {
            let answer = Answer::Failed(FailureKind::Poisoned { attempts });
            self.end(task, None, attempts, answer, Duration::ZERO);
        } else {
            entry.copy += 1;
            self.acts.push(Act::Tell(Event::Returned { task }));
            self.publish(task, Some(lease.sequence));
        }
    }
}
