//! Histories at random: what a coordinator asks for, what members say and what the server does, in any order. After each step the count of what is queued equals what a pass over all tasks finds.

use super::*;

struct History {
    field: Field,
    seed: u64,
    /// Copies of tasks that are on their way into the queue, or in it.
    copies: Vec<(TaskId, u32)>,
    members: Vec<u64>,
    tasks: u64,
    records: u64,
    generation: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (copies, members) = (Vec::new(), Vec::new());
        History { field: Field::new(), seed, copies, members, tasks: 0, records: 0, generation: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as usize % end
    }

    /// Any one of those, mostly a newer one.
    fn any<T: Copy>(&mut self, of: impl Fn(&History) -> &[T]) -> Option<T> {
        let all = of(self).len();
        let back = self.below(8).min(all.checked_sub(1)?);
        let at = if self.below(4) == 0 { self.below(all) } else { all - 1 - back };
        Some(of(self)[at])
    }

    fn submit(&mut self) {
        self.tasks += 1;
        let mut envelope = envelope(self.tasks);
        envelope.generation = self.generation;
        self.field.ledger.submit(envelope, self.field.now);
    }

    /// A member says that it has what is leased to it, or some of that, or that it has ended it.
    fn says(&mut self, member: u64) {
        let held: Vec<TaskId> = self
            .field
            .ledger
            .members
            .get(&member)
            .into_iter()
            .flat_map(|m| m.leases.iter().copied())
            .collect();
        let Some(task) = held.first().copied() else { return };
        let attempt = self.field.ledger.tasks.get(task).map_or(0, |entry| entry.attempts);
        match self.below(5) {
            0 => self.field.say(member, |up| up.holds = Some(held[1..].to_vec())),
            1 => {
                let end = TaskEnd { task, attempt, answer: failed(), ran: Duration::ZERO };
                self.field.say(member, |up| up.unrecorded = vec![Unrecorded { copy: 0, end }]);
            }
            _ => {
                self.records += 1;
                self.field.record(self.records, member, task, attempt, done());
            }
        }
    }

    fn step(&mut self) {
        let (member, copy) = (self.any(|its| &its.members), self.any(|its| &its.copies));
        match (self.below(24), member, copy) {
            (0..5, ..) => self.submit(),
            (5..10, _, Some((task, copy))) => self.field.ledger.published(task, copy),
            (10..15, Some(member), Some((task, copy))) => self.field.claim(member, task, copy),
            (15..18, Some(member), _) => self.says(member),
            (18, _, Some((task, _))) => self.field.ledger.cancel(task),
            (19, _, Some((task, copy))) => self.field.ledger.unstored(task, copy, "it is full"),
            (20, Some(member), _) => self.field.say(member, |up| up.stage = Stage::Left),
            (21, ..) if self.below(8) == 0 => self.field.ledger.lost(),
            (22, ..) if self.below(16) == 0 => {
                self.generation += 1;
                self.field.ledger.cancel_before(self.generation);
            }
            _ => {
                let (name, slots) = (format!("worker {}", self.members.len()), 1 + self.below(3) as u32);
                let nonce = self.members.len() as u64;
                let hello = Hello { slots, nonce, process: nonce, ..hello(&name) };
                self.field.ledger.hello(hello, "reply".into(), false, self.field.now);
                self.members.push(self.field.ledger.last_member);
                self.field.say(self.field.ledger.last_member, |up| up.stage = Stage::Ready);
            }
        }
        self.field.take();
        self.copies.append(&mut self.field.published);
        self.check();
    }

    fn check(&self) {
        let tasks = &self.field.ledger.tasks;
        assert_eq!(tasks.queued(), tasks.scanned());
    }
}

#[test]
fn what_is_queued_is_counted_right_in_any_history() {
    let mut most = 0;
    for seed in 1..=200 {
        let said = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            let mut most = 0;
            for _ in 0..300 {
                history.step();
                most = most.max(history.field.ledger.queued());
            }
            history.field.ledger.close();
            history.check();
            most
        });
        most = most.max(said.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    assert!(most > 10, "the histories have had {most} queued tasks at most");
}
