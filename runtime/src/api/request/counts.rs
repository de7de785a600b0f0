//! Cloning and dropping handles, and the work that the last drop does.
//!
//! | a drop finds | and does | exchanges |
//! |---|---|---|
//! | spawned here, unstarted, no other reference but the queue's | gives the handle up by a plain store (W8); the queue's entry keeps the request, which runs | none |
//! | the same of a local request in the private queue | the same | none |
//! | over, with this count alone, on the thread of its arena | drops the value, ends the header | none |
//! | unstarted and never submitted, the last handle | claims it by the same exchange, drops the callable | one |
//! | over, the last handle | has a link now (W6): reports a failure that no handle has read, drops the value, gives the link up | one or two |
//! | anything else | gives the count up | one |
//!
//! A clone makes a second handle, so a local request is not local any more: the clone publishes its state first.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use forebear_context::shim::atomic::Ordering;

use super::Request;
use crate::cancel::unstarted;
use crate::record::arena;
use crate::record::cell;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::report;
use crate::schedule::worker::OnWorker;
use crate::shared::OfRuntime;
use crate::state::word::{Bits, FAILED, FINISHED, HANDLE, HandleDrop, LOCAL, LocalStep, SEEN, SPAWNED};

impl<T> Clone for Request<T> {
    #[inline]
    fn clone(&self) -> Self {
        let h = self.header();
        let here = h.bare.is_local() && h.is_kept_here();
        // Other threads may get the second handle, so the request is not local any more.
        if !(here && h.bare.publish_state(&h.local, HANDLE)) {
            h.word().add_handle();
        }
        Request { header: self.header, value: PhantomData }
    }
}

impl<T> Drop for Request<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let h = self.header();
        let bits = h.bare.load();
        // Spawned and dropped: the private queue has the only other reference, so a plain store will do (W8), if that queue is this
        // worker's.
        if bits.0 == SPAWNED
            && let Some(fiber) = fiber::get()
            && ptr::eq(fiber.arena.get(), h.arena.get())
            && let Some(worker) = fiber.worker()
            && h.bare.drop_sole(bits, || worker.begins_to_touch(h))
        {
            h.place.restore();
            return;
        }
        // SAFETY: this handle, which is given away.
        unsafe { drop_counted::<T>(self.header, bits) };
    }
}

/// The drop of a handle of a request with other references. The header goes by value: otherwise every caller would have to put the handle into memory.
///
/// # Safety
///
/// The caller gives a handle of the request away, whose value is a `T`; `bits` is what its word said just now.
#[inline(never)]
unsafe fn drop_counted<T>(header: NonNull<Header>, bits: Bits) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    // The request is over, and this is the last reference: the load has acquired what other threads did with it (W7). It has no children, which could
    // reach it as their parent, and only this thread may find it from its own parent.
    if h.is_kept_here() {
        if bits.has(LOCAL) && !const { std::mem::needs_drop::<T>() } && h.local.is(LocalStep::Done) {
            // SAFETY: M3: a local request has an arena. W2, W4: it is done, so this handle is the only reference; M1: on its own thread.
            unsafe { arena::end_child(h.arena.get().as_ref().unwrap_unchecked(), header) };
            return;
        }
        if is_alone(h) {
            // SAFETY: W2, W4: the last count of all is ours.
            unsafe { end_alone::<T>(header) };
            return;
        }
        if bits.has(LOCAL)
            && let Some(worker) = fiber::get().and_then(Fiber::worker)
            && h.bare.drop_listed(&h.local, || worker.begins_to_touch(h))
        {
            h.place.restore();
            return;
        }
    }
    if bits.has(LOCAL) {
        // The handle is dropped by value, so no other thread reads the local state.
        h.bare.publish_state(&h.local, 0);
    }
    match h.bare.drop_handle() {
        HandleDrop::NotLast | HandleDrop::Running => {}
        // SAFETY: each by what the drop left us with.
        last => unsafe { drop_last(header, last) },
    }
}

/// Whether the request is over with a value, and the caller's handle is the only reference. Called on the thread of its arena.
#[inline(always)]
pub(super) fn is_alone(h: &Header) -> bool {
    let bits = h.bare.load();
    if bits.has(LOCAL) {
        h.local.is(LocalStep::Done)
    } else {
        bits.life() == FINISHED && bits.is_sole_handle() && has_no_children(h)
    }
}

/// Whether a request that is over has no child left: it never had one, or it ran where it was made, which is the caller's thread.
#[inline(always)]
fn has_no_children(h: &Header) -> bool {
    !h.made_children() || ptr::eq(h.ran_on.load(Ordering::Relaxed), h.arena.get()) && !h.has_children()
}

/// The end of a finished request without other references, on its arena.
///
/// # Safety
///
/// W2, W4; M1 for its arena, if it has one.
#[inline(always)]
pub(super) unsafe fn end_alone<T>(header: NonNull<Header>) {
    // SAFETY: W2 for the drop of the value: no handle is left; M1 for the arena, if there is one; W4 for the end of the header: no count is
    // left.
    unsafe {
        let h = header.as_ref();
        if const { std::mem::needs_drop::<T>() } {
            cell::drop_value_contained(header);
        }
        match h.arena.get().as_ref() {
            Some(arena) => arena::end_any_child(arena, header),
            None => arena::end(header),
        }
    }
}

/// Ends what the last handle kept: an unstarted request, or the value of one that is over.
///
/// # Safety
///
/// `last` is what the word answered when the caller gave up a handle of this header, just now.
#[cold]
#[inline(never)]
unsafe fn drop_last(header: NonNull<Header>, last: HandleDrop) {
    // SAFETY: by the answer of `drop_handle`.
    unsafe {
        if last == HandleDrop::Unstarted {
            // Its callable is `'static`: only such are ever unsubmitted.
            unstarted::end_unstarted(header);
            return;
        }
        let h = header.as_ref();
        let bits = h.word().load();
        if bits.life() == FAILED
            && !bits.has(SEEN)
            && h.scope.get().is_null()
            && let Some(failure) = h.failure()
        {
            report::unseen_failure(h.arena.get().as_ref().map(|arena| &arena.shared().hooks), failure);
        }
        cell::drop_value_contained(header);
        if last == HandleDrop::TerminalAlone || h.word().release_link() {
            arena::end(header);
        }
    }
}
