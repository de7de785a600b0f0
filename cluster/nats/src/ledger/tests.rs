mod deaths;
mod histories;
mod lost;
mod rivals;
mod stale;

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
    /// Objects that are deleted.
    discarded: Vec<ObjectId>,
    warnings: Vec<String>,
    /// The last answer to a request to join.
    welcome: Option<Welcome>,
}

impl Field {
    fn new() -> Field {
        let times = Times::new(LEASE, Duration::from_secs(1));
        let ledger = Ledger::new(7, times, vec![("task".into(), "types".into())]);
        let (events, sent, published) = (Vec::new(), Vec::new(), Vec::new());
        let (ends, discarded, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let (now, beats, newest, welcome) = (Instant::now(), 0, 0, None);
        Field { ledger, now, beats, events, sent, published, newest, ends, discarded, warnings, welcome }
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
                Act::Discard(object) => self.discarded.push(object),
                Act::Warn(text) => self.warnings.push(text),
                Act::Reply { welcome, .. } => self.welcome = Some(welcome),
                _ => {}
            }
        }
    }

    /// Another worker, which is ready.
    fn worker(&mut self, name: &str) -> u64 {
        self.ledger.hello(hello(name), "reply".into(), false, self.now);
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
    field.ledger.hello(hello("a"), "reply".into(), false, field.now);
    assert_eq!(field.ledger.members.len(), 1);
    // Another one of that name takes its place when it is not heard any more.
    field.now += LEASE;
    field.ledger.hello(Hello { nonce: 99, process: 99, ..hello("a") }, "reply".into(), false, field.now);
    field.take();
    let ids: Vec<_> = field.ledger.members.values().map(|member| member.id.clone()).collect();
    assert_eq!(ids, [WorkerId::new("a", 2)]);
}

#[test]
fn a_worker_without_a_name_or_with_a_number_of_slots_that_none_has_is_refused() {
    let mut field = Field::new();
    let mut asks = |name: &str, slots| {
        field.ledger.hello(Hello { slots, ..hello(name) }, "reply".into(), false, field.now);
        field.take();
        matches!(field.welcome, Some(Welcome::Come(_)))
    };
    let most = MAX_SLOTS as u32;
    assert!(asks("a", 1) && asks("b", most));
    assert!(!asks("c", 0) && !asks("d", most + 1) && !asks("e", u32::MAX) && !asks("", 1));
    assert_eq!(field.ledger.members.len(), 2);
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
