//! A cancel of an ancestor that reaches a request late: the request is submitted or started after the cancel.
//!
//! Ancestors that are over pass a cancel on. [`crate::state::ancestor_walk`] walks along them.

use forebear_context::error::CancelReason;

use super::{is_cancelled, reason};
use crate::record::header::{ARM, DETACHED, Header, LIMITED};
use crate::state::ancestor_walk::{self, Ancestry, SkipLink};
use crate::state::due::Due;
use crate::state::word::MARKED;

/// Whether a request that is about to be submitted or started has been reached by a cancel of an ancestor meanwhile, and so is
/// cancelled itself. Its ancestors that are over pass it through.
#[inline]
pub(crate) fn is_orphaned_by_cancel(h: &Header) -> bool {
    h.above().is_some_and(|parent| !rules_out_a_cancel(parent) && has_cancelled_ancestor(h))
}

/// Whether one read of the parent's word shows that no cancel reaches its children: it runs, is not marked, and has no deadline of its
/// own. It does so for nearly all parents. What goes by its maker, as an arm does, is looked at more closely.
#[inline]
fn rules_out_a_cancel(parent: &Header) -> bool {
    let bits = parent.bare.load();
    !parent.is(ARM | LIMITED) && !bits.is_terminal() && !bits.has(MARKED)
}

#[inline(never)]
fn has_cancelled_ancestor(h: &Header) -> bool {
    cancelled_ancestor(h).is_some()
}

/// The ancestor by whose cancel, or deadline, this one is reached.
fn cancelled_ancestor(h: &Header) -> Option<&Header> {
    let mut at = h;
    loop {
        let above = ancestor_walk::first_above(at)?;
        if Ancestry::is_cancelled(above) {
            return Some(above);
        }
        // One that is over, and not passed since its deadline is kept.
        if !above.passes_on() {
            return None;
        }
        at = above;
    }
}

/// The reason for a request that such an ancestor's cancel reaches.
pub(crate) fn reason_of_ancestor(h: &Header) -> CancelReason {
    cancelled_ancestor(h).map_or(CancelReason::Parent, reason_for_children)
}

/// The reason for the children of a request that is cancelled, or is over and passes a cancel on. Its deadline counts for them, too.
pub(super) fn reason_for_children(parent: &Header) -> CancelReason {
    let parent = parent.identity();
    if parent.bare.load().has(MARKED) {
        match reason(parent) {
            CancelReason::Deadline => CancelReason::Deadline,
            _ => CancelReason::Parent,
        }
    } else if parent.came_late() {
        CancelReason::Deadline
    } else {
        reason_of_ancestor(parent)
    }
}

impl Ancestry for Header {
    fn is_cancelled(&self) -> bool {
        is_cancelled(self) || self.came_late()
    }

    fn passes_on(&self) -> bool {
        self.bare.load().is_terminal()
    }

    fn above(&self) -> Option<&Header> {
        self.parent().filter(|_| !self.is(DETACHED))
    }

    fn is_passed(&self) -> bool {
        // W10: a mark that has not come by the end does not come any more.
        let bits = self.identity().bare.load();
        bits.is_terminal() && !bits.has(MARKED) && !self.due().is_some_and(Due::is_kept)
    }

    fn skip(&self) -> Option<&SkipLink<Header>> {
        self.side().map(|side| &side.skip)
    }

    fn skip_or_new(&self) -> Option<&SkipLink<Header>> {
        // An arm goes by its maker, which comes next. What its family alone keeps is forgotten at the next start (decision
        // 0005), or few; a block for it would outweigh it.
        (!self.is(ARM) && !self.bare.load().is_family_only()).then(|| &self.side_or_new().skip)
    }
}
