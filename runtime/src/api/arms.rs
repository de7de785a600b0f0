//! Arms: the second halves of joins, private to the stack they were made on.
//!
//! Frames of one fiber nest, so its arms are strictly last in, first out: three stores to push, one to pop. Only when
//! somebody is hungry, or the fiber suspends, is an arm made visible; then it gets a request node of its own, whose
//! callable is *run this arm*, and goes to the worker's shared queue. The outermost goes first: it is the largest.
//!
//! ```text
//!  sentinel ⇄ oldest arm ⇄ … ⇄ newest arm        push, pop at the right; publish at the left
//! ```
//!
//! # Invariants
//!
//! * **AR1** An arm lies in the frame of its `join`, which does not end before the arm has run: by the joiner if `node` is
//!   null (the arm is private), else by whoever claims the node; the joiner waits until the node is terminal.
//! * **AR2** The list is touched by the fiber's own code, and by its worker on the same thread.
//! * **AR3** A published arm's node holds two links: the shared queue's entry and the joiner's. A node's parent is the request
//!   that called `join`, and it is made on that request's worker (H1).
//! * **AR4** No arm is published while a region that must not suspend is open on its stack. So the end of a join inside a region waits for
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
use crate::record::header::{ARM, Header, Place, SHELTERED};
use crate::stack::fiber::Fiber;
use crate::state::word::{LINK, QUEUED, SHIELDED, SUBMITTED};

/// The part of an arm that does not depend on types.
#[repr(C)]
pub(crate) struct Arm {
    prev: Cell<*const Arm>,
    next: Cell<*const Arm>,
    /// The request that called `join`; null in a foreign thread outside any request.
    maker: *const Header,
    /// The node once published.
    pub node: Cell<*const Header>,
    /// Runs the second half and stores its result in the frame.
    run: unsafe fn(*const Arm),
}

impl Arm {
    /// An arm that `run` runs.
    #[inline(always)]
    pub(crate) fn new(maker: *const Header, run: unsafe fn(*const Arm)) -> Arm {
        Arm {
            prev: Cell::new(ptr::null()),
            next: Cell::new(ptr::null()),
            maker,
            node: Cell::new(ptr::null()),
            run,
        }
    }
}

/// The arms of one fiber. See the module head.
pub(crate) struct ArmList {
    sentinel: Arm,
    newest: Cell<*const Arm>,
}

/// # Safety
///
/// None: it is never called, since the sentinel is taken by nobody.
unsafe fn never(_: *const Arm) {
    unreachable!("the sentinel is no arm")
}

impl ArmList {
    /// A list that must be [`init`](Self::init)ialised in place.
    pub(crate) fn new() -> ArmList {
        ArmList { sentinel: Arm::new(ptr::null(), never), newest: Cell::new(ptr::null()) }
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

    /// Puts an arm at the new end.
    ///
    /// # Safety
    ///
    /// AR1, AR2.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, arm: &Arm) {
        let newest = self.newest.get();
        arm.prev.set(newest);
        // SAFETY: AR1: listed arms are alive; the sentinel is this list's.
        unsafe { (*newest).next.set(arm) };
        self.newest.set(arm);
    }

    /// Takes the newest arm off, which is `arm`, still private.
    ///
    /// # Safety
    ///
    /// AR2; `arm` is private, hence listed, hence the newest.
    #[inline(always)]
    pub(crate) unsafe fn pop(&self, arm: &Arm) {
        debug_assert!(ptr::eq(self.newest.get(), arm), "arms are last in, first out");
        self.newest.set(arm.prev.get());
    }

    /// Takes the oldest arm off.
    fn take_oldest(&self) -> Option<&Arm> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: AR1; not empty, so the sentinel's next is an arm.
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

/// The callable of a node: runs the arm, which stores its own result.
struct RunArm(*const Arm);

// SAFETY: AR1: the arm's frame stays; what it runs is `Send` by the bounds of `join`.
unsafe impl Send for RunArm {}

impl Callable<()> for RunArm {
    fn call(self) -> Result<(), Error> {
        cancel::arm_begins();
        // SAFETY: AR1: claimed, so it is run once.
        unsafe { ((*self.0).run)(self.0) };
        Ok(())
    }
}

/// Gives the arm a node, made on `arena`, whose owner calls this. The caller makes it visible.
///
/// # Safety
///
/// AR1, AR3; M1 for `arena`.
pub(crate) unsafe fn make_node(arena: &Arena, arm: &Arm, need_pages: u16) -> (u64, NonNull<Header>) {
    // SAFETY: AR3: the maker runs here.
    let lineage = match unsafe { arm.maker.as_ref() } {
        Some(maker) => origin::child_of(maker),
        None => {
            let number = next_root();
            Lineage::root(forebear_context::lineage::root_key(Default::default(), number), number)
        }
    };
    let key = lineage.key();
    let word = QUEUED | SUBMITTED | (2 * LINK);
    let birth = Birth { word, lineage, need_pages, scope: ptr::null(), place: Place::Nowhere };
    // SAFETY: M1; the arm outlives the node's run (AR1).
    let node = unsafe { cell::make::<_, ()>(arena, birth, RunArm(arm)) };
    // SAFETY: just made.
    let h = unsafe { node.as_ref() };
    let sheltered = h.parent().is_some_and(|maker| maker.identity().bare.load().has(SHIELDED));
    h.flags.set(if sheltered { ARM | SHELTERED } else { ARM });
    children::link(h);
    arm.node.set(node.as_ptr());
    (key, node)
}

/// Takes the outermost arm of a worker's fiber off and gives it a node, for the shared queue. None inside a region that must not suspend: its join
/// could not wait for it (AR4).
pub(crate) fn publish_oldest(fiber: &Fiber) -> Option<(u64, NonNull<Header>)> {
    if fiber.context().no_suspend().get() != 0 {
        return None;
    }
    let arm = fiber.arms.take_oldest()?;
    let worker = fiber.worker()?;
    // SAFETY: AR1 to AR3: a fiber of this worker, on its thread.
    Some(unsafe { make_node(worker.arena(), arm, worker.shared().default_need) })
}
