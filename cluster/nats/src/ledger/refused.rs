//! What the server refuses, although it is there: the arguments of a task, and the record of its end.

use std::time::Duration;

use forebear_cluster::FailureKind;
use forebear_cluster::engine::{Answer, TaskId};

use super::Ledger;
use crate::wire::{Unrecorded, What};

impl Ledger {
    /// A member says how a task has ended, since the server does not record that. It says so until the coordinator has it drop the task.
    pub(super) fn unrecorded(&mut self, member: u64, Unrecorded { copy, end }: Unrecorded) {
        let task = end.task;
        self.task_end(member, end);
        // The server may have recorded it all the same, and then it has ended before.
        let drop = What::Drop { task, copy };
        let is_told =
            self.members.get(&member).is_some_and(|m| m.orders.iter().any(|down| down.what == drop));
        if !is_told {
            self.order(member, drop);
        }
    }

    /// The server does not take the arguments of a task.
    pub(crate) fn unstored(&mut self, task: TaskId, copy: u32, why: &str) {
        let queued = self.tasks.get(task).filter(|entry| entry.copy == copy && entry.lease().is_none());
        if let Some(attempts) = queued.map(|entry| entry.attempts) {
            let message = format!("the server does not take the arguments: {why}");
            let answer = Answer::Failed(FailureKind::Store { message });
            self.end(task, None, attempts, answer, Duration::ZERO);
        }
    }
}
