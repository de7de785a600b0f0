//! The waiters from outside: foreign threads that block, and requests that wait for one of another runtime.
//!
//! A runtime that was shut down with laggards ends the waits for its requests, and names the scopes of foreign threads
//! that wait for a laggard. Both must be found. So must a foreign thread to whose arena a header was returned that keeps an
//! error (`record/arena/end.rs`). Listing a foreign thread costs little beside a block. So each is listed here while it blocks,
//! in one list for the process.
//!
//! # The race
//!
//! The runtime *gives up*, then walks the list under its lock. A waiter is listed first, then looks whether the runtime has
//! given up: so either the walk finds it, or it finds out by itself.
//!
//! # Invariants
//!
//! * **PK1** A context is listed before the walk may end its wait, until its own stack has taken it out, under the
//!   lock. So under the lock a listed context exists. So does what it waits for: a request (the waiter holds a count),
//!   or the scope in one of its frames.
//! * **PK2** The lock is a leaf but for `unpark`, the nudge of a thread, and their locks, and is held over a fork by the thread that forks.

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::context::{Cause, Context, ForeignContext, Reason, Ticket, unpark};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::record::arena::Arena;
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::scope_core::ScopeCore;
use crate::shared::by_address::{self, ByAddress};
use crate::shared::ending::Stage;
use crate::shared::{OfRuntime, Shared};
use crate::stack::coroutine;

struct Parked {
    context: NonNull<Context>,
    ticket: Ticket,
    /// The name of the thread, if it is a foreign one that waits for a scope.
    thread: Option<String>,
}

// SAFETY: PK1.
unsafe impl Send for Parked {}

static PARKED: Mutex<ByAddress<Parked>> = Mutex::new(by_address::new());

fn lock() -> MutexGuard<'static, ByAddress<Parked>> {
    // Nothing that runs under it can panic half-way.
    PARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other threads from the list (PK2).
#[derive(Debug)]
pub(crate) struct HeldParked {
    _list: MutexGuard<'static, ByAddress<Parked>>,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// Holds the list over a fork.
pub(crate) fn hold() -> HeldParked {
    HeldParked { _list: lock() }
}

/// Forgets everybody: in a forked child, whose one thread does not block. The scopes that the others wait for lay on stacks which the child's own
/// threads use again.
pub(crate) fn forget(held: &mut HeldParked) {
    held._list.clear();
}

/// The runtime of the request that `context` waits for, if it waits for one.
fn awaited(context: &Context) -> Option<&Shared> {
    match context.waits_for() {
        (Reason::Request, target) => {
            let header = target.cast_const().cast::<Header>();
            // SAFETY: the waiter has a count of its target.
            let arena = unsafe { &*header }.arena.get();
            // SAFETY: M3: the target has an arena, which keeps its record.
            Some(unsafe { &*arena }.shared())
        }
        _ => None,
    }
}

/// Lists a context whose wait has begun. On its own stack, before it parks. True: there is nothing to wait for, and the wait
/// has been ended; the thread that drives the context makes it runnable.
pub(crate) fn enter(fiber: &Fiber) -> bool {
    let context = fiber.context();
    let thread = match context.waits_for().0 {
        Reason::Scope | Reason::Pool if !fiber.has_worker() => {
            Some(std::thread::current().name().unwrap_or("unnamed").to_owned())
        }
        _ => None,
    };
    let parked = Parked { context: NonNull::from(context), ticket: context.ticket(), thread };
    lock().insert(ptr::from_ref(context) as usize, parked);
    awaited(context).is_some_and(|shared| shared.ending.is(Stage::GivenUp)) && context.cancel_wait()
}

/// Takes it out. On its own stack.
pub(crate) fn leave(context: &Context) {
    by_address::remove(&mut lock(), ptr::from_ref(context) as usize);
}

/// Ends all waits from outside for requests of a runtime that has given up.
pub(crate) fn give_up(shared: &Shared) {
    for parked in lock().values() {
        // SAFETY: PK1: what is listed waits under this ticket, so its context is there while the list is locked.
        let context = unsafe { parked.context.as_ref() };
        // A waiter for several requests checks them again, and finds out which of them belongs to this runtime.
        let several = context.waits_for().0 == Reason::Select;
        if several || awaited(context).is_some_and(|of| ptr::eq(of, shared)) {
            // SAFETY: PK1, so C1 holds for the wake-up.
            unsafe { unpark(parked.context, parked.ticket, Cause::Cancelled) };
        }
    }
}

/// Nudges the foreign thread that has the arena, if it waits: something was returned to the arena.
pub(crate) fn nudge_owner(arena: &Arena) {
    let parked = lock();
    if let Some(parked) = parked.get(&arena.owner().addr())
        // SAFETY: Y1. Where the owner was, there may be another context by now.
        && !coroutine::is_coroutines(unsafe { parked.context.as_ref() })
    {
        // SAFETY: PK1: it is there while the list is locked. A context that is no coroutine's is a foreign thread's.
        unsafe { ForeignContext::nudge(parked.context) };
    }
}

/// Calls `with` with the context of each foreign thread that waits. The thread does not continue before `with`
/// has returned.
pub(crate) fn each_thread(mut with: impl FnMut(NonNull<Context>)) {
    for parked in lock().values() {
        // SAFETY: Y1.
        if !coroutine::is_coroutines(unsafe { parked.context.as_ref() }) {
            with(parked.context);
        }
    }
}

/// Calls `with` with the thread's name and, if the thread waits for a scope, that scope: for foreign threads that wait for
/// what borrows from them.
pub(crate) fn each_scope(mut with: impl FnMut(&str, &ScopeCore)) {
    for parked in lock().values() {
        let Some(thread) = &parked.thread else { continue };
        // SAFETY: PK1.
        let (_, target) = unsafe { parked.context.as_ref() }.waits_for();
        // SAFETY: PK1; a wait for a scope names it, and other waits of this kind name none.
        if let Some(scope) = unsafe { target.cast::<ScopeCore>().as_ref() } {
            with(thread, scope);
        }
    }
}
