//! What runs in a runtime: requests that are given to it, and code for which it is the current one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use forebear_context::error::internal::resume;
use forebear_context::error::{CancelReason, Error, WaitError};
use forebear_context::shim::Arc;

use super::{Runtime, default_shared};
use crate::api::origin;
use crate::api::request::{Request, spawn_of};
use crate::api::scope::into_wait_error;
use crate::cancel::shield::UnwindRegion;
use crate::foreign;
use crate::record::callback;
use crate::record::cell::{Callable, Fallible, For, Plain, type_of};
use crate::record::fiber::Fiber;
use crate::record::header::{BORROWS, HeaderPlace, OWN_STACK};
use crate::record::no_suspend;
use crate::record::runtime::RuntimeRecord;
use crate::schedule::driver;
use crate::schedule::wait;
use crate::stack::lent::Lent;

impl Runtime {
    /// Runs `f` as a request of this runtime, on one of its workers, and returns what it returned. `f` may borrow.
    ///
    /// Suspends the calling request, or blocks the calling thread.
    ///
    /// # Panics
    ///
    /// With the panic of `f`. In a region of [`no_suspend`](crate::no_suspend()), before `f` is called.
    ///
    /// ```
    /// use forebear::{Request, Runtime};
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let text = String::from("borrowed");
    /// assert_eq!(runtime.run(|| text.len()), 8);
    /// assert!(runtime.run(|| Request::current().is_some()));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[doc(alias = "install")]
    #[track_caller]
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let (named, mut caught) = (type_of(&f), None);
        let body = || caught = Some(catch_unwind(AssertUnwindSafe(f)));
        match self.run_borrowed(For(Plain(body), named)) {
            Ok(()) => match caught {
                Some(Ok(value)) => value,
                Some(Err(payload)) => resume(payload),
                None => unreachable!("a finished request has run"),
            },
            Err(error) => {
                // Not by the unwind: the destructor of a value may wait, or panic.
                drop(caught);
                forebear_context::error::internal::unwind_with(
                    error.into(),
                    forebear_context::context::in_request(),
                )
            }
        }
    }

    /// As [`run`](Self::run), for a closure that may return an error.
    ///
    /// # Errors
    ///
    /// The failure of the request.
    ///
    /// # Panics
    ///
    /// In a region of [`no_suspend`](crate::no_suspend()), before `f` is called.
    ///
    /// ```
    /// use forebear::{Runtime, WaitError};
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let text = String::from("x");
    /// let failed = runtime.try_run(|| Ok(text.parse::<u32>()?));
    /// assert!(matches!(failed, Err(WaitError::Failed(_))));
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[track_caller]
    pub fn try_run<R: Send>(&self, f: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, WaitError> {
        let (named, mut value) = (type_of(&f), None);
        let body = || {
            value = Some(f()?);
            Ok(())
        };
        self.run_borrowed(For(Fallible(body), named))?;
        value.ok_or_else(|| into_wait_error(Error::other("a finished request has run")))
    }

    /// Runs a callable that may borrow from the caller's frame as a request of this runtime. Returns when the request is over: however the wait for
    /// it is refused, the frame stays lent until then. An unwind in between ends the process ([`Lent`]).
    #[track_caller]
    fn run_borrowed<C: Callable<()>>(&self, callable: C) -> Result<(), WaitError> {
        let fiber = foreign::fiber();
        if let Some(fiber) = fiber.filter(|fiber| fiber.context().no_suspend().get() != 0) {
            // Before anything is lent: it always has to wait.
            callback::refuse("make a request");
            no_suspend::refuse(fiber, "Runtime::run");
        }
        let region = fiber.map(UnwindRegion::open_if_unwinding);
        let request: Request<()> = {
            let origin = origin::here(Some(self.shared()));
            let birth = crate::record::cell::Birth {
                word: crate::state::word::NEW | crate::state::word::HANDLE,
                lineage: origin.lineage(origin::Rank::default()),
                need_pages: origin.shared.default_need,
                scope: ptr::null(),
                place: HeaderPlace::Nowhere,
            };
            // SAFETY: M1: this thread's arena. The callable may borrow: it is submitted below, and this function does not
            // return before the request is over; an unwind in between ends the process.
            let header = unsafe { crate::record::cell::make(origin.arena, birth, callable) };
            // SAFETY: the header was just made, and this thread has its links.
            unsafe { header.as_ref() }.set_flags(OWN_STACK | BORROWS);
            // SAFETY: as above: the handle takes the handle's link over.
            unsafe { Request::from_raw(header) }
        };
        let lent = Lent::to(|| "the request of Runtime::run");
        request.submit();
        let mut answer = request.wait().copied();
        if !request.is_done() {
            answer = run_to_its_end(&request, answer);
        }
        lent.given_back();
        region.into_iter().for_each(UnwindRegion::close);
        answer
    }

    /// Makes a request of this runtime and submits it. A child of the current request if that is of this runtime too,
    /// else a root.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.spawn(|| 6 * 7).take()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> Request<T> {
        // SAFETY: the callable is `'static`.
        unsafe { spawn_of(self.shared(), Plain(f)) }
    }

    /// As [`spawn`](Self::spawn), for a callable that may return an error.
    ///
    /// ```
    /// use forebear::Runtime;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// assert_eq!(runtime.try_spawn(|| Ok("12".parse::<u32>()?)).take()?, 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn try_spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Request<T> {
        // SAFETY: the callable is `'static`.
        unsafe { spawn_of(self.shared(), Fallible(f)) }
    }

    /// Calls `f` here; the free functions inside mean this runtime.
    ///
    /// ```
    /// use forebear::{Runtime, parallelism};
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| parallelism().get()), 3);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        struct EnterGuard<'a>(&'a Fiber, *const RuntimeRecord, *const crate::record::arena::Arena);
        impl Drop for EnterGuard<'_> {
            fn drop(&mut self) {
                self.0.entered.set(self.1);
                self.0.arena.set(self.2);
            }
        }
        let Some(fiber) = foreign::fiber() else { return f() };
        driver::enter(self.shared(), fiber);
        let entered = fiber.entered.replace(self.0.shared.record_ptr().as_ptr());
        // The fast ways of spawn and take go by the arena; without one they leave the matter to the slow ones.
        let _back = EnterGuard(fiber, entered, fiber.arena.replace(ptr::null()));
        f()
    }

    /// The runtime that free functions mean here: the one entered, else the current request's, else the default one,
    /// which is made if need be.
    ///
    /// # Panics
    ///
    /// If its last handle has gone and it is only letting its work end; if the default one cannot be built.
    ///
    /// ```
    /// use forebear::Runtime;
    /// let runtime = Runtime::builder().workers(3).build()?;
    /// assert_eq!(runtime.enter(|| Runtime::current().workers()), 3);
    /// # Ok::<(), forebear::BuildError>(())
    /// ```
    #[track_caller]
    pub fn current() -> Runtime {
        let shared = match foreign::fiber() {
            Some(fiber) => origin::current_runtime(fiber),
            None => default_shared(),
        };
        match shared.handle().map(Arc::downcast) {
            Some(Ok(handle)) => Runtime(handle),
            _ => panic!(
                "forebear: the last handle of the current runtime was dropped: it accepts no more requests"
            ),
        }
    }
}

