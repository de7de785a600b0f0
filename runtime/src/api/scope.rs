//! [`scope`]: requests that may borrow from their surroundings, because it does not return before they are over.
//!
//! # Why it is sound
//!
//! * **Z1** A scope only *spawns*: an unsubmitted request with a borrowing callable does not exist, so every callable is
//!   run, or dropped by its claimer, before the count goes down.
//! * **Z2** The runner drops the callable, and the value if no typed handle keeps it, before the count goes down. A typed handle keeps the
//!   value, and its type carries the borrow. Untyped handles, parents and queue entries keep the header only.
//! * **Z3** A destructor that panics does not skip the count: it is contained.
//! * **Z4** The scope ends only when the count is zero. If its body unwinds, the scope catches the unwind, waits for the jobs, and then
//!   resumes it. A job's last access is the decrement of the count. Only the job that brings the count to zero accesses the scope after that,
//!   and the scope waits for that job's wake-up.
//! * **Z5** A suspended stack with a scope on it is never freed, only leaked.
//!
//! * **Z6** Between the call of the body and the end of the wait an unwind may not leave the frame of [`run`]. The body's unwind is caught. Any
//!   other ends the process ([`Lent`]).
//!
//! # The count
//!
//! [`crate::state::jobs`] counts the jobs. A worker that runs several jobs of one scope in a row subtracts them together, before it does
//! anything else. Until then the scope cannot be over.
//!
//! # Regions that must not suspend
//!
//! A scope that is opened inside [`no_suspend`](crate::no_suspend()) refuses its first job by a panic, wherever the job is spawned. The scope's end would
//! have to wait for the job, and cannot give up. See [`mod@crate::record::no_suspend`].
//!
//! # Stopping
//!
//! A scope is *stopped* when its body unwinds or returns an error, when its body is over and no handle has read a job's failure, and by
//! [`Scope::cancel`]. Then its jobs are aborted, and jobs spawned into it later are cancelled at birth. The jobs that the body spawned are
//! children of the request that the scope is in, and that request's worker finds them there. Another thread that stops the scope leaves a
//! message for that worker. Jobs of jobs are reached from their parents. In a foreign thread outside any request the jobs are roots, and the
//! scope keeps a handle of each.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use forebear_context::context::Reason;
use forebear_context::error::internal::{drop_contained, resume};
use forebear_context::error::{CancelReason, Cancelled, Error, TimeoutError, WaitError};

use crate::api::any::AnyRequest;
use crate::api::request::{Counted, Request, spawn_with};
use crate::cancel::shield::UnwindRegion;
use crate::deadlock::cycle;
use crate::foreign;
use crate::record::any;
use crate::record::cell::{Callable, Fallible, Plain};
use crate::record::fiber::{self, Fiber};
use crate::record::no_suspend;
use crate::record::scope_core::ScopeCore;
use crate::schedule::worker::OnWorker;
use crate::shared::worker::is_unwinding;
use crate::stack::lent::Lent;

impl ScopeCore {
    /// After a spawn by the slow way: a root is kept, and what was spawned into a stopped scope is cancelled.
    #[cold]
    #[inline(never)]
    fn spawned(&self, job: AnyRequest) {
        if self.owner.is_null() {
            let mut roots = self.lock_roots();
            // Under the lock: who stops the scope says so first, and then takes what is there.
            if self.stopped().is_none() {
                // Now and then those that are over go, so that a long scope keeps no more than twice what lives.
                if roots.len() >= 64 && roots.len().is_power_of_two() {
                    roots.retain(|job| !job.is_done());
                }
                roots.push(job);
                return;
            }
        }
        if let Some(reason) = self.stopped() {
            job.abort(reason);
        }
    }

    /// Waits until all jobs are over.
    #[inline(always)]
    fn wait(&self) {
        // SAFETY: the fiber that made the scope is the one that ends it.
        let fiber = unsafe { &*self.fiber };
        if let Some(worker) = fiber.worker()
            // SAFETY: the fiber that made the scope is its owner.
            && unsafe { self.jobs.are_any() }
        {
            worker.run_own_jobs(fiber, self);
            if std::thread::panicking() && is_unwinding(fiber) {
                worker.run_jobs_in_unwind(fiber, self);
            }
            // SAFETY: as above.
            if unsafe { self.jobs.are_over() } {
                return;
            }
            worker.make_room_to_leave(fiber);
        }
        let context = fiber.context();
        // SAFETY: C2: this is the fiber's own stack; C4: the scope stays until all its jobs are over, and nothing unwinds before the wait
        // is parked or taken back.
        let ticket = unsafe { context.begin(Reason::Scope, ptr::from_ref(self).cast_mut().cast()) };
        // SAFETY: the fiber is the owner; it parks below if jobs are left.
        if unsafe { self.jobs.close(context, ticket) } {
            // SAFETY: C2: begun just now, and not parked; no other thread has read it.
            unsafe { context.abandon(ticket) };
        } else {
            // SAFETY: on the fiber's own stack, after `begin`; the scope lies in this frame or below it.
            unsafe { cycle::bind_to_all(fiber, ticket, NonNull::from(self), true) };
            // SAFETY: on the fiber's own stack, after `begin`.
            unsafe { context.park(None) };
        }
    }
}

