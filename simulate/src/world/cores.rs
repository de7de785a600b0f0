//! Events, and who has a core.

use super::{Event, Phase, World};
use crate::costs::Nanos;
use std::cmp::Reverse;

impl World<'_> {
    pub(super) fn book(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// The worker's next event is the end of `phase` at `at`.
    pub(super) fn then(&mut self, index: usize, phase: Phase, at: Nanos) {
        let worker = &mut self.workers[index];
        worker.phase = phase;
        worker.due = at;
        worker.turn += 1;
        let turn = worker.turn;
        self.book(at, Event::Worker(index, turn));
    }

    /// It can continue with its phase, which needs so long still, as soon as it has a core.
    pub(super) fn get_core(&mut self, index: usize, delay: Nanos, rest: Nanos) {
        if self.free_cores == 0 {
            self.workers[index].due = rest;
            self.queued.push_back(index);
            let holders: Vec<_> =
                (0..self.workers.len()).filter_map(|it| Some((it, self.workers[it].core?))).collect();
            for (holder, since) in holders {
                self.book((since + self.machine.costs.slice).max(self.now), Event::Slice(holder, since));
            }
            return;
        }
        self.free_cores -= 1;
        self.enter_core(index, delay + rest);
    }

    pub(super) fn enter_core(&mut self, index: usize, rest: Nanos) {
        let (now, phase) = (self.now, self.workers[index].phase);
        self.workers[index].core = Some(now);
        self.then(index, phase, now + rest);
        if !self.queued.is_empty() {
            self.book(now + self.machine.costs.slice, Event::Slice(index, now));
        }
    }

    pub(super) fn leave_core(&mut self, index: usize) {
        self.workers[index].core = None;
        match self.queued.pop_front() {
            Some(next) => {
                let rest = self.workers[next].due + self.machine.costs.switch;
                self.enter_core(next, rest);
            }
            None => self.free_cores += 1,
        }
    }

    pub(super) fn end_slice(&mut self, index: usize, since: Nanos) {
        if self.workers[index].core != Some(since) || self.queued.is_empty() {
            return;
        }
        let worker = &mut self.workers[index];
        worker.turn += 1;
        worker.due = worker.due.saturating_sub(self.now);
        self.queued.push_back(index);
        self.leave_core(index);
    }

    /// It sleeps, and is to look again.
    pub(super) fn unblock(&mut self, index: usize, at: Nanos) {
        let costs = self.machine.costs;
        let worker = &mut self.workers[index];
        if !matches!(worker.phase, Phase::Asleep) {
            worker.token = true;
            return;
        }
        worker.phase = Phase::Withdraw;
        worker.turn += 1;
        let ahead = at.saturating_sub(self.now);
        self.get_core(index, costs.wake + ahead, 0);
    }
}
