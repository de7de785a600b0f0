//! Where declared edges lead: for a wait that runs what it is after, for urgency, cycles, dumps and the end of a runtime.
//!
//! Down an edge, from a dependent to its dependencies, goes a [`Reader`]. Up an edge, from a dependency to its dependents, goes who holds the
//! lock of the dependency's list. Both take a link of what they find, and go on by a loop.

use std::collections::HashSet;
use std::ptr::NonNull;

use forebear_context::context::{Context, WaitNode};
use forebear_context::error::Cycle;

use super::{DependentRecord, admit};
use crate::api::any::AnyRequest;
use crate::cancel;
use crate::deadlock::{cycle, urgency};
use crate::record::fiber::{self, Fiber};
use crate::record::header::{AFTER, Header};
use crate::schedule::wait;
use crate::state::open;
use crate::state::word::{CLAIMED, Cancel, HELD, WAITERS};

/// Keeps the edges of a waiting dependent in place. See the head of [`super::open`].
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
        // SAFETY: the header stands at the beginning of its cell, and was made with that.
        let record = Header::value::<DependentRecord>(NonNull::from(self.0));
        // SAFETY: AF2: kept by this.
        let (nodes, len) = unsafe { DependentRecord::nodes(record) };
        // SAFETY: AF2.
        (at < len).then(|| unsafe { &*nodes.add(at) })
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
            unsafe { admit(header) };
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
    let mut left: Vec<(AnyRequest, Cancel)> = Vec::with_capacity(record.len as usize);
    open::while_held(h.word(), || {
        for node in (0..).map_while(|at| reader.node(at)).filter(|node| node.is_listed()) {
            let Some(target) = node.target() else { continue };
            let target = target.cast::<Header>();
            // SAFETY: AF3. The node is listed, and OE5: nobody else takes it out.
            let came = unsafe { cancel::leave_declared(target, node, &record.open, None) };
            if let Some((came, last)) = came {
                debug_assert!(!last, "the reader is another");
                // SAFETY: AF3: kept by the reader.
                left.push((unsafe { AnyRequest::linked(target) }, came));
            }
        }
    });
    let (here, key) = (fiber::get().and_then(Fiber::worker), h.urgency());
    for (target, _) in &left {
        // SAFETY: U2: the handle's link.
        unsafe { urgency::leave(here, target.raw(), key) };
    }
    drop(reader);
    for (target, came) in left {
        // SAFETY: the handle's link; the answer is the caller's.
        unsafe {
            match came {
                Cancel::Ended => cancel::leave_end(target.raw()),
                came => _ = cancel::carry_out(target.raw(), came),
            }
        }
    }
}

/// Whether edges of it are open.
pub(crate) fn is_waiting(h: &Header) -> bool {
    Reader::of(h).is_some()
}

/// Its dependencies that are not over, as many as that at most.
pub(crate) fn dependencies(h: &Header, most: usize) -> Vec<AnyRequest> {
    let Some(reader) = Reader::of(h) else { return Vec::new() };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(target) = reader.at(at).filter(|_| found.len() < most) {
        at += 1;
        if !target.word().load().is_terminal() {
            // SAFETY: AF3: kept by the reader.
            found.push(unsafe { AnyRequest::linked(NonNull::from(target)) });
        }
    }
    found
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

/// The next of its dependencies, from this place on, that is not over, and the place behind it.
fn next(h: &Header, from: usize) -> Option<(AnyRequest, usize)> {
    let reader = Reader::of(h)?;
    let mut at = from;
    while let Some(target) = reader.at(at) {
        at += 1;
        if !target.word().load().is_terminal() {
            // SAFETY: AF3: kept by the reader.
            return Some((unsafe { AnyRequest::linked(NonNull::from(target)) }, at));
        }
    }
    None
}

/// The fiber is about to wait for a dependent: runs what that is after, and has not started, on this stack. By a loop, depth first. Answers whether
/// anything was run; or the cycle, if what runs on this very stack is among it.
///
/// # Safety
///
/// As [`wait::until_over`]; `fiber` is the calling one.
#[cold]
#[inline(never)]
pub(crate) unsafe fn run_dependencies(fiber: &Fiber, header: NonNull<Header>) -> Result<bool, Cycle> {
    // SAFETY: by contract.
    let mut path = vec![(unsafe { AnyRequest::linked(header) }, 0)];
    let mut seen = HashSet::new();
    let mut any = false;
    while let Some((at, place)) = path.last_mut() {
        if cancel::refuses(fiber) {
            break;
        }
        // SAFETY: the handle's link.
        let Some((dependency, behind)) = next(unsafe { at.raw().as_ref() }, *place) else {
            let over = path.pop();
            if let Some((at, _)) = over.filter(|_| !path.is_empty()) {
                // SAFETY: the handle's link.
                any |= unsafe { try_run(fiber, at.raw()) };
            }
            continue;
        };
        *place = behind;
        // SAFETY: the handle's link.
        let h = unsafe { dependency.raw().as_ref() };
        let bits = h.word().load();
        if bits.life() >= CLAIMED {
            // From the second on: the first is named by the waiter's own wait.
            // SAFETY: the handles' links.
            let names = || path.iter().map(|(at, _)| unsafe { at.raw().as_ref() }.name().to_owned());
            if let Some(cycle) = cycle::of_declared(fiber, h, names()) {
                return Err(cycle);
            }
        } else if bits.life() == HELD {
            if h.is(AFTER) && seen.insert(dependency.raw()) {
                path.push((dependency, 0));
            }
        } else {
            // SAFETY: the handle's link.
            any |= unsafe { try_run(fiber, dependency.raw()) };
        }
    }
    Ok(any)
}

/// # Safety
///
/// As [`run_dependencies`].
unsafe fn try_run(fiber: &Fiber, header: NonNull<Header>) -> bool {
    // SAFETY: by contract.
    unsafe {
        let bits = header.as_ref().word().load();
        wait::try_run(fiber, header, bits)
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
