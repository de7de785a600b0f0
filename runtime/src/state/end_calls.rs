//! User code that the ends of requests call on a stack: a list, since that code may run other requests there.
//!
//! The end of a request calls such code when the request is no longer on the stack and not over: the destructor of its value, for one. That code may wait. The
//! search for cycles then reads this list, on another thread.
//!
//! # The race
//!
//! *A reader against the stack that goes on.* Each entry lies in the frame of its call, which goes when the call returns, and so may its request. A
//! reader on another thread holds the stack's wait meanwhile ([`forebear_context::context::edge`]). A wait that is held does not end, so the stack stands still. The
//! hold acquires what the stack wrote before it bound the wait. The release of the hold, and the settling of the wait after it, order the reader's loads
//! before all that the stack does next.
//!
//! # Invariants
//!
//! * **EC1** The list is written by its stack alone. It is read by that stack, and by a thread that holds the stack's wait.
//! * **EC2** An entry is in the list from the beginning to the end of its call, also if that unwinds. Until then its request is not over.

use std::ptr;

use forebear_context::shim::{UnsafeCell, mutant};

/// A call, in the frame that makes it. `H` is a request's header.
#[derive(Debug)]
pub struct EndCall<H> {
    /// Whose end it is.
    pub header: *const H,
    /// What was on top of the stack at the call.
    pub below: *const H,
    /// The one further down on the same stack.
    prev: *const EndCall<H>,
}

/// The calls on one stack, from the innermost.
#[derive(Debug)]
pub struct EndCalls<H>(UnsafeCell<*const EndCall<H>>);

impl<H> EndCalls<H> {
    /// No calls.
    pub fn new() -> EndCalls<H> {
        EndCalls(UnsafeCell::new(ptr::null()))
    }

    fn set(&self, call: *const EndCall<H>) {
        // SAFETY: EC1: the callers write their own stack's list.
        self.0.with_mut(|head| unsafe { *head = call });
    }

    /// Calls `f`, user code that belongs to the end of `header`, and lists it meanwhile.
    ///
    /// # Safety
    ///
    /// EC1: on the list's own stack. EC2: the request is not over before this returns; `below` is null or lives as long.
    pub unsafe fn call<R>(&self, header: *const H, below: *const H, f: impl FnOnce() -> R) -> R {
        struct Back<'a, H>(&'a EndCalls<H>, EndCall<H>);
        impl<H> Drop for Back<'_, H> {
            fn drop(&mut self) {
                mutant!("end_call_stays_listed", (), self.0.set(self.1.prev));
            }
        }
        // SAFETY: EC1: by contract, this is the list's own stack.
        let prev = self.0.with(|head| unsafe { *head });
        let back = Back(self, EndCall { header, below, prev });
        self.set(&raw const back.1);
        f()
    }

    /// Whether there is none.
    ///
    /// # Safety
    ///
    /// EC1.
    #[inline(always)]
    pub unsafe fn is_empty(&self) -> bool {
        // SAFETY: EC1, by contract.
        self.0.with(|head| unsafe { *head }).is_null()
    }

    /// The calls.
    ///
    /// # Safety
    ///
    /// EC1, until the answer is dropped.
    pub unsafe fn each(&self) -> impl Iterator<Item = &EndCall<H>> {
        // SAFETY: EC2: the calls lie in frames of the stack, which by contract stands still or is the caller's.
        let at = |call: *const EndCall<H>| unsafe { call.as_ref() };
        // SAFETY: EC1, by contract.
        let head = self.0.with(|head| unsafe { *head });
        std::iter::successors(at(head), move |call| at(call.prev))
    }
}

impl<H> Default for EndCalls<H> {
    fn default() -> Self {
        EndCalls::new()
    }
}
