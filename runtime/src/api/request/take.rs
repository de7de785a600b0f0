//! Taking the value out: the consuming wait, and its fast way without an atomic exchange.
//!
//! # The fast way
//!
//! `take` gets the handle by value. The request may be unstarted, private to this worker, and have this one handle. Then the caller has all its
//! counts: the handle, and the link of its entry in this worker's private queue. So no other thread can claim, cancel or read it, and plain stores
//! do (W8). The value goes into the caller's frame, and the header is freed at once, without becoming terminal.
//!
//! | step | falls out of the fast way if |
//! |---|---|
//! | claim | it was made on another arena, its stack does not fit here, the word is not `SPAWNED`, a raid is on, or an attention bit forbids it; then [`take_slowly`] waits as any waiter |
//! | run | it ends without a value, was shared, has children left, or a message or a mark has come; then [`finish_taken`] ends it as any runner |
//!
//! The callable may ask for its own handle, and pass it on. So the word is read again after the call.
//!
//! # Who may move the value
//!
//! The holder of the only handle of a request that is over (W2). `take` has the handle by value, so no other code can clone it meanwhile.

use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use forebear_context::error::{Cycle, WaitError};

use super::Request;
use super::counts::{end_alone, is_alone};
use crate::cancel;
use crate::record::arena::{self, Arena};
use crate::record::fiber;
use crate::record::header::Header;
use crate::record::no_value::NoValue;
use crate::record::scope_core::ScopeCore;
use crate::schedule::finish;
use crate::schedule::run;
use crate::schedule::wait;
use crate::schedule::worker::OnWorker;
use crate::state::attention::{DRIVEN, HUNGRY, LIMITS, MARKS, MESSAGE, OLDER, RAIDED};
use crate::state::word::{Bits, FINISHED, HANDLE};

impl<T> Request<T> {
    /// The value itself, waited for as by [`wait`](Self::wait).
    ///
    /// The fastest way to a value: what was spawned and not shared is run right here without a single atomic exchange.
    ///
    /// # Errors
    ///
    /// As `wait`; and [`Shared`](WaitError::Shared) if other handles exist when the request has ended.
    ///
    /// ```
    /// use forebear::{Request, WaitError, spawn};
    /// assert_eq!(spawn(|| String::from("mine")).take()?, "mine");
    /// let shared = spawn(|| 1);
    /// let _other = shared.clone();
    /// assert!(matches!(shared.take(), Err(WaitError::Shared)));
    /// # Ok::<(), WaitError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn take(self) -> Result<T, WaitError> {
        let header = self.into_raw();
        // SAFETY: the handle's count is ours.
        let h = unsafe { header.as_ref() };
        if let Some(fiber) = fiber::get()
            && ptr::eq(h.arena.get(), fiber.arena.get())
            && fiber.room() >= h.need()
            && h.bare.claim_sole(|| {
                // SAFETY: the word says that it stands in a private queue: so its arena is a worker's, and so is the fiber.
                let worker = unsafe { fiber.worker_of_arena() };
                let bits = HUNGRY | OLDER | MESSAGE | MARKS | DRIVEN | LIMITS | RAIDED;
                h.place.touch(|| worker.post.attention.get() & bits == 0 || wait::nothing_forbids(fiber, h))
            })
        {
            // SAFETY: as above.
            let worker = unsafe { fiber.worker_of_arena() };
            // W8: there is no other reference, by the claim.
            worker.list.unlink(h);
            worker.count_direct();
            // SAFETY: W1: by the claim.
            let below = unsafe { run::put_on_top(fiber, header) };
            let mut value = MaybeUninit::<T>::uninit();
            // SAFETY: W1; the value goes into this frame.
            let ending = unsafe { (h.vtable.call)(header, value.as_mut_ptr().cast()) };
            // Looked up again: to save registers for them over the call would cost more, in every frame of a recursion.
            // SAFETY: as above: a fiber never changes its thread, a request never its fiber, nor a fiber its worker.
            let (fiber, worker) = unsafe {
                let fiber = &*fiber::current();
                (fiber, fiber.worker_of_arena())
            };
            fiber.request.set(below);
            if ending.is_none()
                && h.bare.is_still_sole()
                && !h.has_children()
                && worker.post.attention.get() & (MESSAGE | MARKS) == 0
            {
                let scope = h.scope.get();
                // SAFETY: there is still no other reference: the header is ours to end, on the arena it was made and ran on.
                if !unsafe { arena::end_plain_child(worker.arena(), header) } {
                    // SAFETY: the same; and a scope waits for its jobs.
                    unsafe { end_taken(worker.arena(), header, scope) };
                // SAFETY: a scope waits for its jobs, and this one is over now.
                } else if let Some(scope) = unsafe { scope.as_ref() } {
                    scope.job_taken();
                }
                // SAFETY: no ending, so there is a value.
                return Ok(unsafe { value.assume_init() });
            }
            // SAFETY: claimed by us; the handle's count is ours.
            unsafe { finish_taken(header, ending, &mut value)? };
            // SAFETY: written by the callee.
            return Ok(unsafe { value.assume_init() });
        }
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the handle's count is ours.
        unsafe { take_slowly(header, &mut value)? };
        // SAFETY: written by the callee.
        Ok(unsafe { value.assume_init() })
    }
}

