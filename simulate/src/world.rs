//! The model itself: workers that take steps, one event after the other.
//!
//! Each worker is in a *phase*, and has one event to come: the end of that phase. Between two events a worker acts on its own
//! clock, which runs ahead of the world's by what its small steps cost; what it takes from a shelf or from the roots it asks
//! for by one event and gets by another, when it has the lock, so takers come to it in their order.
//!
//! Invariants:
//!
//! 1. A worker that has no core, or is blocked, has no event but perhaps a tick; `turn` counts its events, so that one which was
//!    called off is known by its number.
//! 2. The counts of searchers and sleepers and the list are as in `pool/src/signals.rs`: a worker is in the list, or is running
//!    and perhaps a searcher, or has been taken off the list and is a searcher.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use crate::costs::{
    Costs, FULL_EVERY, LARGEST_BATCH, LONGEST_PAUSE, LONGEST_TICK, MEMBERS, Nanos, ROUND, SEARCH,
    SHORTEST_PAUSE, TICK, WORTH_IT,
};
use crate::line::Line;
use crate::result::{Counts, Load, Outcome, Stamped};
use crate::shelf::{Group, NO_KEY, Shelf};
use crate::work::{Arrival, Step, Work};

/// A machine and a runtime on it.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// How many workers.
    pub workers: usize,
    /// How many cores.
    pub cores: usize,
    /// What steps cost.
    pub costs: Costs,
    /// The workers begin so long after each other.
    pub skew: Nanos,
    /// Whether the short way of the loop, too, tells who keeps something older private.
    pub tells: bool,
    /// Whether who comes for a root takes the best when it has the lock, if that is not younger than the second best that it saw; else it
    /// takes only what it saw, and looks again if that is gone.
    pub second: bool,
    /// Whether hunger is left standing until as many are shown as sleep.
    pub fills: bool,
    /// Whether a picker that came too late for what another worker had takes what it has itself, if it has anything, without
    /// looking again.
    pub settles: bool,
    /// Above eight workers, one pick in so many looks at others if the picker has something itself.
    pub look_every: u32,
    /// How many sleepers a searcher wakes in its place when it has found something. The runtime's are one.
    pub heirs: usize,
    /// The run is broken off then.
    pub until: Nanos,
}

impl Machine {
    /// A core each.
    #[must_use]
    pub fn new(workers: usize) -> Machine {
        Machine {
            workers,
            cores: workers,
            costs: Costs::default(),
            skew: 0,
            tells: true,
            second: true,
            fills: false,
            settles: false,
            look_every: 1,
            heirs: 1,
            until: Nanos::MAX,
        }
    }
}

/// Where a pick takes from.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Ready,
    Private,
    Own(u64),
    Roots(u64),
    Victim(usize, u64),
    /// By a thief that has found nothing of its own.
    Robbed(usize, u64),
    Nothing,
}

/// Why a worker picks: in its loop, or at one of the looks of somebody who has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Loop,
    First,
    Search,
    Last,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Next,
    Take(Choice),
    Taken(Choice),
    Step,
    Idle,
    Search,
    Withdraw,
    Asleep,
}

#[derive(Debug)]
struct Worker {
    phase: Phase,
    turn: u64,
    due: Nanos,
    /// Since when it has its core.
    core: Option<Nanos>,
    why: Why,
    list: BTreeSet<(u64, u64, usize)>,
    ready: BTreeSet<(u64, u64, usize)>,
    mail: Vec<usize>,
    hungry: bool,
    running: u64,
    /// What it has published of its list.
    private: u64,
    /// Attention, mailbox, keys: what others touch of it.
    post: Line,
    shelf: Shelf,
    batch: u32,
    looks: u32,
    loot: Option<Nanos>,
    pause: Nanos,
    patient_until: Nanos,
    ticks: u32,
    current: usize,
    last_end: Nanos,
    searching: bool,
    search_end: Nanos,
    token: bool,
    found: Option<usize>,
    working: Option<Nanos>,
    begun: Option<Nanos>,
    late: bool,
    picks: u32,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    root: usize,
    key: u64,
    data: u64,
    step: u32,
    shown: bool,
    maker: usize,
    worker: usize,
    suspended: bool,
    woken: u32,
    stamped: Stamped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Worker(usize, u64),
    Tick(usize, u64),
    Slice(usize, Nanos),
    Arrive(usize),
}

