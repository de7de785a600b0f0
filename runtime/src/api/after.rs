//! Declared dependencies: a request that is not started before others are over.
//!
//! # Vocabulary
//!
//! * **dependency**: a request that another one is after.
//! * **dependent**: the request that is after it. It behaves as one whose first statements wait for its dependencies, in the order in which they were
//!   declared. Its callable does wait for them, and finds them over.
//! * **edge**: a node in a dependency's list of waiters that belongs to a record of the dependent, not to a stack ([`WaitNode::of_record`]).
//!   The nodes of a request's edges lie behind its cell, in the same piece of memory, or apart if there are many. An edge owns a handle of its dependency.
//! * **open**: an edge whose dependency is not over. [`open`] counts them.
//!
//! # States of a dependent
//!
//! | state | life | edges |
//! |---|---|---|
//! | built | `NEW` | in no list: a dependent that was not submitted or waited for is no demand, and costs its dependencies nothing |
//! | waiting | `HELD` | those that are open stand in lists; they own one link. Its runtime notes those to completions ([`crate::shared::completions`]) |
//! | ready | `QUEUED` | none is open; the link is the queue entry's |
//! | ended unstarted | `CLAIMED`, marked | who claimed it takes the nodes out of the lists and drops the callable |
//! | started | `CLAIMED` | none; the callable waits for each dependency, which does not suspend |
//!
//! A request of a pool that is held back is `HELD` too. Its edges are set up when the pool admits it, with the pool's link.
//!
//! The declared edge decides only *when* the dependent is queued. What it answers comes from the waits in its callable. So a dependency of another
//! runtime needs no edge across the two: the callable waits for it on its own stack.
//!
//! # Who does what
//!
//! * **The submitter** (a submit, or a wait) moves the life to `HELD`, enters the nodes, and then submits the dependencies that nobody has
//!   submitted. It does so by a loop ([`crate::schedule::dependents`]).
//! * **The finisher** of a dependency takes the nodes with the list of waiters, and closes the edges ([`ended`](crate::schedule::dependents::ended)).
//! * **The thread that closes the last edge** queues the dependent ([`crate::schedule::dependents`]). If its worker
//!   made the dependent, it goes into that worker's private queue, and hungry workers are notified as for any spawn.
//!   Else it goes into this worker's shared queue, where every worker sees it.
//! * **A canceller** claims the dependent as any unstarted request. The drop of its callable withdraws the edges ([`Edges`]), and asks each
//!   dependency as a cancelled waiter asks its target.
//! * **A reader** ([`crate::deadlock::declared`]) keeps the edges in place while it looks where they lead.
//! * **A starter** ([`crate::deadlock::declared`]) closes the edges of a dependent in a cycle whose only waiters are ends of scopes, so that it
//!   starts and waits.
//!
//! What races with what, and why nothing is lost, is in the head of [`open`].
//!
//! # Invariants
//!
//! * **AF1** The flag [`AFTER`] is set at birth iff the cell holds a [`Dependent`], whose first field is its [`DependentRecord`].
//! * **AF2** The maker alone accesses the record and its nodes until the dependent is submitted. From then on the threads of the table below do,
//!   each in its time only. The record stays at its address, and is not freed, until the claimer's time begins. The count of open edges orders any
//!   two of them: each thread's last access is before its decrement, which releases, and the claimer acquires the 0 (OE1 to OE3).
//! * **AF3** A node's target is written when the dependent is made. Its handle keeps the target while the edges exist.
//! * **AF4** From `HELD` until it is admitted or found cancelled, a dependent is kept by the edges' link.
//!
//! # Who may touch the record and its nodes (AF2)
//!
//! | who | from | until | what |
//! |---|---|---|---|
//! | the submitter | [`Open::begin`], under the dependent's lock while it is `NEW`, or `HELD` by a pool that admits it | [`Open::set_up`] | reads the record; writes each node, and enters it under the lock of the dependency's list |
//! | the finisher of a dependency | it has taken the list, with the node | [`Open::down`] of that node | reads the node, and `open` |
//! | a reader | [`Open::try_hold`] has returned true, under the dependent's lock while it is `HELD` | its [`Open::down`] | reads the record, and the target and listing of each node |
//! | a starter | as a reader | as a reader | also takes listed nodes out, under the dependent's lock while it is `HELD`, and under the lock of the dependency's list (OE5) |
//! | the claimer of the dependent | it was admitted (`open` is 0), or was cancelled: then [`Open::await_set_up`] to take nodes out, and [`Open::await_none`] for the rest | the callable is dropped or has run | all of it; frees it |
//!
//! `len` and `nodes` do not change after the birth. `open` is atomic.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use forebear_context::context::WaitNode;
use forebear_context::error::{Error, WaitError};

