//! [`Ledger`]: the coordinator's side of the engine, without the network. It takes what has happened, and answers what is to be done.
//!
//! # The states of a task
//!
//! ```text
//!   submit --> queued --claim--> leased --Record--> ended
//!                ^                  |
//!                +-- worker gone ---+--too often--> ended (Poisoned)
//! ```
//!
//! The queue itself is a stream of the server. A worker takes a message from it and *claims* the task; it starts nothing before the ledger has said so. So the
//! ledger alone decides who runs what:
//!
//! * *Exactly once when nothing fails.* A message may be handed out twice by the server, or be published twice. The second claim is answered `Later` or `Drop`.
//! * *At least once.* A task that is leased to a worker that is gone is published again, as the next *copy*. An older copy that turns up is dropped. That
//!   also brings it to the end of the queue; the server itself would hand it out first.
//! * *No early start.* A claim says which record of its worker is the newest. It waits until the ledger has read that, so a failure has cancelled the queue before the worker that failed gets more.
//!
//! # The states of a member
//!
//! *Starting*, *ready*, *draining*, *gone*. A member is gone when it reports that it has left, or the process that
//! started it saw it die. It is also gone when another of its name joins, or when it has been silent for a lease. Another
//! one of its name has to wait while it is heard; `rivals` has the rule. First
//! the ledger reads all records that exist then: what was recorded before a death counts. A member that is gone is
//! forgotten: what it still says is answered `Gone`, and what it records is dropped. Silence is not counted while the
//! coordinator's own connection is down, nor when the coordinator itself stood still.
//!
//! # Who may call
//!
//! One task of the engine owns the ledger. Nothing here waits or reads a clock.

mod alone;
mod deaths;
mod entries;
mod foreign;
mod lost;
mod names;
mod refused;
mod rivals;
mod stale;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::mem;
use std::time::{Duration, Instant};

use forebear_cluster::engine::{
    Answer, Envelope, Event, MAX_SLOTS, ObjectId, Order, Resource, ResourceId, TaskId, WorkerId, WorkerState,
    WorkerStatus, difference,
};

use self::alone::{Admitted, Alone};
use self::entries::{Entries, Lease, LedgerEntry};
use self::names::Known;
use self::rivals::Rivals;
use self::stale::Stale;
use crate::wire::{Claim, Down, Hello, Parcel, Record, Stage, TaskEnd, Terms, Times, Up, Welcome, What};

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum Act {
    /// Tell the coordinator.
    Tell(Event),
    /// Put it at the end of the queue. Then delete that older message.
    Publish { parcel: Parcel, older: Option<u64> },
    /// Drop what is queued of this generation.
    Purge(u64),
    /// Delete an object that nobody knows of: its writer is gone.
    Discard(ObjectId),
    /// Send it to a member.
    Send { member: u64, down: Down },
    /// Answer a request to join.
    Reply { to: String, welcome: Welcome },
    /// Say the number of the newest record, by [`Ledger::newest`].
    AskNewest { member: u64 },
    /// Close the stream of the process that is this start: it ends.
    Release { launch: u64 },
    /// The same, and start another worker of its name.
    Replace { launch: u64 },
    /// Say it to the operator.
    Warn(String),
}

pub(crate) struct Ledger {
    epoch: u64,
    times: Times,
    /// The names and types of the coordinator's tasks.
    known: Vec<(String, String)>,
    tasks: Entries,
    members: BTreeMap<u64, Member>,
    names: Known,
    last_member: u64,
    /// Starts of programs that have ended, the newest ones.
    dead: BTreeSet<u64>,
    /// Starts of programs that the program has killed by its control, and that have not ended.
    killed: BTreeSet<u64>,
    /// Starts of programs that have not ended, and have been ready; and those whose members have finished tasks, and are gone.
    were_ready: HashSet<u64>,
    have_finished: HashSet<u64>,
    resources: BTreeMap<ResourceId, Resource>,
    stale: Stale,
    /// Tasks of generations before this one are dropped.
    floor: u64,
    /// The floor has risen, and that nothing below it runs has not been told.
    draining: bool,
    closed: bool,
    /// All records up to this one have been read.
    read: u64,
    /// Records after that which have been read: the server hands one out again, and later, that was on its way when a connection broke.
    early: BTreeSet<u64>,
    /// The newest record at the last look, if all were read then.
    quiet: Option<u64>,
    last_tick: Option<Instant>,
    /// The newest time that a call has named.
    now: Option<Instant>,
    /// So often nobody could be heard. A member that has said nothing since is not blamed.
    outages: u64,
    /// Messages that were dropped.
    dropped: u64,
    /// Versions of workers that were refused for that.
    foreign: BTreeSet<u8>,
    /// Names that were refused to workers from elsewhere.
    encroached: BTreeSet<String>,
    /// So many leases were compared with what members hold.
    #[cfg(test)]
    compared: usize,
    acts: Vec<Act>,
}

