//! What a foreign thread has: its fiber, an arena in each runtime that it deals with, its seats. [`crate::foreign`] makes and settles them, and gives
//! them back.
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | all of [`Foreign`] | the thread itself; it is a thread-local. No borrow of `arenas`, `seats` or `late` lasts while code of the user's runs |
//! | `ForeignFiber::context` | wakers, by the invariants of [`forebear_context::context`] |
//! | `ForeignFiber::fiber` | the thread itself; others as [`crate::deadlock::foreign_stacks`] says |
//! | `ForeignFiber::name` | written when the thread first meets a runtime; read by any thread under the lock of the foreign stacks |
//! | `ForeignFiber::waits` | the thread itself |

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::context::{Context, ForeignContext, for_another};
use forebear_context::shim::thread::Builder;
use forebear_context::shim::{Arc, Mutex, ThreadBody};

use crate::record::arena::Arena;
use crate::record::fiber::{self, Fiber};
use crate::record::reclaim;
use crate::record::report;
use crate::record::side::{self, Side};
use crate::shared::driven::Seat;
use crate::shared::exit_calls::ExitCalls;
use crate::shared::{OfRuntime, Shared};

#[repr(C)]
pub(crate) struct ForeignFiber {
    pub context: ForeignContext,
    pub fiber: Fiber,
    /// The thread's name when it first met a runtime: others ask for it.
    pub name: Option<Box<str>>,
    /// In the middle of a wait, from its park until that returns.
    pub waits: Cell<bool>,
}

/// What a foreign thread owns; given back when it exits.
pub(crate) struct Foreign {
    pub fiber: Cell<*mut ForeignFiber>,
    pub arenas: RefCell<Vec<(Arc<Shared>, NonNull<Arena>)>>,
    /// The one of them that was asked for last, so that the next question is a comparison.
    pub last: Cell<Option<NonNull<Arena>>>,
    pub seats: RefCell<Vec<Seat>>,
    /// Inside `settle_arenas` of [`crate::foreign`].
    pub settles: Cell<bool>,
    /// How often it has settled without a look at what lies free.
    pub unlooked: Cell<usize>,
    /// What is called first when the thread exits.
    pub exit_calls: ExitCalls,
    /// The thread ends the process, from a frame that uses the fiber or an arena: both stay ([`crate::foreign`], `exit.rs`).
    pub stays: Cell<bool>,
    /// Nothing of the user's may be dropped: the thread attends to messages, or has yet to notify listeners.
    pub holds: Cell<bool>,
    /// See [`keep_for_later`].
    #[allow(clippy::vec_box, reason = "they are on their way to where boxes go")]
    pub late: RefCell<Vec<Box<Side>>>,
}

forebear_context::shim::thread_local! {
    pub(crate) static FOREIGN: Foreign =
        const {
            Foreign {
                fiber: Cell::new(ptr::null_mut()),
                arenas: RefCell::new(Vec::new()),
                last: Cell::new(None),
                seats: RefCell::new(Vec::new()),
                settles: Cell::new(false),
                unlooked: Cell::new(0),
                exit_calls: ExitCalls::new(),
                stays: Cell::new(false),
                holds: Cell::new(false),
                late: RefCell::new(Vec::new()),
            }
        };
}

const _: () = assert!(std::mem::offset_of!(ForeignFiber, fiber) == fiber::BEHIND_CONTEXT);

impl Foreign {
    /// The thread's arena in a runtime, if it has one there.
    #[inline]
    pub(crate) fn arena_of(&self, shared: &Shared) -> Option<NonNull<Arena>> {
        match self.last.get() {
            // SAFETY: M3: among `arenas`, which `last` is no longer than.
            Some(last) if ptr::eq(unsafe { last.as_ref() }.shared(), shared) => Some(last),
            _ => self.find_arena_of(shared),
        }
    }

    #[cold]
    fn find_arena_of(&self, shared: &Shared) -> Option<NonNull<Arena>> {
        let arenas = self.arenas.borrow();
        let found = arenas.iter().find(|(of, _)| ptr::eq(&**of, shared)).map(|(_, arena)| *arena);
        if found.is_some() {
            self.last.set(found);
        }
        found
    }

    /// An arena of this thread's, by number. `None` if it is of a runtime that was left behind by a fork: its locks may be held by threads that
    /// are not here.
    pub(crate) fn usable_arena(&self, n: usize) -> Option<NonNull<Arena>> {
        self.arenas.borrow().get(n).filter(|(shared, _)| !shared.is_inherited()).map(|(_, arena)| *arena)
    }
}

/// The context of this thread, if it has one: that of its own stack, whatever stack this is called on.
pub(crate) fn context() -> Option<NonNull<Context>> {
    let at = FOREIGN.try_with(|foreign| foreign.fiber.get()).ok()?;
    // SAFETY: valid until the thread's locals are destroyed.
    unsafe { at.as_ref() }.map(|own| NonNull::from(own.context.context()))
}

/// Whether this is a thread's own stack in the middle of a wait. There the thread drives the runtimes in which it has a
/// seat. No user code may run on that stack: a wait of it would replace the one that has begun.
pub(crate) fn is_in_a_wait() -> bool {
    // SAFETY: a fiber without a worker is a foreign thread's, and this is its thread.
    fiber::get().is_some_and(|fiber| !fiber.has_worker() && unsafe { of(fiber.context()) }.waits.get())
}

/// Calls `f`, in which nothing of the user's is dropped.
pub(crate) fn hold_back<R>(f: impl FnOnce() -> R) -> R {
    let set = |holds: bool| FOREIGN.try_with(|foreign| foreign.holds.replace(holds)).unwrap_or(false);
    let before = set(true);
    let result = f();
    set(before);
    result
}

