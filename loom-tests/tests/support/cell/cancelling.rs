//! Cancelling a request in a model.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use forebear_context::context::Cause;
use forebear_runtime::model::word::{Cancel, Demand, INHERITED};

use super::{Job, Waiter};

/// What stands for the reason that the parent was cancelled.
pub const FROM_PARENT: u32 = 1;

impl Job {
    /// `cancel`, by a holder of a handle or a link.
    pub fn cancel(&self) -> Cancel {
        let turn = self.turn();
        self.touch();
        let answer = self.word.cancel(|| self.demand());
        drop(turn);
        self.act(answer)
    }

    /// A thread's cancel by a link that it gives up then.
    pub fn cancel_and_go(&self) -> Cancel {
        let answer = self.cancel();
        self.release_link();
        answer
    }

    /// `abort` for a reason, by a holder of a handle or a link.
    pub fn abort(&self, reason: u32) -> Cancel {
        let turn = self.turn();
        self.touch();
        let answer = self.word.abort(|| self.note_reason(reason));
        drop(turn);
        self.act(answer)
    }

    /// A cancel that spreads to a child that is not private any more: with a reason, and a link.
    pub fn cancel_for(&self, reason: u32) -> Cancel {
        let turn = self.turn();
        self.touch();
        let answer = self.word.cancel_locked(|| {
            self.note_reason(reason);
            self.demand()
        });
        drop(turn);
        self.act(answer)
    }

    /// The same as it mostly goes: the mark itself says that it comes from the parent, and nobody is to be asked.
    pub fn inherit(&self) -> Cancel {
        let turn = self.turn();
        self.touch();
        let answer = self.word.cancel_inherited();
        drop(turn);
        match answer {
            Some(answer) => self.act(answer),
            None => self.cancel_for(FROM_PARENT),
        }
    }

    /// The same in the private queue of the worker that calls this.
    pub fn inherit_listed(&self, listed: &Cell<bool>) -> Cancel {
        self.touch();
        let Some(answer) = self.word.cancel_private_inherited() else { return self.cancel_listed(listed) };
        if answer == Cancel::Ended {
            assert!(listed.replace(false), "a private entry that is not in its list");
        }
        self.act(answer)
    }

    /// A cancel that spreads to a child in the private queue of the worker that calls this.
    pub fn cancel_listed(&self, listed: &Cell<bool>) -> Cancel {
        self.touch();
        let answer = self.word.cancel_private(|| {
            self.note_reason(FROM_PARENT);
            self.demand()
        });
        if answer == Cancel::Ended {
            assert!(listed.replace(false), "a private entry that is not in its list");
        }
        self.act(answer)
    }

    /// The request on whose stack this one runs is cancelled.
    pub fn lender_cancelled(&self, asks: bool) -> Cancel {
        let turn = self.turn();
        self.touch();
        let answer = self.word.lender_cancelled(asks, || self.demand());
        drop(turn);
        self.act(answer)
    }

    /// A shielded region, by the request itself.
    pub fn shielded(&self, during: impl FnOnce()) -> Region {
        self.touch();
        let before = self.word.shield();
        during();
        self.touch();
        if self.word.unshield(before) {
            self.deliver();
            return Region::Delivers;
        }
        if before { Region::Before } else { Region::Quiet }
    }

    /// Whether it is marked; if so the reason is there to be read.
    pub fn is_marked(&self) -> bool {
        self.touch();
        let marked = self.word.load().has(forebear_runtime::model::word::MARKED);
        if marked {
            self.reason();
        }
        marked
    }

    /// The reason. By one who has seen the mark.
    pub fn reason(&self) -> Option<u32> {
        if self.word.load().has(INHERITED) {
            return Some(FROM_PARENT);
        }
        // SAFETY: J1.
        self.reason.with(|reason| unsafe { *reason })
    }

    fn note_reason(&self, reason: u32) {
        // SAFETY: J1.
        self.reason.with_mut(|place| unsafe { *place = Some(reason) });
    }

    /// What is left to do after a cancel.
    pub(super) fn act(&self, answer: Cancel) -> Cancel {
        match answer {
            Cancel::Ended => {
                self.notes.marked.fetch_add(1, Relaxed);
                self.end_claimed();
            }
            Cancel::Marked => {
                self.note_marked();
                self.deliver();
            }
            Cancel::MarkedShielded => self.note_marked(),
            // By one who has seen the mark.
            Cancel::AlreadyMarked => _ = self.reason(),
            Cancel::Vetoed | Cancel::TooLate | Cancel::Unasked => {}
        }
        answer
    }

    fn note_marked(&self) {
        self.notes.marked.fetch_add(1, Relaxed);
        self.notes.to_deliver.fetch_add(1, Relaxed);
    }

    fn deliver(&self) {
        self.reason();
        self.notes.delivered.fetch_add(1, Relaxed);
    }
}

impl Waiter {
    /// The request that waits is marked.
    pub fn mark(&self) {
        assert_eq!(self.request.cancel(|| Demand::Nobody), Cancel::Marked);
    }

    /// The request that waits is marked, and does so within a shielded region.
    pub fn mark_shielded(&self) {
        assert!(!self.request.shield());
        assert_eq!(self.request.cancel(|| Demand::Nobody), Cancel::MarkedShielded);
    }

    /// The request that waits is marked, then woken, from where its stack is known: the node is not touched. True: woken by
    /// this.
    pub fn cancel(&self) -> bool {
        self.mark();
        self.wake(Cause::Cancelled)
    }
}

/// How a shielded region went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Not marked by its end.
    Quiet,
    /// Marked before it was opened.
    Before,
    /// Marked within: its end delivered.
    Delivers,
}

/// A name for what a cancel came to.
pub fn told(answer: Cancel) -> &'static str {
    match answer {
        Cancel::Ended => "ended",
        Cancel::Marked => "marked",
        Cancel::MarkedShielded => "marked, shielded",
        Cancel::Vetoed => "vetoed",
        Cancel::AlreadyMarked => "already marked",
        Cancel::TooLate => "too late",
        Cancel::Unasked => "unasked",
    }
}
