use std::sync::Arc;

use forebear_cluster::FailureKind;

use super::*;
use crate::wire::{Unrecorded, encode};

const LEASE: Duration = Duration::from_secs(6);

/// A ledger, with what a test says and hears.
struct Field {
    ledger: Ledger,
    now: Instant,
    beats: u64,
    events: Vec<Event>,
    sent: Vec<(u64, Down)>,
    published: Vec<(TaskId, u32)>,
    /// The number of the newest record in the stream.
    newest: u64,
    /// Processes that are to end, and whether others take their places.
    ends: Vec<(u64, bool)>,
}

impl Field {
    fn new() -> Field {
        let times = Times::new(LEASE, Duration::from_secs(1));
        let ledger = Ledger::new(7, times, vec![("task".into(), "types".into())]);
        let (events, sent, published) = (Vec::new(), Vec::new(), Vec::new());
        Field { ledger, now: Instant::now(), beats: 0, events, sent, published, newest: 0, ends: Vec::new() }
    }

    fn take(&mut self) {
        let mut acts = VecDeque::from(self.ledger.take());
        while let Some(act) = acts.pop_front() {
            match act {
                Act::AskNewest { member } => {
                    self.ledger.newest(member, self.newest);
                    acts.extend(self.ledger.take());
                }
                Act::Tell(event) => self.events.push(event),
                Act::Send { member, down } => self.sent.push((member, down)),
                Act::Publish { parcel, .. } => self.published.push((parcel.envelope.task, parcel.copy)),
                Act::Release { launch } => self.ends.push((launch, false)),
                Act::Replace { launch } => self.ends.push((launch, true)),
                _ => {}
            }
        }
    }

    /// Another worker, which is ready.
    fn worker(&mut self, name: &str) -> u64 {
        self.ledger.hello(hello(name), "reply".into(), self.now);
        let member = self.ledger.last_member;
        self.say(member, |up| up.stage = Stage::Ready);
        member
    }

    /// What a member says. It has followed all orders.
    fn say(&mut self, member: u64, change: impl FnOnce(&mut Up)) {
        self.beats += 1;
        let applied = self.ledger.members.get(&member).map_or(0, |member| member.last_order);
        let mut up = Up {
            epoch: 7,
            member,
            beat: self.beats,
            applied,
            again: false,
            stage: Stage::Ready,
            after: 0,
            claims: Vec::new(),
            progress: Vec::new(),
            dumps: Vec::new(),
            unrecorded: Vec::new(),
            holds: None,
        };
        change(&mut up);
        self.ledger.up(up, self.now);
        self.take();
    }

    fn claim(&mut self, member: u64, task: TaskId, copy: u32) {
        self.claim_after(member, task, copy, 0);
    }

    fn claim_after(&mut self, member: u64, task: TaskId, copy: u32, after: u64) {
        self.sent.clear();
        self.say(member, |up| {
            up.claims = vec![Claim { task, copy, sequence: 1 }];
            up.after = after;
        });
    }

    fn submit(&mut self, number: u64) -> TaskId {
        self.submit_within(number, None)
    }

    fn submit_within(&mut self, number: u64, time: Option<Duration>) -> TaskId {
        let mut envelope = envelope(number);
        envelope.time_left = time;
        let task = envelope.task;
        self.ledger.submit(envelope, self.now);
        self.take();
        task
    }

    fn record(&mut self, sequence: u64, member: u64, task: TaskId, attempt: u32, answer: Answer) {
        let end = TaskEnd { task, attempt, answer, ran: Duration::ZERO };
        let record = Record { epoch: 7, member, ends: vec![end] };
        self.ledger.record(sequence, Some(record));
        self.take();
    }

    /// What the members were last told, but for resources.
    fn told(&self) -> Vec<(u64, &What)> {
        self.sent.iter().map(|(member, down)| (*member, &down.what)).collect()
    }

    /// So many tasks have ended.
    fn ended(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Ended { .. })).count()
    }

    fn pass(&mut self, time: Duration, connected: bool) {
        self.now += time;
        self.ledger.tick(self.now, connected);
        self.take();
    }
}

