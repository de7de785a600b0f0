//! The reference of cancelling: who is marked, who is spared, and whom it spreads to.

use super::program::{How, Id, THREADS};
use super::reference::{Doing, Life, Reference};

impl Reference {
    /// Cancelled, and in no shielded region.
    pub(crate) fn is_cancelled(&self, id: Id) -> bool {
        self.all[id].marked.is_some() && !self.all[id].region && !self.all[id].sheltered
    }

    pub(crate) fn cancel(&mut self, id: Id) -> &'static str {
        if self.is_over(id) {
            return "AlreadyDone";
        }
        if self.all[id].marked.is_some() {
            return "Marked";
        }
        if self.is_wanted(id) {
            self.all[id].remembers = true;
            return "Vetoed";
        }
        self.mark(id, None);
        "Marked"
    }

    /// Somebody who is not cancelled, does not descend from it and does not only watch waits for it.
    fn is_wanted(&self, id: Id) -> bool {
        let wants = |&waiter: &Id| {
            !matches!(self.all[waiter].doing, Doing::Waits(_, How::Watch))
                && !self.is_cancelled(waiter)
                && std::iter::successors(Some(waiter), |&at| self.all[at].parent).all(|at| at != id)
        };
        self.all[id].waiters.iter().any(wants) || self.all[id].lender.is_some()
    }

    pub(crate) fn mark(&mut self, id: Id, why: Option<u32>) {
        self.all[id].marked = Some(why);
        self.all[id].remembers = false;
        if self.all[id].life == Life::New {
            self.tell(format!("{id} drops what it captured"));
            self.end(id, Life::Cancelled);
        } else if !self.all[id].region {
            self.deliver(id);
        }
    }

    pub(crate) fn deliver(&mut self, id: Id) {
        self.all[id].delivered = true;
        match self.all[id].doing {
            Doing::Idle => self.idle(id),
            Doing::Waits(target, _) => {
                let asks = self.asks(id, target);
                self.leave(id, target, asks);
                self.answer_with(id, target, "cancelled");
            }
            Doing::Lends(target, _) => {
                let asks = self.asks(id, target);
                self.all[target].lender = None;
                self.reconsider(target, asks);
            }
            Doing::Acts => {}
        }
        self.spread(id);
    }

    /// To every child, through those that are over; not to what was never submitted, which is asked when it is.
    pub(crate) fn spread(&mut self, id: Id) {
        for child in THREADS..self.all.len() {
            if self.all[child].parent == Some(id) {
                match self.all[child].life {
                    Life::New => {}
                    Life::Running => _ = self.cancel(child),
                    _ => self.spread(child),
                }
            }
        }
    }

    /// Whether an ancestor's cancel has reached what has not been submitted, or passes to it now.
    pub(crate) fn is_orphaned(&self, id: Id) -> bool {
        let Some(parent) = self.all[id].parent else { return false };
        match self.all[parent].marked {
            Some(_) => self.is_cancelled(parent),
            None => self.is_over(parent) && self.is_orphaned(parent),
        }
    }

    /// A cancelled waiter takes its target with it, unless that is another's affair.
    fn asks(&self, waiter: Id, target: Id) -> bool {
        let creator = self.all[target].parent;
        let lives = creator.is_none_or(|creator| !self.is_over(creator) && !self.is_cancelled(creator));
        creator == Some(waiter) || !(lives && self.all[target].submitted)
    }

    /// A waiter leaves before the end.
    pub(crate) fn leave(&mut self, waiter: Id, target: Id, asks: bool) {
        self.all[target].waiters.retain(|&other| other != waiter);
        self.reconsider(target, asks);
    }

    fn reconsider(&mut self, target: Id, asks: bool) {
        if asks || self.all[target].remembers {
            self.cancel(target);
        }
    }
}
