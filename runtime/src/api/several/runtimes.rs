//! Which runtimes the members of a set are of.

use std::ptr;

use forebear_context::shim::Arc;

use crate::shared::Shared;
use crate::shared::ending::Stage;

/// The runtimes that members of the set have belonged to. So a wait need not read all members to know that none of their runtimes has given
/// up.
pub(super) enum MemberRuntimes {
    /// Each once.
    Few(Vec<Arc<Shared>>),
    /// More than are worth remembering.
    Many,
}

/// So many runtimes of members are remembered.
const FEW: usize = 16;

impl MemberRuntimes {
    pub(super) fn note(&mut self, shared: &Shared) {
        if let MemberRuntimes::Few(few) = self
            && !few.iter().rev().any(|one| ptr::eq(&**one, shared))
        {
            match few.len() {
                FEW => *self = MemberRuntimes::Many,
                _ => few.push(shared.arc()),
            }
        }
    }

    /// Whether all have been of this one.
    pub(super) fn is_only(&self, shared: &Shared) -> bool {
        matches!(self, MemberRuntimes::Few(few) if matches!(&few[..], [one] if ptr::eq(&**one, shared)))
    }

    /// Whether one of them may have given up.
    pub(super) fn may_have_given_up(&self) -> bool {
        match self {
            MemberRuntimes::Few(few) => few.iter().any(|one| one.ending.is(Stage::GivenUp)),
            MemberRuntimes::Many => true,
        }
    }

    /// The members of those that have given up are about to come out.
    pub(super) fn forget_given_up(&mut self) {
        if let MemberRuntimes::Few(few) = self {
            few.retain(|one| !one.ending.is(Stage::GivenUp));
        }
    }
}