fn hello(name: &str) -> Hello {
    let tasks = vec![("task".into(), "types".into())];
    let process = name.bytes().map(u64::from).sum();
    Hello { name: name.into(), slots: 1, launch: None, nonce: name.len() as u64, process, tasks }
}

/// Ids have no public way to be made, other than to be decoded.
fn id<T: serde::de::DeserializeOwned>(number: u64) -> T {
    let bytes = encode(&number).unwrap();
    crate::wire::decode(&bytes).unwrap()
}

fn envelope(number: u64) -> Envelope {
    type Fields = (u64, u64, u64, Arc<str>, Arc<[u8]>, Option<u64>, u32, Option<Duration>);
    let fields: Fields = (1, number, 0, "task".into(), Arc::from([1_u8]), None, 2, None);
    crate::wire::decode(&encode(&fields).unwrap()).unwrap()
}

fn done() -> Answer {
    Answer::Done(Arc::from([]))
}

fn failed() -> Answer {
    Answer::Failed(FailureKind::TimedOut)
}

#[test]
fn a_task_that_is_handed_out_twice_is_started_once() {
    let mut field = Field::new();
    let (a, b) = (field.worker("a"), field.worker("bb"));
    let task = field.submit(1);
    field.claim(a, task, 0);
    assert!(matches!(field.told()[..], [(_, What::Start { attempt: 1, .. })]));
    field.claim(b, task, 0);
    assert!(matches!(field.told()[..], [(member, What::Later { .. })] if member == b));
    // It says so once more.
    field.claim(a, task, 0);
    assert!(field.told().is_empty());
    field.record(1, a, task, 1, done());
    field.record(2, a, task, 1, done());
    assert_eq!(field.ended(), 1);
    field.claim(b, task, 0);
    assert!(matches!(field.told()[..], [(_, What::Drop { .. })]));
}

#[test]
fn a_task_of_a_worker_that_is_gone_goes_to_the_end_and_its_old_message_is_dropped() {
    let mut field = Field::new();
    let (a, b) = (field.worker("a"), field.worker("bb"));
    let task = field.submit(1);
    field.claim(a, task, 0);
    field.say(a, |up| up.stage = Stage::Left);
    assert_eq!(field.published, [(task, 0), (task, 1)]);
    field.claim(b, task, 0);
    assert!(matches!(field.told()[..], [(_, What::Drop { copy: 0, .. })]));
    field.claim(b, task, 1);
    assert!(matches!(field.told()[..], [(_, What::Start { attempt: 2, .. })]));
    // What the first one records counts for nothing.
    field.record(1, a, task, 1, done());
    assert_eq!(field.ended(), 0);
    // Two workers died with it, and no more may.
    field.say(b, |up| up.stage = Stage::Left);
    let poisoned = |event: &Event| {
        matches!(event, Event::Ended { answer: Answer::Failed(FailureKind::Poisoned { attempts: 2 }), .. })
    };
    assert!(field.events.iter().any(poisoned));
}

#[test]
fn a_worker_gets_nothing_before_its_last_record_is_read() {
    let mut field = Field::new();
    let a = field.worker("a");
    let (first, second) = (field.submit(1), field.submit(2));
    field.claim(a, first, 0);
    field.claim_after(a, second, 0, 2);
    assert!(field.told().is_empty());
    // It says so once more, and still is answered once.
    field.claim_after(a, second, 0, 2);
    field.ledger.record(2, None);
    field.ledger.settle(field.now);
    field.take();
    assert!(field.told().is_empty(), "one before it is not read");
    field.record(1, a, first, 1, failed());
    assert!(field.told().is_empty(), "the coordinator has its say first");
    field.ledger.cancel_before(1);
    field.ledger.settle(field.now);
    field.take();
    assert!(matches!(field.told()[..], [(_, What::Drop { .. })]), "{:?}", field.sent);
    assert!(field.events.iter().any(|event| matches!(event, Event::Drained { before: 1 })));
}

