//! [`Entries`]: the tasks that have not ended, and how many of them the queue of the server has to hold.
//!
//! The engine compares that number with the server's every two seconds. So it is kept with each change, and no look at it passes over all tasks. Only this file changes what it depends on: whether the
//! server has the newest copy of a task, and whether the task is leased.

use std::collections::BTreeMap;
use std::time::Instant;

use forebear_cluster::engine::{Envelope, TaskId};

/// A task that has not ended.
pub(super) struct LedgerEntry {
    pub(super) envelope: Envelope,
    pub(super) copy: u32,
    pub(super) attempts: u32,
    /// So many workers have died with it.
    pub(super) deaths: u32,
    pub(super) due: Option<Instant>,
    lease: Option<Lease>,
    /// The server has confirmed that it has this copy.
    published: bool,
}

/// A member has the task.
pub(super) struct Lease {
    pub(super) member: u64,
    pub(super) cancelled: bool,
    pub(super) sequence: u64,
    /// The number of the order that has started it.
    pub(super) order: u64,
}

impl LedgerEntry {
    pub(super) fn new(envelope: Envelope, due: Option<Instant>) -> LedgerEntry {
        LedgerEntry { envelope, copy: 0, attempts: 0, deaths: 0, due, lease: None, published: false }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub(super) fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.lease.as_mut()
    }

    fn is_queued(&self) -> bool {
        self.published && self.lease.is_none()
    }
}

#[derive(Default)]
pub(super) struct Entries {
    entries: BTreeMap<TaskId, LedgerEntry>,
    queued: u64,
}

impl Entries {
    pub(super) fn get(&self, task: TaskId) -> Option<&LedgerEntry> {
        self.entries.get(&task)
    }

    /// The entry of a task, to change what makes no difference to the queue.
    pub(super) fn get_mut(&mut self, task: TaskId) -> Option<&mut LedgerEntry> {
        self.entries.get_mut(&task)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, &LedgerEntry)> {
        self.entries.iter().map(|(task, entry)| (*task, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (TaskId, &mut LedgerEntry)> {
        self.entries.iter_mut().map(|(task, entry)| (*task, entry))
    }

    /// So many tasks have to be in the queue.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Changes an entry, and counts it anew.
    fn change<T>(&mut self, task: TaskId, change: impl FnOnce(&mut LedgerEntry) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&task)?;
        self.queued -= u64::from(entry.is_queued());
        let changed = change(entry);
        self.queued += u64::from(entry.is_queued());
        Some(changed)
    }

    pub(super) fn insert(&mut self, task: TaskId, entry: LedgerEntry) {
        self.remove(task);
        self.queued += u64::from(entry.is_queued());
        self.entries.insert(task, entry);
    }

    pub(super) fn remove(&mut self, task: TaskId) -> Option<LedgerEntry> {
        let entry = self.entries.remove(&task)?;
        self.queued -= u64::from(entry.is_queued());
        Some(entry)
    }

    /// Keeps the tasks that are leased, and those of the others for which that holds.
    pub(super) fn keep_leased_or(&mut self, keep: impl Fn(&LedgerEntry) -> bool) {
        let queued = &mut self.queued;
        self.entries.retain(|_, entry| {
            let keeps = entry.lease.is_some() || keep(entry);
            *queued -= u64::from(!keeps && entry.is_queued());
            keeps
        });
    }

    /// A member has the task from now on.
    pub(super) fn lease(&mut self, task: TaskId, lease: Lease) {
        self.change(task, |entry| entry.lease = Some(lease));
    }

    /// No member has the task any more.
    pub(super) fn unlease(&mut self, task: TaskId) -> Option<Lease> {
        self.change(task, |entry| entry.lease.take()).flatten()
    }

    /// The server has confirmed that this copy is in the queue.
    pub(super) fn published(&mut self, task: TaskId, copy: u32) {
        self.change(task, |entry| entry.published |= entry.copy == copy);
    }

    /// The newest copy is on its way into the queue.
    pub(super) fn unpublished(&mut self, task: TaskId) {
        self.change(task, |entry| entry.published = false);
    }

    /// The number of [`queued`](Self::queued), found by a pass over all tasks.
    #[cfg(test)]
    pub(super) fn scanned(&self) -> u64 {
        self.entries.values().filter(|entry| entry.is_queued()).count() as u64
    }
}
