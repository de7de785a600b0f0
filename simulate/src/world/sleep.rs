//! Sleep and wake-up: whom a notification reaches, and who goes on searching in its place.

use super::World;
use crate::costs::Nanos;
use crate::shared_queue::NO_KEY;

impl World<'_> {
    /// Says that there is work for anyone.
    pub(super) fn notify(&mut self, who: usize, at: &mut Nanos) -> bool {
        let sleeper = self.take_sleeper(who, at, usize::MAX);
        self.wake_taken(sleeper, at);
        sleeper.is_some()
    }

    /// Takes a sleeper off the list if nobody searches, or fewer than one for `apart` sleepers.
    fn take_sleeper(&mut self, who: usize, at: &mut Nanos, apart: usize) -> Option<usize> {
        let costs = self.machine.costs;
        let wanted = self.wants_heir(apart);
        if self.machine.peeks {
            *at += if self.signals.read(who) { costs.hop } else { costs.hit };
        }
        if wanted || !self.machine.peeks {
            *at = self.signals.write(&costs, *at, who, costs.exchange);
        }
        if !wanted {
            return None;
        }
        *at = self.list_lock.write(&costs, *at, who, costs.exchange + costs.entry);
        *at = self.signals.write(&costs, *at, who, 2 * costs.exchange);
        let sleeper = self.sleepers.pop();
        self.searching += usize::from(sleeper.is_some());
        sleeper
    }

    fn wake_taken(&mut self, taken: impl IntoIterator<Item = usize>, at: &mut Nanos) {
        for sleeper in taken {
            self.counts.wakes += 1;
            self.unblock(sleeper, *at);
            *at += self.machine.costs.call;
        }
    }

    fn wants_heir(&self, apart: usize) -> bool {
        let sleeping = self.sleepers.len();
        self.searching == 0 && sleeping > 0 || self.searching < (sleeping / apart).min(self.machine.widest)
    }

    pub(super) fn pass_on(&mut self, index: usize, at: &mut Nanos) {
        let (costs, few) = (self.machine.costs, self.workers.len() <= self.machine.cores);
        let apart = if few { self.machine.apart } else { usize::MAX };
        *at = self.signals.write(&costs, *at, index, costs.exchange);
        self.searching -= 1;
        self.workers[index].searching = false;
        if (self.searching == 0 || self.wants_heir(apart)) && self.more(index, at) {
            let heirs: Vec<_> =
                (0..self.machine.heirs).map_while(|_| self.take_sleeper(index, at, apart)).collect();
            self.wake_taken(heirs, at);
        }
    }

    pub(super) fn more(&mut self, index: usize, at: &mut Nanos) -> bool {
        *at += self.machine.costs.hit;
        if self.roots.key() != NO_KEY
            || !self.inbox.is_empty()
            || self.workers[index].shared_queue.key() != NO_KEY
        {
            return true;
        }
        self.best_shared_queue(index, at).is_some()
    }

    /// All shared queues but the own are looked at: whose is best, and its key.
    pub(super) fn best_shared_queue(&mut self, index: usize, at: &mut Nanos) -> Option<(usize, u64)> {
        let (costs, mut misses, mut best) = (self.machine.costs, 0, None);
        let count = self.workers.len();
        for other in (index + 1..count).chain(0..index) {
            misses += u64::from(self.workers[other].post.read(index));
            let key = self.workers[other].shared_queue.key();
            if key < best.map_or(NO_KEY, |(_, key)| key) {
                best = Some((other, key));
            }
        }
        *at += (count as u64 - 1) * costs.hit + misses * costs.hop / costs.overlap;
        best
    }

    /// Leaves word with all others; whether any of them works.
    pub(super) fn say_hungry(&mut self, index: usize, at: &mut Nanos) -> bool {
        let (costs, mut busy) = (self.machine.costs, false);
        for other in (0..self.workers.len()).filter(|other| *other != index) {
            let worker = &mut self.workers[other];
            *at += if worker.post.read(index) { costs.hop / costs.overlap } else { costs.hit };
            busy |= worker.running != NO_KEY;
            self.raise_hungry(index, other, at);
        }
        busy
    }

    pub(super) fn raise_hungry(&mut self, index: usize, other: usize, at: &mut Nanos) {
        let (costs, worker) = (self.machine.costs, &mut self.workers[other]);
        if !worker.hungry {
            worker.hungry = true;
            self.counts.hungry += 1;
            *at = worker.post.write(&costs, *at, index, costs.exchange);
        }
    }
}
