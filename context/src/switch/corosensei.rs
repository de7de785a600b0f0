//! Fibers by corosensei: the production backend. The head of [`super`] has invariants F1 to F4.
//!
//! | field | written | used |
//! |---|---|---|
//! | `inner` | by `start` and `reset`, while the fiber does not run (F1, F3) | by `resume`, on the stack of the thread that enters. That borrow lasts while the fiber runs; code on the fiber's stack does not touch the field |
//! | `yielder` | by the first code on the fiber's stack; cleared by `reset` | by `leave` and `on_thread_stack`, on the fiber's own stack (F2). It points to a frame at the bottom of that stack |

use std::cell::{Cell, UnsafeCell};
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Body, StackMemory};
use crate::context::Context;

type Next = Option<NonNull<Context>>;
type Inner = Coroutine<(), Next, Infallible, Promised>;

/// Memory that the caller of [`Switch::start`] has promised to be a stack. Not public: corosensei's safe functions take whatever
/// implements [`Stack`], and anybody can make a [`StackMemory`].
struct Promised(StackMemory);

// SAFETY: `start` alone makes one. By F3 the memory is valid for as long as the fiber is, and a guard lies below `limit`.
unsafe impl Stack for Promised {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.0.base).unwrap_or(NonZeroUsize::MAX)
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.0.limit).unwrap_or(NonZeroUsize::MAX)
    }
}

/// One stack with a body on it.
#[derive(Default)]
pub struct Switch {
    inner: UnsafeCell<Option<Inner>>,
    yielder: Cell<Option<NonNull<Yielder<(), Next>>>>,
}

impl Switch {
    /// A fiber without a stack: what a foreign thread's context has.
    #[must_use]
    pub const fn none() -> Switch {
        Switch { inner: UnsafeCell::new(None), yielder: Cell::new(None) }
    }

    /// Puts `body` on the stack `memory`; it runs at the first [`resume`](Self::resume).
    ///
    /// # Safety
    ///
    /// F3 for `memory`, with a guard below its limit that one frame cannot step over; `context` holds this fiber and
    /// stays where it is.
    pub unsafe fn start(&self, memory: StackMemory, body: Body, context: NonNull<Context>) {
        let start = move |yielder: &Yielder<(), Next>, ()| -> Infallible {
            // SAFETY: the context outlives the fiber, by this function's contract.
            let switch = unsafe { context.as_ref() }.switch();
            switch.yielder.set(Some(NonNull::from(yielder)));
            // SAFETY: the body is given the context it was started with.
            unsafe { body(context) }
        };
        // SAFETY: the closure captures pointers only, which live as long as the fiber; F3.
        let inner = unsafe { Inner::with_stack_unchecked(Promised(memory), start) };
        // SAFETY: F1: nobody runs or resumes a fiber that has not been started.
        unsafe { *self.inner.get() = Some(inner) };
    }

    /// Runs the fiber until it leaves, and returns the fiber that it names as next.
    ///
    /// # Safety
    ///
    /// F1.
    #[inline(always)]
    pub unsafe fn resume(&self) -> Next {
        // SAFETY: F1: no other reference to the inner coroutine exists while it is not running; while it runs, only
        // the yielder on its own stack is used.
        let inner = unsafe { (*self.inner.get()).as_mut().unwrap_unchecked() };
        match inner.resume(()) {
            CoroutineResult::Yield(next) => next,
            CoroutineResult::Return(never) => match never {},
        }
    }

    /// Leaves the fiber for `next`; `None` lets the worker's loop end. Returns when resumed.
    ///
    /// # Safety
    ///
    /// F2.
    #[inline(always)]
    pub unsafe fn leave(&self, next: Next) {
        // SAFETY: F2: we are on the fiber's stack, so its body has begun and the yielder, which lies at its bottom, is
        // set and alive.
        unsafe { self.yielder.get().unwrap_unchecked().as_ref() }.suspend(next);
    }

    /// Calls `f` on the stack of the thread that resumed this fiber.
    ///
    /// # Safety
    ///
    /// F2, and `f` neither suspends nor unwinds.
    pub unsafe fn on_thread_stack(&self, f: &mut dyn FnMut()) {
        struct Sendable<'a>(&'a mut dyn FnMut());
        // SAFETY: the closure runs on this very thread, before this function returns.
        unsafe impl Send for Sendable<'_> {}
        let f = Sendable(f);
        // SAFETY: F2: this is the fiber's own stack, which was resumed, so the yielder is set and alive.
        unsafe { self.yielder.get().unwrap_unchecked().as_ref() }.on_parent_stack(move || {
            let f = f;
            (f.0)();
        });
    }

    /// Forgets the body and its frames without running anything; the stack may then be used anew.
    ///
    /// # Safety
    ///
    /// F3: no frame on the stack is needed any more; F1.
    pub unsafe fn reset(&self) {
        // SAFETY: F1.
        if let Some(mut inner) = unsafe { (*self.inner.get()).take() } {
            // SAFETY: F3.
            unsafe { inner.force_reset() };
        }
        self.yielder.set(None);
    }
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch").field("started", &self.yielder.get().is_some()).finish_non_exhaustive()
    }
}
