//! Sleep and wake-up: whom a notification reaches, and who goes on searching in its place.

use super::World;
use crate::costs::Nanos;
use crate::shelf::NO_KEY;

impl World<'_> {
    pub(super) fn notify(&mut self, who: usize, at: &mut Nanos, most: usize) -> bool {
        let costs = self.machine.costs;
        *at = self.signals.write(&costs, *at, who, costs.exchange);
        if self.searching > 0 || self.sleepers.is_empty() {
            return false;
        }
        *at = self.list_lock.write(&costs, *at, who, costs.exchange + costs.entry);
        *at = self.signals.write(&costs, *at, who, 2 * costs.exchange);
        let mut woken = Vec::new();
        while woken.len() < most
            && let Some(sleeper) = self.sleepers.pop()
        {
            self.searching += 1;
            woken.push(sleeper);
        }
        for sleeper in woken {
            self.counts.wakes += 1;
            self.unblock(sleeper, *at);
            *at += costs.call;
        }
        true
    }

    pub(super) fn pass_on(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        *at = self.signals.write(&costs, *at, index, costs.exchange);
        self.searching -= 1;
        self.workers[index].searching = false;
        if self.searching == 0 && self.more(index, at) {
            self.notify(index, at, self.machine.heirs);
        }
    }

    pub(super) fn more(&mut self, index: usize, at: &mut Nanos) -> bool {
        *at += self.machine.costs.hit;
        if self.roots.key() != NO_KEY || !self.inbox.is_empty() || self.workers[index].shelf.key() != NO_KEY {
            return true;
        }
        self.best_shelf(index, at).is_some()
    }

    /// All shelves but the own are looked at: whose is best, and its key.
    pub(super) fn best_shelf(&mut self, index: usize, at: &mut Nanos) -> Option<(usize, u64)> {
        let (costs, mut misses, mut best) = (self.machine.costs, 0, None);
        let count = self.workers.len();
        for other in (index + 1..count).chain(0..index) {
            misses += u64::from(self.workers[other].post.read(index));
            let key = self.workers[other].shelf.key();
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
