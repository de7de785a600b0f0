//! What members put into the store that are gone, and whose processes live.

use super::*;

impl Field {
    /// A worker of this process has a task, is silent for a lease, and is gone. What it has put is discarded, once.
    fn silent(&mut self, process: u64) -> (u64, TaskId) {
        let worker = self.wide(process, 1);
        let task = self.submit(process);
        self.claim(worker, task, 0);
        (0..7).for_each(|_| self.pass(Duration::from_secs(1), true));
        assert_eq!(mem::take(&mut self.discarded), [envelope(process).result(1)]);
        (worker, task)
    }
}

#[test]
fn what_a_gone_member_has_put_is_discarded_again_when_its_process_says_that_it_is_over() {
    type Says = fn(&mut Field, u64, TaskId);
    let ways: [Says; 4] = [
        |field, member, task| field.record(1, member, task, 1, Answer::Cancelled),
        |field, member, _| field.say(member, |up| up.stage = Stage::Left),
        |field, _, _| _ = field.wide(9, 1),
        |field, _, _| field.die(9),
    ];
    for says in ways {
        let mut field = Field::new();
        let (member, task) = field.silent(9);
        // It does not know yet that it is gone, and others say what they do.
        field.say(member, |_| ());
        let other = field.wide(8, 1);
        field.record(1, other, task, 1, Answer::Cancelled);
        field.die(8);
        assert_eq!(field.discarded, []);
        says(&mut field, member, task);
        assert_eq!(mem::take(&mut field.discarded), [envelope(9).result(1)]);
        says(&mut field, member, task);
        assert_eq!(field.discarded, [], "once");
    }
}

#[test]
fn the_newest_stale_attempts_are_known() {
    let mut field = Field::new();
    let members: Vec<_> = (1..=1_030).map(|process| field.silent(process)).collect();
    for (member, task) in members {
        field.record(1, member, task, 1, Answer::Cancelled);
    }
    assert_eq!(field.discarded.len(), 1 << 10);
    assert_eq!(field.discarded.last(), Some(&envelope(1_030).result(1)));
}
