//! Processes of one name.

use super::*;

impl Field {
    /// A process asks to join as `a`. It is the start of this number, if the coordinator's process has started it. Whether it may.
    fn asks(&mut self, process: u64, launch: Option<u64>) -> bool {
        self.asks_while(false, process, launch)
    }

    /// The same. `kept`: the coordinator's process has started a worker of this name, or will start one.
    fn asks_while(&mut self, kept: bool, process: u64, launch: Option<u64>) -> bool {
        self.beats += 1;
        let hello = Hello { nonce: self.beats, process, launch, ..hello("a") };
        self.ledger.hello(hello, "reply".into(), kept, self.now);
        self.take();
        matches!(self.welcome, Some(Welcome::Come(_)))
    }

    /// A beat passes, in which this member speaks.
    fn beat(&mut self, member: Option<u64>) {
        self.pass(Duration::from_secs(1), true);
        if let Some(member) = member {
            self.say(member, |_| ());
        }
    }
}

#[test]
fn of_two_processes_of_one_name_the_second_waits_and_the_operator_is_told_once() {
    let mut field = Field::new();
    assert!(field.asks(1, None));
    let first = field.ledger.last_member;
    for _ in 0..20 {
        assert!(!field.asks(2, None) && !field.asks(3, None));
        field.beat(Some(first));
    }
    assert!(matches!(&field.welcome, Some(Welcome::Later { why }) if why.contains("`a`")));
    assert!(matches!(&field.warnings[..], [one] if one.contains("`a`")), "{:?}", field.warnings);
    let ids: Vec<_> = field.ledger.members.values().map(|member| member.id.clone()).collect();
    assert_eq!(ids, [WorkerId::new("a", 1)]);
    // It may join again itself, and when it has left, another one may.
    assert!(field.asks(1, None) && !field.asks(2, None));
    let first = field.ledger.last_member;
    field.say(first, |up| up.stage = Stage::Left);
    assert!(field.asks(2, None));
}

#[test]
fn a_worker_that_comes_back_elsewhere_after_a_kill_has_its_name_after_some_beats_and_nobody_is_told() {
    let mut field = Field::new();
    assert!(field.asks(1, None));
    let first = field.ledger.last_member;
    field.beat(Some(first));
    // It is killed now, and its last words come late.
    assert!(!field.asks(2, None));
    field.say(first, |_| ());
    (0..3).for_each(|_| {
        assert!(!field.asks(2, None));
        field.beat(None);
    });
    field.now += Duration::from_millis(1);
    assert!(field.asks(2, None));
    assert!(field.warnings.is_empty());
    // Nobody could be heard: that is no silence of this one.
    let second = field.ledger.last_member;
    field.say(second, |_| ());
    (0..9).for_each(|_| field.pass(Duration::from_secs(1), false));
    assert!(!field.asks(1, None));
}

#[test]
fn what_the_coordinator_starts_takes_the_name_of_what_it_has_started_and_not_that_of_others() {
    let mut field = Field::new();
    assert!(field.asks(1, Some(1)) && field.asks(2, Some(2)));
    assert!(!field.asks(3, None));
    field.ledger.died(2, field.now);
    field.take();
    assert!(field.asks(3, None));
    assert!(!field.asks(4, Some(4)));
}

#[test]
fn between_an_end_and_the_restart_no_worker_from_elsewhere_takes_the_name_and_the_operator_is_told_once() {
    let mut field = Field::new();
    assert!(field.asks_while(true, 1, Some(1)));
    field.ledger.died(1, field.now);
    field.take();
    for process in [2, 3] {
        assert!(!field.asks_while(true, process, None));
        assert!(
            matches!(&field.welcome, Some(Welcome::Refused { why }) if why.contains("starts the worker named `a` itself"))
        );
    }
    assert!(field.asks_while(true, 4, Some(2)));
    assert!(matches!(&field.warnings[..], [one] if one.contains("`a`")), "{:?}", field.warnings);
}

#[test]
fn a_worker_from_elsewhere_that_had_the_name_first_joins_again_under_it_and_another_does_not() {
    let mut field = Field::new();
    assert!(field.asks(1, None));
    assert!(!field.asks_while(true, 2, Some(1)), "it waits");
    assert!(field.asks_while(true, 1, None) && !field.asks_while(true, 3, None));
    let first = field.ledger.last_member;
    field.say(first, |up| up.stage = Stage::Left);
    assert!(!field.asks_while(true, 3, None) && field.asks_while(true, 2, Some(1)));
}
