//! The model itself: workers that take steps, one event after the other.
//!
//! Each worker is in a *phase*, and has one pending event: the end of that phase. Between two events a worker acts on its own
//! clock. That clock runs ahead of the world's by what the worker's small steps cost. To take from a shared queue or from the
//! roots, a worker asks by one event, and gets the work by another, when it has the lock. So takers get the lock in their order.
//!
//! Invariants:
//!
//! 1. A worker that has no core, or is blocked, has no pending event but perhaps a tick. `turn` counts a worker's events, so an
//!    event that was called off is recognised by its number.
//! 2. The counts of searchers and sleepers and the list are as in `pool/src/signals.rs`. A worker is in the list; or it runs,
//!    and is perhaps a searcher; or it was taken off the list and is a searcher.

mod choosing;
mod cores;
mod idling;
mod outside;
mod patience;
mod publication;
mod requests;
mod sleep;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use self::patience::Patience;
use crate::costs::{Costs, FULL_EVERY, MEMBERS, Nanos};
use crate::line::Line;
use crate::result::{Counts, Load, Outcome, Stamped};
use crate::shared_queue::{Group, NO_KEY, SharedQueue};
use crate::work::{Arrival, Work};

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
    /// Whether a worker that has locked the roots takes the best of them, if that is not younger than the second best that it saw.
    /// Otherwise it takes only the root that it saw, and picks again if that is gone.
    pub second: bool,
    /// Whether hunger is left standing until as many are shown as sleep.
    pub fills: bool,
    /// How many sleepers a searcher wakes in its place when it has found something,
    pub heirs: usize,
    /// also beside others that search, if these are fewer than one for so many sleepers,
    pub apart: usize,
    /// and fewer than so many.
    pub widest: usize,
    /// Above eight workers, whether a pick begins at the picker's own group, behind the picker. Then pickers that see equal keys
    /// choose different workers. Otherwise every pick begins at the first worker.
    pub rotates: bool,
    /// Above eight workers, how many words a look reads that goes by them: other ones each time.
    pub samples: usize,
    /// Not in the runtime: whether a picker that came too late for what another worker had takes what it has itself, if it has
    /// anything, without looking again.
    pub settles: bool,
    /// Not in the runtime: above eight workers, one pick in so many looks at others if the picker has something itself.
    pub look_every: u32,
    /// Not in the runtime: how many shared queues a look notes that have something older than the picker. A thief that comes too late tries
    /// the next of them without another look.
    pub candidates: usize,
    /// Not in the runtime: whether a picker goes to one of those at first that hangs on its number, and not to the best.
    pub spreads: bool,
    /// Not in the runtime: a picker that has something itself passes over a root that so many workers run already.
    pub share: usize,
    /// Not in the runtime, where it would lose wake-ups: whether who shows work only reads the word of the signals at first.
    pub peeks: bool,
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
            fills: true,
            heirs: 2,
            apart: 4,
            widest: 8,
            rotates: true,
            samples: 4,
            settles: false,
            look_every: 1,
            candidates: 1,
            spreads: false,
            share: usize::MAX,
            peeks: false,
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
    shared_queue: SharedQueue,
    batch: u32,
    looks: u32,
    patience: Patience,
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
    /// How many groups it has looked at in turn.
    turned: usize,
    /// What its last look saw beside the best, best last.
    others: Vec<(u64, usize)>,
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
    roots: SharedQueue,
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
    /// What the look under way has seen, best first.
    seen: Vec<(u64, usize)>,
    /// How many workers run something of a root.
    runners: Vec<usize>,
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
            shared_queue: SharedQueue::default(),
            batch: 1,
            looks: index as u32 % FULL_EVERY,
            patience: Patience::default(),
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
            turned: 0,
            others: Vec::new(),
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
            roots: SharedQueue::default(),
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
            seen: Vec::new(),
            runners: Vec::new(),
        };
        world.runners = vec![0; world.arrivals.len()];
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
        let mut shares = vec![0; self.workers.len()];
        for request in self.requests.iter().filter(|it| it.worker != NOBODY && it.maker != NOBODY) {
            shares[request.worker] += 1;
        }
        let groups = self.groups.iter().map(|group| load(&group.word));
        Outcome {
            end,
            counts: self.counts,
            stamps: self.requests.iter().filter(|it| it.worker != NOBODY).map(|it| it.stamped).collect(),
            shares,
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
            shared_queue: most(&|worker| load(&worker.shared_queue.lock)),
            group: groups.max_by(|a, b| a.share.total_cmp(&b.share)).unwrap_or_default(),
            overhead: self.worked.saturating_sub(self.computed) as f64 / self.counts.run.max(1) as f64,
            submitted: self.outside.iter().copied().max().unwrap_or(0),
        }
    }
}
