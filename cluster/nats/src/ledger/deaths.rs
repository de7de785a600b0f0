//! Members that are gone: how the ledger finds out, and what becomes of their tasks.

use std::time::{Duration, Instant};

use forebear_cluster::FailureKind;
use forebear_cluster::engine::{Answer, Event, TaskId, WorkerId, WorkerState, WorkerStatus};

use super::{Act, Ledger, Member};

/// Whether a task is to blame that a worker was gone with which it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Nobody has died, or for another reason.
    Nobody,
    /// It was one of several.
    Suspect,
    /// The worker had nothing else.
    Alone,
}

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
    /// The program kills the process of this start. That is no task's fault, also if another process of its name joins before the death is known.
    pub(crate) fn killed(&mut self, launch: u64) {
        self.killed.insert(launch);
    }

    /// The process of this start has ended.
    pub(crate) fn died(&mut self, launch: u64, now: Instant) -> Past {
        self.now = Some(now);
        self.dead.insert(launch);
        if self.dead.len() > DEAD {
            self.dead.pop_first();
        }
        let mut past = Past {
            ready: self.were_ready.remove(&launch),
            finished: self.have_finished.remove(&launch),
            busy: false,
        };
        let killed = self.killed.remove(&launch);
        self.discard_stale(|attempt| attempt.launch == Some(launch));
        let its = self.members.iter().find(|(_, member)| member.launch == Some(launch));
        if let Some((number, member)) = its {
            past.finished |= member.finished;
            past.busy = !member.leases.is_empty();
            let number = *number;
            self.excuse_outage(number, now);
            if let Some(member) = self.members.get_mut(&number) {
                member.excused |= killed;
            }
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
        self.now = Some(now);
        if !connected || late {
            self.outages += 1;
            self.members.values_mut().for_each(|member| member.seen = now);
            return;
        }
        let lease = self.times.lease;
        let silent = |member: &Member| now.saturating_duration_since(member.seen) > lease;
        let silent: Vec<u64> =
            self.members.iter().filter(|(_, m)| silent(m)).map(|(number, _)| *number).collect();
        for number in silent {
            self.excuse_outage(number, now);
            self.excuse_if_all_are_silent(number);
            if let Some(member) = self.members.get_mut(&number) {
                member.silent = true;
            }
            self.leave(number);
        }
    }

    /// A member is to be gone that has said nothing for a lease, and in that time nobody could be heard for a while: it may have cancelled what it had for that.
    fn excuse_outage(&mut self, number: u64, now: Instant) {
        let (outages, lease) = (self.outages, self.times.lease);
        if let Some(member) = self.members.get_mut(&number) {
            let (at, before) = member.said;
            member.excused |= before != outages && now.saturating_duration_since(at) > lease;
        }
    }

    /// A member is silent, and all others have been since the same time: that is no death of one, but a loss of the network or of the server.
    fn excuse_if_all_are_silent(&mut self, number: u64) {
        let Some((since, _)) = self.members.get(&number).map(|member| member.said) else { return };
        let latest = since + 2 * self.times.beat;
        let mut others = self.members.iter().filter(|(other, _)| **other != number).peekable();
        let all = others.peek().is_some() && others.all(|(_, other)| other.said.0 <= latest);
        if let Some(member) = self.members.get_mut(&number) {
            member.excused |= all;
        }
    }

    pub(super) fn gone(&mut self, number: u64) {
        let Some(member) = self.members.remove(&number) else { return };
        self.have_finished
            .extend(member.launch.filter(|launch| member.finished && !self.dead.contains(launch)));
        self.names.go(member.id.name(), member.id.incarnation());
        let killed = member.launch.is_some_and(|launch| self.killed.contains(&launch));
        let blame = match (member.excused || killed, member.leases.len()) {
            (true, _) => Blame::Nobody,
            (false, 1) => Blame::Alone,
            (false, _) => Blame::Suspect,
        };
        self.keep_stale(number, &member);
        member.leases.iter().copied().for_each(|task| self.put_back(task, &member.id, blame));
        let status = WorkerStatus::new(member.id, WorkerState::Gone, member.slots);
        self.acts.push(Act::Tell(Event::Worker(status)));
        self.acts.extend(member.launch.map(|launch| match member.silent {
            true => Act::Replace { launch },
            false => Act::Release { launch },
        }));
    }

    /// The worker of its lease is gone.
    pub(super) fn put_back(&mut self, task: TaskId, worker: &WorkerId, blame: Blame) {
        let Some(lease) = self.tasks.unlease(task) else { return };
        let Some(entry) = self.tasks.get_mut(task) else { return };
        entry.deaths += u32::from(blame != Blame::Nobody);
        let poisoned = blame == Blame::Alone && entry.is_suspect();
        let (deaths, attempts) = (entry.deaths, entry.attempts);
        let timed_out = entry.due.is_some_and(|due| self.now.is_some_and(|now| due <= now));
        // All is read that the worker has recorded, so this attempt has no result. It may have put a part of one into the store.
        self.acts.push(Act::Discard(entry.envelope.result(attempts)));
        if let Some(member) = self.members.get_mut(&lease.member) {
            member.leases.remove(&task);
            member.alone.ended(task);
        }
        if lease.cancelled || self.closed {
            self.end(task, Some(worker.clone()), attempts, Answer::Cancelled, Duration::ZERO);
        } else if timed_out {
            // Another worker would only say so.
            let answer = Answer::Failed(FailureKind::TimedOut);
            self.end(task, Some(worker.clone()), attempts, answer, Duration::ZERO);
        } else if poisoned {
            let answer = Answer::Failed(FailureKind::Poisoned { attempts: deaths });
            self.end(task, None, attempts, answer, Duration::ZERO);
        } else {
            entry.copy += 1;
            self.acts.push(Act::Tell(Event::Returned { task }));
            self.publish(task, Some(lease.sequence));
        }
    }
}
