//! Forked processes. A child has one thread, the one that called `fork`; the workers stay in the parent.
//!
//! Any use of a runtime that was made in the parent is a panic that says so, never a wait for threads that are not there. A
//! runtime that is built in the child works, and so does the default one, which is made anew there.
//!
//! Each runtime compares the *generation* of the process ([`crate::shared::generation`]) with its own.
//!
//! # In a request
//!
//! A request that forks continues, in the child, on a worker's thread, which is the child's only worker. It can make and run requests,
//! but no other thread can end anything that it waits for. Like any forked program that had threads, it can count on `exec` and
//! `_exit`. When the worker has nothing left to do, it would sleep for ever: it ends the child with a message.
//!
//! # Locks
//!
//! A lock that another thread held at the fork stays locked in the child. Those of the parent's runtimes are not touched
//! after the comparison. Those of the process are held by the forking thread over the fork: the prepare handler takes
//! them, the other two let go. A new lock is named in [`HeldOverFork`].
//!
//! What they guard tells of threads that are not in the child: which wait, which search, where stacks are. Its own threads get
//! the stacks of these. So the child forgets all of it, but for the context of the thread that forks.

use std::cell::RefCell;
use std::sync::Once;

use crate::api::runtime::default;
use crate::deadlock::cycle;
use crate::record::reclaim;
use crate::schedule::held_back;
use crate::shared::parked;
use crate::shared::thread;

#[cfg(test)]
pub(crate) mod tests;

/// What is held over a fork.
struct HeldOverFork {
    default: default::HeldDefault,
    pools: held_back::HeldPools,
    cycle: cycle::HeldCycles,
    parked: parked::HeldParked,
    deferred: reclaim::HeldReclaim,
}

impl HeldOverFork {
    /// In the order in which others take one while they hold another.
    fn all() -> HeldOverFork {
        HeldOverFork {
            default: default::hold(),
            pools: held_back::hold(),
            cycle: cycle::hold(),
            parked: parked::hold(),
            deferred: reclaim::hold(),
        }
    }
}

forebear_context::shim::thread_local! {
    static HELD: RefCell<Option<HeldOverFork>> = const { RefCell::new(None) };
}

/// Called before a fork: takes the locks that the child must find free.
///
/// # Safety
///
/// None: these three are `unsafe` for the type that `pthread_atfork` asks for.
unsafe extern "C" fn prepare() {
    let held = HeldOverFork::all();
    // Without a place for them, in a thread that is about to go, they are not held.
    let _ = HELD.try_with(|place| *place.borrow_mut() = Some(held));
}

/// Called after a fork in the parent: releases the locks.
///
/// # Safety
///
/// None, as for [`prepare`].
unsafe extern "C" fn in_parent() {
    let _ = HELD.try_with(|place| place.borrow_mut().take());
}

/// Called after a fork in the child: records that it is a child, and forgets the parent's threads.
///
/// # Safety
///
/// None, as for [`prepare`].
unsafe extern "C" fn in_child() {
    if let Some(mut held) = HELD.try_with(|place| place.borrow_mut().take()).ok().flatten() {
        default::forget(&mut held.default);
        held_back::forget(&mut held.pools);
        cycle::forget(&mut held.cycle, thread::context());
        parked::forget(&mut held.parked);
        reclaim::forget(&mut held.deferred);
    }
}

/// Sees to it that a child knows that it is one. Once in the life of the process, by the first runtime.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers take locks that no thread holds while it waits for the forking thread, and allocate nothing in
        // the child.
        let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        // Refused for want of memory only; then a child that uses a runtime hangs, as it would have without.
        debug_assert_eq!(failed, 0);
    });
}
