//! What comes from outside: roots, at their time.

use super::{Event, NOBODY, Request, World};
use crate::costs::Nanos;
use crate::result::Stamped;
use crate::shared_queue::NO_KEY;

impl World<'_> {
    pub(super) fn root(&mut self, number: usize, known: Nanos) -> usize {
        let key = number as u64;
        self.left[number] = (1, known, 0);
        let stamped = Stamped { place: (key, 0), known, before: 0, began: 0 };
        let data = self.arrivals[number].data;
        self.requests.push(Request {
            root: number,
            key,
            data,
            step: 0,
            shown: true,
            maker: NOBODY,
            worker: NOBODY,
            suspended: false,
            woken: 0,
            stamped,
        });
        self.requests.len() - 1
    }

    pub(super) fn arrive(&mut self, number: usize) {
        let by = self.arrivals[number].by;
        if self.outside[by] > self.now {
            return self.book(self.outside[by], Event::Arrive(number));
        }
        let (costs, who) = (self.machine.costs, self.workers.len() + by);
        let mut at = self.inbox_line.write(&costs, self.now, who, costs.exchange);
        let root = self.root(number, at);
        let first = self.inbox.is_empty();
        self.inbox.push((number as u64, root));
        if !(first && self.notify(who, &mut at)) {
            // Which worker runs the youngest request?
            let mut misses = 0;
            for worker in &mut self.workers {
                misses += u64::from(worker.post.read(who));
                at += costs.hit;
                if worker.running == NO_KEY {
                    break;
                }
            }
            at += misses * costs.hop / costs.overlap;
        }
        self.outside[by] = at;
    }
}
