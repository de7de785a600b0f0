//! Demand: which waiters spare a request from a cancel. The head of [`super`] says what counts.

use forebear_context::context::{Context, WaitNode};
use forebear_context::shim::mutant;

use super::is_cancelled;
use crate::record::header::Header;
use crate::state::word::{Demand, LENT, Word};

/// Which demand the list of waiters of `h` has. Called under the lock of its word. The word itself knows of a lender.
pub(super) fn demand(h: &Header) -> Demand {
    if h.word().load().has(LENT) {
        // The word itself knows of a lender.
        return Demand::Live;
    }
    list_demand(h, wants)
}

/// The same, lenders included. `wants` says whether a waiter is demand.
pub(super) fn list_demand(h: &Header, wants: impl Fn(&Header, &Header) -> bool) -> Demand {
    // The waiter that is found is first in the next scan: else, when many waiters leave, each scan would pass all of the others.
    // SAFETY: Q1: the lock.
    match unsafe { h.waiters.find_to_front(|node| node_wants(node, h, &wants)) } {
        true => Demand::Live,
        false if h.waiters.is_empty() => Demand::Nobody,
        false => Demand::Idle,
    }
}

fn node_wants(node: &WaitNode, h: &Header, wants: impl Fn(&Header, &Header) -> bool) -> bool {
    if node.watches() {
        return false;
    }
    if let Some(dependent) = node.record() {
        // SAFETY: AF4: an edge that is listed is open, and its list's lock is held.
        return wants(unsafe { dependent.cast().as_ref() }, h);
    }
    // SAFETY: the node is listed, and its list's lock is held.
    if let Some(maker) = unsafe { node.listener_maker() }.filter(|maker| maker.is_framed)
        // SAFETY: LI5, RG3: the request is not over.
        && let Some(waiter) = unsafe { maker.request.cast::<Header>().as_ref() }
    {
        return mutant!("framed_listener_always_wants", true, wants(waiter, h));
    }
    // SAFETY: as above.
    match unsafe { node.context() }.and_then(waiter) {
        Some(waiter) => wants(waiter, h),
        // A foreign thread outside any request; or a listener, which is nobody's, or loose: which request has it now is not known.
        None => true,
    }
}

/// The request on whose behalf a context waits.
fn waiter(context: &Context) -> Option<&Header> {
    // SAFETY: a context in a list of waiters is valid; its stack is left, or about to be, so the answer stays true.
    let word = unsafe { (context.table().word)(context) }.cast::<Word>();
    const { assert!(std::mem::offset_of!(Header, bare) == 0) };
    // SAFETY: words of contexts are those of headers, at their beginning; a request that waits is not over.
    unsafe { word.cast::<Header>().as_ref() }
}

pub(super) fn wants(waiter: &Header, target: &Header) -> bool {
    !is_cancelled(waiter) && !waiter.lineage.descends_from(&target.lineage)
}