/// Also of a claim that waits for a record.
#[test]
fn the_time_of_a_task_passes_while_it_is_queued() {
    let mut field = Field::new();
    let (a, time) = (field.worker("a"), Duration::from_secs(5));
    let [first, second, third] = [1, 2, 3].map(|number| field.submit_within(number, Some(time)));
    let left = |field: &Field| match field.told()[..] {
        [(_, What::Start { time_left, .. })] => *time_left,
        ref told => panic!("{told:?}"),
    };
    field.pass(Duration::ZERO, true);
    field.now += Duration::from_secs(3);
    field.claim(a, first, 0);
    assert_eq!(left(&field), Some(Duration::from_secs(2)));
    field.claim_after(a, second, 0, 1);
    field.now += Duration::from_secs(1);
    field.record(1, a, first, 1, done());
    field.ledger.settle(field.now);
    field.take();
    assert_eq!(left(&field), Some(Duration::from_secs(1)));
    field.now += Duration::from_secs(2);
    field.claim(a, third, 0);
    assert_eq!(left(&field), Some(Duration::ZERO));
}

#[test]
fn what_a_worker_has_recorded_before_it_left_counts() {
    let mut field = Field::new();
    let a = field.worker("a");
    let task = field.submit(1);
    field.claim(a, task, 0);
    field.newest = 1;
    field.say(a, |up| up.stage = Stage::Left);
    assert!(field.ledger.members.contains_key(&a), "its record is not read yet");
    field.record(1, a, task, 1, done());
    assert_eq!((field.ended(), field.published.len()), (1, 1));
    assert!(field.ledger.members.is_empty());
}

#[test]
fn a_drain_is_told_when_nothing_runs() {
    let mut field = Field::new();
    let a = field.worker("a");
    let task = field.submit(1);
    field.claim(a, task, 0);
    field.ledger.cancel_before(1);
    field.take();
    let drained = |field: &Field| field.events.iter().any(|event| matches!(event, Event::Drained { .. }));
    assert!(!drained(&field));
    field.record(1, a, task, 1, Answer::Cancelled);
    assert!(drained(&field));
}

#[test]
fn silence_for_a_lease_is_a_death_but_not_if_nobody_could_be_heard() {
    let mut field = Field::new();
    let a = field.worker("a");
    let task = field.submit(1);
    field.claim(a, task, 0);
    let gone = |field: &Field| {
        let is_gone = |event: &Event| matches!(event, Event::Worker(s) if s.state == WorkerState::Gone);
        field.events.iter().any(is_gone)
    };
    field.pass(Duration::from_secs(1), true);
    // The connection was down.
    (0..10).for_each(|_| field.pass(Duration::from_secs(1), false));
    assert!(!gone(&field));
    // The coordinator itself stood still.
    field.pass(LEASE * 2, true);
    assert!(!gone(&field));
    (0..6).for_each(|_| field.pass(Duration::from_secs(1), true));
    assert!(!gone(&field));
    field.pass(Duration::from_millis(1), true);
    assert!(gone(&field));
    assert_eq!(field.published, [(task, 0), (task, 1)]);
}

#[test]
fn what_is_said_again_keeps_nobody_alive() {
    let mut field = Field::new();
    let a = field.worker("a");
    let old = field.beats;
    for _ in 0..7 {
        field.pass(Duration::from_secs(1), true);
        field.say(a, |up| up.beat = old);
    }
    assert!(field.ledger.members.is_empty());
    assert!(field.ledger.take_dropped() >= 6);
    // And what it says then is answered: it is gone.
    field.sent.clear();
    field.say(a, |_| ());
    assert!(matches!(field.told()[..], [(_, What::Gone)]));
}

#[test]
fn orders_that_are_not_confirmed_are_sent_again() {
    let mut field = Field::new();
    let a = field.worker("a");
    let task = field.submit(1);
    field.claim(a, task, 0);
    field.ledger.cancel(task);
    field.take();
    let numbers = |field: &Field| field.sent.iter().map(|(_, down)| down.number).collect::<Vec<_>>();
    assert_eq!(numbers(&field), [2, 3]);
    field.sent.clear();
    field.say(a, |up| (up.applied, up.again) = (1, true));
    assert_eq!(numbers(&field), [2, 3]);
    field.sent.clear();
    field.say(a, |up| (up.applied, up.again) = (2, true));
    assert_eq!(numbers(&field), [3]);
    field.sent.clear();
    field.say(a, |up| up.again = true);
    assert!(field.sent.is_empty());
    // Nobody confirms what was not sent.
    let dropped = field.ledger.take_dropped();
    field.say(a, |up| up.applied = 99);
    assert_eq!(field.ledger.take_dropped(), dropped + 1);
}

