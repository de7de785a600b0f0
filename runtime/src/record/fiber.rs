//! A fiber: one stack with its record, as the runtime sees it. Either a coroutine's or a foreign thread's.
//!
//! The [`Context`] is the part of a stack's record that the lower crates know. The fiber is what the runtime adds: the
//! request on top, the worker and the arena, where the stack ends, and the branches that were made on it. Requests nest
//! on a fiber: a waiter that runs its target directly *lends* it the stack, and the target is on top until it returns.
//!
//! # Who may touch what
//!
//! All cells belong to the code on the fiber's own stack, and to its worker while it is left (C3). `urgency` alone is
//! raised by any thread; [`crate::deadlock::foreign_stacks`] says who reads what else, and what keeps a fiber for a reader.
//!
//! A fiber never changes its thread. So both it and its worker may be cached over a suspension, and the thread-local
//! below is read once per operation.

use forebear_context::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr as ThreadsOwn; // not modelled: written by its thread alone, read by others as a hint

use forebear_context::context::{Context, ForeignContext};
use forebear_context::lineage::{Lineage, NO_KEY};

use crate::record::arena::Arena;
use crate::record::branch_list::BranchList;
use crate::record::drop_queue::DropQueue;
use crate::record::header::Header;
use crate::record::runtime::RuntimeRecord;
use crate::record::scope_core::ScopeCore;
use crate::state::end_calls::EndCalls;

/// A pointer to a request that its owner writes and that somebody else may look at meanwhile, to tell what a stack is
/// about ([`crate::api::runtime`]). To its owner it is a plain cell: relaxed loads and stores are plain instructions.
#[derive(Debug)]
pub(crate) struct PublishedPtr(AtomicPtr<Header>);

impl PublishedPtr {
    /// None yet.
    pub(crate) fn none() -> PublishedPtr {
        PublishedPtr(AtomicPtr::new(ptr::null_mut()))
    }

    /// What it is now.
    #[inline(always)]
    pub(crate) fn get(&self) -> *const Header {
        self.0.load(Ordering::Relaxed)
    }

    /// By the owner.
    #[inline(always)]
    pub(crate) fn set(&self, header: *const Header) {
        self.0.store(header.cast_mut(), Ordering::Relaxed);
    }

    /// By the owner: there is one writer.
    #[inline(always)]
    pub(crate) fn replace(&self, header: *const Header) -> *const Header {
        let before = self.get();
        self.set(header);
        before
    }
}

/// Where the record of a worker lies. The layer that has it knows its type ([`crate::shared::worker`]).
pub(crate) type WorkerPtr = *const ();

/// It was left in the middle of an unwind; see [`crate::schedule::worker`].
pub(crate) const LEFT_UNWINDING: u8 = 1;
/// It waits for a request of another runtime, which [`crate::shared::parked`] knows.
pub(crate) const LEFT_PARKED: u8 = 2;

/// Its thread has exited: it is never entered again ([`crate::schedule::worker`]).
pub(crate) const LEFT_BEHIND: u8 = 4;

/// See the module head.
#[repr(C)]
pub(crate) struct Fiber {
    /// The request on top; null in a foreign thread that runs none, and in a worker's loop.
    pub request: PublishedPtr,
    /// Where requests made here are counted and their memory comes from; null until a foreign thread needs one.
    pub arena: Cell<*const Arena>,
    /// The worker, as [`OnRecord`](crate::shared::worker::OnRecord) reads it; null in a foreign thread.
    pub worker: WorkerPtr,
    /// The lowest usable address of the stack.
    pub limit: Cell<usize>,
    /// The branches of joins that were made on this stack and are nobody else's business yet.
    pub branches: BranchList<Header>,
    /// The root key of the most urgent request on this stack.
    pub urgency: AtomicU64,
    /// What decides this fiber's place among close relatives, copied when it parks, so that making it ready touches nothing
    /// but the fiber.
    pub descent: Cell<Descent>,
    /// How far down its stack was in use when it parked last: how much is to be fetched before it is entered.
    pub low: Cell<usize>,
    /// The tick at which it parked last ([`crate::time::coarse`]); read by a dump at any time.
    pub since: AtomicU64,
    /// The next in its run, or of those that yielded, and after how many picks and starts this one is due; the ready queue's while it
    /// stands there.
    pub next_ready: Cell<*const Fiber>,
    /// The one before it in its run, and whether it stands among those that were woken; the ready queue's.
    pub before_ready: Cell<*const Fiber>,
    pub is_woken: Cell<bool>,
    pub due: Cell<(u64, u64)>,
    /// Where unstarted requests that are dropped by a destructor are put off to.
    pub dropping: Cell<*const DropQueue<Header>>,
    /// The unstarted request that the worker's loop ends on this stack.
    pub ends: Cell<*const Header>,
    /// User code that ends of requests call on this stack, from the innermost.
    pub end_calls: EndCalls<Header>,
    /// What is to be seen to when it is entered again: [`LEFT_UNWINDING`], [`LEFT_PARKED`].
    pub left: Cell<u8>,
    /// The wait that it has bound continues although its request is cancelled; see
    /// [`crate::deadlock::cycle`].
    pub outlasts_cancel: Cell<bool>,
    /// A request on this stack has made a set or a future that wants another one ([`crate::state::listener`]). Never cleared: it saves the look for them where there
    /// was none.
    pub has_loose: Cell<bool>,
    /// The name of the innermost region that must not suspend; see [`mod@crate::record::no_suspend`].
    pub no_suspend: Cell<Option<NonNull<str>>>,
    /// The innermost scope that was opened on this stack and has not returned.
    pub scopes: Cell<*const ScopeCore>,
    context: *const Context,
    /// The runtime that free functions mean here, if it is not the worker's own: set by `enter`, and while a foreign
    /// thread runs a request. On a worker `arena` is null meanwhile, which keeps the fast ways off.
    pub entered: Cell<*const RuntimeRecord>,
}

