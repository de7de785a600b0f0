//! Requests: a step of one, its wake-ups and its end.

use super::{NOBODY, Phase, Request, World};
use crate::costs::Nanos;
use crate::result::Stamped;
use crate::work::Step;

impl World<'_> {
    pub(super) fn step(&mut self, index: usize) {
        let (costs, mut at) = (self.machine.costs, self.now);
        let current = self.workers[index].current;
        self.requests[current].suspended = false;
        let record = self.requests[current];
        self.requests[current].step += 1;
        match self.work.step(record.data, record.step) {
            Step::Compute(long) => {
                self.computed += long;
                at += long;
            }
            Step::Spawn(place, data) => {
                at += costs.spawn;
                let child = self.child(index, record, place, data, at);
                let worker = &mut self.workers[index];
                worker.list.insert((record.key, place, child));
                if record.key < worker.private {
                    worker.private = record.key;
                    self.store(index, &mut at);
                }
                at += if self.workers[index].post.read(index) { costs.hop } else { 0 };
                if self.workers[index].hungry {
                    self.feed(index, &mut at);
                }
            }
            Step::Admit(place, data) => {
                let child = self.child(index, record, place, data, at);
                self.requests[child].shown = true;
                let worker = &mut self.workers[index];
                let before = worker.shared_queue.key();
                worker.shared_queue.put((record.key, child));
                at = worker.shared_queue.lock.write(&costs, at, index, costs.exchange + costs.entry);
                self.tell_key(index, index, before, &mut at);
                self.notify(index, &mut at);
            }
            Step::Wake(target) => self.wake(index, target, &mut at),
            Step::Suspend if record.woken > 0 => self.requests[current].woken -= 1,
            Step::Suspend => {
                self.requests[current].suspended = true;
                at += costs.resume;
                return self.then(index, Phase::Next, at);
            }
            Step::End => return self.end(index, at),
        }
        self.then(index, Phase::Step, at);
    }

    /// The number of a new request of the same root.
    fn child(&mut self, index: usize, parent: Request, place: u64, data: u64, at: Nanos) -> usize {
        let stamped = Stamped { place: (parent.key, place), known: at, before: 0, began: 0 };
        let child = self.requests.len();
        self.requests.push(Request {
            data,
            step: 0,
            shown: false,
            maker: index,
            worker: NOBODY,
            woken: 0,
            stamped,
            ..parent
        });
        self.left[parent.root].0 += 1;
        self.alive += 1;
        child
    }

    pub(super) fn wake(&mut self, index: usize, target: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        *at += costs.exchange;
        let record = &mut self.requests[target];
        if !record.suspended {
            record.woken += 1;
            return;
        }
        record.suspended = false;
        let worker = record.worker;
        if worker == index {
            return self.make_ready(index, target);
        }
        self.counts.letters += 1;
        *at = self.workers[worker].post.write(&costs, *at, index, costs.exchange);
        let first = self.workers[worker].mail.is_empty();
        self.workers[worker].mail.push(target);
        if first {
            *at += costs.exchange;
            if matches!(self.workers[worker].phase, Phase::Asleep) {
                self.counts.named += 1;
                self.unblock(worker, *at);
                *at += costs.call;
            } else {
                self.workers[worker].token = true;
            }
        }
    }

    pub(super) fn end(&mut self, index: usize, mut at: Nanos) {
        let (costs, current) = (self.machine.costs, self.workers[index].current);
        let record = self.requests[current];
        at += if record.shown { costs.foreign_run } else { costs.run };
        self.counts.run += 1;
        self.workers[index].last_end = at;
        self.alive -= 1;
        let (left, _, over) = &mut self.left[record.root];
        *left -= 1;
        *over = at;
        self.then(index, Phase::Next, at);
    }
}