#[test]
fn messages_of_another_run_are_dropped() {
    let mut field = Field::new();
    let a = field.worker("a");
    let task = field.submit(1);
    field.say(a, |up| {
        up.epoch = 8;
        up.claims = vec![Claim { task, copy: 0, sequence: 1 }];
    });
    field.claim(a, task, 0);
    let end = TaskEnd { task, attempt: 1, answer: done(), ran: Duration::ZERO };
    let record = Record { epoch: 8, member: a, ends: vec![end] };
    field.ledger.record(1, Some(record));
    field.ledger.record(2, None);
    field.take();
    assert_eq!((field.ended(), field.ledger.take_dropped()), (0, 3));
}

#[test]
fn each_end_of_a_record_counts_once_and_by_itself() {
    let mut field = Field::new();
    let (a, b) = (field.worker("a"), field.worker("b"));
    let tasks = [1, 2, 3].map(|number| field.submit(number));
    for (member, task) in [(a, tasks[0]), (a, tasks[1]), (b, tasks[2])] {
        field.claim(member, task, 0);
    }
    let end = |task, attempt| TaskEnd { task, attempt, answer: done(), ran: Duration::ZERO };
    // The third is another member's, and the fourth is of an attempt that there was not.
    let ends = vec![end(tasks[0], 1), end(tasks[2], 1), end(tasks[1], 2), end(tasks[1], 1), end(tasks[0], 1)];
    field.ledger.record(1, Some(Record { epoch: 7, member: a, ends }));
    field.take();
    assert_eq!((field.ended(), field.ledger.take_dropped()), (2, 3));
    assert!(field.ledger.is_leased(tasks[2], b));
}

#[test]
fn a_request_to_join_that_is_repeated_is_one_worker() {
    let mut field = Field::new();
    field.worker("a");
    field.ledger.hello(hello("a"), "reply".into(), field.now);
    assert_eq!(field.ledger.members.len(), 1);
    // Another one of that name takes its place.
    field.ledger.hello(Hello { nonce: 99, process: 99, ..hello("a") }, "reply".into(), field.now);
    field.take();
    let ids: Vec<_> = field.ledger.members.values().map(|member| member.id.clone()).collect();
    assert_eq!(ids, [WorkerId::new("a", 2)]);
}

#[test]
fn a_worker_whose_process_has_ended_cannot_join_any_more() {
    let mut field = Field::new();
    field.ledger.died(3, field.now);
    field.ledger.hello(Hello { launch: Some(3), ..hello("a") }, "reply".into(), field.now);
    let acts = field.ledger.take();
    assert!(matches!(&acts[..], [Act::Reply { welcome: Welcome::Refused { .. }, .. }]));
}

#[test]
fn what_the_store_has_lost_is_queued_again() {
    let mut field = Field::new();
    let a = field.worker("a");
    let (first, second) = (field.submit(1), field.submit(2));
    assert_eq!(field.ledger.queued(), 0, "the server has confirmed none");
    field.ledger.published(first, 0);
    field.ledger.published(second, 0);
    assert_eq!(field.ledger.queued(), 2);
    field.claim(a, first, 0);
    assert_eq!(field.ledger.queued(), 1);
    field.published.clear();
    field.ledger.lost();
    field.take();
    assert_eq!(field.published, [(second, 1)]);
    // Its record was confirmed, and is not there: the worker has it no more.
    field.say(a, |up| up.holds = Some(vec![first]));
    assert_eq!(field.published.len(), 1);
    field.say(a, |up| (up.holds, up.after) = (Some(Vec::new()), 1));
    assert_eq!(field.published.len(), 1, "its record may still be read");
    field.record(1, a, second, 1, done());
    field.say(a, |up| (up.holds, up.after) = (Some(Vec::new()), 1));
    assert_eq!(field.published[1], (first, 1));
}

