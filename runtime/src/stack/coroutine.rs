//! Coroutines: coroutines in which a worker's loop runs.
//!
//! The loop is *inside* a coroutine. A request that never suspends costs no switch: the loop calls it. Only when one
//! suspends does its coroutine stay with it, and the worker continues in another coroutine from its cache. A coroutine
//! whose request has ended continues as the loop. So there is one coroutine per *suspended* request, not per request.
//!
//! A coroutine's control block lies at the top of its own stack:
//!
//! ```text
//!  slot:  | guard | ... requests ... | loop, run | fiber's start | Coroutine | colour |
//! ```
//!
//! # Invariants
//!
//! * **K1** A coroutine belongs to one worker and is entered and left on that worker's thread only.
//! * **K2** A coroutine is in exactly one of four states. *Current*: it runs. *Parked*: its request waits, and the
//!   thread that settles the wait makes it ready, once. *Ready*: it is in the mailbox or the ready queue. *Idle*: it is
//!   in the worker's cache, and its loop runs no request.
//! * **K3** Its memory stays until the slab is unmapped; a cached coroutine's slot may be given back, when its frames are
//!   the loop's alone and are forgotten.
//! * **K4** The context and the fiber lie at one place in every slot. As long as the slab is mapped any thread may read
//!   their atomic parts ([`crate::deadlock::foreign_stacks`]). Before the first coroutine the memory is all zeros;
//!   later coroutines write these parts by atomic stores ([`Context::renew`], [`Fiber::renew`]).
//! * **K5** From being built to being dismantled it stands in its worker's list of coroutines, under a lock. The holder of that
//!   may read what is atomic of it.
//! * **K6** The thread number of the context is the address of its worker from when it is built until it is dismantled, and else 0. So a worker that
//!   reads its own number there reads a coroutine of its own.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use forebear_context::context::Context;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_pool::Linked;

use crate::record::fiber::{BEHIND_CONTEXT, Fiber};
use crate::record::header::Header;
use crate::stack::slab::StackSlot;
use crate::state::alarms::Standing;

mod list;

pub(crate) use self::list::CoroutineList;

/// See the module head.
#[repr(C)]
pub(crate) struct Coroutine {
    pub(crate) context: Context,
    /// So that every fiber lies as far behind its context.
    _apart: [MaybeUninit<u8>; BEHIND_CONTEXT - size_of::<Context>()],
    /// What the runtime knows of this stack.
    pub fiber: Fiber,
    pub link: AtomicPtr<Coroutine>,
    /// A claimed request that needs this coroutine's larger stack; run first.
    pub pending: Cell<*const Header>,
    /// The memory it lies in. Taken out when it is given back.
    pub slot: Cell<Option<StackSlot>>,
    /// Its place in its worker's list of coroutines.
    pub listed: Cell<usize>,
    /// Its alarm, which stays in the worker's wheel from one wait to the next.
    pub alarm: Standing,
}

// SAFETY: `link` is the mailbox's while the coroutine is in it (K2).
unsafe impl Linked for Coroutine {
    unsafe fn link<'a>(this: NonNull<Self>) -> &'a AtomicPtr<Self> {
        // SAFETY: K3.
        unsafe { &this.as_ref().link }
    }
}

const _: () = assert!(mem::offset_of!(Coroutine, fiber) == BEHIND_CONTEXT);

impl Coroutine {
    /// Nothing runs on it, and something is about to. On its own stack.
    #[inline(always)]
    pub(crate) fn begins_anew(&self) {
        self.context.shares().clear();
    }

    /// Where the context of a coroutine lies in a slot with this top.
    pub(crate) fn context_in(top: usize) -> NonNull<Context> {
        let at = (top - size_of::<Coroutine>()) & !63;
        let context = ptr::with_exposed_provenance_mut::<Context>(at);
        // SAFETY: inside a slot.
        unsafe { NonNull::new_unchecked(context) }
    }

    /// The coroutine whose context this is.
    ///
    /// # Safety
    ///
    /// The context is a coroutine's: its table says so.
    #[inline(always)]
    pub(crate) unsafe fn of(context: NonNull<Context>) -> NonNull<Coroutine> {
        // The context is the first field.
        context.cast()
    }

    /// The coroutine whose fiber this is.
    ///
    /// # Safety
    ///
    /// The fiber is a coroutine's: it has a worker.
    #[inline(always)]
    pub(crate) unsafe fn of_fiber(fiber: NonNull<Fiber>) -> NonNull<Coroutine> {
        // SAFETY: by contract.
        unsafe { fiber.byte_sub(mem::offset_of!(Coroutine, fiber)).cast() }
    }

    /// Its context.
    #[inline(always)]
    pub(crate) fn context(&self) -> NonNull<Context> {
        NonNull::from(&self.context)
    }
}

/// Whether the context is a coroutine's, whose memory stays (K3).
pub(crate) fn is_coroutines(context: &Context) -> bool {
    context.place().get() != 0
}

/// Where a coroutine's alarm stands.
///
/// # Safety
///
/// The context is a coroutine's.
#[inline(always)]
pub(crate) unsafe fn alarm_of(context: NonNull<Context>) -> NonNull<Standing> {
    // SAFETY: the context is a coroutine's, by contract, so it lies in one.
    let coroutine = unsafe { Coroutine::of(context) };
    // SAFETY: K3: its memory stays.
    NonNull::from(&unsafe { coroutine.as_ref() }.alarm)
}

/// The fiber of a coroutine's context.
///
/// # Safety
///
/// The context is a coroutine's.
pub(crate) unsafe fn fiber_of(context: &Context) -> &Fiber {
    // SAFETY: the context is a coroutine's, by contract, so it lies in one.
    let coroutine = unsafe { Coroutine::of(NonNull::from(context)) };
    // SAFETY: K3: its memory stays, and it is borrowed as long as the context.
    &unsafe { coroutine.as_ref() }.fiber
}
