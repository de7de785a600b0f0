//! A foreign thread exits: how that is noticed in time, and what becomes of what it has.
//!
//! # The danger
//!
//! A thread that drives a runtime without workers has suspended frames of requests, each of which may stand inside `LocalKey::with`. When
//! the thread exits, its thread-locals are destroyed one after the other, the last one first. The destructor of one may wait, or drop the last
//! handle of a runtime. That drives the thread's requests. So a frame might continue that uses a destroyed thread-local.
//!
//! # What is done
//!
//! The C library destroys thread-locals, and calls whatever else was registered for that (`__cxa_thread_atexit_impl`), in the opposite order of
//! their registration. So whenever a frame is suspended on a seat, the thread registers a call of [`exits`]. Every thread-local that
//! the frame may refer to was registered before. So the call comes before any of them is destroyed. It abandons all that
//! stands on the thread's seats (`schedule/worker/driven/abandon.rs`) and gives the seats to others.
//!
//! A destructor may still use runtimes, also to drive. What is suspended then has a call registered, too: the C library makes that one next.
//!
//! When this module's own thread-local is destroyed, the same is done once more, and the arenas are given back.
//!
//! # A thread that becomes idle
//!
//! A header whose end another thread brings travels to the arena of the thread that made it. While that thread does nothing, the header lies there, and with it
//! what its parent has failed with. So a thread of `blocking`, which may stay idle for good, gives its arenas back
//! when its call has returned ([`give_back`]). Any other thread holds them until it next deals with a runtime, or exits.
//!
//! # What is left
//!
//! What has been registered cannot be taken back, and takes memory until the thread exits. So of one thread's suspensions the first `EACH` (`shared/thread.rs`) register,
//! and afterwards each whose number is a power of two. A thread-local that a frame uses when it was first used after the last of these may be
//! gone before. That is a danger only if another thread-local, first used after that one of these too, drives in its destructor. Where the C
//! library has no such function, the seats are left when this module's own thread-local is destroyed.

use std::ptr::{self, NonNull};

use forebear_context::shim::Arc;

use crate::deadlock::foreign_stacks;
use crate::record::arena::Arena;
use crate::record::fiber;
use crate::record::reclaim;
use crate::shared::Shared;
use crate::shared::thread::{FOREIGN, Foreign};

/// A frame is about to be suspended on a seat of this thread: sees to it that [`exits`] is called before a thread-local is destroyed that the
/// frame may use.
#[cold]
pub(crate) fn watch() {
    if FOREIGN.try_with(|foreign| foreign.watches.count()).unwrap_or(false) {
        register();
    }
}

#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
fn register() {
    use std::ffi::{c_int, c_void};

    use forebear_context::shim::atomic::{AtomicPtr, Ordering};

    type Register =
        unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, *mut c_void) -> c_int;
    /// Null until it has been looked for, and if there is none. Each thread that looks finds the same.
    static REGISTER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    /// Any address in the object that has this code, which is not to be unloaded before.
    static HERE: u8 = 0;

    /// The function that the C library calls as the thread exits.
    ///
    /// # Safety
    ///
    /// None: it is `unsafe` for the type that the C library asks for.
    unsafe extern "C" fn called(_: *mut c_void) {
        exits();
    }

    let mut found = REGISTER.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_thread_atexit_impl".as_ptr()) };
        REGISTER.store(found, Ordering::Relaxed);
    }
    // SAFETY: this is the function's type, by the ABI for C++; null is none.
    if let Some(register) = unsafe { std::mem::transmute::<*mut c_void, Option<Register>>(found) } {
        let here = (&raw const HERE).cast_mut().cast();
        // SAFETY: the function is called on this thread, with nothing. glibc ends the process if it has no memory.
        let _ = unsafe { register(called, ptr::null_mut(), here) };
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
fn register() {}

/// The thread destroys its thread-locals, but none that a frame on its seats uses has gone yet.
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
fn exits() {
    // If it is gone, so are the seats.
    let _ = FOREIGN.try_with(Foreign::leave_seats);
}

impl Foreign {
    /// What stands on the thread's seats stays behind; the seats go to others. Not inside the driver, unless that never continues.
    fn leave_seats(&self) {
        // SAFETY: made by `fiber`, freed below.
        let Some(own) = (unsafe { self.fiber.get().as_ref() }) else { return };
        // The exit may come from inside a wait, which never returns.
        own.waits.set(false);
        self.late.take().into_iter().for_each(reclaim::free_side);
        let seats = self.seats.take();
        if seats.is_empty() {
            return;
        }
        if let Some(here) = fiber::get() {
            // The exit may come from a request's stack.
            own.fiber.limit.set(here.limit.get());
        }
        for seat in seats {
            // SAFETY: it is there until below, where it is no longer current.
            unsafe { fiber::enter(&raw const own.fiber) };
            (seat.shared.calls.leave_seat)(&seat);
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.leave_seats();
        let at = self.fiber.get();
        if !at.is_null() {
            // SAFETY: no fiber is always valid; nothing runs on this one any more.
            unsafe {
                if ptr::eq(fiber::current(), &raw const (*at).fiber) {
                    fiber::enter(ptr::null());
                }
                foreign_stacks::unregister_thread((*at).context.context());
                drop(Box::from_raw(at));
            }
        }
        give_arenas_back(self.arenas.take());
    }
}

/// The thread may stay idle for good: gives its arenas back, as its exit would. On its own stack, in no wait and no request.
///
/// It keeps the arenas of runtimes in which it has a seat, since requests are suspended there.
pub(super) fn give_back() {
    let taken = FOREIGN.try_with(|foreign| {
        let seats = foreign.seats.borrow();
        let has_seat = |of: &Shared| seats.iter().any(|seat| ptr::eq(&*seat.shared, of));
        // `settle` goes through the arenas, and calls destructors meanwhile.
        if foreign.settles.get() {
            return Vec::new();
        }
        foreign.last.set(None);
        foreign.arenas.borrow_mut().extract_if(.., |(of, _)| !has_seat(of)).collect()
    });
    // Nothing is borrowed here: destructors of the user's are called. What they open stays until the thread is here again.
    give_arenas_back(taken.unwrap_or_default());
}

fn give_arenas_back(arenas: Vec<(Arc<Shared>, NonNull<Arena>)>) {
    for (shared, arena) in arenas {
        if shared.is_inherited() {
            // Its locks may be held by threads that are not here.
            continue;
        }
        // SAFETY: this thread is the owner: it has just taken the arena out of its own list.
        let own = unsafe { arena.as_ref() };
        own.drain_returns();
        // SAFETY: M1: this thread owns the arena, and does not touch it after this.
        unsafe { shared.depot.leave(arena) };
    }
}