#[test]
fn a_stream_of_results_that_begins_anew_holds_nobody_up() {
    let mut field = Field::new();
    let a = field.worker("a");
    let (first, second) = (field.submit(1), field.submit(2));
    field.claim(a, first, 0);
    field.record(1, a, first, 1, done());
    // Those up to 40 were lost.
    field.ledger.check_results(40, 0);
    field.take();
    field.sent.clear();
    field.ledger.check_results(0, 0);
    field.take();
    assert_eq!(field.told(), [(a, &What::Forget)]);
    // It has not followed that yet.
    field.sent.clear();
    let claims = vec![Claim { task: second, copy: 0, sequence: 1 }];
    field.say(a, |up| (up.applied, up.after, up.claims) = (up.applied - 1, 40, claims));
    assert!(matches!(field.told()[..], [(_, What::Start { .. })]));
}

#[test]
fn a_record_that_is_lost_is_waited_for_until_a_second_look_does_not_find_it() {
    let mut field = Field::new();
    let (a, b) = (field.worker("a"), field.worker("b"));
    let (first, second) = (field.submit(1), field.submit(2));
    field.claim(b, first, 0);
    // Both have the word of the server that it has records of theirs. It has none.
    field.newest = 9;
    field.say(b, |up| up.stage = Stage::Left);
    field.claim_after(a, second, 0, 8);
    field.ledger.check_results(5, 0);
    field.take();
    assert!(field.told().is_empty(), "they may have come after the look");
    // It says so in each beat.
    field.claim_after(a, second, 0, 8);
    field.published.clear();
    field.ledger.check_results(5, 0);
    field.take();
    assert_eq!(field.told(), [(a, &What::Forget), (b, &What::Forget)]);
    assert_eq!(field.published, [(first, 1)], "the worker that has left is gone");
    field.claim_after(a, second, 0, 0);
    assert!(matches!(field.told()[..], [(_, What::Start { .. })]));
    // One that has come is no reason.
    let third = field.submit(3);
    for (newest, unread) in [(6, 0), (7, 1), (7, 1), (7, 0)] {
        field.claim_after(a, third, 0, 7);
        field.ledger.check_results(newest, unread);
        field.take();
        assert!(!field.told().contains(&(a, &What::Forget)), "{newest}, {unread}");
    }
}

/// A beat costs what its member has, and not what waits in the queue.
#[test]
fn a_beat_is_compared_with_the_leases_of_its_member_alone() {
    let mut field = Field::new();
    let (a, b) = (field.worker("a"), field.worker("bb"));
    let tasks: Vec<TaskId> = (1..=1_000).map(|number| field.submit(number)).collect();
    field.claim(a, tasks[0], 0);
    field.claim(a, tasks[1], 0);
    field.claim(b, tasks[2], 0);
    for (member, holds) in [(a, &tasks[..2]), (b, &tasks[2..3])] {
        let before = field.ledger.compared;
        (0..10).for_each(|_| field.say(member, |up| up.holds = Some(holds.to_vec())));
        assert_eq!(field.ledger.compared - before, 10 * holds.len());
    }
    field.published.clear();
    // What a member has not any more is found as before, and what has ended is not.
    field.record(1, a, tasks[0], 1, done());
    field.say(a, |up| (up.holds, up.after) = (Some(Vec::new()), 1));
    assert_eq!(field.published, [(tasks[1], 1)]);
    let before = field.ledger.compared;
    field.say(a, |up| up.holds = Some(Vec::new()));
    assert_eq!(field.ledger.compared, before);
    field.say(b, |up| up.stage = Stage::Left);
    assert_eq!(field.published[1], (tasks[2], 1));
}