const NOBODY: usize = usize::MAX;

/// The world of one run.
struct World<'a> {
    machine: Machine,
    work: &'a mut dyn Work,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    workers: Vec<Worker>,
    groups: Vec<Group>,
    roots: Shelf,
    inbox: Vec<(u64, usize)>,
    inbox_line: Line,
    signals: Line,
    list_lock: Line,
    searching: usize,
    sleepers: Vec<usize>,
    free_cores: usize,
    queued: VecDeque<usize>,
    requests: Vec<Request>,
    arrivals: Vec<Arrival>,
    outside: Vec<Nanos>,
    left: Vec<(u64, Nanos, Nanos)>,
    alive: u64,
    counts: Counts,
    computed: Nanos,
    worked: Nanos,
    next_best: u64,
}

/// Runs the load on the machine.
#[must_use]
pub fn run(machine: Machine, work: &mut dyn Work) -> Outcome {
    let mut world = World::new(machine, work);
    while world.alive > 0 {
        let Some(Reverse((at, _, event))) = world.events.pop() else { break };
        if at > machine.until {
            world.now = machine.until;
            break;
        }
        world.now = at;
        match event {
            Event::Worker(worker, turn) if world.workers[worker].turn == turn => world.go_on(worker),
            Event::Tick(worker, turn) if world.workers[worker].turn == turn => world.unblock(worker, at),
            Event::Slice(worker, since) => world.end_slice(worker, since),
            Event::Arrive(number) => world.arrive(number),
            Event::Worker(..) | Event::Tick(..) => {}
        }
    }
    world.outcome()
}

