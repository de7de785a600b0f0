//! What the store has lost: records that do not come, and tasks that are not in the queue. The coordinator looks now and then, and after each connection.

use std::collections::HashSet;
use std::mem;

use forebear_cluster::engine::TaskId;

use super::Ledger;
use super::deaths::Blame;
use super::entries::LedgerEntry;
use crate::wire::What;

impl Ledger {
    /// The newest record is this one, and so many are not read. If one that has been read was newer, the stream of results has begun anew.
    pub(crate) fn check_results(&mut self, newest: u64, unread: u64) {
        let quiet = mem::replace(&mut self.quiet, (unread == 0).then_some(newest));
        if newest >= self.read {
            if unread == 0 {
                // Those between that were not read are lost.
                self.read = newest;
                self.early.retain(|number| *number > newest);
                self.forget_what_is_missing(newest, quiet == Some(newest));
                self.let_go();
            }
            return;
        }
        self.read = 0;
        self.early.clear();
        let all: Vec<u64> = self.members.keys().copied().collect();
        all.into_iter().for_each(|member| self.forget(member, 0));
        self.let_go();
    }

    /// All records are read that are there. `still`: so it was at the last look, with the same newest one. A member that has waited since then for a newer one waits for one that is lost.
    fn forget_what_is_missing(&mut self, newest: u64, still: bool) {
        let mut lost = Vec::new();
        for (number, member) in &mut self.members {
            let awaited = member.leaving.flatten().unwrap_or(0).max(member.after);
            let missing = (awaited > newest).then_some(awaited);
            if mem::replace(&mut member.missing, missing) == missing && missing.is_some() && still {
                lost.push(*number);
            }
        }
        lost.into_iter().for_each(|member| self.forget(member, newest));
    }

    /// The numbers of records that a member has spoken of mean nothing any more. It waits for none after this one.
    fn forget(&mut self, number: u64, newest: u64) {
        self.order(number, What::Forget);
        let Some(member) = self.members.get_mut(&number) else { return };
        member.forgets = member.last_order;
        (member.after, member.missing) = (0, None);
        member.waiting.clear();
        // The number that it waits for does not come.
        member.leaving = member.leaving.map(|_| Some(newest));
    }

    /// A member has told all that it holds, and all its records are read. What is leased to it beside that has ended, and the store has lost its record: it goes back.
    pub(super) fn compare(&mut self, number: u64, applied: u64, holds: &[TaskId]) {
        let Some(member) = self.members.get(&number) else { return };
        #[cfg(test)]
        (self.compared += member.leases.len());
        let (id, holds) = (member.id.clone(), holds.iter().collect::<HashSet<_>>());
        let is_lost = |task: &&TaskId| {
            let lease = self.tasks.get(**task).and_then(LedgerEntry::lease);
            lease.is_some_and(|lease| lease.order <= applied) && !holds.contains(*task)
        };
        let lost: Vec<TaskId> = member.leases.iter().filter(is_lost).copied().collect();
        lost.into_iter().for_each(|task| self.put_back(task, &id, Blame::Nobody));
    }

    /// The store has lost tasks: all that is queued is published anew.
    pub(crate) fn lost(&mut self) {
        let queued: Vec<TaskId> =
            self.tasks.iter().filter(|(_, entry)| entry.lease().is_none()).map(|(task, _)| task).collect();
        for task in queued {
            if let Some(entry) = self.tasks.get_mut(task) {
                entry.copy += 1;
            }
            self.publish(task, None);
        }
    }
}