/// The place where borrowed work is spawned; see [`scope`].
///
/// Both lifetimes are invariant, as in [`std::thread::scope`]: `'scope` is the time in which jobs may run, `'env` what
/// they may borrow from.
///
/// ```
/// use forebear::{Scope, scope};
///
/// /// Sums the halves in parallel; each is a job of the scope.
/// fn sums<'scope>(s: &'scope Scope<'scope, '_>, numbers: &'scope [u32]) -> [u32; 2] {
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     [left, right].map(|half| s.spawn(move || half.iter().sum())).map(|half| half.take().unwrap())
/// }
/// let numbers = [1, 2, 3, 4];
/// assert_eq!(scope(|s| sums(s, &numbers)), [3, 7]);
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    core: ScopeCore,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// What its jobs know it by.
    pub(crate) fn core(&self) -> *const ScopeCore {
        &self.core
    }

    /// Runs `f` as a request of its own, a child of the *caller*. It may borrow whatever outlives the scope.
    ///
    /// The handle may be dropped, or leave the scope if its value does not borrow from inside. Does not suspend.
    ///
    /// ```
    /// use forebear::scope;
    /// let words = ["a", "bb", "ccc"];
    /// let longest = scope(|s| s.spawn(|| words.iter().max_by_key(|w| w.len())));
    /// assert_eq!(longest.take()?, Some(&"ccc"));
    /// # Ok::<(), forebear::WaitError>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn spawn<T: Send + 'scope>(&'scope self, f: impl FnOnce() -> T + Send + 'scope) -> Request<T> {
        self.spawn_callable(Plain(f))
    }

    /// As [`spawn`](Self::spawn), for a callable that may return an error.
    ///
    /// ```
    /// use forebear::{WaitError, scope};
    ///
    /// let text = String::from("x");
    /// scope(|s| {
    ///     let parse = s.try_spawn(|| Ok(text.parse::<u32>()?));
    ///     assert!(matches!(parse.take(), Err(WaitError::Failed(_))));
    /// });
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn try_spawn<T: Send + 'scope>(
        &'scope self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'scope,
    ) -> Request<T> {
        self.spawn_callable(Fallible(f))
    }

    /// As [`spawn`](Self::spawn), for any callable.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn spawn_callable<T: Send + 'scope>(
        &'scope self,
        callable: impl Callable<T> + 'scope,
    ) -> Request<T> {
        let fast = self.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        let job = unsafe { spawn_with(callable, &self.core) };
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
    }

    /// Counts a job that is about to be spawned; see [`ScopeCore::count_spawn`].
    ///
    /// # Panics
    ///
    /// If the scope was opened in a region that must not suspend.
    #[inline(always)]
    #[track_caller]
    fn count_spawn(&self) -> bool {
        match self.core.count_spawn() {
            Ok(fast) => fast,
            Err(region) => no_suspend::refuse_job(region),
        }
    }

    pub(crate) fn spawn_built<T: Send + 'scope, C: Callable<T>>(
        &'scope self,
        builder: &crate::api::builder::RequestBuilder,
        callable: C,
    ) -> Request<T> {
        let fast = self.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        let job = unsafe { crate::api::builder::make::spawn_in(builder, callable, &self.core) };
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
    }

    /// Spawns what `make` makes with the scope, unsubmitted.
    pub(crate) fn spawn_by<T>(&'scope self, make: impl FnOnce(*const ScopeCore) -> Request<T>) -> Request<T> {
        let fast = self.count_spawn();
        let counted = Counted(&self.core);
        let job = make(&self.core);
        std::mem::forget(counted);
        let lent = Lent::to(|| "a job of its scope");
        job.submit();
        lent.given_back();
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
    }

    /// Cancels all jobs of the scope, also those that others wait for, and what is spawned into it from now on. From anywhere.
    /// Does not suspend; the scope still returns when all are over.
    ///
    /// ```
    /// use forebear::{Runtime, scope, spawn, yield_now};
    /// let found = scope(|s| {
    ///     for _ in 0..3 {
    ///         s.spawn(|| while yield_now().is_ok() {});
    ///     }
    ///     s.cancel();
    ///     7
    /// });
    /// assert_eq!(found, 7);
    /// ```
    pub fn cancel(&self) {
        self.core.stop(CancelReason::Asked);
    }
}