/// What decides the order of a fiber beside its siblings, its parent and its children: of the request on top, as its lineage has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descent {
    pub parent: *const Lineage,
    pub rank: u32,
    pub depth: u32,
}

impl Descent {
    /// A copy of what `lineage` has.
    #[inline(always)]
    pub(crate) fn of(lineage: &Lineage) -> Descent {
        Descent { parent: lineage.parent(), rank: lineage.rank(), depth: lineage.depth() }
    }

    /// Of the request on top of a stack, or of none.
    #[inline(always)]
    pub(crate) fn of_top(request: Option<&Header>) -> Descent {
        request.map_or_else(Descent::default, |request| Descent::of(&request.lineage))
    }
}

impl Default for Descent {
    /// Of a stack on which no request runs.
    fn default() -> Descent {
        Descent { parent: ptr::null(), rank: 0, depth: 0 }
    }
}

/// Roughly the address of the calling frame.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let sp: usize;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        sp
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let sp: usize;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mov {}, sp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        sp
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let here = 0u8;
        std::hint::black_box(&raw const here) as usize
    }
}

/// How far behind its context a fiber lies, a worker's or a foreign thread's.
pub(crate) const BEHIND_CONTEXT: usize = size_of::<ForeignContext>().next_multiple_of(align_of::<Fiber>());

impl Fiber {
    /// The context of the fiber that lies, or lay, at `at`.
    #[inline(always)]
    pub(crate) fn context_at(at: NonNull<Fiber>) -> NonNull<Context> {
        let context = at.as_ptr().cast::<u8>().wrapping_sub(BEHIND_CONTEXT).cast::<Context>();
        // SAFETY: a fiber lies behind its context.
        unsafe { NonNull::new_unchecked(context) }
    }

    /// Where the fiber of a context lies, or would lie.
    #[inline(always)]
    pub(crate) fn behind(context: NonNull<Context>) -> NonNull<Fiber> {
        let fiber = context.as_ptr().cast::<u8>().wrapping_add(BEHIND_CONTEXT).cast::<Fiber>();
        // SAFETY: a fiber lies behind its context.
        unsafe { NonNull::new_unchecked(fiber) }
    }

    /// The fiber whose context this is.
    ///
    /// # Safety
    ///
    /// It is a fiber's.
    #[inline(always)]
    pub(crate) unsafe fn of(context: &Context) -> &Fiber {
        // SAFETY: the context is a fiber's, by contract, so the fiber lies so far behind it, and is alive with it.
        unsafe { &*ptr::from_ref(context).byte_add(BEHIND_CONTEXT).cast::<Fiber>() }
    }

    /// A fiber for `context`, which outlives it and stays in place.
    pub(crate) fn new(context: *const Context, worker: WorkerPtr, limit: usize) -> Fiber {
        Fiber {
            request: PublishedPtr::none(),
            arena: Cell::new(ptr::null()),
            worker,
            limit: Cell::new(limit),
            branches: BranchList::new(),
            urgency: AtomicU64::new(NO_KEY),
            descent: Cell::default(),
            low: Cell::new(0),
            since: AtomicU64::new(0),
            next_ready: Cell::new(ptr::null()),
            before_ready: Cell::new(ptr::null()),
            is_woken: Cell::new(false),
            due: Cell::new((0, 0)),
            dropping: Cell::new(ptr::null()),
            ends: Cell::new(ptr::null()),
            end_calls: EndCalls::new(),
            left: Cell::new(0),
            outlasts_cancel: Cell::new(false),
            has_loose: Cell::new(false),
            no_suspend: Cell::new(None),
            scopes: Cell::new(ptr::null()),
            context,
            entered: Cell::new(ptr::null()),
        }
    }

