//! [`Alone`]: members that are kept for one task.
//!
//! A task with which as many workers have died as may is a *suspect*, if it was not alone in the last one. It is run once more, and nothing beside it: then it is known what has killed
//! the worker. A suspect that is claimed by a member of several slots waits until that has ended what it has. Meanwhile, and while the suspect runs, its other claims are put off, and go to other members. If
//! there are none, they stay.

use std::time::Instant;

use forebear_cluster::engine::{TaskId, WorkerState};

use super::{Ledger, LedgerEntry, Member};
use crate::wire::Claim;

/// Whether a member of several slots is kept for one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alone {
    No,
    /// This claim waits until the member has ended what it has.
    Waits(Claim),
    /// This task runs.
    Runs(TaskId),
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Now,
    /// It is looked at again when the member has ended what it has.
    Waits,
    Later,
}

impl Alone {
    /// Whether a claim is granted. `alone`: its task has to have the member for itself. `empty`: the member has no other task.
    pub(super) fn admit(&mut self, claim: Claim, alone: bool, empty: bool) -> Admitted {
        match (*self, alone) {
            (Alone::No, false) => Admitted::Now,
            (Alone::No, true) if empty => {
                *self = Alone::Runs(claim.task);
                Admitted::Now
            }
            (Alone::No, true) => {
                *self = Alone::Waits(claim);
                Admitted::Waits
            }
            _ => Admitted::Later,
        }
    }

    /// This claim is looked at anew.
    pub(super) fn forget(&mut self, claim: Claim) {
        if *self == Alone::Waits(claim) {
            *self = Alone::No;
        }
    }

    /// This task has ended.
    pub(super) fn ended(&mut self, task: TaskId) {
        if *self == Alone::Runs(task) {
            *self = Alone::No;
        }
    }
}

impl LedgerEntry {
    /// It is not judged before it has run alone.
    pub(super) fn is_suspect(&self) -> bool {
        self.deaths > 0 && self.deaths >= self.envelope.max_attempts
    }
}

impl Ledger {
    /// Another member takes tasks.
    pub(super) fn is_ready_beside(&self, number: u64) -> bool {
        let is_ready = |member: &Member| member.state == WorkerState::Ready && member.leaving.is_none();
        self.members.iter().any(|(other, member)| *other != number && is_ready(member))
    }

    /// Looks again at the claims of suspects that wait for members which are empty now, and at those of tasks that are none any more.
    pub(super) fn settle_suspects(&mut self, now: Instant) {
        let waits = self.members.iter().filter_map(|(number, member)| match member.alone {
            Alone::Waits(claim) => Some((*number, claim, member.leases.is_empty())),
            _ => None,
        });
        let waits: Vec<_> = waits.collect();
        for (number, claim, empty) in waits {
            let there = self.tasks.get(claim.task).is_some_and(|entry| entry.copy == claim.copy);
            if empty || !there {
                self.claim(number, claim, now);
            }
        }
    }
}
