//! [`scope`]: requests that may borrow from their surroundings, because it does not return before they are over.
//!
//! # Why it is sound
//!
//! * **Z1** A scope only *spawns*: an unsubmitted request with a borrowing callable does not exist, so every callable is
//!   run, or dropped by whoever claims it, before the count goes down.
//! * **Z2** The runner drops the callable, and the value if nobody holds it, before the count goes down; a value that
//!   somebody holds is held by a typed handle, whose type carries the borrow. Untyped handles, parents and queue entries
//!   hold the header only.
//! * **Z3** A destructor that panics does not skip the count: it is contained.
//! * **Z4** The scope ends only when the count is down, also when its body unwinds: that is caught, the jobs are waited
//!   for, then it goes on. The count's last touch is the decrement; only the one that brought it to nothing touches the
//!   scope after, and the scope waits for exactly that one's wake-up.
//! * **Z5** A suspended stack with a scope on it is never freed, only leaked.
//!
//! # The count
//!
//! Spawns from the scope's own strand are counted plainly, jobs that end (anywhere) by one decrement. Therefore the
//! counter begins far above what it could fall to, and the end of the body takes the difference off. A worker that works
//! off jobs of one scope in a row takes them off together, before it does anything else: until then the scope cannot be
//! over, so nobody waits longer for it.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::shim::Mutex;

use forebear_context::context::{Cause, Context, Reason, Ticket, unpark};
use forebear_context::error::{Error, Failure, WaitError};
use forebear_context::shim::atomic::{AtomicI64, Ordering};

use crate::cell::{Fallible, Plain};
use crate::foreign;
use crate::header::Header;
use crate::home;
use crate::request::{Request, spawn_with};
use crate::strand::Strand;
use crate::word::SEEN;

const FAR: i64 = 1 << 40;

/// What a job knows of its scope.
pub(crate) struct ScopeCore {
    /// `FAR`, plus spawns from elsewhere, minus jobs ended; at the end of the body `FAR` goes and the plain count comes.
    count: AtomicI64,
    /// Spawns from the scope's own strand.
    spawned_here: Cell<i64>,
    strand: *const Strand,
    /// Whom the last job wakes. Written before `FAR` goes.
    waiter: UnsafeCell<Option<(NonNull<Context>, Ticket)>>,
    failures: Mutex<Vec<(Failure, NonNull<Header>)>>,
}

// SAFETY: `spawned_here` is touched by the scope's own strand only; `waiter` is written before the exchange that lets
// the last job read it; the rest is made for sharing.
unsafe impl Sync for ScopeCore {}

impl ScopeCore {
    fn new(strand: &Strand) -> ScopeCore {
        ScopeCore {
            count: AtomicI64::new(FAR),
            spawned_here: Cell::new(0),
            strand,
            waiter: UnsafeCell::new(None),
            failures: Mutex::new(Vec::new()),
        }
    }

