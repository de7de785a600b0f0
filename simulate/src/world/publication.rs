//! Publication: hunger, what a list shows of itself, and the words that others compare.

use super::World;
use crate::costs::{LARGEST_BATCH, MEMBERS, Nanos};
use crate::shared_queue::NO_KEY;

impl World<'_> {
    /// The worker stores something of its own where others see it: buffered, so it waits for nobody.
    pub(super) fn store(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        self.workers[index].post.write(&costs, *at, index, costs.hit);
        *at += costs.hit;
    }

    pub(super) fn note_private(&mut self, index: usize, at: &mut Nanos) {
        let key = self.workers[index].list.first().map_or(NO_KEY, |first| first.0);
        if self.workers[index].private != key {
            self.workers[index].private = key;
            self.store(index, at);
        }
    }

    pub(super) fn set_running(&mut self, index: usize, key: u64, at: &mut Nanos) {
        let before = self.workers[index].running;
        if before != key {
            if before != NO_KEY {
                self.runners[before as usize] -= 1;
            }
            if key != NO_KEY {
                self.runners[key as usize] += 1;
            }
            self.workers[index].running = key;
            self.store(index, at);
        }
    }

    /// The key of `whose` shared queue has become what it is; it was `before`. Told by `who`, who has the lock.
    pub(super) fn tell_key(&mut self, who: usize, whose: usize, before: u64, at: &mut Nanos) {
        let (costs, key) = (self.machine.costs, self.workers[whose].shared_queue.key());
        if key == before {
            return;
        }
        *at = self.workers[whose].post.write(&costs, *at, who, costs.hit);
        if key < before
            && let Some(group) = self.groups.get_mut(whose / MEMBERS)
        {
            *at = group.word.write(&costs, *at, who, costs.exchange);
            group.key = group.key.min(key);
        }
    }

    pub(super) fn feed(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        let worker = &mut self.workers[index];
        if worker.list.is_empty() {
            worker.batch = 1;
            return;
        }
        worker.hungry = false;
        *at = worker.post.write(&costs, *at, index, costs.exchange);
        let (before, mut shown) = (worker.shared_queue.key(), 0);
        while shown < u64::from(worker.batch)
            && let Some((key, _, request)) = worker.list.pop_first()
        {
            worker.shared_queue.put((key, request));
            self.requests[request].shown = true;
            shown += 1;
        }
        worker.batch = (worker.batch * 2).min(LARGEST_BATCH);
        let hungry = self.sleepers.len().min(self.machine.cores - 1);
        worker.hungry = self.machine.fills && hungry > 1 && worker.shared_queue.entries.len() < hungry;
        *at += shown * costs.publish;
        *at = worker.shared_queue.lock.write(&costs, *at, index, costs.exchange + shown * costs.entry);
        self.tell_key(index, index, before, at);
        self.counts.publications += 1;
        self.counts.published += shown;
        self.note_private(index, at);
        self.notify(index, at);
    }
}