use crate::api::request::Request;
use crate::api::then::dependent::ErasedHandle;
use crate::cancel::{self, Marked};
use crate::deadlock::urgency;
use crate::record::cell::{Callable, Construct, Named};
use crate::record::dependents::DependentRecord;
use crate::record::fiber::{self, Fiber};
#[cfg(doc)]
use crate::record::header::AFTER;
use crate::record::header::Header;
use crate::schedule::wait;
use crate::shared::worker::OnRecord;
use crate::state::open;
#[cfg(doc)]
use crate::state::open::Open;
use crate::state::word::FINISHED;

/// A node for an edge to what this handle is of; the handle goes with it.
fn node(dependency: ErasedHandle) -> WaitNode {
    // SAFETY: Q5: it stands in no list, and is written anew before it is put into one.
    unsafe { WaitNode::of_record(NonNull::dangling(), dependency.into_raw().cast()) }
}

/// The edges of a dependent. See the module head.
#[repr(C)]
pub(crate) struct Edges {
    record: DependentRecord,
}

// SAFETY: the handles may go, and drop values, on any thread, by the bound of `ErasedHandle::of`; the nodes are the lists'.
unsafe impl Send for Edges {}

/// The place of a value whose type is not known here. Handles of it drop the value by the request's table.
pub(crate) struct Opaque;

impl Drop for Opaque {
    fn drop(&mut self) {}
}

impl Edges {
    /// Edges to what these handles are of, so many at most. The nodes are written to `room`; if that is null, to memory of their own.
    ///
    /// # Safety
    ///
    /// `room` is null, or fresh memory for `len` nodes that lasts as long as these edges.
    unsafe fn new(len: usize, handles: impl Iterator<Item = ErasedHandle>, room: *mut WaitNode) -> Edges {
        let nodes = handles.take(len.min(open::MOST)).map(node);
        if room.is_null() {
            let nodes = Box::leak(nodes.collect::<Box<[_]>>());
            return Edges { record: DependentRecord::new(nodes.as_mut_ptr(), nodes.len() as u32, true) };
        }
        let mut written = 0;
        for node in nodes {
            // SAFETY: by contract: there is room for `len` nodes.
            let place = unsafe { room.add(written) };
            // SAFETY: as above; the memory is fresh.
            unsafe { place.write(node) };
            written += 1;
        }
        Edges { record: DependentRecord::new(room, written as u32, false) }
    }

    fn node(&self, at: usize) -> &WaitNode {
        let Some(node) = self.record.node_at(at) else {
            unreachable!("there is an edge for each dependency")
        };
        // SAFETY: AF2: by the claimer of the dependent, or its maker.
        unsafe { &*node }
    }

    fn target(&self, at: usize) -> NonNull<Header> {
        match self.node(at).target() {
            Some(target) => target.cast(),
            None => unreachable!("an edge is a record's"),
        }
    }

    /// Waits for the dependency, which is over.
    pub(crate) fn wait(&self, at: usize) -> Result<NonNull<Header>, WaitError> {
        let target = self.target(at);
        // SAFETY: AF3: the edge's handle keeps the target, for the wait and for what is read after it.
        unsafe {
            wait::until_over(target)?;
            if target.as_ref().life_here() == FINISHED { Ok(target) } else { Err(wait::refusal(target)) }
        }
    }

    /// The value of the dependency, waited for.
    ///
    /// # Safety
    ///
    /// The dependency's value is a `T`.
    pub(crate) unsafe fn value<T>(&self, at: usize) -> Result<&T, WaitError> {
        let target = self.wait(at)?;
        // SAFETY: W2: finished, and AF3; by contract.
        Ok(unsafe { Header::value::<T>(target).as_ref() })
    }