/// Whether a wait of this thread's own stack has begun and is not over: it may not have parked yet.
fn has_begun_to_wait() -> bool {
    fiber::get().is_some_and(|fiber| !fiber.has_worker() && fiber.context().is_waiting())
}

/// Whether nothing of the user's may be dropped on this thread, which is no worker and is on its own stack.
pub(crate) fn holds_back() -> bool {
    is_in_a_wait() || has_begun_to_wait() || FOREIGN.try_with(|foreign| foreign.holds.get()).unwrap_or(false)
}

/// What is to be dropped, and must not be where it was found ([`holds_back`]). It goes on a coroutine of the thread's seat, or before the next wait, or when
/// the thread has run another request; or, when the thread is about to block in a wait, on a thread that is started for it.
#[cold]
pub(crate) fn keep_for_later(side: Box<Side>) {
    let mut side = Some(side);
    let _ = FOREIGN.try_with(|foreign| foreign.late.borrow_mut().extend(side.take()));
    // While the thread's locals are being destroyed nothing waits.
    side.into_iter().for_each(side::free);
}

/// Calls `end`, which runs code of the user's: here, or, where that [must not run](holds_back), on a thread that is started for it.
pub(crate) fn outside_a_wait(end: impl FnOnce() + Send + 'static) {
    if !holds_back() {
        return end();
    }
    end_elsewhere(Box::new(end));
}

fn end_elsewhere(end: ThreadBody) {
    let thread = Builder::new().name("forebear end".into());
    if let Err(error) = thread.spawn(Box::new(|| for_another(end)) as ThreadBody) {
        report::die(&format_args!(
            "no thread could be started for a request that must end while its thread waits: {error}"
        ));
    }
}

/// Drops this on a thread that is started for it: the calling one is in the middle of a wait. One thread for each: what a destructor waits for may be another
/// of them. False: there is no thread, and it is kept for later again.
#[cold]
pub(crate) fn drop_elsewhere(side: Box<Side>) -> bool {
    struct Late(Box<Side>);
    // SAFETY: the block is its holder's alone.
    unsafe impl Send for Late {}
    let late = Arc::new(Mutex::new(Some(Late(side))));
    let take = |late: &Mutex<Option<Late>>| late.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = late.clone();
    let drop_there: ThreadBody = Box::new(move || {
        if let Some(Late(side)) = take(&theirs) {
            for_another(|| reclaim::free_side(side));
        }
    });
    let started = Builder::new().name("forebear end".into()).spawn(drop_there).is_ok();
    if !started && let Some(Late(side)) = take(&late) {
        keep_for_later(side);
    }
    started
}

/// Calls the hook for warnings on a thread that is started for it: the calling one is in the middle of a wait.
pub(crate) fn warn_elsewhere(shared: Arc<Shared>, what: String) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("forebear warning".into()); // not modelled: it calls a hook
    let warn: ThreadBody = Box::new(move || for_another(|| report::warn(&shared.hooks, &what)));
    thread.spawn(warn).map(drop)
}

/// One of them, if there is any.
pub(crate) fn take_late() -> Option<Box<Side>> {
    FOREIGN.try_with(|foreign| foreign.late.borrow_mut().pop()).ok().flatten()
}

/// Calls `with` for each arena of this thread, which has no user code run. False: the thread's locals are being destroyed.
pub(crate) fn each_arena(mut with: impl FnMut(&Arena)) -> bool {
    let each = |foreign: &Foreign| {
        // An arena may be added meanwhile, for which nothing is left yet. While this says so, none goes.
        let settled = foreign.settles.replace(true);
        let many = foreign.arenas.borrow().len();
        for n in 0..many {
            let arena = foreign.usable_arena(n);
            if let Some(arena) = arena {
                // SAFETY: M3: the thread's own, which it gives back only when it looks for another, or exits.
                with(unsafe { arena.as_ref() });
            }
        }
        foreign.settles.set(settled);
    };
    FOREIGN.try_with(each).is_ok()
}

/// Whether this thread owns the arena: it is one of its arenas, and is not just being given back.
#[inline]
pub(crate) fn owns(arena: *const Arena) -> bool {
    let among = |foreign: &Foreign| {
        let is_it = |own: NonNull<Arena>| ptr::eq(own.as_ptr(), arena);
        let arenas = foreign.arenas.try_borrow();
        arenas.is_ok_and(|arenas| {
            foreign.last.get().is_some_and(is_it) || arenas.iter().any(|(_, own)| is_it(*own))
        })
    };
    FOREIGN.try_with(among).unwrap_or(false)
}

/// The foreign fiber that this context is a part of.
///
/// # Safety
///
/// The context is a foreign fiber's.
pub(crate) unsafe fn of(context: &Context) -> &ForeignFiber {
    // SAFETY: this table is given to foreign fibers only, whose first field is the context.
    unsafe { &*ptr::from_ref(context).cast::<ForeignFiber>() }
}

/// The fiber of a foreign thread's context.
///
/// # Safety
///
/// The context is a foreign thread's, of this table, and is there.
pub(crate) unsafe fn of_context<'a>(context: NonNull<Context>) -> &'a Fiber {
    // SAFETY: by contract.
    unsafe { &context.cast::<ForeignFiber>().as_ref().fiber }
}

pub(crate) fn thread_name(thread: &ForeignFiber) -> &str {
    thread.name.as_deref().unwrap_or("unnamed thread")
}

/// The name of a foreign thread, by any thread.
///
/// # Safety
///
/// The context is a foreign thread's, of this table, and is there.
pub(crate) unsafe fn name_of_thread<'a>(context: NonNull<Context>) -> &'a str {
    // SAFETY: by contract.
    thread_name(unsafe { context.cast::<ForeignFiber>().as_ref() })
}