struct Member {
    id: WorkerId,
    nonce: u64,
    process: u64,
    launch: Option<u64>,
    index: u64,
    slots: usize,
    state: WorkerState,
    beat: u64,
    seen: Instant,
    /// When it has said something last, and how many outages there had been then.
    said: (Instant, u64),
    /// Its end is not the fault of a task.
    excused: bool,
    /// What other processes of its name have asked.
    rivals: Rivals,
    /// Whether it is kept for one task.
    alone: Alone,
    /// Its subject is listened to: it has said something.
    heard: bool,
    last_order: u64,
    /// It has finished a task.
    finished: bool,
    /// It is to be gone, when the record of that number is read. `None`: the number is not known yet.
    leaving: Option<Option<u64>>,
    /// It was silent for a lease. Its process may stand still.
    silent: bool,
    /// Before this order its numbers of records are of a stream that is gone.
    forgets: u64,
    /// The newest record that it has spoken of.
    after: u64,
    /// At the last look it waited for this record, which was not there.
    missing: Option<u64>,
    /// Orders that it has not confirmed.
    orders: VecDeque<Down>,
    /// Claims that wait for a record to be read, and for which.
    waiting: Vec<(u64, Claim)>,
    /// The tasks that are leased to it: so a beat costs what the member has, however many tasks there are.
    leases: BTreeSet<TaskId>,
}

impl Ledger {
    pub(crate) fn new(epoch: u64, times: Times, known: Vec<(String, String)>) -> Ledger {
        Ledger {
            epoch,
            times,
            known,
            tasks: Entries::default(),
            members: BTreeMap::new(),
            names: Known::default(),
            last_member: 0,
            dead: BTreeSet::new(),
            killed: BTreeSet::new(),
            were_ready: HashSet::new(),
            have_finished: HashSet::new(),
            resources: BTreeMap::new(),
            stale: Stale::default(),
            floor: 0,
            draining: false,
            closed: false,
            read: 0,
            early: BTreeSet::new(),
            quiet: None,
            last_tick: None,
            now: None,
            outages: 0,
            dropped: 0,
            foreign: BTreeSet::new(),
            encroached: BTreeSet::new(),
            #[cfg(test)]
            compared: 0,
            acts: Vec::new(),
        }
    }

    /// What is to be done since the last call.
    pub(crate) fn take(&mut self) -> Vec<Act> {
        self.tell_drained();
        mem::take(&mut self.acts)
    }