    /// The handle of a dependency, waited for, however that has ended. The edges keep theirs.
    ///
    /// # Safety
    ///
    /// The dependency's value is a `T`.
    pub(crate) unsafe fn over<T>(&self, at: usize) -> Result<ManuallyDrop<Request<T>>, WaitError> {
        let target = self.target(at);
        // SAFETY: AF3; by contract; it is not dropped.
        unsafe {
            wait::until_over(target)?;
            Ok(ManuallyDrop::new(Request::from_raw(target)))
        }
    }

    /// The value itself, if the edges have the last handle. They keep theirs, of a request without a value.
    ///
    /// # Safety
    ///
    /// The dependency's value is a `T`.
    pub(crate) unsafe fn take<T>(&self, at: usize) -> Result<T, WaitError> {
        let target = self.target(at);
        // SAFETY: AF3; by contract.
        unsafe { Request::take_over_from(target) }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.record.len() as usize
    }

    /// Takes the nodes out of the lists that they stand in. By the claimer of the dependent.
    #[cold]
    fn withdraw(&self) {
        let open = &self.record.open;
        open.await_set_up();
        let here = fiber::get().and_then(Fiber::worker_record);
        let mut marked = Marked::default();
        for node in (0..self.len()).map(|at| self.node(at)).filter(|node| node.is_listed()) {
            let (Some(target), Some(dependent)) = (node.target(), node.record()) else { continue };
            let target = target.cast::<Header>();
            // SAFETY: it is being ended by the caller.
            let h = unsafe { dependent.cast::<Header>().as_ref() };
            // SAFETY: AF3; the node is listed; the dependent is claimed, and set up.
            let Some((answer, last)) = (unsafe { cancel::leave_declared(target, node, open, Some(h)) })
            else {
                continue;
            };
            // SAFETY: AF3.
            cancel::forget_edge(unsafe { target.as_ref() });
            if last {
                // The edges' link. Not the last: the runner's is the caller's.
                h.word().release_link();
            }
            // SAFETY: U2: AF3.
            unsafe { urgency::leave(here, target, h.urgency()) };
            // SAFETY: AF3.
            unsafe { marked.add(target, answer) };
        }
        open.await_none();
        marked.carry_out();
    }
}

impl Drop for Edges {
    fn drop(&mut self) {
        if !self.record.open.is_none() {
            self.withdraw();
        }
        for at in 0..self.len() {
            // SAFETY: AF3: the edge's handle. Whatever the value is, it is dropped by the request's table.
            drop(unsafe { Request::<Opaque>::from_raw(self.target(at)) });
        }
        if let Some(nodes) = self.record.apart() {
            // SAFETY: leaked by `new`, and freed here alone.
            drop(unsafe { Box::from_raw(nodes) });
        }
    }
}

/// The callable of a dependent.
#[repr(C)]
pub(crate) struct Dependent<F, U> {
    edges: Edges,
    call: F,
    user: PhantomData<fn(U)>,
}

impl<T, F: FnOnce(Edges) -> Result<T, Error> + Send, U: Named> Callable<T> for Dependent<F, U> {
    const IS_DEPENDENT: bool = true;

    fn call(self) -> Result<T, Error> {
        (self.call)(self.edges)
    }

    fn type_name() -> &'static str {
        U::type_name()
    }
}

/// What a dependent is made from.
pub(crate) struct Declared<H, F, U> {
    /// How many dependencies.
    pub len: usize,
    /// A handle of each.
    pub handles: H,
    pub call: F,
    pub user: PhantomData<fn(U)>,
}

impl<T, H, F, U> Construct<T> for Declared<H, F, U>
where
    H: Iterator<Item = ErasedHandle>,
    F: FnOnce(Edges) -> Result<T, Error> + Send,
    U: Named,
{
    type Callable = Dependent<F, U>;

    fn edges(&self) -> usize {
        self.len
    }

    unsafe fn construct(self, nodes: *mut WaitNode) -> Dependent<F, U> {
        // SAFETY: by contract: the edges are part of the callable, which is dropped before the request's memory is freed.
        let edges = unsafe { Edges::new(self.len, self.handles, nodes) };
        Dependent { edges, call: self.call, user: self.user }
    }
}

const _: () = {
    // What a declared wait costs beside its closure.
    #[cfg(not(any(loom, shuttle)))]
    assert!(size_of::<Header>() + size_of::<Edges>() + size_of::<WaitNode>() <= 224);
    #[cfg(not(any(loom, shuttle)))]
    assert!(size_of::<WaitNode>() == 48);
};