    /// Makes a fiber in a slot, where fibers have always been made, or that is filled with zeros. Other threads may read the urgency, the request
    /// and `since` meanwhile ([`crate::deadlock::foreign_stacks`]): these are stored.
    ///
    /// # Safety
    ///
    /// The place is valid, aligned, and the caller's, but for such readers; it has been filled as said. For `context` as [`Fiber::new`].
    pub(crate) unsafe fn renew(
        at: NonNull<Fiber>,
        context: *const Context,
        worker: WorkerPtr,
        limit: usize,
        urgency: u64,
    ) {
        // So that a field that is added must be thought of here.
        let Fiber {
            request: _,
            arena,
            worker,
            limit,
            branches,
            urgency: _,
            descent,
            low,
            since: _,
            next_ready,
            before_ready,
            is_woken,
            due,
            dropping,
            ends,
            end_calls,
            left,
            outlasts_cancel,
            has_loose,
            no_suspend,
            scopes,
            context,
            entered,
        } = Fiber::new(context, worker, limit);
        let at = at.as_ptr();
        // SAFETY: by contract; all zeros are a fiber's atomic parts.
        unsafe {
            (*at).request.set(ptr::null());
            (*at).urgency.store(urgency, Ordering::Relaxed);
            (*at).since.store(0, Ordering::Relaxed);
            (&raw mut (*at).arena).write(arena);
            (&raw mut (*at).worker).write(worker);
            (&raw mut (*at).limit).write(limit);
            (&raw mut (*at).branches).write(branches);
            (&raw mut (*at).descent).write(descent);
            (&raw mut (*at).low).write(low);
            (&raw mut (*at).next_ready).write(next_ready);
            (&raw mut (*at).before_ready).write(before_ready);
            (&raw mut (*at).is_woken).write(is_woken);
            (&raw mut (*at).due).write(due);
            (&raw mut (*at).dropping).write(dropping);
            (&raw mut (*at).ends).write(ends);
            (&raw mut (*at).end_calls).write(end_calls);
            (&raw mut (*at).left).write(left);
            (&raw mut (*at).outlasts_cancel).write(outlasts_cancel);
            (&raw mut (*at).has_loose).write(has_loose);
            (&raw mut (*at).no_suspend).write(no_suspend);
            (&raw mut (*at).scopes).write(scopes);
            (&raw mut (*at).context).write(context);
            (&raw mut (*at).entered).write(entered);
        }
    }

    /// Whether it is a worker's: else a foreign thread's.
    #[inline(always)]
    pub(crate) fn has_worker(&self) -> bool {
        !self.worker.is_null()
    }

    /// The request on top.
    #[inline(always)]
    pub(crate) fn request(&self) -> Option<&Header> {
        // SAFETY: while a request is on top, its runner holds a link or a handle.
        unsafe { self.request.get().as_ref() }
    }

    /// The context of this stack.
    #[inline(always)]
    pub(crate) fn context(&self) -> &Context {
        // SAFETY: by the contract of `new`.
        unsafe { &*self.context }
    }

    /// How many bytes of stack are left.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        stack_pointer().wrapping_sub(self.limit.get())
    }
}

forebear_context::shim::thread_local! {
    /// Written by its thread alone; a dump reads a worker's, to see which of its stacks runs.
    static FIBER: ThreadsOwn<Fiber> = const { ThreadsOwn::new(ptr::null_mut()) };
}

/// Where a thread says which fiber it is on.
pub(crate) type CurrentSlot = NonNull<ThreadsOwn<Fiber>>;

/// The address of what this thread says. Valid until the thread's locals are destroyed.
pub(crate) fn current_slot() -> CurrentSlot {
    FIBER.with(|fiber| NonNull::from(fiber))
}

/// The fiber this is called on; null in a thread that the runtime has not met.
#[inline(always)]
pub(crate) fn current() -> *const Fiber {
    FIBER.with(|fiber| fiber.load(Ordering::Relaxed))
}

/// The fiber this is called on, if there is one.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Fiber> {
    // SAFETY: `enter` gets a fiber that stays valid while it is current. The lifetime is longer than the truth:
    // callers keep it no longer than the operation they are in, which is on this very stack.
    unsafe { current().as_ref() }
}

/// Says which fiber this thread is on from now on, here and to the ground below.
///
/// # Safety
///
/// The fiber stays valid while it is current.
#[inline(always)]
pub(crate) unsafe fn enter(fiber: *const Fiber) {
    FIBER.with(|s| s.store(fiber.cast_mut(), Ordering::Relaxed));
    // SAFETY: by contract; a fiber's context is as valid as it is.
    unsafe {
        let context = fiber.as_ref().map(|s| NonNull::from(s.context()));
        forebear_context::context::set_current(context);
    }
}

/// The arena of the fiber this is called on; null if there is none.
#[inline(always)]
pub(crate) fn current_arena() -> *const Arena {
    get().map_or(ptr::null(), |fiber| fiber.arena.get())
}
