//! Branches: the second halves of joins, private to the stack they were made on.
//!
//! Frames of one fiber nest, so its branches are strictly last in, first out: three stores to push, one to pop. Only when
//! somebody is hungry, or the fiber suspends, is a branch made visible; then it gets a request node of its own, whose
//! callable is *run this branch*, and goes to the worker's shared queue. The outermost goes first: it is the largest.
//!
//! ```text
//!  sentinel ⇄ oldest branch ⇄ … ⇄ newest branch        push, pop at the right; publish at the left
//! ```
//!
//! # Invariants
//!
//! * **AR1** A branch lies in the frame of its `join`, which does not end before the branch has run: by the joiner if `node` is
//!   null (the branch is private), else by the claimer of the node; the joiner waits until the node is terminal.
//! * **AR2** The list is touched by the fiber's own code, and by its worker on the same thread.
//! * **AR3** A published branch's node holds two links: the shared queue's entry and the joiner's. A node's parent is the request
//!   that called `join`, and it is made on that request's worker (H1).
//! * **AR4** No branch is published while a region that must not suspend is open on its stack. So the end of a join inside a region waits for
//!   nobody.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use forebear_context::error::Error;
use forebear_context::lineage::{Lineage, next_root};

use crate::api::origin;
use crate::cancel;
use crate::memory::arena::Arena;
use crate::record::cell::{self, Birth, Callable};
use crate::record::children;
use crate::record::header::{ARM, Header, HeaderPlace, SHELTERED};
use crate::stack::fiber::Fiber;
use crate::state::word::{LINK, QUEUED, SHIELDED, SUBMITTED};

/// The part of a branch that does not depend on types.
#[repr(C)]
pub(crate) struct Branch {
    prev: Cell<*const Branch>,
    next: Cell<*const Branch>,
    /// The request that called `join`; null in a foreign thread outside any request.
    maker: *const Header,
    /// The node once published.
    pub node: Cell<*const Header>,
    /// Runs the second half and stores its result in the frame.
    run: unsafe fn(*const Branch),
}

impl Branch {
    /// A branch that `run` runs.
    #[inline(always)]
    pub(crate) fn new(maker: *const Header, run: unsafe fn(*const Branch)) -> Branch {
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
pub(crate) struct BranchList {
    sentinel: Branch,
    newest: Cell<*const Branch>,
}

/// # Safety
///
/// None: it is never called, since the sentinel is taken by nobody.
unsafe fn never(_: *const Branch) {
    unreachable!("the sentinel is no branch")
}

impl BranchList {
    /// A list that must be [`init`](Self::init)ialised in place.
    pub(crate) fn new() -> BranchList {
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
    pub(crate) unsafe fn push(&self, branch: &Branch) {
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
    pub(crate) unsafe fn pop(&self, branch: &Branch) {
        debug_assert!(ptr::eq(self.newest.get(), branch), "branches are last in, first out");
        self.newest.set(branch.prev.get());
    }

    /// Takes the oldest branch off.
    fn take_oldest(&self) -> Option<&Branch> {
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

/// The callable of a node: runs the branch, which stores its own result.
struct RunBranch(*const Branch);

// SAFETY: AR1: the branch's frame stays; what it runs is `Send` by the bounds of `join`.
unsafe impl Send for RunBranch {}

impl Callable<()> for RunBranch {
    fn call(self) -> Result<(), Error> {
        cancel::arm_begins();
        // SAFETY: AR1: claimed, so it is run once.
        unsafe { ((*self.0).run)(self.0) };
        Ok(())
    }
}

/// Gives the branch a node, made on `arena`, whose owner calls this. The caller makes it visible.
///
/// # Safety
///
/// AR1, AR3; M1 for `arena`.
pub(crate) unsafe fn make_node(arena: &Arena, branch: &Branch, need_pages: u16) -> (u64, NonNull<Header>) {
    // SAFETY: AR3: the maker runs here.
    let lineage = match unsafe { branch.maker.as_ref() } {
        Some(maker) => origin::child_of(maker),
        None => {
            let number = next_root();
            Lineage::root(forebear_context::lineage::root_key(Default::default(), number), number)
        }
    };
    let key = lineage.key();
    let word = QUEUED | SUBMITTED | (2 * LINK);
    let birth = Birth { word, lineage, need_pages, scope: ptr::null(), place: HeaderPlace::Nowhere };
    // SAFETY: M1; the branch outlives the node's run (AR1).
    let node = unsafe { cell::make::<_, ()>(arena, birth, RunBranch(branch)) };
    // SAFETY: just made.
    let h = unsafe { node.as_ref() };
    let sheltered = h.parent().is_some_and(|maker| maker.identity().bare.load().has(SHIELDED));
    h.flags.set(if sheltered { ARM | SHELTERED } else { ARM });
    children::link(h);
    branch.node.set(node.as_ptr());
    (key, node)
}

/// Takes the outermost branch of a worker's fiber off and gives it a node, for the shared queue. None inside a region that must not suspend: its join
/// could not wait for it (AR4).
pub(crate) fn publish_oldest(fiber: &Fiber) -> Option<(u64, NonNull<Header>)> {
    if fiber.context().no_suspend().get() != 0 {
        return None;
    }
    let branch = fiber.branches.take_oldest()?;
    let worker = fiber.worker()?;
    // SAFETY: AR1 to AR3: a fiber of this worker, on its thread.
    Some(unsafe { make_node(worker.arena(), branch, worker.shared().default_need) })
}