// The count is kept whatever unwinds.
impl UnwindSafe for Scope<'_, '_> {}
impl RefUnwindSafe for Scope<'_, '_> {}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// Calls `f` with a [`Scope`], and returns when all that was spawned in it is over.
///
/// Suspends, or blocks a foreign thread, while jobs are left. A failure of a job that no code has handled leaves the scope as an unwind,
/// so no value is ever returned over work that was skipped.
///
/// A scope on a plain thread that waits while none of its jobs can go on says so, once, after a second or more: a warning goes to
/// [`RuntimeBuilder::on_warning`](crate::RuntimeBuilder::on_warning), and names the jobs and what they wait for. A job that computes or sleeps can go on, and so can one that
/// waits for such a request. A scope inside a request gives no warning, nor does one that was cancelled or has failed. [`Runtime::dump`](crate::Runtime::dump) shows every scope that waits,
/// with its jobs.
///
/// # Panics
///
/// Unwinds with the first of these, when all jobs are over:
///
/// * the body's panic;
/// * the first failure of a job that no code has handled; the others count as reported;
/// * [`Cancelled`], if the current request was cancelled and that stopped a job.
///
/// If the body unwinds, or a failure is unhandled, the scope aborts the jobs that are left. Inside a request the
/// failure travels as an error, seen by no panic hook. Under `panic = "abort"` the process ends instead, with a line on standard error; use
/// [`try_scope`] there if the request may be cancelled, or a job may fail.
///
/// ```
/// use forebear::scope;
///
/// let mut halves = [0, 0];
/// let (left, right) = halves.split_at_mut(1);
/// scope(|s| {
///     s.spawn(|| left[0] = 1);
///     s.spawn(|| right[0] = 2);
/// });
/// assert_eq!(halves, [1, 2]);
/// ```
#[inline]
#[track_caller]
pub fn scope<'env, R>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let (result, error) = run(f, |_| false);
    match (result, error) {
        (Err(payload), error) => unwind_without(error, payload),
        (Ok(value), Some(error)) => {
            // Not by the unwind: its destructor may wait, or panic.
            drop(value);
            forebear_context::error::internal::unwind_with(
                error.into(),
                forebear_context::context::in_request(),
            )
        }
        (Ok(value), None) => value,
    }
}

/// As [`scope`], for a body that may return an error. In that case the scope aborts the jobs that are left.
///
/// # Errors
///
/// The body's error, else the first failure of a job that no code has handled, else
/// [`Cancelled`](WaitError::Cancelled) if the current request was cancelled and that stopped a job. All jobs are over by
/// then.
///
/// # Panics
///
/// Unwinds with the body's panic.
///
/// ```
/// use forebear::{WaitError, try_scope};
/// let failed = try_scope(|s| {
///     s.try_spawn(|| Ok("x".parse::<u32>()?));
///     Ok(())
/// });
/// assert!(matches!(failed, Err(WaitError::Failed(_))));
/// ```
pub fn try_scope<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
) -> Result<R, WaitError> {
    let (result, error) = run(f, Result::is_err);
    match result {
        Err(payload) => unwind_without(error, payload),
        Ok(Err(error)) => Err(into_wait_error(error)),
        Ok(Ok(value)) => error.map_or(Ok(value), Err),
    }
}

/// The panic of the body continues. A failure of a job is not dropped by the unwind: the destructor of its error may wait.
#[cold]
#[inline(never)]
fn unwind_without(error: Option<WaitError>, payload: Box<dyn Any + Send>) -> ! {
    drop_contained(error);
    resume(payload)
}

/// An error on its way out, as what a wait answers.
pub(crate) fn into_wait_error(error: Error) -> WaitError {
    match error.downcast::<WaitError>() {
        Ok(error) => error,
        Err(error) if error.is::<Cancelled>() || error.is::<TimeoutError>() && error.is_cancelled() => {
            WaitError::Cancelled
        }
        Err(error) => {
            let caller = fiber::get().and_then(Fiber::request);
            WaitError::Failed(any::failure_inside(error, caller, "foreign thread"))
        }
    }
}

/// Runs a scope. Answers the result of its body, and the error to return instead of its value, if any. `failed` says whether
/// the value is a failure: then the jobs are cancelled, since their results are not needed.
#[inline(always)]
fn run<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    failed: fn(&R) -> bool,
) -> (std::thread::Result<R>, Option<WaitError>) {
    let Some(fiber) = foreign::fiber() else {
        panic!("forebear: no scope while the thread's locals are being destroyed")
    };
    let scope = Scope {
        core: ScopeCore::new(fiber, no_suspend::region(fiber)),
        scope: PhantomData,
        env: PhantomData,
    };
    fiber.scopes.set(&scope.core);
    let region = UnwindRegion::open_if_unwinding(fiber);
    // Z6.
    let lent = Lent::to(|| "the jobs of a scope");
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    match &result {
        Err(_) => scope.core.stop(CancelReason::ScopeUnwound),
        Ok(value) if failed(value) => scope.core.stop(CancelReason::ScopeUnwound),
        Ok(_) if scope.core.has_unseen() => scope.core.stop(CancelReason::SiblingFailed),
        Ok(_) => {}
    }
    // Z4: not before this.
    scope.core.wait();
    lent.given_back();
    fiber.scopes.set(scope.core.older);
    let why_not = scope.core.why_not();
    region.close();
    (result, why_not)
}