    #[inline(always)]
    fn count_spawn(&self) {
        if ptr::eq(crate::strand::current(), self.strand) {
            self.spawned_here.set(self.spawned_here.get() + 1);
        } else {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many jobs are over, and nothing of them is left that may borrow.
    #[inline(always)]
    pub(crate) fn jobs_done(&self, jobs: i64) {
        if self.count.fetch_sub(jobs, Ordering::AcqRel) == jobs {
            self.wake();
        }
    }

    /// A job was taken by value, and its value with it.
    #[inline]
    pub(crate) fn job_taken(&self) {
        if ptr::eq(crate::strand::current(), self.strand) {
            // On the scope's own strand: as if it had never been counted.
            self.spawned_here.set(self.spawned_here.get() - 1);
        } else {
            self.jobs_done(1);
        }
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: Z4: the count is down, and the scope waits for this wake-up; the slot was written before.
        unsafe {
            if let Some((context, ticket)) = *self.waiter.get() {
                unpark(context, ticket, Cause::Woken);
            }
        }
    }

    /// A job has failed; the link of `header` goes with it.
    #[cold]
    pub(crate) fn job_failed(&self, failure: Failure, header: NonNull<Header>) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push((failure, header));
    }

    /// Waits until all jobs are over.
    #[inline(always)]
    fn wait(&self) {
        // SAFETY: the strand that made the scope is the one that ends it.
        let strand = unsafe { &*self.strand };
        if let Some(worker) = strand.worker()
            && self.spawned_here.get() != 0
        {
            worker.make_room_to_leave(strand);
        }
        let context = strand.context();
        let ticket = context.begin(Reason::Scope, ptr::null_mut());
        // SAFETY: nobody reads it before `FAR` goes.
        unsafe { *self.waiter.get() = Some((NonNull::from(context), ticket)) };
        let rest = FAR - self.spawned_here.get();
        if self.count.fetch_sub(rest, Ordering::AcqRel) == rest {
            context.abandon(ticket);
        } else {
            // SAFETY: on the strand's own stack, after `begin`.
            unsafe { context.park(None) };
        }
    }

    /// The first failure nobody has looked at. All links are given back.
    fn unseen(&self) -> Option<Failure> {
        let failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        let mut first = None;
        for (failure, header) in failures {
            // SAFETY: the link that came with it.
            unsafe {
                let word = &header.as_ref().word;
                if !word.load().has(SEEN) {
                    word.mark_seen();
                    first = first.or(Some(failure));
                }
                if word.release_link() {
                    home::end(header);
                }
            }
        }
        first
    }
}

/// Where borrowed work is spawned; see [`scope`].
///
/// Both lifetimes are invariant, as in [`std::thread::scope`]: `'scope` is the time in which jobs may run, `'env` what
/// they may borrow from.
pub struct Scope<'scope, 'env: 'scope> {
    core: ScopeCore,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Runs `f` as a request of its own, a child of the *caller*. It may borrow whatever outlives the scope.
    ///
    /// The handle may be dropped, or leave the scope if its value does not borrow from inside. Does not suspend.
    ///
    /// ```
    /// # use forebear_runtime::scope;
    /// let words = ["a", "bb", "ccc"];
    /// let longest = scope(|s| s.spawn(|| words.iter().max_by_key(|w| w.len())));
    /// assert_eq!(longest.take()?, Some(&"ccc"));
    /// # Ok::<(), forebear_runtime::WaitError>(())
    /// ```
    #[inline(always)]
    pub fn spawn<T: Send + 'scope>(&'scope self, f: impl FnOnce() -> T + Send + 'scope) -> Request<T> {
        self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        unsafe { spawn_with(Plain(f), &self.core) }
    }

    /// As [`spawn`](Self::spawn), for a callable that may return an error.
    #[inline(always)]
    pub fn try_spawn<T: Send + 'scope>(
        &'scope self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'scope,
    ) -> Request<T> {
        self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        unsafe { spawn_with(Fallible(f), &self.core) }
    }

    pub(crate) fn spawn_built<T: Send + 'scope, C: crate::cell::Callable<T>>(
        &'scope self,
        builder: &crate::builder::RequestBuilder,
        callable: C,
    ) -> Request<T> {
        self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        unsafe { crate::builder::spawn_in(builder, callable, &self.core) }
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
/// Suspends, or blocks a foreign thread, while jobs are left. A failure of a job that nobody looked at comes out of here,
/// so no value is ever returned over work that was skipped.
///
/// # Panics
///
/// Unwinds with the body's panic, else with the first failure of a job that nobody looked at (the others count as
/// reported). In both cases all jobs are over by then. Inside a request the failure travels as an error, seen by no
/// panic hook.
///
/// ```
/// use forebear_runtime::scope;
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
    let (result, failure) = run(f);
    match (result, failure) {
        (Err(payload), _) => resume_unwind(payload),
        (Ok(_), Some(failure)) => forebear_context::error::internal::unwind_with(
            WaitError::Failed(failure).into(),
            forebear_context::context::in_request(),
        ),
        (Ok(value), None) => value,
    }
}

/// As [`scope`], for a body that may return an error.
///
/// # Errors
///
/// The body's error, else the first failure of a job that nobody looked at. All jobs are over by then.
///
/// # Panics
///
/// Unwinds with the body's panic.
///
/// ```
/// # use forebear_runtime::{WaitError, try_scope};
/// let failed = try_scope(|s| {
///     s.try_spawn(|| Ok("x".parse::<u32>()?));
///     Ok(())
/// });
/// assert!(matches!(failed, Err(WaitError::Failed(_))));
/// ```
pub fn try_scope<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, Error>,
) -> Result<R, WaitError> {
    let (result, failure) = run(f);
    match result {
        Err(payload) => resume_unwind(payload),
        Ok(Err(error)) => Err(into_wait_error(error)),
        Ok(Ok(value)) => failure.map_or(Ok(value), |failure| Err(WaitError::Failed(failure))),
    }
}

/// An error on its way out, as what a wait answers.
pub(crate) fn into_wait_error(error: Error) -> WaitError {
    match error.downcast::<WaitError>() {
        Ok(error) => error,
        Err(error) => {
            let name = crate::strand::get().and_then(Strand::request).map_or("foreign thread", Header::name);
            WaitError::Failed(Failure::from_error(error, name.to_owned(), None))
        }
    }
}

#[inline(always)]
fn run<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> (std::thread::Result<R>, Option<Failure>) {
    let Some(strand) = foreign::strand() else {
        panic!("forebear: no scope while the thread's locals are being destroyed")
    };
    let scope = Scope { core: ScopeCore::new(strand), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    // Z4: not before this.
    scope.core.wait();
    (result, scope.core.unseen())
}
