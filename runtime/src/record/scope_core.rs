//! What the jobs of a scope, and their runners, know of it. Invariants Z1 to Z6 are in the head of [`mod@crate::api::scope`].
//!
//! It lies in the frame of the scope's call, which stays until `jobs` is down and the scope's owner has been woken (Z4).
//!
//! # Who may touch what
//!
//! | field | who, when |
//! |---|---|
//! | `fiber`, `owner`, `older`, `region` | written when the scope is opened; read by the owner's worker, by a job, and under the lock of the foreign stacks by a search for a cycle |
//! | `jobs` | [`crate::state::jobs`]; the decrement that brings it down is a job's last access |
//! | `stop` | any thread that stops the scope, once; read before each spawn |
//! | `ended` | the owner, when the body is over |
//! | `roots` | any thread, under its lock; only of a scope outside any request |
//! | `failures`, `failed`, `skipped`, `dependents` | a job that ends, or that waits, before it is taken off the count; the owner, after the count is down, and when the body is over |

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use forebear_context::error::{CancelReason, Failure, WaitError};
use forebear_context::shim::atomic::{AtomicBool, AtomicU8, Ordering};
use forebear_context::shim::{Mutex, MutexGuard};

use crate::record::any::AnyRequest;
use crate::record::arena;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::state::jobs::Jobs;
use crate::state::word::{FAILED, SEEN};

/// Why a scope may be stopped.
const STOPS: [CancelReason; 3] =
    [CancelReason::Asked, CancelReason::ScopeUnwound, CancelReason::SiblingFailed];

/// What a job knows of its scope.
pub(crate) struct ScopeCore {
    /// How many there are. Its owner is the fiber; it spawns fast inside a request, until the scope is stopped.
    pub jobs: Jobs,
    pub fiber: *const Fiber,
    /// The region that must not suspend and that the scope was opened in; see the module head.
    region: Option<NonNull<str>>,
    /// The request that the scope is in; null in a foreign thread outside any.
    pub owner: *const Header,
    /// The next older scope on the same fiber.
    pub older: *const ScopeCore,
    /// Why it was stopped: 0, or the reason's place in [`STOPS`], from 1.
    stop: AtomicU8,
    /// The body is over.
    pub ended: AtomicBool,
    /// The jobs of a scope outside any request.
    roots: Mutex<Vec<AnyRequest>>,
    pub failures: Mutex<Vec<(Failure, NonNull<Header>)>>,
    /// Whether there are any.
    pub failed: AtomicBool,
    /// A job was cancelled.
    skipped: AtomicBool,
    /// A job has waited for what it is after.
    dependents: AtomicBool,
}

// SAFETY: `region` names text in a frame below the scope's, which is constant; the pointers are read by their permitted readers; the rest is made for
// sharing.
unsafe impl Sync for ScopeCore {}

impl ScopeCore {
    /// A scope that is opened on `fiber`, which calls; in this region that must not suspend, if it is in one.
    pub(crate) fn new(fiber: &Fiber, region: Option<NonNull<str>>) -> ScopeCore {
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

    /// Counts a job that is about to be spawned. False: the spawn is to be looked after, by `spawned`. An error is the name of the region that must not
    /// suspend in which the scope was opened: then the job is not counted.
    #[inline(always)]
    pub(crate) fn count_spawn(&self) -> Result<bool, &str> {
        // SAFETY: JC2: the caller has the reference to the scope; the fiber is the current one.
        let fast = unsafe { self.jobs.count_fast(fiber::current().cast()) };
        match if fast { None } else { self.count_slowly() } {
            None => Ok(fast),
            Some(region) => Err(region),
        }
    }

    #[cold]
    #[inline(never)]
    fn count_slowly(&self) -> Option<&str> {
        // SAFETY: the region's name lies in a frame below the scope's, which stays while the scope is open.
        let region = self.region.map(|region| unsafe { region.as_ref() });
        if region.is_none() {
            // SAFETY: JC2: the caller has the reference to the scope.
            unsafe { self.jobs.count(ptr::eq(fiber::current(), self.fiber)) };
        }
        region
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

    /// The body is over: whether a failure of a job has not been looked at.
    pub(crate) fn has_unseen(&self) -> bool {
        self.ended.store(true, Ordering::Release);
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the link that came with it.
        failures.iter().any(|(_, header)| !unsafe { header.as_ref() }.word().load().has(SEEN))
    }

    /// A job is over, cancelled for another reason than a cancel of that very job.
    #[cold]
    pub(crate) fn job_skipped(&self) {
        self.skipped.store(true, Ordering::Relaxed);
    }

    /// A job waits for what it is after.
    pub(crate) fn note_dependent(&self) {
        self.dependents.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(crate) fn has_dependents(&self) -> bool {
        self.dependents.load(Ordering::Relaxed)
    }

    pub(crate) fn lock_roots(&self) -> MutexGuard<'_, Vec<AnyRequest>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its jobs that are roots and not over. By its own thread, which waits for them.
    pub(crate) fn roots_left(&self) -> Vec<AnyRequest> {
        self.lock_roots().iter().filter(|job| !job.is_done()).cloned().collect()
    }

    /// Says that it is stopped. False: it was.
    pub(crate) fn set_stopped(&self, reason: CancelReason) -> bool {
        let code = STOPS.iter().position(|stop| *stop == reason).map_or(1, |at| at as u8 + 1);
        self.stop.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Why the scope was stopped, if it was.
    pub(crate) fn stopped(&self) -> Option<CancelReason> {
        STOPS.get(usize::from(self.stop.load(Ordering::Acquire)).wrapping_sub(1)).copied()
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

    /// Whether it was opened on this fiber.
    pub(crate) fn is_on(&self, fiber: &Fiber) -> bool {
        ptr::eq(self.fiber, fiber)
    }

    /// Why the body's value may not be returned: a failure that nobody has looked at, or work that was skipped. When all jobs are over.
    pub(crate) fn why_not(&self) -> Option<WaitError> {
        let failed = self.failed.load(Ordering::Relaxed);
        match failed.then(|| self.unseen()).flatten() {
            Some(failure) => Some(WaitError::Failed(failure)),
            None if self.skipped.load(Ordering::Relaxed) => Some(WaitError::Cancelled),
            None => None,
        }
    }

    /// The first failure that no caller has read. All links are released.
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