impl Field {
    /// A ready worker of so many slots. Workers of one `process` are one that joins again.
    fn wide(&mut self, process: u64, slots: u32) -> u64 {
        let name = format!("wide {process}");
        self.beats += 1;
        let hello = Hello { slots, process, nonce: self.beats, launch: Some(process), ..hello(&name) };
        self.ledger.hello(hello, "reply".into(), self.now);
        let member = self.ledger.last_member;
        self.say(member, |up| up.stage = Stage::Ready);
        member
    }

    /// The process of a worker dies, and that is seen.
    fn die(&mut self, process: u64) {
        self.ledger.died(process, self.now);
        self.take();
    }

    /// Which attempt of the task was started with the last claim.
    fn started(&self) -> Option<u32> {
        self.sent.iter().find_map(|(_, down)| match down.what {
            What::Start { attempt, .. } => Some(attempt),
            _ => None,
        })
    }

    fn poisoned(&self) -> Vec<(TaskId, u32)> {
        let of = |event: &Event| match event {
            Event::Ended { task, answer: Answer::Failed(FailureKind::Poisoned { attempts }), .. } => {
                Some((*task, *attempts))
            }
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

/// Two may die.
#[test]
fn a_task_that_was_beside_the_one_that_killed_its_worker_is_not_judged_before_it_has_run_alone() {
    let mut field = Field::new();
    let (bad, good, other) = (field.submit(1), field.submit(2), field.submit(3));
    for process in [1, 2] {
        let worker = field.wide(process, 3);
        for task in [bad, good] {
            field.claim(worker, task, process as u32 - 1);
            assert_eq!(field.started(), Some(process as u32));
        }
        field.die(process);
    }
    assert!(field.poisoned().is_empty());
    let worker = field.wide(3, 3);
    field.claim(worker, other, 0);
    assert_eq!(field.started(), Some(1));
    // It waits until its worker has nothing else, and has that for itself then.
    field.claim(worker, bad, 2);
    assert!(field.told().is_empty());
    field.claim(worker, good, 2);
    assert!(field.told().is_empty(), "nobody else could run it");
    field.claim(worker, bad, 2);
    assert!(field.told().is_empty(), "it says so in each beat");
    field.record(1, worker, other, 1, done());
    field.ledger.settle(field.now);
    field.take();
    assert_eq!(field.started(), Some(3));
    field.claim(worker, good, 2);
    assert!(field.told().is_empty());
    field.die(3);
    assert_eq!(field.poisoned(), [(bad, 3)]);
    let worker = field.wide(4, 3);
    field.claim(worker, good, 2);
    assert_eq!(field.started(), Some(3));
    let last = field.submit(4);
    field.wide(5, 1);
    field.claim(worker, last, 0);
    assert!(matches!(field.told()[..], [(_, What::Later { .. })]));
    field.record(2, worker, good, 3, done());
    field.claim(worker, last, 0);
    assert_eq!(field.started(), Some(1));
    assert_eq!(field.poisoned().len(), 1);
}

/// A suspect that is cancelled while it waits keeps no worker from others.
#[test]
fn a_suspect_that_is_cancelled_before_it_runs_alone_frees_its_worker() {
    let mut field = Field::new();
    let (bad, good, other, last) = (field.submit(1), field.submit(2), field.submit(3), field.submit(4));
    for process in [1, 2] {
        let worker = field.wide(process, 2);
        field.claim(worker, bad, process as u32 - 1);
        field.claim(worker, good, process as u32 - 1);
        field.die(process);
    }
    let worker = field.wide(3, 2);
    field.claim(worker, other, 0);
    field.claim(worker, bad, 2);
    field.sent.clear();
    field.ledger.cancel(bad);
    field.ledger.settle(field.now);
    field.take();
    assert!(matches!(field.told()[..], [(_, What::Drop { .. })]), "{:?}", field.told());
    field.claim(worker, last, 0);
    assert_eq!(field.started(), Some(1));
}

/// Nobody has died in any of these.
#[test]
fn what_an_outage_ends_counts_for_no_death() {
    let mut field = Field::new();
    let task = field.submit(1);
    let mut copy = 0;
    // A process that was not heard joins again.
    for _ in 0..5 {
        let worker = field.wide(1, 1);
        field.claim(worker, task, copy);
        copy += 1;
    }
    let worker = field.wide(1, 1);
    assert_eq!(field.published.len(), 6);
    // Nobody could be heard for a while, and then this one was not.
    for round in 0..3 {
        let worker = if round == 0 { worker } else { field.wide(1, 1) };
        field.claim(worker, task, copy);
        field.pass(Duration::from_secs(1), false);
        (0..7).for_each(|_| field.pass(Duration::from_secs(1), true));
        copy += 1;
    }
    // Nobody was heard, although the coordinator could have.
    for _ in 0..3 {
        let (one, two) = (field.wide(1, 1), field.wide(2, 1));
        field.pass(Duration::from_secs(1), true);
        field.say(one, |_| ());
        field.say(two, |_| ());
        field.claim(one, task, copy);
        (0..7).for_each(|_| field.pass(Duration::from_secs(1), true));
        copy += 1;
    }
    assert!(field.poisoned().is_empty());
    // The silence of one alone is its death.
    for _ in 0..2 {
        let (one, two) = (field.wide(1, 1), field.wide(2, 1));
        field.pass(Duration::from_secs(1), true);
        field.claim(one, task, copy);
        for _ in 0..7 {
            field.pass(Duration::from_secs(1), true);
            field.say(two, |_| ());
        }
        copy += 1;
    }
    assert_eq!(field.poisoned(), [(task, 2)]);
}

#[test]
fn an_end_that_the_server_does_not_record_is_told_once_and_dropped_by_its_member() {
    let mut field = Field::new();
    let a = field.worker("a");
    let (task, next) = (field.submit(1), field.submit(2));
    field.claim(a, task, 0);
    let end = TaskEnd { task, attempt: 1, answer: failed(), ran: Duration::ZERO };
    let claims = vec![Claim { task: next, copy: 0, sequence: 2 }];
    field.sent.clear();
    let (said, its) = (vec![Unrecorded { copy: 0, end }], claims.clone());
    field.say(a, |up| (up.unrecorded, up.claims) = (said.clone(), its));
    assert_eq!((field.ended(), field.told()), (1, vec![(a, &What::Drop { task, copy: 0 })]));
    // The coordinator cancels the rest before the next one is granted.
    field.ledger.cancel_before(1);
    field.ledger.settle(field.now);
    field.take();
    assert!(matches!(field.told()[..], [_, (_, What::Drop { task, .. })] if *task == next));
    // It has not followed that yet.
    field.sent.clear();
    field.say(a, |up| (up.unrecorded, up.applied) = (said.clone(), up.applied - 2));
    assert_eq!((field.ended(), field.told().len()), (1, 0));
    // The record is there all the same.
    field.record(1, a, task, 1, done());
    assert_eq!(field.ended(), 1);
    // It was recorded first, and the member does not know that.
    field.say(a, |up| up.unrecorded = said.clone());
    assert_eq!((field.ended(), field.told()), (1, vec![(a, &What::Drop { task, copy: 0 })]));
}

#[test]
fn ids_are_made_as_the_coordinator_makes_them() {
    assert_eq!(envelope(3).task, id::<TaskId>(3));
}

/// A process that joins again itself is the same one. One that was silent may stand still, so another takes its place.
#[test]
fn a_process_stays_if_it_joins_again_itself_and_is_replaced_if_it_was_silent() {
    let mut field = Field::new();
    let join = |field: &mut Field, nonce: u64, launch: u64| {
        let hello = Hello { launch: Some(launch), nonce, process: launch, ..hello("a") };
        field.ledger.hello(hello, "reply".into(), field.now);
        let member = field.ledger.last_member;
        field.say(member, |up| up.stage = Stage::Ready);
    };
    join(&mut field, 1, 1);
    join(&mut field, 2, 1);
    assert_eq!(field.ends, [], "it has lost its session, and not its life");
    join(&mut field, 3, 2);
    assert_eq!(field.ends, [(1, false)], "its name was given to another one");
    field.pass(LEASE / 3, true);
    for _ in 0..4 {
        field.pass(LEASE / 3, true);
    }
    assert_eq!(field.ends, [(1, false), (2, true)]);
}
