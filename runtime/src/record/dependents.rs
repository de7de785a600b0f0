//! What a dependent's cell begins with, and what stands in the list of its dependency: the way up a declared edge. Invariants AF1 to AF4 are in the
//! head of `api/after.rs`.
//!
//! A thread that goes up an edge, from a dependency to its dependents, holds the lock of the dependency's list. It takes a link of what it finds, and goes on
//! by a loop.

use std::collections::HashSet;
use std::ptr::{self, NonNull};

use forebear_context::context::{Context, WaitNode};

use crate::record::any::AnyRequest;
use crate::record::header::Header;
use crate::state::open::Open;
use crate::state::word::WAITERS;

/// What a dependent's cell begins with, behind the header.
#[repr(C)]
pub(crate) struct DependentRecord {
    pub open: Open,
    /// How many nodes, and [`APART`].
    len: u32,
    nodes: *mut WaitNode,
}

/// Flag of a record's length: the nodes do not lie behind the cell, but in memory of their own.
const APART: u32 = 1 << 31;

impl DependentRecord {
    /// A record of so many nodes, which lie there.
    pub(crate) fn new(nodes: *mut WaitNode, len: u32, is_apart: bool) -> DependentRecord {
        DependentRecord { open: Open::new(), len: len | if is_apart { APART } else { 0 }, nodes }
    }

    /// How many nodes it has.
    pub(crate) fn len(&self) -> u32 {
        self.len & !APART
    }

    /// All of its nodes, if they have memory of their own.
    pub(crate) fn apart(&self) -> Option<*mut [WaitNode]> {
        (self.len & APART != 0).then(|| ptr::slice_from_raw_parts_mut(self.nodes, self.len() as usize))
    }

    /// The record of a dependent.
    ///
    /// # Safety
    ///
    /// AF1, AF2.
    pub(crate) unsafe fn of<'a>(header: NonNull<Header>) -> &'a DependentRecord {
        // SAFETY: AF1: the callable's place is the value's.
        unsafe { Header::value::<DependentRecord>(header).as_ref() }
    }

    /// The place of one of its nodes; `None` behind the last.
    pub(crate) fn node_at(&self, at: usize) -> Option<*mut WaitNode> {
        // SAFETY: there is memory for so many.
        (at < self.len() as usize).then(|| unsafe { self.nodes.add(at) })
    }
}

/// What stands in the list of one that is not over, as `of` sees it. It is read twice: no memory is allocated under the lock.
fn listed<R>(h: &Header, of: impl Fn(&WaitNode) -> Option<R>) -> Vec<R> {
    let mut found = Vec::new();
    if !h.word().load().has(WAITERS) {
        return found;
    }
    loop {
        let mut lacking = 0;
        if h.word().lock().is_err() {
            return found;
        }
        // SAFETY: Q1: the lock; the list stays as it is.
        unsafe {
            h.waiters.find_to_front(|node| {
                if lacking == 0 && found.len() < found.capacity() {
                    found.extend(of(node));
                } else {
                    lacking += 1;
                }
                false
            });
        }
        h.word().unlock(|bits| bits);
        if lacking == 0 {
            return found;
        }
        found.clear();
        found.reserve(2 * lacking + found.capacity());
    }
}

/// What is after it.
pub(crate) fn dependents(h: &Header) -> Vec<AnyRequest> {
    // SAFETY: AF4: an edge that is listed is open, and the list is locked.
    listed(h, |node| Some(unsafe { AnyRequest::linked(node.record()?.cast()) }))
}

/// The stacks that wait for it. They are compared, or looked at by who keeps them.
pub(crate) fn waiters(h: &Header) -> Vec<NonNull<Context>> {
    // SAFETY: Q1: the list is locked.
    listed(h, |node| unsafe { node.context() }.map(NonNull::from))
}

/// Calls `with` for all that cannot start before it is over, until that says true. Whether it has.
pub(crate) fn each_blocked(h: &Header, mut with: impl FnMut(&Header) -> bool) -> bool {
    let mut work = dependents(h);
    let mut seen = HashSet::new();
    while let Some(dependent) = work.pop() {
        if !seen.insert(dependent.raw()) {
            continue;
        }
        // SAFETY: the handle's link.
        let h = unsafe { dependent.raw().as_ref() };
        if with(h) {
            return true;
        }
        work.extend(dependents(h));
    }
    false
}
