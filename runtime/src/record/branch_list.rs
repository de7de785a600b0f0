//! Branches: the second halves of joins, private to the stack they were made on.
//!
//! Frames of one fiber nest, so its branches are strictly last in, first out: three stores to push, one to pop. A
//! branch is published only if another worker is hungry, or if the fiber suspends. Then it gets a request node of its
//! own, whose callable is *run this branch*, and the node enters the worker's shared queue. The outermost branch is
//! published first: it is the largest.
//!
//! ```text
//!  sentinel ⇄ oldest branch ⇄ … ⇄ newest branch        push, pop at the right; publish at the left
//! ```
//!
//! # Invariants
//!
//! * **AR1** A branch lies in the frame of its `join`, which does not end before the branch has run. If `node` is null,
//!   the branch is private, and the joiner runs it. Else the claimer of the node runs it, and the joiner waits until
//!   the node is terminal.
//! * **AR2** The list is touched by the fiber's own code, and by its worker on the same thread.
//! * **AR3** A published branch's node holds two links: the shared queue's entry and the joiner's. A node's parent is the request
//!   that called `join`, and it is made on that request's worker (H1).
//! * **AR4** No branch is published while a region that must not suspend is open on its stack. So the end of a join inside a region waits for
//!   nobody.

use std::cell::Cell;
use std::ptr;

/// The part of a branch that does not depend on the types of its join. `H` is a request's header.
#[repr(C)]
pub(crate) struct Branch<H> {
    prev: Cell<*const Branch<H>>,
    next: Cell<*const Branch<H>>,
    /// The request that called `join`; null in a foreign thread outside any request.
    pub maker: *const H,
    /// The node once published.
    pub node: Cell<*const H>,
    /// Runs the second half and stores its result in the frame.
    pub run: unsafe fn(*const Branch<H>),
}

impl<H> Branch<H> {
    /// A branch that `run` runs.
    #[inline(always)]
    pub(crate) fn new(maker: *const H, run: unsafe fn(*const Branch<H>)) -> Branch<H> {
        Branch {
            prev: Cell::new(ptr::null()),
            next: Cell::new(ptr::null()),
            maker,
            node: Cell::new(ptr::null()),
            run,
        }
    }
}

/// The branches of one fiber. See the module head.
pub(crate) struct BranchList<H> {
    sentinel: Branch<H>,
    newest: Cell<*const Branch<H>>,
}

/// The function of the sentinel.
///
/// # Safety
///
/// None: it is never called, since no thread takes the sentinel.
unsafe fn never<H>(_: *const Branch<H>) {
    unreachable!("the sentinel is no branch")
}

impl<H> BranchList<H> {
    /// A list that must be [`init`](Self::init)ialised in place.
    pub(crate) fn new() -> BranchList<H> {
        BranchList { sentinel: Branch::new(ptr::null(), never), newest: Cell::new(ptr::null()) }
    }

    /// To be called once the list is where it stays.
    pub(crate) fn init(&self) {
        self.newest.set(&self.sentinel);
    }

    /// Whether there are none.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        ptr::eq(self.newest.get(), &self.sentinel)
    }

    /// Puts a branch at the new end.
    ///
    /// # Safety
    ///
    /// AR1, AR2.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, branch: &Branch<H>) {
        let newest = self.newest.get();
        branch.prev.set(newest);
        // SAFETY: AR1: listed branches are alive; the sentinel is this list's.
        unsafe { (*newest).next.set(branch) };
        self.newest.set(branch);
    }

    /// Takes the newest branch off, which is `branch`, still private.
    ///
    /// # Safety
    ///
    /// AR2; `branch` is private, hence listed, hence the newest.
    #[inline(always)]
    pub(crate) unsafe fn pop(&self, branch: &Branch<H>) {
        debug_assert!(ptr::eq(self.newest.get(), branch), "branches are last in, first out");
        self.newest.set(branch.prev.get());
    }

    /// Takes the oldest branch off.
    pub(crate) fn take_oldest(&self) -> Option<&Branch<H>> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: AR1; not empty, so the sentinel's next is a branch.
        let oldest = unsafe { &*self.sentinel.next.get() };
        if ptr::eq(self.newest.get(), oldest) {
            self.newest.set(&self.sentinel);
        } else {
            let next = oldest.next.get();
            self.sentinel.next.set(next);
            // SAFETY: AR1.
            unsafe { (*next).prev.set(&self.sentinel) };
        }
        Some(oldest)
    }
}
