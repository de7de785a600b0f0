//! Members that are gone, and whether a task is to blame for that.

use super::*;

impl Field {
    /// A ready worker of so many slots. Workers of one `process` are one that joins again.
    pub(super) fn wide(&mut self, process: u64, slots: u32) -> u64 {
        let name = format!("wide {process}");
        self.beats += 1;
        let hello = Hello { slots, process, nonce: self.beats, launch: Some(process), ..hello(&name) };
        self.ledger.hello(hello, "reply".into(), false, self.now);
        let member = self.ledger.last_member;
        self.say(member, |up| up.stage = Stage::Ready);
        member
    }

    /// The process of a worker dies, and that is seen.
    pub(super) fn die(&mut self, process: u64) {
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
fn a_worker_whose_process_has_ended_cannot_join_any_more() {
    let mut field = Field::new();
    field.ledger.died(3, field.now);
    field.ledger.hello(Hello { launch: Some(3), ..hello("a") }, "reply".into(), false, field.now);
    let acts = field.ledger.take();
    assert!(matches!(&acts[..], [Act::Reply { welcome: Welcome::Refused { .. }, .. }]));
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

/// A process that joins again itself is the same one. One that was silent may stand still, so another takes its place.
#[test]
fn a_process_stays_if_it_joins_again_itself_and_is_replaced_if_it_was_silent() {
    let mut field = Field::new();
    let join = |field: &mut Field, nonce: u64, launch: u64| {
        let hello = Hello { launch: Some(launch), nonce, process: launch, ..hello("a") };
        field.ledger.hello(hello, "reply".into(), false, field.now);
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

#[test]
fn a_task_whose_time_is_over_when_its_worker_is_gone_ends_as_timed_out() {
    let mut field = Field::new();
    let task = field.submit_within(1, Some(Duration::from_secs(1)));
    let longer = field.submit_within(2, Some(Duration::MAX));
    let worker = field.wide(1, 2);
    field.claim(worker, task, 0);
    field.claim(worker, longer, 0);
    field.now += Duration::from_secs(1);
    field.die(1);
    let timed_out = |event: &Event| match event {
        Event::Ended { task, answer: Answer::Failed(FailureKind::TimedOut), .. } => Some(*task),
        _ => None,
    };
    assert_eq!(field.events.iter().filter_map(timed_out).collect::<Vec<_>>(), [task]);
    assert_eq!(field.published, [(task, 0), (longer, 0), (longer, 1)]);
}
