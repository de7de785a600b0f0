//! Nothing to do: search, announce, look once more, park.

use super::{Choice, Event, NOBODY, Phase, Why, World};
use crate::costs::{LONGEST_TICK, Nanos, ROUND, SEARCH, TICK};
use crate::shared_queue::NO_KEY;

impl World<'_> {
    pub(super) fn nothing(&mut self, index: usize) {
        let (costs, mut at) = (self.machine.costs, self.now);
        if self.workers[index].why == Why::Loop {
            self.note_private(index, &mut at);
            self.set_running(index, NO_KEY, &mut at);
            if let Some(since) = self.workers[index].working.take() {
                self.worked += at - since;
            }
            self.workers[index].searching = false;
            return self.then(index, Phase::Idle, at);
        }
        if self.workers[index].patience.stolen_used_up(at) {
            at += costs.clock;
        }
        if let Some((victim, key)) = self.best_shared_queue(index, &mut at) {
            return self.then(index, Phase::Take(Choice::Robbed(victim, key)), at);
        }
        if self.workers[index].patience.left(at) == 0 {
            self.say_hungry(index, &mut at);
        }
        self.still_nothing(index, at);
    }

    pub(super) fn still_nothing(&mut self, index: usize, mut at: Nanos) {
        let costs = self.machine.costs;
        match self.workers[index].why {
            Why::Loop => self.then(index, Phase::Next, at),
            Why::First => {
                let searches = self.workers.len() <= self.machine.cores;
                if searches && !self.workers[index].searching && self.searching == 0 {
                    at = self.signals.write(&costs, at, index, costs.exchange);
                    self.searching += 1;
                    self.workers[index].searching = true;
                }
                if searches && self.workers[index].searching {
                    self.workers[index].search_end = at + SEARCH;
                    return self.then(index, Phase::Search, at);
                }
                self.announce(index, at);
            }
            Why::Search if at < self.workers[index].search_end => self.then(index, Phase::Search, at + ROUND),
            Why::Search => self.announce(index, at),
            Why::Last => self.park(index, at),
        }
    }

    pub(super) fn idle(&mut self, index: usize) {
        self.workers[index].token = false;
        self.workers[index].why = Why::First;
        self.pick(index, self.now + self.machine.costs.exchange);
    }

    pub(super) fn search(&mut self, index: usize) {
        let mut at = self.now;
        self.workers[index].why = Why::Search;
        let worker = &self.workers[index];
        let own = !worker.mail.is_empty()
            || !worker.ready.is_empty()
            || !worker.list.is_empty()
            || worker.shared_queue.key() != NO_KEY;
        if own || self.root_key(index, &mut at) != NO_KEY {
            return self.pick(index, at);
        }
        let now = std::mem::replace(&mut self.now, at);
        self.nothing(index);
        self.now = now;
    }

    pub(super) fn announce(&mut self, index: usize, mut at: Nanos) {
        let costs = self.machine.costs;
        at = self.list_lock.write(&costs, at, index, costs.exchange + costs.entry);
        at = self.signals.write(&costs, at, index, costs.exchange);
        self.sleepers.push(index);
        self.searching -= usize::from(self.workers[index].searching);
        self.note_private(index, &mut at);
        let patient = self.workers[index].patience.left(at);
        let tick = if patient > 0 {
            Some(patient)
        } else if self.say_hungry(index, &mut at) {
            let ticks = self.workers[index].ticks;
            self.workers[index].ticks += 1;
            Some((TICK << ticks.min(8)).min(LONGEST_TICK))
        } else {
            None
        };
        // Until it parks it is the look's, then the sleep's.
        self.workers[index].search_end = tick.unwrap_or(Nanos::MAX);
        self.workers[index].why = Why::Last;
        self.pick(index, at);
    }

    pub(super) fn park(&mut self, index: usize, at: Nanos) {
        if self.workers[index].token {
            return self.then(index, Phase::Withdraw, at);
        }
        let at = at + self.machine.costs.block;
        self.counts.sleeps += 1;
        let worker = &mut self.workers[index];
        worker.phase = Phase::Asleep;
        worker.turn += 1;
        let (turn, tick) = (worker.turn, worker.search_end);
        if tick != Nanos::MAX {
            self.book(at + tick, Event::Tick(index, turn));
        }
        self.leave_core(index);
    }

    pub(super) fn withdraw(&mut self, index: usize) {
        let costs = self.machine.costs;
        let mut at = self.list_lock.write(&costs, self.now, index, costs.exchange + costs.entry);
        let searched = self.workers[index].searching;
        let listed = self.sleepers.iter().rposition(|sleeper| *sleeper == index);
        if let Some(place) = listed {
            self.sleepers.remove(place);
            at = self.signals.write(&costs, at, index, costs.exchange);
        }
        self.workers[index].searching = listed.is_none();
        let Some(request) = self.workers[index].found.take() else {
            return self.then(index, Phase::Idle, at);
        };
        if self.workers[index].searching {
            self.pass_on(index, &mut at);
        } else if searched && self.more(index, &mut at) {
            self.notify(index, &mut at);
        }
        if self.requests[request].worker != NOBODY {
            // It has begun, and continues from where it was taken.
            self.make_ready(index, request);
            self.workers[index].why = Why::Loop;
            return self.then(index, Phase::Next, at);
        }
        self.begin(index, request, at);
    }
}
