//! Attempts that were put back, although the process that has them may live: it was silent for a lease, and can be cut off from the server.
//!
//! Such a process continues to put the result of its attempt when it reaches the server again, and learns later that it is gone. What an attempt has put is discarded when it is put back. It is discarded
//! once more when the process says that the attempt is over: it has the result recorded, joins anew, or leaves; or when the death of the process is seen.

use std::collections::VecDeque;
use std::mem;

use forebear_cluster::engine::{ObjectId, TaskId};

use super::{Act, Ledger, Member};

/// So many attempts are known, the newest ones. What one of the others puts too late stays until the job ends.
const KNOWN: usize = 1 << 10;

pub(super) struct Attempt {
    pub(super) member: u64,
    pub(super) process: u64,
    pub(super) launch: Option<u64>,
    pub(super) task: TaskId,
    /// Where its result is put, if that is large.
    result: ObjectId,
}

#[derive(Default)]
pub(super) struct Stale(VecDeque<Attempt>);

impl Stale {
    fn add(&mut self, attempt: Attempt) {
        if self.0.len() == KNOWN {
            self.0.pop_front();
        }
        self.0.push_back(attempt);
    }
}

impl Ledger {
    /// A member is gone, and its attempts are put back.
    pub(super) fn keep_stale(&mut self, number: u64, member: &Member) {
        // What a dead process had sent comes soon after the news of its death.
        if member.launch.is_some_and(|launch| self.dead.contains(&launch)) {
            return;
        }
        for task in member.leases.iter().copied() {
            let Some(entry) = self.tasks.get(task) else { continue };
            let result = entry.envelope.result(entry.attempts);
            let (process, launch) = (member.process, member.launch);
            self.stale.add(Attempt { member: number, process, launch, task, result });
        }
    }

    /// These attempts are over, if they are stale: what they have put is discarded.
    pub(super) fn discard_stale(&mut self, is_over: impl Fn(&Attempt) -> bool) {
        let (over, others) = mem::take(&mut self.stale.0).into_iter().partition::<VecDeque<_>, _>(is_over);
        self.stale.0 = others;
        self.acts.extend(over.into_iter().map(|attempt| Act::Discard(attempt.result)));
    }
}