/// The wait for a request that borrows from the caller's frame was refused with this answer: waits until the request is over all the same.
#[cold]
fn run_to_its_end(request: &Request<()>, answer: Result<(), WaitError>) -> Result<(), WaitError> {
    if matches!(answer, Err(WaitError::Cancelled)) {
        // No other thread waits for it.
        request.abort(CancelReason::Parent);
    }
    let Some(fiber) = foreign::fiber() else { unreachable!("a request was made here") };
    // SAFETY: the calling fiber, on which no region is open; the handle; it was submitted.
    unsafe { wait::until_over_at_any_rate(fiber, request.header_ptr()) };
    match answer {
        Err(WaitError::Cancelled) => answer,
        // No stack to suspend on, a cycle, a runtime that has given up: none of that is the outcome.
        _ => request.wait().copied(),
    }
}

/// How many requests can run at once: the number of workers of the current runtime. A sizing hint.
///
/// ```
/// assert!(forebear::parallelism().get() >= 1);
/// ```
#[doc(alias = "current_num_threads")]
#[must_use]
pub fn parallelism() -> std::num::NonZero<usize> {
    let workers = match foreign::fiber() {
        Some(fiber) => origin::current_runtime(fiber).threads(),
        None => 1,
    };
    std::num::NonZero::new(workers).unwrap_or(std::num::NonZero::<usize>::MIN)
}
