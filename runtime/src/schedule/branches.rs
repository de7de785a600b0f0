//! How a branch becomes a request: the node that other workers see. The list of branches, and invariants AR1 to AR4, are in
//! [`crate::record::branch_list`].

use std::ptr::{self, NonNull};

use forebear_context::error::Error;
use forebear_context::lineage::{Lineage, next_root};
use forebear_context::shim::mutant;

use crate::cancel;
use crate::record::arena::Arena;
use crate::record::branch_list::Branch;
use crate::record::cell::{self, Birth, Callable};
use crate::record::children;
use crate::record::fiber::Fiber;
use crate::record::header::{ARM, Header, HeaderPlace, SHELTERED};
use crate::schedule::worker::OnWorker;
use crate::state::word::{LINK, QUEUED, SHIELDED, SUBMITTED};

/// The callable of a node: runs the branch, which stores its own result.
struct RunBranch(*const Branch<Header>);

// SAFETY: AR1: the branch's frame stays; what it runs is `Send` by the bounds of `join`.
unsafe impl Send for RunBranch {}

impl Callable<()> for RunBranch {
    fn call(self) -> Result<(), Error> {
        cancel::arm_begins();
        // SAFETY: AR1: the branch stays until it has been run.
        let run = unsafe { (*self.0).run };
        // SAFETY: AR1: claimed, so it is run once.
        unsafe { run(self.0) };
        Ok(())
    }

    fn type_name() -> &'static str {
        "a branch of a join"
    }
}

/// Gives the branch a node, made on `arena`, whose owner calls this. The caller makes it visible.
///
/// # Safety
///
/// AR1, AR3; M1 for `arena`.
pub(crate) unsafe fn make_node(
    arena: &Arena,
    branch: &Branch<Header>,
    need_pages: u16,
) -> (u64, NonNull<Header>) {
    // SAFETY: AR3: the maker runs here.
    let lineage = match unsafe { branch.maker.as_ref() } {
        Some(maker) => children::child_of(maker),
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
    // A region that is open now was opened before the join: one that opens later publishes what is private first (`cancel/shield.rs`).
    let in_region =
        |maker: &Header| mutant!("arm_of_a_region_is_not_sheltered", false, maker.bare.load().has(SHIELDED));
    let sheltered = h.parent().is_some_and(|maker| maker.is_sheltered() || in_region(maker));
    h.set_flags(if sheltered { ARM | SHELTERED } else { ARM });
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
