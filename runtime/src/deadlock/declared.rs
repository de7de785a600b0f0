//! Where declared edges lead, down from a dependent to its dependencies: for urgency, cycles, dumps, and a wait that runs what it is after.
//!
//! Down an edge goes a [`Reader`]. It takes a link of what it finds, and continues by a loop. The way up an edge is in [`crate::record::dependents`].
//!
//! # Who may read an edge
//!
//! Any thread with a count of the dependent. Under the lock of the dependent's word it counts itself among those who keep the edges in place ([`Open::try_hold`](open::Open::try_hold)),
//! and only while the dependent is held. Until the [`Reader`] is dropped nobody frees a node (AF2). If the last edge is closed meanwhile, the reader's drop is
//! what makes the dependent ready: so it may queue the dependent, and no lock may be held then.
//!
//! A [`Reader`] is held while the edges of one dependent are read. What it finds is kept by a link, so a search continues from there without it.

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::context::WaitNode;

use crate::cancel;
use crate::deadlock::urgency;
use crate::record::above::above;
use crate::record::any::AnyRequest;
use crate::record::dependents::DependentRecord;
use crate::record::fiber::{self, Fiber};
use crate::record::header::{AFTER, Header};
use crate::shared::worker::OnRecord;
use crate::state::open;
use crate::state::word::{Cancel, HELD};

/// Keeps the edges of a waiting dependent in place. See the head of [`crate::state::open`].
pub(crate) struct Reader<'a>(&'a Header);

impl<'a> Reader<'a> {
    /// `None`: it does not wait for a dependency.
    pub(crate) fn of(h: &'a Header) -> Option<Reader<'a>> {
        if !h.is(AFTER) {
            return None;
        }
        let bits = h.word().lock().ok()?;
        // SAFETY: AF2: under the lock of one that is held.
        let held = bits.life() == HELD && unsafe { DependentRecord::of(NonNull::from(h)) }.open.try_hold();
        h.word().unlock(|bits| bits);
        held.then(|| Reader(h))
    }

    /// The node of the edge at this place; `None` behind the last.
    fn node(&self, at: usize) -> Option<&WaitNode> {
        // SAFETY: AF2: kept by this.
        let node = unsafe { DependentRecord::of(NonNull::from(self.0)) }.node_at(at)?;
        // SAFETY: AF2: each is there as long as the record.
        Some(unsafe { &*node })
    }

    /// The dependency of the edge at this place; `None` behind the last.
    fn at(&self, at: usize) -> Option<&Header> {
        // SAFETY: AF3.
        self.node(at)?.target().map(|target| unsafe { target.cast().as_ref() })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let header = NonNull::from(self.0);
        // SAFETY: AF2: kept by this.
        if unsafe { DependentRecord::of(header) }.open.down() {
            // SAFETY: OE1.
            unsafe { (above().admit)(header) };
        }
    }
}

/// Dependents that are to start though what they are after is not over.
#[derive(Default)]
pub(crate) struct EarlyStarts(Vec<AnyRequest>);

impl EarlyStarts {
    /// Adds one that is kept by the caller.
    pub(crate) fn add(&mut self, h: &Header) {
        // SAFETY: by the caller.
        self.0.push(unsafe { AnyRequest::linked(NonNull::from(h)) });
    }

    /// Adds those of `other`, and answers whether there were any.
    pub(crate) fn append(&mut self, mut other: EarlyStarts) -> bool {
        let any = !other.0.is_empty();
        self.0.append(&mut other.0);
        any
    }

    /// Starts them. No lock is held.
    pub(crate) fn start(&self) {
        for dependent in &self.0 {
            // SAFETY: the handle's link.
            start_early(unsafe { dependent.raw().as_ref() });
        }
    }
}

/// Closes the edges of a dependent that waits, though what it is after is not over, so that it starts. It then waits on a stack of its own, like a
/// request that has declared nothing. No lock is held, and no user code is called: the thread may be about to block.
fn start_early(h: &Header) {
    let Some(reader) = Reader::of(h) else { return };
    // SAFETY: AF2: kept by the reader.
    let record = unsafe { DependentRecord::of(NonNull::from(h)) };
    // No memory is allocated under the lock.
    let mut left: Vec<(AnyRequest, Cancel)> = Vec::with_capacity(record.len() as usize);
    open::while_held(h.word(), || {
        for node in (0..).map_while(|at| reader.node(at)).filter(|node| node.is_listed()) {
            let Some(target) = node.target() else { continue };
            let target = target.cast::<Header>();
            // SAFETY: AF3. The node is listed, and OE5: nobody else takes it out.
            let answer = unsafe { cancel::leave_declared(target, node, &record.open, None) };
            if let Some((answer, last)) = answer {
                debug_assert!(!last, "the reader is another");
                // SAFETY: AF3: kept by the reader.
                left.push((unsafe { AnyRequest::linked(target) }, answer));
            }
        }
    });
    let (here, key) = (fiber::get().and_then(Fiber::worker_record), h.urgency());
    for (target, _) in &left {
        cancel::forget_edge(target.header());
        // SAFETY: U2: the handle's link.
        unsafe { urgency::leave(here, target.raw(), key) };
    }
    drop(reader);
    let mut marked = cancel::Marked::default();
    for (target, answer) in left {
        // SAFETY: the handle's link; the answer is the caller's.
        unsafe { marked.add(target.raw(), answer) };
    }
    marked.carry_out_later();
}

/// Whether edges of it are open.
pub(crate) fn is_waiting(h: &Header) -> bool {
    Reader::of(h).is_some()
}

/// Its dependencies that are not over, as many as that at most.
pub(crate) fn dependencies(h: &Header, most: usize) -> Vec<AnyRequest> {
    let mut found = Vec::new();
    add_dependencies(h, most, &mut found);
    found
}

/// Adds its dependencies that are not over, as many as that at most, in order of declaration.
pub(crate) fn add_dependencies(h: &Header, most: usize, found: &mut Vec<AnyRequest>) {
    let Some(reader) = Reader::of(h) else { return };
    if found.capacity() == 0 {
        // SAFETY: AF2: kept by the reader.
        let len = unsafe { DependentRecord::of(NonNull::from(h)) }.len() as usize;
        *found = Vec::with_capacity(len.min(most));
    }
    let mut at = 0;
    let most = found.len().saturating_add(most);
    while let Some(target) = reader.at(at).filter(|_| found.len() < most) {
        at += 1;
        if !target.word().load().is_terminal() {
            // SAFETY: AF3: kept by the reader.
            found.push(unsafe { AnyRequest::linked(NonNull::from(target)) });
        }
    }
}

/// Calls `with` for all that it is after and that is not over, directly or not, until that says true. Whether it has. By a loop.
pub(crate) fn any_dependency(h: &Header, mut with: impl FnMut(&Header) -> bool) -> bool {
    let mut work = dependencies(h, usize::MAX);
    let mut seen: HashSet<_> = work.iter().map(AnyRequest::raw).collect();
    while let Some(dependency) = work.pop() {
        // SAFETY: the handle's link.
        let h = unsafe { dependency.raw().as_ref() };
        if with(h) {
            return true;
        }
        work.extend(dependencies(h, usize::MAX).into_iter().filter(|next| seen.insert(next.raw())));
    }
    false
}