/// The end of what was taken and is alone, if it is none of those that are at hand.
///
/// # Safety
///
/// As [`arena::end_child`]; `scope` is its scope, or null.
#[cold]
#[inline(never)]
unsafe fn end_taken(here: &Arena, header: NonNull<Header>, scope: *const ScopeCore) {
    // Before the header ends; see `finish::notify_end`.
    // SAFETY: a scope waits for its jobs, and this one is over now.
    if let Some(scope) = unsafe { scope.as_ref() } {
        scope.job_taken();
    }
    // SAFETY: by contract.
    unsafe { arena::end_child(here, header) };
}

/// The end of a fused take that was not alone after all, or whose callable did not return a value.
///
/// # Safety
///
/// W1: the caller has claimed the request, called its callable, which answered `ending`, and has its handle.
/// Without an ending `value` is written. If the answer is none of an error, it is written by then.
#[cold]
#[inline(never)]
unsafe fn finish_taken<T>(
    header: NonNull<Header>,
    ending: Option<Box<NoValue>>,
    value: &mut MaybeUninit<T>,
) -> Result<(), WaitError> {
    // SAFETY: W1: claimed by the caller.
    unsafe {
        match ending {
            None => {
                // The value stays in place until it is known who else may look.
                Header::value::<T>(header).write(value.assume_init_read());
                header.as_ref().has_value.set(true);
                finish::finish(header, false);
            }
            Some(ending) => finish::fail(header, *ending, false),
        }
        value.write(take_over(header)?);
        Ok(())
    }
}

/// The value goes to a place of the caller's: where the fast way has it, too, so that it need not move its own.
///
/// # Safety
///
/// The caller has a handle of a `Request<T>`, and gives it away. Without an error the value is written.
#[cold]
#[inline(never)]
#[track_caller]
unsafe fn take_slowly<T>(header: NonNull<Header>, out: &mut MaybeUninit<T>) -> Result<(), WaitError> {
    // SAFETY: the caller's handle: given back if the wait is refused, by an error or, where it must not suspend, by a panic.
    let handle = unsafe { Request::<T>::from_raw(header) };
    // SAFETY: as above.
    let ran_here = unsafe { wait::until_over(header) }?;
    mem::forget(handle);
    // SAFETY: as above. What ran here is of this thread's arena; and no cancel concerns the waiter then.
    if ran_here && unsafe { is_alone(header.as_ref()) } {
        // SAFETY: W2, W4: over with a value, which is moved out; the one count is the handle.
        unsafe {
            header.as_ref().has_value.set(false);
            let value = Header::value::<T>(header).read();
            end_alone::<T>(header);
            out.write(value);
            return Ok(());
        }
    }
    // SAFETY: as above.
    out.write(unsafe { take_over(header)? });
    Ok(())
}

/// The answer of a take whose target is over.
///
/// # Safety
///
/// As for [`take_slowly`]; the request is over.
unsafe fn take_over<T>(header: NonNull<Header>) -> Result<T, WaitError> {
    // SAFETY: the caller's handle.
    let h = unsafe { header.as_ref() };
    let bits = if h.is_done_locally() { Bits(FINISHED | HANDLE) } else { h.word().load() };
    let answer = if fiber::get().is_some_and(cancel::refuses) {
        Err(WaitError::Cancelled)
    } else if bits.life() != FINISHED {
        // SAFETY: as above.
        Err(unsafe { refused(header) })
    } else if bits.handles() > 1 {
        Err(WaitError::Shared)
    } else {
        // SAFETY: terminal with a value, and ours is the only handle (acquired: the others' reads are done).
        return Ok(unsafe { take_value(header) });
    };
    // SAFETY: the handle is given back.
    drop(unsafe { Request::<T>::from_raw(header) });
    answer
}

impl<T> Request<T> {
    /// The value, waited for as by [`wait`](Self::wait), if this is the only handle. The handle stays, and has no value any more.
    ///
    /// # Safety
    ///
    /// The caller has a handle of the request, which is for a `T`, and makes no other.
    pub(crate) unsafe fn take_over_from(header: NonNull<Header>) -> Result<T, WaitError> {
        // SAFETY: the caller's handle keeps the header, for the wait and for what is read after it.
        unsafe {
            wait::until_over(header)?;
            let h = header.as_ref();
            let bits = h.word().load();
            if bits.life() != FINISHED {
                return Err(refused(header));
            }
            if bits.handles() > 1 || !h.has_value.replace(false) {
                return Err(WaitError::Shared);
            }
            // SAFETY: W2: terminal with a value, and the caller's is the only handle.
            Ok(Header::value::<T>(header).read())
        }
    }
}

/// There is no value to be taken: the request came to none, or this is one of its callbacks, and others may be shown it yet.
///
/// # Safety
///
/// As `refusal`.
#[cold]
unsafe fn refused(header: NonNull<Header>) -> WaitError {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    if h.life_here() == FINISHED {
        return WaitError::CircularWait(Cycle::new([h.name().to_owned()]));
    }
    // SAFETY: by contract.
    unsafe { wait::refusal(header) }
}

/// Moves the value out and gives the handle back.
///
/// # Safety
///
/// W2: the request has a value of this type, and the caller its only handle, which it gives away.
pub(super) unsafe fn take_value<T>(header: NonNull<Header>) -> T {
    // SAFETY: W2: the only handle, by value; M1: on the thread of its arena, or W4.
    unsafe {
        let h = header.as_ref();
        h.has_value.set(false);
        let value = Header::value::<T>(header).read();
        if h.is_kept_here() && is_alone(h) {
            end_alone::<T>(header);
        } else {
            if h.bare.is_local() {
                // The handle is taken by value, so no other thread reads the local state.
                h.bare.publish_state(&h.local, 0);
            }
            if h.bare.release_handle() {
                arena::end(header);
            }
        }
        value
    }
}
