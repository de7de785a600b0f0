//! [`scope`]: requests that may borrow from their surroundings, because it does not return before they are over.
//!
//! # Why it is sound
//!
//! * **Z1** A scope only *spawns*: an unsubmitted request with a borrowing callable does not exist, so every callable is
//!   run, or dropped by its claimer, before the count goes down.
//! * **Z2** The runner drops the callable, and the value if nobody holds it, before the count goes down; a value that
//!   somebody holds is held by a typed handle, whose type carries the borrow. Untyped handles, parents and queue entries
//!   hold the header only.
//! * **Z3** A destructor that panics does not skip the count: it is contained.
//! * **Z4** The scope ends only when the count is down, also when its body unwinds: that is caught, the jobs are waited
//!   for, then it goes on. The count's last touch is the decrement; only the one that brought it to nothing touches the
//!   scope after, and the scope waits for exactly that one's wake-up.
//! * **Z5** A suspended stack with a scope on it is never freed, only leaked.
//!
//! * **Z6** Between the call of the body and the end of the wait an unwind may not leave the frame of [`run`]. The body's unwind is caught. Any
//!   other ends the process ([`Lent`]).
//!
//! # The count
//!
//! [`crate::state::jobs`] counts the jobs. A worker that runs jobs of one scope in a row counts them down together, before it does anything else: until
//! then the scope cannot be over, so nobody waits longer for it.
//!
//! # Regions that must not suspend
//!
//! A scope that is opened inside [`no_suspend`](crate::no_suspend()) refuses its first job by a panic, wherever it is spawned: its end would have to
//! wait for the job, and cannot give up. See [`mod@crate::stack::no_suspend`].
//!
//! # Stopping
//!
//! A scope is *stopped* when its body unwinds or returns an error, when its body is over and a failure has not been looked
//! at, and by [`Scope::cancel`]. Then its jobs are aborted, and what is spawned into it from then on is cancelled at birth.
//! The jobs that the body spawned are children of the request that the scope is in, and its worker finds them there; a
//! stop that comes from elsewhere is left as a message. What jobs spawned in their turn is reached from them. In a foreign
//! thread outside any request the jobs are roots, and the scope keeps a handle of each.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::context::Reason;
use forebear_context::error::{CancelReason, Cancelled, Error, Failure, TimeoutError, WaitError};
use forebear_context::shim::atomic::{AtomicBool, AtomicU8, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::api::any::AnyRequest;
use crate::api::request::{Counted, Request, spawn_with};
use crate::cancel;
use crate::deadlock::cycle;
use crate::foreign;
use crate::memory::arena;
use crate::record::cell::{Fallible, Plain};
use crate::record::header::Header;
use crate::stack::fiber::{self, Fiber};
use crate::stack::lent::Lent;
use crate::stack::no_suspend;
use crate::state::jobs::Jobs;
use crate::state::word::{FAILED, SEEN};

/// Why a scope may be stopped.
const STOPS: [CancelReason; 3] =
    [CancelReason::Asked, CancelReason::ScopeUnwound, CancelReason::SiblingFailed];

/// What a job knows of its scope.
pub(crate) struct ScopeCore {
    /// How many there are. Its owner is the fiber; it spawns fast inside a request, until the scope is stopped.
    jobs: Jobs,
    fiber: *const Fiber,
    /// The region that must not suspend and that the scope was opened in; see the module head.
    region: Option<NonNull<str>>,
    /// The request that the scope is in; null in a foreign thread outside any.
    owner: *const Header,
    /// The next older scope on the same fiber.
    older: *const ScopeCore,
    /// Why it was stopped: 0, or the reason's place in [`STOPS`], from 1.
    stop: AtomicU8,
    /// The body is over.
    ended: AtomicBool,
    /// The jobs of a scope outside any request.
    roots: Mutex<Vec<AnyRequest>>,
    failures: Mutex<Vec<(Failure, NonNull<Header>)>>,
    /// Whether there are any.
    failed: AtomicBool,
    /// A job was cancelled.
    skipped: AtomicBool,
    /// A job has waited for what it is after.
    dependents: AtomicBool,
}

// SAFETY: `region` names text in a frame below the scope's, which is constant; the pointers are read by their permitted readers; the rest is made for
// sharing.
unsafe impl Sync for ScopeCore {}

impl ScopeCore {
    fn new(fiber: &Fiber) -> ScopeCore {
        let region = no_suspend::region(fiber);
        // Outside any request the jobs are roots, which are kept. In a region a job is refused.
        let fast = fiber.request().is_some() && region.is_none();
        ScopeCore {
            jobs: Jobs::new(fast.then(|| NonNull::from(fiber).cast())),
            fiber,
            region,
            owner: fiber.request.get(),
            older: fiber.scopes.get(),
            stop: AtomicU8::new(0),
            ended: AtomicBool::new(false),
            roots: Mutex::new(Vec::new()),
            failures: Mutex::new(Vec::new()),
            failed: AtomicBool::new(false),
            skipped: AtomicBool::new(false),
            dependents: AtomicBool::new(false),
        }
    }

    /// Counts a job that is about to be spawned. False: the spawn is to be looked after, by `spawned`.
    ///
    /// # Panics
    ///
    /// If the scope was opened in a region that must not suspend. Then the job is not counted.
    #[inline(always)]
    #[track_caller]
    fn count_spawn(&self) -> bool {
        // SAFETY: JC2: the caller has the reference to the scope; the fiber is the current one.
        let fast = unsafe { self.jobs.count_fast(fiber::current().cast()) };
        if !fast {
            self.count_slowly();
        }
        fast
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn count_slowly(&self) {
        // SAFETY: the region's name lies in a frame below the scope's, which stays while the scope is open.
        if let Some(region) = self.region.map(|region| unsafe { region.as_ref() }) {
            no_suspend::refuse_job(region);
        }
        self.jobs.count();
    }

    /// So many jobs are over, and nothing of them is left that may borrow. The caller's last access to the scope.
    #[inline(always)]
    pub(crate) fn jobs_done(&self, jobs: i64) {
        // SAFETY: JC3: by Z2 and Z3, the callers come here last.
        unsafe { self.jobs.done(jobs) }
    }

    /// A job was taken by value, and its value with it; or it could not be made. The caller's last access to the scope.
    #[inline]
    pub(crate) fn job_taken(&self) {
        // SAFETY: JC3, as above; the fiber is the current one.
        unsafe { self.jobs.taken(fiber::current().cast()) }
    }

    /// A job has failed; the link of `header` goes with it.
    #[cold]
    pub(crate) fn job_failed(&self, failure: Failure, header: NonNull<Header>) {
        self.failed.store(true, Ordering::Relaxed);
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push((failure, header));
        if self.ended.load(Ordering::Acquire) {
            // The body has had its chance to look; the rest would be for nothing.
            self.stop(CancelReason::SiblingFailed);
        }
    }

    /// The body is over: whether a failure of a job has not been looked at.
    fn has_unseen(&self) -> bool {
        self.ended.store(true, Ordering::Release);
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the link that came with it.
        failures.iter().any(|(_, header)| !unsafe { header.as_ref() }.word().load().has(SEEN))
    }

    /// A job is over, cancelled, and not because somebody asked for just that.
    #[cold]
    pub(crate) fn job_skipped(&self) {
        self.skipped.store(true, Ordering::Relaxed);
    }

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

    /// A job waits for what it is after.
    pub(crate) fn note_dependent(&self) {
        self.dependents.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(crate) fn has_dependents(&self) -> bool {
        self.dependents.load(Ordering::Relaxed)
    }

    fn lock_roots(&self) -> MutexGuard<'_, Vec<AnyRequest>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the scope was stopped, if it was.
    pub(crate) fn stopped(&self) -> Option<CancelReason> {
        STOPS.get(usize::from(self.stop.load(Ordering::Acquire)).wrapping_sub(1)).copied()
    }

    /// Stops the scope: aborts its jobs. From anywhere, while the scope is there.
    #[cold]
    pub(crate) fn stop(&self, reason: CancelReason) {
        let code = STOPS.iter().position(|stop| *stop == reason).map_or(1, |at| at as u8 + 1);
        if self.stop.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        self.jobs.stop_fast();
        match NonNull::new(self.owner.cast_mut()) {
            // SAFETY: the owner is not over while a scope is in it.
            Some(owner) => unsafe { cancel::stop_scopes(owner) },
            None => {
                let jobs = std::mem::take(&mut *self.lock_roots());
                for job in jobs {
                    job.abort(reason);
                }
            }
        }
    }

    /// Calls `with` for each stopped scope of `owner` on `fiber`.
    ///
    /// # Safety
    ///
    /// By the fiber's own thread.
    pub(crate) unsafe fn each_stopped(
        fiber: &Fiber,
        owner: &Header,
        mut with: impl FnMut(*const ScopeCore, CancelReason),
    ) {
        let mut at = fiber.scopes.get();
        // SAFETY: a scope in the chain is in a frame of this stack.
        while let Some(scope) = unsafe { at.as_ref() } {
            if ptr::eq(scope.owner, owner)
                && let Some(reason) = scope.stopped()
            {
                with(at, reason);
            }
            at = scope.older;
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
            // SAFETY: C2: begun just now, and not parked; nobody read it.
            unsafe { context.abandon(ticket) };
        } else {
            // SAFETY: on the fiber's own stack, after `begin`.
            unsafe {
                cycle::bind_to_all(fiber, ticket, NonNull::from(self), true);
                context.park(None);
            }
        }
    }

    /// Whether it was opened on this fiber.
    pub(crate) fn is_on(&self, fiber: &Fiber) -> bool {
        ptr::eq(self.fiber, fiber)
    }

    /// Why the body's value may not be returned: a failure that nobody has looked at, or work that was skipped. When all jobs are over.
    fn why_not(&self) -> Option<WaitError> {
        let failed = self.failed.load(Ordering::Relaxed);
        match failed.then(|| self.unseen()).flatten() {
            Some(failure) => Some(WaitError::Failed(failure)),
            None if self.skipped.load(Ordering::Relaxed) => Some(WaitError::Cancelled),
            None => None,
        }
    }

    /// The first failure nobody has looked at. All links are given back.
    fn unseen(&self) -> Option<Failure> {
        let failures = std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        let mut first = None;
        for (failure, header) in failures {
            // SAFETY: the link that came with it.
            unsafe {
                let word = header.as_ref().word();
                let bits = word.load();
                // It may have been cancelled after all.
                if bits.life() == FAILED && !bits.has(SEEN) {
                    word.mark_seen();
                    first = first.or(Some(failure));
                }
                if word.release_link() {
                    arena::end(header);
                }
            }
        }
        first
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
    pub fn spawn<T: Send + 'scope>(&'scope self, f: impl FnOnce() -> T + Send + 'scope) -> Request<T> {
        let fast = self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        let job = unsafe { spawn_with(Plain(f), &self.core) };
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
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
    pub fn try_spawn<T: Send + 'scope>(
        &'scope self,
        f: impl FnOnce() -> Result<T, Error> + Send + 'scope,
    ) -> Request<T> {
        let fast = self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        let job = unsafe { spawn_with(Fallible(f), &self.core) };
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
    }

    pub(crate) fn spawn_built<T: Send + 'scope, C: crate::record::cell::Callable<T>>(
        &'scope self,
        builder: &crate::api::builder::RequestBuilder,
        callable: C,
    ) -> Request<T> {
        let fast = self.core.count_spawn();
        // SAFETY: Z1, Z2, Z4.
        let job = unsafe { crate::api::builder::spawn_in(builder, callable, &self.core) };
        if !fast {
            self.core.spawned(job.to_untyped());
        }
        job
    }

    /// Spawns what `make` makes with the scope, unsubmitted.
    pub(crate) fn spawn_by<T>(&'scope self, make: impl FnOnce(*const ScopeCore) -> Request<T>) -> Request<T> {
        let fast = self.core.count_spawn();
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
/// # Panics
///
/// Unwinds with the first of these, when all jobs are over:
///
/// * the body's panic;
/// * the first failure of a job that no code has handled; the others count as reported;
/// * [`Cancelled`], if the current request was cancelled and that stopped a job.
///
/// If the body unwinds, or a failure is unhandled, the scope aborts the jobs that are left. Inside a request the
/// failure travels as an error, seen by no panic hook.
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
        (Err(payload), _) => resume_unwind(payload),
        (Ok(_), Some(error)) => forebear_context::error::internal::unwind_with(
            error.into(),
            forebear_context::context::in_request(),
        ),
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
        Err(payload) => resume_unwind(payload),
        Ok(Err(error)) => Err(into_wait_error(error)),
        Ok(Ok(value)) => error.map_or(Ok(value), Err),
    }
}

/// An error on its way out, as what a wait answers.
pub(crate) fn into_wait_error(error: Error) -> WaitError {
    match error.downcast::<WaitError>() {
        Ok(error) => error,
        Err(error) if error.is::<Cancelled>() || error.is::<TimeoutError>() && error.is_cancelled() => {
            WaitError::Cancelled
        }
        Err(error) => {
            let name = fiber::get().and_then(Fiber::request).map_or("foreign thread", Header::name);
            WaitError::Failed(Failure::from_error(error, name.to_owned(), None))
        }
    }
}

/// Runs a scope. Answers what its body came to, and why its value may not be returned; `failed` tells whether the value is a
/// failure, after which the jobs are for nothing.
#[inline(always)]
fn run<'env, R>(
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    failed: fn(&R) -> bool,
) -> (std::thread::Result<R>, Option<WaitError>) {
    let Some(fiber) = foreign::fiber() else {
        panic!("forebear: no scope while the thread's locals are being destroyed")
    };
    let scope = Scope { core: ScopeCore::new(fiber), scope: PhantomData, env: PhantomData };
    fiber.scopes.set(&scope.core);
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
    (result, scope.core.why_not())
}
