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
//! Whenever a frame is suspended on a seat, and whenever the thread's own frame begins to drive, a call of [`exits`] is first in the C library's list of
//! what is to be called at the exit ([`crate::shared::exit_calls`]). Every thread-local that the frame may refer to is behind that call in the list.
//! So the call comes before any of them is destroyed. It cancels what has begun on the thread's seats, drives it to its end
//! (`schedule/worker/driven/leave.rs`), and gives the seats to others. If a request on a seat ends the process, the call comes from a frame that never continues. Then
//! nothing on the seats continues, and all that has begun there is abandoned (`schedule/worker/driven/abandon.rs`).
//!
//! A destructor may still use runtimes, also to drive. What is suspended then has a call first in the list, too: the C library makes that one next.
//!
//! When this module's own thread-local is destroyed, the same is done once more, and the arenas are given back.
//!
//! # A thread that ends the process
//!
//! `process::exit` destroys the thread-locals of its caller, on top of the caller's frames. Other threads run on meanwhile, and so does what the C library
//! calls at the exit. So the thread's record may be in use when its thread-local goes: others have its address from what stands on the stack.
//!
//! | what stands there | what has the address of the record, or of the arena |
//! |---|---|
//! | a request that the thread runs itself, or what comes before and after its callable | the mailbox of the arena (O2): dumps read the stack by it, and cancels nudge the thread |
//! | a wait | the lists that it stands in (C1), those that block (PK1), the waiters for a runtime's end (EN1), and for a seat (D3) |
//! | the body of a scope | the scope (`ScopeCore::fiber`), which its jobs know |
//! | a call of the user's at a request's end, or at the drop of one | the search for cycles, by the list of such calls (EC2) |
//! | a destructor that is called while arenas are settled | the frame that is in the middle of it |
//!
//! A join outside of any request has nothing there: its published arm is a root, as what the thread has spawned is.
//!
//! Those addresses are taken back by frames that never continue. So the record and the arenas then stay for good, and the record stays registered: who
//! follows an address finds what it finds while such a frame waits. It is no leak that could grow, since the process ends.
//!
//! A thread that just exits has none of these: its frames have returned or have unwound, and each takes back what it has put there. A destructor
//! of a thread-local may put something on top, and takes it back as well. So what stands below is still there when this looks. A wait alone does not
//! show any more when a destructor has begun another one over it. Code of the user's that is called inside a wait is called by the driver, and then
//! [`exits`] comes before any destructor, and looks.
//!
//! # A thread that becomes idle
//!
//! A header whose end another thread brings travels to the arena of the thread that made it. While that thread does nothing, the header lies there, and with it
//! what its parent has failed with. So a thread of `blocking`, which may stay idle for good, gives its arenas back
//! when its call has returned ([`give_back`]). A thread that waits takes the header in: before it blocks, and when it is nudged (`record/arena/end.rs`). An arena whose
//! thread has exited has no such owner, so the thread that returns the header takes it in. Any other thread holds the header until it next deals with a runtime.
//!
//! # Where there is no such list
//!
//! There a runtime without workers is not built ([`BuildError::NoExitCalls`](crate::BuildError::NoExitCalls)).

use std::ffi::c_void;
use std::mem;
use std::ptr::{self, NonNull};

use forebear_context::shim::Arc;

use crate::deadlock::foreign_stacks;
use crate::record::arena::Arena;
use crate::record::fiber;
use crate::record::reclaim;
use crate::shared::Shared;
use crate::shared::thread::{FOREIGN, Foreign, ForeignFiber};

/// A frame is about to be suspended on a seat of this thread, or the thread's own frame to wait until the driver returns. Sees to it that [`exits`]
/// is called before a thread-local is destroyed that the frame may use.
#[cold]
pub(crate) fn watch() {
    // If it is gone, so are the seats.
    let _ = FOREIGN.try_with(|foreign| foreign.exit_calls.ensure(exits));
}

/// The thread destroys its thread-locals, but none that a frame on its seats uses has gone yet.
///
/// # Safety
///
/// None: it is `unsafe` for the type that the C library asks for.
unsafe extern "C" fn exits(_: *mut c_void) {
    let _ = FOREIGN.try_with(|foreign| {
        // XC1.
        foreign.exit_calls.forget();
        foreign.look_what_stands();
        foreign.end_begun();
        foreign.leave_seats();
    });
}

/// In a model no C library calls [`exits`]: a thread that exits does, as the last of what it does.
#[cfg(shuttle)]
pub fn thread_exits() {
    // SAFETY: as for `exits`.
    unsafe { exits(ptr::null_mut()) }
}

impl Foreign {
    /// Notes if something stands on the thread's stack by which others have its record or its arenas.
    fn look_what_stands(&self) {
        // SAFETY: made by `fiber`, freed when this is dropped.
        let own = unsafe { self.fiber.get().as_ref() };
        let stands = own.is_some_and(|ForeignFiber { context, fiber, waits, .. }| {
            fiber.request().is_some()
                // From before a request is run here until after its end. A region or a hook hides the arena, and shows itself.
                || !fiber.arena.get().is_null()
                || !fiber.entered.get().is_null()
                || fiber.no_suspend.get().is_some()
                || waits.get()
                || context.context().is_waiting()
                || !fiber.scopes.get().is_null()
                || !fiber.dropping.get().is_null()
                // SAFETY: EC1: the calling thread is on this stack, or on a coroutine that this stack has entered.
                || !unsafe { fiber.end_calls.is_empty() }
        });
        if stands || self.settles.get() {
            self.stays.set(true);
        }
    }

    /// Lets what has begun on the thread's seats end, while all thread-locals are there that its frames may use. Not if the exit comes from a frame that
    /// never continues: of a request, of a wait, or of the driver.
    fn end_begun(&self) {
        // SAFETY: made by `fiber`, freed when this is dropped.
        let Some(own) = (unsafe { self.fiber.get().as_ref() }) else { return };
        let on_its_own = ptr::eq(fiber::current(), &raw const own.fiber);
        if !on_its_own || own.fiber.request().is_some() || own.waits.get() || own.fiber.context().is_waiting()
        {
            return;
        }
        let seats = self.seats.borrow().clone();
        if let Some(first) = seats.first() {
            (first.shared.calls.end_begun)(&seats, &own.fiber);
        }
    }

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
        self.look_what_stands();
        self.leave_seats();
        let at = self.fiber.get();
        // SAFETY: it is freed below, if it is.
        if unsafe { at.as_ref() }.is_some_and(|own| ptr::eq(fiber::current(), &raw const own.fiber)) {
            // SAFETY: no fiber is always valid.
            unsafe { fiber::enter(ptr::null()) };
        }
        if self.stays.get() {
            // The frames that use them never continue, and do not go either.
            mem::forget(self.arenas.take());
            return;
        }
        if !at.is_null() {
            // SAFETY: EL1; nothing stands on this stack, so nobody else has its address.
            unsafe {
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
