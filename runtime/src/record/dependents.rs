//! What a dependent's cell begins with, and what stands in the list of its dependency: the way up a declared edge. Invariants AF1 to AF4 are in the
//! head of `api/after.rs`.
//!
//! A thread that goes up an edge, from a dependency to its dependents, holds the lock of the dependency's list. It takes a link of what it finds, and goes on
//! by a loop.

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::context::{Context, WaitNode};

use crate::record::any::AnyRequest;
use crate::record::header::Header;
use crate::state::open::Open;
use crate::state::word::WAITERS;

/// What a dependent's cell begins with, behind the header.
#[repr(C)]
pub(crate) struct DependentRecord {
    pub open: Open,
    pub len: u32,
    /// Null: they lie behind the record.
    pub nodes: *mut WaitNode,
}

impl DependentRecord {
    /// The record of a dependent.
    ///
    /// # Safety
    ///
    /// AF1, AF2.
    pub(crate) unsafe fn of<'a>(header: NonNull<Header>) -> &'a DependentRecord {
        // SAFETY: AF1: the callable's place is the value's.
        unsafe { Header::value::<DependentRecord>(header).as_ref() }
    }

    /// Its nodes.
    ///
    /// # Safety
    ///
    /// `record` has the provenance of the whole cell, or of the whole of [`Edges`](crate::api::after::Edges).
    pub(crate) unsafe fn nodes(record: NonNull<DependentRecord>) -> (*mut WaitNode, usize) {
        // SAFETY: `record` leads to a record, by contract, whose fields are written at its birth.
        let (nodes, len) = unsafe { (record.as_ref().nodes, record.as_ref().len as usize) };
        if nodes.is_null() {
            // SAFETY: by contract: the nodes lie behind the record.
            return (unsafe { record.add(1) }.as_ptr().cast(), len);
        }
        (nodes, len)
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
