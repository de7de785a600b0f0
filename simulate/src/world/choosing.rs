//! Choosing: the look at all there is, and the taking of what it has found.

use super::{Choice, NOBODY, Phase, Why, World};
use crate::costs::{FULL_EVERY, MEMBERS, Nanos};
use crate::shared_queue::NO_KEY;

impl World<'_> {
    pub(super) fn go_on(&mut self, index: usize) {
        match self.workers[index].phase {
            Phase::Next => self.next(index),
            Phase::Take(choice) => self.take(index, choice),
            Phase::Taken(choice) => self.taken(index, choice),
            Phase::Step => self.step(index),
            Phase::Idle => self.idle(index),
            Phase::Search => self.search(index),
            Phase::Withdraw => self.withdraw(index),
            Phase::Asleep => {}
        }
    }

    /// The key of the best root, and the way there.
    pub(super) fn root_key(&mut self, index: usize, at: &mut Nanos) -> u64 {
        let costs = self.machine.costs;
        *at += if self.inbox_line.read(index) { costs.hop } else { costs.hit };
        if !self.inbox.is_empty() {
            let count = self.inbox.len() as u64;
            *at = self.roots.lock.write(&costs, *at, index, costs.exchange + count * costs.entry);
            *at = self.inbox_line.write(&costs, *at, index, costs.exchange);
            for entry in std::mem::take(&mut self.inbox) {
                self.roots.put(entry);
            }
            self.roots.word.write(&costs, *at, index, costs.hit);
        }
        *at += if self.roots.word.read(index) { costs.hop } else { costs.hit };
        self.roots.key()
    }

    /// Whether the next look goes by the words of groups.
    pub(super) fn by_words(&mut self, index: usize) -> bool {
        let left = self.workers[index].looks;
        self.workers[index].looks = left.saturating_sub(1);
        left > 0
    }

    pub(super) fn next(&mut self, index: usize) {
        let (costs, mut at) = (self.machine.costs, self.now);
        at += if self.workers[index].post.read(index) { costs.hop } else { 0 };
        let worker = &self.workers[index];
        if let Some(&(key, _, request)) = worker.list.first()
            && !worker.hungry
            && worker.mail.is_empty()
            && worker.ready.is_empty()
            && worker.running == key
            && self.root_key(index, &mut at) >= key
            && self.published(index, key, &mut at) >= key
        {
            self.workers[index].list.pop_first();
            self.begin(index, request, at);
            return;
        }
        self.workers[index].why = Why::Loop;
        self.pick(index, at);
    }

    /// A bound of what others have published.
    pub(super) fn published(&mut self, index: usize, key: u64, at: &mut Nanos) -> u64 {
        let costs = self.machine.costs;
        if self.groups.is_empty() {
            for other in (0..self.workers.len()).filter(|other| *other != index) {
                if self.machine.tells && self.workers[other].private < key {
                    self.raise_hungry(index, other, at);
                }
            }
            return self.best_shared_queue(index, at).map_or(NO_KEY, |(_, key)| key);
        }
        if !self.by_words(index) {
            return 0;
        }
        let (mut loads, mut misses, mut least) = (0, 0, NO_KEY);
        for number in self.sampled(index) {
            loads += 1;
            misses += u64::from(self.groups[number].word.read(index));
            least = least.min(self.groups[number].key);
        }
        *at += loads * costs.hit + misses * costs.hop / costs.overlap;
        if least >= key {
            self.turn(index);
        }
        least
    }

    /// The groups whose words the next look reads: other ones each time.
    fn sampled(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let groups = self.groups.len();
        let samples = self.machine.samples.min(groups);
        let own = if self.machine.rotates { index / MEMBERS } else { 0 };
        let turn = self.workers[index].turned;
        (0..samples).map(move |number| (own + turn + number) % groups)
    }

    /// The next look reads others.
    fn turn(&mut self, index: usize) {
        if self.machine.samples < self.groups.len() {
            self.workers[index].turned += self.machine.samples;
        }
    }

    pub(super) fn pick(&mut self, index: usize, mut at: Nanos) {
        let costs = self.machine.costs;
        if !self.workers[index].mail.is_empty() {
            at = self.workers[index].post.write(&costs, at, index, costs.exchange);
            for request in std::mem::take(&mut self.workers[index].mail) {
                self.make_ready(index, request);
                at += costs.hit;
            }
        }
        if self.workers[index].hungry {
            self.feed(index, &mut at);
        }
        at += costs.pick;
        let roots = self.root_key(index, &mut at);
        let worker = &self.workers[index];
        let ready = worker.ready.first().map_or(NO_KEY, |first| first.0);
        let private = worker.list.first().map_or(NO_KEY, |first| first.0);
        let shared_queue = worker.shared_queue.key();
        let mine = ready.min(private).min(shared_queue);
        let mut best = (mine.min(roots), None);
        // What comes next after the best, as far as it is seen.
        let mut four = [ready, private, shared_queue, roots];
        four.sort_unstable();
        self.next_best = four[1];
        let late = std::mem::take(&mut self.workers[index].late);
        self.workers[index].picks += 1;
        let due = self.workers[index].picks.is_multiple_of(self.machine.look_every);
        if mine == NO_KEY || self.groups.is_empty() || !late && due {
            self.look(index, &mut best, &mut at);
            self.choose_among_seen(index, &mut best);
        }
        let choice = match best {
            (NO_KEY, _) => Choice::Nothing,
            (key, Some(victim)) => Choice::Victim(victim, key),
            (key, None) if ready == key => Choice::Ready,
            (key, None) if private == key => Choice::Private,
            (key, None) if shared_queue == key => Choice::Own(key),
            (key, None) => Choice::Roots(self.limit(key)),
        };
        self.then(index, Phase::Take(choice), at);
    }

    /// Where shared queues are noted: which of them the picker goes to at first, and to which then.
    fn choose_among_seen(&mut self, index: usize, best: &mut (u64, Option<usize>)) {
        let mut seen = std::mem::take(&mut self.seen);
        if self.machine.spreads && !seen.is_empty() {
            let first = index % seen.len();
            seen.rotate_left(first);
        }
        seen.reverse();
        if let Some((key, victim)) = seen.pop() {
            *best = (key, Some(victim));
        }
        self.workers[index].others = seen;
    }

    pub(super) fn limit(&self, key: u64) -> u64 {
        // No entry has no key.
        if self.machine.second { self.next_best.min(NO_KEY - 1) } else { key }
    }

    pub(super) fn look(&mut self, index: usize, best: &mut (u64, Option<usize>), at: &mut Nanos) {
        let (costs, count) = (self.machine.costs, self.workers.len());
        let (mut loads, mine) = ((0, 0), best.0);
        self.seen.clear();
        if self.groups.is_empty() {
            for other in (index + 1..count).chain(0..index) {
                self.compare(index, other, mine, best, &mut loads, at);
            }
        } else if self.by_words(index) {
            for number in self.sampled(index) {
                loads.0 += 1;
                loads.1 += u64::from(self.groups[number].word.read(index));
                let seen = self.groups[number].key;
                if seen >= self.threshold(mine, best.0) {
                    self.next_best = self.next_best.min(seen);
                    continue;
                }
                let members = number * MEMBERS..((number + 1) * MEMBERS).min(count);
                let shift = if self.machine.rotates { index % MEMBERS } else { 0 };
                for place in 0..members.len() {
                    let other = members.start + (place + shift) % members.len();
                    if other != index {
                        self.compare(index, other, mine, best, &mut loads, at);
                    }
                }
                let least =
                    members.map(|member| self.workers[member].shared_queue.key()).min().unwrap_or(NO_KEY);
                if least > seen {
                    *at = self.groups[number].word.write(&costs, *at, index, costs.exchange);
                    self.groups[number].key = least;
                }
            }
            self.turn(index);
        } else {
            self.workers[index].looks = FULL_EVERY - 1;
            for other in (index + 1..count).chain(0..index) {
                self.compare(index, other, mine, best, &mut loads, at);
            }
        }
        *at += loads.0 * costs.hit + loads.1 * costs.hop / costs.overlap;
    }

    /// What is not older is of no use to a look that has seen what it has.
    fn threshold(&self, mine: u64, best: u64) -> u64 {
        if self.machine.candidates <= 1 {
            best
        } else if self.seen.len() < self.machine.candidates {
            mine
        } else {
            self.seen.last().map_or(mine, |last| last.0)
        }
    }

    pub(super) fn compare(
        &mut self,
        index: usize,
        other: usize,
        mine: u64,
        best: &mut (u64, Option<usize>),
        loads: &mut (u64, u64),
        at: &mut Nanos,
    ) {
        loads.0 += 1;
        loads.1 += u64::from(self.workers[other].post.read(index));
        let theirs = self.workers[other].shared_queue.key();
        let crowded = theirs != NO_KEY
            && mine != NO_KEY
            && !self.groups.is_empty()
            && self.runners[theirs as usize] >= self.machine.share;
        if theirs < self.threshold(mine, best.0) && !crowded && self.machine.candidates > 1 {
            let at = self.seen.partition_point(|seen| seen.0 <= theirs);
            self.seen.insert(at, (theirs, other));
            self.seen.truncate(self.machine.candidates);
        }
        if theirs < best.0 && !crowded {
            self.next_best = best.0;
            *best = (theirs, Some(other));
        } else {
            self.next_best = self.next_best.min(theirs);
        }
        // A worker that has nothing at all goes by its patience.
        if self.workers[other].private < best.0 && best.0 != NO_KEY {
            self.raise_hungry(index, other, at);
        }
    }

    pub(super) fn take(&mut self, index: usize, choice: Choice) {
        let (costs, now) = (self.machine.costs, self.now);
        let hold = costs.exchange + costs.entry;
        let end = match choice {
            Choice::Ready => return self.resume(index),
            Choice::Private => {
                let mut at = now;
                let Some((_, _, request)) = self.workers[index].list.pop_first() else {
                    return self.pick(index, now);
                };
                self.note_private(index, &mut at);
                return self.found(index, request, at);
            }
            Choice::Nothing => return self.nothing(index),
            Choice::Own(_) => self.workers[index].shared_queue.lock.write(&costs, now, index, hold),
            Choice::Roots(_) => self.roots.lock.write(&costs, now, index, hold),
            Choice::Victim(victim, _) | Choice::Robbed(victim, _) => {
                let half = self.workers[victim].shared_queue.entries.len().div_ceil(2) as u64;
                let hold = costs.exchange + half * costs.entry;
                self.workers[victim].shared_queue.lock.write(&costs, now, index, hold)
            }
        };
        self.then(index, Phase::Taken(choice), end);
    }

    pub(super) fn taken(&mut self, index: usize, choice: Choice) {
        let (costs, mut at) = (self.machine.costs, self.now);
        let request = match choice {
            Choice::Own(limit) => {
                let before = self.workers[index].shared_queue.key();
                let request = self.workers[index].shared_queue.take(limit);
                self.tell_key(index, index, before, &mut at);
                request
            }
            Choice::Roots(limit) => {
                let before = self.roots.key();
                let request = self.roots.take(limit);
                if self.roots.key() != before {
                    self.roots.word.write(&costs, at, index, costs.hit);
                }
                request
            }
            Choice::Victim(victim, limit) | Choice::Robbed(victim, limit) => {
                self.rob(index, victim, limit, &mut at)
            }
            Choice::Ready | Choice::Private | Choice::Nothing => None,
        };
        match (request, choice) {
            (Some(request), Choice::Robbed(..)) => {
                self.workers[index].ticks = 0;
                self.found(index, request, at);
            }
            (Some(request), _) => self.found(index, request, at),
            (None, Choice::Robbed(..)) => {
                self.counts.late += 1;
                self.still_nothing(index, at);
            }
            (None, _) => {
                self.counts.late += 1;
                self.workers[index].late = self.machine.settles;
                if let Some((key, victim)) = self.workers[index].others.pop() {
                    return self.then(index, Phase::Take(Choice::Victim(victim, key)), at);
                }
                self.pick(index, at);
            }
        }
    }

    pub(super) fn rob(&mut self, index: usize, victim: usize, limit: u64, at: &mut Nanos) -> Option<usize> {
        let costs = self.machine.costs;
        if self.workers[index].patience.stolen_used_up(*at) {
            *at += costs.clock;
        }
        let before = self.workers[victim].shared_queue.key();
        let mut stolen = self.workers[victim].shared_queue.take_half(limit).into_iter();
        let first = stolen.next()?;
        self.counts.steals += 1;
        self.tell_key(index, victim, before, at);
        let (own, rest) = (self.workers[index].shared_queue.key(), stolen.len() as u64);
        for entry in stolen {
            self.workers[index].shared_queue.put(entry);
        }
        if rest > 0 {
            let hold = costs.exchange + rest * costs.entry;
            *at = self.workers[index].shared_queue.lock.write(&costs, *at, index, hold);
            self.tell_key(index, index, own, at);
            self.notify(index, at);
        }
        *at += costs.clock;
        let all = self.workers[victim].shared_queue.entries.is_empty();
        if self.workers[index].patience.theft(*at, 1 + rest, all) {
            self.raise_hungry(index, victim, at);
        }
        Some(first.1)
    }

    /// A pick has found something; `why` it was made says what is to be done before it begins.
    pub(super) fn found(&mut self, index: usize, request: usize, mut at: Nanos) {
        self.workers[index].ticks = 0;
        match self.workers[index].why {
            Why::Loop => {}
            Why::Last => {
                self.workers[index].found = Some(request);
                return self.then(index, Phase::Withdraw, at);
            }
            Why::First | Why::Search => {
                if self.workers[index].searching {
                    self.pass_on(index, &mut at);
                }
            }
        }
        self.begin(index, request, at);
    }

    pub(super) fn begin(&mut self, index: usize, request: usize, mut at: Nanos) {
        let key = self.requests[request].key;
        self.set_running(index, key, &mut at);
        let (worker, record) = (&mut self.workers[index], &mut self.requests[request]);
        worker.working.get_or_insert(at);
        worker.begun.get_or_insert(at);
        worker.current = request;
        record.worker = index;
        record.stamped.before = worker.last_end;
        record.stamped.began = at;
        self.counts.moved += u64::from(record.maker != NOBODY && record.maker != index);
        self.then(index, Phase::Step, at);
    }

    pub(super) fn make_ready(&mut self, index: usize, request: usize) {
        let (key, place) = self.requests[request].stamped.place;
        self.workers[index].ready.insert((key, place, request));
    }

    pub(super) fn resume(&mut self, index: usize) {
        let Some((key, _, request)) = self.workers[index].ready.pop_first() else {
            return self.pick(index, self.now);
        };
        let mut at = self.now + self.machine.costs.resume;
        self.counts.resumed += 1;
        match self.workers[index].why {
            Why::Last => {
                self.workers[index].found = Some(request);
                return self.then(index, Phase::Withdraw, at);
            }
            Why::First | Why::Search if self.workers[index].searching => self.pass_on(index, &mut at),
            _ => {}
        }
        self.workers[index].ticks = 0;
        self.set_running(index, key, &mut at);
        self.workers[index].working.get_or_insert(at);
        self.workers[index].current = request;
        self.then(index, Phase::Step, at);
    }
}
