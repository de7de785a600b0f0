//! What the store has lost, and what a member has no more.

use super::*;

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