impl<'a> World<'a> {
    fn new(machine: Machine, work: &'a mut dyn Work) -> World<'a> {
        let (count, awake) = (machine.workers, work.awake());
        let worker = |index: usize| Worker {
            phase: if awake { Phase::Next } else { Phase::Asleep },
            turn: 0,
            due: 0,
            core: None,
            why: Why::Loop,
            list: BTreeSet::new(),
            ready: BTreeSet::new(),
            mail: Vec::new(),
            hungry: !awake,
            running: NO_KEY,
            private: NO_KEY,
            post: Line::default(),
            shelf: Shelf::default(),
            batch: 1,
            looks: index as u32 % FULL_EVERY,
            loot: None,
            pause: 0,
            patient_until: 0,
            ticks: 0,
            current: NOBODY,
            last_end: 0,
            searching: false,
            search_end: 0,
            token: false,
            found: None,
            working: None,
            begun: None,
            late: false,
            picks: 0,
        };
        let groups = if count > MEMBERS { count.div_ceil(MEMBERS) } else { 0 };
        let arrivals = work.arrivals();
        let outside = vec![0; arrivals.iter().map(|arrival| arrival.by + 1).max().unwrap_or(0)];
        let mut world = World {
            machine,
            work,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            workers: (0..count).map(worker).collect(),
            groups: vec![Group { key: NO_KEY, word: Line::default() }; groups],
            roots: Shelf::default(),
            inbox: Vec::new(),
            inbox_line: Line::default(),
            signals: Line::default(),
            list_lock: Line::default(),
            searching: 0,
            sleepers: Vec::new(),
            free_cores: machine.cores,
            queued: VecDeque::new(),
            requests: Vec::new(),
            alive: arrivals.len() as u64,
            left: vec![(0, 0, 0); arrivals.len()],
            arrivals,
            outside,
            counts: Counts::default(),
            computed: 0,
            worked: 0,
            next_best: NO_KEY,
        };
        for number in 0..world.arrivals.len() {
            let at = world.arrivals[number].at;
            if at == 0 {
                let root = world.root(number, 0);
                world.roots.put((number as u64, root));
            } else {
                world.book(at, Event::Arrive(number));
            }
        }
        for index in 0..count {
            if awake {
                world.get_core(index, index as Nanos * machine.skew, 0);
            } else {
                world.sleepers.push(index);
            }
        }
        world
    }

    // Events, and cores.

    fn book(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// The worker's next event is the end of `phase` at `at`.
    fn then(&mut self, index: usize, phase: Phase, at: Nanos) {
        let worker = &mut self.workers[index];
        worker.phase = phase;
        worker.due = at;
        worker.turn += 1;
        let turn = worker.turn;
        self.book(at, Event::Worker(index, turn));
    }

    /// It can go on with its phase, which needs so long still, as soon as it has a core.
    fn get_core(&mut self, index: usize, delay: Nanos, rest: Nanos) {
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

    fn enter_core(&mut self, index: usize, rest: Nanos) {
        let (now, phase) = (self.now, self.workers[index].phase);
        self.workers[index].core = Some(now);
        self.then(index, phase, now + rest);
        if !self.queued.is_empty() {
            self.book(now + self.machine.costs.slice, Event::Slice(index, now));
        }
    }

    fn leave_core(&mut self, index: usize) {
        self.workers[index].core = None;
        match self.queued.pop_front() {
            Some(next) => {
                let rest = self.workers[next].due + self.machine.costs.switch;
                self.enter_core(next, rest);
            }
            None => self.free_cores += 1,
        }
    }

    fn end_slice(&mut self, index: usize, since: Nanos) {
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
    fn unblock(&mut self, index: usize, at: Nanos) {
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

    // What comes from outside.

    fn root(&mut self, number: usize, known: Nanos) -> usize {
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

    fn arrive(&mut self, number: usize) {
        let by = self.arrivals[number].by;
        if self.outside[by] > self.now {
            return self.book(self.outside[by], Event::Arrive(number));
        }
        let (costs, who) = (self.machine.costs, self.workers.len() + by);
        let mut at = self.inbox_line.write(&costs, self.now, who, costs.exchange);
        let root = self.root(number, at);
        let first = self.inbox.is_empty();
        self.inbox.push((number as u64, root));
        if !(first && self.notify(who, &mut at, 1)) {
            // Who runs the youngest?
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

    // Sleep and wake-up.

    fn notify(&mut self, who: usize, at: &mut Nanos, most: usize) -> bool {
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

    fn pass_on(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        *at = self.signals.write(&costs, *at, index, costs.exchange);
        self.searching -= 1;
        self.workers[index].searching = false;
        if self.searching == 0 && self.more(index, at) {
            self.notify(index, at, self.machine.heirs);
        }
    }

    fn more(&mut self, index: usize, at: &mut Nanos) -> bool {
        *at += self.machine.costs.hit;
        if self.roots.key() != NO_KEY || !self.inbox.is_empty() || self.workers[index].shelf.key() != NO_KEY {
            return true;
        }
        self.best_shelf(index, at).is_some()
    }

    /// All shelves but the own are looked at: whose is best, and its key.
    fn best_shelf(&mut self, index: usize, at: &mut Nanos) -> Option<(usize, u64)> {
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
    fn say_hungry(&mut self, index: usize, at: &mut Nanos) -> bool {
        let (costs, mut busy) = (self.machine.costs, false);
        for other in (0..self.workers.len()).filter(|other| *other != index) {
            let worker = &mut self.workers[other];
            *at += if worker.post.read(index) { costs.hop / costs.overlap } else { costs.hit };
            busy |= worker.running != NO_KEY;
            self.raise_hungry(index, other, at);
        }
        busy
    }

    fn raise_hungry(&mut self, index: usize, other: usize, at: &mut Nanos) {
        let (costs, worker) = (self.machine.costs, &mut self.workers[other]);
        if !worker.hungry {
            worker.hungry = true;
            self.counts.hungry += 1;
            *at = worker.post.write(&costs, *at, index, costs.exchange);
        }
    }

    // Publication.

    /// The worker stores something of its own where others see it: buffered, so it waits for nobody.
    fn store(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        self.workers[index].post.write(&costs, *at, index, costs.hit);
        *at += costs.hit;
    }

    fn note_private(&mut self, index: usize, at: &mut Nanos) {
        let key = self.workers[index].list.first().map_or(NO_KEY, |first| first.0);
        if self.workers[index].private != key {
            self.workers[index].private = key;
            self.store(index, at);
        }
    }

    fn set_running(&mut self, index: usize, key: u64, at: &mut Nanos) {
        if self.workers[index].running != key {
            self.workers[index].running = key;
            self.store(index, at);
        }
    }

    /// The key of `whose` shelf has become what it is; it was `before`. Told by `who`, who has the lock.
    fn tell_key(&mut self, who: usize, whose: usize, before: u64, at: &mut Nanos) {
        let (costs, key) = (self.machine.costs, self.workers[whose].shelf.key());
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

    fn feed(&mut self, index: usize, at: &mut Nanos) {
        let costs = self.machine.costs;
        let worker = &mut self.workers[index];
        if worker.list.is_empty() {
            worker.batch = 1;
            return;
        }
        worker.hungry = false;
        *at = worker.post.write(&costs, *at, index, costs.exchange);
        if self.machine.fills && worker.shelf.entries.len() + 1 < self.sleepers.len() {
            worker.hungry = true;
        }
        let (before, mut shown) = (worker.shelf.key(), 0);
        while shown < u64::from(worker.batch)
            && let Some((key, _, request)) = worker.list.pop_first()
        {
            worker.shelf.put((key, request));
            self.requests[request].shown = true;
            shown += 1;
        }
        worker.batch = (worker.batch * 2).min(LARGEST_BATCH);
        *at += shown * costs.publish;
        *at = worker.shelf.lock.write(&costs, *at, index, shown * (costs.exchange + costs.entry));
        self.tell_key(index, index, before, at);
        self.counts.publications += 1;
        self.counts.published += shown;
        self.note_private(index, at);
        self.notify(index, at, 1);
    }

    // Choosing.

    fn go_on(&mut self, index: usize) {
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
    fn root_key(&mut self, index: usize, at: &mut Nanos) -> u64 {
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
    fn by_words(&mut self, index: usize) -> bool {
        let left = self.workers[index].looks;
        self.workers[index].looks = left.saturating_sub(1);
        left > 0
    }

    fn next(&mut self, index: usize) {
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
    fn published(&mut self, index: usize, key: u64, at: &mut Nanos) -> u64 {
        let costs = self.machine.costs;
        if self.groups.is_empty() {
            for other in (0..self.workers.len()).filter(|other| *other != index) {
                if self.machine.tells && self.workers[other].private < key {
                    self.raise_hungry(index, other, at);
                }
            }
            return self.best_shelf(index, at).map_or(NO_KEY, |(_, key)| key);
        }
        if !self.by_words(index) {
            return 0;
        }
        let misses = self.groups.iter_mut().map(|group| u64::from(group.word.read(index))).sum::<u64>();
        *at += self.groups.len() as u64 * costs.hit + misses * costs.hop / costs.overlap;
        self.groups.iter().map(|group| group.key).min().unwrap_or(NO_KEY)
    }

    fn pick(&mut self, index: usize, mut at: Nanos) {
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
        let shelf = worker.shelf.key();
        let mine = ready.min(private).min(shelf);
        let mut best = (mine.min(roots), None);
        // What comes next after the best, as far as it is seen.
        let mut four = [ready, private, shelf, roots];
        four.sort_unstable();
        self.next_best = four[1];
        let late = std::mem::take(&mut self.workers[index].late);
        self.workers[index].picks += 1;
        let due = self.workers[index].picks.is_multiple_of(self.machine.look_every);
        if mine == NO_KEY || self.groups.is_empty() || !late && due {
            self.look(index, &mut best, &mut at);
        }
        let choice = match best {
            (NO_KEY, _) => Choice::Nothing,
            (key, Some(victim)) => Choice::Victim(victim, key),
            (key, None) if ready == key => Choice::Ready,
            (key, None) if private == key => Choice::Private,
            (key, None) if shelf == key => Choice::Own(key),
            (key, None) => Choice::Roots(self.limit(key)),
        };
        self.then(index, Phase::Take(choice), at);
    }

    fn limit(&self, key: u64) -> u64 {
        // No entry has no key.
        if self.machine.second { self.next_best.min(NO_KEY - 1) } else { key }
    }

    fn look(&mut self, index: usize, best: &mut (u64, Option<usize>), at: &mut Nanos) {
        let (costs, count) = (self.machine.costs, self.workers.len());
        let mut loads = (0, 0);
        if self.groups.is_empty() {
            for other in (index + 1..count).chain(0..index) {
                self.compare(index, other, best, &mut loads, at);
            }
        } else if self.by_words(index) {
            for number in 0..self.groups.len() {
                loads.0 += 1;
                loads.1 += u64::from(self.groups[number].word.read(index));
                let seen = self.groups[number].key;
                if seen >= best.0 {
                    self.next_best = self.next_best.min(seen);
                    continue;
                }
                let members = number * MEMBERS..((number + 1) * MEMBERS).min(count);
                for other in members.clone().filter(|other| *other != index) {
                    self.compare(index, other, best, &mut loads, at);
                }
                let least = members.map(|member| self.workers[member].shelf.key()).min().unwrap_or(NO_KEY);
                if least > seen {
                    *at = self.groups[number].word.write(&costs, *at, index, costs.exchange);
                    self.groups[number].key = least;
                }
            }
        } else {
            self.workers[index].looks = FULL_EVERY - 1;
            for other in (index + 1..count).chain(0..index) {
                self.compare(index, other, best, &mut loads, at);
            }
        }
        *at += loads.0 * costs.hit + loads.1 * costs.hop / costs.overlap;
    }

    fn compare(
        &mut self,
        index: usize,
        other: usize,
        best: &mut (u64, Option<usize>),
        loads: &mut (u64, u64),
        at: &mut Nanos,
    ) {
        loads.0 += 1;
        loads.1 += u64::from(self.workers[other].post.read(index));
        let theirs = self.workers[other].shelf.key();
        if theirs < best.0 {
            self.next_best = best.0;
            *best = (theirs, Some(other));
        } else {
            self.next_best = self.next_best.min(theirs);
        }
        if self.workers[other].private < best.0 {
            self.raise_hungry(index, other, at);
        }
    }

    fn take(&mut self, index: usize, choice: Choice) {
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
            Choice::Own(_) => self.workers[index].shelf.lock.write(&costs, now, index, hold),
            Choice::Roots(_) => self.roots.lock.write(&costs, now, index, hold),
            Choice::Victim(victim, _) | Choice::Robbed(victim, _) => {
                let half = self.workers[victim].shelf.entries.len().div_ceil(2) as u64;
                let hold = costs.exchange + half * costs.entry;
                self.workers[victim].shelf.lock.write(&costs, now, index, hold)
            }
        };
        self.then(index, Phase::Taken(choice), end);
    }

    fn taken(&mut self, index: usize, choice: Choice) {
        let (costs, mut at) = (self.machine.costs, self.now);
        let request = match choice {
            Choice::Own(limit) => {
                let before = self.workers[index].shelf.key();
                let request = self.workers[index].shelf.take(limit);
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
                at += costs.clock;
                self.workers[index].loot = Some(at);
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
                self.pick(index, at);
            }
        }
    }

    fn rob(&mut self, index: usize, victim: usize, limit: u64, at: &mut Nanos) -> Option<usize> {
        let costs = self.machine.costs;
        let before = self.workers[victim].shelf.key();
        let mut loot = self.workers[victim].shelf.take_half(limit).into_iter();
        let first = loot.next()?;
        self.counts.steals += 1;
        self.tell_key(index, victim, before, at);
        let (own, rest) = (self.workers[index].shelf.key(), loot.len() as u64);
        for entry in loot {
            self.workers[index].shelf.put(entry);
        }
        if rest > 0 {
            let hold = rest * (costs.exchange + costs.entry);
            *at = self.workers[index].shelf.lock.write(&costs, *at, index, hold);
            self.tell_key(index, index, own, at);
            self.notify(index, at, 1);
        }
        if self.workers[victim].shelf.entries.is_empty() {
            self.raise_hungry(index, victim, at);
        }
        Some(first.1)
    }

    /// A pick has found something; `why` it was made says what is to be done before it begins.
    fn found(&mut self, index: usize, request: usize, mut at: Nanos) {
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

    fn begin(&mut self, index: usize, request: usize, mut at: Nanos) {
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

    fn make_ready(&mut self, index: usize, request: usize) {
        let (key, place) = self.requests[request].stamped.place;
        self.workers[index].ready.insert((key, place, request));
    }

    fn resume(&mut self, index: usize) {
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

    // Nothing to do.

    fn nothing(&mut self, index: usize) {
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
        let worker = &mut self.workers[index];
        if let Some(since) = worker.loot.take() {
            at += costs.clock;
            if at - since >= WORTH_IT {
                (worker.pause, worker.patient_until) = (0, 0);
            } else {
                worker.pause = (worker.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                worker.patient_until = at + worker.pause;
            }
        }
        if let Some((victim, key)) = self.best_shelf(index, &mut at) {
            return self.then(index, Phase::Take(Choice::Robbed(victim, key)), at);
        }
        if self.workers[index].patient_until <= at {
            self.say_hungry(index, &mut at);
        }
        self.still_nothing(index, at);
    }

    fn still_nothing(&mut self, index: usize, mut at: Nanos) {
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

    fn idle(&mut self, index: usize) {
        self.workers[index].token = false;
        self.workers[index].why = Why::First;
        self.pick(index, self.now + self.machine.costs.exchange);
    }

    fn search(&mut self, index: usize) {
        let mut at = self.now;
        self.workers[index].why = Why::Search;
        let worker = &self.workers[index];
        let own = !worker.mail.is_empty()
            || !worker.ready.is_empty()
            || !worker.list.is_empty()
            || worker.shelf.key() != NO_KEY;
        if own || self.root_key(index, &mut at) != NO_KEY {
            return self.pick(index, at);
        }
        let now = std::mem::replace(&mut self.now, at);
        self.nothing(index);
        self.now = now;
    }

    fn announce(&mut self, index: usize, mut at: Nanos) {
        let costs = self.machine.costs;
        at = self.list_lock.write(&costs, at, index, costs.exchange + costs.entry);
        at = self.signals.write(&costs, at, index, costs.exchange);
        self.sleepers.push(index);
        self.searching -= usize::from(self.workers[index].searching);
        self.note_private(index, &mut at);
        let patient = self.workers[index].patient_until.saturating_sub(at);
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

    fn park(&mut self, index: usize, at: Nanos) {
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

    fn withdraw(&mut self, index: usize) {
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
            self.notify(index, &mut at, 1);
        }
        if self.requests[request].worker != NOBODY {
            // It has begun, and goes on from where it was taken.
            self.make_ready(index, request);
            self.workers[index].why = Why::Loop;
            return self.then(index, Phase::Next, at);
        }
        self.begin(index, request, at);
    }

    // Requests.

    fn step(&mut self, index: usize) {
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
                let stamped = Stamped { place: (record.key, place), known: at, before: 0, began: 0 };
                let child = self.requests.len();
                self.requests.push(Request {
                    data,
                    step: 0,
                    shown: false,
                    maker: index,
                    worker: NOBODY,
                    woken: 0,
                    stamped,
                    ..record
                });
                self.left[record.root].0 += 1;
                self.alive += 1;
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

    fn wake(&mut self, index: usize, target: usize, at: &mut Nanos) {
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

    fn end(&mut self, index: usize, mut at: Nanos) {
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

    fn outcome(mut self) -> Outcome {
        let end = self.left.iter().map(|root| root.2).fold(0, Nanos::max).max(self.now);
        for worker in &self.workers {
            if let Some(since) = worker.working {
                self.worked += end.saturating_sub(since);
            }
        }
        let load = |line: &Line| Load {
            share: line.used as f64 / end.max(1) as f64,
            wait: line.waited as f64 / line.writes.max(1) as f64,
            writes: line.writes,
        };
        let most = |of: &dyn Fn(&Worker) -> Load| {
            self.workers.iter().map(of).max_by(|a, b| a.share.total_cmp(&b.share)).unwrap_or_default()
        };
        let groups = self.groups.iter().map(|group| load(&group.word));
        Outcome {
            end,
            counts: self.counts,
            stamps: self.requests.iter().filter(|it| it.worker != NOBODY).map(|it| it.stamped).collect(),
            latencies: self.left.iter().map(|(_, came, over)| over.saturating_sub(*came)).collect(),
            computed: self.computed,
            all_busy: self
                .workers
                .iter()
                .map(|worker| worker.begun)
                .try_fold(0, |all, at| Some(all.max(at?))),
            roots: load(&self.roots.lock),
            inbox: load(&self.inbox_line),
            signals: load(&self.signals),
            sleepers: load(&self.list_lock),
            post: most(&|worker| load(&worker.post)),
            shelf: most(&|worker| load(&worker.shelf.lock)),
            group: groups.max_by(|a, b| a.share.total_cmp(&b.share)).unwrap_or_default(),
            overhead: self.worked.saturating_sub(self.computed) as f64 / self.counts.run.max(1) as f64,
            submitted: self.outside.iter().copied().max().unwrap_or(0),
        }
    }
}