    /// So many messages were dropped since the last call: they were of another run, of a member that is gone, or sent twice.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        mem::take(&mut self.dropped)
    }

    // What the coordinator asks for.

    pub(crate) fn submit(&mut self, envelope: Envelope, now: Instant) {
        if envelope.generation < self.floor || self.closed {
            return;
        }
        let due = envelope.time_left.and_then(|left| now.checked_add(left));
        let task = envelope.task;
        self.tasks.insert(task, LedgerEntry::new(envelope, due));
        self.publish(task, None);
    }

    pub(crate) fn cancel(&mut self, task: TaskId) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        match entry.lease_mut() {
            Some(lease) => {
                lease.cancelled = true;
                let member = lease.member;
                self.order(member, What::Order(Order::Cancel(task)));
            }
            // Its message is dropped when a worker takes it.
            None => {
                let attempts = entry.attempts;
                self.end(task, None, attempts, Answer::Cancelled, Duration::ZERO);
            }
        }
    }

    pub(crate) fn cancel_before(&mut self, generation: u64) {
        let old = self.floor;
        self.floor = self.floor.max(generation);
        self.draining = true;
        self.acts.extend((old..self.floor).map(Act::Purge));
        let floor = self.floor;
        self.tasks.keep_leased_or(|entry| entry.envelope.generation >= floor);
        let mut orders = Vec::new();
        for (task, entry) in self.tasks.iter_mut().filter(|(_, entry)| entry.envelope.generation < floor) {
            if let Some(lease) = entry.lease_mut() {
                lease.cancelled = true;
                orders.push((lease.member, What::Order(Order::Cancel(task))));
            }
        }
        orders.into_iter().for_each(|(member, order)| self.order(member, order));
    }

    pub(crate) fn make(&mut self, resource: Resource) {
        self.resources.insert(resource.id, resource.clone());
        self.order_all(|| What::Order(Order::Make(resource.clone())));
    }

    pub(crate) fn free(&mut self, id: ResourceId) {
        self.resources.remove(&id);
        self.order_all(|| What::Order(Order::Free(id)));
    }

    /// These workers are to say what they do.
    pub(crate) fn dump(&mut self, inquiry: u64, workers: &[WorkerId]) {
        let asked = self.members.iter().filter(|(_, member)| workers.contains(&member.id));
        let asked: Vec<u64> = asked.map(|(number, _)| *number).collect();
        asked.into_iter().for_each(|member| self.order(member, What::Order(Order::Dump { inquiry })));
    }

    /// All members are to leave.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.tasks.keep_leased_or(|_| false);
        self.resources.clear();
        self.order_all(|| What::Stop);
    }

    /// It was closed, and all members have left.
    pub(crate) fn is_over(&self) -> bool {
        self.closed && self.members.is_empty()
    }

    // What comes from workers.

    /// `kept`: the name is that of a worker which the coordinator's process has started or will start.
    pub(crate) fn hello(&mut self, hello: Hello, reply: String, kept: bool, now: Instant) {
        self.now = Some(now);
        let welcome = if let Some(why) = self.refusal(&hello) {
            Welcome::Refused { why }
        } else if let Some(why) = self.encroachment(&hello, kept) {
            Welcome::Refused { why }
        } else if let Some(why) = self.rivalry(&hello, now) {
            Welcome::Later { why }
        } else {
            Welcome::Come(self.join(hello, now))
        };
        self.acts.push(Act::Reply { to: reply, welcome });
    }

    fn refusal(&self, hello: &Hello) -> Option<String> {
        if self.closed {
            return Some("the cluster was shut down".into());
        }
        if hello.launch.is_some_and(|launch| self.dead.contains(&launch)) {
            return Some("its process has ended".into());
        }
        if hello.slots == 0 || hello.slots as usize > MAX_SLOTS || hello.name.is_empty() {
            return Some(format!("it has no name, no slot, or more than {MAX_SLOTS} slots"));
        }
        difference(&self.known, &hello.tasks)
    }

    fn join(&mut self, hello: Hello, now: Instant) -> Terms {
        // The answer was lost, and it asks again.
        let again = self.members.iter().find(|(_, m)| m.id.name() == hello.name && m.nonce == hello.nonce);
        if let Some((member, known)) = again {
            return self.terms(*member, known);
        }
        // It has ended what it had before it asks.
        self.discard_stale(|attempt| attempt.process == hello.process);
        // The member that has the name is not there any more. If that is the same process, it stays, and has cancelled what it had: that is no death.
        let is_it = |m: &Member| m.id.name() == hello.name || m.process == hello.process;
        while let Some((number, member)) = self.members.iter_mut().find(|(_, m)| is_it(m)) {
            let number = *number;
            member.launch = member.launch.filter(|launch| hello.launch != Some(*launch));
            member.silent = false;
            member.excused |= member.process == hello.process;
            self.gone(number);
        }
        let (incarnation, index) = self.names.come(&hello.name);
        let id = WorkerId::new(hello.name, incarnation);
        self.last_member += 1;
        let member = self.last_member;
        let state = Member {
            id: id.clone(),
            nonce: hello.nonce,
            process: hello.process,
            launch: hello.launch,
            index,
            slots: hello.slots as usize,
            state: WorkerState::Starting,
            beat: 0,
            seen: now,
            said: (now, self.outages),
            excused: false,
            rivals: Rivals::default(),
            alone: Alone::No,
            heard: false,
            last_order: 0,
            forgets: 0,
            after: 0,
            missing: None,
            finished: false,
            leaving: None,
            silent: false,
            orders: VecDeque::new(),
            waiting: Vec::new(),
            leases: BTreeSet::new(),
        };
        let terms = self.terms(member, &state);
        self.members.insert(member, state);
        let orders: Vec<Order> =
            self.resources.values().cloned().map(Order::Make).chain([Order::Begin]).collect();
        orders.into_iter().for_each(|order| self.order(member, What::Order(order)));
        self.tell_worker(member);
        terms
    }

    fn terms(&self, member: u64, known: &Member) -> Terms {
        Terms { epoch: self.epoch, member, id: known.id.clone(), index: known.index, times: self.times }
    }

    pub(crate) fn up(&mut self, up: Up, now: Instant) {
        self.now = Some(now);
        if up.epoch != self.epoch {
            self.dropped += 1;
            return;
        }
        let there = self.members.get_mut(&up.member).filter(|member| member.leaving.is_none());
        let Some(member) = there else {
            self.dropped += 1;
            if up.stage == Stage::Left {
                return self.discard_stale(|attempt| attempt.member == up.member);
            }
            let down = Down { number: 0, what: What::Gone };
            return self.acts.push(Act::Send { member: up.member, down });
        };
        if up.beat <= member.beat || up.applied > member.last_order {
            self.dropped += 1;
            return;
        }
        member.beat = up.beat;
        member.seen = now;
        member.said = (now, self.outages);
        let again = up.again || !mem::replace(&mut member.heard, true);
        while member.orders.front().is_some_and(|order| order.number <= up.applied) {
            member.orders.pop_front();
        }
        if again {
            let orders = member.orders.iter().cloned();
            self.acts.extend(orders.map(|down| Act::Send { member: up.member, down }));
        }
        self.stage(up.member, up.stage);
        for (task, thousandths) in up.progress {
            if self.is_leased(task, up.member) {
                self.acts.push(Act::Tell(Event::Progress { task, thousandths }));
            }
        }
        let Some(member) = self.members.get_mut(&up.member) else { return };
        for (inquiry, text) in up.dumps {
            self.acts.push(Act::Tell(Event::Dump { worker: member.id.clone(), inquiry, text }));
        }
        let after = if up.applied < member.forgets { 0 } else { up.after };
        member.after = after;
        if after > self.read {
            // Once each, however often it says so.
            let known = mem::take(&mut member.waiting);
            let known = known.into_iter().filter(|(_, claim)| !up.claims.contains(claim));
            member.waiting = known.chain(up.claims.iter().map(|claim| (after, *claim))).collect();
            return;
        }
        if !up.unrecorded.is_empty() {
            // As for records: the coordinator has its say first.
            let member = self.members.get_mut(&up.member).into_iter();
            member.for_each(|member| member.waiting.extend(up.claims.iter().map(|claim| (0, *claim))));
            return up.unrecorded.into_iter().for_each(|one| self.unrecorded(up.member, one));
        }
        for claim in up.claims {
            self.claim(up.member, claim, now);
        }
        if let Some(holds) = up.holds {
            self.compare(up.member, up.applied, &holds);
        }
    }

    fn stage(&mut self, number: u64, stage: Stage) {
        let Some(member) = self.members.get_mut(&number) else { return };
        let next = match (member.state, stage) {
            (_, Stage::Left) => return self.leave(number),
            (WorkerState::Starting, Stage::Ready) => WorkerState::Ready,
            (WorkerState::Starting | WorkerState::Ready, Stage::Draining) => WorkerState::Draining,
            _ => return,
        };
        member.state = next;
        self.were_ready.extend(member.launch.filter(|_| next == WorkerState::Ready));
        self.tell_worker(number);
    }

    fn claim(&mut self, member: u64, claim: Claim, now: Instant) {
        let Claim { task, copy, sequence } = claim;
        let Some(its) = self.members.get_mut(&member) else { return };
        its.alone.forget(claim);
        let is_ready = its.state == WorkerState::Ready && its.leaving.is_none();
        let (id, order) = (its.id.clone(), its.last_order + 1);
        let floor = self.floor;
        let entry = self.tasks.get_mut(task);
        let entry = entry.filter(|entry| entry.envelope.generation >= floor && entry.copy == copy);
        let Some(entry) = entry.filter(|_| !self.closed) else {
            return self.order(member, What::Drop { task, copy });
        };
        match entry.lease() {
            // It says so again, and has been answered.
            Some(lease) if lease.member == member => return,
            Some(_) => return self.order(member, What::Later { task, copy }),
            None if !is_ready => return self.order(member, What::Later { task, copy }),
            None => {}
        }
        match its.alone.admit(claim, entry.is_suspect() && its.slots > 1, its.leases.is_empty()) {
            Admitted::Now => {}
            Admitted::Waits => return,
            Admitted::Later if self.is_ready_beside(member) => {
                return self.order(member, What::Later { task, copy });
            }
            // It says so again in its next beat.
            Admitted::Later => return,
        }
        entry.attempts += 1;
        let attempt = entry.attempts;
        let time_left = entry.due.map(|due| due.saturating_duration_since(now));
        its.leases.insert(task);
        self.tasks.lease(task, Lease { member, cancelled: false, sequence, order });
        self.acts.push(Act::Tell(Event::Started { task, worker: id, attempt }));
        self.order(member, What::Start { task, copy, attempt, time_left });
    }

    /// A record of the stream of results, and its number there.
    pub(crate) fn record(&mut self, sequence: u64, record: Option<Record>) {
        match record.filter(|record| record.epoch == self.epoch) {
            Some(Record { member, ends, .. }) => ends.into_iter().for_each(|end| self.task_end(member, end)),
            None => self.dropped += 1,
        }
        if sequence > self.read {
            self.early.insert(sequence);
        }
        while self.early.remove(&(self.read + 1)) {
            self.read += 1;
        }
        self.let_go();
    }

    /// A member has recorded this.
    fn task_end(&mut self, member: u64, end: TaskEnd) {
        let attempts = self.tasks.get(end.task).map(|entry| entry.attempts);
        if self.is_leased(end.task, member) && attempts == Some(end.attempt) {
            let worker = self.members.get_mut(&member).map(|member| {
                member.finished = true;
                member.id.clone()
            });
            self.end(end.task, worker, end.attempt, end.answer, end.ran);
        } else {
            self.dropped += 1;
            self.discard_stale(|attempt| (attempt.member, attempt.task) == (member, end.task));
        }
    }

    /// Answers the claims that waited for records. Called when the coordinator's own orders that came of those have been followed.
    pub(crate) fn settle(&mut self, now: Instant) {
        let read = self.read;
        let due: Vec<(u64, Claim)> = (self.members.iter_mut())
            .flat_map(|(number, member)| {
                let waiting = mem::take(&mut member.waiting);
                let (due, rest): (Vec<_>, Vec<_>) =
                    waiting.into_iter().partition(|(after, _)| *after <= read);
                member.waiting = rest;
                due.into_iter().map(move |(_, claim)| (*number, claim))
            })
            .collect();
        due.into_iter().for_each(|(member, claim)| self.claim(member, claim, now));
        self.settle_suspects(now);
    }

    /// The server has confirmed that this copy is in the queue.
    pub(crate) fn published(&mut self, task: TaskId, copy: u32) {
        self.tasks.published(task, copy);
    }

    /// So many tasks have to be in the queue.
    pub(crate) fn queued(&self) -> u64 {
        self.tasks.queued()
    }

    fn publish(&mut self, task: TaskId, older: Option<u64>) {
        self.tasks.unpublished(task);
        let Some(entry) = self.tasks.get(task) else { return };
        let parcel =
            Parcel { epoch: self.epoch, copy: entry.copy, envelope: entry.envelope.clone(), object: None };
        self.acts.push(Act::Publish { parcel, older });
    }

    fn end(&mut self, task: TaskId, worker: Option<WorkerId>, attempt: u32, answer: Answer, ran: Duration) {
        if let Some(entry) = self.tasks.remove(task) {
            if let Some(lease) = entry.lease() {
                self.unlease(task, lease.member);
            }
            self.acts.push(Act::Tell(Event::Ended { task, worker, attempt, answer, ran }));
        }
    }

    /// The task is leased to that member no more.
    fn unlease(&mut self, task: TaskId, member: u64) {
        if let Some(member) = self.members.get_mut(&member) {
            member.leases.remove(&task);
            member.alone.ended(task);
        }
    }

    fn order_all(&mut self, what: impl Fn() -> What) {
        let all: Vec<u64> = self.members.keys().copied().collect();
        all.into_iter().for_each(|member| self.order(member, what()));
    }

    fn order(&mut self, number: u64, what: What) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.last_order += 1;
        let down = Down { number: member.last_order, what };
        member.orders.push_back(down.clone());
        if member.heard {
            self.acts.push(Act::Send { member: number, down });
        }
    }

    fn is_leased(&self, task: TaskId, member: u64) -> bool {
        let lease = self.tasks.get(task).and_then(LedgerEntry::lease);
        lease.is_some_and(|lease| lease.member == member)
    }

    fn tell_worker(&mut self, number: u64) {
        if let Some(member) = self.members.get(&number) {
            let status = WorkerStatus::new(member.id.clone(), member.state, member.slots);
            self.acts.push(Act::Tell(Event::Worker(status)));
        }
    }

    fn tell_drained(&mut self) {
        let floor = self.floor;
        if self.draining && !self.tasks.iter().any(|(_, entry)| entry.envelope.generation < floor) {
            self.draining = false;
            self.acts.push(Act::Tell(Event::Drained { before: floor }));
        }
    }
}

#[cfg(test)]
mod tests;
